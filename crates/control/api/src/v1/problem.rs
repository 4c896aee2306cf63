//! Problem details of refused requests (RFC 9457).

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// Body of every answer that is not a success, `application/problem+json` (RFC 9457).
#[skip_serializing_none]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// The type of the problem: `urn:lasthop:problem:` and a word like `invalid` or `conflict`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The type in words.
    pub title: String,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The explanation of this occurrence.
    pub detail: String,
    /// The field of the request that is wrong.
    pub field: Option<String>,
    /// The position in that field, for a text that cannot be parsed: a character, counted from 1.
    pub column: Option<usize>,
}

/// Types of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProblemKind {
    /// Malformed request: bad JSON, a path that cannot be read.
    Malformed,
    /// An object that the request names does not exist.
    NotFound,
    /// The path exists, the method does not.
    MethodNotAllowed,
    /// An object to be added exists or its resource is taken; an object to be removed is in use.
    Conflict,
    /// The value cannot change while Lasthop runs.
    Fixed,
    /// The desired state has another version than the request names (`If-Match`).
    Outdated,
    /// The request did not arrive in time.
    Timeout,
    /// The body is too long.
    TooLarge,
    /// The body is not JSON.
    UnsupportedMedia,
    /// The request is well formed and has an invalid value.
    Invalid,
    /// An internal error.
    Internal,
    /// Lasthop cannot process the request now. A retry may succeed.
    Unavailable,
}

impl ProblemKind {
    /// Returns the HTTP status, the name within the URN, and the title.
    const fn row(self) -> (u16, &'static str, &'static str) {
        match self {
            Self::Malformed => (400, "malformed", "Malformed request"),
            Self::NotFound => (404, "not-found", "Not found"),
            Self::MethodNotAllowed => (405, "method-not-allowed", "Method not allowed"),
            Self::Conflict => (409, "conflict", "Conflict"),
            Self::Fixed => (409, "fixed", "Cannot change at run time"),
            Self::Outdated => (412, "outdated", "The desired state has changed"),
            Self::Timeout => (408, "timeout", "Request timeout"),
            Self::TooLarge => (413, "too-large", "Request too large"),
            Self::UnsupportedMedia => (415, "unsupported-media", "Unsupported media type"),
            Self::Invalid => (422, "invalid", "Invalid value"),
            Self::Internal => (500, "internal", "Internal error"),
            Self::Unavailable => (503, "unavailable", "Unavailable"),
        }
    }
}

impl Problem {
    /// Returns a problem of this type, explained by `detail`.
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

    /// Returns the problem with the field of the request that causes it.
    #[must_use]
    pub fn with_field(mut self, field: impl Into<String>) -> Self {
        self.field = Some(field.into());
        self
    }

    /// Returns the problem with the field that causes it, and the position in that field.
    #[must_use]
    pub fn with_column(self, field: impl Into<String>, column: usize) -> Self {
        let column = Some(column);
        Self {
            column,
            ..self.with_field(field)
        }
    }

    /// Returns the problem of an unknown object (404), like `port` and its name.
    pub fn no_such(what: &str, name: &str) -> Self {
        Self::new(
            ProblemKind::NotFound,
            format!("there is no {what} `{name}`"),
        )
    }

    /// Returns the problem of a request that may succeed later (503).
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Unavailable, detail)
    }

    /// Returns the problem of an internal error (500).
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(ProblemKind::Internal, detail)
    }

    /// Returns the problem of a name or a resource that is taken (409).
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
