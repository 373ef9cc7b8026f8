//! Processes that are hard to kill.

use super::machine::{Watched, marked};
use super::{AckingInbox, Client, Start, eventually, shell};

/// Returns a process that starts `count` daemons and keeps running. Each daemon has its own
/// session, has lost its parent, and ignores TERM and HUP.
pub(crate) fn daemons(id: &str, count: usize) -> Start {
    shell(id, &format!("{}\necho all; exec sleep 1000", leave_daemons(count)))
        .variable("EXEC_SERVER_TEST", &marker(id))
}

/// Returns a script that starts the daemons.
pub(crate) fn leave_daemons(count: usize) -> String {
    format!(
        "trap '' TERM HUP
         for i in $(seq {count}); do (setsid sh -c 'exec sleep 1000' > /dev/null 2>&1 < /dev/null &); done"
    )
}

/// Returns the `EXEC_SERVER_TEST` of a process, which all its descendants inherit.
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
