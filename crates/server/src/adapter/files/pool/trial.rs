//! Whether work on files can be kept to a policy on this machine, found out by doing it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::Confinement;
use exec_server_host::sandbox::{Network, Policy};

/// The first call takes a thread, for a moment: what is confined stays so.
pub(crate) fn can_confine() -> bool {
    static SUCCEEDED: AtomicBool = AtomicBool::new(false);
    // A failure is not remembered: it may have been for want of memory or threads.
    if !SUCCEEDED.load(Ordering::Relaxed) && try_to_confine() {
        SUCCEEDED.store(true, Ordering::Relaxed);
    }
    SUCCEEDED.load(Ordering::Relaxed)
}

fn try_to_confine() -> bool {
    let trial = std::thread::Builder::new().name("files-trial".to_owned());
    let trial = trial.spawn(|| {
        let all = Policy::unrestricted(Network::Enabled);
        Confinement::new(all).and_then(|confinement| Arc::new(confinement).enter())
    });
    trial.is_ok_and(|trial| matches!(trial.join(), Ok(Ok(()))))
}
