//! Image nodes: convolution and pooling.

use super::emit::Arg;
use super::{Layout, Raise};
use crate::error::{Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::{Conv, Node, Pool};
use pteron_engine::ValueId;
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

/// The node flag for TensorFlow's `SAME` padding.
pub(crate) const SAME_PADDING: u32 = 4;

/// The layout of a convolution's weights. In the graph they are `[out, in / groups, kernel..]`, of a transposed
/// convolution `[in, out / groups, kernel..]`.
pub(super) struct Filter {
    /// The sizes in the graph's dimension order.
    pub(super) sizes: [usize; 4],
    /// The dim order: for each stored dimension its index in the graph's order.
    pub(super) order: [u8; 4],
    pub(super) groups: usize,
    pub(super) transposed: bool,
}

impl Filter {
    fn standard(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self {
            sizes: [conv.outputs(), conv.group_inputs, h, w],
            order: [0, 2, 3, 1],
            groups: conv.groups,
            transposed: false,
        }
    }

    /// The filter of a depthwise convolution, stored as `[1, kernel.., out]`.
    fn depthwise(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self { sizes: [conv.outputs(), 1, h, w], order: [1, 2, 3, 0], groups: conv.groups, transposed: false }
    }

    /// The filter of a transposed convolution, stored as `[out, kernel.., in / groups]`.
    fn transposed(conv: &Conv) -> Self {
        let [h, w] = conv.kernel;
        Self {
            sizes: [conv.group_inputs, conv.outputs(), h, w],
            order: [1, 2, 3, 0],
            groups: conv.groups,
            transposed: true,
        }
    }

    /// The meta of the stored weights.
    pub(super) fn meta(&self, dtype: ScalarType) -> Result<TensorMeta> {
        let order = DimOrder::new(&self.order)?;
        Ok(TensorMeta::new(dtype, &self.sizes, order)?)
    }
}

/// A convolution without its operands.
pub(super) struct Spec {
    pub(super) conv: Conv,
    pub(super) filter: Filter,
    /// Sizes of the result, `[N, C, H, W]`.
    pub(super) out: [usize; 4],
    /// Symmetric zero padding of rows and columns.
    pub(super) padding: [usize; 2],
    /// The output padding of a transposed convolution.
    pub(super) extra: [usize; 2],
}

impl Spec {
    /// An upper bound on the absolute value of an accumulator: the sum of a bias and of products of these weights with
    /// values below 256.
    pub(super) fn max_abs_sum(&self, weights: &[f64], bias: Option<&[i32]>) -> f64 {
        let most = |size: f64, x: f64| size.max(x.abs());
        let weight = weights.iter().copied().fold(0.0, most);
        let bias = bias.into_iter().flatten().map(|&x| f64::from(x)).fold(0.0, most);
        // In a transposed convolution, only every stride-th tap of a kernel contributes to a pixel.
        let taps = |d: usize| match (self.filter.transposed, self.conv.dilation[d]) {
            (true, 1) => self.conv.kernel[d].div_ceil(self.conv.stride[d]),
            _ => self.conv.kernel[d],
        };
        let terms = taps(0) as f64 * taps(1) as f64 * self.conv.group_inputs as f64;
        terms * 255.0 * weight + bias
    }

    /// The operator's arguments after input, weights and bias.
    pub(super) fn args(&self) -> Vec<Arg> {
        let Conv { stride, dilation, .. } = self.conv;
        let transposed = Arg::Bool(self.filter.transposed);
        let [stride, padding, dilation, extra] = [stride, self.padding, dilation, self.extra].map(Arg::pair);
        vec![stride, padding, dilation, transposed, extra, Arg::Int(self.filter.groups as i64)]
    }
}

impl Raise<'_> {
    pub(super) fn convolution(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        self.forward_convolution(node, conv, Filter::standard(conv))
    }

    pub(super) fn depthwise(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        self.forward_convolution(node, conv, Filter::depthwise(conv))
    }

    fn forward_convolution(&mut self, node: &Node, conv: &Conv, filter: Filter) -> Result<()> {
        let v = node.inputs[0];
        let image = self.nchw(v)?;
        let zero = self.quantizer(v).map_or(Arg::Double(0.0), |q| Arg::Int(i64::from(q.zero)));
        let around = self.padding(node, image, conv.padding, [conv.kernel, conv.stride, conv.dilation])?;
        let (x, padding) = self.pad_image(image, around, [usize::MAX; 2], zero)?;
        let sizes = self.emit.sizes(x);
        self.check_channels(&sizes, conv)?;
        let space = |d: usize| {
            count_windows(sizes[2 + d], padding[d], conv.kernel[d], conv.stride[d], conv.dilation[d])
        };
        let out = [sizes[0], conv.outputs(), space(0)?, space(1)?];
        let id = self.add_convolution(node, x, &Spec { conv: *conv, filter, out, padding, extra: [0; 2] })?;
        self.set_nchw(node, id)
    }

    /// The padding at the top, right, bottom and left of an image: the node's own or, if the flag is set, that of
    /// TensorFlow's `SAME` rule, with an odd pixel at the bottom and right.
    fn padding(
        &self,
        node: &Node,
        image: ValueId,
        explicit: [usize; 4],
        [kernel, stride, dilation]: [[usize; 2]; 3],
    ) -> Result<[usize; 4]> {
        if node.flags & SAME_PADDING == 0 {
            return Ok(explicit);
        }
        if explicit != [0; 4] {
            return fail(format!("padding {explicit:?} beside TensorFlow's rule `SAME`"));
        }
        let sizes = self.emit.sizes(image);
        let [rows, columns] = [0, 1].map(|d| {
            let size = sizes[2 + d];
            let reach = (kernel[d] - 1).saturating_mul(dilation[d]).saturating_add(1);
            let last = size.div_ceil(stride[d]).saturating_sub(1).saturating_mul(stride[d]);
            last.saturating_add(reach).saturating_sub(size)
        });
        Ok([rows / 2, columns.div_ceil(2), rows.div_ceil(2), columns / 2])
    }

    pub(super) fn transposed_convolution(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        let x = self.nchw(node.inputs[0])?;
        let sizes = self.emit.sizes(x);
        self.check_channels(&sizes, conv)?;
        let [top, right, bottom, left] = conv.padding;
        let (mut extra, mut padding) = ([0; 2], [0; 2]);
        let (mut out, mut cropped) = ([sizes[0], conv.outputs(), 0, 0], [(0, 0); 2]);
        for (d, (before, behind)) in [(top, bottom), (left, right)].into_iter().enumerate() {
            let reach = (conv.kernel[d] - 1) * conv.dilation[d] + 1;
            let all = (sizes[2 + d].saturating_sub(1))
                .saturating_mul(conv.stride[d])
                .saturating_add(reach + conv.adjustment[d]);
            let length = all.checked_sub(before + behind).filter(|&n| n > 0 && all <= u32::MAX as usize);
            let (Some(length), true) = (length, sizes[2 + d] > 0) else {
                return fail_sizes(format!("padding {:?} of an image of {:?}", conv.padding, &sizes[2..]));
            };
            // The operator crops the same amount on both sides, and output padding restores the difference at the end.
            // If that is not possible, the full result is computed and sliced.
            let most = conv.stride[d].max(conv.dilation[d]);
            if let Some(more) = (before + conv.adjustment[d]).checked_sub(behind).filter(|&n| n < most) {
                (extra[d], padding[d], out[2 + d], cropped[d]) = (more, before, length, (0, length));
            } else if conv.adjustment[d] < most {
                (extra[d], out[2 + d], cropped[d]) = (conv.adjustment[d], all, (before, length));
            } else {
                return fail(format!("an adjustment of {} for a stride of {most}", conv.adjustment[d]));
            }
        }
        let spec = Spec { conv: *conv, filter: Filter::transposed(conv), out, padding, extra };
        let mut id = self.add_convolution(node, x, &spec)?;
        for (d, (start, length)) in cropped.into_iter().enumerate() {
            id = self.emit.slice(id, 2 + d, start, length)?;
        }
        self.set_nchw(node, id)
    }

    fn check_channels(&self, sizes: &[usize], conv: &Conv) -> Result<()> {
        if sizes[1] == conv.inputs() {
            return Ok(());
        }
        fail_sizes(format!("an image of {} channels for a convolution of {}", sizes[1], conv.inputs()))
    }

    /// Adds a convolution and converts its result to the type and quantization of the node's output.
    fn add_convolution(&mut self, node: &Node, x: ValueId, spec: &Spec) -> Result<ValueId> {
        if self.quantizer(node.inputs[0]).is_some() {
            return self.quantized_convolution(node, x, spec);
        }
        let is_dynamic = self.values[node.inputs[0]].dynamic_source.is_some();
        if is_dynamic && self.is_dynamic_convolution(node, &spec.conv) {
            return self.dynamic_convolution(node, x, spec);
        }
        let (filter, bias) = if is_dynamic {
            let weights = self.dequantized_weights(node, node.inputs[1])?;
            let filter = self.stored_filter(spec, ScalarType::Float, &weights)?;
            (filter, node.inputs.get(2).map(|&b| self.float_bias(node, b)).transpose()?)
        } else {
            self.check_float_types(node)?;
            (self.float_filter(node.inputs[1], spec)?, node.inputs.get(2).map(|&b| self.nhwc(b)).transpose()?)
        };
        let mut operands = vec![x, filter];
        operands.extend(bias);
        let dtype = self.common_type(node, &operands);
        for id in &mut operands {
            *id = self.emit.cast(*id, dtype)?;
        }
        let bias = operands.get(2).map_or(Arg::Absent, |&bias| Arg::Tensor(bias));
        let args = [Arg::Tensor(operands[0]), Arg::Tensor(operands[1]), bias].into_iter().chain(spec.args());
        let id = self.emit.call("aten::convolution.out", args.collect(), dtype, &spec.out)?;
        self.as_stored(node, id)
    }

    /// The float weights of a convolution in the graph's layout.
    fn float_filter(&mut self, v: usize, spec: &Spec) -> Result<ValueId> {
        let value = &self.payload.values[v];
        if value.constant_index().is_none() {
            return fail(
                "weights that are not constant, which the reference refuses, too: export them as parameters",
            );
        }
        let constant = self.data.graph_constant(value)?;
        let meta = spec.filter.meta(value.datatype.scalar_type())?;
        let stored = self.emit.graph.constant(meta, constant);
        self.in_graph_layout(spec, stored)
    }

    /// Converts stored weights to the graph's layout. Only transposed convolutions with several groups need a change:
    /// from `[in / groups, groups * out, kernel..]` to `[groups * in, out, kernel..]`.
    pub(super) fn in_graph_layout(&mut self, spec: &Spec, stored: ValueId) -> Result<ValueId> {
        if !spec.filter.transposed || spec.filter.groups == 1 {
            return Ok(stored);
        }
        let [inputs, outputs, h, w] = spec.filter.sizes;
        let groups = spec.filter.groups;
        let by_output = self.emit.permute(stored, &[1, 0, 2, 3])?;
        let split = self.emit.view(by_output, &[groups, outputs / groups, inputs, h, w])?;
        let moved = self.emit.permute(split, &[0, 2, 1, 3, 4])?;
        self.emit.view(moved, &[groups * inputs, outputs / groups, h, w])
    }

    /// Pads an image with a separate node if the operator cannot do it: if the padding is asymmetric or more than
    /// `most` pixels. Returns the image and the symmetric padding (rows, columns) that is left for the operator.
    fn pad_image(
        &mut self,
        x: ValueId,
        padding: [usize; 4],
        most: [usize; 2],
        value: Arg,
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
        let args = vec![Arg::Tensor(x), Arg::Ints(pad), value];
        Ok((self.emit.call("aten::constant_pad_nd.out", args, dtype, &sizes)?, [0; 2]))
    }

    pub(super) fn max_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        let (from, to) = (self.quantizer(node.inputs[0]), self.quantizer(node.outputs[0]));
        if from != to {
            return Err(self.unsupported_error(node));
        }
        let image = self.nchw(node.inputs[0])?;
        let x = self.dequantize_to_units(node.inputs[0], image)?;
        let around = self.padding(node, x, pool.padding, [pool.window, pool.stride, pool.dilation])?;
        let most = pool.window.map(|n| n / 2);
        let (x, padding) = self.pad_image(x, around, most, Arg::Double(f64::NEG_INFINITY))?;
        let out = self.pooled_sizes(x, pool, padding)?;
        let mut args = pool_args(x, pool, padding);
        args.extend([Arg::pair(pool.dilation), Arg::Bool(false)]);
        let dtype = self.emit.dtype(x);
        let name = "aten::max_pool2d_with_indices.out";
        let id = self.emit.call_with_outputs(name, args, &[(dtype, &out), (ScalarType::Long, &out)])?[0];
        let id = match to {
            Some(q) => self.as_stored_from_units(node, id, q)?,
            None => self.as_stored(node, id)?,
        };
        self.set_nchw(node, id)
    }

    pub(super) fn avg_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        if pool.dilation != [1; 2] {
            return fail("dilated average pooling, which the reference has not: export it as a convolution");
        }
        let v = node.inputs[0];
        let image = self.nchw(v)?;
        let x = self.dequantize_value(v, image)?;
        let around = self.padding(node, x, pool.padding, [pool.window, pool.stride, pool.dilation])?;
        let most = pool.window.map(|n| n / 2);
        let unpadded = self.emit.sizes(x);
        let (x, padding) = self.pad_image(x, around, most, Arg::Double(0.0))?;
        let out = self.pooled_sizes(x, pool, padding)?;
        let padded = self.emit.sizes(x) != unpadded;
        let mut args = pool_args(x, pool, padding);
        // If the image was padded separately, window sums are computed and divided by the number of pixels that are not
        // padding.
        args.extend([Arg::Bool(false), Arg::Bool(false), if padded { Arg::Int(1) } else { Arg::Absent }]);
        let dtype = self.emit.dtype(x);
        let mut id = self.emit.call("aten::avg_pool2d.out", args, dtype, &out)?;
        if padded {
            let [top, _, _, left] = around;
            let count = |d: usize, before: usize| -> Vec<f32> {
                let inside = |i: usize| {
                    let start = i * pool.stride[d];
                    let end = (start + pool.window[d]).min(before + unpadded[2 + d]);
                    end.saturating_sub(start.max(before)) as f32
                };
                (0..out[2 + d]).map(inside).collect()
            };
            let (rows, columns) = (count(0, top), count(1, left));
            let counts: Vec<f32> = rows.iter().flat_map(|r| columns.iter().map(move |c| r * c)).collect();
            let counts = Tensor::from_slice(&[rows.len(), columns.len()], &counts)?;
            let counts = self.emit.computed_constant(counts)?;
            let counts = self.emit.cast(counts, dtype)?;
            id = self.emit.call("aten::div.out", vec![Arg::Tensor(id), Arg::Tensor(counts)], dtype, &out)?;
        }
        let id = self.as_stored(node, id)?;
        self.set_nchw(node, id)
    }

    /// The sizes of a pooling's result.
    fn pooled_sizes(&self, x: ValueId, pool: &Pool, padding: [usize; 2]) -> Result<[usize; 4]> {
        let sizes = self.emit.sizes(x);
        let space = |d: usize| {
            count_windows(sizes[2 + d], padding[d], pool.window[d], pool.stride[d], pool.dilation[d])
        };
        Ok([sizes[0], sizes[1], space(0)?, space(1)?])
    }

    pub(super) fn global_avg_pool(&mut self, node: &Node, keep_dims: bool) -> Result<()> {
        let v = node.inputs[0];
        let image = self.nchw(v)?;
        let sizes = self.emit.sizes(image);
        let id = match self.quantizer(v) {
            Some(from) => self.quantized_mean(node, image, from)?,
            None => {
                let x = self.dequantize_value(v, image)?;
                let args = vec![Arg::Tensor(x), Arg::Ints(vec![2, 3]), Arg::Bool(true), Arg::Absent];
                let dtype = self.emit.dtype(x);
                let id = self.emit.call("aten::mean.out", args, dtype, &[sizes[0], sizes[1], 1, 1])?;
                self.as_stored(node, id)?
            }
        };
        if keep_dims {
            return self.set_nchw(node, id);
        }
        let id = self.emit.view(id, &sizes[..2])?;
        self.set_nhwc(node, id)
    }

    /// Max pooling with indices. Windows do not overlap, so they are split off as dimensions of their own.
    pub(super) fn arg_max_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        let mut x = self.nchw(node.inputs[0])?;
        let mut sizes = self.emit.sizes(x);
        let ([h, w], [top, right, bottom, left]) = (pool.window, pool.padding);
        let rows = sizes[2].saturating_add(top + bottom).div_ceil(h);
        let columns = sizes[3].saturating_add(left + right).div_ceil(w);
        let (n, c) = (sizes[0], sizes[1]);
        if rows * columns == 0 || sizes[2] * sizes[3] == 0 {
            return fail(format!("windows of {:?} of an image of {:?}", pool.window, &sizes[2..]));
        }
        // Replicated pixels in the padding do not change a maximum.
        let behind = [rows * h - sizes[2] - top, columns * w - sizes[3] - left];
        if [top, left] != [0; 2] || behind != [0; 2] {
            (sizes[2], sizes[3]) = (rows * h, columns * w);
            let pad = [left, behind[1], top, behind[0]].map(|n| n as i64).to_vec();
            let dtype = self.emit.dtype(x);
            let args = vec![Arg::Tensor(x), Arg::Ints(pad)];
            x = self.emit.call("aten::replication_pad2d.out", args, dtype, &sizes)?;
        }
        let dtype = self.emit.dtype(x);
        let split = self.emit.view(x, &[n, c, rows, h, columns, w])?;
        // The reference numbers the pixels of a window column by column.
        let moved = self.emit.permute(split, &[0, 1, 2, 4, 5, 3])?;
        let flat = self.emit.view(moved, &[n, c, rows, columns, w * h])?;
        let out = [n, c, rows, columns];
        let args = vec![Arg::Tensor(flat), Arg::Int(-1), Arg::Bool(false)];
        let ids = self.emit.call_with_outputs(
            "aten::max.dim_max",
            args,
            &[(dtype, &out), (ScalarType::Long, &out)],
        )?;
        let [value, index] = node.outputs[..] else { return fail("a node of other than two outputs") };
        let dims = [n, rows, columns, c];
        self.set_layout(value, &dims, Layout::Nchw(ids[0]))?;
        self.set_layout(index, &dims, Layout::Nchw(ids[1]))
    }
}

/// The first arguments of a pooling operator: input, window, stride and padding.
fn pool_args(x: ValueId, pool: &Pool, padding: [usize; 2]) -> Vec<Arg> {
    let [window, stride, padding] = [pool.window, pool.stride, padding].map(Arg::pair);
    vec![Arg::Tensor(x), window, stride, padding]
}

/// The number of windows along a dimension.
fn count_windows(
    size: usize,
    padding: usize,
    kernel: usize,
    stride: usize,
    dilation: usize,
) -> Result<usize> {
    let reach = (kernel - 1) * dilation + 1;
    match size.saturating_add(2 * padding).checked_sub(reach) {
        Some(room) => Ok(room / stride + 1),
        None => fail_sizes(format!("windows of {reach} in an image of {size} with padding of {padding}")),
    }
}
