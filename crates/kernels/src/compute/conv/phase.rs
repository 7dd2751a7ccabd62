//! The phases of a convolution: output pixels that use the same taps, and the weights of those taps as matrices.

use super::super::gemm::{PackedB, WeightStorage};
use super::super::isa::Isa;
use super::super::mat::MatRef;
use super::super::packed_weights::PackedWeightsReader;
use super::super::split::balanced_chunk;
use super::params::ConvParams;
use super::weights::ConvWeights;
use pteron_tensor::{AlignedBuffer, Result};
use std::ops::Range;

/// The largest inner dimension of a block: the number of input channels, summed over the taps.
pub(super) const KC: usize = 256;
/// The maximum number of rows of a block.
pub(super) const MC: usize = 112;

/// The output pixels `first + q * step`, which read the input pixels `q * scale + tap`.
#[derive(Debug)]
pub(super) struct Phase {
    pub(super) first: [usize; 3],
    pub(super) step: [usize; 3],
    pub(super) scale: [usize; 3],
    pub(super) taps: Vec<[isize; 3]>,
    /// The least and the greatest tap along each dimension.
    pub(super) reach: [(isize, isize); 3],
    /// For each group, a matrix of `taps * channels` rows by the output channels of the group.
    pub(super) weights: Vec<PackedB>,
}

/// A part of the inner dimension: a range of taps, and the range of channels that is read at each of them.
#[derive(Clone)]
pub(super) struct Chunk {
    pub(super) taps: Range<usize>,
    pub(super) channels: Range<usize>,
}

/// The first output pixel of each phase of a convolution.
pub(super) fn first_pixels(p: &ConvParams) -> impl Iterator<Item = [usize; 3]> + use<> {
    let [depth, height, width] = if p.transposed { p.stride } else { [1; 3] };
    (0..depth).flat_map(move |z| (0..height).flat_map(move |y| (0..width).map(move |x| [z, y, x])))
}

impl Phase {
    /// The phase that begins at output pixel `first`, without weights, and the indices of its taps in the kernel.
    fn without_weights(p: &ConvParams, first: [usize; 3]) -> (Self, Vec<usize>) {
        let mut taps = Vec::new();
        let mut indices = Vec::new();
        for z in 0..p.kernel[0] {
            for y in 0..p.kernel[1] {
                for x in 0..p.kernel[2] {
                    let at = [z, y, x];
                    let mut tap = [0; 3];
                    let meets = (0..3).all(|d| {
                        let reach = (at[d] * p.dilation[d]) as isize;
                        let pad = p.padding[d] as isize;
                        if !p.transposed {
                            tap[d] = reach - pad;
                            return true;
                        }
                        let distance = first[d] as isize + pad - reach;
                        tap[d] = distance.div_euclid(p.stride[d] as isize);
                        distance.rem_euclid(p.stride[d] as isize) == 0
                    });
                    if meets {
                        taps.push(tap);
                        indices.push((z * p.kernel[1] + y) * p.kernel[2] + x);
                    }
                }
            }
        }
        let (step, scale) = if p.transposed { (p.stride, [1; 3]) } else { ([1; 3], p.stride) };
        let reach = std::array::from_fn(|d| {
            let along = taps.iter().map(|t: &[isize; 3]| t[d]);
            (along.clone().min().unwrap_or(0), along.max().unwrap_or(0))
        });
        (Self { first, step, scale, taps, reach, weights: Vec::new() }, indices)
    }

    pub(super) fn from_packed(
        isa: Isa,
        p: &ConvParams,
        first: [usize; 3],
        storage: WeightStorage<'_>,
        from: &mut PackedWeightsReader,
    ) -> Option<Self> {
        let (phase, _) = Self::without_weights(p, first);
        let (k, co) = (phase.taps.len() * (p.in_channels / p.groups), p.out_channels / p.groups);
        let group = |g: usize| storage.columns_from(g * co);
        let weights = (0..p.groups).map(|g| PackedB::from_packed(isa, group(g), k, co, from));
        Some(Self { weights: weights.collect::<Option<_>>()?, ..phase })
    }

    pub(super) fn new(
        isa: Isa,
        p: &ConvParams,
        weights: &ConvWeights<'_>,
        first: [usize; 3],
        storage: WeightStorage<'_>,
    ) -> Result<Self> {
        let (phase, indices) = Self::without_weights(p, first);
        let taps = &phase.taps;
        let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
        let mut packed = pteron_tensor::memory::with_room(p.groups)?;
        let [outer, inner, _] = weights.strides;
        let strided = match p.transposed {
            false => weights.step_within_taps().map(|step| (co, taps.len() * ci, step)),
            true => (p.tap_count() == 1 && indices == [0]).then_some((ci, co, inner)),
        };
        if let Some((rows, columns, step)) = strided {
            // The weights of a group are a strided matrix, or its transpose.
            for g in 0..p.groups {
                let matrix = MatRef::strided(weights.values_from(g * rows), rows, columns, outer, step);
                let matrix = if p.transposed { matrix } else { matrix.t() };
                packed.push(PackedB::stored_as(isa, storage.columns_from(g * co), matrix)?);
            }
        } else {
            let mut matrix = AlignedBuffer::zeroed(taps.len() * ci * co * size_of::<f32>())?;
            let matrix: &mut [f32] = bytemuck::cast_slice_mut(&mut matrix);
            for g in 0..p.groups {
                if co > 0 {
                    gather_weights(p, weights, g, &indices, matrix);
                }
                let matrix = MatRef::new(matrix, taps.len() * ci, co);
                packed.push(PackedB::stored_as(isa, storage.columns_from(g * co), matrix)?);
            }
        }
        Ok(Self { weights: packed, ..phase })
    }

    /// The number of output pixels of the phase along each dimension.
    pub(super) fn pixel_counts(&self, out: [usize; 3]) -> [usize; 3] {
        std::array::from_fn(|d| out[d].saturating_sub(self.first[d]).div_ceil(self.step[d]))
    }

    /// Splits the inner dimension of `taps` taps by `channels` channels into even chunks of at most `most` elements.
    pub(super) fn chunks(&self, taps: usize, channels: usize, most: usize) -> impl Iterator<Item = Chunk> {
        let some_taps = balanced_chunk(taps, (most / channels.max(1)).max(1));
        let some_channels = balanced_chunk(channels, most);
        (0..taps).step_by(some_taps).flat_map(move |t| {
            let taps = t..taps.min(t + some_taps);
            (0..channels)
                .step_by(some_channels)
                .map(move |c| Chunk { taps: taps.clone(), channels: c..channels.min(c + some_channels) })
        })
    }
}

/// Gathers the weights of a group into a matrix with a row for each of the taps at these indices and each input
/// channel, and a column for each output channel.
fn gather_weights(
    p: &ConvParams,
    weights: &ConvWeights<'_>,
    group: usize,
    indices: &[usize],
    matrix: &mut [f32],
) {
    /// The number of output channels whose weights are read at a time: a cache line of the matrix.
    const LINE: usize = 16;
    let (ci, co, [outer, inner, tap]) =
        (p.in_channels / p.groups, p.out_channels / p.groups, weights.strides);
    if p.transposed {
        let rows = indices.iter().flat_map(|&t| (0..ci).map(move |c| (t, c)));
        for (row, (t, c)) in matrix.chunks_exact_mut(co).zip(rows) {
            let from = weights.values_from(group * ci + c)[t * tap..].iter().step_by(inner);
            row.iter_mut().zip(from).for_each(|(to, &w)| *to = w);
        }
        return;
    }
    for first in (0..co).step_by(LINE) {
        let channels = LINE.min(co - first);
        let from = weights.values_from(group * co + first);
        for c in 0..ci {
            for (i, &t) in indices.iter().enumerate() {
                let line = &mut matrix[(i * ci + c) * co + first..][..channels];
                let weights = from[c * inner + t * tap..].iter().step_by(outer);
                line.iter_mut().zip(weights).for_each(|(to, &w)| *to = w);
            }
        }
    }
}
