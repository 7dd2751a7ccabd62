//! Timeouts for connections whose client stalls.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep, sleep};

/// The bytes that an HTTP/2 client sends first on a connection.
const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// A connection that fails when a write makes no progress for `write_timeout`, or when its first bytes do not show in
/// time which version of HTTP it speaks: a client that reads or sends nothing does not hold its connection and its
/// response.
pub(super) struct StallTimeout<S> {
    stream: S,
    write_timeout: Duration,
    /// The write timer, which runs while a write is pending.
    timer: Pin<Box<Sleep>>,
    is_writing: bool,
    /// A timer, and the number of preface bytes received so far; `None` once it is clear whether the client speaks
    /// HTTP/2.
    preface: Option<(Pin<Box<Sleep>>, usize)>,
}

impl<S> StallTimeout<S> {
    pub(super) fn new(stream: S, head_timeout: Duration, write_timeout: Duration) -> Self {
        let preface = Some((Box::pin(sleep(head_timeout)), 0));
        let timer = Box::pin(sleep(write_timeout));
        Self { stream, write_timeout, timer, is_writing: false, preface }
    }

    /// Compares received bytes with the rest of the preface. At a mismatch or the preface's end, stops the preface
    /// timer.
    fn match_preface(&mut self, new: &[u8]) {
        if let Some((_, matched)) = &mut self.preface {
            let expected = &PREFACE[*matched..];
            let is_start = expected.starts_with(new);
            *matched += new.len();
            if !is_start || expected.len() == new.len() {
                self.preface = None;
            }
        }
    }

    /// Passes on the result of a write. Starts the write timer if the write is pending, and fails when the timer
    /// expires.
    fn watch_write<T>(
        &mut self,
        context: &mut Context<'_>,
        result: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if result.is_ready() {
            self.is_writing = false;
            return result;
        }
        if !self.is_writing {
            self.is_writing = true;
            self.timer.as_mut().reset(Instant::now() + self.write_timeout);
        }
        match self.timer.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(fail_with_timeout()),
            Poll::Pending => Poll::Pending,
        }
    }
}

fn fail_with_timeout<T>() -> io::Result<T> {
    Err(io::ErrorKind::TimedOut.into())
}

impl<S: AsyncRead + Unpin> AsyncRead for StallTimeout<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let result = Pin::new(&mut self.stream).poll_read(context, buffer);
        match &mut self.preface {
            Some((timer, _)) if result.is_pending() => {
                timer.as_mut().poll(context).map(|()| fail_with_timeout())
            }
            Some(_) => {
                self.match_preface(&buffer.filled()[before..]);
                result
            }
            None => result,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for StallTimeout<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let result = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.watch_write(context, result)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_flush(context);
        self.watch_write(context, result)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let result = Pin::new(&mut self.stream).poll_shutdown(context);
        self.watch_write(context, result)
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
        self.watch_write(context, result)
    }
}
