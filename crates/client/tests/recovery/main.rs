//! The client against a real server, with a bad network in between.

mod calls;
mod cuts;
mod processes;
mod support;
