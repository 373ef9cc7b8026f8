//! One connection through the proxy: the client's socket, the socket to the server, and how both
//! end.

use std::future;
use std::io;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;

use socket2::SockRef;
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::sync::watch;

use super::direction::{Direction, Ended};
use super::plan::CutPlan;
use super::{Conditions, Cut, Way};

/// Connects to the server, and proxies until one side resets, both have ended, or the connection is
/// cut. Resets the client if the server cannot be reached.
pub(super) async fn run(
    client: TcpStream,
    upstream: SocketAddr,
    conditions: watch::Receiver<Conditions>,
    plan: Arc<CutPlan>,
    mut cut: watch::Receiver<Option<Cut>>,
) {
    let server = tokio::select! {
        biased;
        how = ordered(&mut cut) => return cut_client(client, how, cut).await,
        server = reach(upstream, conditions.clone()) => server,
    };
    let Ok(server) = server else {
        return reset(client);
    };
    for socket in [&client, &server] {
        // Fails if the socket was reset, which its first read or write will report.
        let _ = socket.set_nodelay(true);
    }

    let mut upward = Direction::new(Way::ToServer, Arc::clone(&plan));
    let mut downward = Direction::new(Way::ToClient, plan);
    let relayed = async {
        tokio::try_join!(
            upward.run(&client, &server, conditions.clone()),
            downward.run(&server, &client, conditions.clone()),
        )
    };
    let how = tokio::select! {
        biased;
        how = ordered(&mut cut) => how,
        ended = relayed => match ended {
            Err(Ended::Planned(how)) => how,
            Err(Ended::Reset) => {
                reset(client);
                reset(server);
                return;
            }
            Ok(_) => return,
        },
    };
    if let Cut::MidFrame | Cut::MidFrameRst = how {
        upward.forward_part_of_a_frame(&client, &server);
        downward.forward_part_of_a_frame(&server, &client);
    }
    match how {
        Cut::Rst | Cut::MidFrameRst => {
            reset(client);
            reset(server);
        }
        Cut::Fin | Cut::MidFrame => {
            finish(&client);
            finish(&server);
            drop(cut);
            tokio::join!(drain(client), drain(server));
        }
    }
}

/// Closes a socket with RST and discards its unsent data.
pub(super) fn reset(socket: TcpStream) {
    // Fails on a socket that was reset already.
    let _ = socket.set_zero_linger();
    drop(socket);
}

/// Resolves with the cut once it is ordered.
async fn ordered(cut: &mut watch::Receiver<Option<Cut>>) -> Cut {
    let how = match cut.wait_for(Option::is_some).await {
        Ok(how) => *how,
        Err(_) => None,
    };
    match how {
        Some(how) => how,
        // The proxy is being dropped, and this task with it.
        None => future::pending().await,
    }
}

/// Connects to the server once traffic flows in both directions.
async fn reach(
    upstream: SocketAddr,
    mut conditions: watch::Receiver<Conditions>,
) -> io::Result<TcpStream> {
    let flows = |conditions: &Conditions| {
        [Way::ToServer, Way::ToClient].into_iter().all(|way| conditions.flows(way))
    };
    conditions.wait_for(flows).await.map_err(io::Error::other)?;
    TcpStream::connect(upstream).await
}

/// Cuts off a client whose connection to the server is not established yet.
async fn cut_client(client: TcpStream, how: Cut, ordered: watch::Receiver<Option<Cut>>) {
    match how {
        Cut::Rst | Cut::MidFrameRst => reset(client),
        Cut::Fin | Cut::MidFrame => {
            finish(&client);
            drop(ordered);
            drain(client).await;
        }
    }
}

fn finish(socket: &TcpStream) {
    // Fails on a socket that has ended already.
    let _ = SockRef::from(socket).shutdown(Shutdown::Write);
}

/// Reads to the end: a socket closed with unread bytes sends RST, even if FIN was intended.
async fn drain(mut socket: TcpStream) {
    let mut bytes = vec![0; 16 << 10];
    while let Ok(1..) = socket.read(&mut bytes).await {}
}
