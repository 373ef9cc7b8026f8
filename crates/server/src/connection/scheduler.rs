//! Decides which request of a connection may run now.
//!
//! Ordinary requests take a permit, first come, first served. Waiting and control requests take
//! none; if there is only one permit, waiting requests take it as well, so that everything but
//! control is serial. Calls that change one process keep their order: before a call overtakes the
//! queue, the queued changes of its process run. The same holds for the close of an upload and its
//! queued blocks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use exec_server_protocol::{Call, Scheduling};
use tokio::sync::Notify;

use crate::dispatch::Reply;

/// Maximum total size of the requests that queue for a permit. Further requests are refused.
pub(super) const MAX_QUEUED_BYTES: usize = 64 << 20;
/// Maximum total size of the requests that run at once. It includes the content of files to write,
/// and storage may be slow.
const MAX_RUNNING_BYTES: usize = 128 << 20;
/// Memory of a request in addition to its text.
pub(super) const REQUEST_OVERHEAD: usize = 256;

#[derive(Debug)]
pub(super) struct RequestScheduler {
    permits: Arc<RequestPermits>,
    queue: VecDeque<Queued>,
    queued_bytes: usize,
}

#[derive(Debug)]
struct Queued {
    call: Call,
    reply: Reply,
    bytes: usize,
}

#[derive(Debug)]
pub(super) struct RequestPermits {
    limit: usize,
    taken: AtomicUsize,
    /// Size of the requests that hold permits.
    bytes: AtomicUsize,
    freed: Notify,
}

/// One of a connection's permits, returned when dropped.
#[derive(Debug)]
pub(crate) struct RequestPermit {
    permits: Arc<RequestPermits>,
    bytes: usize,
}

impl RequestPermit {
    /// Returns whether this is the connection's only permit, which a waiting request then keeps.
    pub(crate) fn is_only_one(&self) -> bool {
        self.permits.is_only_one()
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        self.permits.bytes.fetch_sub(self.bytes, Ordering::AcqRel);
        self.permits.taken.fetch_sub(1, Ordering::AcqRel);
        self.permits.freed.notify_one();
    }
}

/// The queue is full.
#[derive(Debug)]
pub(super) struct RequestRefused(pub(super) Reply);

impl RequestScheduler {
    pub(super) fn new(limit: usize) -> Self {
        let (taken, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let permits = RequestPermits { limit, taken, bytes, freed: Notify::new() };
        Self { permits: Arc::new(permits), queue: VecDeque::new(), queued_bytes: 0 }
    }

    /// Queues a request that needs a permit. Returns a request that needs none, after the queued
    /// changes that it must follow.
    pub(super) fn submit(
        &mut self,
        call: Call,
        reply: Reply,
        bytes: usize,
    ) -> Result<Vec<(Call, Reply)>, RequestRefused> {
        match call.scheduling() {
            Scheduling::Waiting if !self.permits.is_only_one() => Ok(self.overtaking(call, reply)),
            Scheduling::Control => Ok(self.overtaking(call, reply)),
            Scheduling::Ordinary | Scheduling::Waiting => {
                if self.queued_bytes + bytes > MAX_QUEUED_BYTES && !self.queue.is_empty() {
                    return Err(RequestRefused(reply));
                }
                self.queue.push_back(Queued { call, reply, bytes });
                self.queued_bytes += bytes;
                Ok(Vec::new())
            }
        }
    }

    fn overtaking(&mut self, call: Call, reply: Reply) -> Vec<(Call, Reply)> {
        let mut runnable = self.overtaken_changes(&call);
        runnable.push((call, reply));
        runnable
    }

    /// Returns the next queued request with a permit, if one is free.
    pub(super) fn next(&mut self) -> Option<(Call, Reply)> {
        let RequestPermits { limit, taken, bytes, .. } = &*self.permits;
        let running = bytes.load(Ordering::Acquire);
        let text = self.queue.front()?.bytes;
        let is_too_much = running > 0 && running + text > MAX_RUNNING_BYTES;
        if taken.load(Ordering::Acquire) >= *limit || is_too_much {
            return None;
        }
        taken.fetch_add(1, Ordering::AcqRel);
        bytes.fetch_add(text, Ordering::AcqRel);
        let Queued { call, reply, bytes } = self.queue.pop_front()?;
        self.queued_bytes -= bytes;
        let permit = RequestPermit { permits: Arc::clone(&self.permits), bytes };
        Some((call, reply.with_permit(permit)))
    }

    pub(super) fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    pub(super) fn permits(&self) -> Arc<RequestPermits> {
        Arc::clone(&self.permits)
    }

    /// Takes the queued changes that `call` must follow. They run without waiting, so they need no
    /// permit.
    fn overtaken_changes(&mut self, call: &Call) -> Vec<(Call, Reply)> {
        let mut runnable = Vec::new();
        if !self.queue.iter().any(|queued| call.must_follow(&queued.call)) {
            return runnable;
        }
        for queued in std::mem::take(&mut self.queue) {
            if call.must_follow(&queued.call) {
                self.queued_bytes -= queued.bytes;
                runnable.push((queued.call, queued.reply));
            } else {
                self.queue.push_back(queued);
            }
        }
        runnable
    }
}

impl RequestPermits {
    fn is_only_one(&self) -> bool {
        self.limit == 1
    }

    pub(super) async fn freed(&self) {
        self.freed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::outbox::Outbox;
    use crate::dispatch::RequestTexts;
    use crate::telemetry::RequestRecord;
    use exec_server_protocol::RequestId;
    use exec_server_transport::MemoryBudget;

    fn call(method: &str, process: &str) -> Call {
        let params = format!(
            r#"{{"processId":"{process}","argv":["x"],"cwd":"/","chunk":"","signal":"kill","waitMs":9}}"#
        );
        let raw = serde_json::value::RawValue::from_string(params).unwrap();
        Call::decode(method, Some(&*raw)).unwrap()
    }

    fn reply(id: i64) -> Reply {
        counted_reply(id, &Arc::default(), 0)
    }

    fn counted_reply(id: i64, texts: &Arc<RequestTexts>, bytes: usize) -> Reply {
        let outbox = Arc::new(Outbox::default());
        Reply::over_socket(
            &outbox,
            RequestId::Integer(id),
            texts.count(bytes),
            RequestRecord::unobserved(),
        )
    }

    fn names(calls: &[(Call, Reply)]) -> Vec<&'static str> {
        calls.iter().map(|(call, _)| call.method().name()).collect()
    }

    #[test]
    fn ordinary_requests_take_permits_in_order() {
        let mut scheduler = RequestScheduler::new(2);
        for _ in 0..3 {
            assert!(scheduler.submit(call("process/start", "p"), reply(1), 10).unwrap().is_empty());
        }
        let first = scheduler.next().unwrap();
        let _second = scheduler.next().unwrap();
        assert!(scheduler.next().is_none(), "a third permit was given");
        drop(first);
        assert!(scheduler.next().is_some());
        assert!(!scheduler.has_queued());
    }

    #[test]
    fn small_requests_count_together_whether_queued_or_running() {
        let budget = MemoryBudget::new(64 << 20);
        let texts = Arc::new(RequestTexts::new(budget.share().hold()));
        let mut scheduler = RequestScheduler::new(2);
        // Ordinary requests wait for a permit; a read that waits for output needs none.
        for method in ["process/list", "process/read"] {
            let mut running = Vec::new();
            for id in 0..1_000 {
                let reply = counted_reply(id, &texts, 10_000);
                running.extend(scheduler.submit(call(method, "p"), reply, 10_000).unwrap());
            }
            assert!(budget.used() >= 10_000_000, "{method}: {} bytes", budget.used());
            drop(running);
            scheduler = RequestScheduler::new(2);
            assert_eq!(budget.used(), 0, "{method}");
        }
    }

    #[test]
    fn a_large_request_waits_while_too_much_text_runs() {
        let mut scheduler = RequestScheduler::new(8);
        let large = MAX_QUEUED_BYTES;
        let submit = |scheduler: &mut RequestScheduler, bytes| {
            assert!(scheduler.submit(call("process/list", ""), reply(1), bytes).is_ok());
            scheduler.next()
        };
        let _first = submit(&mut scheduler, large).unwrap();
        let second = submit(&mut scheduler, large).unwrap();
        assert!(submit(&mut scheduler, large).is_none(), "more text runs than is allowed");
        drop(second);
        assert!(scheduler.next().is_some());
    }

    #[test]
    fn waiting_and_control_requests_need_no_permit() {
        let mut scheduler = RequestScheduler::new(2);
        scheduler.submit(call("process/start", "other"), reply(1), 10).unwrap();
        scheduler.submit(call("process/start", "another"), reply(1), 10).unwrap();
        let _busy = [scheduler.next().unwrap(), scheduler.next().unwrap()];
        for method in ["process/read", "process/wait", "process/terminate", "environment/status"] {
            let runnable = scheduler.submit(call(method, "p"), reply(2), 10).unwrap();
            assert_eq!(names(&runnable), [method]);
        }
    }

    #[test]
    fn with_one_permit_everything_but_control_is_serial() {
        let mut scheduler = RequestScheduler::new(1);
        scheduler.submit(call("process/wait", "p"), reply(1), 10).unwrap();
        let mut waiting = scheduler.next().unwrap();
        waiting.1.release_permit();
        for method in ["process/read", "process/wait", "process/list"] {
            assert!(scheduler.submit(call(method, "q"), reply(2), 10).unwrap().is_empty());
        }
        assert!(scheduler.next().is_none(), "a request ran beside a waiting one");
        for method in ["process/terminate", "process/signal", "environment/status"] {
            let runnable = scheduler.submit(call(method, "q"), reply(3), 10).unwrap();
            assert_eq!(names(&runnable), [method]);
        }
        drop(waiting);
        assert_eq!(scheduler.next().unwrap().0.method().name(), "process/read");
    }

    #[test]
    fn a_control_call_runs_after_the_queued_changes_of_its_process() {
        let mut scheduler = RequestScheduler::new(2);
        for (method, process) in
            [("process/start", "p"), ("process/write", "q"), ("process/write", "p")]
        {
            scheduler.submit(call(method, process), reply(1), 10).unwrap();
        }
        let runnable = scheduler.submit(call("process/signal", "p"), reply(2), 10).unwrap();
        assert_eq!(names(&runnable), ["process/start", "process/write", "process/signal"]);
        assert_eq!(scheduler.next().unwrap().0.changes_process(), Some("q"));
        assert_eq!(scheduler.queued_bytes, 0);

        scheduler.submit(call("process/start", "r"), reply(3), 10).unwrap();
        let runnable = scheduler.submit(call("process/wait", "r"), reply(4), 10).unwrap();
        assert_eq!(names(&runnable), ["process/start", "process/wait"]);
    }

    #[test]
    fn a_full_queue_refuses_requests() {
        let mut scheduler = RequestScheduler::new(1);
        scheduler.submit(call("process/list", ""), reply(1), MAX_QUEUED_BYTES).unwrap();
        assert!(scheduler.submit(call("process/list", ""), reply(2), 1).is_err());
        scheduler.submit(call("process/terminate", "p"), reply(3), 1).unwrap();
    }
}
