//! A hostile rendezvous. It may delay or end streams; it must not be able to change, repeat,
//! reorder or invent a byte of them, and nothing is served that the registry did not allow.

use std::sync::Arc;

use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, ResetReason, StreamId};
use exec_server_relay::harness::HarnessError;
use exec_server_transport::{CloseCode, Connection, Received};
use rand::rngs::SmallRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::sync::watch;
use tokio::task::JoinSet;

use crate::fixture::{Fixture, receive, send};
use crate::rendezvous::To;

/// A hostile rendezvous: it attacks about a third of all frames, each in a random way.
struct Attacker {
    rng: SmallRng,
    seen: Vec<(To, Bytes)>,
    held: Vec<(To, Bytes)>,
    /// Set by the first data. Frames before that are not attacked, so that a stream is opened.
    is_open: bool,
    progress: watch::Sender<Progress>,
}

#[derive(Default)]
struct Progress {
    frames: u32,
    attacks: u32,
    /// A record may be lost for good, or one end may have given up. All other losses are repaired.
    may_stall: bool,
}

impl Attacker {
    fn new(seed: u64) -> Self {
        let rng = SmallRng::seed_from_u64(seed);
        let (seen, held) = (Vec::new(), Vec::new());
        Self { rng, seen, held, is_open: false, progress: watch::Sender::default() }
    }

    fn meddle(&mut self, to: To, frame: Bytes) -> Vec<(To, Bytes)> {
        self.progress.send_modify(|progress| progress.frames += 1);
        self.seen.push((to, frame.clone()));
        if !self.is_open {
            self.is_open = matches!(Frame::decode(frame.clone()).unwrap().body, Body::Data { .. });
            return vec![(to, frame)];
        }
        if self.rng.random_range(0..100) >= 30 {
            return vec![(to, frame)];
        }
        let attack = self.rng.random_range(0..100);
        self.progress.send_modify(|progress| {
            progress.attacks += 1;
            progress.may_stall |= attack >= 75;
        });
        match attack {
            0..20 => Vec::new(),
            20..40 => vec![(to, frame.clone()), (to, frame)],
            40..60 => {
                self.held.push((to, frame));
                if self.held.len() < 3 {
                    return Vec::new();
                }
                self.held.drain(..).rev().collect()
            }
            60..75 => {
                let old = self.rng.random_range(0..self.seen.len());
                vec![(to, frame), self.seen[old].clone()]
            }
            75..90 => vec![(to, self.forged_ack(&frame)), (to, frame)],
            90..94 => {
                let mut bytes = frame.to_vec();
                let at = self.rng.random_range(0..bytes.len());
                bytes[at] ^= 1 << self.rng.random_range(0..8);
                vec![(to, bytes.into())]
            }
            94..97 => {
                let back = if to == To::Environment { To::Harness } else { To::Environment };
                vec![(back, frame)]
            }
            97..99 => vec![(to, self.forged_data(&frame)), (to, frame)],
            _ => vec![(
                to,
                forged(&frame, Body::Reset { reason: ResetReason::from_static("forged") }),
            )],
        }
    }

    fn forged_ack(&mut self, frame: &Bytes) -> Bytes {
        let mut frame = Frame::decode(frame.clone()).unwrap();
        frame.ack = self.rng.random_range(0..200);
        frame.ack_bits = self.rng.random();
        frame.body = Body::Ack;
        frame.encode()
    }

    fn forged_data(&mut self, frame: &Bytes) -> Bytes {
        let payload: Vec<u8> = (0..100).map(|_| self.rng.random()).collect();
        let seq = self.rng.random_range(0..100);
        let payload = payload.into();
        forged(frame, Body::Data { seq, segment_index: 0, segment_count: 1, payload })
    }
}

fn forged(frame: &Bytes, body: Body) -> Bytes {
    Frame { body, ..Frame::decode(frame.clone()).unwrap() }.encode()
}

#[derive(Default)]
struct Attacked {
    attacks: u32,
    delivered: u32,
    was_ended: bool,
}

/// Sends numbers to an environment, which echoes them.
async fn attack(seed: u64) -> Attacked {
    let fixture = Fixture::start().await;
    let mut attacker = Attacker::new(seed);
    let mut progress = attacker.progress.subscribe();
    fixture.rendezvous.meddle(move |to, frame| attacker.meddle(to, frame)).await;
    let Ok(connection) = fixture.harness().connect().await else { return Attacked::default() };
    let Connection { mut incoming, mut outgoing, .. } = connection;
    let mut delivered = 0_u32;
    let mut deliver = |received: Received| {
        let expected = Bytes::copy_from_slice(&delivered.to_be_bytes());
        assert_eq!(received, Received::Message(expected), "seed {seed}");
        delivered += 1;
        delivered
    };
    let was_ended = 'ended: {
        for number in 0..60_u32 {
            let frames = progress.borrow().frames;
            outgoing.push(&number.to_be_bytes());
            if outgoing.flush().await.is_err() {
                break 'ended true;
            }
            loop {
                tokio::select! {
                    received = incoming.recv() => match received.map(&mut deliver) {
                        Some(delivered) if delivered > number => break,
                        Some(_) => {}
                        None => break 'ended true,
                    },
                    // The echo may never arrive. A new frame at the attacker is enough.
                    _ = progress.wait_for(|it| it.may_stall && it.frames > frames) => break,
                }
            }
        }
        false
    };
    // Ends the stream, no later than the close timeout.
    tokio::join!(outgoing.close(CloseCode::Normal, ""), async {
        while incoming.recv().await.map(&mut deliver).is_some() {}
    });
    assert_eq!(fixture.violations(), 0, "seed {seed}: the environment was served in order");
    Attacked { attacks: progress.borrow().attacks, delivered, was_ended }
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_delivered_wrongly() {
    let attacked = JoinSet::from_iter((0..40).map(attack)).join_all().await;
    let attacks: u32 = attacked.iter().map(|stream| stream.attacks).sum();
    let delivered: u32 = attacked.iter().map(|stream| stream.delivered).sum();
    assert!(attacks > 200 && delivered > 200, "{attacks} attacks, {delivered} messages");
    assert!(attacked.iter().any(|stream| stream.was_ended), "some attacks end streams");
}

#[tokio::test(flavor = "multi_thread")]
async fn each_flipped_byte_of_a_handshake_is_detected() {
    let mut fixture = Fixture::start().await;
    for (direction, flips) in [(To::Environment, 12), (To::Harness, 12)] {
        for flip in 0..flips {
            fixture
                .rendezvous
                .meddle(move |to, frame| {
                    let decoded = Frame::decode(frame.clone()).unwrap();
                    let Body::Handshake { payload } = &decoded.body else {
                        return vec![(to, frame)];
                    };
                    if to != direction {
                        return vec![(to, frame)];
                    }
                    let mut payload = payload.to_vec();
                    let at = flip * (payload.len() - 1) / (flips - 1);
                    payload[at] ^= 0x40;
                    vec![(to, forged(&frame, Body::Handshake { payload: payload.into() }))]
                })
                .await;
            let served = *fixture.served.borrow_and_update();
            let error = fixture.harness().connect().await.unwrap_err();
            match direction {
                To::Environment => {
                    // The eighth failure closes the socket of the environment.
                    let is_refused =
                        matches!(error, HarnessError::Refused { .. } | HarnessError::TimedOut);
                    assert!(is_refused, "{error:?}");
                    assert_eq!(*fixture.served.borrow_and_update(), served);
                }
                To::Harness => assert!(matches!(error, HarnessError::Handshake(_)), "{error:?}"),
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recorded_handshake_opens_nothing() {
    let mut fixture = Fixture::start().await;
    let recorded: Arc<std::sync::Mutex<Vec<Bytes>>> = Arc::default();
    let recorder = Arc::clone(&recorded);
    fixture
        .rendezvous
        .meddle(move |to, frame| {
            if to == To::Environment {
                recorder.lock().unwrap().push(frame.clone());
            }
            vec![(to, frame)]
        })
        .await;
    let mut connection = fixture.harness().connect().await.unwrap();
    send(&mut connection, &0_u32.to_be_bytes()).await;
    assert_eq!(receive(&mut connection).await.unwrap(), Bytes::copy_from_slice(&[0; 4]));
    assert_eq!(*fixture.served.borrow_and_update(), 1);
    // The stream ends; then all of its frames are replayed, with its own id and with another.
    drop(connection);
    fixture.rendezvous.meddle(|to, frame| vec![(to, frame)]).await;
    let frames = recorded.lock().unwrap().clone();
    let other = StreamId::random();
    for frame in &frames {
        fixture.rendezvous.inject(To::Environment, frame.clone()).await;
        let moved = Frame { stream_id: other, ..Frame::decode(frame.clone()).unwrap() }.encode();
        fixture.rendezvous.inject(To::Environment, moved).await;
    }
    // An honest harness follows, and is the second one to be served.
    let mut next = fixture.harness().connect().await.unwrap();
    send(&mut next, &0_u32.to_be_bytes()).await;
    assert!(receive(&mut next).await.is_some());
    assert_eq!(*fixture.served.borrow_and_update(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_served_without_authorization() {
    let mut fixture = Fixture::start().await;
    fixture.registry.state.lock().unwrap().refuses_all = true;
    for _ in 0..3 {
        let error = fixture.harness().connect().await.unwrap_err();
        assert!(matches!(error, HarnessError::Refused { .. }), "{error:?}");
    }
    assert_eq!(*fixture.served.borrow_and_update(), 0);
    fixture.registry.state.lock().unwrap().refuses_all = false;
    fixture.harness().connect().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn another_key_in_the_answer_of_the_registry_opens_nothing() {
    let fixture = Fixture::start().await;
    let impostor =
        exec_server_relay::noise::Identity::generate(&mut exec_server_relay::noise::OsRng);
    let replace_key =
        |key| std::mem::replace(&mut fixture.registry.state.lock().unwrap().keys[0], key);
    let genuine = replace_key(impostor.public_key().clone());
    let error = fixture.harness().connect().await.unwrap_err();
    assert!(matches!(error, HarnessError::Refused { .. }), "{error:?}");
    assert_eq!(*fixture.served.borrow(), 0);
    replace_key(genuine);
    fixture.harness().connect().await.unwrap();
}
