//! The wire vocabulary of exec-server: the messages between a client and a server.
//!
//! This crate knows names, shapes and limits. It does no I/O, has no clock and no async runtime,
//! and depends on no other crate of the project. One table, of [`Method`]s, has the params, the
//! result and the scheduling of each method; the server's dispatch and the Rust client are
//! generated from it. The table of [`ServerMethod`]s does the same for requests from server to
//! client.

mod base64;
mod bounds;
mod encode;
mod envelope;
mod environment;
mod error;
mod error_kind;
mod fs;
mod http;
mod legacy;
mod lifecycle;
mod link;
mod methods;
mod misspelt;
mod network;
mod notifications;
mod nullable;
mod path_uri;
mod principal;
mod process;
mod sandbox;
#[cfg(feature = "schema")]
pub mod schema;
mod server_requests;
mod spare;
mod status;

pub use base64::Base64Bytes;
pub use bounds::{MAX_JSON_DEPTH, MAX_JSON_VALUES, MAX_MESSAGE_BYTES};
pub use encode::{
    Base64ResponseWriter, NotificationHeader, bytes_response, error_response, notification,
    request, response,
};
pub use envelope::{
    DecodeError, Message, Notification, Params, Request, RequestId, TraceContext,
    UNKNOWN_REQUEST_ID, check_bounds, decode, decode_unchecked,
};
pub use environment::{
    Capabilities, EnvironmentInfo, EnvironmentStatus, ProcessTeardown, ShellInfo, Status,
};
pub use error::{ErrorCode, ErrorData, ErrorSubject, RpcError};
pub use error_kind::ErrorKind;
pub use fs::{
    ChangeKind, ChangedNotification, DirectoryEntry, FileChange, FsCancelSearchParams,
    FsCanonicalizeParams, FsCloseParams, FsCloseResponse, FsCopyParams, FsCreateDirectoryParams,
    FsCreateParams, FsGetMetadataParams, FsGlobParams, FsHandleResponse, FsMetadata, FsOpenParams,
    FsPathResponse, FsReadBlockParams, FsReadBlockResponse, FsReadDirectoryParams,
    FsReadDirectoryResponse, FsReadFileParams, FsReadFileResponse, FsReadLinkParams,
    FsReadLinkResponse, FsRemoveParams, FsRenameParams, FsSearchParams, FsSearchResponse,
    FsSetPermissionsParams, FsSymlinkParams, FsUnwatchParams, FsWalkParams, FsWalkResponse,
    FsWatchParams, FsWriteBlockParams, FsWriteFileParams, FsWriteFileResponse, LinkTargetError,
    MAX_BLOCK_BYTES, MAX_FILE_BYTES, MAX_HANDLE_ID_BYTES, MAX_WATCH_ID_BYTES, PageOrderError,
    SearchLine, SearchMatch, SearchResultsNotification, SpecialFile, Submatch, TreeEntry,
    TreeEntryKind, TreeError, WalkOptions, WriteCondition,
};
pub use http::{
    BodyDeltaNotification, HttpAckParams, HttpCancelParams, HttpRequestHeader, HttpRequestParams,
    HttpResponse, HttpResponseHeader, MAX_BODY_DELTA_BYTES, RedirectPolicy,
};
pub use legacy::{
    ExecExitedNotification, ExecOutputDeltaNotification, ExecParams, ExecResponse,
    ExecWriteResponse, LegacyStream,
};
pub use lifecycle::{
    Empty, InitializeParams, InitializeResponse, ObserveParams, PROTOCOL_VERSION,
    SessionCloseParams, SessionInfo, SessionListResponse,
};
pub use link::{
    EventSink, Offered, Respond, RespondToServer, ServerLink, ServerRequestHandler, SinkFuture,
};
pub use methods::{
    Call, CallResponse, Effect, MAX_NAME_BYTES, Method, Replay, Rpc, Scheduling, rpc,
};
pub use network::{
    DecisionReason, DecisionReasonError, DomainPermission, MAX_REASON_BYTES, ManagedNetwork,
    NetworkDecision, NetworkDecisionScope, NetworkDecisionSource, NetworkEnforcement, NetworkMode,
    NetworkPolicyDecisionNotification, NetworkPolicyRequestParams, NetworkPolicyResponse,
    NetworkProtocol, NetworkProxy, NetworkProxySettings, NetworkRequest, NetworkRules, NetworkUse,
    NetworkVerdict, RefusedHost, UnixSocketPermission, is_proxy_variable,
};
pub use notifications::{
    ClientNotification, Initialized, NotificationParams, NotificationTopic, ServerNotification,
};
pub use path_uri::{PathUri, PathUriError};
pub use principal::{
    HostRules, MAX_SUBJECT_BYTES, Principal, Role, SandboxCeiling, SandboxLevel, Subject,
};
pub use process::{
    AckParams, CloseStdinResponse, ClosedNotification, Cpus, CpusError, EffectiveLimits,
    EnvInherit, EnvPolicy, ExecMode, ExitDetails, ExitedNotification, LimitName, LimitTooLow,
    LimitValues, LimitsRequest, LimitsTier, ListParams, ListResponse, OnFull, OutputChunk,
    OutputNotification, OutputStream, ProcessIdParams, ProcessSummary, ReadParams, ReadResponse,
    RequiredLimits, ResizeParams, SandboxType, SignalName, SignalParams, SnapshotResponse,
    StartParams, StartResponse, TerminalSize, TerminateMode, TerminateParams, TerminateResponse,
    WaitParams, WaitResponse, WriteParams, WriteResponse, WriteStatus,
};
pub use sandbox::{
    Denial, Enforcement, ExternalNetwork, FileSystemPermissions, MissingPath, NetworkPermission,
    Permissions, Sandbox, SandboxAccess, SandboxEntry, SandboxEntryPath, SandboxMode,
    SandboxProfile, SandboxRequest, SandboxSyntaxError, SpecialPath,
};
pub use server_requests::{
    MAX_SERVER_REQUESTS, ServerCall, ServerCallResponse, ServerMethod, ServerRequest,
    server_request,
};
pub use spare::{recycle, release_spare};
pub use status::{
    LimitsStatus, ProcessCounts, RecentRefusal, RefusedThing, ServerStatus, SessionCounts,
};
