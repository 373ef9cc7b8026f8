//! Which request of a connection may run now.
//!
//! Ordinary requests take a place, first come, first served. Waiting and control requests take none;
//! where there is only one place, waiting requests take it, too, so that all but control is serial.
//! Calls that change one process keep their order: a call that overtakes the queue takes the queued
//! changes of its process along, and the end of an upload its blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_protocol::{Call, Scheduling};
use tokio::sync::Notify;

use super::responder::Responder;

/// Text of requests that may queue for a place. A client that sends more is refused.
const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Text of requests that run at once; a file to be written is in the text, and storage may be slow.
const MAX_RUNNING_BYTES: usize = 128 << 20;
/// What a request costs besides its text.
pub(super) const REQUEST_OVERHEAD: usize = 256;

#[derive(Debug)]
pub(super) struct Lanes {
    places: Arc<Places>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
}

#[derive(Debug)]
struct Queued {
    call: Call,
    responder: Responder,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct Places {
    limit: usize,
    taken: AtomicUsize,
    /// Text of the requests that have them.
    bytes: AtomicUsize,
    freed: Notify,
}

/// One of a connection's places, given back when dropped.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    bytes: usize,
}

impl Place {
    /// Whether it is kept by a request that only waits: there is no other place.
    pub(super) fn is_only_one(&self) -> bool {
        self.places.is_only_one()
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.places.taken.fetch_sub(1, Ordering::AcqRel);
        self.places.freed.notify_one();
    }
}

/// The queue is full.
#[derive(Debug)]
pub(super) struct Refused(pub(super) Responder);

impl Lanes {
    pub(super) fn new(limit: usize) -> Self {
        let (taken, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let places = Places { limit, taken, bytes, freed: Notify::new() };
        Self { places: Arc::new(places), queue: VecDeque::new(), queued_bytes: 0 }
    }

    /// Takes in a request of so many bytes. What may run at once is returned, in the order to run it.
    pub(super) fn admit(
        &mut self,
        call: Call,
        responder: Responder,
        bytes: usize,
    ) -> Result<Vec<(Call, Responder)>, Refused> {
        match call.scheduling() {
            Scheduling::Waiting if !self.places.is_only_one() => {
                Ok(self.overtaking(call, responder))
            }
            Scheduling::Control => Ok(self.overtaking(call, responder)),
            Scheduling::Ordinary | Scheduling::Waiting => {
                if self.queued_bytes + bytes > MAX_QUEUED_BYTES && !self.queue.is_empty() {
                    return Err(Refused(responder));
                }
                self.queue.push_back(Queued { call, responder, bytes });
                self.queued_bytes += bytes;
                Ok(Vec::new())
            }
        }
    }

    fn overtaking(&mut self, call: Call, responder: Responder) -> Vec<(Call, Responder)> {
        let mut runnable = self.taken_along(&call);
        runnable.push((call, responder));
        runnable
    }

    /// The next ordinary request, if a place is free.
    pub(super) fn next(&mut self) -> Option<(Call, Responder)> {
        let Places { limit, taken, bytes, .. } = &*self.places;
        let running = bytes.load(Ordering::Acquire);
        let text = self.queue.front()?.bytes;
        let is_too_much = running > 0 && running + text > MAX_RUNNING_BYTES;
        if taken.load(Ordering::Acquire) >= *limit || is_too_much {
            return None;
        }
        taken.fetch_add(1, Ordering::AcqRel);
        bytes.fetch_add(text, Ordering::AcqRel);
        let Queued { call, responder, bytes } = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        let place = Place { places: Arc::clone(&self.places), bytes };
        Some((call, responder.with_place(place)))
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn places(&self) -> Arc<Places> {
        Arc::clone(&self.places)
    }

    /// Such calls never block here, so they need no place when they jump the queue.
    fn taken_along(&mut self, call: &Call) -> Vec<(Call, Responder)> {
        let mut runnable = Vec::new();
        if !self.queue.iter().any(|queued| call.takes_along(&queued.call)) {
            return runnable;
        }
        for queued in std::mem::take(&mut self.queue) {
            if call.takes_along(&queued.call) {
                self.queued_bytes -= queued.bytes;
                runnable.push((queued.call, queued.responder));
            } else {
                self.queue.push_back(queued);
            }
        }
        runnable
    }
}

impl Places {
    fn is_only_one(&self) -> bool {
        self.limit == 1
    }

    /// Waits until a place has been given back.
    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::outbox::Outbox;
    use crate::connection::responder::RequestTexts;
    use exec_server_protocol::RequestId;
    use exec_server_transport::MemoryBudget;

    fn call(method: &str, process: &str) -> Call {
        let params = format!(
            r#"{{"processId":"{process}","argv":["x"],"cwd":"/","chunk":"","signal":"kill","waitMs":9}}"#
        );
        let raw = serde_json::value::RawValue::from_string(params).unwrap();
        Call::decode(method, Some(&*raw)).unwrap()
    }

    fn responder(id: i64) -> Responder {
        counted_responder(id, &Arc::default(), 0)
    }

    fn counted_responder(id: i64, texts: &Arc<RequestTexts>, bytes: usize) -> Responder {
        let outbox = Arc::new(Outbox::default());
        Responder::new(&outbox, RequestId::Integer(id), texts.count(bytes))
    }

    fn names(calls: &[(Call, Responder)]) -> Vec<&'static str> {
        calls.iter().map(|(call, _)| call.method().name()).collect()
    }

    #[test]
    fn ordinary_requests_take_places_in_order() {
        let mut lanes = Lanes::new(2);
        for _ in 0..3 {
            assert!(lanes.admit(call("process/start", "p"), responder(1), 10).unwrap().is_empty());
        }
        let first = lanes.next().unwrap();
        let _second = lanes.next().unwrap();
        assert!(lanes.next().is_none(), "a third place was given");
        drop(first);
        assert!(lanes.next().is_some());
        assert!(!lanes.has_queued());
    }

    #[test]
    fn small_requests_count_together_wherever_they_wait() {
        let budget = MemoryBudget::new(64 << 20);
        let texts = Arc::new(RequestTexts::new(budget.share().hold()));
        let mut lanes = Lanes::new(2);
        // Ordinary requests wait for a place; a read that waits for output has none.
        for method in ["process/list", "process/read"] {
            let mut running = Vec::new();
            for id in 0..1_000 {
                let responder = counted_responder(id, &texts, 10_000);
                running.extend(lanes.admit(call(method, "p"), responder, 10_000).unwrap());
            }
            assert!(budget.used() >= 10_000_000, "{method}: {} bytes", budget.used());
            drop(running);
            lanes = Lanes::new(2);
            assert_eq!(budget.used(), 0, "{method}");
        }
    }

    #[test]
    fn large_requests_run_one_after_the_other() {
        let mut lanes = Lanes::new(8);
        let large = MAX_QUEUED_BYTES;
        let admit = |lanes: &mut Lanes, bytes| {
            assert!(lanes.admit(call("process/list", ""), responder(1), bytes).is_ok());
            lanes.next()
        };
        let _first = admit(&mut lanes, large).unwrap();
        let second = admit(&mut lanes, large).unwrap();
        assert!(admit(&mut lanes, large).is_none(), "more text runs than is allowed");
        drop(second);
        assert!(lanes.next().is_some());
    }

    #[test]
    fn waiting_and_control_requests_need_no_place() {
        let mut lanes = Lanes::new(2);
        lanes.admit(call("process/start", "other"), responder(1), 10).unwrap();
        lanes.admit(call("process/start", "another"), responder(1), 10).unwrap();
        let _busy = [lanes.next().unwrap(), lanes.next().unwrap()];
        for method in ["process/read", "process/wait", "process/terminate", "environment/status"] {
            let runnable = lanes.admit(call(method, "p"), responder(2), 10).unwrap();
            assert_eq!(names(&runnable), [method]);
        }
    }

    #[test]
    fn with_one_place_everything_but_control_is_serial() {
        let mut lanes = Lanes::new(1);
        lanes.admit(call("process/wait", "p"), responder(1), 10).unwrap();
        let mut waiting = lanes.next().unwrap();
        waiting.1.release_place();
        for method in ["process/read", "process/wait", "process/list"] {
            assert!(lanes.admit(call(method, "q"), responder(2), 10).unwrap().is_empty());
        }
        assert!(lanes.next().is_none(), "a request ran beside one that waits");
        for method in ["process/terminate", "process/signal", "environment/status"] {
            let runnable = lanes.admit(call(method, "q"), responder(3), 10).unwrap();
            assert_eq!(names(&runnable), [method]);
        }
        drop(waiting);
        assert_eq!(lanes.next().unwrap().0.method().name(), "process/read");
    }

    #[test]
    fn a_control_call_takes_the_queued_changes_of_its_process_along() {
        let mut lanes = Lanes::new(2);
        for (method, process) in
            [("process/start", "p"), ("process/write", "q"), ("process/write", "p")]
        {
            lanes.admit(call(method, process), responder(1), 10).unwrap();
        }
        let runnable = lanes.admit(call("process/signal", "p"), responder(2), 10).unwrap();
        assert_eq!(names(&runnable), ["process/start", "process/write", "process/signal"]);
        assert_eq!(lanes.next().unwrap().0.changes_process(), Some("q"));
        assert_eq!(lanes.queued_bytes, 0);

        lanes.admit(call("process/start", "r"), responder(3), 10).unwrap();
        let runnable = lanes.admit(call("process/wait", "r"), responder(4), 10).unwrap();
        assert_eq!(names(&runnable), ["process/start", "process/wait"]);
    }

    #[test]
    fn a_queue_that_is_full_refuses() {
        let mut lanes = Lanes::new(1);
        lanes.admit(call("process/list", ""), responder(1), MAX_QUEUED_BYTES).unwrap();
        assert!(lanes.admit(call("process/list", ""), responder(2), 1).is_err());
        lanes.admit(call("process/terminate", "p"), responder(3), 1).unwrap();
    }
}
