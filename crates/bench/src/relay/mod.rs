//! Measures remote mode: the same server through a relay and over its own WebSocket, the cost of
//! opening a stream, and the resources that the rendezvous needs.

mod cluster;
mod handshake;
mod rendezvous;
mod router;
mod stream;

use super::Scale;
use super::client::Client;
use super::keystroke::RemoteTerminal;
use super::pair::Pair;
use super::report::{Row, Target, Unit};
use super::server::BenchServer;
use super::socket::Socket;
pub(super) use cluster::measure as measure_cluster;
pub(super) use handshake::measure as measure_handshakes;
use rendezvous::BenchRendezvous;
pub(super) use router::measure as measure_rendezvous;
pub(super) use stream::ProductSocket;

const ENVIRONMENT: &str = "box";
const LIMIT_IS: &str = "the same over a WebSocket of the same server";

pub(super) fn measure_processes(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let rendezvous = BenchRendezvous::start(&[ENVIRONMENT])?;
    let server = start_server(&rendezvous)?;
    let connect = || -> anyhow::Result<Pair<Client>> {
        let relayed = ProductSocket::through_relay(rendezvous.harness(ENVIRONMENT)?)?;
        let direct = ProductSocket::dial(&format!("ws://{}", server.endpoint().address()))?;
        Ok(Pair {
            ours: Client::over(Socket::Product(Box::new(relayed)))?,
            limit: Client::over(Socket::Product(Box::new(direct)))?,
        })
    };
    let starts = connect()?.measure_starts(scale)?;
    let output = connect()?.measure_output(scale)?;
    let clients = connect()?;
    let mut terminals = Pair {
        ours: RemoteTerminal::open(clients.ours)?,
        limit: RemoteTerminal::open(clients.limit)?,
    };
    let keystrokes = terminals.time(0, scale.keystrokes, RemoteTerminal::type_key)?;
    let output_name =
        format!("{} MiB of output, 256 KiB writes, through a relay", scale.flood_bytes >> 20);
    Ok(vec![
        starts
            .row("start to close, p50, through a relay", Unit::Seconds, LIMIT_IS)
            .target(Target::RatioAtMost(2.0)),
        output.row(&output_name, Unit::BytesPerSecond, LIMIT_IS).target(Target::RatioAtLeast(0.4)),
        keystrokes
            .row("keystroke and back, p50, through a relay", Unit::Seconds, LIMIT_IS)
            .target(Target::RatioAtMost(2.0)),
    ])
}

fn start_server(rendezvous: &BenchRendezvous) -> anyhow::Result<BenchServer> {
    let token_file = rendezvous.environment_token_file()?;
    let listen = ["--listen", "ws://127.0.0.1:0", "--discoverable", "false"];
    let remote = ["--remote", rendezvous.url(), "--environment-id", ENVIRONMENT];
    BenchServer::launch(&[&listen[..], &remote, &["--remote-token-file", &token_file]].concat())
}
