//! Schemas of the types whose codecs are written by hand.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use crate::{
    Base64Bytes, Cpus, DecisionReason, ErrorKind, Initialized, LimitName, MAX_REASON_BYTES,
    PathUri, SandboxMode, SandboxProfile, SandboxRequest,
};

/// An absolute path; or a `file:` URI without a host, with valid percent-encoding in every segment,
/// and without a percent-encoded slash, NUL byte or dot segment.
const PATH_PATTERN: &str = concat!(
    r"^(?:/[^\u0000]*|[Ff][Ii][Ll][Ee]:(?://(?=/)|(?!//))",
    r"(?:/(?!(?:%2[Ee]|\.%2[Ee]|%2[Ee]\.|%2[Ee]%2[Ee])(?:/|$))",
    r"(?:[^%?#/\u0000]|%(?!00|2[Ff])[0-9A-Fa-f]{2})*)+)$",
);

/// Padded base64 whose unused bits after the last byte are zero.
const BASE64_PATTERN: &str = concat!(
    "^(?:[A-Za-z0-9+/]{4})*",
    "(?:[A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$",
);

macro_rules! hand_written {
    ($($type:ident: |$generator:ident| $schema:expr;)*) => {$(
        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema($generator: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    )*};
}

hand_written! {
    PathUri: |_generator| json_schema!({
        "description": "An absolute path: a `file:` URI whose percent-encoding carries any bytes. \
                        Requests may also use a native path; the server sends URIs.",
        "type": "string",
        "pattern": PATH_PATTERN,
    });
    Base64Bytes: |_generator| json_schema!({
        "description": "Bytes as standard, padded base64.",
        "type": "string",
        "contentEncoding": "base64",
        "pattern": BASE64_PATTERN,
    });
    SandboxRequest: |generator| {
        let mode = generator.subschema_for::<SandboxMode>();
        let profile = generator.subschema_for::<SandboxProfile>();
        json_schema!({
            "description": "A sandbox, as a mode or as a profile.",
            "anyOf": [mode, profile],
        })
    };
    Cpus: |_generator| json_schema!({
        "description": "A number of processors. The server rounds it to thousandths.",
        "type": "number",
        "minimum": 0.01,
        "maximum": 1_000_000,
    });
    DecisionReason: |_generator| json_schema!({
        "description": "Text for people, without control characters. The limit counts bytes of UTF-8.",
        "type": "string",
        "maxLength": MAX_REASON_BYTES,
        "pattern": r"^[^\u0000-\u001f\u007f-\u009f]*$",
    });
    Initialized: |_generator| json_schema!({
        "description": "Empty. The server ignores its content.",
    });
    LimitName: |_generator| open_enum(
        "The name of a limit. Later versions may add names.",
        &["memory", "pids", "cpuTime", "cpus", "wallTime", "openFiles", "fileSize", "coreSize"],
    );
    ErrorKind: |_generator| open_enum(
        "The kind of an error. Existing kinds are stable; later versions may add kinds.",
        &ErrorKind::ALL.iter().map(ErrorKind::as_str).collect::<Vec<_>>(),
    );
}

/// A string with known values that may be extended.
fn open_enum(description: &str, known: &[&str]) -> Schema {
    json_schema!({
        "description": description,
        "anyOf": [{ "type": "string", "enum": known }, { "type": "string" }],
    })
}

/// Forbids a member `type`, which marks a mode: the parser refuses an object with both `type` and
/// `permissions`.
pub(crate) fn without_type(profile: &mut Schema) {
    profile.ensure_object()["properties"]["type"] = serde_json::json!({ "type": "null" });
}
