//! Measures the cost of a rendezvous: CPU time for routed bytes, and memory for idle streams. The
//! peers are plain sockets, because the rendezvous cannot tell what a frame contains.

use anyhow::{Context as _, bail, ensure};
use bytes::Bytes;
use exec_server_relay::frame::{Body, Frame, StreamId};
use exec_server_relay::noise::{Identity, MESSAGE_1_OVERHEAD, MESSAGE_2_LEN, OsRng};
use exec_server_relay::registry::RegistryClient;
use exec_server_transport::{Connection, DialOptions, dial};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::sync::Semaphore;

use super::rendezvous::BenchRendezvous;
use super::stream::{connect_when_online, message, runtime};
use crate::Scale;
use crate::footprint::settled_bytes;
use crate::report::{Row, Target, Unit};
use crate::usage;

const MIB: f64 = (1 << 20) as f64;
const PAYLOAD: usize = 60 << 10;
/// Frames in flight: about the window of one stream.
const WINDOW: usize = 16;
const MIN_ROUTED: f64 = 500.0 * MIB;

/// One environment accepts at most 128 streams.
const IDLE: [&str; 8] = ["0", "1", "2", "3", "4", "5", "6", "7"];
const STREAMS_OF_EACH: usize = 125;
const MAX_IDLE_BYTES: f64 = 100.0 * MIB;

pub(crate) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let runtime = runtime()?;
    let routed = runtime.block_on(measure_routing(scale))?;
    let idle = runtime.block_on(measure_idle())?;
    Ok(vec![routed, idle])
}

/// Measures routing from an environment to a client, the direction of output.
async fn measure_routing(scale: Scale) -> anyhow::Result<Row> {
    let rendezvous = BenchRendezvous::start(&[super::ENVIRONMENT])?;
    let mut environment = open_environment(&rendezvous.environment(super::ENVIRONMENT)?).await?;
    let mut harness = open_harness(&rendezvous.harness(super::ENVIRONMENT)?).await?;
    let stream = StreamId::random();
    exchange(&mut harness, &mut environment, &frame(stream, MESSAGE_1_OVERHEAD), 1).await?;

    let frame = frame(stream, PAYLOAD);
    let count = usize::try_from(scale.stream_bytes)? / frame.len();
    exchange(&mut environment, &mut harness, &frame, WINDOW).await?;
    let before = usage::cpu_seconds(rendezvous.pid())?;
    exchange(&mut environment, &mut harness, &frame, count).await?;
    let cpu = usage::cpu_seconds(rendezvous.pid())? - before;

    let routed = (count * frame.len()) as f64 / cpu;
    let name = "routed by a rendezvous per second of processor time, 60 KiB frames";
    let row = Row::new(name, Unit::BytesPerSecond, routed);
    Ok(row.target(Target::AtLeast(MIN_ROUTED)))
}

/// Measures idle streams. Each is opened by its own client.
async fn measure_idle() -> anyhow::Result<Row> {
    allow_descriptors(2 * IDLE.len() + IDLE.len() * STREAMS_OF_EACH)?;
    let rendezvous = BenchRendezvous::start(&IDLE)?;
    let before = settled_bytes(rendezvous.pid())?;
    let mut connections = Vec::new();
    for name in IDLE {
        let mut environment = open_environment(&rendezvous.environment(name)?).await?;
        let registry = rendezvous.harness(name)?;
        for _ in 0..STREAMS_OF_EACH {
            let mut harness = open_harness(&registry).await?;
            let stream = StreamId::random();
            let (hello, answer) = (frame(stream, MESSAGE_1_OVERHEAD), frame(stream, MESSAGE_2_LEN));
            exchange(&mut harness, &mut environment, &hello, 1).await?;
            exchange(&mut environment, &mut harness, &answer, 1).await?;
            connections.push(harness);
        }
        connections.push(environment);
    }
    let growth = settled_bytes(rendezvous.pid())?.saturating_sub(before);
    let name = format!("{} idle streams of a rendezvous, resident", IDLE.len() * STREAMS_OF_EACH);
    Ok(Row::new(&name, Unit::Bytes, growth as f64).target(Target::AtMost(MAX_IDLE_BYTES)))
}

async fn open_environment(registry: &RegistryClient) -> anyhow::Result<Connection> {
    let identity = Identity::generate(&mut OsRng);
    open(&registry.register(identity.public_key()).await?.url).await
}

async fn open_harness(registry: &RegistryClient) -> anyhow::Result<Connection> {
    let identity = Identity::generate(&mut OsRng);
    open(&connect_when_online(registry, identity.public_key()).await?.url).await
}

pub(super) async fn open(url: &str) -> anyhow::Result<Connection> {
    let dialled = dial(url, &DialOptions::default()).await;
    let mut connection = dialled.context("cannot connect to the rendezvous")?;
    connection.outgoing.send_binary();
    Ok(connection)
}

/// Sends this many equal frames, never more than a window ahead of the receiver.
async fn exchange(
    from: &mut Connection,
    to: &mut Connection,
    frame: &Bytes,
    count: usize,
) -> anyhow::Result<()> {
    exchange_within(WINDOW, from, to, frame, count).await
}

pub(super) async fn exchange_within(
    window: usize,
    from: &mut Connection,
    to: &mut Connection,
    frame: &Bytes,
    count: usize,
) -> anyhow::Result<()> {
    let room = Semaphore::new(window);
    let send = async {
        for _ in 0..count {
            room.acquire().await?.forget();
            from.outgoing.push(frame);
            from.outgoing.flush().await?;
        }
        Ok(())
    };
    let receive = async {
        for _ in 0..count {
            let received = message(to.incoming.recv().await)?;
            let (len, sent) = (received.len(), frame.len());
            ensure!(len == sent, "a frame of {sent} bytes arrived with {len} bytes");
            room.add_permits(1);
        }
        Ok(())
    };
    tokio::try_join!(send, receive)?;
    Ok(())
}

pub(super) fn frame(stream_id: StreamId, payload_len: usize) -> Bytes {
    let payload = vec![7; payload_len].into();
    let body = Body::Data { seq: 0, segment_index: 0, segment_count: 1, payload };
    Frame { stream_id, ack: 0, ack_bits: 0, body, trace: None }.encode()
}

/// Raises the limit on open files to the hard limit. Fails if that does not allow this many sockets
/// in addition to the other descriptors of this process.
pub(super) fn allow_descriptors(sockets: usize) -> anyhow::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    let needed = sockets as u64 + 64;
    if let Some(maximum) = maximum.filter(|maximum| *maximum < needed) {
        bail!(
            "{sockets} sockets need a hard limit of {needed} open files, and it is {maximum}; \
             raise it"
        );
    }
    Ok(setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })?)
}
