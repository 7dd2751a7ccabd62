use super::super::conv::{ConvFrame, ConvParams, ConvWeights};
use super::super::gemm::tile::repeat;
use super::super::isa::Isa;
use super::super::qgemm::epilogue::{Finish, MAX_TILE, Params, QuantizedEpilogue, QuantizedOut, Tile};
use super::super::qgemm::pack::PANEL;
use super::super::qgemm::unsigned;
use super::super::quantize::Affine;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::super::split;
use super::QuantizedImages;
use pool::Pool;
use tensor::Result;
use tensor::memory::filled;

/// Channels that are summed at once, where there are as many.
const CHANNELS: usize = 64;
/// Pixels of a line that are stored at once.
const PIXELS: usize = MAX_TILE / CHANNELS;
/// Multiplications below which work is not divided among threads.
const SPLIT_WORK: usize = split::worth(1 << 18);
/// Most taps: so many products of 8-bit values stay below 2^22, where f32 holds and rounds integers.
const MAX_TAPS: usize = 128;
/// Most pixels by which a line is longer with its padding.
const MAX_PADDING: usize = 4096;

/// Weights, tap by tap, the channels of each together, padded to whole panels.
#[derive(Debug)]
pub(super) struct Depthwise {
    weights: Vec<f32>,
    scales: Vec<f32>,
    /// The sums of the weights of each channel.
    sums: Vec<i32>,
}

impl Depthwise {
    pub(super) fn fits(p: &ConvParams) -> bool {
        let reach = (p.kernel[2] - 1).saturating_mul(p.dilation[2]);
        p.taps() <= MAX_TAPS && reach.saturating_add(2 * p.padding[2]) <= MAX_PADDING
    }

    pub(super) fn new(p: &ConvParams, weights: &ConvWeights<'_, i8>, scales: &[f32]) -> Result<Self> {
        // Blocks of channels may read past the last.
        let padded = p.in_channels.next_multiple_of(PANEL);
        let mut new = Self {
            weights: filled(p.taps() * padded + CHANNELS, 0.0)?,
            scales: filled(padded, 0.0)?,
            sums: filled(padded, 0)?,
        };
        let [channel, _, step] = weights.strides;
        for t in 0..p.taps() {
            let (to, sums) = (&mut new.weights[t * padded..][..p.in_channels], &mut new.sums);
            let from = weights.values.get(t * step..).unwrap_or_default().iter().step_by(channel.max(1));
            for ((to, sum), &w) in to.iter_mut().zip(sums).zip(from) {
                *to = f32::from(w);
                *sum += i32::from(w);
            }
        }
        for (c, to) in new.scales[..p.in_channels].iter_mut().enumerate() {
            *to = if scales.len() == 1 { scales[0] } else { scales[c] };
        }
        Ok(new)
    }

    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.weights) + size_of_val(&*self.scales) + size_of_val(&*self.sums)
    }

    /// Convolves images of which `zero` is the zero point as an unsigned byte.
    pub(super) fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        (p, frame): (&ConvParams, &ConvFrame),
        (x, zero): (QuantizedImages<'_>, u8),
        out: QuantizedOut<'_>,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let lines = frame.batch * frame.output[0] * frame.output[1];
        let per_line = frame.output[2] * p.out_channels * p.taps();
        // Where the taps of a pixel are, from the pixel's first on.
        let width = (frame.output[2] - 1) * p.stride[2] + (p.kernel[2] - 1) * p.dilation[2] + 1;
        let len = width * p.in_channels;
        let taps: Vec<usize> = (0..p.kernel[0] * p.kernel[1])
            .flat_map(|line| (0..p.kernel[2]).map(move |x| line * len + x * p.dilation[2] * p.in_channels))
            .collect();
        let out = out.blocks();
        let line = |i: usize| {
            let pixels = i * frame.output[2]..(i + 1) * frame.output[2];
            // SAFETY: each line has pixels of its own.
            let out = unsafe { out.block(pixels, 0..p.out_channels) };
            let bytes = p.kernel[0] * p.kernel[1] * len + CHANNELS;
            pool::count(bytes);
            scratch::with(bytes.div_ceil(size_of::<f32>()), |scratch| {
                let scratch: &mut [u8] = bytemuck::cast_slice_mut(scratch);
                gather((p, frame), (&x, zero), i, scratch.chunks_exact_mut(len));
                self.line(isa, (p, frame), (scratch, &taps), (x.affine, zero), out, epilogue);
            });
        };
        if pool.threads() == 1 || lines.saturating_mul(per_line) < SPLIT_WORK {
            (0..lines).for_each(line);
        } else {
            let grain = (SPLIT_WORK / 4 / per_line.max(1)).max(1);
            pool.parallel_for(lines, grain, &|range| range.for_each(line));
        }
    }

    /// Computes a line of an output image from the lines that its taps meet.
    fn line(
        &self,
        isa: Isa,
        (p, frame): (&ConvParams, &ConvFrame),
        (lines, taps): (&[u8], &[usize]),
        (affine, zero): (Affine, u8),
        mut out: QuantizedOut<'_>,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let (width, channels) = (frame.output[2], p.in_channels);
        let mut sums = Tile([0i32; MAX_TILE]);
        let mut dequantized = Tile([0.0f32; MAX_TILE]);
        for first in (0..width).step_by(PIXELS) {
            let pixels = PIXELS.min(width - first);
            for c in (0..channels).step_by(CHANNELS) {
                let count = CHANNELS.min(channels - c);
                dispatch(
                    isa,
                    Block {
                        lines: &lines[first * p.stride[2] * channels + c..],
                        step: p.stride[2] * channels,
                        taps,
                        weights: &self.weights[c..],
                        tap_step: self.scales.len(),
                        channels: count,
                        sums: &mut sums.0.as_chunks_mut().0[..pixels],
                    },
                );
                let finish = Finish {
                    sums: &sums,
                    shift: 0,
                    dequantized: &mut dequantized,
                    first: true,
                    last: true,
                    step: CHANNELS,
                    params: Params::All(Affine { zero: i32::from(zero), ..affine }),
                    zero: 0,
                    scales: &self.scales[c..],
                    column_sums: &self.sums[c..],
                    epilogue: epilogue.from(c),
                    out: out.block(first..first + pixels, c..c + count),
                };
                finish.run(isa);
            }
        }
    }
}

/// Copies the lines that an output line's taps meet, as unsigned values, with the padding before and after.
fn gather<'a>(
    (p, frame): (&ConvParams, &ConvFrame),
    (x, zero): (&QuantizedImages<'_>, u8),
    line: usize,
    out: impl Iterator<Item = &'a mut [u8]>,
) {
    let [depth, height, _] = frame.output;
    let (image, at) = (line / height / depth, [line / height % depth, line % height]);
    let flip = if x.signed { 0x80 } else { 0 };
    let line_len = frame.input[2] * p.in_channels;
    let before = p.padding[2] * p.in_channels;
    for (k, out) in out.take(p.kernel[0] * p.kernel[1]).enumerate() {
        let tap = [k / p.kernel[1], k % p.kernel[1]];
        let inside = |d: usize| {
            let i = (at[d] * p.stride[d] + tap[d] * p.dilation[d]).checked_sub(p.padding[d]);
            i.filter(|&i| i < frame.input[d])
        };
        let (Some(z), Some(y)) = (inside(0), inside(1)) else {
            out.fill(zero);
            continue;
        };
        let number = (image * frame.input[0] + z) * frame.input[1] + y;
        let from = &x.bytes[number * line_len..][..line_len];
        let (left, rest) = out.split_at_mut(before.min(out.len()));
        let (middle, right) = rest.split_at_mut(line_len.min(rest.len()));
        left.fill(zero);
        unsigned(middle, &from[..middle.len()], flip);
        right.fill(zero);
    }
}

/// The sums of some channels of neighbouring output pixels.
struct Block<'a> {
    lines: &'a [u8],
    /// Bytes from one pixel to the next.
    step: usize,
    taps: &'a [usize],
    weights: &'a [f32],
    /// Weights from one tap to the next.
    tap_step: usize,
    channels: usize,
    sums: &'a mut [[i32; CHANNELS]],
}

impl Op for Block<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        assert!(!self.sums.is_empty() && self.channels <= CHANNELS);
        let last = (self.sums.len() - 1) * self.step + self.taps.iter().max().unwrap_or(&0);
        assert!(last + CHANNELS <= self.lines.len(), "lines go on past the last channel");
        assert!(
            self.taps.len().saturating_sub(1) * self.tap_step + CHANNELS <= self.weights.len(),
            "so do weights"
        );
        for (i, sums) in self.sums.iter_mut().enumerate() {
            let lines = self.lines[i * self.step..].as_ptr();
            let mut c = 0;
            while c < self.channels {
                let wide = c + 4 * S::LANES <= self.channels.next_multiple_of(PANEL);
                let weights = self.weights[c..].as_ptr();
                // SAFETY: a block of channels lies within `CHANNELS`, of which there are as many bytes and weights from
                // the first tap's on, as was made sure.
                unsafe {
                    let (lines, to) = (lines.add(c), sums.as_mut_ptr().add(c));
                    if wide {
                        block::<S, 4>(s, lines, self.taps, weights, self.tap_step, to);
                    } else {
                        block::<S, 1>(s, lines, self.taps, weights, self.tap_step, to);
                    }
                }
                c += if wide { 4 * S::LANES } else { S::LANES };
            }
        }
    }
}

/// The sums of `V` vectors of channels of a pixel. Those past the last channel mean nothing.
///
/// # Safety
/// As many bytes and weights are there from each tap on, and as many sums can be written.
#[inline(always)]
unsafe fn block<S: Simd, const V: usize>(
    s: S,
    lines: *const u8,
    taps: &[usize],
    weights: *const f32,
    tap_step: usize,
    sums: *mut i32,
) {
    let mut acc = [s.splat(0.0); V];
    for (t, &at) in taps.iter().enumerate() {
        // SAFETY: as the caller promises.
        unsafe {
            repeat!(V, [0 1 2 3], v => {
                let x = s.load_bytes(lines.add(at + v * S::LANES));
                let w = s.load(weights.add(t * tap_step + v * S::LANES));
                acc[v] = s.mul_add(x, w, acc[v]);
            });
        }
    }
    repeat!(V, [0 1 2 3], v => {
        // SAFETY: as the caller promises.
        unsafe { s.store_int(sums.add(v * S::LANES), s.round(acc[v])) };
    });
}
