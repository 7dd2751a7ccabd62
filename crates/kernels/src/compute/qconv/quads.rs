//! Depthwise convolution by dot products of four 8-bit values: the bytes of a channel in four lines of an image are
//! interleaved, so that one dot product covers four taps of a kernel column. Output lines that read the same four
//! lines have separate weights, with zeros for lines that they do not read.

use super::super::conv::{ConvFrame, ConvParams, ConvWeights};
use super::super::isa::Isa;
use super::super::qgemm::columns::{Columns, QUAD};
use super::super::qgemm::finish::MAX_TILE;
use super::super::qgemm::pack::PANEL;
use super::super::qgemm::select::ColumnKernel;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::depthwise_sums::{CHANNELS, FinishLine, Sums, pixels_read_per_line, tap_weights};
use super::input::Input;
use pteron_tensor::Result;
use pteron_tensor::memory::filled;
use std::ops::Range;

/// The weights of a depthwise convolution, in quads: four kernel lines each.
#[derive(Debug)]
pub(super) struct Quads {
    kernel: ColumnKernel,
    /// For each line of a strip, each quad of kernel lines and each kernel column: four weights of each channel.
    weights: Vec<i8>,
    /// The number of quads of lines that a strip reads.
    quads: usize,
    /// The number of lines of the output in a strip.
    lines: usize,
}

impl Quads {
    pub(super) fn supports(p: &ConvParams) -> bool {
        p.kernel[0] == 1
    }

    pub(super) fn new(kernel: ColumnKernel, p: &ConvParams, weights: &ConvWeights<'_, i8>) -> Result<Self> {
        let quads = p.kernel[1].div_ceil(QUAD);
        let spare = quads * QUAD - p.kernel[1];
        let lines = if p.dilation[1] == 1 { spare / p.stride[1] + 1 } else { 1 };
        let padded = p.in_channels.next_multiple_of(PANEL);
        let mut all = filled(lines * quads * p.kernel[2] * padded * QUAD, 0)?;
        for line in 0..lines {
            for t in 0..p.tap_count() {
                let (y, x) = (line * p.stride[1] + t / p.kernel[2], t % p.kernel[2]);
                let column = (line * quads + y / QUAD) * p.kernel[2] + x;
                let to = &mut all[column * padded * QUAD..][..p.in_channels * QUAD];
                let places = to.iter_mut().skip(y % QUAD).step_by(QUAD);
                places.zip(tap_weights(weights, t)).for_each(|(to, w)| *to = w);
            }
        }
        Ok(Self { kernel, weights: all, quads, lines })
    }

    pub(super) fn nbytes(&self) -> usize {
        size_of_val(&*self.weights)
    }

    /// The number of output lines that [`Self::run`] computes together.
    pub(super) fn line_count(&self) -> usize {
        self.lines
    }

    /// The offset of each kernel column from a pixel's first tap in the interleaved lines, quad after quad.
    pub(super) fn tap_offsets(&self, p: &ConvParams, frame: &ConvFrame) -> Vec<usize> {
        let len = pixels_read_per_line(p, frame) * p.in_channels * QUAD;
        let quad = |q| (0..p.kernel[2]).map(move |x| q * len + x * p.dilation[2] * p.in_channels * QUAD);
        (0..self.quads).flat_map(quad).collect()
    }

    /// Computes lines of an output image, counted through all images: at most [`Self::line_count`].
    pub(super) fn run(
        &self,
        isa: Isa,
        input: Input<'_>,
        taps: &[usize],
        lines: Range<usize>,
        finish: FinishLine<'_>,
    ) {
        let (p, frame) = (input.p, input.frame);
        let len = pixels_read_per_line(p, frame) * p.in_channels * QUAD;
        let outside = frame.input[2] * p.in_channels;
        // Vectors extend past the last channel of the last pixel.
        let bytes = self.quads * len + CHANNELS * QUAD + outside;
        pteron_pool::count(bytes);
        scratch::with_buffer(MAX_TILE + bytes.div_ceil(size_of::<f32>()), |scratch| {
            let (tile, bytes) = scratch.split_at_mut(MAX_TILE);
            let bytes: &mut [u8] = bytemuck::cast_slice_mut(bytes);
            let (outside, quads) = bytes.split_at_mut(outside);
            outside.fill(input.zero_byte() ^ input.flip);
            for (q, out) in quads.chunks_exact_mut(len).take(self.quads).enumerate() {
                let after = |i| (q * QUAD + i) * p.dilation[1];
                let line = |i| input.line(lines.start, [0, after(i)]).unwrap_or(outside);
                interleave(isa, input, std::array::from_fn(line), out);
            }
            for (i, line) in lines.enumerate() {
                let step = p.in_channels.next_multiple_of(PANEL) * QUAD;
                let weights = &self.weights[i * taps.len() * step..][..taps.len() * step];
                let line_of = QuadLine { kernel: self.kernel, p, quads, taps, weights, step };
                finish(line, bytemuck::cast_slice_mut(tile), &line_of);
            }
        });
    }
}

/// Interleaves four lines, with the padding before and after them.
fn interleave(isa: Isa, input: Input<'_>, lines: [&[u8]; QUAD], out: &mut [u8]) {
    let out = out.as_chunks_mut::<QUAD>().0;
    let before = input.p.padding[2] * input.p.in_channels;
    let (left, rest) = out.split_at_mut(before.min(out.len()));
    let (middle, right) = rest.split_at_mut(lines[0].len().min(rest.len()));
    left.fill([input.zero_byte(); QUAD]);
    dispatch(isa, Interleave { lines, flip: input.flip, out: middle });
    right.fill([input.zero_byte(); QUAD]);
}

struct Interleave<'a> {
    lines: [&'a [u8]; QUAD],
    flip: u8,
    out: &'a mut [[u8; QUAD]],
}

impl Op for Interleave<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let done = s.interleave(self.lines, self.flip, self.out);
        let ([a, b, c, d], flip) = (self.lines.map(|line| &line[done..]), self.flip);
        for ((((a, b), c), d), out) in a.iter().zip(b).zip(c).zip(d).zip(&mut self.out[done..]) {
            *out = [a ^ flip, b ^ flip, c ^ flip, d ^ flip];
        }
    }
}

struct QuadLine<'a> {
    kernel: ColumnKernel,
    p: &'a ConvParams,
    quads: &'a [u8],
    taps: &'a [usize],
    weights: &'a [i8],
    /// The number of weights from one kernel column to the next.
    step: usize,
}

impl Sums for QuadLine<'_> {
    fn compute_sums(&self, pixels: Range<usize>, channels: Range<usize>, sums: &mut [[i32; CHANNELS]]) {
        let a_step = self.p.stride[2] * self.p.in_channels * QUAD;
        self.kernel.run(&mut Columns {
            a: &self.quads[pixels.start * a_step + channels.start * QUAD..],
            a_step,
            taps: self.taps,
            b: &self.weights[channels.start * QUAD..],
            b_step: self.step,
            columns: channels.len(),
            sums: sums.as_flattened_mut(),
            step: CHANNELS,
        });
    }
}
