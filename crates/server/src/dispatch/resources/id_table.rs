//! A table of one kind of resource on a connection, by ids that the client chose: handles, watches,
//! searches or HTTP bodies. All of them end with the connection.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use exec_server_protocol::{ErrorCode, ErrorKind, RpcError};

#[derive(Debug, Clone, Copy)]
pub(crate) struct IdRules {
    /// The name of the id on the wire.
    pub(crate) member: &'static str,
    pub(crate) max_bytes: usize,
    pub(crate) max_entries: usize,
    /// The error for an id that is in use, empty or too long.
    pub(crate) bad_id: ErrorCode,
}

#[derive(Debug)]
pub(crate) struct IdTable<T> {
    rules: IdRules,
    state: Mutex<State<T>>,
}

#[derive(Debug)]
struct State<T> {
    entries: HashMap<String, (Ticket, Option<T>)>,
    next_ticket: Ticket,
    is_over: bool,
}

/// Distinguishes successive entries under the same id.
type Ticket = u64;

impl<T> IdTable<T> {
    pub(crate) fn new(rules: IdRules) -> Arc<Self> {
        let state = State { entries: HashMap::new(), next_ticket: 0, is_over: false };
        Arc::new(Self { rules, state: Mutex::new(state) })
    }

    /// Reserves an id before its entry exists. Dropping the claim frees the id.
    pub(crate) fn claim(self: &Arc<Self>, id: String) -> Result<Claim<T>, RpcError> {
        self.add(id, None)
    }

    /// Dropping the claim removes the entry.
    pub(crate) fn insert(self: &Arc<Self>, id: String, value: T) -> Result<Claim<T>, RpcError> {
        self.add(id, Some(value))
    }

    fn add(self: &Arc<Self>, id: String, value: Option<T>) -> Result<Claim<T>, RpcError> {
        self.check_id(&id)?;
        let IdRules { member, max_entries, bad_id, .. } = self.rules;
        let mut state = self.lock();
        if state.is_over {
            return Err(RpcError::internal("the connection has ended"));
        }
        if state.entries.contains_key(&id) {
            let message = format!("{member} {id:?} is already in use on this connection");
            return Err(RpcError::new(bad_id, message).with_kind(ErrorKind::DuplicateId));
        }
        if state.entries.len() >= max_entries {
            let message = format!(
                "this connection may use at most {max_entries} {member} values at once; close or \
                 finish one first"
            );
            return Err(RpcError::invalid_request(message).with_kind(ErrorKind::TooManyOpen));
        }
        let ticket = state.next_ticket;
        state.next_ticket += 1;
        state.entries.insert(id.clone(), (ticket, value));
        drop(state);
        Ok(Claim { table: Arc::clone(self), id, ticket, kept: false })
    }

    pub(crate) fn check_id(&self, id: &str) -> Result<(), RpcError> {
        let IdRules { member, max_bytes, bad_id, .. } = self.rules;
        if (1..=max_bytes).contains(&id.len()) {
            return Ok(());
        }
        let message = format!("{member} has {} bytes; expected 1 to {max_bytes}", id.len());
        Err(RpcError::new(bad_id, message))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.lock().entries.is_empty()
    }

    pub(crate) fn remove(&self, id: &str) -> Option<T> {
        self.lock().entries.remove(id).and_then(|(_, value)| value)
    }

    /// Called when the connection has ended: returns all entries, and accepts no more.
    pub(crate) fn end(&self) -> Vec<T> {
        let mut state = self.lock();
        state.is_over = true;
        state.entries.drain().filter_map(|(_, (_, value))| value).collect()
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> IdTable<T> {
    pub(crate) fn get(&self, id: &str) -> Option<T> {
        self.lock().entries.get(id).and_then(|(_, value)| value.clone())
    }
}

/// A reserved id. It is freed when this is dropped, unless it was kept.
#[derive(Debug)]
pub(crate) struct Claim<T> {
    table: Arc<IdTable<T>>,
    id: String,
    ticket: Ticket,
    kept: bool,
}

impl<T> Claim<T> {
    /// Puts a value under the id, or returns it if the id was removed in the meantime.
    pub(crate) fn fill(&self, value: T) -> Result<(), T> {
        match self.table.lock().entries.get_mut(&self.id) {
            Some((ticket, slot)) if *ticket == self.ticket => {
                *slot = Some(value);
                Ok(())
            }
            _ => Err(value),
        }
    }

    /// Keeps the id until it is removed.
    pub(crate) fn keep(mut self) {
        self.kept = true;
    }
}

impl<T> Drop for Claim<T> {
    fn drop(&mut self) {
        if self.kept {
            return;
        }
        let mut state = self.table.lock();
        let is_ours = |(ticket, _): &(Ticket, Option<T>)| *ticket == self.ticket;
        let removed = match state.entries.get(&self.id) {
            Some(entry) if is_ours(entry) => state.entries.remove(&self.id),
            _ => None,
        };
        drop(state);
        drop(removed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named() -> Arc<IdTable<u32>> {
        IdTable::new(IdRules {
            member: "handleId",
            max_bytes: 4,
            max_entries: 2,
            bad_id: ErrorCode::InvalidRequest,
        })
    }

    #[test]
    fn ids_are_unique_and_limited_in_length_and_number() {
        let named = named();
        let first = named.claim("a".into()).unwrap();
        assert_eq!(named.claim("a".into()).unwrap_err().kind(), Some(&ErrorKind::DuplicateId));
        assert_eq!(named.claim("abcde".into()).unwrap_err().code, -32600);
        assert_eq!(named.claim(String::new()).unwrap_err().code, -32600);
        let _second = named.claim("b".into()).unwrap();
        assert_eq!(named.claim("c".into()).unwrap_err().kind(), Some(&ErrorKind::TooManyOpen));
        drop(first);
        assert!(named.claim("a".into()).is_ok());
    }

    #[test]
    fn an_inserted_entry_is_found_at_once_and_removed_with_its_claim() {
        let named = named();
        let claim = named.insert("a".into(), 1).unwrap();
        assert_eq!(named.get("a"), Some(1));
        drop(claim);
        assert_eq!(named.get("a"), None);
    }

    #[test]
    fn a_claim_that_lost_its_id_leaves_the_next_entry_alone() {
        let named = named();
        let old = named.claim("a".into()).unwrap();
        assert_eq!(named.remove("a"), None);
        let new = named.claim("a".into()).unwrap();
        assert_eq!(old.fill(1), Err(1));
        assert_eq!(new.fill(2), Ok(()));
        drop(old);
        assert_eq!(named.get("a"), Some(2));
        new.keep();
        assert_eq!(named.end(), [2]);
        assert!(named.claim("a".into()).is_err());
    }
}
