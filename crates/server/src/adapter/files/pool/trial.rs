//! Finds out, by trying it, whether file operations can be confined to a policy on this machine.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use exec_server_host::fs::Confinement;
use exec_server_host::sandbox::{Network, Policy};

/// The first call uses up a thread, since confinement is permanent.
pub(crate) fn can_confine() -> bool {
    static SUCCEEDED: AtomicBool = AtomicBool::new(false);
    // A failure is not cached: it may have been a lack of memory or threads.
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
