//! Patches that are read from lines: lines of an image are copied with their padding, and neighbouring output pixels
//! read segments of the copy that begin a stride apart. Each byte is copied once, not once a tap.
//!
//! XNNPACK's indirect convolution (Dukhan, "The Indirect Convolution Algorithm", 2019) copies nothing, but reads a
//! pointer for each tap of each pixel. Here values have to be copied in any case, to be of one signedness and padded, and the
//! copies are laid out so that the taps of all pixels of a block are at the same few offsets: a tile reads neither
//! pointers nor the padding of an image as a special case.

use super::super::conv::ConvParams;
use super::super::qgemm::copy_flipped;
use super::super::qgemm::driver::{Fill, RowLayout};
use super::super::qgemm::tile::SegmentLimits;
use super::input::{CHUNK, Input};
use std::ops::Range;

/// The approximate number of bytes of the lines that are copied at once: they stay in the L2 cache.
const COPIED: usize = 1 << 16;
/// The maximum number of bytes of the input lines of one output line; a longer output line is computed in parts.
const MAX_LINE_BYTES: usize = 1 << 18;
/// The fewest pixels of a part of an output line, except for the last part.
const MIN_PART: usize = 32;
/// The largest extent of the kernel beyond its first tap, and largest padding, along each dimension.
const MAX_REACH: usize = 64;
/// The number of bytes past the last row that tiles may read.
const PAST: usize = 64;
/// The number of rows past the last that tiles may read.
const ROWS_PAST: usize = 16;

/// How patches divide into segments: parts that are contiguous in lines of pixels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Segments {
    /// The number of taps in a segment; `len` is the number of bytes.
    pub(super) taps: usize,
    pub(super) len: usize,
    /// The number of weights of a segment, padding included.
    pub(super) padded: usize,
}

impl Segments {
    /// Whether the length of a segment is a multiple of `unit` bytes, without padding.
    pub(super) fn are_multiples_of(&self, unit: usize) -> bool {
        self.len == self.padded && self.len.is_multiple_of(unit)
    }

    /// The segments of a convolution's patches, padded to multiples of `unit` bytes; `None` if it is faster to copy whole
    /// patches.
    pub(super) fn of(p: &ConvParams, channels: usize, unit: usize) -> Option<Self> {
        let reach = kernel_reach(p);
        let near = reach.iter().chain(&p.padding).all(|&n| n <= MAX_REACH);
        // All copied pixels are read.
        let dense = (0..2).all(|d| p.stride[d + 1] <= reach[d] + 1);
        let several = p.kernel[1] * p.kernel[2] > 1;
        let taps = if p.dilation[2] == 1 { p.kernel[2] } else { 1 };
        let len = taps * channels;
        (p.kernel[0] == 1 && near && dense && several && channels > 0).then(|| Self {
            taps,
            len,
            padded: len.next_multiple_of(unit),
        })
    }
}

/// Extent of the kernel beyond its first tap, in lines and in pixels.
fn kernel_reach(p: &ConvParams) -> [usize; 2] {
    std::array::from_fn(|d| p.kernel[d + 1].saturating_sub(1).saturating_mul(p.dilation[d + 1]))
}

/// The rows of a product, read from lines of the channels of one group.
pub(super) struct Lines<'a> {
    input: Input<'a>,
    group: usize,
    channels: usize,
    segments: Vec<usize>,
    len: usize,
    /// The number of lines of the image that one line of the output reads.
    lines_read: usize,
    /// The number of pixels of a copied line.
    line_pixels: usize,
    /// The number of output pixels in a line or, if lines are computed in parts, in a part.
    width: usize,
    /// Whether blocks consist of whole lines.
    whole_lines: bool,
}

impl<'a> Lines<'a> {
    /// The lines of group `group` of `groups`.
    pub(super) fn new(input: Input<'a>, segments: Segments, group: usize, groups: usize) -> Self {
        let Input { p, frame, .. } = input;
        let channels = p.in_channels / groups;
        let [reach_y, reach_x] = kernel_reach(p);
        let (lines_read, output) = (reach_y + 1, frame.output[2]);
        let line_pixels = |width: usize| (width - 1) * p.stride[2] + reach_x + 1;
        let bytes = |width: usize| (lines_read * channels).saturating_mul(line_pixels(width));
        let whole_lines = frame.output[1] > 1 && bytes(output) <= MAX_LINE_BYTES;
        let part = (COPIED / (lines_read * channels * p.stride[2])).max(MIN_PART).min(output);
        let width = if whole_lines { output } else { part };
        let pitch = line_pixels(width) * channels;
        let of_line = |line: usize| {
            let places = (0..p.kernel[2]).step_by(segments.taps);
            places.map(move |x| line * p.dilation[1] * pitch + x * p.dilation[2] * channels)
        };
        let places = (0..p.kernel[1]).flat_map(of_line).collect();
        Self {
            input,
            group,
            channels,
            segments: places,
            len: segments.len,
            lines_read,
            line_pixels: line_pixels(width),
            width,
            whole_lines,
        }
    }

    /// Whether enough of the pixels that tiles compute in a line are output pixels, rather than pixels past its end.
    pub(super) fn is_efficient(&self, limits: &SegmentLimits) -> bool {
        let read = self.width.next_multiple_of(limits.pixels);
        self.width as f64 >= limits.min_utilization * read as f64
    }

    /// The number of input lines that `lines` output lines read.
    fn input_line_count(&self, lines: usize) -> usize {
        (lines - 1) * self.input.p.stride[1] + self.lines_read
    }

    /// The maximum number of rows of a block.
    fn max_rows(&self) -> usize {
        if !self.whole_lines {
            return self.width;
        }
        let more = (COPIED / self.line_pitch()).saturating_sub(self.lines_read) / self.input.p.stride[1];
        (more + 1) * self.width
    }

    /// The number of bytes from one copied line to the next.
    fn line_pitch(&self) -> usize {
        self.line_pixels * self.channels
    }

    /// Copies a line from pixel `from` on, with padding for pixels outside the image.
    fn copy_line(&self, line: Option<&[u8]>, from: isize, out: &mut [u8]) {
        let (Input { p, frame, flip, .. }, zero) = (self.input, self.input.zero_byte());
        let Some(line) = line else {
            return out.fill(zero);
        };
        let before = usize::try_from(-from).unwrap_or(0).min(self.line_pixels);
        let first = usize::try_from(from).unwrap_or(0).min(frame.input[2]);
        let there = (frame.input[2] - first).min(self.line_pixels - before);
        let (left, rest) = out.split_at_mut(before * self.channels);
        left.fill(zero);
        if self.channels == p.in_channels {
            copy_flipped(
                &mut rest[..there * self.channels],
                &line[first * self.channels..][..there * self.channels],
                flip,
            );
        } else {
            let flips = u128::from_ne_bytes([flip; CHUNK]);
            let mut from = first * p.in_channels + self.group * self.channels;
            for pixel in 0..there {
                let (line, out) = (&line[from..], &mut rest[pixel * self.channels..]);
                match (line.first_chunk::<CHUNK>(), out.first_chunk_mut::<CHUNK>()) {
                    // Bytes written in excess belong to pixels that follow.
                    (Some(line), Some(out)) if self.channels <= CHUNK => {
                        *out = (u128::from_ne_bytes(*line) ^ flips).to_ne_bytes();
                    }
                    _ => copy_flipped(&mut out[..self.channels], &line[..self.channels], flip),
                }
                from += p.in_channels;
            }
        }
        rest[there * self.channels..].fill(zero);
    }
}

impl Fill for Lines<'_> {
    fn layout(&self, _: usize) -> RowLayout<'_> {
        let p = self.input.p;
        RowLayout {
            step: p.stride[2] * self.channels,
            width: if self.whole_lines { self.width } else { usize::MAX },
            line: p.stride[1] * self.line_pitch(),
            segments: &self.segments,
            len: self.len,
        }
    }

    fn block_rows(&self, rows: Range<usize>, _: &RowLayout<'_>, _: usize) -> Range<usize> {
        // No block continues in another line or another image.
        let output = self.input.frame.output;
        let unit = if self.whole_lines { output[1] * output[2] } else { output[2] };
        rows.start..rows.end.min(rows.start + self.max_rows().min(unit - rows.start % unit))
    }

    fn block_bytes(&self, rows: usize, layout: &RowLayout<'_>, _: usize) -> usize {
        let lines = rows.min(self.max_rows()).div_ceil(self.width);
        self.input_line_count(lines) * self.line_pitch() + ROWS_PAST * layout.step + PAST
    }

    fn fill_block(&self, rows: Range<usize>, _: usize, out: &mut [u8]) {
        let Input { p, frame, .. } = self.input;
        let (line, x) = (rows.start / frame.output[2], rows.start % frame.output[2]);
        let from = (x * p.stride[2]) as isize - p.padding[2] as isize;
        let count = self.input_line_count(rows.len().div_ceil(self.width));
        for (i, out) in out.chunks_exact_mut(self.line_pitch()).take(count).enumerate() {
            self.copy_line(self.input.line(line, [0, i]), from, out);
        }
    }
}
