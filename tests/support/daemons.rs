//! Processes that do everything to survive.

use super::machine::{Watched, marked};
use super::{AckingInbox, Client, Start, eventually, shell};

/// Leaves `count` daemons: each in a session of its own, its parent gone, deaf to TERM and HUP. The leader stays.
pub(crate) fn daemons(id: &str, count: usize) -> Start {
    shell(id, &format!("{}\necho all; exec sleep 1000", leave_daemons(count)))
        .variable("EXEC_SERVER_TEST", &marker(id))
}

/// A script that leaves them.
pub(crate) fn leave_daemons(count: usize) -> String {
    format!(
        "trap '' TERM HUP
         for i in $(seq {count}); do (setsid sh -c 'exec sleep 1000' > /dev/null 2>&1 < /dev/null &); done"
    )
}

/// Found in the environment of everything that the process starts.
pub(crate) fn marker(id: &str) -> String {
    format!("{}-{id}", std::process::id())
}

/// Starts a leader and its daemons, and waits until all of them run.
pub(crate) fn start_daemons(client: &mut Client, id: &str, count: usize) -> Watched {
    client.start(&daemons(id, count));
    client.wait_for_output(&mut AckingInbox::new(id), "all");
    eventually("all daemons run", || marked(&marker(id)).len() > count);
    Watched::new(&marked(&marker(id)))
}
