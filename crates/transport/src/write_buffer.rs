//! A buffer of unsent bytes. A cancelled write neither loses nor repeats bytes.

use std::collections::VecDeque;
use std::io::{self, IoSlice};

use bytes::Bytes;
use tokio::io::{AsyncWrite, AsyncWriteExt};

/// Boxed: one virtual call per system call costs next to nothing.
pub(crate) type ByteSink = Box<dyn AsyncWrite + Send + Sync + Unpin>;

/// A larger buffer is released as soon as it is empty.
const LARGEST_KEPT: usize = 2 << 20;

/// The buffer that an idle connection may keep.
const IDLE_KEPT: usize = 8 << 10;

const MAX_SLICES: usize = 16;

#[derive(Debug, Default)]
pub(crate) struct WriteBuffer {
    /// Written before `bytes`.
    segments: VecDeque<Bytes>,
    bytes: Vec<u8>,
    /// The number of bytes at the front that the sink has accepted.
    written: usize,
    /// The sink has accepted some but not all bytes appended since the buffer was last empty, so a
    /// frame may be half written. (`written` cannot tell: it returns to zero.)
    started: bool,
}

impl WriteBuffer {
    /// Returns the end of the buffer, to append to.
    pub(crate) fn end(&mut self) -> &mut Vec<u8> {
        &mut self.bytes
    }

    /// Appends a segment without a copy. Worthwhile for large ones.
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

    /// Releases memory that an idle connection does not need.
    pub(crate) fn release_idle(&mut self) {
        if self.is_empty() && self.bytes.capacity() > IDLE_KEPT {
            self.clear();
        }
    }

    pub(crate) async fn write_to(&mut self, sink: &mut ByteSink) -> io::Result<()> {
        self.forget_written();
        while !self.is_empty() {
            let mut count = sink.write_vectored(&self.slices()).await?;
            if count == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            self.started = true;
            count += self.written;
            while let Some(first) = self.segments.pop_front_if(|first| first.len() <= count) {
                count -= first.len();
            }
            self.written = count;
        }
        self.bytes.clear();
        self.written = 0;
        self.started = false;
        if self.bytes.capacity() > LARGEST_KEPT {
            self.clear();
        }
        Ok(())
    }

    fn slices(&self) -> [IoSlice<'_>; MAX_SLICES] {
        let mut slices = [IoSlice::new(&[]); MAX_SLICES];
        let pieces = self.segments.iter().map(|segment| &segment[..]).chain([&self.bytes[..]]);
        for (slice, piece) in slices.iter_mut().zip(pieces) {
            *slice = IoSlice::new(piece);
        }
        slices[0].advance(self.written);
        slices
    }

    /// A writer that is repeatedly cancelled and refilled must not keep all written bytes.
    fn forget_written(&mut self) {
        if self.segments.is_empty() && self.written > self.len() {
            self.bytes.drain(..self.written);
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::Pin;
    use std::sync::{Arc, Mutex};
    use std::task::{Context, Poll};

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

    /// Accepts a few bytes at a time, from any number of slices.
    struct Reluctant {
        most: usize,
        is_vectored: bool,
        taken: Arc<Mutex<Vec<u8>>>,
    }

    impl AsyncWrite for Reluctant {
        fn poll_write(
            self: Pin<&mut Self>,
            _: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            let count = bytes.len().min(self.most);
            self.taken.lock().unwrap().extend_from_slice(&bytes[..count]);
            Poll::Ready(Ok(count))
        }

        fn poll_write_vectored(
            mut self: Pin<&mut Self>,
            context: &mut Context<'_>,
            slices: &[IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            let all: Vec<u8> = match self.is_vectored {
                true => slices.iter().flat_map(|slice| slice.to_vec()).collect(),
                false => slices.iter().find(|slice| !slice.is_empty()).unwrap().to_vec(),
            };
            self.as_mut().poll_write(context, &all)
        }

        fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }

        fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
            Poll::Ready(Ok(()))
        }
    }

    #[tokio::test]
    async fn slices_are_written_completely_in_every_combination() {
        // Includes more slices than fit into one write.
        for pieces in 0..2 * MAX_SLICES + 3 {
            for (most, is_vectored) in [(1, true), (5, true), (12, true), (1000, true), (5, false)]
            {
                let taken = Arc::<Mutex<Vec<u8>>>::default();
                let reluctant = Reluctant { most, is_vectored, taken: Arc::clone(&taken) };
                let mut sink: ByteSink = Box::new(reluctant);
                let (mut buffer, mut expected) = (WriteBuffer::default(), Vec::new());
                for number in 0..pieces {
                    let piece = vec![number as u8; 1 + number % 7];
                    expected.extend_from_slice(&piece);
                    match number % 3 {
                        0 => buffer.end().extend_from_slice(&piece),
                        _ => buffer.append_segment(piece.into()),
                    }
                }
                assert_eq!(buffer.len(), expected.len());
                buffer.write_to(&mut sink).await.unwrap();
                assert!(buffer.is_empty() && !buffer.is_started());
                assert_eq!(*taken.lock().unwrap(), expected, "{pieces} pieces, {most} at a time");
            }
        }
    }

    #[tokio::test]
    async fn large_buffers_are_released() {
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
