//! Parsing of requests, and the problems of malformed ones.

use api::v1::{Problem, ProblemKind};
use axum::Json;
use axum::body::Bytes;
use axum::extract::Query;
use axum::extract::rejection::BytesRejection;
use axum::http::header::{CONTENT_TYPE, IF_MATCH, IF_NONE_MATCH};
use axum::http::{HeaderMap, HeaderName, StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use serde::de::DeserializeOwned;

use super::{BODY_MAX, STATE_MAX};
use crate::command::Condition;
use config::{json, words};

/// A problem as a response.
pub(super) struct Failure(Problem);

impl From<Problem> for Failure {
    fn from(problem: Problem) -> Self {
        Self(problem)
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let status = StatusCode::from_u16(self.0.status);
        let status = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let kind = [(CONTENT_TYPE, "application/problem+json")];
        (status, kind, Json(self.0)).into_response()
    }
}

/// The response of a handler, or the problem.
pub(super) type Answer<T> = Result<T, Failure>;

/// Returns the problem of a request that cannot be read.
pub(super) fn malformed(detail: impl Into<String>) -> Problem {
    Problem::new(ProblemKind::Malformed, detail)
}

/// Returns the problem of a query that is not understood, from axum's text `Failed to deserialize
/// query string: limit: invalid digit found in string`.
pub(super) fn invalid_query(text: &str, uri: &Uri) -> Problem {
    let invalid = |detail: String| Problem::new(ProblemKind::Invalid, detail);
    let what = text
        .rsplit_once("query string: ")
        .map_or(text, |(_, what)| what);
    let Some((field, detail)) = what
        .split_once(": ")
        .filter(|(field, _)| !field.contains(' '))
    else {
        // The library gives no field for one that is there twice.
        let (detail, _) = json::explain(what, "");
        let field = what.split('`').nth(1);
        return invalid(detail).with_field(field.unwrap_or("query"));
    };
    let pairs = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let mut pairs = pairs.map(|Query(pairs)| pairs).unwrap_or_default();
    pairs.retain(|(name, _)| name == field);
    if let (Some(expected), Some((_, value))) = (words::expected(detail), pairs.first()) {
        let detail = format!("expected {expected}, found {value:?}");
        return invalid(detail).with_field(field);
    }
    let (detail, field) = json::explain(detail, field);
    invalid(detail).with_field(field)
}

/// Checks that the body has the name in the path.
pub(super) fn same_name(path: &str, body: &str) -> Result<(), Problem> {
    if path == body {
        return Ok(());
    }
    let detail = format!("differs from the path: `{path}`");
    Err(Problem::new(ProblemKind::Invalid, detail).with_field("name"))
}

/// Returns the document in a request's body.
pub(super) fn document<T: DeserializeOwned>(
    headers: &HeaderMap,
    body: Result<Bytes, BytesRejection>,
) -> Result<T, Problem> {
    let body = body.map_err(|error| incomplete_body(&error))?;
    if !is_json(headers) {
        let detail = "the content type must be application/json";
        return Err(Problem::new(ProblemKind::UnsupportedMedia, detail));
    }
    if let Ok(document) = serde_json::from_slice(&body) {
        return Ok(document);
    }
    // A second pass finds the place of the error; it takes twice as long.
    let mut json = serde_json::Deserializer::from_slice(&body);
    let document = json::read(&mut json).map_err(|error| json::problem(&error))?;
    json.end().map_err(|error| json::syntax_error(&error))?;
    Ok(document)
}

/// Returns whether the body is declared as JSON; one without a declaration is accepted.
fn is_json(headers: &HeaderMap) -> bool {
    let Some(value) = headers.get(CONTENT_TYPE) else {
        return true;
    };
    let kind = value.to_str().unwrap_or_default();
    let kind = kind.split(';').next().unwrap_or_default().trim();
    ["application/json", "application/merge-patch+json"]
        .iter()
        .any(|known| kind.eq_ignore_ascii_case(known))
}

/// Returns the problem of a body that did not arrive completely.
fn incomplete_body(error: &BytesRejection) -> Problem {
    match error.status() {
        StatusCode::PAYLOAD_TOO_LARGE => {
            let detail = format!(
                "the body is limited to {BODY_MAX} bytes, that of /v1/state, /v1/access and an \
                 access list to {STATE_MAX}"
            );
            Problem::new(ProblemKind::TooLarge, detail)
        }
        _ => malformed("the body did not arrive as a whole"),
    }
}

/// Returns the condition of a change.
///
/// # Errors
/// 400 for a malformed list of entity tags.
pub(super) fn condition(headers: &HeaderMap) -> Result<Condition, Problem> {
    let Some(tags) = tags(headers, &IF_MATCH)? else {
        return Ok(Condition::Any);
    };
    let versions = tags.into_iter().filter(|tag| !tag.weak);
    let versions: Vec<String> = versions.map(|tag| tag.version).collect();
    if versions.iter().any(|version| version == ANY) {
        return Ok(Condition::Any);
    }
    Ok(Condition::OneOf(versions))
}

/// Returns whether a client knows this version already (`If-None-Match`, RFC 9110, 13.1.2).
///
/// # Errors
/// As [`condition`].
pub(super) fn is_known(headers: &HeaderMap, version: &str) -> Result<bool, Problem> {
    let tags = tags(headers, &IF_NONE_MATCH)?.unwrap_or_default();
    let mut versions = tags.iter().map(|tag| tag.version.as_str());
    Ok(versions.any(|v| v == version || v == ANY))
}

/// The wildcard in place of a tag.
const ANY: &str = "*";

/// An entity tag (RFC 9110, 8.8.3).
struct Tag {
    weak: bool,
    version: String,
}

/// Returns the tags of a header, if it is there.
fn tags(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Vec<Tag>>, Problem> {
    let bad = || malformed(format!("{name} must be * or a list of quoted ETags"));
    let mut all = Vec::new();
    for value in headers.get_all(name) {
        let text = value.to_str().map_err(|_| bad())?;
        for item in text
            .split(',')
            .map(str::trim)
            .filter(|item| !item.is_empty())
        {
            all.push(tag(item).ok_or_else(bad)?);
        }
    }
    Ok(headers.contains_key(name).then_some(all))
}

fn tag(item: &str) -> Option<Tag> {
    if item == ANY {
        let version = item.to_owned();
        return Some(Tag {
            weak: false,
            version,
        });
    }
    let (weak, quoted) = match item.strip_prefix("W/") {
        Some(quoted) => (true, quoted),
        None => (false, item),
    };
    let version = quoted.strip_prefix('"')?.strip_suffix('"')?;
    let is_plain = !version.contains('"') && version != ANY;
    is_plain.then(|| Tag {
        weak,
        version: version.to_owned(),
    })
}
