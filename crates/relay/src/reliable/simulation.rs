//! Two ends over a link that drops, repeats, reorders and delays frames and cuts sockets, in
//! virtual time. Each seed gives a different link and different traffic. Every record must be
//! delivered once and in order.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};

use super::*;

/// Probabilities are in percent.
#[derive(Debug, Clone, Copy)]
struct Link {
    drops: u32,
    repeats: u32,
    longest_delay: Duration,
    /// Frames between two cuts, on average; 0 for no cuts.
    cut_every: u32,
}

/// A frame in flight, ordered by its arrival.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct UnderWay {
    arrives: Instant,
    number: u64,
    to: usize,
    /// The number of its socket. Frames from a replaced socket do not arrive.
    socket: u32,
}

struct End {
    stream: ReliableStream,
    to_send: u32,
    sent: u32,
    received: u32,
    /// Takes no records before this moment.
    reads_from: Instant,
}

struct Simulation {
    rng: SmallRng,
    link: Link,
    now: Instant,
    ends: [End; 2],
    arrivals: BinaryHeap<Reverse<UnderWay>>,
    frames: Vec<(Transmit, Acknowledgement)>,
    socket: u32,
}

/// Returns a record that contains its sender and its number, with a length that depends on the
/// number.
fn record(from: usize, number: u32) -> Bytes {
    let mut record = vec![u8::try_from(from).unwrap(); 5 + (number as usize * 37) % 200];
    record[1..5].copy_from_slice(&number.to_be_bytes());
    record.into()
}

impl Simulation {
    fn new(seed: u64) -> Self {
        let mut rng = SmallRng::seed_from_u64(seed);
        let now = Instant::now();
        let link = Link {
            drops: rng.random_range(0..40),
            repeats: rng.random_range(0..30),
            longest_delay: Duration::from_millis(rng.random_range(0..400)),
            cut_every: [0, 20, 100][rng.random_range(0..3)],
        };
        let ends = [true, false].map(|opens| End {
            stream: ReliableStream::new(opens),
            to_send: rng.random_range(0..100),
            sent: 0,
            received: 0,
            reads_from: now + Duration::from_millis(rng.random_range(0..2000)),
        });
        let (arrivals, frames) = (BinaryHeap::new(), Vec::new());
        Self { rng, link, now, ends, arrivals, frames, socket: 0 }
    }

    /// Runs until everything has arrived; fails if that takes too long.
    fn run(mut self) -> Result<(), String> {
        let end = self.now + Duration::from_secs(24 * 60 * 60);
        // The first acknowledgements show each end that the other acknowledges, as a handshake
        // does.
        for end in &mut self.ends {
            end.stream.handle_ack(Acknowledgement::default(), true, self.now);
        }
        while !self.is_done() {
            self.act()?;
            let next = self.next_moment().ok_or_else(|| self.state("no event is pending"))?;
            if next > end {
                return Err(self.state("the run takes longer than a day of virtual time"));
            }
            self.now = self.now.max(next);
            self.arrive()?;
            for end in &mut self.ends {
                end.stream.handle_timeout(self.now);
            }
        }
        Ok(())
    }

    fn is_done(&self) -> bool {
        let [one, other] = &self.ends;
        let all = |from: &End, to: &End| from.sent == from.to_send && to.received == from.to_send;
        all(one, other) && all(other, one)
    }

    fn state(&self, problem: &str) -> String {
        let ends = self
            .ends
            .iter()
            .map(|end| format!("sent {} of {}, received {}", end.sent, end.to_send, end.received));
        format!("{problem}: {}; {:?}", ends.collect::<Vec<_>>().join("; "), self.link)
    }

    /// Lets both ends do everything that they can do now.
    fn act(&mut self) -> Result<(), String> {
        for from in 0..2 {
            let end = &mut self.ends[from];
            while end.sent < end.to_send && end.stream.has_room() {
                end.stream.send(record(from, end.sent)).map_err(|error| error.to_string())?;
                end.sent += 1;
            }
            if end.reads_from <= self.now {
                while let Some(found) = end.stream.poll_record(self.now) {
                    if found != record(1 - from, end.received) {
                        return Err(format!("{found:?} arrived as record {}", end.received));
                    }
                    end.received += 1;
                }
            }
            while let Some(frame) = self.ends[from].stream.poll_transmit(self.now) {
                self.transmit(1 - from, &frame);
            }
        }
        Ok(())
    }

    fn transmit(&mut self, to: usize, frame: &(Transmit, Acknowledgement)) {
        let link = self.link;
        if link.cut_every > 0 && self.rng.random_range(0..link.cut_every) == 0 {
            return self.cut();
        }
        // A `Resume`, the first frame on a new socket, always arrives once.
        let is_lost = self.rng.random_range(0..100) < link.drops;
        let copies = match frame.0 {
            Transmit::Resume { .. } => 1,
            _ if is_lost => 0,
            _ if self.rng.random_range(0..100) < link.repeats => 2,
            _ => 1,
        };
        for _ in 0..copies {
            let most = u64::try_from(link.longest_delay.as_micros()).unwrap();
            let delay = Duration::from_micros(self.rng.random_range(0..=most));
            let number = self.frames.len() as u64;
            self.frames.push(frame.clone());
            let (arrives, socket) = (self.now + delay, self.socket);
            self.arrivals.push(Reverse(UnderWay { arrives, number, to, socket }));
        }
    }

    /// Loses everything in flight, and gives both ends a new socket.
    fn cut(&mut self) {
        self.socket += 1;
        for end in &mut self.ends {
            end.stream.replace_socket().expect("both ends acknowledge");
        }
    }

    fn next_moment(&self) -> Option<Instant> {
        let arrival = self.arrivals.peek().map(|Reverse(next)| next.arrives);
        let timeouts = self.ends.iter().filter_map(|end| end.stream.poll_timeout());
        let reads = self.ends.iter().map(|end| end.reads_from).filter(|moment| *moment > self.now);
        arrival.into_iter().chain(timeouts).chain(reads).min()
    }

    fn arrive(&mut self) -> Result<(), String> {
        while let Some(Reverse(next)) = self.arrivals.peek()
            && next.arrives <= self.now
        {
            let Some(Reverse(UnderWay { number, to, socket, .. })) = self.arrivals.pop() else {
                break;
            };
            if socket != self.socket {
                continue;
            }
            let (frame, ack) = self.frames[usize::try_from(number).unwrap()].clone();
            let stream = &mut self.ends[to].stream;
            stream.handle_ack(ack, frame == Transmit::Ack, self.now);
            let handled = match frame {
                Transmit::Data { seq, record } => {
                    let segment = Segment { seq, index: 0, count: 1, payload: record };
                    stream.handle_data(segment, self.now)
                }
                Transmit::Resume { next_seq } => stream.handle_resume(next_seq),
                Transmit::Ack => Ok(()),
            };
            handled.map_err(|error| self.state(&error.to_string()))?;
        }
        Ok(())
    }
}

fn run_seeds(seeds: std::ops::Range<u64>) {
    for seed in seeds {
        if let Err(problem) = Simulation::new(seed).run() {
            panic!("seed {seed}: {problem}");
        }
    }
}

#[test]
fn every_record_arrives_once_and_in_order() {
    run_seeds(0..1_000);
}

#[test]
#[ignore = "soak: a million seeds, run by `just soak-counts`"]
fn soak_every_record_arrives_once_and_in_order() {
    const SEEDS: u64 = 1_000_000;
    let threads = thread::available_parallelism().map_or(1, |count| count.get() as u64);
    thread::scope(|scope| {
        for part in 0..threads {
            let seeds = SEEDS * part / threads..SEEDS * (part + 1) / threads;
            scope.spawn(|| run_seeds(seeds));
        }
    });
}

/// The other end behaves like some deployed peers: it neither sends nor reads acknowledgements.
#[test]
fn a_peer_that_never_acknowledges_gets_everything_in_order() {
    let now = Instant::now();
    let mut ours = ReliableStream::new(true);
    let mut expected = 0;
    for round in 0..1_000 {
        for _ in 0..round % 90 {
            if ours.has_room() {
                ours.send(Bytes::from_static(b"record")).unwrap();
            }
        }
        while let Some((transmit, _)) = ours.poll_transmit(now) {
            if let Transmit::Data { seq, .. } = transmit {
                assert_eq!(seq, expected);
                expected += 1;
            }
        }
        // The peer responds without acknowledging anything.
        let segment = Segment { seq: round, index: 0, count: 1, payload: Bytes::from_static(b"a") };
        ours.handle_ack(Acknowledgement::default(), false, now);
        ours.handle_data(segment, now).unwrap();
        assert_eq!(ours.poll_record(now).unwrap(), "a");
    }
    assert!(expected > 10_000);
    assert_eq!(ours.replace_socket(), Err(SocketLost));
}
