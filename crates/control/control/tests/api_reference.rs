//! `docs/user/reference/api.md` has the tables that are generated from the OpenAPI document.

use serde_json::Value;

const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../../docs/user/reference/api.md"
);
const MARK: &str = "<!-- generated: BLESS=1 cargo test -p lasthop-control openapi -->\n";

/// `BLESS=1` writes them.
#[test]
fn the_reference_is_made_of_the_openapi_document() {
    let text = std::fs::read_to_string(FILE).unwrap();
    let (before, after) = text.split_once(MARK).expect("the page has the mark");
    let document: Value = serde_json::from_str(&control::server::openapi_document()).unwrap();
    let made = format!(
        "\n## Operations\n\n{}\n## Parameters\n\n{}\n## Schemas\n{}",
        operations(&document),
        parameters(&document),
        schemas(&document)
    );
    if std::env::var_os("BLESS").is_some() {
        return std::fs::write(FILE, format!("{before}{MARK}{made}")).unwrap();
    }
    assert!(
        made == after,
        "BLESS=1 cargo test -p lasthop-control openapi"
    );
}

/// Returns all operations: path, method, and the operation.
fn all_operations(document: &Value) -> impl Iterator<Item = (&str, &str, &Value)> {
    let paths = document["paths"].as_object().unwrap();
    paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().unwrap().iter();
        methods.map(move |(method, operation)| (path.as_str(), method.as_str(), operation))
    })
}

fn operations(document: &Value) -> String {
    let mut table =
        "| method | path | summary | parameters | body | answer |\n|---|---|---|---|---|---|\n"
            .to_owned();
    for (path, method, operation) in all_operations(document) {
        let parameters = list(&operation["parameters"]).map(|one| code(&one["name"]));
        let parameters: Vec<_> = parameters.collect();
        let body = of_content(&operation["requestBody"]["content"]);
        let answers = operation["responses"].as_object().unwrap().iter();
        let answers: Vec<_> = answers
            .filter(|(status, _)| *status != "default")
            .map(|(status, answer)| {
                let content = of_content(&answer["content"]);
                format!("{status} {content}").trim().to_owned()
            })
            .collect();
        let cells = [
            method.to_uppercase(),
            format!("`{path}`"),
            in_line(&operation["summary"]),
            parameters.join(", "),
            body,
            answers.join("; "),
        ];
        table.push_str(&row(&cells));
    }
    table
}

/// Returns the schemas of a body or an answer.
fn of_content(content: &Value) -> String {
    let all = content.as_object().into_iter().flatten();
    let all = all.map(|(kind, content)| match kind.as_str() {
        "application/json" => type_of(&content["schema"]),
        kind => format!("`{kind}`"),
    });
    all.collect::<Vec<_>>().join(", ")
}

fn parameters(document: &Value) -> String {
    let mut rows: Vec<[String; 4]> = Vec::new();
    for (.., operation) in all_operations(document) {
        for one in list(&operation["parameters"]) {
            let row = [
                code(&one["name"]),
                in_line(&one["in"]),
                type_of(&one["schema"]),
                in_line(&one["description"]),
            ];
            if !rows.contains(&row) {
                rows.push(row);
            }
        }
    }
    rows.sort();
    let rows: String = rows.iter().map(|cells| row(cells)).collect();
    format!("| parameter | in | type | meaning |\n|---|---|---|---|\n{rows}")
}

fn schemas(document: &Value) -> String {
    let all = document["components"]["schemas"].as_object().unwrap();
    let each = all.iter().map(|(name, schema)| {
        let text = schema["description"].as_str().map(paragraphs);
        let text = text.unwrap_or_default();
        format!("\n### {name}\n{text}{}", members(schema))
    });
    each.collect()
}

/// Returns the fields of an object, the values of an enumeration, or the alternatives.
fn members(schema: &Value) -> String {
    if let Some(fields) = schema["properties"].as_object() {
        let is_required = |name: &str| list(&schema["required"]).any(|one| one == name);
        let rows = fields.iter().map(|(name, field)| {
            let mark = if is_required(name) { " (required)" } else { "" };
            let name = format!("`{name}`{mark}");
            row(&[name, type_of(field), description(field)])
        });
        let rows: String = rows.collect();
        return format!("\n| field | type | meaning |\n|---|---|---|\n{rows}");
    }
    let alternatives: Vec<&Value> = list(&schema["oneOf"]).collect();
    if alternatives.iter().any(|one| one["properties"].is_object()) {
        let each = alternatives.iter().map(|one| {
            let text = one["description"].as_str().map(paragraphs);
            format!("{}{}", text.unwrap_or_default(), members(one))
        });
        return each.collect();
    }
    format!("\nType: {}\n", type_of(schema))
}

/// Returns the type of a value, with its limits.
fn type_of(schema: &Value) -> String {
    if let Some(name) = schema["$ref"].as_str() {
        let name = name.rsplit('/').next().unwrap_or_default();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    if schema["oneOf"].is_array() {
        let all: Vec<_> = list(&schema["oneOf"]).map(type_of).collect();
        return all.join(" or ");
    }
    if schema["enum"].is_array() {
        let all: Vec<_> = list(&schema["enum"]).map(code).collect();
        return all.join(", ");
    }
    let types: Vec<&str> = match &schema["type"] {
        Value::Array(all) => all.iter().filter_map(Value::as_str).collect(),
        one => one.as_str().into_iter().collect(),
    };
    let each = types.iter().map(|one| match *one {
        "array" => format!("array of {}", type_of(&schema["items"])),
        "object" if schema["additionalProperties"].is_object() => {
            format!("map to {}", type_of(&schema["additionalProperties"]))
        }
        one => one.to_owned(),
    });
    let text = each.collect::<Vec<_>>().join(" or ");
    match (schema["minimum"].as_u64(), schema["maximum"].as_u64()) {
        _ if text.is_empty() => "any JSON value".to_owned(),
        (Some(min), Some(max)) => format!("{text}, {min} to {max}"),
        (Some(min), None) if min > 0 => format!("{text}, at least {min}"),
        _ => text,
    }
}

/// Returns the description of a field, which may stand at an alternative of its type, and its
/// default.
fn description(field: &Value) -> String {
    let mut all = list(&field["oneOf"]);
    let own = &field["description"];
    let own = match own {
        Value::Null => all.find_map(|one| one.get("description")).unwrap_or(own),
        own => own,
    };
    let text = in_line(own);
    match field.get("default") {
        Some(default) => format!("{text} Default: `{default}`."),
        None => text,
    }
}

fn list(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn code(value: &Value) -> String {
    format!("`{}`", value.as_str().unwrap_or_default())
}

/// Returns a text on one line, as a cell of a table.
fn in_line(text: &Value) -> String {
    let words = text.as_str().unwrap_or_default().split_whitespace();
    words.collect::<Vec<_>>().join(" ").replace('|', "\\|")
}

fn row(cells: &[String]) -> String {
    format!("| {} |\n", cells.join(" | "))
}

/// Returns a description wrapped at 100 columns, after an empty line; blocks of code stay as they
/// are.
fn paragraphs(text: &str) -> String {
    let mut out = "\n".to_owned();
    let mut column = 0;
    let mut is_code = false;
    for line in text.lines() {
        let is_fence = line.starts_with("```");
        if is_code || is_fence || line.is_empty() {
            if column > 0 {
                out.push('\n');
                column = 0;
            }
            out.push_str(line);
            out.push('\n');
            is_code ^= is_fence;
            continue;
        }
        for word in line.split_whitespace() {
            let width = word.chars().count();
            if column > 0 && column + 1 + width > 100 {
                out.push('\n');
                column = 0;
            } else if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += width;
        }
    }
    if column > 0 {
        out.push('\n');
    }
    out
}
