//! Trees that really die: a spawner process for the server, and a keeper process for each tree.
//!
//! ```text
//! server ──(datagram: descriptors)──▶ spawner ──fork──▶ keeper ──vfork──▶ program
//!    ▲                                                    │ ▲
//!    └─────────── a socket of its own for each keeper ────┘ └─ adopts every orphan of the program
//! ```
//!
//! `client` and `link` run in the server, `spawner` and `keeper` in processes of their own, `child`
//! between fork and exec; `wire` and `passing` are what they say to each other and how. A program that
//! is to be confined is started by `sandboxed`: directly, by way of `stage` in namespaces of its own,
//! or by `bubblewrapped`. Where the server has no cgroup of its own, programs with limits are started
//! by a second spawner in a `scope`. A program with limits has a `watch`, which asks its cgroup or
//! `measure`s the tree.
//! What is done to confine it is in [`crate::sandbox`]. Nobody
//! here cleans up by remembering pids: a process is killed only by its parent, which knows that
//! the number cannot have been reused, or through its pidfd.

mod bubblewrapped;
mod child;
mod client;
mod clone_into_cgroup;
mod descendants;
mod keeper;
mod link;
mod measure;
mod passing;
mod reaping;
mod sandboxed;
mod scope;
mod signals;
mod spawner;
mod stage;
mod watch;
mod wire;

pub(super) use client::{LaunchedTree, Spawner};
pub(super) use link::KeeperLink;
pub use spawner::{SPAWNER_ARG, run_spawner};
