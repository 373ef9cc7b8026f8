//! Measures the time from the connect of a client that uses Nagle's algorithm to the response to
//! its first request after the handshake. That request follows the notification that ends the
//! handshake. Because the notification has no response to carry an acknowledgement, the kernel may
//! hold the request back.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::thread;

use super::Scale;
use super::client::Client;
use super::endpoint::Nagle;
use super::report::{Limit, Row, Target, Unit};
use super::samples::Samples;
use super::server::BenchServer;

const WARM_UP: usize = 10;
/// The upgrade, `initialize` and the first request.
const EXCHANGES: usize = 3;
/// A message of about the size of each of these.
const MESSAGE: [u8; 128] = [b'x'; 128];

pub(super) fn measure(scale: Scale) -> anyhow::Result<Vec<Row>> {
    let server = BenchServer::start()?;
    let echo = TcpListener::bind("127.0.0.1:0")?;
    let address = echo.local_addr()?;
    // The thread ends with this process.
    thread::spawn(move || echo.incoming().flatten().for_each(|socket| drop(send_back(socket))));
    let [mut ours, mut bare] = std::array::from_fn(|_| Samples::default());
    for round in 0..WARM_UP + scale.starts {
        let (mut unmeasured, mut unmeasured_bare) = (Samples::default(), Samples::default());
        let is_warm = round >= WARM_UP;
        let ours = if is_warm { &mut ours } else { &mut unmeasured };
        let bare = if is_warm { &mut bare } else { &mut unmeasured_bare };
        ours.time(|| Client::connect(&server, Nagle::On))?;
        bare.time(|| {
            let mut socket = TcpStream::connect(address)?;
            socket.set_nodelay(true)?;
            for _ in 0..EXCHANGES {
                socket.write_all(&MESSAGE)?;
                socket.read_exact(&mut [0; MESSAGE.len()])?;
            }
            Ok(())
        })?;
    }
    let limit = Limit { value: bare.median(), is: "bare TCP: connect, three round trips" };
    let row =
        Row::new("connect to first answer, p50, client with Nagle", Unit::Seconds, ours.median());
    // A delayed acknowledgement takes 40 ms.
    Ok(vec![row.limit(limit).target(Target::AtMost(0.002))])
}

fn send_back(mut socket: TcpStream) -> std::io::Result<()> {
    socket.set_nodelay(true)?;
    let mut message = MESSAGE;
    loop {
        socket.read_exact(&mut message)?;
        socket.write_all(&message)?;
    }
}
