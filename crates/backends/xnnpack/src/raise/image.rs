//! Nodes of images: convolutions, poolings, interpolation.

use super::emit::In;
use super::{Form, Raise};
use crate::error::{Result, fail};
use crate::payload::{Conv, Node, Pool};
use graph::ValueId;
use tensor::{DimOrder, ScalarType, TensorMeta};

/// A convolution's weights as the graph has them, `[out, in / groups, kernel..]`, or transposed
/// `[in, out / groups, kernel..]`: sizes, and for each dimension of what is stored the graph's.
pub(super) struct Filter {
    pub(super) sizes: [usize; 4],
    pub(super) order: [u8; 4],
    pub(super) groups: usize,
    pub(super) transposed: bool,
}

impl Filter {
    fn plain(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self {
            sizes: [conv.outputs(), conv.group_inputs, h, w],
            order: [0, 2, 3, 1],
            groups: conv.groups,
            transposed: false,
        }
    }

    /// Of a depthwise convolution, stored as `[1, kernel.., out]`.
    fn depthwise(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self { sizes: [conv.outputs(), 1, h, w], order: [1, 2, 3, 0], groups: conv.groups, transposed: false }
    }

    /// Of a transposed convolution, stored as `[out, kernel.., in / groups]`.
    fn transposed(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self {
            sizes: [conv.group_inputs, conv.outputs(), h, w],
            order: [1, 2, 3, 0],
            groups: conv.groups,
            transposed: true,
        }
    }

    /// The meta under which what is stored is read.
    pub(super) fn meta(&self, dtype: ScalarType) -> Result<TensorMeta> {
        let order = DimOrder::new(&self.order)?;
        Ok(TensorMeta::new(dtype, &self.sizes, order)?)
    }
}

/// What a convolution computes, but for its operands.
pub(super) struct Spec {
    pub(super) conv: Conv,
    pub(super) filter: Filter,
    /// Sizes of the result, `[N, C, H, W]`.
    pub(super) out: [usize; 4],
    /// Zeros above and left.
    pub(super) padding: [usize; 2],
    /// What is added below and right of a transposed result.
    pub(super) extra: [usize; 2],
}

impl Spec {
    /// The arguments of the operator behind input, weights and bias.
    pub(super) fn args(&self) -> Vec<In> {
        let ints = |pair: [usize; 2]| In::Ints(pair.map(|n| n as i64).to_vec());
        let Conv { stride, dilation, .. } = self.conv;
        let transposed = In::Bool(self.filter.transposed);
        vec![
            ints(stride),
            ints(self.padding),
            ints(dilation),
            transposed,
            ints(self.extra),
            In::Int(self.filter.groups as i64),
        ]
    }
}

impl Raise<'_> {
    pub(super) fn convolution(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        self.forward(node, conv, Filter::plain(conv))
    }

    pub(super) fn depthwise(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        self.forward(node, conv, Filter::depthwise(conv))
    }

    fn forward(&mut self, node: &Node, conv: &Conv, filter: Filter) -> Result<()> {
        if node.flags & 4 != 0 {
            return fail("padding that follows TensorFlow's rule (flag 4) is not supported here");
        }
        let v = node.inputs[0];
        let image = self.image(v)?;
        let zero = self.quantizer(v).map_or(In::Real(0.0), |q| In::Int(i64::from(q.zero)));
        let (x, padding) = self.padded(image, conv.padding, [usize::MAX; 2], zero)?;
        let sizes = self.emit.sizes(x);
        self.need_channels(&sizes, conv)?;
        let space =
            |d: usize| windows(sizes[2 + d], padding[d], conv.kernel[d], conv.stride[d], conv.dilation[d]);
        let out = [sizes[0], conv.outputs(), space(0)?, space(1)?];
        self.weighted(node, x, &Spec { conv: *conv, filter, out, padding, extra: [0; 2] })
    }

    pub(super) fn transposed_convolution(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        let x = self.image(node.inputs[0])?;
        let sizes = self.emit.sizes(x);
        self.need_channels(&sizes, conv)?;
        let [top, right, bottom, left] = conv.padding;
        let mut extra = [0; 2];
        let mut out = [sizes[0], conv.outputs(), 0, 0];
        for (d, (before, behind)) in [(top, bottom), (left, right)].into_iter().enumerate() {
            // The operator cuts as much behind as before, and adds what is missing.
            let reach = (conv.kernel[d] - 1) * conv.dilation[d] + 1;
            let all = (sizes[2 + d].saturating_sub(1))
                .saturating_mul(conv.stride[d])
                .saturating_add(reach + conv.adjustment[d]);
            extra[d] = (before + conv.adjustment[d]).checked_sub(behind).unwrap_or(usize::MAX);
            let fits = sizes[2 + d] > 0 && extra[d] < conv.stride[d].max(conv.dilation[d]);
            match all.checked_sub(before + behind) {
                Some(n) if fits && n > 0 && n <= u32::MAX as usize => out[2 + d] = n,
                _ => {
                    return fail(format!(
                        "padding {:?} of a transposed convolution is not supported here",
                        conv.padding
                    ));
                }
            }
        }
        let spec = Spec { conv: *conv, filter: Filter::transposed(conv), out, padding: [top, left], extra };
        self.weighted(node, x, &spec)
    }

    fn need_channels(&self, sizes: &[usize], conv: &Conv) -> Result<()> {
        if sizes[1] == conv.inputs() {
            return Ok(());
        }
        fail(format!("an image of {} channels for a convolution of {}", sizes[1], conv.inputs()))
    }

    fn weighted(&mut self, node: &Node, x: ValueId, spec: &Spec) -> Result<()> {
        if self.quantizer(node.inputs[0]).is_some() {
            return self.quantized_convolution(node, x, spec);
        }
        let (filter, bias) = if self.values[node.inputs[0]].by_row.is_some() {
            let weights = self.real_weights(node, node.inputs[1])?;
            let filter = self.stored_filter(spec, spec.filter.meta(ScalarType::Float)?, &weights)?;
            (filter, node.inputs.get(2).map(|&b| self.real_bias(node, b)).transpose()?)
        } else {
            self.need_reals(node)?;
            (self.filter(node.inputs[1], spec)?, node.inputs.get(2).map(|&b| self.plain(b)).transpose()?)
        };
        let bias = bias.map_or(In::Absent, In::Tensor);
        let args = [In::Tensor(x), In::Tensor(filter), bias].into_iter().chain(spec.args()).collect();
        let dtype = self.emit.dtype(x);
        let id = self.emit.call("aten::convolution.out", args, dtype, &spec.out)?;
        let id = self.stored(node, id)?;
        self.set_image(node, id)
    }

    /// The weights of a convolution as the graph has them.
    fn filter(&mut self, v: usize, spec: &Spec) -> Result<ValueId> {
        let value = &self.payload.values[v];
        if value.constant().is_none() {
            return fail("weights that are not constant are not supported here");
        }
        let bytes = self.data.of(value)?.clone();
        let meta = spec.filter.meta(super::scalar_type(value.datatype))?;
        let stored = self.emit.shared(meta, bytes);
        self.grouped(spec, stored)
    }

    /// Weights as the graph has them, from those that are read as they are stored: of a transposed convolution of
    /// several groups from `[in / groups, groups * out, kernel..]` to `[groups * in, out, kernel..]`.
    pub(super) fn grouped(&mut self, spec: &Spec, stored: ValueId) -> Result<ValueId> {
        if !spec.filter.transposed || spec.filter.groups == 1 {
            return Ok(stored);
        }
        let [inputs, outputs, h, w] = spec.filter.sizes;
        let groups = spec.filter.groups;
        let plain = self.emit.permute(stored, &[1, 0, 2, 3])?;
        let split = self.emit.view(plain, &[groups, outputs / groups, inputs, h, w])?;
        let moved = self.emit.permute(split, &[0, 2, 1, 3, 4])?;
        self.emit.view(moved, &[groups * inputs, outputs / groups, h, w])
    }

    /// An image that is padded where the operator cannot: not the same on both sides, or of more than `most` pixels.
    /// Gives what is left above and left, which is as much as below and right.
    fn padded(
        &mut self,
        x: ValueId,
        padding: [usize; 4],
        most: [usize; 2],
        value: In,
    ) -> Result<(ValueId, [usize; 2])> {
        let [top, right, bottom, left] = padding;
        if top == bottom && left == right && top <= most[0] && left <= most[1] {
            return Ok((x, [top, left]));
        }
        let mut sizes = self.emit.sizes(x);
        sizes[2] = sizes[2].saturating_add(top + bottom);
        sizes[3] = sizes[3].saturating_add(left + right);
        let pad = [left, right, top, bottom].map(|n| n as i64).to_vec();
        let dtype = self.emit.dtype(x);
        let args = vec![In::Tensor(x), In::Ints(pad), value];
        Ok((self.emit.call("aten::constant_pad_nd.out", args, dtype, &sizes)?, [0; 2]))
    }

    pub(super) fn max_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        if node.flags & 4 != 0 {
            return fail("padding that follows TensorFlow's rule (flag 4) is not supported here");
        }
        let (from, to) = (self.quantizer(node.inputs[0]), self.quantizer(node.outputs[0]));
        if from != to {
            return Err(self.unsupported(node));
        }
        let image = self.image(node.inputs[0])?;
        let x = self.units(node.inputs[0], image)?;
        let most = pool.window.map(|n| n / 2);
        let (x, padding) = self.padded(x, pool.padding, most, In::Real(f64::NEG_INFINITY))?;
        let sizes = self.emit.sizes(x);
        let space =
            |d: usize| windows(sizes[2 + d], padding[d], pool.window[d], pool.stride[d], pool.dilation[d]);
        let out = [sizes[0], sizes[1], space(0)?, space(1)?];
        let ints = |pair: [usize; 2]| In::Ints(pair.map(|n| n as i64).to_vec());
        let args = vec![
            In::Tensor(x),
            ints(pool.window),
            ints(pool.stride),
            ints(padding),
            ints(pool.dilation),
            In::Bool(false),
        ];
        let dtype = self.emit.dtype(x);
        let name = "aten::max_pool2d_with_indices.out";
        let id = self.emit.calls(name, args, &[(dtype, &out), (ScalarType::Long, &out)])?[0];
        let id = match to {
            Some(q) => self.stored_units(node, id, q)?,
            None => self.stored(node, id)?,
        };
        self.set_image(node, id)
    }

    pub(super) fn avg_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        let [top, right, bottom, left] = pool.padding;
        let symmetric =
            top == bottom && left == right && 2 * top <= pool.window[0] && 2 * left <= pool.window[1];
        if !symmetric || node.flags & 4 != 0 || pool.dilation != [1; 2] {
            return fail(format!(
                "average pooling of padding {:?}, dilation {:?} is not supported here",
                pool.padding, pool.dilation
            ));
        }
        let v = node.inputs[0];
        let image = self.image(v)?;
        let x = self.reals(v, image)?;
        let sizes = self.emit.sizes(x);
        let padding = [top, left];
        let space = |d: usize| windows(sizes[2 + d], padding[d], pool.window[d], pool.stride[d], 1);
        let out = [sizes[0], sizes[1], space(0)?, space(1)?];
        let ints = |pair: [usize; 2]| In::Ints(pair.map(|n| n as i64).to_vec());
        let args = vec![
            In::Tensor(x),
            ints(pool.window),
            ints(pool.stride),
            ints(padding),
            In::Bool(false),
            In::Bool(false),
            In::Absent,
        ];
        let dtype = self.emit.dtype(x);
        let id = self.emit.call("aten::avg_pool2d.out", args, dtype, &out)?;
        let id = self.stored(node, id)?;
        self.set_image(node, id)
    }

    pub(super) fn global_avg_pool(&mut self, node: &Node, keep_dims: bool) -> Result<()> {
        let v = node.inputs[0];
        let image = self.image(v)?;
        let x = self.reals(v, image)?;
        let sizes = self.emit.sizes(x);
        let (dtype, out) = (self.emit.dtype(x), [sizes[0], sizes[1], 1, 1]);
        let args = vec![In::Tensor(x), In::Ints(vec![2, 3]), In::Bool(true), In::Absent];
        let id = self.emit.call("aten::mean.out", args, dtype, &out)?;
        let id = self.stored(node, id)?;
        if keep_dims {
            return self.set_image(node, id);
        }
        let id = self.emit.view(id, &sizes[..2])?;
        self.set_plain(node, id)
    }

    /// Windows that do not overlap are dimensions of their own.
    pub(super) fn arg_max_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        if pool.padding != [0; 4] {
            return fail("padding of an ArgMaxPooling2d is not supported here");
        }
        let x = self.image(node.inputs[0])?;
        let sizes = self.emit.sizes(x);
        let [h, w] = pool.window;
        let (n, c, rows, columns) = (sizes[0], sizes[1], sizes[2] / h, sizes[3] / w);
        if !sizes[2].is_multiple_of(h) || !sizes[3].is_multiple_of(w) || rows * columns == 0 {
            return fail(format!(
                "windows of {:?} of an image of {:?} are not supported here",
                pool.window,
                &sizes[2..]
            ));
        }
        let dtype = self.emit.dtype(x);
        let split = self.emit.view(x, &[n, c, rows, h, columns, w])?;
        let moved = self.emit.permute(split, &[0, 1, 2, 4, 3, 5])?;
        let flat = self.emit.view(moved, &[n, c, rows, columns, h * w])?;
        let out = [n, c, rows, columns];
        let args = vec![In::Tensor(flat), In::Int(-1), In::Bool(false)];
        let ids = self.emit.calls("aten::max.dim_max", args, &[(dtype, &out), (ScalarType::Long, &out)])?;
        let [value, index] = node.outputs[..] else { return fail("a node of other than two outputs") };
        let dims = [n, rows, columns, c];
        self.set(value, &dims, Form::Image(ids[0]))?;
        self.set(index, &dims, Form::Image(ids[1]))
    }

    pub(super) fn resize(
        &mut self,
        node: &Node,
        size: [usize; 2],
        align_corners: bool,
        legacy: bool,
    ) -> Result<()> {
        if legacy {
            return fail("interpolation between whole coordinates (flag 4) is not supported here");
        }
        let v = node.inputs[0];
        let image = self.image(v)?;
        let x = self.reals(v, image)?;
        let sizes = self.emit.sizes(x);
        let out = [sizes[0], sizes[1], size[0], size[1]];
        let args = vec![
            In::Tensor(x),
            In::Ints(size.map(|n| n as i64).to_vec()),
            In::Bool(align_corners),
            In::Absent,
        ];
        let dtype = self.emit.dtype(x);
        let id = self.emit.call("aten::upsample_bilinear2d.vec_out", args, dtype, &out)?;
        let id = self.stored_within(node, id, (f32::NEG_INFINITY, f32::INFINITY))?;
        self.set_image(node, id)
    }
}

/// The number of windows along a dimension.
fn windows(size: usize, padding: usize, kernel: usize, stride: usize, dilation: usize) -> Result<usize> {
    let reach = (kernel - 1) * dilation + 1;
    match size.saturating_add(2 * padding).checked_sub(reach) {
        Some(room) => Ok(room / stride + 1),
        None => fail(format!("windows of {reach} in an image of {size} with padding of {padding}")),
    }
}
