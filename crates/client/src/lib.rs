//! A client of exec-server that reconnects below its process handles.

mod call;
mod calls;
mod catch_up;
mod client;
mod connector;
mod driver;
mod error;
mod events;
mod launch;
mod mirror;
mod options;
mod process;
mod processes;
mod recovery;

pub use client::{ConnectionState, ExecServerClient};
pub use connector::{Connector, Dialing};
pub use error::{ConnectError, ExecServerError, Lost, Violation};
pub use events::{ExecProcessEvent, ProcessEvents, ProcessExit};
pub use mirror::{Gaps, MirrorEvent, Offer, ProcessMirror};
pub use options::{
    ExecServerClientConnectOptions, ExecServerLaunchCommand, RemoteExecServerConnectArgs,
};
pub use process::ExecServerProcess;
pub use recovery::RecoveryPolicy;
