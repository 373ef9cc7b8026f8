//! Puts a plan into effect, in the spawner, in the keeper and in its children. The probe and the
//! planning use parts of it.

pub(crate) mod bubblewrap;
mod descriptor_room;
pub(crate) mod gate_sockets;
pub(crate) mod init;
pub(crate) mod local_routes;
pub(crate) mod lockdown;
pub(crate) mod missing_roots;
pub(super) mod mount_call;
pub(crate) mod mounts;
pub(crate) mod namespaces;
pub(crate) mod network_namespace;
pub(crate) mod placeholder;
pub(crate) mod start_cancellation;
pub(crate) mod terminals;
