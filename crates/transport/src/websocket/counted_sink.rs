//! Counts the bytes that the socket accepts, so that the reader can distinguish a slow peer from a
//! stuck one.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use tokio::io::AsyncWrite;

use super::control::Control;
use crate::write_buffer::ByteSink;

pub(super) struct CountedSink {
    sink: ByteSink,
    control: Arc<Control>,
}

impl CountedSink {
    pub(super) fn new(sink: ByteSink, control: Arc<Control>) -> Self {
        Self { sink, control }
    }
}

impl AsyncWrite for CountedSink {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.sink).poll_write(context, bytes))?;
        self.control.count_written(count);
        Poll::Ready(Ok(count))
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let count = ready!(Pin::new(&mut self.sink).poll_write_vectored(context, slices))?;
        self.control.count_written(count);
        Poll::Ready(Ok(count))
    }

    fn is_write_vectored(&self) -> bool {
        self.sink.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.sink).poll_shutdown(context)
    }
}
