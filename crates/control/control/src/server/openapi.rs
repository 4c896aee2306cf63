//! The OpenAPI document (3.1), generated from the types and the handlers, and committed as
//! `docs/openapi.json`.
//!
//! The server sends the committed document. A test compares it with the generated one; `BLESS=1
//! cargo test -p lasthop-control openapi` updates it.

use utoipa::OpenApi;
use utoipa::openapi::header::HeaderBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::schema::{OneOfBuilder, Schema};
use utoipa::openapi::{Content, ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

/// The committed document.
pub(super) const COMMITTED: &str = include_str!("../../../../../docs/openapi.json");

/// The head of the document; the paths and their schemas come from the handlers.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lasthop",
        version = "1",
        description = "The API of a running Lasthop: HTTP and JSON on the unix socket \
                       `DIR/api.sock`. It is extended within a major version and stays \
                       compatible: responses may have fields that are not listed here."
    ),
    components(schemas(
        api::v1::Event,
        api::v1::EventKind,
        api::v1::Problem,
        api::v1::ChangesDocument
    ))
)]
struct Api;

/// Generates the document from the types and the handlers.
///
/// # Panics
/// Never: all values can be encoded as JSON.
#[must_use]
pub fn document() -> String {
    let mut api = Api::openapi().merge_from(super::routes().into_openapi());
    for (path, item) in &mut api.paths.paths {
        let tag = path.trim_start_matches("/v1").split('/').nth(1);
        let all = [
            &mut item.get,
            &mut item.put,
            &mut item.post,
            &mut item.patch,
            &mut item.delete,
        ];
        for operation in all.into_iter().flatten() {
            operation.tags = tag.map(|tag| vec![tag.trim_end_matches(".json").to_owned()]);
            let problem = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem")));
            let refusal = ResponseBuilder::new()
                .description("The problem (RFC 9457).")
                .content("application/problem+json", problem.build());
            describe_changes(operation);
            let is_versioned = takes(operation, "If-Match") || tag.is_some_and(is_desired);
            let all = &mut operation.responses.responses;
            all.iter_mut().for_each(describe);
            if is_versioned {
                all.values_mut().for_each(version);
            }
            all.insert("default".to_owned(), refusal.build().into());
        }
    }
    let mut text = api.to_pretty_json().expect("a document of ours");
    text.push('\n');
    text
}

/// Adds the description that OpenAPI requires to a response without one, by its status.
fn describe((status, answer): (&String, &mut RefOr<Response>)) {
    if let RefOr::T(answer) = answer
        && answer.description.is_empty()
    {
        answer.description = match status.as_str() {
            "201" => "Added.",
            "204" => "Done.",
            _ => "The requested document.",
        }
        .to_owned();
    }
}

/// Returns whether an operation has a parameter of this name.
fn takes(operation: &Operation, name: &str) -> bool {
    let mut all = operation.parameters.iter().flatten();
    all.any(|one| matches!(one, RefOr::T(one) if one.name == name))
}

/// Adds the response to `changes=true`. It comes first, as a client may try the alternatives in
/// order and all its fields are required.
fn describe_changes(operation: &mut Operation) {
    if !takes(operation, "changes") {
        return;
    }
    let all = &mut operation.responses.responses;
    let answer = all.entry("200".to_owned()).or_insert_with(|| {
        let answer = ResponseBuilder::new().description("The differences, with `changes=true`.");
        answer.build().into()
    });
    let RefOr::T(answer) = answer else { return };
    let content = answer
        .content
        .entry("application/json".to_owned())
        .or_insert_with(|| Content::default().into());
    let RefOr::T(content) = content else { return };
    let changes: RefOr<Schema> = Ref::from_schema_name("ChangesDocument").into();
    content.schema = Some(match content.schema.take() {
        Some(usual) => OneOfBuilder::new().item(changes).item(usual).into(),
        None => changes,
    });
}

/// Returns whether all responses below this path are parts of the desired state.
fn is_desired(path: &str) -> bool {
    ["access", "qos", "segments", "state", "switch"].contains(&path)
}

/// Adds the ETag header to a response.
fn version(answer: &mut RefOr<Response>) {
    if let RefOr::T(answer) = answer {
        let header = HeaderBuilder::new()
            .description(Some("Version of the desired state, for If-Match."))
            .build();
        answer.headers.insert("ETag".to_owned(), header.into());
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_committed_document_is_the_one_that_is_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../../docs/openapi.json");
        if std::env::var_os("BLESS").is_some() {
            return std::fs::write(path, document()).unwrap();
        }
        let bless = "BLESS=1 cargo test -p lasthop-control openapi";
        assert!(
            document() == COMMITTED,
            "docs/openapi.json is not up to date: {bless}"
        );
    }

    /// The document describes every path of the table in `server.rs`, and no other.
    #[test]
    fn every_path_and_method_is_there() {
        let table = include_str!("../server.rs").lines();
        let rows = table.filter_map(|line| line.strip_prefix("//! | `")?.split_once('`'));
        let mut table: Vec<String> = rows
            .map(|(row, _)| row.split('?').next().unwrap_or(row).to_owned())
            .collect();
        let document: Value = serde_json::from_str(&document()).unwrap();
        let paths = document["paths"].as_object().unwrap();
        let methods = |(path, item): (&String, &Value)| {
            let methods = item.as_object().unwrap().keys();
            let all = methods.map(|method| format!("{} {path}", method.to_uppercase()));
            all.collect::<Vec<_>>()
        };
        let mut described: Vec<String> = paths.iter().flat_map(methods).collect();
        table.sort();
        described.sort();
        assert_eq!(described, table);
    }

    /// Generators make a method of each operation: its name has a verb and an object.
    #[test]
    fn every_operation_has_a_name_of_its_own_and_every_answer_a_description() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let paths = document["paths"].as_object().unwrap().values();
        let mut names = BTreeSet::new();
        for operation in paths.flat_map(|path| path.as_object().unwrap().values()) {
            let name = operation["operationId"].as_str().unwrap();
            let verb = name.split_once('_').map(|(verb, _)| verb);
            let verbs = [
                "get", "list", "add", "put", "replace", "patch", "change", "remove", "capture",
                "end", "trace", "count", "flush", "purge", "watch",
            ];
            assert!(verb.is_some_and(|verb| verbs.contains(&verb)), "{name}");
            assert!(names.insert(name), "{name} is there twice");
            for (status, answer) in operation["responses"].as_object().unwrap() {
                let description = answer["description"].as_str();
                assert!(
                    description.is_some_and(|text| !text.is_empty()),
                    "{name}: {status}"
                );
            }
        }
        assert!(names.len() > 30);
    }

    /// A client can make the condition of a change from the response to another, or to any request
    /// for the desired state.
    #[test]
    fn every_answer_with_a_version_says_so() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let answer = |path: &str, method: &str, status: &str| {
            let operation = &document["paths"][path][method];
            let tag = &operation["responses"][status]["headers"]["ETag"];
            tag["schema"]["type"] == "string"
        };
        assert!(answer("/v1/state", "get", "200") && answer("/v1/state", "get", "304"));
        assert!(answer("/v1/ports/{name}", "patch", "200"));
        assert!(answer("/v1/ports/{name}", "delete", "204"));
        assert!(answer("/v1/mirrors", "post", "201") && answer("/v1/segments", "get", "200"));
        assert!(!answer("/v1/ports/{name}", "get", "200") && !answer("/v1/stats", "get", "200"));
        let asked = &document["paths"]["/v1/state"]["get"]["parameters"];
        assert_eq!(asked[0]["name"], "If-None-Match");
    }

    #[test]
    fn every_change_may_be_answered_with_what_it_alters() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let changes = "#/components/schemas/ChangesDocument";
        let paths = document["paths"].as_object().unwrap().values();
        let operations = paths.flat_map(|path| path.as_object().unwrap().values());
        let is_change = |operation: &&Value| operation.to_string().contains("\"If-Match\"");
        let mut all = 0;
        for operation in operations.filter(is_change) {
            let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
            let first = schema.get("oneOf").map_or(schema, |all| &all[0]);
            assert_eq!(first["$ref"], changes, "{}", operation["operationId"]);
            all += 1;
        }
        assert!(all > 20);
    }

    /// A file is binary, not an array of numbers.
    #[test]
    fn a_capture_is_a_file() {
        let document: Value = serde_json::from_str(&document()).unwrap();
        let answer = &document["paths"]["/v1/ports/{name}/capture"]["get"]["responses"]["200"];
        let file = &answer["content"]["application/x-pcapng"]["schema"];
        assert_eq!(
            (&file["type"], &file["format"]),
            (&"string".into(), &"binary".into())
        );
    }

    /// Readers of the document do not have the code.
    #[test]
    fn no_description_refers_to_our_code() {
        let document = document();
        let mut lines = document.lines();
        let line = lines.find(|line| line.contains("[`") || line.contains("::"));
        assert_eq!(line, None);
    }

    /// All references have a target.
    #[test]
    fn everything_that_is_named_is_there() {
        fn names(value: &Value, found: &mut Vec<String>) {
            match value {
                Value::Object(map) => map.iter().for_each(|(key, value)| match value {
                    Value::String(text) if key == "$ref" => found.push(text.clone()),
                    value => names(value, found),
                }),
                Value::Array(all) => all.iter().for_each(|value| names(value, found)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(&document()).unwrap();
        let mut found = Vec::new();
        names(&document, &mut found);
        assert!(found.len() > 20);
        for name in found {
            let pointer = name.strip_prefix('#').unwrap();
            assert!(document.pointer(pointer).is_some(), "{name}");
        }
    }
}
