//! Checks the messages of a connection against `docs/openrpc.json`.
//!
//! Tests also send invalid requests on purpose, and the server judges those. So the params of a
//! request are checked only once the server has accepted them: a document that forbids accepted
//! params is wrong. The server's own messages must always match, without extra members.

use std::collections::HashMap;
use std::fmt::Display;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::{Draft, Validator};
use serde_json::{Value, json};

/// Longer messages are not checked: that would take longer than the test itself.
const CHECKED_BYTES: usize = 1 << 20;

#[derive(Debug, Default)]
pub(crate) struct WireSchema {
    /// Method and params of each request that has no response yet.
    requests: HashMap<String, (String, Value)>,
}

impl WireSchema {
    pub(crate) fn sent(&mut self, text: &str) {
        // Some tests send text that is not JSON.
        let message: Value = serde_json::from_str(text).unwrap_or_default();
        if let (Some(id), Some(method)) = (message.get("id"), message["method"].as_str()) {
            let request = (method.to_owned(), message["params"].clone());
            self.requests.insert(id.to_string(), request);
        }
    }

    pub(crate) fn received(&mut self, message: &Value, len: usize) {
        let request = self.requests.remove(&message["id"].to_string());
        if len > CHECKED_BYTES {
            return;
        }
        if let Some(method) = message["method"].as_str() {
            let row = DOCUMENT.row(&["x-server-requests", "x-notifications"], method);
            let what = format_args!("the params object of {method}");
            DOCUMENT.check_written(&row["params"], &message["params"], what);
        } else if let Some(error) = message.get("error") {
            DOCUMENT.check_written(&reference("RpcError"), error, "an error object");
        } else if let Some((method, params)) = request {
            let row = DOCUMENT.row(&["methods"], &method);
            // Null and absent params count as an empty object.
            let params = if params.is_null() { json!({}) } else { params };
            let what = format_args!("the params object of {method}");
            DOCUMENT.check_read(&row["x-params"], &params, what);
            let what = format_args!("the result of {method}");
            DOCUMENT.check_written(&row["result"]["schema"], &message["result"], what);
        }
    }
}

static DOCUMENT: LazyLock<Document> = LazyLock::new(|| {
    let text = include_str!("../../../docs/openrpc.json");
    let document: Value = serde_json::from_str(text).expect("the document is JSON");
    let mut read = document["components"].clone();
    allow_unsafe_integers(&mut read, &document["x-limits"]["safeInteger"]);
    let mut written = read.clone();
    forbid_extra_members(&mut written);
    Document { document, read: Schemas::of(read), written: Schemas::of(written) }
});

struct Document {
    document: Value,
    /// For values that the server reads. Unknown members are valid: the server ignores them.
    read: Schemas,
    /// For values that the server writes.
    written: Schemas,
}

impl Document {
    fn row(&self, tables: &[&str], name: &str) -> &Value {
        tables
            .iter()
            .flat_map(|table| self.document[*table].as_array().expect("a table is an array"))
            .find(|row| row["name"] == name)
            .unwrap_or_else(|| {
                let tables = tables.join(" and ");
                panic!("{name} is not among the {tables} of docs/openrpc.json")
            })
    }

    fn check_read(&self, schema: &Value, value: &Value, what: impl Display) {
        self.read.check(schema, value, what);
    }

    fn check_written(&self, schema: &Value, value: &Value, what: impl Display) {
        self.written.check(schema, value, what);
    }
}

/// The schemas of the document, compiled when they are first used.
struct Schemas {
    components: Value,
    compiled: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Schemas {
    fn of(components: Value) -> Self {
        Self { components, compiled: Mutex::default() }
    }

    fn check(&self, schema: &Value, value: &Value, what: impl Display) {
        let validator = self.validator(schema);
        if let Err(error) = validator.validate(value) {
            let path = error.instance_path();
            panic!("{what} does not match docs/openrpc.json at {path:?}: {error}");
        }
    }

    fn validator(&self, schema: &Value) -> Arc<Validator> {
        let mut compiled = self.compiled.lock().expect("no check panics while it compiles");
        let compile = || {
            let mut root = schema.clone();
            root["components"] = self.components.clone();
            let options = jsonschema::options().with_draft(Draft::Draft7);
            Arc::new(options.build(&root).expect("the document has valid schemas"))
        };
        Arc::clone(compiled.entry(schema.to_string()).or_insert_with(compile))
    }
}

fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The document limits 64-bit fields to the integers that every client can represent. The server
/// also reads larger ones, and repeats them in its responses.
fn allow_unsafe_integers(schema: &mut Value, largest_safe: &Value) {
    match schema {
        Value::Object(members) => {
            members.retain(|name, value| name != "maximum" || value != largest_safe);
            members.values_mut().for_each(|value| allow_unsafe_integers(value, largest_safe));
        }
        Value::Array(items) => {
            items.iter_mut().for_each(|item| allow_unsafe_integers(item, largest_safe));
        }
        _ => {}
    }
}

fn forbid_extra_members(schema: &mut Value) {
    match schema {
        Value::Object(members) => {
            if members.get("properties").is_some_and(Value::is_object)
                && !members.contains_key("allOf")
            {
                members.entry("additionalProperties").or_insert(false.into());
            }
            members.values_mut().for_each(forbid_extra_members);
        }
        Value::Array(items) => items.iter_mut().for_each(forbid_extra_members),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exchange(method: &str, params: impl Into<Value>, response: Value) {
        let mut schema = WireSchema::default();
        schema.sent(&json!({"id": 1, "method": method, "params": params.into()}).to_string());
        let mut message = response;
        message["id"] = json!(1);
        schema.received(&message, 1);
    }

    #[test]
    fn valid_messages_pass() {
        exchange(
            "process/terminate",
            json!({"processId": "p"}),
            json!({"result": {"running": true}}),
        );
        exchange("process/terminate", json!({}), json!({"error": {"code": -32602, "message": ""}}));
        let closed = json!({"method": "process/closed", "params": {"processId": "p", "seq": 3}});
        WireSchema::default().received(&closed, 1);
    }

    #[test]
    #[should_panic = "the params object of process/terminate does not match docs/openrpc.json"]
    fn accepted_params_that_the_document_forbids_fail() {
        exchange(
            "process/terminate",
            json!({"processId": 1}),
            json!({"result": {"running": true}}),
        );
    }

    #[test]
    #[should_panic = "Additional properties are not allowed ('more' was unexpected)"]
    fn members_missing_from_the_document_fail() {
        let result = json!({"running": true, "more": 1});
        exchange("process/terminate", json!({"processId": "p"}), json!({"result": result}));
    }

    #[test]
    #[should_panic = "process/opened is not among the x-server-requests and x-notifications of \
                      docs/openrpc.json"]
    fn unknown_notifications_fail() {
        WireSchema::default().received(&json!({"method": "process/opened"}), 1);
    }
}
