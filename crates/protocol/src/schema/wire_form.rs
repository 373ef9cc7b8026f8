//! Adjusts derived schemas to the wire format.

use schemars::Schema;
use serde_json::{Map, Value, json};

/// The largest integer that every JSON implementation represents exactly.
pub(super) const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// The phrase in a doc comment that marks an extension of this project.
const EXTENSION_MARK: &str = " (extension)";

pub(super) fn apply(schema: &mut Schema) {
    let Some(object) = schema.as_object_mut() else { return };
    bound_integers(object);
    tidy_description(object);
    collapse_string_enum(object);
    let required = object.get("required").cloned().unwrap_or_default();
    let is_required =
        |name: &str| required.as_array().is_some_and(|all| all.contains(&json!(name)));
    let Some(Value::Object(properties)) = object.get_mut("properties") else { return };
    for (name, property) in properties {
        let Value::Object(property) = property else { continue };
        if property.get("default") == Some(&Value::Null) {
            property.remove("default");
        }
        if !is_required(name) {
            allow_null(property);
        }
    }
}

/// Adds the range of an integer type. For 64-bit types, the range that every peer represents
/// exactly.
fn bound_integers(object: &mut Map<String, Value>) {
    let (minimum, maximum) = match object.get("format").and_then(Value::as_str) {
        Some("uint64" | "uint") => (None, MAX_SAFE_INTEGER),
        Some("int64") => (Some(-MAX_SAFE_INTEGER), MAX_SAFE_INTEGER),
        Some("uint32") => (None, u32::MAX.into()),
        Some("int32") => (Some(i32::MIN.into()), i32::MAX.into()),
        _ => return,
    };
    if let Some(minimum) = minimum {
        object.insert("minimum".to_owned(), minimum.into());
    }
    object.insert("maximum".to_owned(), maximum.into());
}

/// Joins a doc comment into prose without line breaks, and turns its extension mark into a member
/// of the schema.
fn tidy_description(object: &mut Map<String, Value>) {
    let Some(Value::String(text)) = object.get_mut("description") else { return };
    *text = text.replace("[`", "`").replace("`]", "`");
    *text = text.split("\n\n").map(|part| part.replace('\n', " ")).collect::<Vec<_>>().join("\n\n");
    if text.contains(EXTENSION_MARK) {
        *text = text.replace(EXTENSION_MARK, "");
        object.insert("x-extension".to_owned(), true.into());
    }
}

/// Collapses a string enum. The derived schema has one alternative for each variant with a doc
/// comment; a list of values is easier to read, and code generators produce a better type from it.
fn collapse_string_enum(object: &mut Map<String, Value>) {
    let Some(Value::Array(alternatives)) = object.get("oneOf") else { return };
    let mut values = Vec::new();
    let mut descriptions = Map::new();
    for alternative in alternatives {
        match (alternative.get("const"), alternative.get("enum")) {
            (Some(Value::String(value)), None) => {
                values.push(json!(value));
                if let Some(Value::String(text)) = alternative.get("description") {
                    descriptions.insert(value.clone(), text.replace('\n', " ").into());
                }
            }
            (None, Some(Value::Array(more))) => values.extend(more.iter().cloned()),
            _ => return,
        }
    }
    object.remove("oneOf");
    object.insert("type".to_owned(), "string".into());
    object.insert("enum".to_owned(), values.into());
    object.insert("x-value-descriptions".to_owned(), descriptions.into());
}

/// `null` means the same as leaving an optional member out.
fn allow_null(property: &mut Map<String, Value>) {
    let absent = json!({ "type": "null" });
    if let Some(reference) = property.remove("$ref") {
        property.insert("anyOf".to_owned(), json!([{ "$ref": reference }, absent]));
    } else if let Some(Value::Array(alternatives)) = property.get_mut("anyOf") {
        if !alternatives.contains(&absent) {
            alternatives.push(absent);
        }
    } else if let Some(kind @ Value::String(_)) = property.get_mut("type")
        && *kind != "null"
    {
        *kind = json!([kind.take(), "null"]);
    }
}
