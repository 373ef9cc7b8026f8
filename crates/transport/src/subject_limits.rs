//! Counts resources such as connections and processes, in total and by subject, and limits both.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard};

use exec_server_protocol::Subject;

#[derive(Debug)]
pub struct SubjectLimits {
    total: usize,
    per_subject: usize,
    open: Mutex<HashMap<Subject, usize>>,
}

/// The limit that was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    Server,
    Subject,
}

/// The slot of one subject. Dropping the permit frees the slot.
#[derive(Debug)]
pub struct SubjectPermit {
    limits: Arc<SubjectLimits>,
    subject: Subject,
}

impl SubjectLimits {
    #[must_use]
    pub fn new(total: usize, per_subject: usize) -> Arc<Self> {
        Arc::new(Self { total, per_subject, open: Mutex::default() })
    }

    pub fn admit(self: &Arc<Self>, subject: &Subject) -> Result<SubjectPermit, Full> {
        let mut open = self.lock();
        if open.values().sum::<usize>() >= self.total {
            return Err(Full::Server);
        }
        let of_subject = open.entry(subject.clone()).or_default();
        if *of_subject >= self.per_subject {
            return Err(Full::Subject);
        }
        *of_subject += 1;
        Ok(SubjectPermit { limits: Arc::clone(self), subject: subject.clone() })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Subject, usize>> {
        self.open.lock().expect("no code panics while it holds the counts")
    }
}

impl Drop for SubjectPermit {
    fn drop(&mut self) {
        let mut open = self.limits.lock();
        if let Some(count) = open.get_mut(&self.subject) {
            *count -= 1;
            if *count == 0 {
                open.remove(&self.subject);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_counted_in_total_and_by_subject() {
        let limits = SubjectLimits::new(3, 2);
        let [alice, bob] = ["alice", "bob"].map(|name| Subject::Named(name.into()));
        let first = limits.admit(&alice).unwrap();
        let _second = limits.admit(&alice).unwrap();
        assert_eq!(limits.admit(&alice).unwrap_err(), Full::Subject);
        let _third = limits.admit(&bob).unwrap();
        assert_eq!(limits.admit(&bob).unwrap_err(), Full::Server);
        drop(first);
        let _fourth = limits.admit(&alice).unwrap();
        assert_eq!(limits.admit(&alice).unwrap_err(), Full::Server);
    }
}
