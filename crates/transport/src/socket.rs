//! The common interface of TCP and Unix sockets, and the setup of each.

use std::io;
use std::os::fd::AsFd as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::tcp::OwnedReadHalf;
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsStream;

use crate::connection::{Peer, TransportKind};
use crate::websocket::Role;
use crate::write_buffer::ByteSink;

pub(crate) type ByteSource = Box<dyn AsyncRead + Send + Sync + Unpin>;

/// Limit on unsent data in the kernel. Without it, the limit is the whole send buffer, which
/// autotunes to megabytes, and a reset loses all of it. Data in flight is not limited, so
/// throughput does not suffer: 256 KiB keeps the link busy while the writer wakes up.
const MAX_UNSENT_BYTES: u32 = 256 << 10;

/// A socket that splits into halves, of which neither waits for the other.
pub(crate) trait Socket: AsyncRead + AsyncWrite + Send + Unpin + 'static {
    const KIND: TransportKind;

    fn into_halves(self, role: Role) -> (ByteSource, ByteSink);

    /// Sets options. A socket that refuses them was reset, which its first use will show.
    fn prepare(&self);

    /// Returns `None` if the socket has been reset, or file descriptors are exhausted.
    fn peer(&self) -> Option<Peer>;
}

impl Socket for TcpStream {
    const KIND: TransportKind = TransportKind::WebSocket;

    fn into_halves(self, role: Role) -> (ByteSource, ByteSink) {
        let (source, sink) = self.into_split();
        let source: ByteSource = match role {
            Role::Server => Box::new(PromptlyAcknowledged(source)),
            Role::Client => Box::new(source),
        };
        (source, Box::new(sink))
    }

    fn prepare(&self) {
        // Nagle's algorithm combined with delayed acknowledgements costs 40 ms per call.
        let _ = self.set_nodelay(true);
        #[cfg(target_os = "linux")]
        let _ = socket2::SockRef::from(self).set_tcp_notsent_lowat(MAX_UNSENT_BYTES);
    }

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Tcp { remote: self.peer_addr().ok()?, local: self.local_addr().ok()? })
    }
}

/// Acknowledges each read at once.
///
/// With Nagle's algorithm, a client holds a small message back until the previous one is
/// acknowledged. A notification has no response to carry the acknowledgement, so the next request
/// would wait 40 ms for the kernel's delayed acknowledgement. The kernel clears `TCP_QUICKACK`
/// whenever this side sends, so the option is set after every read.
pub(crate) struct PromptlyAcknowledged<T>(pub(crate) T);

pub(crate) trait OverTcp {
    fn tcp(&self) -> &TcpStream;
}

impl OverTcp for TcpStream {
    fn tcp(&self) -> &TcpStream {
        self
    }
}

impl OverTcp for OwnedReadHalf {
    fn tcp(&self) -> &TcpStream {
        self.as_ref()
    }
}

impl<T: OverTcp> OverTcp for PromptlyAcknowledged<T> {
    fn tcp(&self) -> &TcpStream {
        self.0.tcp()
    }
}

impl<T: AsyncRead + OverTcp + Unpin> AsyncRead for PromptlyAcknowledged<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.0).poll_read(cx, buffer))?;
        #[cfg(target_os = "linux")]
        if buffer.filled().len() > before {
            // A socket that refuses it was reset, which the next read will show.
            let _ = socket2::SockRef::from(self.tcp()).set_tcp_quickack(true);
        }
        Poll::Ready(Ok(()))
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for PromptlyAcknowledged<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.0.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Both halves share the encryption state and a lock, which neither holds while it waits.
impl<T> Socket for TlsStream<T>
where
    T: AsyncRead + AsyncWrite + OverTcp + Send + Sync + Unpin + 'static,
{
    const KIND: TransportKind = TransportKind::WebSocket;

    fn into_halves(self, _: Role) -> (ByteSource, ByteSink) {
        let (source, sink) = tokio::io::split(self);
        (Box::new(source), Box::new(sink))
    }

    fn prepare(&self) {
        self.get_ref().0.tcp().prepare();
    }

    fn peer(&self) -> Option<Peer> {
        self.get_ref().0.tcp().peer()
    }
}

impl Socket for UnixStream {
    const KIND: TransportKind = TransportKind::Unix;

    fn into_halves(self, _: Role) -> (ByteSource, ByteSink) {
        let (source, sink) = self.into_split();
        (Box::new(source), Box::new(sink))
    }

    /// Unsent data needs no limit: the kernel's default buffer holds only about 200 KiB.
    fn prepare(&self) {}

    fn peer(&self) -> Option<Peer> {
        Some(Peer::Unix { socket: self.as_fd().try_clone_to_owned().ok()? })
    }
}

#[cfg(test)]
impl Socket for tokio::io::DuplexStream {
    const KIND: TransportKind = TransportKind::Memory;

    fn into_halves(self, _: Role) -> (ByteSource, ByteSink) {
        let (source, sink) = tokio::io::split(self);
        (Box::new(source), Box::new(sink))
    }

    fn prepare(&self) {}

    fn peer(&self) -> Option<Peer> {
        None
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn acknowledgements_are_prompt_again_after_each_read() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (server, _) = listener.accept().await.unwrap();
        let options = server.as_fd().try_clone_to_owned().unwrap();
        let is_prompt = || socket2::SockRef::from(&options).tcp_quickack().unwrap();
        let (mut source, mut sink) = server.into_halves(Role::Server);
        for _ in 0..3 {
            client.write_all(b"question").await.unwrap();
            source.read_exact(&mut [0; 8]).await.unwrap();
            assert!(is_prompt());
            // A response makes the kernel delay acknowledgements again.
            sink.write_all(b"answer").await.unwrap();
            client.read_exact(&mut [0; 6]).await.unwrap();
            assert!(!is_prompt());
        }
    }
}
