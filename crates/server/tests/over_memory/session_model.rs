//! Random operations on a session, checked against a small model of it.
//!
//! A process has one log of events. Every reader finds the same event under the same number,
//! whichever call it uses, and gets every event once and without a gap on one connection.

use std::collections::BTreeMap;

use exec_server_server::ServerConfig;
use exec_server_test_support::{RpcClient, TestServer, decoded};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

const SEEDS: u64 = 8;
const OPERATIONS: usize = 40;
const PROCESSES: usize = 8;

#[derive(Default)]
struct Process {
    /// By sequence number: the event that every reader must find there.
    log: BTreeMap<u64, Value>,
    /// The newest event that the owner was sent on any of its connections.
    seen: u64,
    /// The newest event that the owner has confirmed with a read that was answered.
    confirmed: u64,
    /// `confirmed` when the owner last attached: events on its current connection are newer.
    confirmed_before: u64,
    /// The next event expected on the current connection of the owner, once one has arrived there.
    next: Option<u64>,
    expected: Vec<u8>,
    /// Ends when its stdin is closed; other processes end on their own.
    is_cat: bool,
}

impl Process {
    fn is_closed(&self) -> bool {
        self.log.get(&self.seen).is_some_and(|event| event == "process/closed")
    }

    fn note(&mut self, seq: u64, event: &Value) {
        let known = self.log.entry(seq).or_insert_with(|| event.clone());
        assert_eq!(known, event, "event {seq} has changed");
    }

    /// Checks a notification to the owner.
    fn note_sent(&mut self, notification: &Value) {
        let (seq, event) = event(notification);
        match self.next {
            Some(next) => assert_eq!(seq, next, "not the next event: {notification}"),
            None => assert!(self.confirmed_before < seq && seq <= self.seen + 1, "{notification}"),
        }
        self.next = Some(seq + 1);
        self.seen = self.seen.max(seq);
        self.note(seq, &event);
    }

    fn check_whole_log(&self) {
        assert!(self.log.keys().copied().eq(1..=self.seen), "a gap in {:?}", self.log.keys());
        let output = self.log.values().filter(|event| event.is_array());
        let output: Vec<u8> = output.flat_map(|event| decoded(&event[1])).collect();
        assert_eq!(output, self.expected);
    }
}

fn event(notification: &Value) -> (u64, Value) {
    let params = &notification["params"];
    let event = match notification["method"].as_str().unwrap() {
        "process/output" => json!([params["stream"], params["chunk"]]),
        method => json!(method),
    };
    (params["seq"].as_u64().unwrap(), event)
}

struct Observer {
    client: RpcClient,
    process: String,
    next: u64,
}

struct Model {
    server: TestServer,
    random: SmallRng,
    owner: RpcClient,
    session: String,
    processes: BTreeMap<String, Process>,
    observers: Vec<Observer>,
}

impl Model {
    async fn new(seed: u64) -> Self {
        let server = TestServer::new(ServerConfig::default());
        let (owner, session) = RpcClient::open(&server, json!({ "acks": true })).await;
        let random = SmallRng::seed_from_u64(seed);
        let (processes, observers) = (BTreeMap::new(), Vec::new());
        Self { server, random, owner, session, processes, observers }
    }

    async fn step(&mut self) {
        match self.random.random_range(0..16) {
            0..4 => self.start().await,
            4 => self.start_in_vain().await,
            5 | 6 => self.write().await,
            7 | 8 => self.read().await,
            9 | 10 => self.ack().await,
            11 | 12 => self.resume().await,
            13 => self.observe().await,
            14 => self.follow_one().await,
            _ if self.random.random_range(0..4) == 0 => self.close().await,
            _ => {}
        }
    }

    fn any(&mut self, which: impl Fn(&Process) -> bool) -> Option<String> {
        let chosen = self.processes.iter().filter(|(_, process)| which(process));
        let ids: Vec<_> = chosen.map(|(id, _)| id.clone()).collect();
        (!ids.is_empty()).then(|| ids[self.random.random_range(0..ids.len())].clone())
    }

    async fn start(&mut self) {
        let id = format!("p{}", self.random.random_range(0..PROCESSES));
        let is_cat = self.random.random_range(0..2) == 0;
        let lines: u32 = if is_cat { 0 } else { self.random.random_range(0..300) };
        let script = if is_cat { "exec cat".to_owned() } else { format!("seq 1 {lines}") };
        if self.processes.contains_key(&id) {
            let params = json!({ "processId": id, "argv": ["true"], "cwd": "file:///", "env": {} });
            let error = self.owner.call("process/start", params).await.unwrap_err();
            assert_eq!(error["code"], -32600, "{id} is in use");
            return;
        }
        self.owner.start(&id, &script, json!({ "pipeStdin": is_cat })).await;
        let expected = (1..=lines).flat_map(|line| format!("{line}\n").into_bytes()).collect();
        self.processes.insert(id, Process { expected, is_cat, ..Process::default() });
    }

    /// Starts a missing program, and checks that earlier attempts have left its id free.
    async fn start_in_vain(&mut self) {
        let params = json!({
            "processId": "vain", "argv": ["/no/such/program"], "cwd": "file:///", "env": {},
        });
        let error = self.owner.call("process/start", params).await.unwrap_err();
        assert!(!error["message"].as_str().unwrap().contains("already exists"), "{error}");
    }

    async fn write(&mut self) {
        let Some(id) = self.any(|process| process.is_cat) else { return };
        let write = json!({ "processId": id, "chunk": "aGkK" });
        let written = self.owner.call("process/write", write).await.unwrap();
        assert_eq!(written["status"], "accepted");
        self.processes.get_mut(&id).unwrap().expected.extend(b"hi\n");
    }

    async fn read(&mut self) {
        let Some(id) = self.any(|_| true) else { return };
        let process = self.processes.get_mut(&id).unwrap();
        let after = self.random.random_range(0..=process.seen);
        let read = json!({ "processId": id, "afterSeq": after });
        let read = self.owner.call("process/read", read).await.unwrap();
        assert!(read.get("droppedBytes").is_none(), "{read}");
        process.confirmed = process.confirmed.max(after);
        let next = read["nextSeq"].as_u64().unwrap();
        let mut last = after;
        for chunk in read["chunks"].as_array().unwrap() {
            let seq = chunk["seq"].as_u64().unwrap();
            assert!(last < seq && seq < next, "{read}");
            process.note(seq, &json!([chunk["stream"], chunk["chunk"]]));
            last = seq;
        }
    }

    async fn ack(&mut self) {
        let Some(id) = self.any(|_| true) else { return };
        let seq = self.processes[&id].seen;
        self.owner.notify("process/ack", json!({ "processId": id, "seq": seq })).await;
    }

    async fn resume(&mut self) {
        let resume = json!({ "resumeSessionId": self.session, "acks": true });
        let mut resumed = RpcClient::connect(&self.server);
        std::mem::swap(&mut self.owner, &mut resumed);
        resumed.cut().await;
        self.owner.call("initialize", resume).await.expect("the session is detached");
        self.owner.notify("initialized", json!({})).await;
        for process in self.processes.values_mut() {
            (process.next, process.confirmed_before) = (None, process.confirmed);
        }
    }

    async fn observe(&mut self) {
        let Some(id) = self.any(|_| true) else { return };
        let after = self.random.random_range(0..=self.processes[&id].seen);
        let (mut client, _) = RpcClient::open(&self.server, json!({})).await;
        let params = json!({ "sessionId": self.session, "processId": id, "afterSeq": after });
        client.call("process/observe", params).await.unwrap();
        self.observers.push(Observer { client, process: id, next: after + 1 });
    }

    async fn follow_one(&mut self) {
        if let Some(id) = self.any(|process| !process.is_cat) {
            self.follow(&id).await;
        }
    }

    /// Reads notifications until the owner has seen the end of the process.
    async fn follow(&mut self, id: &str) {
        while !self.processes[id].is_closed() {
            let notification = self.owner.notification().await;
            let of = notification["params"]["processId"].as_str().unwrap();
            self.processes.get_mut(of).expect("it was started").note_sent(&notification);
        }
    }

    /// Ends all processes. Checks that every log is complete, and that observers get the same
    /// events.
    async fn finish(&mut self) {
        let ids: Vec<String> = self.processes.keys().cloned().collect();
        for id in &ids {
            if self.processes[id].is_cat {
                let close = json!({ "processId": id });
                self.owner.call("process/closeStdin", close).await.unwrap();
            }
            self.follow(id).await;
            self.processes[id].check_whole_log();
        }
        self.finish_observers().await;
        self.all_ids_become_free(&ids).await;
    }

    async fn finish_observers(&mut self) {
        for mut observer in self.observers.drain(..) {
            let process = self.processes.get_mut(&observer.process).unwrap();
            while process
                .log
                .get(&(observer.next - 1))
                .is_none_or(|event| event != "process/closed")
            {
                let notification = observer.client.notification().await;
                let (seq, event) = event(&notification);
                assert_eq!(seq, observer.next, "{notification}");
                process.note(seq, &event);
                observer.next += 1;
            }
        }
    }

    /// Ids are freed 30 s after the end, if the client has confirmed it.
    async fn all_ids_become_free(&mut self, ids: &[String]) {
        for id in ids {
            let ack = json!({ "processId": id, "seq": self.processes[id].seen });
            self.owner.notify("process/ack", ack).await;
        }
        tokio::time::pause();
        tokio::time::advance(std::time::Duration::from_secs(31)).await;
        tokio::time::resume();
        for id in ids {
            let params = json!({ "processId": id, "argv": ["true"], "cwd": "file:///", "env": {} });
            while self.owner.call("process/start", params.clone()).await.is_err() {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Ends the session; the ids are free in the next one.
    async fn close(&mut self) {
        self.owner.call("session/close", json!({})).await.unwrap();
        self.finish_observers().await;
        self.processes.clear();
        let (owner, session) = RpcClient::open(&self.server, json!({ "acks": true })).await;
        (self.owner, self.session) = (owner, session);
    }
}

#[tokio::test]
async fn no_sequence_of_operations_loses_or_repeats_an_event() {
    for seed in 0..SEEDS {
        // The last seed printed is the one that failed.
        println!("seed {seed}");
        let mut model = Model::new(seed).await;
        for _ in 0..OPERATIONS {
            model.step().await;
        }
        model.finish().await;
    }
}
