//! Convolution of channels-last images of 8-bit values, accumulated in 32-bit integers.
//!
//! A depthwise convolution sums a few taps for each channel; any other is a product of patches by packed weights,
//! with a row for each output pixel. [`qgemm`](super::qgemm) copies its rows a block at a time: here either lines of
//! the image, which the rows of neighbouring pixels share, or whole patches.

mod depthwise;
mod lines;
mod quads;

#[cfg(test)]
mod tests;

use super::conv::{ConvFrame, ConvParams, ConvWeights};
use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::qgemm::driver::{Fill, Job, Path, RowLayout};
use super::qgemm::epilogue::Params;
use super::qgemm::pack::PANEL;
use super::qgemm::{PackedWeights, QuantizedEpilogue, QuantizedOut, WeightBits, Weights, unsigned};
use super::quantize::{Affine, Quantization};
use depthwise::Depthwise;
use lines::{Lines, Segments};
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// Channels-last images of 8-bit values.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedImages<'a> {
    /// The quantized values.
    pub bytes: &'a [u8],
    /// Whether they are `i8` rather than `u8`.
    pub signed: bool,
    /// Their scale and zero point. Padding is zero: the zero point must be a value of the type.
    pub affine: Affine,
}

/// The destination of channels-last images.
#[derive(Debug)]
pub enum QuantizedConvOut<'a> {
    /// Dequantized, as f32.
    Real(&'a mut [f32]),
    /// Requantized: the lowest byte of each quantized value.
    Quantized(&'a mut [u8], Quantization),
}

/// A convolution with packed weights.
#[derive(Debug)]
pub struct QuantizedConv {
    isa: Isa,
    params: ConvParams,
    algorithm: Algorithm,
}

#[derive(Debug)]
enum Algorithm {
    /// For each group, or for some groups together, the weights of a product; and how its rows are read.
    Rows(Vec<PackedWeights>, Reads),
    Depthwise(Depthwise),
}

/// How the rows of a product are read.
#[derive(Clone, Copy, Debug)]
enum Reads {
    /// In segments, from copied lines.
    Lines(Segments),
    /// From copied patches; or with AMX from lines, if these are long enough to fill its tiles.
    Patches(Option<Segments>),
}

/// Output channels and bytes of a segment from which on AMX pays. Its tiles read segments of whole steps, or copies
/// of whole patches: with fewer, copying takes longer than the products of other tiles.
const AMX_CHANNELS: usize = 32;
const AMX_SEGMENT: usize = 32;

impl QuantizedConv {
    /// Whether such a convolution is supported: it is not transposed, and its sums fit 32 bits.
    pub fn supports(params: &ConvParams) -> bool {
        let inner = (params.in_channels / params.groups.max(1)).saturating_mul(params.taps());
        let fits = !params.is_depthwise() || Depthwise::fits(params);
        !params.transposed && inner <= PackedWeights::MAX_ROWS && fits
    }

    /// Packs dense weights of shape `[out, in / groups, depth, height, width]`, with one scale for all or one for
    /// each output channel. Fails if memory runs out.
    ///
    /// # Panics
    /// If the parameters contradict each other or are not [supported](Self::supports), or the number of weights or
    /// scales does not match them.
    pub fn new(isa: Isa, params: ConvParams, weights: &[i8], scales: &[f32]) -> Result<Self> {
        Self::of(isa, params, &ConvWeights::plain(&params, weights), scales)
    }

    /// As [`Self::new`], for weights with dimensions in any order.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub fn of(isa: Isa, params: ConvParams, weights: &ConvWeights<'_, i8>, scales: &[f32]) -> Result<Self> {
        params.check();
        assert!(Self::supports(&params), "no quantized form of {params:?}");
        weights.check(&params);
        assert!(scales.len() == 1 || scales.len() == params.out_channels, "scales of {params:?}");
        let algorithm = if params.is_depthwise() {
            Algorithm::Depthwise(Depthwise::new(isa, &params, weights, scales)?)
        } else {
            let (taps, channels) = (params.taps(), params.in_channels / params.groups);
            let groups_together = groups_together(&params);
            // The inner dimension of a product consists of taps, and within each tap of the channels of its groups.
            let own = params.out_channels / params.groups;
            let pixel = channels * groups_together;
            let is_amx = Path::of(isa).is_amx();
            let all = Segments::of(&params, pixel);
            let segments = all.filter(|p| {
                let fits = taps / p.taps * p.padded <= PackedWeights::MAX_ROWS;
                fits && (!is_amx || own * groups_together < AMX_CHANNELS || p.len < AMX_SEGMENT)
            });
            let Segments { taps: per_segment, len, padded } =
                segments.unwrap_or(Segments { taps: taps.max(1), len: taps * pixel, padded: taps * pixel });
            let (k, n) = (taps.div_ceil(per_segment) * padded, own * groups_together);
            let dense = groups_together == 1 && len == padded;
            let step = if dense { weights.step_within_taps() } else { None };
            let mut matrix = AlignedBuffer::zeroed(if step.is_none() { k * n } else { 0 })?;
            let matrix: &mut [i8] = bytemuck::cast_slice_mut(&mut matrix);
            let mut groups = pteron_tensor::memory::with_room(params.groups / groups_together)?;
            for g in 0..params.groups / groups_together {
                let quantized = match step {
                    Some(step) => MatRef::strided(weights.from(g * n), n, k, weights.strides[0], step).t(),
                    None => {
                        for (o, row) in matrix.chunks_exact_mut(k.max(1)).enumerate() {
                            for t in 0..taps {
                                let at =
                                    t / per_segment * padded + t % per_segment * pixel + o / own * channels;
                                let row = &mut row[at..][..channels];
                                let weights_of_tap = row.iter_mut().enumerate();
                                weights_of_tap.for_each(|(c, x)| *x = weights.at(g * n + o, c, t));
                            }
                        }
                        MatRef::new(matrix, n, k).t()
                    }
                };
                let scales = if scales.len() == 1 { scales } else { &scales[g * n..][..n] };
                let bits = WeightBits::Eight;
                groups.push(PackedWeights::new(&Weights { quantized, bits, scales, group: usize::MAX })?);
            }
            let reads = segments
                .map_or_else(|| Reads::Patches(all.filter(|p| is_amx && p.are_whole())), Reads::Lines);
            Algorithm::Rows(groups, reads)
        };
        Ok(Self { isa, params, algorithm })
    }

    /// Bytes of memory that the weights own.
    pub fn bytes(&self) -> usize {
        match &self.algorithm {
            Algorithm::Rows(groups, _) => groups.iter().map(PackedWeights::bytes).sum(),
            Algorithm::Depthwise(depthwise) => depthwise.bytes(),
        }
    }

    /// Convolves `frame.batch` images of `x` into `out`: `activation((sums + offset) * scales + bias)`. Runs in
    /// parallel on `pool` if there is enough work.
    ///
    /// # Panics
    /// If the length of a slice does not match the frame, or the zero point is not a value of the type.
    pub fn run(
        &self,
        pool: &Pool,
        frame: &ConvFrame,
        x: QuantizedImages<'_>,
        out: QuantizedConvOut<'_>,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let p = &self.params;
        let elements = |pixels: [usize; 3], channels: usize| {
            pixels.iter().chain([&channels, &frame.batch]).try_fold(1usize, |n, &d| n.checked_mul(d))
        };
        let length = match &out {
            QuantizedConvOut::Real(out) => out.len(),
            QuantizedConvOut::Quantized(out, _) => out.len(),
        };
        assert_eq!(Some(x.bytes.len()), elements(frame.input, p.in_channels), "input of {p:?} for {frame:?}");
        assert_eq!(Some(length), elements(frame.output, p.out_channels), "output of {p:?} for {frame:?}");
        let lift = i32::from(x.signed) * 128;
        let zero = u8::try_from(x.affine.zero.saturating_add(lift));
        let zero = zero.unwrap_or_else(|_| {
            panic!("the zero point {} is not an 8-bit value of the input's type", x.affine.zero)
        });
        epilogue.check(p.out_channels);
        if length == 0 {
            return;
        }
        let m = frame.batch * frame.out_pixels();
        let mut out = match out {
            QuantizedConvOut::Real(out) => QuantizedOut::Real(MatMut::new(out, m, p.out_channels)),
            QuantizedConvOut::Quantized(out, q) => {
                QuantizedOut::Quantized(MatMut::new(out, m, p.out_channels), q)
            }
        };
        let flip = if x.signed { 0x80 } else { 0 };
        let input = Input { p, frame, x: x.bytes, zero, flip };
        match &self.algorithm {
            Algorithm::Depthwise(algorithm) => {
                algorithm.run(self.isa, pool, (input, x.affine), out, epilogue)
            }
            Algorithm::Rows(groups, reads) => {
                let n = p.out_channels / groups.len();
                for (g, b) in groups.iter().enumerate() {
                    let run = |path: Path, fill: &dyn Fill, out: QuantizedOut<'_>| {
                        let (isa, params) = (self.isa, Params::All(x.affine));
                        let epilogue = epilogue.from(g * n);
                        Job { path, isa, m, fill, zero: lift, params, b, epilogue }.run(pool, out);
                    };
                    let out = out.block(0..m, g * n..(g + 1) * n);
                    let lines = |segments| Lines::new(input, segments, g, groups.len());
                    let patches = || Patches { input, group: g, groups: groups.len() };
                    match *reads {
                        Reads::Lines(segments) => run(Path::for_segments(self.isa), &lines(segments), out),
                        Reads::Patches(segments) => {
                            match segments.map(lines).filter(Lines::amx_utilization_ok) {
                                Some(lines) => run(Path::of(self.isa), &lines, out),
                                None => run(Path::of(self.isa), &patches(), out),
                            }
                        }
                    }
                }
            }
        }
    }
}

/// How many neighbouring groups to compute as one, with weights of zero where an output channel does not read an
/// input channel: as many as fill a panel of columns, which a group of few channels would leave mostly empty.
fn groups_together(p: &ConvParams) -> usize {
    let (k, n) = (p.in_channels / p.groups * p.taps(), p.out_channels / p.groups);
    let fits = |many: &usize| {
        p.groups.is_multiple_of(*many) && many * n <= PANEL && many * k <= PackedWeights::MAX_ROWS
    };
    (2..=PANEL).rev().find(fits).unwrap_or(1)
}

/// The images that a convolution reads.
#[derive(Clone, Copy)]
struct Input<'a> {
    p: &'a ConvParams,
    frame: &'a ConvFrame,
    x: &'a [u8],
    /// Read in place of pixels outside the image: zero, as an unsigned value.
    zero: u8,
    /// The bits that differ between quantized values and unsigned ones.
    flip: u8,
}

/// Rows of copied patches: the input pixels that the taps of an output pixel read.
struct Patches<'a> {
    input: Input<'a>,
    group: usize,
    /// The number of groups; those that are computed together count as one.
    groups: usize,
}

/// Bytes that are copied at once for a segment of at most as many, where more may be read and written.
const CHUNK: usize = 16;

impl Fill for Patches<'_> {
    fn layout(&self, k: usize) -> RowLayout<'_> {
        RowLayout::rows(k)
    }

    fn fill(&self, rows: Range<usize>, step: usize, out: &mut [u8]) {
        let Input { p, frame, .. } = self.input;
        let channels = p.in_channels / self.groups;
        if channels == 0 || p.taps() == 0 {
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
                        self.segments(line, from, taps, end - row, rows);
                        at += taps * channels;
                    }
                }
            }
            row = end;
        }
    }
}

impl<'a> Input<'a> {
    /// The input line that a line of the output, counted through all images, reads `after` planes and lines after its
    /// first tap; `None` if it is outside the image.
    fn line(&self, line: usize, after: [usize; 2]) -> Option<&'a [u8]> {
        let (p, frame) = (self.p, self.frame);
        let at = [line / frame.output[1] % frame.output[0], line % frame.output[1]];
        let mut pixel = line / frame.output[1] / frame.output[0];
        for d in 0..2 {
            let i = (at[d] * p.stride[d] + after[d]).checked_sub(p.padding[d])?;
            if i >= frame.input[d] {
                return None;
            }
            pixel = pixel * frame.input[d] + i;
        }
        let len = frame.input[2] * p.in_channels;
        Some(&self.x[pixel * len..][..len])
    }
}

impl Patches<'_> {
    /// Writes the channels of `taps` neighbouring pixels to the front of each of `count` rows: the first row gets the
    /// pixels from `from` on, each further row those a stride further. What follows in a row may be overwritten.
    fn segments<'b>(
        &self,
        line: Option<&[u8]>,
        from: isize,
        taps: usize,
        count: usize,
        mut rows: impl Iterator<Item = &'b mut [u8]>,
    ) {
        let Input { p, frame, zero, .. } = self.input;
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
            self.border(line, at(i), (taps, channels), rows.next());
        }
        let pixel = |i: usize| at(i) as usize * p.in_channels + self.group * channels;
        self.inner(line, (first..end).map(pixel), len, &mut rows);
        for i in end..count {
            self.border(line, at(i), (taps, channels), rows.next());
        }
    }

    /// Writes `len` bytes of the line from each of these offsets on.
    #[inline]
    fn inner<'b>(
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
                _ => unsigned(&mut out[..len], &line[from..][..len], self.input.flip),
            }
        }
    }

    /// Writes the channels of neighbouring pixels, some of which are outside the image.
    fn border(&self, line: &[u8], from: isize, (taps, channels): (usize, usize), out: Option<&mut [u8]>) {
        let Some(out) = out else { return };
        let Input { p, frame, zero, .. } = self.input;
        for (t, out) in out[..taps * channels].chunks_exact_mut(channels).enumerate() {
            match usize::try_from(from + t as isize) {
                Ok(i) if i < frame.input[2] => {
                    let from = i * p.in_channels + self.group * channels;
                    unsigned(out, &line[from..][..channels], self.input.flip);
                }
                _ => out.fill(zero),
            }
        }
    }
}
