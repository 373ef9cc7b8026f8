//! How a plan is put into effect. It runs in the keeper and in its children.

pub(crate) mod bubblewrap;
mod descriptor_room;
pub(crate) mod empty_network;
pub(crate) mod init;
pub(crate) mod lockdown;
pub(crate) mod missing_roots;
pub(super) mod mount_call;
pub(crate) mod mounts;
pub(crate) mod namespaces;
pub(crate) mod placeholder;
pub(crate) mod start_cancellation;
pub(crate) mod terminals;
