//! Bilinear interpolation.

use super::Raise;
use super::emit::Arg;
use crate::error::Result;
use crate::layout::LayoutViews;
use crate::payload::Node;
use pteron_engine::ValueId;
use pteron_tensor::{ScalarType, Tensor};

/// Fractional bits of the weights with which the reference interpolates quantized values.
const WEIGHT_BITS: i32 = 11;

/// How pixels of the result map to coordinates in the image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Grid {
    /// Pixels are areas, and coordinates are those of their centers (half-pixel centers).
    Centers,
    /// The centers of the corner pixels are aligned.
    Corners,
    /// Pixels are points at integer coordinates.
    Points,
}

/// For each result pixel along a dimension: the image pixels before and after it, and the interpolation weight of the
/// latter.
struct Along {
    before: Vec<i64>,
    behind: Vec<i64>,
    weights: Vec<f32>,
}

impl Along {
    fn new(grid: Grid, from: usize, to: usize) -> Self {
        let less = usize::from(grid == Grid::Corners && to != 1);
        let scale = (from - less) as f32 / (to - less) as f32;
        let last = from - 1;
        let mut along = Self { before: Vec::new(), behind: Vec::new(), weights: Vec::new() };
        for i in 0..to {
            let at = match grid {
                Grid::Centers => (i as f32 * scale + (0.5 * scale - 0.5)).max(0.0).min(last as f32),
                Grid::Corners | Grid::Points => i as f32 * scale,
            };
            let before = (at as usize).min(last);
            along.before.push(before as i64);
            along.behind.push((before + 1).min(last) as i64);
            along.weights.push(at - before as f32);
        }
        along
    }
}

impl Raise<'_> {
    pub(super) fn resize(
        &mut self,
        node: &Node,
        size: [usize; 2],
        align_corners: bool,
        legacy: bool,
    ) -> Result<()> {
        let (v, to) = (node.inputs[0], self.quantizer(node.outputs[0]));
        let image = self.nchw(v)?;
        let sizes = self.emit.sizes(image);
        let out = [sizes[0], sizes[1], size[0], size[1]];
        let unbounded = (f32::NEG_INFINITY, f32::INFINITY);
        let grid = match (align_corners, legacy) {
            (true, _) => Grid::Corners,
            (_, true) => Grid::Points,
            _ => Grid::Centers,
        };
        if sizes.contains(&0) || out.contains(&0) {
            return Err(self.unsupported_error(node));
        }
        let id = match to.filter(|_| self.quantizer(v) == to) {
            Some(q) => {
                let x = self.dequantize_to_units(v, image)?;
                let id = self.interpolate_quantized(x, &out, grid)?;
                self.as_stored_from_units(node, id, q)?
            }
            None if grid == Grid::Points => {
                let x = self.dequantize_value(v, image)?;
                let id = self.interpolate(x, &out, grid)?;
                self.as_stored_within(node, id, unbounded)?
            }
            None => {
                let x = self.dequantize_value(v, image)?;
                let args = vec![Arg::Tensor(x), Arg::pair(size), Arg::Bool(align_corners), Arg::Absent];
                let dtype = self.emit.dtype(x);
                let id = self.emit.call("aten::upsample_bilinear2d.vec_out", args, dtype, &out)?;
                self.as_stored_within(node, id, unbounded)?
            }
        };
        self.set_nchw(node, id)
    }

    /// Interpolates float values: horizontally, then vertically.
    fn interpolate(&mut self, x: ValueId, out: &[usize; 4], grid: Grid) -> Result<ValueId> {
        let dtype = self.emit.dtype(x);
        let weights = |raise: &mut Self, along: &Along, sizes: &[usize]| -> Result<ValueId> {
            let weights = raise.emit.computed_constant(Tensor::from_slice(sizes, &along.weights)?)?;
            raise.emit.cast(weights, dtype)
        };
        let sizes = self.emit.sizes(x);
        let columns = Along::new(grid, sizes[3], out[3]);
        let weight = weights(self, &columns, &[out[3]])?;
        let [a, b] = self.neighbours(x, 3, &columns)?;
        let x = self.lerp(a, b, weight)?;
        let rows = Along::new(grid, sizes[2], out[2]);
        let weight = weights(self, &rows, &[out[2], 1])?;
        let [a, b] = self.neighbours(x, 2, &rows)?;
        self.lerp(a, b, weight)
    }

    /// Interpolates quantized values, in units of their scale, and rounds halves up. Weights have 11 bits, so sums have
    /// 30 bits, which f64 represents exactly.
    fn interpolate_quantized(&mut self, x: ValueId, out: &[usize; 4], grid: Grid) -> Result<ValueId> {
        let unit = 2f64.powi(WEIGHT_BITS);
        let mut x = self.emit.cast(x, ScalarType::Double)?;
        for dim in [3, 2] {
            let along = Along::new(grid, self.emit.sizes(x)[dim], out[dim]);
            let weights: Vec<f64> =
                along.weights.iter().map(|w| f64::from((w * unit as f32).round_ties_even()) / unit).collect();
            let sizes = if dim == 3 { vec![weights.len()] } else { vec![weights.len(), 1] };
            let weights = self.emit.computed_constant(Tensor::from_slice(&sizes, &weights)?)?;
            let [a, b] = self.neighbours(x, dim, &along)?;
            x = self.lerp(a, b, weights)?;
        }
        let half = self.emit.computed_constant(Tensor::from_slice(&[1], &[0.5f64])?)?;
        let args = vec![Arg::Tensor(x), Arg::Tensor(half), Arg::Int(1)];
        let x = self.emit.call("aten::add.out", args, ScalarType::Double, out)?;
        let x = self.emit.call("aten::floor.out", vec![Arg::Tensor(x)], ScalarType::Double, out)?;
        self.emit.cast(x, ScalarType::Float)
    }

    /// The pixels before and after each result along a dimension.
    fn neighbours(&mut self, x: ValueId, dim: usize, along: &Along) -> Result<[ValueId; 2]> {
        let (dtype, mut sizes) = (self.emit.dtype(x), self.emit.sizes(x));
        sizes[dim] = along.before.len();
        let mut select = |indices: &[i64]| -> Result<ValueId> {
            let indices = self.emit.computed_constant(Tensor::from_slice(&[indices.len()], indices)?)?;
            let args = vec![Arg::Tensor(x), Arg::Int(dim as i64), Arg::Tensor(indices)];
            self.emit.call("aten::index_select.out", args, dtype, &sizes)
        };
        Ok([select(&along.before)?, select(&along.behind)?])
    }

    /// Interpolates linearly: `a + (b - a) * weights`.
    fn lerp(&mut self, a: ValueId, b: ValueId, weights: ValueId) -> Result<ValueId> {
        let (dtype, sizes) = (self.emit.dtype(a), self.emit.sizes(a));
        let args = vec![Arg::Tensor(b), Arg::Tensor(a), Arg::Int(1)];
        let step = self.emit.call("aten::sub.out", args, dtype, &sizes)?;
        let args = vec![Arg::Tensor(step), Arg::Tensor(weights)];
        let step = self.emit.call("aten::mul.out", args, dtype, &sizes)?;
        let args = vec![Arg::Tensor(a), Arg::Tensor(step), Arg::Int(1)];
        self.emit.call("aten::add.out", args, dtype, &sizes)
    }
}
