//! A client of exec-server whose process handles survive lost connections.
//!
//! An [`ExecServerClient`] is one session on one server. If its connection is lost, the client
//! replaces it: calls wait, processes keep running on the server, and each handle's events resume
//! where they stopped, in order and exactly once.
//!
//! ```no_run
//! use exec_server_client::{ExecProcessEvent, ExecServerClient};
//! use exec_server_protocol::{PathUri, StartParams};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = ExecServerClient::connect("ws://127.0.0.1:7777", "first example").await?;
//!
//! let cwd = PathUri::from_path("/tmp").ok_or("not absolute")?;
//! let process = client.start(StartParams::new("greeting", ["/bin/echo", "hello"], cwd)).await?;
//! let mut events = process.subscribe_events();
//! while let Some(event) = events.next().await {
//!     match event {
//!         ExecProcessEvent::Output(chunk) => print!("{}", String::from_utf8_lossy(&chunk.chunk)),
//!         ExecProcessEvent::Exited(exit) => println!("exit code {}", exit.exit_code),
//!         ExecProcessEvent::Failed(error) => return Err(error.into()),
//!         ExecProcessEvent::Gap { .. } | ExecProcessEvent::Closed { .. } => {}
//!     }
//! }
//! client.close().await?;
//! # Ok(())
//! # }
//! ```
//!
//! When the connection is lost:
//!
//! * The client redials at once, then with growing, jittered pauses, until
//!   [`RecoveryPolicy::deadline`].
//! * New calls wait. Calls in flight are resent if that is safe (reads, waits, `closeStdin`,
//!   `resize`, `terminate`, writes with a `writeId`). The others fail as
//!   [`ExecServerError::Interrupted`].
//! * A start whose response was lost fails as interrupted. If it started a process, the client
//!   terminates it.
//! * Each process continues where its handle stopped. If the server no longer has the output that
//!   follows, the handle reports a gap if gaps are allowed (after a start with `onFull: discard`,
//!   and for attached and observed processes), and fails otherwise.
//! * Open files, searches and HTTP bodies belong to the connection and fail at once as interrupted.
//!   A watch is established again and reports that it may have missed changes.
//! * After the deadline, every waiting call fails with the same [`ExecServerError::Disconnected`].

mod call;
mod calls;
mod catch_up;
mod client;
mod connector;
mod directory;
mod driver;
mod error;
mod events;
mod files;
mod http;
mod in_process;
mod launch;
mod leases;
mod mirror;
mod network;
mod notified;
mod options;
mod process;
mod process_state;
mod processes;
mod recovery;
mod saved;
mod search;
mod watch;

pub use client::{ConnectionState, ExecServerClient};
pub use connector::{Connector, Dialing, PostMortem};
pub use error::{ConnectError, DisconnectReason, ExecServerError, Violation};
pub use events::{ExecProcessEvent, ProcessEvents, ProcessExit};
pub use exec_server_relay::harness::{
    HarnessError, NoiseRendezvousConnectBundle, NoiseRendezvousConnectProvider, ProviderError,
    RegistryProvider,
};
pub use exec_server_transport::{
    ClientIdentity, DialUrl, Fingerprint, KeepAlive, ServerTrust, SignOfLife, TlsOptions,
};
pub use files::{NewFile, OpenFile};
pub use http::HttpBody;
pub use leases::Changes;
pub use mirror::{GapPolicy, MirrorEvent, Offer, ProcessMirror};
pub use network::{NetworkDecisionHandler, NetworkRequestHandler};
pub use options::{
    ExecServerClientConnectOptions, ExecServerLaunchCommand, NoiseRendezvousConnectArgs,
    RemoteExecServerConnectArgs,
};
pub use process::ExecServerProcess;
pub use recovery::RecoveryPolicy;
pub use saved::SavedProcess;
pub use search::SearchResults;
pub use watch::WatchEvents;
