//! Image nodes: convolution, pooling, interpolation.

use super::emit::{NamedArg, ints};
use super::{Layout, Recovery};
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::{Conv, Node, Pool};
use crate::raise::SAME_PADDING;
use pteron_exported::{Argument, Size, SymOp, TensorSpec, VarId};
use pteron_tensor::ScalarType;

/// The windows of a convolution or pooling over two dimensions.
struct Windows {
    kernel: [usize; 2],
    stride: [usize; 2],
    dilation: [usize; 2],
}

impl Windows {
    fn of_conv(conv: &Conv) -> Self {
        Self { kernel: conv.kernel, stride: conv.stride, dilation: conv.dilation }
    }

    fn of_pool(pool: &Pool) -> Self {
        Self { kernel: pool.window, stride: pool.stride, dilation: pool.dilation }
    }

    /// The extent of a window in pixels, with dilation.
    fn extent(&self, d: usize) -> i64 {
        let reach = self.kernel[d].saturating_sub(1).saturating_mul(self.dilation[d]);
        i64::try_from(reach).unwrap_or(i64::MAX - 1).saturating_add(1)
    }

    /// The number of windows along a dimension with `padding` on both sides.
    fn count_windows(&self, d: usize, size: &Size, padding: usize) -> Result<Size> {
        let room = size.add(&Size::Int((2 * padding as i64).saturating_sub(self.extent(d))));
        if room.known().is_some_and(|n| n < 0) {
            return fail(format!("windows of {} in an image of {size}", self.extent(d)));
        }
        Ok(room.combine(SymOp::FloorDiv, &Size::Int(self.stride[d] as i64)).add(&Size::Int(1)))
    }
}

impl Recovery<'_> {
    /// The input image and the symmetric padding (rows, columns) for the operator. Asymmetric padding is applied to the
    /// image by a separate node.
    fn padded_input(
        &mut self,
        node: &Node,
        explicit: [usize; 4],
        windows: &Windows,
        value: f32,
    ) -> Result<(VarId, [usize; 2])> {
        let x = self.nchw(node.inputs[0])?;
        let [top, right, bottom, left] = self.padding(node, x, explicit, windows)?;
        if top == bottom && left == right {
            return Ok((x, [top, left]));
        }
        Ok((self.pad_value(x, &[(0, 0), (0, 0), (top, bottom), (left, right)], value), [0; 2]))
    }

    /// The padding at the top, right, bottom and left: the node's own, or that of TensorFlow's `SAME` rule.
    fn padding(&self, node: &Node, x: VarId, explicit: [usize; 4], windows: &Windows) -> Result<[usize; 4]> {
        if node.flags & SAME_PADDING == 0 {
            return Ok(explicit);
        }
        let size = |d: usize| self.spec(x).sizes[2 + d].known().and_then(|n| usize::try_from(n).ok());
        let (Some(height), Some(width)) = (size(0), size(1)) else {
            return fail("padding that follows from sizes that change");
        };
        let [rows, columns] = [(0, height), (1, width)].map(|(d, size)| {
            let last = size.div_ceil(windows.stride[d]).saturating_sub(1) * windows.stride[d];
            (last + windows.extent(d) as usize).saturating_sub(size)
        });
        Ok([rows / 2, columns.div_ceil(2), rows.div_ceil(2), columns / 2])
    }

    /// A convolution; `perm` permutes its filters to `[out, in / groups, kernel..]`.
    pub(super) fn convolution(&mut self, node: &Node, conv: &Conv, perm: &[usize]) -> Result<()> {
        let windows = Windows::of_conv(conv);
        let (x, padding) = self.padded_input(node, conv.padding, &windows, 0.0)?;
        let weight = self.weights(node, node.inputs[1], perm)?;
        let sizes = self.spec(x).sizes.clone();
        let space = |d: usize| windows.count_windows(d, &sizes[2 + d], padding[d]);
        let out = vec![sizes[0].clone(), Size::Int(conv.outputs() as i64), space(0)?, space(1)?];
        self.add_convolution(node, conv, [x, weight], padding, (None, out))
    }

    pub(super) fn transposed_convolution(&mut self, node: &Node, conv: &Conv) -> Result<()> {
        let x = self.nchw(node.inputs[0])?;
        let windows = Windows::of_conv(conv);
        let [top, right, bottom, left] = conv.padding;
        let sizes = self.spec(x).sizes.clone();
        let (mut extra, mut padding) = ([0; 2], [0; 2]);
        let mut out = vec![sizes[0].clone(), Size::Int(conv.outputs() as i64)];
        for (d, (before, behind)) in [(top, bottom), (left, right)].into_iter().enumerate() {
            // The operator crops the same amount on both sides; `output_padding` restores the difference at the end.
            let most = conv.stride[d].max(conv.dilation[d]);
            let more = (before + conv.adjustment[d]).checked_sub(behind).filter(|&n| n < most);
            let Some(more) = more else { return fail(format!("padding {:?}", conv.padding)) };
            (extra[d], padding[d]) = (more, before);
            let stride = conv.stride[d] as i64;
            let added = windows.extent(d) - stride + conv.adjustment[d] as i64 - (before + behind) as i64;
            out.push(sizes[2 + d].mul(&Size::Int(stride)).add(&Size::Int(added)));
        }
        let weight = self.transposed_weights(node, conv)?;
        self.add_convolution(node, conv, [x, weight], padding, (Some(extra), out))
    }

    /// Weights `[out, kernel.., in / groups]` as `[in, out / groups, kernel..]`.
    fn transposed_weights(&mut self, node: &Node, conv: &Conv) -> Result<VarId> {
        let [kh, kw] = conv.kernel;
        if conv.groups == 1 {
            return self.weights(node, node.inputs[1], &[3, 0, 1, 2]);
        }
        let nhwc = self.nhwc(node.inputs[1])?;
        let (groups, ins, outs) = (conv.groups, conv.group_inputs, conv.group_outputs);
        let split = [groups, outs, kh, kw, ins].map(|n| Size::Int(n as i64));
        let split = self.view(nhwc, split.to_vec())?;
        let moved = self.permute(split, &[0, 4, 1, 2, 3])?;
        self.view(moved, [groups * ins, outs, kh, kw].map(|n| Size::Int(n as i64)).to_vec())
    }

    /// Adds a convolution; `extra` is the output padding of a transposed one.
    fn add_convolution(
        &mut self,
        node: &Node,
        conv: &Conv,
        [x, weight]: [VarId; 2],
        padding: [usize; 2],
        (extra, out): (Option<[usize; 2]>, Vec<Size>),
    ) -> Result<()> {
        let channels = &self.spec(x).sizes[1];
        if channels.known().is_some_and(|n| n != conv.inputs() as i64) {
            return fail(format!("an image of {channels} channels for a convolution of {}", conv.inputs()));
        }
        // Weights and bias of another type are cast to the type of the image, as the reference does when it packs them.
        let dtype = self.dtype(x);
        let weight = self.cast(weight, dtype);
        let bias = node.inputs.get(2).map(|&v| self.nhwc(v)).transpose()?.map(|bias| self.cast(bias, dtype));
        let args: Vec<NamedArg> = vec![
            ("input", Argument::Var(x)),
            ("weight", Argument::Var(weight)),
            ("bias", bias.map_or(Argument::None, Argument::Var)),
            ("stride", ints(conv.stride)),
            ("padding", ints(padding)),
            ("dilation", ints(conv.dilation)),
            ("transposed", Argument::Bool(extra.is_some())),
            ("output_padding", ints(extra.unwrap_or_default())),
            ("groups", Argument::Int(conv.groups as i64)),
        ];
        let var = self.emit("aten.convolution.default", args, dtype, out);
        self.store_bounded(node, Layout::Nchw(var))
    }

    /// The input of a pooling, the first arguments, and the sizes of the result. `value` is the value for padding that
    /// is applied separately.
    fn pool_input_and_args(
        &mut self,
        node: &Node,
        pool: &Pool,
        value: f32,
    ) -> Result<(VarId, Vec<NamedArg>, Vec<Size>)> {
        let windows = Windows::of_pool(pool);
        let (x, padding) = self.padded_input(node, pool.padding, &windows, value)?;
        let sizes = self.spec(x).sizes.clone();
        let space = |d: usize| windows.count_windows(d, &sizes[2 + d], padding[d]);
        let out = vec![sizes[0].clone(), sizes[1].clone(), space(0)?, space(1)?];
        let args = vec![
            ("self", Argument::Var(x)),
            ("kernel_size", ints(pool.window)),
            ("stride", ints(pool.stride)),
            ("padding", ints(padding)),
        ];
        Ok((x, args, out))
    }

    pub(super) fn max_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        let (x, mut args, out) = self.pool_input_and_args(node, pool, f32::NEG_INFINITY)?;
        args.extend([("dilation", ints(pool.dilation)), ("ceil_mode", Argument::Bool(false))]);
        let specs = [self.dtype(x), ScalarType::Long].map(|dtype| TensorSpec::contiguous(dtype, out.clone()));
        let var = self.emit_outputs("aten.max_pool2d_with_indices.default", args, specs.to_vec())[0];
        self.store_bounded(node, Layout::Nchw(var))
    }

    pub(super) fn avg_pool(&mut self, node: &Node, pool: &Pool) -> Result<()> {
        let [top, right, bottom, left] = pool.padding;
        if pool.dilation != [1; 2] || (top, left) != (bottom, right) || node.flags & SAME_PADDING != 0 {
            return fail("average pooling that is dilated, or padded on one side");
        }
        let (x, mut args, out) = self.pool_input_and_args(node, pool, 0.0)?;
        args.extend([("ceil_mode", Argument::Bool(false)), ("count_include_pad", Argument::Bool(false))]);
        let dtype = self.dtype(x);
        let var = self.emit("aten.avg_pool2d.default", args, dtype, out);
        self.store_bounded(node, Layout::Nchw(var))
    }

    pub(super) fn global_avg_pool(&mut self, node: &Node, keep_dims: bool) -> Result<()> {
        let x = self.nchw(node.inputs[0])?;
        let mut sizes = self.spec(x).sizes.clone();
        sizes[2..].fill(Size::Int(1));
        let dtype = self.dtype(x);
        let args = vec![("self", Argument::Var(x)), ("dim", ints([2, 3])), ("keepdim", Argument::Bool(true))];
        let var = self.emit("aten.mean.dim", args, dtype, sizes.clone());
        if keep_dims {
            return self.store_bounded(node, Layout::Nchw(var));
        }
        sizes.truncate(2);
        let var = self.view(var, sizes)?;
        self.store_bounded(node, Layout::Nhwc(var))
    }

    pub(super) fn resize(&mut self, node: &Node, size: [usize; 2], align_corners: bool) -> Result<()> {
        let x = self.nchw(node.inputs[0])?;
        let mut sizes = self.spec(x).sizes.clone();
        sizes.truncate(2);
        sizes.extend(size.map(|n| Size::Int(n as i64)));
        let args = vec![
            ("input", Argument::Var(x)),
            ("output_size", ints(size)),
            ("align_corners", Argument::Bool(align_corners)),
            ("scale_factors", Argument::None),
        ];
        let dtype = self.dtype(x);
        let var = self.emit("aten.upsample_bilinear2d.vec", args, dtype, sizes);
        self.store(node, Layout::Nchw(var))
    }
}
