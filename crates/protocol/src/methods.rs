//! The method table: name, scheduling, replay, effect, params and result of each method, in one
//! place.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};

use crate::envelope::Params;
use crate::{
    CloseStdinResponse, Empty, EnvironmentInfo, EnvironmentStatus, ErrorCode, ExecParams,
    ExecResponse, ExecWriteResponse, FsCancelSearchParams, FsCanonicalizeParams, FsCloseParams,
    FsCloseResponse, FsCopyParams, FsCreateDirectoryParams, FsCreateParams, FsGetMetadataParams,
    FsGlobParams, FsHandleResponse, FsMetadata, FsOpenParams, FsPathResponse, FsReadBlockParams,
    FsReadBlockResponse, FsReadDirectoryParams, FsReadDirectoryResponse, FsReadFileParams,
    FsReadFileResponse, FsReadLinkParams, FsReadLinkResponse, FsRemoveParams, FsRenameParams,
    FsSearchParams, FsSearchResponse, FsSetPermissionsParams, FsSymlinkParams, FsUnwatchParams,
    FsWalkParams, FsWalkResponse, FsWatchParams, FsWriteBlockParams, FsWriteFileParams,
    FsWriteFileResponse, HttpCancelParams, HttpRequestParams, HttpResponse, InitializeParams,
    InitializeResponse, ListParams, ListResponse, ObserveParams, ProcessIdParams, ReadParams,
    ReadResponse, ResizeParams, RpcError, ServerStatus, SessionCloseParams, SessionListResponse,
    SignalParams, SnapshotResponse, StartParams, StartResponse, TerminateParams, TerminateResponse,
    WaitParams, WaitResponse, WriteParams, WriteResponse,
};

/// Maximum length of a `processId`, `writeId`, `requestId` or `clientName`.
pub const MAX_NAME_BYTES: usize = 1024;

/// How a request shares its connection with other requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scheduling {
    /// Occupies one of the connection's request slots while it runs.
    Ordinary,
    /// Mostly waits; occupies no slot, unless the connection has only one.
    Waiting,
    /// Occupies no slot and runs at once, after the queued requests that it
    /// [must follow](Call::must_follow).
    Control,
}

/// Whether a client may resend a request if the connection is lost before the response. In that
/// case the client cannot know whether the server has executed the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replay {
    /// Executing the request twice has the same effect as once.
    Idempotent,
    /// Only with a `writeId`, by which the server recognises the repetition.
    WithWriteId,
    Never,
}

/// The effect of a request. Observers may only read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Changes files, processes or sessions, or acts on other machines.
    Changes,
    /// Reads the state of the whole server. Reserved for its operator.
    Administers,
}

/// A method as a type.
pub trait Rpc {
    const METHOD: Method;
    const REPLAY: Replay;
    type Params: Serialize + DeserializeOwned + Send + 'static;
    type Response: Serialize + DeserializeOwned + Send + 'static;

    fn into_call(params: Self::Params) -> Call;

    fn into_response(response: Self::Response) -> CallResponse;

    /// Returns `None` for the response of another method.
    fn from_response(response: CallResponse) -> Option<Self::Response>;
}

macro_rules! methods {
    ($($name:ident $function:ident = $wire:literal,
        $scheduling:ident, $replay:ident, $effect:ident: $params:ident => $response:ident;)*) => {
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum Method {
            $($name,)*
        }

        impl Method {
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            #[must_use]
            pub fn from_name(name: &str) -> Option<Self> {
                match name {
                    $($wire => Some(Self::$name),)*
                    _ => None,
                }
            }

            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => $wire,)*
                }
            }

            const fn scheduling(self) -> Scheduling {
                match self {
                    $(Self::$name => Scheduling::$scheduling,)*
                }
            }

            const fn effect(self) -> Effect {
                match self {
                    $(Self::$name => Effect::$effect,)*
                }
            }
        }

        pub mod rpc {
            $(
                #[derive(Debug, Clone, Copy)]
                pub enum $name {}

                impl super::Rpc for $name {
                    const METHOD: super::Method = super::Method::$name;
                    const REPLAY: super::Replay = super::Replay::$replay;
                    type Params = super::$params;
                    type Response = super::$response;

                    fn into_call(params: super::$params) -> super::Call {
                        super::Call::$name(params)
                    }

                    fn into_response(response: super::$response) -> super::CallResponse {
                        super::CallResponse::$name(response)
                    }

                    fn from_response(response: super::CallResponse) -> Option<super::$response> {
                        match response {
                            super::CallResponse::$name(response) => Some(response),
                            _ => None,
                        }
                    }
                }
            )*
        }

        /// The result of a successful call.
        #[derive(Debug, Clone)]
        pub enum CallResponse {
            $($name($response),)*
        }

        /// A decoded request.
        #[derive(Debug, Clone)]
        pub enum Call {
            $($name($params),)*
        }

        impl Call {
            /// Absent params count as an empty object.
            pub fn decode<'p>(
                name: &str,
                params: Option<impl Into<Params<'p>>>,
            ) -> Result<Self, RpcError> {
                Self::decode_text(name, params.map_or(b"{}", |params| params.into().as_bytes()))
            }

            fn decode_text(name: &str, text: &[u8]) -> Result<Self, RpcError> {
                let Some(method) = Method::from_name(name) else {
                    let message = format!("unknown method {name:?}");
                    return Err(RpcError::new(ErrorCode::MethodNotFound, message));
                };
                let call = match method {
                    $(Method::$name => decode_params(name, text).map(Self::$name)?,)*
                };
                call.check_names()?;
                Ok(call)
            }

            #[must_use]
            pub fn encode_params(&self) -> Box<RawValue> {
                let encoded = match self {
                    $(Self::$name(params) => to_raw_value(params),)*
                };
                encoded.expect("params have only string keys")
            }

            #[must_use]
            pub const fn method(&self) -> Method {
                match self {
                    $(Self::$name(_) => Method::$name,)*
                }
            }
        }
    };
}

/// The table. Calls the given macro with one row per method, `initialize` first: type, function,
/// wire name, scheduling, replay, effect, params, result.
#[macro_export]
macro_rules! for_each_method {
    ($callback:ident) => {
        $callback! {
            Initialize initialize = "initialize", Ordinary, Never, Reads: InitializeParams => InitializeResponse;
            SessionClose session_close = "session/close", Ordinary, Never, Changes: SessionCloseParams => Empty;
            SessionList session_list = "session/list", Ordinary, Idempotent, Reads: Empty => SessionListResponse;
            EnvironmentInfo environment_info = "environment/info", Control, Idempotent, Reads: Empty => EnvironmentInfo;
            EnvironmentStatus environment_status = "environment/status", Control, Idempotent, Reads: Empty => EnvironmentStatus;
            ServerStatus server_status = "server/status", Control, Idempotent, Administers: Empty => ServerStatus;
            ProcessStart process_start = "process/start", Ordinary, Never, Changes: StartParams => StartResponse;
            ProcessRead process_read = "process/read", Waiting, Idempotent, Reads: ReadParams => ReadResponse;
            ProcessWrite process_write = "process/write", Ordinary, WithWriteId, Changes: WriteParams => WriteResponse;
            ProcessCloseStdin process_close_stdin = "process/closeStdin", Ordinary, Idempotent, Changes: ProcessIdParams => CloseStdinResponse;
            ProcessResize process_resize = "process/resize", Ordinary, Idempotent, Changes: ResizeParams => Empty;
            ProcessSignal process_signal = "process/signal", Control, Never, Changes: SignalParams => Empty;
            ProcessTerminate process_terminate = "process/terminate", Control, Idempotent, Changes: TerminateParams => TerminateResponse;
            ProcessWait process_wait = "process/wait", Waiting, Idempotent, Reads: WaitParams => WaitResponse;
            ProcessSnapshot process_snapshot = "process/snapshot", Ordinary, Idempotent, Reads: ProcessIdParams => SnapshotResponse;
            ProcessList process_list = "process/list", Ordinary, Idempotent, Reads: ListParams => ListResponse;
            ProcessObserve process_observe = "process/observe", Ordinary, Idempotent, Reads: ObserveParams => Empty;
            FsReadFile fs_read_file = "fs/readFile", Ordinary, Idempotent, Reads: FsReadFileParams => FsReadFileResponse;
            FsWriteFile fs_write_file = "fs/writeFile", Ordinary, Never, Changes: FsWriteFileParams => FsWriteFileResponse;
            FsCreateDirectory fs_create_directory = "fs/createDirectory", Ordinary, Never, Changes: FsCreateDirectoryParams => Empty;
            FsGetMetadata fs_get_metadata = "fs/getMetadata", Ordinary, Idempotent, Reads: FsGetMetadataParams => FsMetadata;
            FsCanonicalize fs_canonicalize = "fs/canonicalize", Ordinary, Idempotent, Reads: FsCanonicalizeParams => FsPathResponse;
            FsReadDirectory fs_read_directory = "fs/readDirectory", Ordinary, Idempotent, Reads: FsReadDirectoryParams => FsReadDirectoryResponse;
            FsWalk fs_walk = "fs/walk", Ordinary, Idempotent, Reads: FsWalkParams => FsWalkResponse;
            FsGlob fs_glob = "fs/glob", Ordinary, Idempotent, Reads: FsGlobParams => FsWalkResponse;
            FsRemove fs_remove = "fs/remove", Ordinary, Never, Changes: FsRemoveParams => Empty;
            FsCopy fs_copy = "fs/copy", Ordinary, Never, Changes: FsCopyParams => Empty;
            FsRename fs_rename = "fs/rename", Ordinary, Never, Changes: FsRenameParams => Empty;
            FsSymlink fs_symlink = "fs/symlink", Ordinary, Never, Changes: FsSymlinkParams => Empty;
            FsReadLink fs_read_link = "fs/readLink", Ordinary, Idempotent, Reads: FsReadLinkParams => FsReadLinkResponse;
            FsSetPermissions fs_set_permissions = "fs/setPermissions", Ordinary, Never, Changes: FsSetPermissionsParams => Empty;
            FsOpen fs_open = "fs/open", Ordinary, Idempotent, Reads: FsOpenParams => FsHandleResponse;
            FsReadBlock fs_read_block = "fs/readBlock", Ordinary, Idempotent, Reads: FsReadBlockParams => FsReadBlockResponse;
            FsCreate fs_create = "fs/create", Ordinary, Never, Changes: FsCreateParams => FsHandleResponse;
            FsWriteBlock fs_write_block = "fs/writeBlock", Ordinary, Never, Changes: FsWriteBlockParams => Empty;
            FsClose fs_close = "fs/close", Control, Never, Reads: FsCloseParams => FsCloseResponse;
            FsWatch fs_watch = "fs/watch", Ordinary, Never, Reads: FsWatchParams => FsPathResponse;
            FsUnwatch fs_unwatch = "fs/unwatch", Control, Idempotent, Reads: FsUnwatchParams => Empty;
            FsSearch fs_search = "fs/search", Ordinary, Never, Reads: FsSearchParams => FsSearchResponse;
            FsCancelSearch fs_cancel_search = "fs/cancelSearch", Control, Idempotent, Reads: FsCancelSearchParams => Empty;
            HttpRequest http_request = "http/request", Waiting, Never, Changes: HttpRequestParams => HttpResponse;
            HttpCancel http_cancel = "http/cancel", Control, Idempotent, Reads: HttpCancelParams => Empty;
            CommandExec command_exec = "command/exec", Ordinary, Never, Changes: ExecParams => ExecResponse;
            CommandExecWrite command_exec_write = "command/exec/write", Ordinary, WithWriteId, Changes: WriteParams => ExecWriteResponse;
            CommandExecTerminate command_exec_terminate = "command/exec/terminate", Control, Idempotent, Changes: TerminateParams => TerminateResponse;
        }
    };
}

for_each_method!(methods);

impl Call {
    #[must_use]
    pub fn scheduling(&self) -> Scheduling {
        match self {
            Self::ProcessRead(params) if params.wait_ms.unwrap_or(0) == 0 => Scheduling::Ordinary,
            call => call.method().scheduling(),
        }
    }

    #[must_use]
    pub fn effect(&self) -> Effect {
        match self {
            // A resume takes over an existing session.
            Self::Initialize(params) if params.resume_session_id.is_some() => Effect::Changes,
            // Any client may close its own session.
            Self::SessionClose(params) if params.session_id.is_none() => Effect::Reads,
            call => call.method().effect(),
        }
    }

    /// Returns the process that the call names, whether or not the call changes it.
    #[must_use]
    pub fn process(&self) -> Option<&str> {
        match self {
            Self::ProcessRead(params) => Some(&params.process_id),
            Self::ProcessWait(params) => Some(&params.process_id),
            Self::ProcessSnapshot(params) => Some(&params.process_id),
            Self::ProcessObserve(params) => Some(&params.process_id),
            call => call.changes_process(),
        }
    }

    /// Whether `self` must not overtake `earlier`, which is still queued.
    #[must_use]
    pub fn must_follow(&self, earlier: &Self) -> bool {
        match (self, earlier) {
            (Self::FsClose(close), Self::FsWriteBlock(block)) => close.handle_id == block.handle_id,
            _ => {
                let process = self.process();
                process.is_some() && earlier.changes_process() == process
            }
        }
    }

    /// Checks the length of names, since they are repeated in messages and kept in memory. Decoding
    /// calls this.
    pub fn check_names(&self) -> Result<(), RpcError> {
        let (what, name) = match self {
            Self::Initialize(params) => ("clientName", Some(params.client_name.as_str())),
            Self::ProcessWrite(params) | Self::CommandExecWrite(params) => {
                ("writeId", params.write_id.as_deref())
            }
            Self::HttpRequest(params) => ("requestId", Some(params.request_id.as_str())),
            _ => ("", None),
        };
        for (what, name) in [(what, name), ("processId", self.process())] {
            if let Some(name) = name.filter(|name| name.len() > MAX_NAME_BYTES) {
                let len = name.len();
                return Err(RpcError::invalid_params(format!(
                    "{what} of {len} bytes exceeds the limit of {MAX_NAME_BYTES}"
                )));
            }
        }
        Ok(())
    }

    /// Returns the process that the call changes. Such calls take effect in order of arrival.
    #[must_use]
    pub fn changes_process(&self) -> Option<&str> {
        match self {
            Self::ProcessStart(params) => Some(&params.process_id),
            Self::ProcessWrite(params) | Self::CommandExecWrite(params) => Some(&params.process_id),
            Self::ProcessCloseStdin(params) => Some(&params.process_id),
            Self::ProcessResize(params) => Some(&params.process_id),
            Self::ProcessSignal(params) => Some(&params.process_id),
            Self::ProcessTerminate(params) | Self::CommandExecTerminate(params) => {
                Some(&params.process_id)
            }
            Self::CommandExec(params) => Some(&params.process_id),
            _ => None,
        }
    }
}

pub(crate) fn decode_params<T: DeserializeOwned>(method: &str, text: &[u8]) -> Result<T, RpcError> {
    serde_json::from_slice(text).map_err(|error| {
        RpcError::invalid_params(format!(
            "invalid params of {method}: {}",
            without_position(&error)
        ))
    })
}

/// Strips the position: `serde_json` counts lines and columns within the params, which a client
/// cannot use.
fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rfind(" at line ") {
        Some(end) => text[..end].to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode(method: &str, params: &str) -> Result<Call, RpcError> {
        let raw = serde_json::from_str::<&RawValue>(params).unwrap();
        Call::decode(method, Some(raw))
    }

    #[test]
    fn names_round_trip() {
        for &method in Method::ALL {
            assert_eq!(Method::from_name(method.name()), Some(method));
        }
    }

    #[test]
    fn null_means_absent() {
        let call = decode(
            "process/start",
            r#"{"processId":"p","argv":["true"],"cwd":"/","env":null,"tty":null,"pipeStdin":null,
                "arg0":null,"envPolicy":null,"sandbox":null,"onFull":null,"killOnExit":null,
                "size":null,"mode":null,"enforceManagedNetwork":null,"managedNetwork":null}"#,
        )
        .unwrap();
        let Call::ProcessStart(params) = call else { panic!("wrong call") };
        assert!(!params.tty && params.env.is_empty() && params.managed_network.is_none());
        assert!(Call::decode("session/list", None::<Params<'_>>).is_ok());
        assert!(decode("process/terminate", r#"{"processId":"p","mode":null}"#).is_ok());
    }

    #[test]
    fn a_read_occupies_a_slot_unless_it_waits() {
        let read = |params| decode("process/read", params).unwrap().scheduling();
        assert_eq!(read(r#"{"processId":"p"}"#), Scheduling::Ordinary);
        assert_eq!(read(r#"{"processId":"p","waitMs":0}"#), Scheduling::Ordinary);
        assert_eq!(read(r#"{"processId":"p","waitMs":1}"#), Scheduling::Waiting);
    }

    #[test]
    fn bad_params_name_the_method_and_the_cause() {
        let error = decode("process/write", r#"{"processId":"p","chunk":"?"}"#).unwrap_err();
        assert_eq!(error.code, -32602);
        assert!(error.message.contains("process/write") && error.message.contains("base64"));
        assert!(!error.message.contains("line"));
        assert_eq!(decode("nope", "{}").unwrap_err().code, -32601);
    }

    #[test]
    fn a_start_parameter_in_the_wrong_case_is_an_error() {
        let start = |member: &str| {
            let params = format!(r#"{{"processId":"p","argv":["true"],"cwd":"/",{member}}}"#);
            decode("process/start", &params)
        };
        for (member, wrong, right) in [
            (r#""pipestdin":true"#, "pipestdin", "pipeStdin"),
            (r#""Sandbox":null"#, "Sandbox", "sandbox"),
            (r#""sandbox":null,"SANDBOX":null"#, "SANDBOX", "sandbox"),
            (r#""\u0053andbox":null"#, "Sandbox", "sandbox"),
        ] {
            let error = start(member).unwrap_err();
            assert_eq!(error.code, -32602);
            assert!(error.message.contains("process/start"), "{}", error.message);
            let named = [wrong, right].map(|name| format!("{name:?}"));
            assert!(named.iter().all(|name| error.message.contains(name)), "{}", error.message);
        }
        for member in [r#""future":{"Sandbox":1}"#, r#""sandboxes":1"#, r#""\u0074ty":true"#] {
            assert!(start(member).is_ok(), "{member}");
        }
        for member in [
            r#""networkProxy":{"proxy":{"Domains":{}}}"#,
            r#""managedNetwork":{"loopbackports":[]}"#,
            r#""network":{"Deny":[]}"#,
        ] {
            assert_eq!(start(member).unwrap_err().code, -32602, "{member}");
        }
        let Ok(Call::ProcessStart(params)) = start(r#""networkProxy":{"proxy":{},"a":1}"#) else {
            panic!("not a start")
        };
        assert!(params.network_proxy.is_some());
    }

    #[test]
    fn names_over_the_limit_are_refused() {
        let long = "x".repeat(MAX_NAME_BYTES + 1);
        for (method, params, name) in [
            ("process/wait", format!(r#"{{"processId":"{long}"}}"#), "processId"),
            ("initialize", format!(r#"{{"clientName":"{long}"}}"#), "clientName"),
            (
                "process/write",
                format!(r#"{{"processId":"p","chunk":"","writeId":"{long}"}}"#),
                "writeId",
            ),
        ] {
            let error = decode(method, &params).unwrap_err();
            assert_eq!(error.code, -32602);
            assert!(error.message.starts_with(name), "{}", error.message);
        }
    }
}
