//! Patches of images, line by line: lines of an image are copied with their padding, and neighbouring pixels of the
//! output read pieces of the copy that begin a stride apart. No byte is copied for more than one tap.

use super::super::conv::ConvParams;
use super::super::qgemm::driver::{AMX_STEP, Fill, RowLayout};
use super::{Input, WHOLE, unsigned};
use std::ops::Range;

/// Bytes of the lines that are copied at once, about: they stay in the second cache.
const COPIED: usize = 1 << 16;
/// Bytes of the lines that a line of the output reads, above which it is computed in parts.
const LONG: usize = 1 << 18;
/// Pixels that such a part has at least.
const PART: usize = 32;
/// Most lines, or pixels of a line, by which a patch leaves its first pixel, or the image.
const MAX_REACH: usize = 64;
/// What a piece of a patch is padded to a multiple of.
const UNIT: usize = 4;
/// Bytes past the last row that tiles may read.
const PAST: usize = 64;
/// Rows past the last that tiles may read.
const ROWS_PAST: usize = 16;
/// Pixels of lines that tiles of AMX read at once, and the share of them that must count for it to pay.
const AMX_PIXELS: usize = 16;
const AMX_FULL: f64 = 0.75;

/// The pieces of a patch of so many channels that lie together in lines of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pieces {
    /// Taps of a piece, and its bytes.
    pub(super) taps: usize,
    pub(super) len: usize,
    /// Its weights, padding included.
    pub(super) padded: usize,
}

impl Pieces {
    /// Those that tiles of AMX can read: of whole steps, without padding.
    pub(super) fn are_whole(&self) -> bool {
        self.len == self.padded && self.len.is_multiple_of(AMX_STEP)
    }

    /// `None` if the patches of a convolution are better copied whole.
    pub(super) fn of(p: &ConvParams, channels: usize) -> Option<Self> {
        let reach = reach(p);
        let near = reach.iter().chain(&p.padding).all(|&n| n <= MAX_REACH);
        // Nothing is copied that is not read.
        let dense = (0..2).all(|d| p.stride[d + 1] <= reach[d] + 1);
        let several = p.kernel[1] * p.kernel[2] > 1;
        let taps = if p.dilation[2] == 1 { p.kernel[2] } else { 1 };
        let len = taps * channels;
        (p.kernel[0] == 1 && near && dense && several && channels > 0).then(|| Self {
            taps,
            len,
            padded: len.next_multiple_of(UNIT),
        })
    }
}

/// Lines and pixels of a line from the first tap to the last.
fn reach(p: &ConvParams) -> [usize; 2] {
    std::array::from_fn(|d| p.kernel[d + 1].saturating_sub(1).saturating_mul(p.dilation[d + 1]))
}

/// The lines of a group's channels.
pub(super) struct Lines<'a> {
    input: Input<'a>,
    group: usize,
    channels: usize,
    pieces: Vec<usize>,
    len: usize,
    /// Lines of the image that a line of the output reads.
    tall: usize,
    /// Pixels of a copied line.
    wide: usize,
    /// Pixels of the output in a line, or in a part of one.
    width: usize,
    /// Whether blocks are of whole lines.
    whole: bool,
}

impl<'a> Lines<'a> {
    /// Those of one of so many groups.
    pub(super) fn new(input: Input<'a>, pieces: Pieces, group: usize, groups: usize) -> Self {
        let Input { p, frame, .. } = input;
        let channels = p.in_channels / groups;
        let [reach_y, reach_x] = reach(p);
        let (tall, output) = (reach_y + 1, frame.output[2]);
        let wide = |width: usize| (width - 1) * p.stride[2] + reach_x + 1;
        let bytes = |width: usize| (tall * channels).saturating_mul(wide(width));
        let whole = frame.output[1] > 1 && bytes(output) <= LONG;
        let part = (COPIED / (tall * channels * p.stride[2])).max(PART).min(output);
        let width = if whole { output } else { part };
        let pitch = wide(width) * channels;
        let of_line = |line: usize| {
            let places = (0..p.kernel[2]).step_by(pieces.taps);
            places.map(move |x| line * p.dilation[1] * pitch + x * p.dilation[2] * channels)
        };
        let places = (0..p.kernel[1]).flat_map(of_line).collect();
        Self {
            input,
            group,
            channels,
            pieces: places,
            len: pieces.len,
            tall,
            wide: wide(width),
            width,
            whole,
        }
    }

    /// Whether tiles of AMX read lines without too many pixels that count for nothing.
    pub(super) fn fill_amx(&self) -> bool {
        let read = self.width.next_multiple_of(AMX_PIXELS);
        self.width as f64 >= AMX_FULL * read as f64
    }

    /// Lines of the image that so many of the output read.
    fn read_by(&self, lines: usize) -> usize {
        (lines - 1) * self.input.p.stride[1] + self.tall
    }

    /// Rows that a block has at most.
    fn most(&self) -> usize {
        if !self.whole {
            return self.width;
        }
        let more = (COPIED / self.pitch()).saturating_sub(self.tall) / self.input.p.stride[1];
        (more + 1) * self.width
    }

    /// Bytes from one copied line to the next.
    fn pitch(&self) -> usize {
        self.wide * self.channels
    }

    /// Copies the pixels of a line from one on, which the image may not have.
    fn copy(&self, line: Option<&[u8]>, from: isize, out: &mut [u8]) {
        let Input { p, frame, zero, flip, .. } = self.input;
        let Some(line) = line else {
            return out.fill(zero);
        };
        let before = usize::try_from(-from).unwrap_or(0).min(self.wide);
        let first = usize::try_from(from).unwrap_or(0).min(frame.input[2]);
        let there = (frame.input[2] - first).min(self.wide - before);
        let (left, rest) = out.split_at_mut(before * self.channels);
        left.fill(zero);
        if self.channels == p.in_channels {
            unsigned(
                &mut rest[..there * self.channels],
                &line[first * self.channels..][..there * self.channels],
                flip,
            );
        } else {
            let flips = u128::from_ne_bytes([flip; WHOLE]);
            let mut from = first * p.in_channels + self.group * self.channels;
            for pixel in 0..there {
                let (line, out) = (&line[from..], &mut rest[pixel * self.channels..]);
                match (line.first_chunk::<WHOLE>(), out.first_chunk_mut::<WHOLE>()) {
                    // What is written too much belongs to pixels that follow.
                    (Some(line), Some(out)) if self.channels <= WHOLE => {
                        *out = (u128::from_ne_bytes(*line) ^ flips).to_ne_bytes();
                    }
                    _ => unsigned(&mut out[..self.channels], &line[..self.channels], flip),
                }
                from += p.in_channels;
            }
        }
        rest[there * self.channels..].fill(zero);
    }
}

impl Fill for Lines<'_> {
    fn laid(&self, _: usize) -> RowLayout<'_> {
        let p = self.input.p;
        RowLayout {
            step: p.stride[2] * self.channels,
            width: if self.whole { self.width } else { usize::MAX },
            line: p.stride[1] * self.pitch(),
            pieces: &self.pieces,
            len: self.len,
        }
    }

    fn block(&self, rows: Range<usize>, _: &RowLayout<'_>) -> Range<usize> {
        // No block goes on in another line, or another image.
        let output = self.input.frame.output;
        let unit = if self.whole { output[1] * output[2] } else { output[2] };
        rows.start..rows.end.min(rows.start + self.most().min(unit - rows.start % unit))
    }

    fn bytes(&self, rows: usize, laid: &RowLayout<'_>) -> usize {
        let lines = rows.min(self.most()).div_ceil(self.width);
        self.read_by(lines) * self.pitch() + ROWS_PAST * laid.step + PAST
    }

    fn fill(&self, rows: Range<usize>, _: usize, out: &mut [u8]) {
        let Input { p, frame, .. } = self.input;
        let (line, x) = (rows.start / frame.output[2], rows.start % frame.output[2]);
        let from = (x * p.stride[2]) as isize - p.padding[2] as isize;
        let count = self.read_by(rows.len().div_ceil(self.width));
        for (i, out) in out.chunks_exact_mut(self.pitch()).take(count).enumerate() {
            self.copy(self.input.line(line, [0, i]), from, out);
        }
    }
}
