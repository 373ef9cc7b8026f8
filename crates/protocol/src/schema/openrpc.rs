//! Builds the document: standard OpenRPC members, and extensions with names that begin with `x-`.

use schemars::generate::SchemaSettings;
use schemars::transform::RecursiveTransform;
use schemars::{JsonSchema, SchemaGenerator};
use serde_json::{Map, Value, json};

use super::limits::limits;
use super::wire_form;
use crate::*;

const OPENRPC_VERSION: &str = "1.3.2";

/// The methods, notifications and server requests that deployed clients know. All others are
/// extensions of this project.
const COMPATIBLE: &[&str] = &[
    "initialize",
    "initialized",
    "environment/info",
    "environment/status",
    "process/start",
    "process/read",
    "process/write",
    "process/signal",
    "process/terminate",
    "process/output",
    "process/exited",
    "process/closed",
    "fs/readFile",
    "fs/writeFile",
    "fs/createDirectory",
    "fs/getMetadata",
    "fs/canonicalize",
    "fs/readDirectory",
    "fs/walk",
    "fs/remove",
    "fs/copy",
    "fs/open",
    "fs/readBlock",
    "fs/close",
    "http/request",
    "http/request/bodyDelta",
    "network/policyRequest",
    "network/policyDecision",
    "command/exec",
    "command/exec/write",
    "command/exec/terminate",
    "command/exec/outputDelta",
    "command/exec/exited",
];

const ERROR_CODES: &[(&str, ErrorCode, &str)] = &[
    (
        "InvalidRequest",
        ErrorCode::InvalidRequest,
        "invalid or refused request: wrong order, duplicate id, unknown process, limit, permission",
    ),
    ("MethodNotFound", ErrorCode::MethodNotFound, "method not found"),
    ("InvalidParams", ErrorCode::InvalidParams, "invalid params"),
    ("InternalError", ErrorCode::InternalError, "internal error"),
    ("NotFound", ErrorCode::NotFound, "the path does not exist, or the handle is not open"),
    (
        "SessionAttached",
        ErrorCode::SessionAttached,
        "the session is attached to another connection; retry",
    ),
];

/// Returns the document as indented text, the form that is checked in.
#[must_use]
pub fn text() -> String {
    let text = serde_json::to_string_pretty(&document()).expect("a value is always JSON");
    text + "\n"
}

#[must_use]
pub fn document() -> Value {
    let mut builder = Builder::new();
    let methods = methods(&mut builder);
    let notifications = [client_notifications(&mut builder), server_notifications(&mut builder)];
    let server_requests = server_requests(&mut builder);
    let schemas = builder.finish();
    json!({
        "openrpc": OPENRPC_VERSION,
        "info": {
            "title": "exec-server",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "JSON-RPC 2.0 without the member `jsonrpc`. Receivers ignore unknown \
                members unless a schema forbids them, and `null` means the same as leaving an \
                optional member out. `x-extension` marks extensions of this project.",
            "license": { "name": "Apache-2.0" },
        },
        "x-protocol-version": PROTOCOL_VERSION,
        "methods": with_params(methods, &schemas),
        "x-notifications": notifications.concat(),
        "x-server-requests": server_requests,
        "x-error-kinds": ErrorKind::ALL,
        "x-limits": limits(),
        "components": { "schemas": schemas, "errors": errors() },
    })
}

/// One generator per direction, because the server accepts more than it sends.
struct Builder {
    read: SchemaGenerator,
    written: SchemaGenerator,
}

impl Builder {
    fn new() -> Self {
        let settings = SchemaSettings::draft07().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.transforms.insert(0, Box::new(RecursiveTransform(wire_form::apply)));
        });
        Self {
            read: settings.clone().for_deserialize().into_generator(),
            written: settings.for_serialize().into_generator(),
        }
    }

    /// Returns a reference to a type that clients send.
    fn read<T: JsonSchema>(&mut self) -> Value {
        self.read.subschema_for::<T>().to_value()
    }

    /// Returns a reference to a type that the server sends.
    fn written<T: JsonSchema>(&mut self) -> Value {
        self.written.subschema_for::<T>().to_value()
    }

    fn finish(mut self) -> Map<String, Value> {
        self.read::<RequestId>();
        self.read::<TraceContext>();
        self.written::<RpcError>();
        let mut schemas = self.read.take_definitions(true);
        for (name, schema) in self.written.take_definitions(true) {
            let other = schemas.insert(name.clone(), schema.clone());
            assert!(
                other.is_none_or(|other| other == schema),
                "the schema of {name} differs by direction; use two types"
            );
        }
        for (name, schema) in &mut schemas {
            name_variants(name, schema);
        }
        schemas.append(&mut envelope());
        schemas
    }
}

macro_rules! method_rows {
    ($($name:ident $function:ident = $wire:literal,
        $scheduling:ident, $replay:ident, $effect:ident: $params:ident => $response:ident;)*) => {
        fn methods(builder: &mut Builder) -> Vec<Value> {
            vec![$(with_origin($wire, json!({
                "paramStructure": "by-name",
                "x-params": builder.read::<$params>(),
                "result": { "name": "result", "schema": builder.written::<$response>() },
                "x-scheduling": camel_case(stringify!($scheduling)),
                "x-replay": camel_case(stringify!($replay)),
                "x-effect": camel_case(stringify!($effect)),
            })),)*]
        }
    };
}

macro_rules! client_notification_rows {
    ($($variant:ident = $wire:literal: $params:ident;)*) => {
        fn client_notifications(builder: &mut Builder) -> Vec<Value> {
            vec![$(with_origin($wire, json!({
                "direction": "clientToServer", "params": builder.read::<$params>(),
            })),)*]
        }
    };
}

macro_rules! server_notification_rows {
    ($($variant:ident = $wire:literal, $topic:ident: $params:ident;)*) => {
        fn server_notifications(builder: &mut Builder) -> Vec<Value> {
            vec![$(with_origin($wire, json!({
                "direction": "serverToClient", "params": builder.written::<$params>(),
            })),)*]
        }
    };
}

macro_rules! server_request_rows {
    ($($name:ident = $wire:literal: $params:ident => $response:ident;)*) => {
        fn server_requests(builder: &mut Builder) -> Vec<Value> {
            vec![$(with_origin($wire, json!({
                "params": builder.written::<$params>(), "result": builder.read::<$response>(),
            })),)*]
        }
    };
}

crate::for_each_method!(method_rows);
crate::for_each_client_notification!(client_notification_rows);
crate::for_each_server_notification!(server_notification_rows);
crate::for_each_server_request!(server_request_rows);

fn with_origin(name: &str, mut row: Value) -> Value {
    row["name"] = name.into();
    if !COMPATIBLE.contains(&name) {
        row["x-extension"] = true.into();
    }
    row
}

/// Sets `params` of each method: one entry per member of the type that `x-params` names, because
/// OpenRPC has no schema for the params as a whole.
fn with_params(mut methods: Vec<Value>, schemas: &Map<String, Value>) -> Vec<Value> {
    for method in &mut methods {
        let reference = method["x-params"]["$ref"].as_str().expect("params have a name");
        let name = reference.rsplit('/').next().expect("a reference is a path");
        let empty = Map::new();
        let members = schemas[name]["properties"].as_object().unwrap_or(&empty);
        let required = schemas[name]["required"].as_array().map_or(&[][..], Vec::as_slice);
        let mut params: Vec<Value> = members
            .keys()
            .map(|member| {
                let schema = json!({ "$ref": format!("{reference}/properties/{member}") });
                let required = required.iter().any(|name| name == member);
                json!({ "name": member, "required": required, "schema": schema })
            })
            .collect();
        params.sort_by_key(|param| param["required"] == false);
        method["params"] = params.into();
    }
    methods
}

/// Gives each alternative of a tagged enum a title, from which code generators derive a type name.
fn name_variants(name: &str, schema: &mut Value) {
    let Some(Value::Array(variants)) = schema.get_mut("oneOf") else { return };
    for variant in variants {
        let Some(Value::String(tag)) = variant.pointer("/properties/type/const") else { continue };
        let words = tag.split(['-', '_']).map(|word| {
            let (first, rest) = word.split_at(1);
            first.to_uppercase() + rest
        });
        variant["title"] = format!("{name}{}", words.collect::<String>()).into();
    }
}

fn envelope() -> Map<String, Value> {
    let id = json!({ "$ref": "#/components/schemas/RequestId" });
    let method = json!({ "type": "string" });
    let params =
        json!({ "description": "Depends on the method. Absent or null means an empty object." });
    let envelope = json!({
        "Request": {
            "type": "object",
            "required": ["id", "method"],
            "properties": {
                "id": id,
                "method": method,
                "params": params,
                "trace": {
                    "anyOf": [{ "$ref": "#/components/schemas/TraceContext" }, { "type": "null" }],
                },
            },
        },
        "Notification": {
            "type": "object",
            "required": ["method"],
            "properties": { "method": method, "params": params },
        },
        "Response": {
            "type": "object",
            "required": ["id", "result"],
            "properties": { "id": id, "result": { "description": "Depends on the method." } },
        },
        "ErrorResponse": {
            "description": "The id is -1 if the id of the request could not be read.",
            "type": "object",
            "required": ["id", "error"],
            "properties": { "id": id, "error": { "$ref": "#/components/schemas/RpcError" } },
        },
    });
    match envelope {
        Value::Object(schemas) => schemas,
        _ => unreachable!("the envelope is written as an object"),
    }
}

fn errors() -> Value {
    let errors = ERROR_CODES.iter().map(|(name, code, message)| {
        ((*name).to_owned(), json!({ "code": code.value(), "message": message }))
    });
    Value::Object(errors.collect())
}

fn camel_case(variant: &str) -> String {
    let (first, rest) = variant.split_at(1);
    first.to_lowercase() + rest
}
