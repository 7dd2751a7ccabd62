//! Patches that are copied whole: the pixels that an output pixel reads, tap after tap (im2col). For kernels that
//! overlap little, with reaches or padding too large for copied lines, and for tiles that need long contiguous rows.

use super::super::qgemm::copy_flipped;
use super::super::qgemm::driver::{Fill, RowLayout};
use super::input::{CHUNK, Input};
use std::ops::Range;

/// Rows of copied patches: the input pixels that the taps of an output pixel read.
pub(super) struct Patches<'a> {
    pub(super) input: Input<'a>,
    pub(super) group: usize,
    /// The number of groups; groups that are computed together count as one.
    pub(super) groups: usize,
}

impl Fill for Patches<'_> {
    fn layout(&self, k: usize) -> RowLayout<'_> {
        RowLayout::rows(k)
    }

    fn in_place(&self) -> Option<&[u8]> {
        let Input { p, x, flip, .. } = self.input;
        let is_pointwise = p.tap_count() == 1 && p.stride == [1; 3] && p.padding == [0; 3];
        (flip == 0 && self.groups == 1 && is_pointwise).then_some(x)
    }

    fn fill_block(&self, rows: Range<usize>, step: usize, out: &mut [u8]) {
        let Input { p, frame, .. } = self.input;
        let channels = p.in_channels / self.groups;
        if channels == 0 || p.tap_count() == 0 {
            return;
        }
        // The pixels of a kernel line are contiguous if they are neighbours and all of their channels are read.
        let contiguous = self.groups == 1 && p.dilation[2] == 1;
        let (taps, segments) = if contiguous { (p.kernel[2], 1) } else { (1, p.kernel[2]) };
        let width = frame.output[2];
        let mut row = rows.start;
        while row < rows.end {
            let (line, x) = (row / width, row % width);
            let end = rows.end.min(row - x + width);
            let out = &mut out[(row - rows.start) * step..];
            let mut at = 0;
            for z in 0..p.kernel[0] {
                for y in 0..p.kernel[1] {
                    let line = self.input.line(line, [z * p.dilation[0], y * p.dilation[1]]);
                    for segment in 0..segments {
                        let from =
                            (x * p.stride[2] + segment * p.dilation[2]) as isize - p.padding[2] as isize;
                        let rows = out[at..].chunks_mut(step).take(end - row);
                        // What is left of each row.
                        let rows = rows.map(|row| row.split_at_mut(row.len().min(step - at)).0);
                        self.copy_segments(line, from, taps, end - row, rows);
                        at += taps * channels;
                    }
                }
            }
            row = end;
        }
    }
}

impl Patches<'_> {
    /// Writes the channels of `taps` neighbouring pixels to the front of each of `count` rows: the first row gets the
    /// pixels from `from` on, each further row those a stride further. What follows in a row may be overwritten.
    fn copy_segments<'b>(
        &self,
        line: Option<&[u8]>,
        from: isize,
        taps: usize,
        count: usize,
        mut rows: impl Iterator<Item = &'b mut [u8]>,
    ) {
        let (Input { p, frame, .. }, zero) = (self.input, self.input.zero_byte());
        let channels = p.in_channels / self.groups;
        let len = taps * channels;
        let Some(line) = line else {
            return rows.for_each(|out| out[..len].fill(zero));
        };
        // The rows whose pixels are all in the image.
        let stride = p.stride[2];
        let first = usize::try_from(-from).map_or(0, |outside| outside.div_ceil(stride)).min(count);
        let last = (frame.input[2] as isize - taps as isize).saturating_sub(from);
        let end = usize::try_from(last).map_or(0, |last| last / stride + 1).clamp(first, count);
        let at = |i: usize| from + (i * stride) as isize;
        for i in 0..first {
            self.copy_border(line, at(i), (taps, channels), rows.next());
        }
        let pixel = |i: usize| at(i) as usize * p.in_channels + self.group * channels;
        self.copy_inner(line, (first..end).map(pixel), len, &mut rows);
        for i in end..count {
            self.copy_border(line, at(i), (taps, channels), rows.next());
        }
    }

    /// Writes `len` bytes of `line`, from each offset in `from` on, to the next of `rows`.
    #[inline]
    fn copy_inner<'b>(
        &self,
        line: &[u8],
        from: impl Iterator<Item = usize>,
        len: usize,
        rows: &mut impl Iterator<Item = &'b mut [u8]>,
    ) {
        let flip = u128::from_ne_bytes([self.input.flip; CHUNK]);
        for (from, out) in from.zip(rows) {
            match (line[from..].first_chunk::<CHUNK>(), out.first_chunk_mut::<CHUNK>()) {
                (Some(from), Some(out)) if len <= CHUNK => {
                    *out = (u128::from_ne_bytes(*from) ^ flip).to_ne_bytes();
                }
                _ => copy_flipped(&mut out[..len], &line[from..][..len], self.input.flip),
            }
        }
    }

    /// Writes the channels of neighbouring pixels, some of which are outside the image.
    fn copy_border(
        &self,
        line: &[u8],
        from: isize,
        (taps, channels): (usize, usize),
        out: Option<&mut [u8]>,
    ) {
        let Some(out) = out else { return };
        let (Input { p, frame, .. }, zero) = (self.input, self.input.zero_byte());
        for (t, out) in out[..taps * channels].chunks_exact_mut(channels).enumerate() {
            match usize::try_from(from + t as isize) {
                Ok(i) if i < frame.input[2] => {
                    let from = i * p.in_channels + self.group * channels;
                    copy_flipped(out, &line[from..][..channels], self.input.flip);
                }
                _ => out.fill(zero),
            }
        }
    }
}
