//! Reliable teardown of process trees: one spawner process for the server, and one keeper process
//! for each tree.
//!
//! ```text
//! server ──(datagram: descriptors)──▶ spawner ──fork──▶ keeper ──vfork──▶ program
//!    ▲                                                    │ ▲
//!    └─────────── a socket of its own for each keeper ────┘ └─ adopts every orphan of the program
//! ```
//!
//! `client` and `link` run in the server, `spawner` and `keeper` in separate processes, `child`
//! between fork and exec. `wire` and `passing` define their messages and how they are sent.
//! `sandboxed` starts a confined program: directly, through `stage` in namespaces, or through
//! `bubblewrapped`. If the server has no cgroup of its own, a second spawner in a `scope` starts
//! programs with limits. A program with limits has a `watch`, which reads its cgroup or `measure`s
//! the tree.
//!
//! The confinement itself is in [`crate::sandbox`].
//!
//! Nothing here cleans up by remembered pids. A process is killed only through its pidfd, with its
//! cgroup, or by its parent, which knows that the pid cannot have been reused.

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
