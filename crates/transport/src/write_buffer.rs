//! Bytes on their way to a sink, written so that a cancelled write loses and repeats nothing.

use std::collections::VecDeque;
use std::io;

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Where a connection's bytes go. One virtual call per system call is no cost.
pub(crate) type ByteSink = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// A buffer above this size is given back as soon as it is empty.
const LARGEST_KEPT: usize = 2 << 20;

/// What an idle connection may keep.
const IDLE_KEPT: usize = 8 << 10;

#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// Goes before `bytes`.
    segments: VecDeque<Bytes>,
    bytes: Vec<u8>,
    /// The sink has this many bytes of what comes first.
    written: usize,
    /// The sink has some but not all of what was appended since the buffer was last empty, so a
    /// frame may be half written. (`written` cannot say this: it goes back to zero.)
    started: bool,
}

impl WriteBuffer {
    /// The end of the buffer, to append to.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends without a copy. Worth it for what is large.
    pub(crate) fn append_segment(&mut self, segment: Bytes) {
        if !self.bytes.is_empty() {
            self.segments.push_back(std::mem::take(&mut self.bytes).into());
        }
        self.segments.push_back(segment);
    }

    pub(crate) fn len(&self) -> usize {
        let segments: usize = self.segments.iter().map(Bytes::len).sum();
        segments + self.bytes.len() - self.written
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn is_started(&self) -> bool {
        self.started
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Gives back what an idle connection does not need.
    pub(crate) fn release_idle(&mut self) {
        if self.is_empty() && self.bytes.capacity() > IDLE_KEPT {
            self.clear();
        }
    }

    pub(crate) async fn write_to(&mut self, sink: &mut ByteSink) -> io::Result<()> {
        self.forget_written();
        while !self.is_empty() {
            let first = self.segments.front().map_or(&self.bytes[..], |segment| segment);
            let count = sink.write(&first[self.written..]).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.written += count;
            self.started = true;
            if self.segments.front().is_some_and(|first| first.len() == self.written) {
                self.segments.pop_front();
                self.written = 0;
            }
        }
        self.bytes.clear();
        self.written = 0;
        self.started = false;
        if self.bytes.capacity() > LARGEST_KEPT {
            self.clear();
        }
        Ok(())
    }

    /// A writer that is cancelled and fed again and again must not keep all that it ever wrote.
    fn forget_written(&mut self) {
        if self.segments.is_empty() && self.written > self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;

    #[tokio::test]
    async fn a_cancelled_write_neither_loses_nor_repeats() {
        let (near, mut far) = tokio::io::duplex(16);
        let mut sink: ByteSink = Box::new(near);
        let mut buffer = WriteBuffer::default();
        let sent: Vec<u8> = (0..200).collect();
        let mut received = Vec::new();
        for piece in sent.chunks(50) {
            if piece[0] % 100 == 0 {
                buffer.end().extend_from_slice(piece);
            } else {
                buffer.append_segment(Bytes::copy_from_slice(piece));
            }
            tokio::select! {
                biased;
                written = buffer.write_to(&mut sink) => written.unwrap(),
                () = std::future::ready(()) => {}
            }
            assert!(buffer.is_started());
            let mut some = [0; 7];
            far.read_exact(&mut some).await.unwrap();
            received.extend_from_slice(&some);
        }
        let rest = tokio::spawn(async move {
            far.read_to_end(&mut received).await.unwrap();
            received
        });
        buffer.write_to(&mut sink).await.unwrap();
        assert!(buffer.is_empty() && !buffer.is_started());
        drop(sink);
        assert_eq!(rest.await.unwrap(), sent);
    }

    #[tokio::test]
    async fn large_buffers_are_given_back() {
        let mut sink: ByteSink = Box::new(tokio::io::sink());
        let mut buffer = WriteBuffer::default();
        buffer.end().resize(LARGEST_KEPT + 1, 0);
        buffer.write_to(&mut sink).await.unwrap();
        assert_eq!(buffer.bytes.capacity(), 0);

        buffer.end().resize(IDLE_KEPT + 1, 0);
        buffer.write_to(&mut sink).await.unwrap();
        assert_ne!(buffer.bytes.capacity(), 0, "a busy connection keeps its buffer");
        buffer.release_idle();
        assert_eq!(buffer.bytes.capacity(), 0);
    }
}
