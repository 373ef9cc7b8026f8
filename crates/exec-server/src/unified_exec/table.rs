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

    /// Takes a place for a command that is about to be started. Nobody leaves for it yet: the start may fail.
    pub(super) fn reserve(&mut self) -> Result<ProcessHandleId, UnifiedExecError> {
        let starting = self.places.values().filter(|place| matches!(place, Place::Starting));
        if starting.count() >= self.max {
            return Err(UnifiedExecError::TooManyStarts { max: self.max });
        }
        let id = ProcessHandleId(self.next_id);
        self.next_id += 1;
        self.places.insert(id, Place::Starting);
        Ok(id)
    }

    /// Puts a command that was started into its place. If there are too many now, another one leaves: the oldest that
    /// has ended, or else the least recently used one, which is returned to be terminated.
    pub(super) fn fill(
        &mut self,
        id: ProcessHandleId,
        command: RunningCommand,
    ) -> Option<RunningCommand> {
        let evicted = if self.taken().count() >= self.max { self.evict() } else { None };
        let last_use = self.count_use();
        self.places.insert(id, Place::Taken { command, last_use });
        evicted.filter(|command| !command.has_ended())
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
        self.taken().map(|(id, ..)| id).collect()
    }

    fn evict(&mut self) -> Option<RunningCommand> {
        let oldest_ended = self.taken().find(|(_, command, _)| command.has_ended());
        let least_used = || self.taken().min_by_key(|(_, _, last_use)| *last_use);
        let (id, command, _) = oldest_ended.or_else(least_used)?;
        let command = command.clone();
        self.places.remove(&id);
        Some(command)
    }

    /// Commands with their last use, oldest first.
    fn taken(&self) -> impl Iterator<Item = (ProcessHandleId, &RunningCommand, u64)> {
        self.places.iter().filter_map(|(id, place)| match place {
            Place::Taken { command, last_use } => Some((*id, command, *last_use)),
            Place::Starting => None,
        })
    }

    fn count_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}
