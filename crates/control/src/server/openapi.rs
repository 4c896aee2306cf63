//! The API as an OpenAPI document (3.1), made from the types and the handlers, and committed as `docs/openapi.json`.
//!
//! What is served is the committed document. A test says whether it is the one that would be made; `BLESS=1` has it written:
//! `BLESS=1 cargo test -p lasthop-control openapi`.

use utoipa::OpenApi;
use utoipa::openapi::{ContentBuilder, Ref, RefOr, Response, ResponseBuilder};

use super::{access, captures, handlers, mirrors};

/// As it was made last.
pub(super) const COMMITTED: &str = include_str!("../../../../docs/openapi.json");

/// The paths; what they speak of comes with them.
#[derive(OpenApi)]
#[openapi(
    info(
        title = "Lasthop",
        version = "1",
        description = "The API of a running Lasthop: HTTP and JSON on the unix socket `DIR/api.sock`. It is extended within a major version, \
                       and never broken: answers may carry fields that are not listed here."
    ),
    paths(
        handlers::status,
        handlers::wanted,
        handlers::put_state,
        handlers::patch_state,
        handlers::warnings,
        handlers::switch,
        handlers::patch_switch,
        handlers::segments,
        handlers::add_segment,
        handlers::show_segment,
        handlers::set_segment,
        handlers::remove_segment,
        access::show,
        access::put,
        access::patch,
        access::warnings,
        access::counts,
        access::show_list,
        access::put_list,
        access::remove_list,
        access::put_rule,
        access::remove_rule,
        access::show_set,
        access::put_set,
        access::remove_set,
        access::show_group,
        access::put_group,
        access::remove_group,
        handlers::ports,
        handlers::add_port,
        handlers::show_port,
        handlers::set_port,
        handlers::remove_port,
        mirrors::list,
        mirrors::add,
        mirrors::show,
        mirrors::put,
        mirrors::remove,
        captures::capture,
        captures::end,
        handlers::stats,
        handlers::port_stats,
        handlers::fdb,
        handlers::flush_fdb,
        handlers::trace::trace,
        handlers::trace::flows,
        handlers::trace::purge,
        handlers::metrics,
        handlers::openapi,
    ),
    components(schemas(api::v1::Problem))
)]
struct Api;

/// The document as the types and the handlers say it.
///
/// # Panics
/// Never: it has nothing that JSON has not.
#[must_use]
pub fn document() -> String {
    let mut api = Api::openapi();
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
                .description("Why it was not done (RFC 9457).")
                .content("application/problem+json", problem.build());
            let all = &mut operation.responses.responses;
            all.iter_mut().for_each(describe);
            all.insert("default".to_owned(), refusal.build().into());
        }
    }
    let mut text = api.to_pretty_json().expect("a document of ours");
    text.push('\n');
    text
}

/// An answer of which nothing is said beside its status says what that means: OpenAPI wants a description of each.
fn describe((status, answer): (&String, &mut RefOr<Response>)) {
    if let RefOr::T(answer) = answer
        && answer.description.is_empty()
    {
        answer.description = match status.as_str() {
            "201" => "It was added.",
            "204" => "It was done, and there is nothing to say about it.",
            _ => "What was asked for.",
        }
        .to_owned();
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    #[test]
    fn the_committed_document_is_the_one_that_is_made() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/openapi.json");
        if std::env::var_os("BLESS").is_some() {
            return std::fs::write(path, document()).unwrap();
        }
        let bless = "BLESS=1 cargo test -p lasthop-control openapi";
        assert!(
            document() == COMMITTED,
            "docs/openapi.json is not up to date: {bless}"
        );
    }

    /// Every path of the table in `server.rs` is described, and no other.
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

    /// Generators make a method of each operation: its name says what it does, and to what.
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
                "end", "trace", "flush", "purge",
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

    /// Who reads it does not have our code.
    #[test]
    fn no_description_refers_to_our_code() {
        let document = document();
        let mut lines = document.lines();
        let line = lines.find(|line| line.contains("[`") || line.contains("::"));
        assert_eq!(line, None);
    }

    /// No reference leads nowhere.
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
