//! Which commands are known, and which one makes place for the next. Decisions only: nothing is started or ended here.

use std::collections::BTreeMap;

use super::command::{ProcessHandleId, UnifiedExecError};
use super::running::RunningCommand;

#[derive(Debug)]
pub(super) struct Table {
    max: usize,
    places: BTreeMap<ProcessHandleId, Place>,
    next_id: u64,
    /// Counts uses, so that the least recent one can be told.
    uses: u64,
}

#[derive(Debug)]
enum Place {
    Starting,
    Taken { command: RunningCommand, last_use: u64 },
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self { max, places: BTreeMap::new(), next_id: 1, uses: 0 }
    }

    /// Takes a place for a command that is about to be started, and with it, if none was free, the place of another: the
    /// oldest one that has ended, or else the least recently used one, which is returned to be terminated.
    pub(super) fn reserve(
        &mut self,
    ) -> Result<(ProcessHandleId, Option<RunningCommand>), UnifiedExecError> {
        let mut evicted = None;
        if self.places.len() >= self.max {
            let id = self.evictable().ok_or(UnifiedExecError::TooManyStarts { max: self.max })?;
            if let Some(Place::Taken { command, .. }) = self.places.remove(&id) {
                evicted = (!command.has_ended()).then_some(command);
            }
        }
        let id = ProcessHandleId(self.next_id);
        self.next_id += 1;
        self.places.insert(id, Place::Starting);
        Ok((id, evicted))
    }

    pub(super) fn fill(&mut self, id: ProcessHandleId, command: RunningCommand) {
        let last_use = self.count_use();
        self.places.insert(id, Place::Taken { command, last_use });
    }

    pub(super) fn find(&mut self, id: ProcessHandleId) -> Result<RunningCommand, UnifiedExecError> {
        let now = self.count_use();
        match self.places.get_mut(&id) {
            Some(Place::Taken { command, last_use }) => {
                *last_use = now;
                Ok(command.clone())
            }
            Some(Place::Starting) | None => {
                Err(UnifiedExecError::UnknownProcess { id, known: self.known() })
            }
        }
    }

    /// Gives back a place that was not filled.
    pub(super) fn release(&mut self, id: ProcessHandleId) {
        if matches!(self.places.get(&id), Some(Place::Starting)) {
            self.places.remove(&id);
        }
    }

    pub(super) fn remove(&mut self, id: ProcessHandleId) {
        self.places.remove(&id);
    }

    /// Empties the table, but for what is being started.
    pub(super) fn take_all(&mut self) -> Vec<RunningCommand> {
        let taken = self.places.extract_if(.., |_, place| matches!(place, Place::Taken { .. }));
        let commands = taken.filter_map(|(_, place)| match place {
            Place::Taken { command, .. } => Some(command),
            Place::Starting => None,
        });
        commands.collect()
    }

    pub(super) fn known(&self) -> Vec<ProcessHandleId> {
        let taken = self.places.iter().filter(|(_, place)| matches!(place, Place::Taken { .. }));
        taken.map(|(id, _)| *id).collect()
    }

    fn evictable(&self) -> Option<ProcessHandleId> {
        let taken = || {
            self.places.iter().filter_map(|(id, place)| match place {
                Place::Taken { command, last_use } => Some((*id, command, *last_use)),
                Place::Starting => None,
            })
        };
        let oldest_ended = taken().find(|(_, command, _)| command.has_ended());
        let least_used = || taken().min_by_key(|(_, _, last_use)| *last_use);
        oldest_ended.or_else(least_used).map(|(id, ..)| id)
    }

    fn count_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}
