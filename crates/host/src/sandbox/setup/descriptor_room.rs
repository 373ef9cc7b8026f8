//! Makes room for many descriptors in a process whose children must inherit its original limit.

use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors that the rest of the process may have open.
const OTHERS: usize = 256;

/// Until this is dropped, the soft limit on descriptors is raised to the hard limit, if necessary.
#[derive(Debug)]
pub(in crate::sandbox) struct DescriptorRoom {
    raised_from: Option<Rlimit>,
}

impl DescriptorRoom {
    pub(in crate::sandbox) fn for_more(descriptors: usize) -> Self {
        let limit = getrlimit(Resource::Nofile);
        let wanted = u64::try_from(descriptors.saturating_add(OTHERS)).unwrap_or(u64::MAX);
        let is_enough = limit.current.is_none_or(|current| current >= wanted);
        let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
        let is_raised = !is_enough && setrlimit(Resource::Nofile, raised).is_ok();
        Self { raised_from: is_raised.then_some(limit) }
    }

    /// Leaves the limit unchanged.
    #[cfg(test)]
    pub(in crate::sandbox) fn none() -> Self {
        Self { raised_from: None }
    }

    /// If the limit was raised, moves a long-lived descriptor above the original limit, so that the
    /// numbers below stay free for descriptors opened after the limit is restored.
    pub(in crate::sandbox) fn put_away(&self, descriptor: OwnedFd) -> OwnedFd {
        let limit = self.raised_from.as_ref().and_then(|limit| limit.current);
        match limit.and_then(|limit| i32::try_from(limit).ok()) {
            Some(limit) => fcntl_dupfd_cloexec(&descriptor, limit).unwrap_or(descriptor),
            None => descriptor,
        }
    }
}

impl Drop for DescriptorRoom {
    fn drop(&mut self) {
        if let Some(limit) = self.raised_from.take() {
            // The limit was in force before, so setting it is allowed.
            let _ = setrlimit(Resource::Nofile, limit);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsRawFd;

    use super::*;

    /// Changes the limits of the test process, so it is a single test.
    #[test]
    fn the_limit_is_raised_as_needed_and_restored_afterwards() {
        let before = getrlimit(Resource::Nofile);
        let low = Rlimit { current: Some(512), maximum: before.maximum };
        setrlimit(Resource::Nofile, low).unwrap();
        drop(DescriptorRoom::for_more(10));
        let room = DescriptorRoom::for_more(1000);
        let open = |_| room.put_away(File::open("/").unwrap().into());
        let away: Vec<_> = (0..1000).map(open).collect();
        drop(room);
        assert_eq!(getrlimit(Resource::Nofile), low);
        assert!(away.iter().all(|away| away.as_raw_fd() >= 512));
        assert!(File::open("/").unwrap().as_raw_fd() < 512);
        drop(away);
        setrlimit(Resource::Nofile, before).unwrap();
    }
}
