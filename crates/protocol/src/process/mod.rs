//! `process/*`: params, results and notifications.

mod control;
mod limits;
mod output;
mod overview;
mod start;

pub use control::{
    CloseStdinResponse, ProcessIdParams, ResizeParams, SignalName, SignalParams, TerminateMode,
    TerminateParams, TerminateResponse, WriteParams, WriteResponse, WriteStatus,
};
pub use limits::{
    Cpus, CpusError, EffectiveLimits, LimitName, LimitTooLow, LimitValues, LimitsRequest,
    LimitsTier, RequiredLimits,
};
pub use output::{
    AckParams, ClosedNotification, ExitDetails, ExitedNotification, OutputChunk,
    OutputNotification, OutputStream, ReadParams, ReadResponse,
};
pub use overview::{
    ListParams, ListResponse, ProcessSummary, SnapshotResponse, WaitParams, WaitResponse,
};
pub use start::{
    EnvInherit, EnvPolicy, ExecMode, OnFull, SandboxType, StartParams, StartResponse, TerminalSize,
};

fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
