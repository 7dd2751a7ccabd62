//! Convolution of channels-last images of 8-bit values, summed in 32-bit integers.
//!
//! A depthwise convolution reads its image directly; any other is a product of rows of patches, which
//! [`qgemm`](super::qgemm) copies a block at a time anyway, by weights packed for it.

mod depthwise;

#[cfg(test)]
mod tests;

use super::conv::{ConvFrame, ConvParams};
use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::qgemm::driver::{Fill, Job, Path};
use super::qgemm::epilogue::Params;
use super::qgemm::{PackedWeights, QuantizedEpilogue, QuantizedOut, WeightBits, Weights, unsigned};
use super::quantize::{Affine, Quantization};
use depthwise::Depthwise;
use pool::Pool;
use std::ops::Range;
use tensor::{AlignedBuffer, Result};

/// Images of 8-bit values, channels last.
#[derive(Clone, Copy, Debug)]
pub struct QuantizedImages<'a> {
    /// The quantized values.
    pub bytes: &'a [u8],
    /// Whether they are `i8`; else they are `u8`.
    pub signed: bool,
    /// What they stand for. Padding is zero: the zero point is a number of the type.
    pub affine: Affine,
}

/// Where images go, channels last.
#[derive(Debug)]
pub enum QuantizedConvOut<'a> {
    /// As f32.
    Real(&'a mut [f32]),
    /// Quantized: each number as its lowest byte.
    Quantized(&'a mut [u8], Quantization),
}

/// A convolution with its weights laid out.
#[derive(Debug)]
pub struct QuantizedConv {
    isa: Isa,
    params: ConvParams,
    form: Form,
}

#[derive(Debug)]
enum Form {
    /// For each group the weights of a product.
    Rows(Vec<PackedWeights>),
    Depthwise(Depthwise),
}

impl QuantizedConv {
    /// Whether there is code for such a convolution: it is not transposed, and its sums fit 32 bits.
    pub fn supports(params: &ConvParams) -> bool {
        let inner = (params.in_channels / params.groups.max(1)).saturating_mul(params.taps());
        let fits = !params.is_depthwise() || Depthwise::fits(params);
        !params.transposed && inner <= PackedWeights::MAX_ROWS && fits
    }

    /// Lays out weights of shape `[out, in / groups, depth, height, width]`, dense, with one scale for all or one
    /// for each output channel. Fails if the memory cannot be had.
    ///
    /// # Panics
    /// If the parameters contradict each other or are not [supported](Self::supports), or there is another
    /// number of weights or scales.
    pub fn new(isa: Isa, params: ConvParams, weights: &[i8], scales: &[f32]) -> Result<Self> {
        params.check();
        assert!(Self::supports(&params), "no quantized form of {params:?}");
        assert_eq!(weights.len(), params.weights(), "weights of {params:?}");
        assert!(scales.len() == 1 || scales.len() == params.out_channels, "scales of {params:?}");
        let form = if params.is_depthwise() {
            Form::Depthwise(Depthwise::new(&params, weights, scales)?)
        } else {
            let (taps, channels) = (params.taps(), params.in_channels / params.groups);
            let (k, n) = (taps * channels, params.out_channels / params.groups);
            // The rows of a product are taps, and of each its channels.
            let mut matrix = AlignedBuffer::zeroed(k * n)?;
            let matrix: &mut [i8] = bytemuck::cast_slice_mut(&mut matrix);
            let mut groups = tensor::memory::with_room(params.groups)?;
            for g in 0..params.groups {
                for (o, row) in matrix.chunks_exact_mut(k.max(1)).enumerate() {
                    let from = &weights[(g * n + o) * k..][..k];
                    for (t, row) in row.chunks_exact_mut(channels).enumerate() {
                        row.iter_mut().enumerate().for_each(|(c, x)| *x = from[c * taps + t]);
                    }
                }
                let quantized = MatRef::new(matrix, n, k).t();
                let scales = if scales.len() == 1 { scales } else { &scales[g * n..][..n] };
                let bits = WeightBits::Eight;
                groups.push(PackedWeights::new(&Weights { quantized, bits, scales, group: usize::MAX })?);
            }
            Form::Rows(groups)
        };
        Ok(Self { isa, params, form })
    }

    /// Bytes that the weights take.
    pub fn bytes(&self) -> usize {
        match &self.form {
            Form::Rows(groups) => groups.iter().map(PackedWeights::bytes).sum(),
            Form::Depthwise(depthwise) => depthwise.bytes(),
        }
    }

    /// Convolves `frame.batch` images of `x` into `out`: `activation((sums + offset) * scales + bias)`. Divided among the threads of
    /// `pool` if it is large enough.
    ///
    /// # Panics
    /// If a slice has not the size that the frame says, or the zero point is not a number of the type.
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
        let zero = zero.unwrap_or_else(|_| panic!("a zero point of {} in bytes", x.affine.zero));
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
        match &self.form {
            Form::Depthwise(form) => form.run(self.isa, pool, (p, frame), (x, zero), out, epilogue),
            Form::Rows(groups) => {
                let n = p.out_channels / p.groups;
                for (g, b) in groups.iter().enumerate() {
                    let flip = if x.signed { 0x80 } else { 0 };
                    let patches = Patches { p, frame, x: x.bytes, zero, flip, group: g };
                    Job {
                        path: Path::of(self.isa),
                        isa: self.isa,
                        m,
                        fill: &patches,
                        zero: lift,
                        params: Params::All(x.affine),
                        b,
                        epilogue: epilogue.from(g * n),
                    }
                    .run(pool, out.block(0..m, g * n..(g + 1) * n));
                }
            }
        }
    }
}

/// The input pixels that the taps of an output pixel read.
struct Patches<'a> {
    p: &'a ConvParams,
    frame: &'a ConvFrame,
    x: &'a [u8],
    /// What is read where the image has no pixel.
    zero: u8,
    flip: u8,
    group: usize,
}

impl Fill for Patches<'_> {
    fn fill(&self, rows: Range<usize>, step: usize, out: &mut [u8]) {
        let (p, frame) = (self.p, self.frame);
        let channels = p.in_channels / p.groups;
        if channels == 0 || p.taps() == 0 {
            return;
        }
        // The pixels of a line of the kernel lie together, if they are neighbours and all of their channels count.
        let together = p.groups == 1 && p.dilation[2] == 1;
        let (taps, pieces) = if together { (p.kernel[2], 1) } else { (1, p.kernel[2]) };
        let width = frame.output[2];
        let mut row = rows.start;
        while row < rows.end {
            let (line, x) = (row / width, row % width);
            let end = rows.end.min(row - x + width);
            let out = &mut out[(row - rows.start) * step..];
            let mut at = 0;
            for z in 0..p.kernel[0] {
                for y in 0..p.kernel[1] {
                    let line = self.line(line, [z, y]);
                    for piece in 0..pieces {
                        let from = (x * p.stride[2] + piece * p.dilation[2]) as isize - p.padding[2] as isize;
                        let out = out[at..].chunks_mut(step).take(end - row);
                        self.pieces(line, from, taps, out);
                        at += taps * channels;
                    }
                }
            }
            row = end;
        }
    }
}

impl<'a> Patches<'a> {
    /// The line of the image that a line of the kernel meets for a line of the output, if there is one.
    fn line(&self, line: usize, tap: [usize; 2]) -> Option<&'a [u8]> {
        let (p, frame) = (self.p, self.frame);
        let at = [line / frame.output[1] % frame.output[0], line % frame.output[1]];
        let mut pixel = line / frame.output[1] / frame.output[0];
        for d in 0..2 {
            let i = (at[d] * p.stride[d] + tap[d] * p.dilation[d]).checked_sub(p.padding[d])?;
            if i >= frame.input[d] {
                return None;
            }
            pixel = pixel * frame.input[d] + i;
        }
        let len = frame.input[2] * p.in_channels;
        Some(&self.x[pixel * len..][..len])
    }

    /// Writes the channels of `taps` neighbouring pixels to the front of each of `out`: of those from `from` on, and
    /// then of those a stride further each.
    fn pieces<'b>(
        &self,
        line: Option<&[u8]>,
        mut from: isize,
        taps: usize,
        out: impl Iterator<Item = &'b mut [u8]>,
    ) {
        let p = self.p;
        let (all, channels) = (p.in_channels, p.in_channels / p.groups);
        let (group, len) = (self.group * channels, taps * channels);
        let last = self.frame.input[2].checked_sub(taps);
        for out in out {
            let out = &mut out[..len];
            match (line, usize::try_from(from)) {
                (None, _) => out.fill(self.zero),
                (Some(line), Ok(i)) if last.is_some_and(|last| i <= last) => {
                    unsigned(out, &line[i * all + group..][..len], self.flip);
                }
                (Some(line), _) => {
                    for (t, out) in out.chunks_exact_mut(channels).enumerate() {
                        match usize::try_from(from + t as isize) {
                            Ok(i) if i < self.frame.input[2] => {
                                unsigned(out, &line[i * all + group..][..channels], self.flip);
                            }
                            _ => out.fill(self.zero),
                        }
                    }
                }
            }
            from += p.stride[2] as isize;
        }
    }
}
