//! Request bodies, which are read within limits, and response bodies, which are sent in chunks.

use crate::budget::Held;
use crate::refusal::{Reason, Refusal, Result};
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use hyper::header::HeaderMap;
use std::convert::Infallible;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

/// Reads a body of at most `limit` bytes within `time`. The bytes read are taken from the memory budget.
pub(super) async fn read(body: Incoming, limit: u64, time: Duration, held: &mut Held) -> Result<Bytes> {
    if body.size_hint().lower() > limit {
        return Err(too_large(limit));
    }
    let slow = |_| Err(Refusal::new(Reason::Deadline, format!("the body has not come within {time:?}")));
    tokio::time::timeout(time, read_frames(body, limit, held)).await.unwrap_or_else(slow)
}

async fn read_frames(mut body: Incoming, limit: u64, held: &mut Held) -> Result<Bytes> {
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    let mut len = 0u64;
    while let Some(frame) = body.frame().await {
        let Ok(data) = frame.map_err(|e| broken(&e))?.into_data() else { continue };
        len += data.len() as u64;
        if len > limit {
            return Err(too_large(limit));
        }
        held.grow(data.len() as u64)?;
        match first.is_empty() && all.is_empty() {
            true => first = data,
            false => {
                all.extend_from_slice(&std::mem::take(&mut first));
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

/// The refusal for a body that ends early: the client has disconnected, or the chunked encoding is malformed.
fn broken(error: &hyper::Error) -> Refusal {
    let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref::<io::Error>());
    match cause {
        Some(cause) if matches!(cause.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData) => {
            Refusal::invalid(format!("the body is malformed: {cause}"))
        }
        _ => Refusal::new(Reason::Cancelled, format!("the body has not come as a whole: {error}")),
    }
}

fn too_large(limit: u64) -> Refusal {
    Refusal::new(Reason::TooLarge, format!("the body is larger than {limit} bytes"))
}

/// The size of the data frames of a response. Small frames keep the unsent rest of a slow reader's response in the budget.
const FRAME_BYTES: usize = 64 << 10;

/// The body of a response, with its share of the memory budget until it has been sent.
pub(super) struct Reply {
    bytes: Bytes,
    trailers: Option<HeaderMap>,
    /// Returned to the budget when the body is dropped.
    _held: Option<Held>,
}

impl Reply {
    pub(super) fn bytes(bytes: impl Into<Bytes>, held: Option<Held>) -> Self {
        Self { bytes: bytes.into(), trailers: None, _held: held }
    }

    pub(super) fn with_trailers(bytes: impl Into<Bytes>, held: Option<Held>, trailers: HeaderMap) -> Self {
        Self { bytes: bytes.into(), trailers: Some(trailers), _held: held }
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let len = self.bytes.len().min(FRAME_BYTES);
        let frame = match len {
            0 => self.trailers.take().map(Frame::trailers),
            _ => Some(Frame::data(self.bytes.split_to(len))),
        };
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.bytes.is_empty() && self.trailers.is_none()
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.bytes.len() as u64)
    }
}
