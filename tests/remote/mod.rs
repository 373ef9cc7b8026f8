//! Remote mode, with real binaries.

mod commands;
mod credentials;
mod cuts;
mod delays;
mod forward;
mod networks;
mod restarts;
mod secrets;
