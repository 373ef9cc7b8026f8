//! The limits of the protocol that a schema cannot express.

use serde_json::{Value, json};

use super::wire_form::MAX_SAFE_INTEGER;
use crate::{
    FsReadDirectoryParams, FsSearchParams, MAX_BLOCK_BYTES, MAX_BODY_DELTA_BYTES, MAX_FILE_BYTES,
    MAX_HANDLE_ID_BYTES, MAX_JSON_DEPTH, MAX_JSON_VALUES, MAX_MESSAGE_BYTES, MAX_NAME_BYTES,
    MAX_REASON_BYTES, MAX_SERVER_REQUESTS, MAX_WATCH_ID_BYTES, WalkOptions,
};

pub(super) fn limits() -> Value {
    json!({
        "messageBytes": MAX_MESSAGE_BYTES,
        "jsonValues": MAX_JSON_VALUES,
        "jsonDepth": MAX_JSON_DEPTH,
        "safeInteger": MAX_SAFE_INTEGER,
        "nameBytes": MAX_NAME_BYTES,
        "handleIdBytes": MAX_HANDLE_ID_BYTES,
        "watchIdBytes": MAX_WATCH_ID_BYTES,
        "reasonBytes": MAX_REASON_BYTES,
        "fileBytes": MAX_FILE_BYTES,
        "blockBytes": MAX_BLOCK_BYTES,
        "bodyDeltaBytes": MAX_BODY_DELTA_BYTES,
        "serverRequests": MAX_SERVER_REQUESTS,
        "directoryEntries": FsReadDirectoryParams::MAX_ENTRIES,
        "detailedDirectoryEntries": FsReadDirectoryParams::MAX_DETAILED_ENTRIES,
        "walkDepth": WalkOptions::MAX_DEPTH,
        "walkDirectories": WalkOptions::MAX_DIRECTORIES,
        "walkEntries": WalkOptions::MAX_ENTRIES,
        "searchMatches": FsSearchParams::MAX_MATCHES,
        "searchContextLines": FsSearchParams::MAX_CONTEXT,
    })
}
