//! Builders for the nodes that decompositions emit.

use super::Rewriter;
use crate::dtypes::promote;
use crate::limits::MAX_TABLE;
use crate::operators::int_argument;
use crate::{Error, Result};
use pteron_exported::{
    Argument, ConstantTensor, ExportedNode, IntArgument, Size, TensorSpec, VarId, VarType,
};
use pteron_tensor::{Scalar, ScalarType};
use std::sync::Arc;

impl Rewriter<'_> {
    /// Emits an elementwise operator on one tensor, whose type the result has.
    pub(crate) fn unary(&mut self, target: &'static str, x: VarId) -> VarId {
        let spec = self.spec_of(x);
        self.emit(target, vec![("self", Argument::Var(x))], spec)
    }

    /// Emits an elementwise operator on a tensor and a tensor or scalar; the result has the promoted type.
    pub(crate) fn binary(&mut self, target: &'static str, x: VarId, other: impl Into<Operand>) -> VarId {
        let (other, spec) = self.promote_operand(x, other.into());
        self.emit(target, vec![("self", Argument::Var(x)), ("other", other)], spec)
    }

    /// Elementwise sum.
    pub(crate) fn add(&mut self, x: VarId, other: impl Into<Operand>) -> VarId {
        self.binary("aten.add.Tensor", x, other)
    }

    /// Elementwise difference.
    pub(crate) fn sub(&mut self, x: VarId, other: impl Into<Operand>) -> VarId {
        self.binary("aten.sub.Tensor", x, other)
    }

    /// Elementwise product.
    pub(crate) fn mul(&mut self, x: VarId, other: impl Into<Operand>) -> VarId {
        self.binary("aten.mul.Tensor", x, other)
    }

    /// Elementwise true division.
    pub(crate) fn div(&mut self, x: VarId, other: impl Into<Operand>) -> VarId {
        self.binary("aten.div.Tensor", x, other)
    }

    /// Floor division by a scalar, in the type of the operand.
    pub(crate) fn floor_div(&mut self, x: VarId, other: i64) -> VarId {
        let spec = self.spec_of(x);
        let args = vec![
            ("self", Argument::Var(x)),
            ("other", Argument::Int(other)),
            ("rounding_mode", Argument::Str("floor".into())),
        ];
        self.emit("aten.div.Scalar_mode", args, spec)
    }

    /// The sum over `dims`.
    pub(crate) fn sum(&mut self, x: VarId, dims: &[usize], keep: bool) -> VarId {
        self.reduce("aten.sum.dim_IntList", x, dims, keep)
    }

    /// Whether any element of a mask is true.
    pub(crate) fn any(&mut self, mask: VarId) -> VarId {
        let spec = TensorSpec::contiguous(ScalarType::Bool, Vec::new());
        self.emit("aten.any.default", vec![("self", Argument::Var(mask))], spec)
    }

    /// A mask of the elements that are NaN.
    pub(crate) fn nan_mask(&mut self, x: VarId) -> VarId {
        self.compare("aten.ne.Tensor", x, x)
    }

    /// Emits an elementwise comparison; the result is boolean.
    pub(crate) fn compare(&mut self, target: &'static str, x: VarId, other: impl Into<Operand>) -> VarId {
        let (other, mut spec) = self.promote_operand(x, other.into());
        spec.dtype = ScalarType::Bool;
        self.emit(target, vec![("self", Argument::Var(x)), ("other", other)], spec)
    }

    fn promote_operand(&self, x: VarId, other: Operand) -> (Argument, TensorSpec) {
        let mut spec = self.spec_of(x);
        let arg = match other {
            Operand::Tensor(y) => {
                let y_spec = self.spec_of(y);
                let dtype = match (spec.sizes.is_empty(), y_spec.sizes.is_empty()) {
                    (false, true) if y_spec.dtype.is_floating() <= spec.dtype.is_floating() => spec.dtype,
                    (true, false) if spec.dtype.is_floating() <= y_spec.dtype.is_floating() => y_spec.dtype,
                    _ => promote(spec.dtype, y_spec.dtype),
                };
                let order = if y_spec.rank() > spec.rank() { y_spec.dim_order } else { spec.dim_order };
                let sizes = broadcast_sizes(&spec.sizes, &y_spec.sizes);
                spec = TensorSpec { dtype, sizes, dim_order: order };
                Argument::Var(y)
            }
            Operand::Number(Scalar::Int(v)) => Argument::Int(v),
            Operand::Number(Scalar::Bool(v)) => Argument::Bool(v),
            Operand::Number(Scalar::Double(v)) => {
                if !spec.dtype.is_floating() && !spec.dtype.is_complex() {
                    spec.dtype = ScalarType::Float;
                }
                Argument::Float(v)
            }
        };
        (arg, spec)
    }

    /// `where`: the elements of `x` where the condition is true, those of `y` elsewhere.
    pub(crate) fn choose(&mut self, condition: VarId, x: VarId, y: VarId) -> VarId {
        let (c, a, b) = (self.spec_of(condition), self.spec_of(x), self.spec_of(y));
        let sizes = broadcast_sizes(&broadcast_sizes(&a.sizes, &b.sizes), &c.sizes);
        let dtype = if a.sizes.is_empty() { b.dtype } else { a.dtype };
        let args = vec![
            ("condition", Argument::Var(condition)),
            ("self", Argument::Var(x)),
            ("other", Argument::Var(y)),
        ];
        self.emit("aten.where.self", args, TensorSpec::contiguous(dtype, sizes))
    }

    /// Converts the elements to another type.
    pub(crate) fn cast(&mut self, x: VarId, dtype: ScalarType) -> VarId {
        let mut spec = self.spec_of(x);
        if spec.dtype == dtype {
            return x;
        }
        spec.dtype = dtype;
        self.emit("dim_order_ops._to_dim_order_copy.default", vec![("self", Argument::Var(x))], spec)
    }

    /// Reshapes to `sizes`.
    pub(crate) fn view(&mut self, node: &ExportedNode, x: VarId, sizes: Vec<Size>) -> Result<VarId> {
        let spec = self.spec_of(x);
        if spec.sizes == sizes {
            return Ok(x);
        }
        let arg = self.view_sizes_argument(node, &sizes)?;
        let spec = TensorSpec::contiguous(spec.dtype, sizes);
        Ok(self.emit("aten.view.default", vec![("self", Argument::Var(x)), ("size", arg)], spec))
    }

    /// Permutes the dimensions.
    pub(crate) fn permute(&mut self, x: VarId, dims: &[usize]) -> VarId {
        if dims.iter().enumerate().all(|(i, &d)| i == d) {
            return x;
        }
        let spec = self.spec_of(x);
        let sizes = dims.iter().filter_map(|&d| spec.sizes.get(d).cloned()).collect();
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let args = vec![("self", Argument::Var(x)), ("dims", Argument::ints(&dims))];
        self.emit("aten.permute.default", args, TensorSpec::contiguous(spec.dtype, sizes))
    }

    /// Swaps the last two dimensions.
    pub(crate) fn transpose(&mut self, x: VarId) -> VarId {
        let rank = self.spec_of(x).rank();
        let mut dims: Vec<usize> = (0..rank).collect();
        if let [.., a, b] = dims.as_mut_slice() {
            std::mem::swap(a, b);
        }
        self.permute(x, &dims)
    }

    /// Broadcasts to `sizes`.
    pub(crate) fn expand(&mut self, node: &ExportedNode, x: VarId, sizes: Vec<Size>) -> Result<VarId> {
        let spec = self.spec_of(x);
        if spec.sizes == sizes {
            return Ok(x);
        }
        let arg = self.sizes_argument(node, &sizes)?;
        let spec = TensorSpec::contiguous(spec.dtype, sizes);
        Ok(self.emit("aten.expand.default", vec![("self", Argument::Var(x)), ("size", arg)], spec))
    }

    /// The elements `start..end` of a dimension.
    pub(crate) fn slice(
        &mut self,
        node: &ExportedNode,
        x: VarId,
        dim: usize,
        (start, end): (&Size, &Size),
    ) -> Result<VarId> {
        let mut spec = self.spec_of(x);
        if dim >= spec.rank() {
            return self.dim_out_of_range(node, dim, spec.rank());
        }
        if *start == Size::Int(0) && *end == spec.sizes[dim] {
            return Ok(x);
        }
        let arg = |i: IntArgument| match i {
            IntArgument::Int(v) => Argument::Int(v),
            IntArgument::Var(v) => Argument::Var(v),
        };
        let (first, last) = (self.size_argument(node, start)?, self.size_argument(node, end)?);
        spec.sizes[dim] = end.add(&start.mul(&Size::Int(-1)));
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("start", arg(first)),
            ("end", arg(last)),
        ];
        Ok(self.emit("aten.slice.Tensor", args, TensorSpec::contiguous(spec.dtype, spec.sizes)))
    }

    fn dim_out_of_range<T>(&self, node: &ExportedNode, dim: usize, rank: usize) -> Result<T> {
        self.fail(node, format!("it asks for dimension {dim} of a tensor of {rank}"))
    }

    /// The element at `index` of a dimension, which is removed.
    pub(crate) fn select(&mut self, x: VarId, dim: usize, index: i64) -> VarId {
        let mut spec = self.spec_of(x);
        if dim < spec.rank() {
            spec.sizes.remove(dim);
        }
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("index", Argument::Int(index)),
        ];
        self.emit("aten.select.int", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// Concatenates along a dimension.
    pub(crate) fn cat(&mut self, tensors: &[VarId], dim: usize) -> VarId {
        if let [only] = tensors {
            return *only;
        }
        let mut spec = match tensors.first() {
            Some(&first) => self.spec_of(first),
            None => TensorSpec::contiguous(ScalarType::Float, Vec::new()),
        };
        if let Some(joined) = spec.sizes.get_mut(dim) {
            let size = |t: VarId| self.spec_of(t).sizes.get(dim).cloned().unwrap_or(Size::Int(0));
            *joined = tensors.iter().fold(Size::Int(0), |n, &t| n.add(&size(t)));
        }
        let args = vec![("tensors", Argument::Vars(tensors.to_vec())), ("dim", Argument::Int(dim as i64))];
        self.emit("aten.cat.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// Inserts a dimension of size 1.
    pub(crate) fn unsqueeze(&mut self, node: &ExportedNode, x: VarId, dim: usize) -> Result<VarId> {
        let mut sizes = self.spec_of(x).sizes;
        if dim > sizes.len() {
            return self.dim_out_of_range(node, dim, sizes.len());
        }
        sizes.insert(dim, Size::Int(1));
        self.view(node, x, sizes)
    }

    /// Removes a dimension of size 1.
    pub(crate) fn squeeze(&mut self, node: &ExportedNode, x: VarId, dim: usize) -> Result<VarId> {
        let mut sizes = self.spec_of(x).sizes;
        if dim >= sizes.len() {
            return self.dim_out_of_range(node, dim, sizes.len());
        }
        sizes.remove(dim);
        self.view(node, x, sizes)
    }

    /// Emits a reduction over dimensions.
    pub(crate) fn reduce(&mut self, target: &'static str, x: VarId, dims: &[usize], keep: bool) -> VarId {
        let spec = self.spec_of(x);
        let sizes = reduced_sizes(&spec.sizes, dims, keep);
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::ints(&dims)),
            ("keepdim", Argument::Bool(keep)),
        ];
        self.emit(target, args, TensorSpec::contiguous(spec.dtype, sizes))
    }

    /// The matrix product of two matrices, or of two batches of matrices.
    pub(crate) fn matmul(&mut self, a: VarId, b: VarId) -> VarId {
        let (mut spec, other) = (self.spec_of(a), self.spec_of(b));
        let rank = spec.rank();
        if let (Some(columns), Some(size)) = (spec.sizes.last_mut(), other.sizes.last()) {
            *columns = size.clone();
        }
        let spec = TensorSpec::contiguous(spec.dtype, spec.sizes);
        let (x, y) = (Argument::Var(a), Argument::Var(b));
        match rank {
            2 => self.emit("aten.mm.default", vec![("self", x), ("mat2", y)], spec),
            _ => self.emit("aten.bmm.default", vec![("self", x), ("mat2", y)], spec),
        }
    }

    /// A tensor with the same value in every element.
    pub(crate) fn full(
        &mut self,
        node: &ExportedNode,
        sizes: Vec<Size>,
        value: Argument,
        dtype: ScalarType,
    ) -> Result<VarId> {
        let size = self.sizes_argument(node, &sizes)?;
        let spec = TensorSpec::contiguous(dtype, sizes);
        Ok(self.emit("aten.full.default", vec![("size", size), ("fill_value", value)], spec))
    }

    /// A 0-d constant.
    pub(crate) fn scalar(&mut self, value: Scalar, dtype: ScalarType) -> Result<VarId> {
        self.constant(&[value], dtype, &[])
    }

    /// A constant with these elements in row-major order.
    pub(crate) fn constant(
        &mut self,
        values: &[Scalar],
        dtype: ScalarType,
        sizes: &[usize],
    ) -> Result<VarId> {
        let len = values.len().saturating_mul(dtype.size());
        let charged = self.program.budget.charge("a table of constants", len);
        charged.map_err(|limit| Error::archive("a table of constants", limit.to_string()))?;
        let mut bytes = Vec::with_capacity(len);
        for &value in values {
            match value.to_le_bytes_as(dtype) {
                Some(element) => bytes.extend(element),
                None => return Err(Error::archive("a number", format!("{value} is no {dtype}"))),
            }
        }
        let name = format!("number_{}", self.program.num_vars());
        let constant = ConstantTensor { name: None, range: 0..bytes.len(), bytes: Arc::new(bytes) };
        let sizes = sizes.iter().map(|&s| Size::Int(s as i64)).collect();
        Ok(self.program.add_constant(name, TensorSpec::contiguous(dtype, sizes), constant))
    }

    /// A constant of 64-bit integers.
    pub(crate) fn index_constant(
        &mut self,
        values: impl IntoIterator<Item = usize>,
        sizes: &[usize],
    ) -> Result<VarId> {
        let count = sizes.iter().try_fold(1usize, |n, &size| n.checked_mul(size));
        if count.is_none_or(|count| count > MAX_TABLE) {
            let problem = format!("it has more than {MAX_TABLE} entries");
            return Err(Error::archive("a table of constants", problem));
        }
        let values: Vec<Scalar> = values.into_iter().map(|v| Scalar::Int(v as i64)).collect();
        self.constant(&values, ScalarType::Long, sizes)
    }

    /// `0, 1, ..., count - 1`.
    pub(crate) fn arange(&mut self, node: &ExportedNode, count: &Size, dtype: ScalarType) -> Result<VarId> {
        let end = int_argument(self.size_argument(node, count)?);
        let args = vec![("start", Argument::Int(0)), ("end", end), ("step", Argument::Int(1))];
        let spec = TensorSpec::contiguous(dtype, vec![count.clone()]);
        Ok(self.emit("aten.arange.start", args, spec))
    }

    /// Bounds the elements from below and above; `None` is no bound.
    pub(crate) fn clamp(&mut self, x: VarId, low: Option<f64>, high: Option<f64>) -> VarId {
        let spec = self.spec_of(x);
        let arg = |v: Option<f64>| v.map_or(Argument::None, Argument::Float);
        let args = vec![("self", Argument::Var(x)), ("min", arg(low)), ("max", arg(high))];
        self.emit("aten.clamp.default", args, spec)
    }

    /// Bounds integers from below.
    pub(crate) fn clamp_low(&mut self, x: VarId, low: i64) -> VarId {
        let spec = self.spec_of(x);
        self.emit("aten.clamp.default", vec![("self", Argument::Var(x)), ("min", Argument::Int(low))], spec)
    }

    /// The slices of a dimension at the indices of a 1-d tensor.
    pub(crate) fn index_select(&mut self, x: VarId, dim: usize, index: VarId) -> VarId {
        let mut spec = self.spec_of(x);
        if let Some(size) = spec.sizes.get_mut(dim) {
            *size = self.spec_of(index).sizes.first().cloned().unwrap_or(Size::Int(1));
        }
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("index", Argument::Var(index)),
        ];
        self.emit("aten.index_select.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// `gather`: the elements of a dimension at indices of the same rank.
    pub(crate) fn gather(&mut self, x: VarId, dim: usize, index: VarId) -> VarId {
        let (dtype, sizes) = (self.spec_of(x).dtype, self.spec_of(index).sizes);
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("index", Argument::Var(index)),
        ];
        self.emit("aten.gather.default", args, TensorSpec::contiguous(dtype, sizes))
    }

    /// Pads a dimension at both ends with `value`.
    pub(crate) fn pad(
        &mut self,
        x: VarId,
        dim: usize,
        (before, after): (i64, i64),
        value: impl Into<Scalar>,
    ) -> VarId {
        if (before, after) == (0, 0) {
            return x;
        }
        let mut spec = self.spec_of(x);
        let mut pads = vec![0; 2 * spec.rank().saturating_sub(dim)];
        if let (Some(size), [.., first, last]) = (spec.sizes.get_mut(dim), pads.as_mut_slice()) {
            (*first, *last) = (before, after);
            *size = size.add(&Size::Int(before.saturating_add(after)));
        }
        let value = match value.into() {
            Scalar::Int(v) => Argument::Int(v),
            Scalar::Double(v) => Argument::Float(v),
            Scalar::Bool(v) => Argument::Bool(v),
        };
        let args = vec![("self", Argument::Var(x)), ("pad", Argument::ints(&pads)), ("value", value)];
        self.emit("aten.constant_pad_nd.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// The largest or smallest elements along a dimension, and their indices.
    pub(crate) fn min_or_max(&mut self, x: VarId, dim: usize, largest: bool, keep: bool) -> (VarId, VarId) {
        let spec = self.spec_of(x);
        let target = if largest { "aten.max.dim" } else { "aten.min.dim" };
        let values = TensorSpec::contiguous(spec.dtype, reduced_sizes(&spec.sizes, &[dim], keep));
        let indices = TensorSpec { dtype: ScalarType::Long, ..values.clone() };
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("keepdim", Argument::Bool(keep)),
        ];
        let outs = self.emit_many(target, args, vec![VarType::Tensor(values), VarType::Tensor(indices)]);
        (outs[0], outs[1])
    }

    /// The `count` largest or smallest elements along a dimension, sorted, and their indices. The order of the indices
    /// of equal elements is not defined.
    pub(crate) fn topk(
        &mut self,
        node: &ExportedNode,
        x: VarId,
        dim: usize,
        (count, largest): (&Size, bool),
    ) -> Result<(VarId, VarId)> {
        let mut spec = self.spec_of(x);
        if spec.dtype == ScalarType::Bool {
            // The kernels of the reference runtime order numbers only.
            let numbers = self.cast(x, ScalarType::Byte);
            let (values, places) = self.topk(node, numbers, dim, (count, largest))?;
            return Ok((self.cast(values, ScalarType::Bool), places));
        }
        let k = int_argument(self.size_argument(node, count)?);
        let args = vec![
            ("self", Argument::Var(x)),
            ("k", k),
            ("dim", Argument::Int(dim as i64)),
            ("largest", Argument::Bool(largest)),
            ("sorted", Argument::Bool(true)),
        ];
        if let Some(size) = spec.sizes.get_mut(dim) {
            *size = count.clone();
        }
        let values = TensorSpec::contiguous(spec.dtype, spec.sizes);
        let places = TensorSpec { dtype: ScalarType::Long, ..values.clone() };
        let outs =
            self.emit_many("aten.topk.default", args, vec![VarType::Tensor(values), VarType::Tensor(places)]);
        Ok((outs[0], outs[1]))
    }

    /// Raises elements to a power.
    pub(crate) fn pow(&mut self, x: VarId, exponent: f64) -> VarId {
        let spec = self.spec_of(x);
        let args = vec![("self", Argument::Var(x)), ("exponent", Argument::Float(exponent))];
        self.emit("aten.pow.Tensor_Scalar", args, spec)
    }
}

/// The second operand of an elementwise operator.
pub(crate) enum Operand {
    Tensor(VarId),
    Number(Scalar),
}

impl From<VarId> for Operand {
    fn from(v: VarId) -> Self {
        Self::Tensor(v)
    }
}

impl From<f64> for Operand {
    fn from(v: f64) -> Self {
        Self::Number(Scalar::Double(v))
    }
}

impl From<i64> for Operand {
    fn from(v: i64) -> Self {
        Self::Number(Scalar::Int(v))
    }
}

/// The broadcast of two shapes.
pub(crate) fn broadcast_sizes(a: &[Size], b: &[Size]) -> Vec<Size> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut sizes = long.to_vec();
    let shift = long.len() - short.len();
    for (i, size) in short.iter().enumerate() {
        if sizes[shift + i] == Size::Int(1)
            || (sizes[shift + i].known().is_none() && size.known().is_some_and(|s| s > 1))
        {
            sizes[shift + i] = size.clone();
        }
    }
    sizes
}

/// The sizes of the result of a reduction.
pub(crate) fn reduced_sizes(sizes: &[Size], dims: &[usize], keep: bool) -> Vec<Size> {
    let mut left = Vec::with_capacity(sizes.len());
    for (d, size) in sizes.iter().enumerate() {
        match dims.contains(&d) {
            true if keep => left.push(Size::Int(1)),
            true => {}
            false => left.push(size.clone()),
        }
    }
    left
}
