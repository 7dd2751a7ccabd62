//! Connections whose other end takes nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// What a connection of HTTP/2 begins with.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that fails when a write has made no progress for some time, or when it has not said in time which version
/// of HTTP it speaks: a client that reads nothing, or says nothing, keeps neither its place nor its response.
pub(super) struct Stalls<S> {
    stream: S,
    patience: Duration,
    /// Runs while a write waits.
    timer: Pin<Box<Sleep>>,
    waits: bool,
    /// Runs while what has come may become the preface, and how much of that it is.
    beginning: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> Stalls<S> {
    pub(super) fn new(stream: S, head: Duration, patience: Duration) -> Self {
        let beginning = Some((Box::pin(sleep(head)), 0));
        Self { stream, patience, timer: Box::pin(sleep(patience)), waits: false, beginning }
    }

    /// Takes note of the first bytes.
    fn begin(&mut self, new: &[u8]) {
        if let Some((_, matched)) = &mut self.beginning {
            let expected = &PREFACE[*matched..];
            let is_start = expected.starts_with(new);
            *matched += new.len();
            if !is_start || expected.len() == new.len() {
                self.beginning = None;
            }
        }
    }

    fn watch<T>(&mut self, context: &mut Context<'_>, result: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.waits = false;
            return result;
        }
        if !self.waits {
            self.waits = true;
            self.timer.as_mut().reset(Instant::now() + self.patience);
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(late()),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn late<T>() -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

impl<S: AsyncRead + Unpin> AsyncRead for Stalls<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &mut self.beginning {
            Some((timer, _)) if result.is_pending() => timer.as_mut().poll(context).map(|()| late()),
            Some(_) => {
                self.begin(&buffer.filled()[before..]);
                result
            }
            None => result,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stalls<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watch(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch(context, result)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write_vectored(context, slices);
        self.watch(context, result)
    }
}
