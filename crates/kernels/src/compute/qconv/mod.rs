//! Convolution of channels-last images of 8-bit values, accumulated in 32-bit integers.
//!
//! A depthwise convolution sums a few taps for each channel; any other is a product of patches by packed weights,
//! with a row for each output pixel. [`qgemm`](super::qgemm()) copies its rows a block at a time: here either lines of
//! the image, which the rows of neighbouring pixels share, or whole patches.

mod depthwise;
mod depthwise_sums;
mod input;
mod lines;
mod patches;
mod quads;
#[cfg_attr(target_arch = "aarch64", path = "taps_neon.rs")]
mod taps;

#[cfg(test)]
mod tests;

use super::conv::{ConvFrame, ConvParams, ConvWeights};
use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::qgemm::conversion;
use super::qgemm::driver::{Fill, Job};
use super::qgemm::epilogue::Params;
use super::qgemm::pack::PANEL;
use super::qgemm::select::SupportedKernel;
use super::qgemm::{PackedWeights, QuantizedEpilogue, QuantizedOut, WeightBits, Weights};
use super::quantize::{Affine, Quantization};
use depthwise::Depthwise;
use input::Input;
use lines::{Lines, Segments};
use patches::Patches;
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Result};

/// Channels-last images of 8-bit values.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedImages<'a> {
    /// The quantized values.
    pub bytes: &'a [u8],
    /// Whether the quantized values are `i8` rather than `u8`.
    pub signed: bool,
    /// The scale and zero point of the values. Padding is zero: the zero point must be a value of the type.
    pub affine: Affine,
}

/// The destination of a quantized convolution: channels-last images.
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
    /// The weights of a matrix product for each group, or for several groups together; and how its rows are read.
    Rows(Vec<PackedWeights>, Reads),
    Depthwise(Depthwise),
}

/// How the rows of a product are read.
#[derive(Clone, Copy, Debug)]
enum Reads {
    /// In segments, from copied lines.
    Lines(Segments),
    /// From copied patches; or from lines, if these are long enough to fill the tiles of a microkernel that has limits
    /// on segments.
    Patches(Option<Segments>),
}

impl QuantizedConv {
    /// Whether a convolution with these parameters is supported: it is not transposed, its sums fit 32 bits, and if it
    /// is depthwise, its kernel and padding are not too large.
    pub fn supports(params: &ConvParams) -> bool {
        let inner = (params.in_channels / params.groups.max(1)).saturating_mul(params.tap_count());
        let fits = !params.is_depthwise() || Depthwise::supports(params);
        !params.transposed && inner <= PackedWeights::MAX_ROWS && fits
    }

    /// Packs dense weights of shape `[out, in / groups, depth, height, width]`, with one scale for all or one for
    /// each output channel. Fails if memory runs out.
    ///
    /// # Panics
    /// If the parameters contradict each other or are not [supported](Self::supports), or the number of weights or
    /// scales does not match them.
    pub fn new(isa: Isa, params: ConvParams, weights: &[i8], scales: &[f32]) -> Result<Self> {
        Self::of(isa, params, &ConvWeights::contiguous(&params, weights), scales)
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
            let (taps, channels) = (params.tap_count(), params.in_channels / params.groups);
            let groups_together = groups_per_product(&params);
            // The inner dimension of a product consists of taps, and within each tap of the channels of its groups.
            let group_outputs = params.out_channels / params.groups;
            let pixel = channels * groups_together;
            let kernel = SupportedKernel::fastest(isa);
            let limits = kernel.segment_limits();
            let all = Segments::of(&params, pixel, kernel.adjacent_rows().max(4));
            let segments = all.filter(|p| {
                let fits = taps / p.taps * p.padded <= PackedWeights::MAX_ROWS;
                fits && limits
                    .is_none_or(|l| group_outputs * groups_together < l.min_columns || p.len < l.min_len)
            });
            let Segments { taps: per_segment, len, padded } =
                segments.unwrap_or(Segments { taps: taps.max(1), len: taps * pixel, padded: taps * pixel });
            let (k, n) = (taps.div_ceil(per_segment) * padded, group_outputs * groups_together);
            let dense = groups_together == 1 && len == padded;
            let step = if dense { weights.step_within_taps() } else { None };
            let mut matrix = AlignedBuffer::zeroed(if step.is_none() { k * n } else { 0 })?;
            let matrix: &mut [i8] = bytemuck::cast_slice_mut(&mut matrix);
            let mut groups = pteron_tensor::memory::with_room(params.groups / groups_together)?;
            for g in 0..params.groups / groups_together {
                let quantized = match step {
                    Some(step) => {
                        MatRef::strided(weights.values_from(g * n), n, k, weights.strides[0], step).t()
                    }
                    None => {
                        for (o, row) in matrix.chunks_exact_mut(k.max(1)).enumerate() {
                            for t in 0..taps {
                                let at = t / per_segment * padded
                                    + t % per_segment * pixel
                                    + o / group_outputs * channels;
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
                let weights = Weights { quantized, bits, scales, group: usize::MAX };
                groups.push(PackedWeights::new(isa, &weights)?);
            }
            let fits_limits = |p: &Segments| limits.is_some_and(|l| p.are_multiples_of(l.unit));
            let reads = segments.map_or_else(|| Reads::Patches(all.filter(fits_limits)), Reads::Lines);
            Algorithm::Rows(groups, reads)
        };
        Ok(Self { isa, params, algorithm })
    }

    /// The number of bytes of memory that the weights own.
    pub fn nbytes(&self) -> usize {
        match &self.algorithm {
            Algorithm::Rows(groups, _) => groups.iter().map(PackedWeights::nbytes).sum(),
            Algorithm::Depthwise(depthwise) => depthwise.nbytes(),
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
        let (flip, lift) = conversion(x.signed);
        let values = if x.signed { -128..=127 } else { 0..=255 };
        assert!(
            values.contains(&x.affine.zero),
            "the zero point {} is not an 8-bit value of the input's type",
            x.affine.zero
        );
        let zero = x.affine.zero + lift;
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
        let input = Input { p, frame, x: x.bytes, zero, flip };
        match &self.algorithm {
            Algorithm::Depthwise(algorithm) => {
                algorithm.run(self.isa, pool, (input, x.affine), out, epilogue)
            }
            Algorithm::Rows(groups, reads) => {
                let n = p.out_channels / groups.len();
                for (g, b) in groups.iter().enumerate() {
                    let run = |kernel: SupportedKernel, fill: &dyn Fill, out: QuantizedOut<'_>| {
                        let (isa, params) = (self.isa, Params::All(x.affine));
                        let epilogue = epilogue.starting_at_column(g * n);
                        Job { kernel, isa, m, fill, zero: lift, params, b, epilogue }.run(pool, out);
                    };
                    let out = out.block(0..m, g * n..(g + 1) * n);
                    let lines = |segments| Lines::new(input, segments, g, groups.len());
                    let patches = || Patches { input, group: g, groups: groups.len() };
                    match *reads {
                        Reads::Lines(segments) => {
                            run(SupportedKernel::for_any_segments(self.isa), &lines(segments), out);
                        }
                        Reads::Patches(segments) => {
                            let kernel = SupportedKernel::fastest(self.isa);
                            let is_efficient = |lines: &Lines<'_>| {
                                kernel.segment_limits().is_some_and(|limits| lines.is_efficient(&limits))
                            };
                            match segments.map(lines).filter(is_efficient) {
                                Some(lines) => run(kernel, &lines, out),
                                None => run(kernel, &patches(), out),
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
fn groups_per_product(p: &ConvParams) -> usize {
    let (k, n) = (p.in_channels / p.groups * p.tap_count(), p.out_channels / p.groups);
    let fits = |many: &usize| {
        p.groups.is_multiple_of(*many) && many * n <= PANEL && many * k <= PackedWeights::MAX_ROWS
    };
    (2..=PANEL).rev().find(fits).unwrap_or(1)
}
