//! What TCP and Unix sockets have in common for us, and how each is set up.

use std::os::fd::AsFd as _;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};

use crate::connection::{Peer, TransportKind};
use crate::write_buffer::ByteSink;

/// Where a connection's bytes come from.
pub(crate) type ByteSource = Box<dyn AsyncRead + Send + Sync + Unpin>;

/// What the kernel may hold of ours without having sent it. Without a limit that is the whole send
/// buffer, which autotunes to megabytes, and a reset loses them all. Data in flight is not limited
/// by this, so neither is throughput: 256 KiB keep the link busy while the writer wakes up.
const MAX_UNSENT_BYTES: u32 = 256 << 10;

/// A socket that comes apart into halves without a lock between them.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    const KIND: TransportKind;

    fn into_halves(self) -> (ByteSource, ByteSink);

    /// Sets options. A socket that refuses them was reset already, as its first use will show.
    fn prepare(&self);

    /// `None` when the socket has been reset meanwhile, or no more descriptors can be had.
    fn peer(&self) -> Option<Peer>;
}

impl Socket for TcpStream {
    const KIND: TransportKind = TransportKind::WebSocket;

    fn into_halves(self) -> (ByteSource, ByteSink) {
        let (source, sink) = self.into_split();
        (Box::new(source), Box::new(sink))
    }

    fn prepare(&self) {
        // Nagle's algorithm and delayed acknowledgements together cost 40 ms a call.
        let _ = self.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(self).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Tcp { remote: self.peer_addr().ok()?, local: self.local_addr().ok()? })
    }
}

impl Socket for UnixStream {
    const KIND: TransportKind = TransportKind::Unix;

    fn into_halves(self) -> (ByteSource, ByteSink) {
        let (source, sink) = self.into_split();
        (Box::new(source), Box::new(sink))
    }

    /// The kernel's default buffer of some 200 KiB is what we would ask for.
    fn prepare(&self) {}

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Unix { socket: self.as_fd().try_clone_to_owned().ok()? })
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const KIND: TransportKind = TransportKind::Memory;

    fn into_halves(self) -> (ByteSource, ByteSink) {
        let (source, sink) = tokio::io::split(self);
        (Box::new(source), Box::new(sink))
    }

    fn prepare(&self) {}

    fn peer(&self) -> Option<Peer> {
        None
    }
}
