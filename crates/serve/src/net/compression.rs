//! Compression of bodies: the codings that clients of Triton use, `gzip` and `deflate`.

use super::body::Reply;
use super::shared::Shared;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::refusal::{Reason, Refusal, Result};
use bytes::Bytes;
use flate2::Compression;
use flate2::bufread::{MultiGzDecoder, ZlibDecoder};
use flate2::write::{GzEncoder, ZlibEncoder};
use hyper::Response;
use hyper::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderMap, HeaderValue, VARY};
use std::io::{self, Read, Write};
use std::sync::Arc;

/// The size in bytes from which a response is compressed.
const MIN_BYTES: usize = 1 << 10;

/// The codings, as a gRPC server announces them.
pub(super) const GRPC_CODINGS: &str = "identity,deflate,gzip";

const GRPC_ENCODING: &str = "grpc-encoding";

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    /// Deflate in the format of zlib, as HTTP and gRPC define it.
    Deflate,
}

impl Coding {
    fn parse(name: &str) -> Option<Self> {
        let is = |other: &str| name.eq_ignore_ascii_case(other);
        match () {
            () if is("gzip") || is("x-gzip") => Some(Self::Gzip),
            () if is("deflate") => Some(Self::Deflate),
            () => None,
        }
    }

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Gzip => "gzip",
            Self::Deflate => "deflate",
        }
    }

    /// The coding that a header of a request names; `None` if there is no such header, or it names `identity`.
    fn from_header(headers: &HeaderMap, header: &str) -> Result<Option<Self>> {
        let Some(value) = headers.get(header) else { return Ok(None) };
        let name = value.to_str().unwrap_or_default().trim();
        if name.eq_ignore_ascii_case("identity") {
            return Ok(None);
        }
        let coding = Self::parse(name).map(Some);
        coding.ok_or_else(|| {
            let name: String = name.chars().take(32).collect();
            Refusal::new(
                Reason::Unsupported,
                format!("{header}: `{name}` is not supported; gzip, deflate and identity are"),
            )
        })
    }

    /// The coding of a REST request's body.
    ///
    /// # Errors
    /// The coding is not supported, or there are several.
    pub(super) fn of_content(headers: &HeaderMap) -> Result<Option<Self>> {
        Self::from_header(headers, CONTENT_ENCODING.as_str())
    }

    /// The coding of a gRPC request's compressed messages.
    ///
    /// # Errors
    /// The coding is not supported.
    pub(super) fn of_messages(headers: &HeaderMap) -> Result<Option<Self>> {
        Self::from_header(headers, GRPC_ENCODING)
    }

    /// The coding that a REST client prefers for a response; `None` if it accepts none.
    fn accepted(headers: &HeaderMap) -> Option<Self> {
        let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
        let mut best: Option<(Self, f32)> = None;
        for item in values.flat_map(|value| value.split(',')) {
            let mut parts = item.split(';').map(str::trim);
            let Some(coding) = parts.next().and_then(Self::parse) else { continue };
            let quality = parts.find_map(|part| part.strip_prefix("q=")).map_or(Ok(1.0), str::parse);
            let quality: f32 = quality.unwrap_or(0.0);
            if quality > 0.0 && best.is_none_or(|(_, other)| quality > other) {
                best = Some((coding, quality));
            }
        }
        best.map(|(coding, _)| coding)
    }
}

/// Decompresses a body to at most `limit` bytes, which are charged to `reservation` before they are allocated.
pub(super) async fn decompress(
    shared: &Shared,
    body: Bytes,
    coding: Coding,
    limit: u64,
    reservation: Reservation,
) -> Result<(Bytes, Reservation)> {
    // The time depends on the decompressed size, which is not known yet: deflate expands up to 1032 times.
    let most = body.len().saturating_mul(1032);
    shared.run_blocking(most, move || decompress_now(&body, coding, limit, reservation)).await
}

fn decompress_now(
    body: &[u8],
    coding: Coding,
    limit: u64,
    reservation: Reservation,
) -> Result<(Bytes, Reservation)> {
    let mut out = Buffer::new(reservation);
    let most = limit.saturating_add(1);
    let copied = match coding {
        Coding::Gzip => io::copy(&mut MultiGzDecoder::new(body).take(most), &mut out),
        Coding::Deflate => {
            let mut decoder = ZlibDecoder::new(body);
            let copied = io::copy(&mut (&mut decoder).take(most), &mut out);
            match (&copied, decoder.get_ref().len()) {
                (Ok(len), 1..) if *len < most => {
                    return Err(Refusal::invalid("the body has bytes after its compressed data"));
                }
                _ => copied,
            }
        }
    };
    out.check()?;
    match copied {
        Ok(len) if len > limit => {
            Err(Refusal::new(Reason::TooLarge, format!("the decompressed body is larger than {limit} bytes")))
        }
        Ok(_) => {
            let (bytes, reservation) = out.finish()?;
            Ok((bytes.into(), reservation))
        }
        Err(error) => {
            let name = coding.name();
            Err(Refusal::invalid(format!("the body is no valid {name} data: {error}")))
        }
    }
}

/// Compresses `bytes`, after `prefix` bytes that are zero. The result is charged to `reservation`.
fn compress_now(
    bytes: &[u8],
    prefix: usize,
    coding: Coding,
    reservation: Reservation,
) -> Result<(Vec<u8>, Reservation)> {
    let mut out = Buffer::new(reservation);
    out.push(&[0; 5][..prefix])?;
    // Tensors of floating-point elements gain little more from higher levels.
    let level = Compression::fast();
    let written = match coding {
        Coding::Gzip => {
            let mut encoder = GzEncoder::new(&mut out, level);
            encoder.write_all(bytes).and_then(|()| encoder.finish().map(drop))
        }
        Coding::Deflate => {
            let mut encoder = ZlibEncoder::new(&mut out, level);
            encoder.write_all(bytes).and_then(|()| encoder.finish().map(drop))
        }
    };
    out.check()?;
    written.map_err(|e| Refusal::from_error(Reason::Failed, &e))?;
    out.finish()
}

/// Compresses the body of a REST response as its client accepts it, if it is large enough. If there is no memory for it,
/// the response stays as it is.
pub(super) async fn compress_rest(
    shared: &Arc<Shared>,
    headers: &HeaderMap,
    mut response: Response<Reply>,
) -> Response<Reply> {
    if response.body().len() < MIN_BYTES {
        return response;
    }
    response.headers_mut().append(VARY, HeaderValue::from_static("accept-encoding"));
    let Some(coding) = Coding::accepted(headers) else { return response };
    let (bytes, reservation) = (response.body().bytes(), shared.service.hold());
    let len = bytes.len();
    let compressed = shared.run_blocking(len, move || compress_now(&bytes, 0, coding, reservation)).await;
    let Ok((bytes, reservation)) = compressed else { return response };
    if bytes.len() >= len {
        return response;
    }
    response.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static(coding.name()));
    response.map(|_| Reply::from_bytes(bytes, reservation))
}

/// Compresses the message of a gRPC response with the coding of the request's messages, if it is large enough. If there
/// is no memory for it, the response stays as it is.
pub(super) async fn compress_grpc(
    shared: &Arc<Shared>,
    coding: Option<Coding>,
    mut response: Response<Reply>,
) -> Response<Reply> {
    let Some(coding) = coding.filter(|_| response.body().len() >= MIN_BYTES) else { return response };
    let (bytes, reservation) = (response.body().bytes(), shared.service.hold());
    let len = bytes.len();
    let compress = move || compress_now(&bytes[5..], 5, coding, reservation);
    let Ok((mut bytes, reservation)) = shared.run_blocking(len, compress).await else { return response };
    let Some(size) = u32::try_from(bytes.len() - 5).ok().filter(|_| bytes.len() < len) else {
        return response;
    };
    bytes[0] = 1;
    bytes[1..5].copy_from_slice(&size.to_be_bytes());
    response.headers_mut().insert(GRPC_ENCODING, HeaderValue::from_static(coding.name()));
    response.map(|reply| reply.with_bytes(bytes, reservation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;

    fn reservation(limit: u64) -> Reservation {
        Reservation::empty(&Budget::new(limit))
    }

    #[test]
    fn what_was_compressed_is_restored() {
        let bytes: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
        for coding in [Coding::Gzip, Coding::Deflate] {
            let (packed, _) = compress_now(&bytes, 0, coding, reservation(1 << 20)).unwrap();
            assert!(packed.len() < bytes.len() / 10);
            let (restored, held) = decompress_now(&packed, coding, 100_000, reservation(1 << 20)).unwrap();
            assert!(restored == bytes, "{coding:?}");
            drop(held);
        }
    }

    #[test]
    fn bombs_and_damaged_bodies_are_errors() {
        let zeros = vec![0; 10 << 20];
        for coding in [Coding::Gzip, Coding::Deflate] {
            let (packed, _) = compress_now(&zeros, 0, coding, reservation(1 << 30)).unwrap();
            assert!(packed.len() < 100_000);
            let of = |body: &[u8], limit: u64, budget: u64| {
                decompress_now(body, coding, limit, reservation(budget)).map(drop).unwrap_err()
            };
            let refusal = of(&packed, 1 << 20, 1 << 30);
            assert_eq!(refusal.reason, Reason::TooLarge);
            assert!(refusal.message.contains("larger than 1048576 bytes"), "{refusal}");
            assert_eq!(of(&packed, 1 << 30, 1 << 20).reason, Reason::TooLarge);
            for damaged in [&packed[..packed.len() - 9], &packed[1..], b"", b"no compressed data"] {
                assert_eq!(of(damaged, 1 << 30, 1 << 30).reason, Reason::Invalid);
            }
            let trailing = [&packed[..], b"more"].concat();
            assert_eq!(of(&trailing, 1 << 30, 1 << 30).reason, Reason::Invalid);
        }
    }

    #[test]
    fn the_coding_with_the_highest_quality_is_accepted() {
        let accepted = |text: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_str(text).unwrap());
            Coding::accepted(&headers)
        };
        assert_eq!(accepted("br, gzip, deflate"), Some(Coding::Gzip));
        assert_eq!(accepted("gzip;q=0.5, deflate; q=0.8"), Some(Coding::Deflate));
        for none in ["", "identity", "gzip;q=0", "br", "gzip;q=x", "*"] {
            assert_eq!(accepted(none), None, "{none}");
        }
    }
}
