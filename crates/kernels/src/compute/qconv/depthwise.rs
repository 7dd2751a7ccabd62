use super::super::conv::{ConvFrame, ConvParams};
use super::super::isa::Isa;
use super::super::qgemm::epilogue::{Finish, MAX_TILE, Place, QuantizedEpilogue, Tile};
use super::super::quantize::Affine;
use super::super::simd::{Op, Simd, dispatch};
use super::QuantizedImages;
use pool::Pool;

/// Channels that are summed at once.
const CHANNELS: usize = 64;
/// Pixels of a line that are stored at once.
const PIXELS: usize = MAX_TILE / CHANNELS;
/// Multiplications below which work is not divided among threads.
const SPLIT_WORK: usize = 1 << 18;

/// Weights, tap by tap, the channels of each together, padded to whole blocks of [`CHANNELS`].
#[derive(Debug)]
pub(super) struct Depthwise {
    weights: Vec<i32>,
    scales: Vec<f32>,
    padded: usize,
}

impl Depthwise {
    pub(super) fn new(p: &ConvParams, weights: &[i8], scales: &[f32]) -> Self {
        let padded = p.in_channels.next_multiple_of(CHANNELS);
        let mut taps = vec![0; p.taps() * padded];
        for (c, from) in weights.chunks_exact(p.taps()).enumerate() {
            for (t, &w) in from.iter().enumerate() {
                taps[t * padded + c] = i32::from(w);
            }
        }
        let mut all = vec![0.0; padded];
        for (c, scale) in all[..p.in_channels].iter_mut().enumerate() {
            *scale = if scales.len() == 1 { scales[0] } else { scales[c] };
        }
        Self { weights: taps, scales: all, padded }
    }

    /// Convolves images of which `zero` is the zero point as an unsigned byte.
    pub(super) fn run(
        &self,
        isa: Isa,
        pool: &Pool,
        (p, frame): (&ConvParams, &ConvFrame),
        (x, zero): (QuantizedImages<'_>, u8),
        out: Place,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let lines = frame.batch * frame.output[0] * frame.output[1];
        let per_line = frame.output[2] * p.out_channels * p.taps();
        let line = |i: usize| self.line(isa, (p, frame), (&x, zero), i, out, epilogue);
        if pool.threads() == 1 || lines.saturating_mul(per_line) < SPLIT_WORK {
            (0..lines).for_each(line);
        } else {
            let grain = (SPLIT_WORK / 4 / per_line.max(1)).max(1);
            pool.parallel_for(lines, grain, &|range| range.for_each(line));
        }
    }

    /// Computes a line of an output image.
    fn line(
        &self,
        isa: Isa,
        (p, frame): (&ConvParams, &ConvFrame),
        (x, zero): (&QuantizedImages<'_>, u8),
        line: usize,
        out: Place,
        epilogue: &QuantizedEpilogue<'_>,
    ) {
        let [depth, height, width] = frame.output;
        let (n, z, y) = (line / height / depth, line / height % depth, line % height);
        let channels = p.in_channels;
        let len = frame.in_pixels() * channels;
        let image = &x.bytes[n * len..][..len];
        let mut sums = Tile([0i32; MAX_TILE]);
        let mut reals = Tile([0.0f32; MAX_TILE]);
        for first in (0..width).step_by(PIXELS) {
            let pixels = PIXELS.min(width - first);
            for c in (0..channels).step_by(CHANNELS) {
                let count = CHANNELS.min(channels - c);
                for (i, sums) in sums.0.as_chunks_mut::<CHANNELS>().0[..pixels].iter_mut().enumerate() {
                    let weights = &self.weights[c..];
                    let (at, signed) = ([z, y, first + i], x.signed);
                    let block = Block {
                        p,
                        frame,
                        image,
                        zero,
                        signed,
                        at,
                        c,
                        count,
                        weights,
                        step: self.padded,
                        sums,
                    };
                    dispatch(isa, block);
                }
                let finish = Finish {
                    sums: &sums,
                    shift: 0,
                    reals: &mut reals,
                    first: true,
                    last: true,
                    step: CHANNELS,
                    rows: pixels,
                    cols: count,
                    // The zero point is already taken off.
                    params: &[Affine { zero: 0, ..x.affine }],
                    zero: 0,
                    scales: &self.scales[c..],
                    column_sums: &[0; CHANNELS],
                    bias: epilogue.bias.map(|b| &b[c..]),
                    activation: epilogue.activation,
                    out: out.at(line * width + first, c),
                };
                // SAFETY: pixels of this line, which this call alone writes.
                unsafe { finish.run(isa) };
            }
        }
    }
}

/// The sums of some channels of an output pixel.
struct Block<'a> {
    p: &'a ConvParams,
    frame: &'a ConvFrame,
    image: &'a [u8],
    zero: u8,
    signed: bool,
    at: [usize; 3],
    c: usize,
    count: usize,
    weights: &'a [i32],
    /// Weights from one tap to the next.
    step: usize,
    sums: &'a mut [i32; CHANNELS],
}

impl Op for Block<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let (p, frame) = (self.p, self.frame);
        let flip = if self.signed { 0x80 } else { 0 };
        let zero = i32::from(self.zero);
        let mut sums = [0i32; CHANNELS];
        let mut tap = 0;
        let inside = |d: usize, t: usize| {
            let i = (self.at[d] * p.stride[d] + t * p.dilation[d]).checked_sub(p.padding[d]);
            i.filter(|&i| i < frame.input[d])
        };
        for z in 0..p.kernel[0] {
            for y in 0..p.kernel[1] {
                let (Some(z), Some(y)) = (inside(0, z), inside(1, y)) else {
                    tap += p.kernel[2];
                    continue;
                };
                let base = (z * frame.input[1] + y) * frame.input[2];
                for x in 0..p.kernel[2] {
                    if let Some(x) = inside(2, x) {
                        let from = &self.image[(base + x) * p.in_channels + self.c..];
                        let weights = &self.weights[tap * self.step..];
                        if let (Some(from), Some(weights)) = (from.first_chunk(), weights.first_chunk()) {
                            add::<CHANNELS>(&mut sums, from, weights, flip, zero);
                        } else {
                            let both = from[..self.count].iter().zip(weights);
                            for (sum, (&x, &w)) in sums.iter_mut().zip(both) {
                                *sum += (i32::from(x ^ flip) - zero) * w;
                            }
                        }
                    }
                    tap += 1;
                }
            }
        }
        *self.sums = sums;
    }
}

/// Adds a tap. What lies past the channels is read too where it is there, and means nothing.
#[inline(always)]
fn add<const N: usize>(sums: &mut [i32; N], x: &[u8; N], weights: &[i32; N], flip: u8, zero: i32) {
    for ((sum, &x), &w) in sums.iter_mut().zip(x).zip(weights) {
        *sum += (i32::from(x ^ flip) - zero) * w;
    }
}
