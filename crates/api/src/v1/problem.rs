//! Why a request was not done: problem details (RFC 9457).

use std::fmt;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Body of every answer that is not a success, `application/problem+json` (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// What sort of problem it is: `urn:lasthop:problem:` and a word like `invalid` or `conflict`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The sort of problem in words.
    pub title: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// What happened here, for people.
    pub detail: String,
    /// The field of the request that is wrong.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// Where in that field, for a text that is not understood: in characters from 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub column: Option<usize>,
}

/// The sorts of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// The request cannot be read: bad JSON, an unknown query field.
    Malformed,
    /// What the request names does not exist.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// What the request would add exists already or is taken; what it would remove is needed.
    Conflict,
    /// What the request would change cannot change while Lasthop runs.
    Fixed,
    /// What the request wants to change is not any more what it says it is (`If-Match`).
    Outdated,
    /// The request did not come in time.
    Timeout,
    /// The body is too long.
    TooLarge,
    /// The body is not JSON.
    UnsupportedMedia,
    /// The request can be read and asks for something that cannot be.
    Invalid,
    /// Something failed that is not the client's fault.
    Internal,
    /// Lasthop cannot do it now; later it may.
    Unavailable,
}

impl ProblemKind {
    /// HTTP status, name within the URN, and title.
    const fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Malformed => (400, "malformed", "The request cannot be read"),
            Self::NotFound => (404, "not-found", "There is no such thing"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "The method is not allowed here"),
            Self::Conflict => (409, "conflict", "It conflicts with what there is"),
            Self::Fixed => (409, "fixed", "It cannot change while Lasthop runs"),
            Self::Outdated => (412, "outdated", "It has changed meanwhile"),
            Self::Timeout => (408, "timeout", "The request did not come in time"),
            Self::TooLarge => (413, "too-large", "The request is too long"),
            Self::UnsupportedMedia => (415, "unsupported-media", "The request is not JSON"),
            Self::Invalid => (422, "invalid", "The request asks for what cannot be"),
            Self::Internal => (500, "internal", "It failed"),
            Self::Unavailable => (503, "unavailable", "Not now"),
        }
    }
}

impl Problem {
    /// A problem of a sort, told in `detail`.
    pub fn new(kind: ProblemKind, detail: impl Into<String>) -> Self {
        let (status, name, title) = kind.row();
        Self {
            kind: format!("urn:lasthop:problem:{name}"),
            title: title.to_owned(),
            status,
            detail: detail.into(),
            field: None,
            column: None,
        }
    }

    /// The same problem, blamed on a field of the request.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// The same problem, blamed on a place in a field.
    #[must_use]
    pub fn with_column(self, field: impl Into<String>, column: usize) -> Self {
        let column = Some(column);
        Self {
            column,
            ..self.with_field(field)
        }
    }

    /// There is no segment called `name` (404).
    pub fn no_such_segment(name: &str) -> Self {
        Self::new(
            ProblemKind::NotFound,
            format!("there is no segment `{name}`"),
        )
    }

    /// There is no mirror called `name` (404).
    pub fn no_such_mirror(name: &str) -> Self {
        Self::new(
            ProblemKind::NotFound,
            format!("there is no mirror `{name}`"),
        )
    }

    /// There is no port called `name` (404).
    pub fn no_such_port(name: &str) -> Self {
        Self::new(ProblemKind::NotFound, format!("there is no port `{name}`"))
    }

    /// There is no access list called `name` (404).
    pub fn no_such_list(name: &str) -> Self {
        Self::new(
            ProblemKind::NotFound,
            format!("there is no access list `{name}`"),
        )
    }

    /// Lasthop cannot do it now (503).
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Unavailable, detail)
    }

    /// Something failed that is not the client's fault (500).
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Internal, detail)
    }

    /// Something exists already or is taken (409).
    pub fn conflict(field: &str, detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Conflict, detail).with_field(field)
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.field {
            Some(field) => write!(f, "{field}: {}", self.detail),
            None => f.write_str(&self.detail),
        }
    }
}

impl std::error::Error for Problem {}
