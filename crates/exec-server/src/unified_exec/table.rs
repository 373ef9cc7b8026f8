//! The table of known commands, and the choice of a command to evict. Makes decisions only: starts
//! and ends nothing.

use std::collections::BTreeMap;

use super::command::{ProcessHandleId, UnifiedExecError};
use super::running::RunningCommand;

#[derive(Debug)]
pub(super) struct Table {
    max: usize,
    slots: BTreeMap<ProcessHandleId, Slot>,
    next_id: u64,
    /// Counts uses, to find the least recently used command.
    uses: u64,
}

#[derive(Debug)]
enum Slot {
    Starting,
    Taken { command: RunningCommand, last_use: u64 },
}

impl Table {
    pub(super) fn new(max: usize) -> Self {
        Self { max, slots: BTreeMap::new(), next_id: 1, uses: 0 }
    }

    /// Reserves a slot for a command about to start. Evicts no other command yet, because the start
    /// may fail.
    pub(super) fn reserve(&mut self) -> Result<ProcessHandleId, UnifiedExecError> {
        let starting = self.slots.values().filter(|slot| matches!(slot, Slot::Starting));
        if starting.count() >= self.max {
            return Err(UnifiedExecError::TooManyStarts { max: self.max });
        }
        let id = ProcessHandleId(self.next_id);
        self.next_id += 1;
        self.slots.insert(id, Slot::Starting);
        Ok(id)
    }

    /// Puts a started command into its slot. If there are now too many, evicts one: the oldest that
    /// has ended, or else the least recently used, which is returned to be terminated.
    pub(super) fn fill(
        &mut self,
        id: ProcessHandleId,
        command: RunningCommand,
    ) -> Option<RunningCommand> {
        let evicted = if self.taken().count() >= self.max { self.evict() } else { None };
        let last_use = self.count_use();
        self.slots.insert(id, Slot::Taken { command, last_use });
        evicted.filter(|command| !command.has_ended())
    }

    pub(super) fn find(&mut self, id: ProcessHandleId) -> Result<RunningCommand, UnifiedExecError> {
        let now = self.count_use();
        match self.slots.get_mut(&id) {
            Some(Slot::Taken { command, last_use }) => {
                *last_use = now;
                Ok(command.clone())
            }
            Some(Slot::Starting) | None => {
                Err(UnifiedExecError::UnknownProcess { id, known: self.known() })
            }
        }
    }

    pub(super) fn release(&mut self, id: ProcessHandleId) {
        if matches!(self.slots.get(&id), Some(Slot::Starting)) {
            self.slots.remove(&id);
        }
    }

    pub(super) fn remove(&mut self, id: ProcessHandleId) {
        self.slots.remove(&id);
    }

    /// Empties the table, except for commands being started.
    pub(super) fn take_all(&mut self) -> Vec<RunningCommand> {
        let taken = self.slots.extract_if(.., |_, slot| matches!(slot, Slot::Taken { .. }));
        let commands = taken.filter_map(|(_, slot)| match slot {
            Slot::Taken { command, .. } => Some(command),
            Slot::Starting => None,
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
        self.slots.remove(&id);
        Some(command)
    }

    /// Iterates over commands with their last use, oldest first.
    fn taken(&self) -> impl Iterator<Item = (ProcessHandleId, &RunningCommand, u64)> {
        self.slots.iter().filter_map(|(id, slot)| match slot {
            Slot::Taken { command, last_use } => Some((*id, command, *last_use)),
            Slot::Starting => None,
        })
    }

    fn count_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }
}
