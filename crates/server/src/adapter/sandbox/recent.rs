//! A cache of recently resolved policies.
//!
//! Agents send the same sandbox with every request. Its policy depends on symlinks and on which
//! files exist, so an entry lives for one second only.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use exec_server_host::sandbox::Policy;
use exec_server_protocol::SandboxRequest;

const LIFETIME: Duration = Duration::from_secs(1);
/// Each insertion drops the expired policies; if this many are left, it drops them all.
const MAX_POLICIES: usize = 256;
/// Longer sandbox objects are not cached.
const MAX_TEXT: usize = 64 << 10;

#[derive(Debug, Default)]
pub(super) struct Recent {
    policies: Mutex<HashMap<Box<str>, Known>>,
}

#[derive(Debug)]
struct Known {
    policy: Option<Policy>,
    since: Instant,
}

impl Recent {
    pub(super) fn find(&self, sandbox: Option<&SandboxRequest>) -> Option<Option<Policy>> {
        let text = text(sandbox);
        if text.len() > MAX_TEXT {
            return None;
        }
        let policies = self.lock();
        let known = policies.get(text)?;
        (known.since.elapsed() < LIFETIME).then(|| known.policy.clone())
    }

    pub(super) fn remember(&self, sandbox: Option<&SandboxRequest>, policy: Option<Policy>) {
        let text = text(sandbox);
        if text.len() > MAX_TEXT {
            return;
        }
        let mut policies = self.lock();
        policies.retain(|_, known| known.since.elapsed() < LIFETIME);
        if policies.len() >= MAX_POLICIES {
            policies.clear();
        }
        policies.insert(text.into(), Known { policy, since: Instant::now() });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Known>> {
        self.policies.lock().expect("no code panics while it holds the policies")
    }
}

/// Returns the key of a sandbox. An empty string stands for no sandbox: it is not valid JSON.
fn text(sandbox: Option<&SandboxRequest>) -> &str {
    sandbox.map_or("", |sandbox| sandbox.0.get())
}
