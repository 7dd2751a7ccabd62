//! Depthwise convolution: sums of a few taps for each channel.

use super::super::conv::{ConvFrame, ConvParams, ConvWeights};
use super::super::isa::Isa;
use super::super::qgemm::copy_flipped;
use super::super::qgemm::epilogue::{Params, QuantizedEpilogue, QuantizedOut};
use super::super::qgemm::finish::{Finish, MAX_TILE};
use super::super::qgemm::pack::PANEL;
use super::super::qgemm::select::ColumnKernel;
use super::super::quantize::Affine;
use super::super::scratch;
use super::super::split;
use super::depthwise_sums::{CHANNELS, FinishLine, Sums, pixels_read_per_line, tap_weights};
use super::input::Input;
use super::quads::Quads;
use super::taps::{Block, Weight};
use pteron_pool::Pool;
use pteron_tensor::Result;
use pteron_tensor::memory::filled;
use std::ops::Range;

/// The number of pixels of a line whose results are stored together.
const PIXELS: usize = MAX_TILE / CHANNELS;
/// The least number of multiplications that is divided among threads.
const SPLIT_WORK: usize = split::reduced_under_miri(1 << 18);
/// The largest number of taps: sums of that many products of 8-bit values stay below 2^22, where f32 holds and rounds
/// integers exactly.
const MAX_TAPS: usize = 128;
/// The maximum number of pixels by which the kernel and the padding extend a line.
const MAX_PADDING: usize = 4096;

/// Weights, scales and sums of the channels, padded to whole panels.
#[derive(Debug)]
pub(super) struct Depthwise {
    taps: Taps,
    scales: Vec<f32>,
    /// The sums of the weights of each channel.
    sums: Vec<i32>,
}

#[derive(Debug)]
enum Taps {
    /// The weights tap by tap; the channels of a tap are contiguous.
    Single(Vec<Weight>),
    Quads(Quads),
}

impl Depthwise {
    pub(super) fn supports(p: &ConvParams) -> bool {
        let reach = (p.kernel[2] - 1).saturating_mul(p.dilation[2]);
        p.tap_count() <= MAX_TAPS && reach.saturating_add(2 * p.padding[2]) <= MAX_PADDING
    }

    pub(super) fn new(
        isa: Isa,
        p: &ConvParams,
        weights: &ConvWeights<'_, i8>,
        scales: &[f32],
    ) -> Result<Self> {
        let padded = p.in_channels.next_multiple_of(PANEL);
        let (mut of_channels, mut sums) = (filled(padded, 0.0)?, filled(padded, 0)?);
        for t in 0..p.tap_count() {
            for (sum, w) in sums.iter_mut().zip(tap_weights(weights, t)) {
                *sum += i32::from(w);
            }
        }
        for (c, to) in of_channels[..p.in_channels].iter_mut().enumerate() {
            *to = if scales.len() == 1 { scales[0] } else { scales[c] };
        }
        let taps = match ColumnKernel::fastest(isa) {
            Some(kernel) if Quads::supports(p) && p.kernel[1] >= kernel.min_lines() => {
                Taps::Quads(Quads::new(kernel, p, weights)?)
            }
            _ => {
                // Blocks of channels may read past the last channel.
                let mut all = filled(p.tap_count() * padded + CHANNELS, Weight::default())?;
                for (t, to) in all.chunks_exact_mut(padded.max(1)).take(p.tap_count()).enumerate() {
                    to[..p.in_channels]
                        .iter_mut()
                        .zip(tap_weights(weights, t))
                        .for_each(|(to, w)| *to = Weight::from(w));
                }
                Taps::Single(all)
            }
        };
        Ok(Self { taps, scales: of_channels, sums })
    }

    pub(super) fn nbytes(&self) -> usize {
        let taps = match &self.taps {
            Taps::Single(weights) => size_of_val(&**weights),
            Taps::Quads(quads) => quads.nbytes(),
        };
        taps + size_of_val(&*self.scales) + size_of_val(&*self.sums)
    }

    /// Convolves images whose quantized values have the scale and zero point `affine`.
    pub(super) fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        (input, affine): (Input<'_>, Affine),
        out: QuantizedOut<'_>,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let (p, frame) = (input.p, input.frame);
        let [depth, height, width] = frame.output;
        // Lines of the output that are computed together.
        let at_once = match &self.taps {
            Taps::Single(_) => 1,
            Taps::Quads(quads) => quads.line_count(),
        };
        let strips = height.div_ceil(at_once);
        let count = frame.batch * depth * strips;
        let per_strip = at_once.saturating_mul(width * p.out_channels * p.tap_count());
        let out = out.blocks();
        let affine = Affine { zero: input.zero, ..affine };
        let taps = match &self.taps {
            Taps::Single(_) => Single::tap_offsets(p, frame),
            Taps::Quads(quads) => quads.tap_offsets(p, frame),
        };
        let finish = |line: usize, tile: &mut [i32], sums: &dyn Sums| {
            // SAFETY: each line has pixels of its own.
            let out = unsafe { out.block(line * width..(line + 1) * width, 0..p.out_channels) };
            self.compute_line(isa, affine, sums, tile, out, epilogue);
        };
        let strip = |i: usize| {
            let (plane, y) = (i / strips * height, i % strips * at_once);
            let lines = plane + y..plane + height.min(y + at_once);
            match &self.taps {
                Taps::Single(weights) => {
                    let single = Single { isa, input, weights, tap_step: self.scales.len(), taps: &taps };
                    single.run_line(lines.start, &finish);
                }
                Taps::Quads(quads) => quads.run(isa, input, &taps, lines, &finish),
            }
        };
        if pool.threads() == 1 || count.saturating_mul(per_strip) < SPLIT_WORK {
            (0..count).for_each(strip);
        } else {
            let grain = (SPLIT_WORK / 4 / per_strip.max(1)).max(1);
            pool.parallel_for(count, grain, &|range| range.for_each(strip));
        }
    }

    /// Computes a line of an output image from the sums of that line; `tile` holds a part of the sums at a time.
    fn compute_line(
        &self,
        isa: Isa,
        affine: Affine,
        sums: &dyn Sums,
        tile: &mut [i32],
        mut out: QuantizedOut<'_>,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let (width, channels) = out.shape();
        for first in (0..width).step_by(PIXELS) {
            let pixels = first..width.min(first + PIXELS);
            for c in (0..channels).step_by(CHANNELS) {
                let count = CHANNELS.min(channels - c);
                sums.compute_sums(pixels.clone(), c..c + count, &mut tile.as_chunks_mut().0[..pixels.len()]);
                let finish = Finish {
                    sums: tile,
                    groups: 0..1,
                    group_step: 0,
                    shift: 0,
                    dequantized: &mut [],
                    step: CHANNELS,
                    params: Params::All(affine),
                    zero: 0,
                    scales: &self.scales[c..],
                    column_sums: &self.sums[c..],
                    panel_step: PANEL,
                    epilogue: epilogue.starting_at_column(c),
                    out: out.block(pixels.clone(), c..c + count),
                };
                finish.run(isa);
            }
        }
    }
}

/// Computes sums tap by tap.
struct Single<'a> {
    isa: Isa,
    input: Input<'a>,
    weights: &'a [Weight],
    /// The number of weights from one tap to the next.
    tap_step: usize,
    taps: &'a [usize],
}

impl Single<'_> {
    /// The offset of each tap's input from that of a pixel's first tap.
    fn tap_offsets(p: &ConvParams, frame: &ConvFrame) -> Vec<usize> {
        let len = pixels_read_per_line(p, frame) * p.in_channels;
        let line = |line| (0..p.kernel[2]).map(move |x| line * len + x * p.dilation[2] * p.in_channels);
        (0..p.kernel[0] * p.kernel[1]).flat_map(line).collect()
    }

    fn run_line(&self, line: usize, finish: FinishLine<'_>) {
        let (p, frame) = (self.input.p, self.input.frame);
        let len = pixels_read_per_line(p, frame) * p.in_channels;
        let bytes = p.kernel[0] * p.kernel[1] * len + CHANNELS;
        pteron_pool::count(bytes);
        scratch::with_buffer(MAX_TILE + bytes.div_ceil(size_of::<f32>()), |scratch| {
            let (tile, lines) = scratch.split_at_mut(MAX_TILE);
            let lines: &mut [u8] = bytemuck::cast_slice_mut(lines);
            for (k, out) in lines.chunks_exact_mut(len).take(p.kernel[0] * p.kernel[1]).enumerate() {
                let after = [k / p.kernel[1] * p.dilation[0], k % p.kernel[1] * p.dilation[1]];
                self.gather_line(line, after, out);
            }
            finish(line, bytemuck::cast_slice_mut(tile), &SingleLine { single: self, lines });
        });
    }

    /// Copies the input line that a kernel line reads, with the padding before and after it.
    fn gather_line(&self, line: usize, after: [usize; 2], out: &mut [u8]) {
        let (Input { p, flip, .. }, zero) = (self.input, self.input.zero_byte());
        let Some(from) = self.input.line(line, after) else {
            return out.fill(zero);
        };
        let before = p.padding[2] * p.in_channels;
        let (left, rest) = out.split_at_mut(before.min(out.len()));
        let (middle, right) = rest.split_at_mut(from.len().min(rest.len()));
        left.fill(zero);
        copy_flipped(middle, &from[..middle.len()], flip);
        right.fill(zero);
    }
}

struct SingleLine<'a> {
    single: &'a Single<'a>,
    lines: &'a [u8],
}

impl Sums for SingleLine<'_> {
    fn compute_sums(&self, pixels: Range<usize>, channels: Range<usize>, sums: &mut [[i32; CHANNELS]]) {
        let Single { isa, input: Input { p, .. }, weights, tap_step, taps } = *self.single;
        let step = p.stride[2] * p.in_channels;
        let block = Block {
            lines: &self.lines[pixels.start * step + channels.start..],
            step,
            taps,
            weights: &weights[channels.start..],
            tap_step,
            channels: channels.len(),
            sums,
        };
        block.run(isa);
    }
}
