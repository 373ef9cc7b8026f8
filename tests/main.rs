//! End to end, with the real binary: each test checks one promise made to users.
//!
//! A test waits for events; a timeout means that an event did not arrive. Where a fault shows only
//! after many repetitions, the test runs a smaller count; its `soak_` twin, ignored by default,
//! runs the full one.

#![expect(clippy::unwrap_used, reason = "a failed step fails its test")]

mod auth;
mod browser;
mod ceilings;
mod cli;
mod cli_completion;
mod cli_cp;
mod cli_detached;
mod cli_files;
mod cli_hostile;
mod cli_http;
mod cli_network;
mod cli_outages;
mod cli_run;
mod cli_same;
mod cli_sandbox;
mod cli_server;
mod cli_shell;
mod client_stdio;
mod cluster;
mod conformance;
mod environments;
mod example_sessions;
mod exits;
mod files;
mod foreign_client;
mod framing;
mod http;
mod lifecycle;
mod limits;
mod listener;
mod logging;
mod many_clients;
mod mcp;
mod monitoring;
mod network;
mod otlp;
mod output;
mod packages;
mod packaging;
mod process_limits;
mod processes;
mod readme;
mod recipes;
mod reload;
mod remote;
mod rendezvous;
mod resume;
mod sandbox;
mod secrecy;
mod service_manager;
mod sessions;
mod shutdown;
mod slow_client;
mod soak;
mod start_options;
mod status;
mod stdin;
mod support;
mod terminals;
mod tls;
mod trees;
mod v0;
