//! Questions to the client: one per host and port, shared by all connections that wait for the
//! answer.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex};

use tokio::sync::watch;
use tokio::task::JoinSet;

use super::client::{Answer, GateClient, Question};

pub(super) const MAX_OPEN_QUESTIONS: usize = 32;
pub(super) const MAX_CACHED_ANSWERS: usize = 1_024;

/// An answer that may still be pending.
type Pending = watch::Receiver<Option<Answer>>;

#[derive(Debug)]
pub(super) struct Questions {
    client: Arc<dyn GateClient>,
    state: Mutex<State>,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum AskError {
    TooMany,
    /// The question ended without an answer.
    Abandoned,
}

#[derive(Debug, Default)]
struct State {
    answers: HashMap<Key, Pending>,
    /// The keys of `answers`, in the order of eviction.
    order: VecDeque<Key>,
    /// One task for each open question. A question outlives the connection that asked it, so that a
    /// retry of the program joins the same question.
    open: JoinSet<()>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Key {
    host: String,
    port: u16,
}

impl Questions {
    pub(super) fn new(client: Arc<dyn GateClient>) -> Self {
        Self { client, state: Mutex::default() }
    }

    pub(super) async fn ask(&self, question: Question) -> Result<Answer, AskError> {
        let mut pending = self.find_or_start(question)?;
        let answer = pending.wait_for(Option::is_some).await.map_err(|_| AskError::Abandoned)?;
        answer.clone().ok_or(AskError::Abandoned)
    }

    fn find_or_start(&self, question: Question) -> Result<Pending, AskError> {
        let mut state = self.state.lock().expect("no code panics while it holds the questions");
        let key = Key { host: question.host.clone(), port: question.port };
        if let Some(known) = state.answers.get(&key).filter(|known| is_open_or_decided(known)) {
            return Ok(known.clone());
        }
        while state.open.try_join_next().is_some() {}
        if state.open.len() >= MAX_OPEN_QUESTIONS {
            return Err(AskError::TooMany);
        }
        let (sender, pending) = watch::channel(None);
        let answer = self.client.ask(question);
        state.open.spawn(async move {
            sender.send_replace(Some(answer.await));
        });
        state.remember(key, pending.clone());
        Ok(pending)
    }
}

impl State {
    fn remember(&mut self, key: Key, pending: Pending) {
        if self.answers.insert(key.clone(), pending).is_some() {
            return;
        }
        self.order.push_back(key);
        // Open questions are kept. At most `MAX_OPEN_QUESTIONS` are open, so the loop ends soon.
        while self.order.len() > MAX_CACHED_ANSWERS
            && let Some(oldest) = self.order.pop_front()
        {
            match self.answers.get(&oldest) {
                Some(pending) if is_open(pending) => self.order.push_back(oldest),
                _ => drop(self.answers.remove(&oldest)),
            }
        }
    }
}

fn is_open(pending: &Pending) -> bool {
    // An error means that the task ended, perhaps with a panic.
    pending.borrow().is_none() && pending.has_changed().is_ok()
}

/// Returns false if the question ended without Allow or Deny, so it must be asked again.
fn is_open_or_decided(pending: &Pending) -> bool {
    let is_decided = matches!(*pending.borrow(), Some(Answer::Allow | Answer::Deny { .. }));
    is_decided || is_open(pending)
}
