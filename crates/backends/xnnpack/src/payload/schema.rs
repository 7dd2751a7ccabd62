//! The table of ExecuTorch's kinds of nodes (`runtime_schema.fbs`), from which everything about a kind is derived.
//!
//! [`for_each_node`] hands the table to another macro, as `wasmparser` does with its operators:
//!
//! | derived | by |
//! | --- | --- |
//! | [`Unary`] and [`Binary`], and their operators in ATen, for `lower`, `raise` and `recover` | `elementwise.rs` |
//! | tags and names, reading and writing of a node's table | `fields.rs` |
//!
//! A new elementwise kind is one row. A new kind of another sort is a row, a variant of [`Op`] and its translation in
//! `lower`, `raise` and `recover`.
//!
//! [`Unary`]: super::Unary
//! [`Binary`]: super::Binary
//! [`Op`]: super::Op

/// Passes the rows to the macro `$generate`, in three sections. The first number of a row is the tag in the schema's
/// union, and the first string is the name there, without `XNN`.
///
/// A row of `unary` or `binary` has the variant, the operators of exported programs that compute the same (of which
/// `recover` writes the first), and the kernel that `raise` calls. A parameter has three names: that of the
/// variant, `as` that of the schema and of ATen's argument, with ATen's default. Arguments after `with` have no field:
/// XNNPACK computes only this value of them, which is ATen's default. The words `within bounds` say that XNNPACK clamps
/// the results to the bounds of the node.
///
/// A row of `other` has a variant of `Op` and the fields of the table in the schema's order. `name: kind(place)` is a
/// field of a kind that [`Fields`](super::fields::Fields) has as a method, and its place in the variant.
/// `..table(place)` stands for the fields of a table that several kinds share, which `fields.rs` has as functions.
macro_rules! for_each_node {
    ($generate:ident) => {
        $generate! {
            unary {
                4 "Sigmoid" Sigmoid: ["aten.sigmoid.default"] "aten::sigmoid.out";
                // No table of operators: lowering and raising treat clamps separately, by their bounds.
                6 "Clamp" Clamp: [] "aten::clamp.out";
                17 "Floor" Floor: ["aten.floor.default"] "aten::floor.out";
                22 "SquareRoot" SquareRoot: ["aten.sqrt.default"] "aten::sqrt.out";
                23 "Ceiling" Ceiling: ["aten.ceil.default"] "aten::ceil.out";
                24 "Hardswish" Hardswish: ["aten.hardswish.default"] "aten::hardswish.out";
                25 "LeakyReLU" LeakyRelu { slope as negative_slope = 0.01 }:
                    ["aten.leaky_relu.default"] "aten::leaky_relu.out";
                27 "Negate" Negate: ["aten.neg.default"] "aten::neg.out";
                // Lowering, raising and recovery add the second operand: the exponent of `pow`, or the first operand again for `mul`.
                28 "Square" Square: ["aten.pow.Tensor_Scalar"] "aten::mul.out";
                29 "ELU" Elu { alpha as alpha = 1.0 }:
                    ["aten.elu.default"] "aten::elu.out" with [scale = Int(1), input_scale = Int(1)];
                30 "Abs" Abs: ["aten.abs.default"] "aten::abs.out";
                40 "ReciprocalSquareRoot" ReciprocalSquareRoot: ["aten.rsqrt.default"] "aten::rsqrt.out";
                41 "Log" Log: ["aten.log.default"] "aten::log.out";
                42 "Gelu" Gelu: ["aten.gelu.default"] "aten::gelu.out" with [approximate = Str("none")];
                43 "Tanh" Tanh: ["aten.tanh.default"] "aten::tanh.out";
                44 "Exp" Exp: ["aten.exp.default"] "aten::exp.out";
                45 "Sin" Sin: ["aten.sin.default"] "aten::sin.out";
                47 "Cos" Cos: ["aten.cos.default"] "aten::cos.out";
            }
            binary {
                1 "Add" Add within bounds: ["aten.add.Tensor", "aten.add.Scalar"] "aten::add.out" with [alpha = Int(1)];
                8 "Div" Divide within bounds: ["aten.div.Tensor", "aten.div.Scalar"] "aten::div.out";
                12 "Minimum" Minimum: ["aten.minimum.default"] "aten::minimum.out";
                15 "Multiply" Multiply within bounds: ["aten.mul.Tensor", "aten.mul.Scalar"] "aten::mul.out";
                16 "Subtract" Subtract within bounds:
                    ["aten.sub.Tensor", "aten.sub.Scalar"] "aten::sub.out" with [alpha = Int(1)];
                26 "Maximum" Maximum: ["aten.maximum.default"] "aten::maximum.out";
            }
            other {
                2 "FullyConnected" FullyConnected { transposed } => {
                    input1_id: input, filter_id: input, bias_id: optional, output_id: output,
                    flags: flags[1 => transposed]
                }
                3 "Softmax" Softmax => { ..node_1x1 }
                5 "StaticTranspose" Transpose { perm } => {
                    num_dims: length(perm), perm: sizes(perm), input_id: input, output_id: output, flags: flags[]
                }
                7 "Conv2d" Conv(conv) => { ..node_conv(conv) }
                9 "StaticResizeBilinear2D" ResizeBilinear { height, width, align_corners, legacy } => {
                    new_height: size(height), new_width: size(width), input_id: input, output_id: output,
                    flags: flags[8 => align_corners, 4 => legacy]
                }
                10 "StaticConstantPad" Pad { pre, post, value } => {
                    pre_paddings: sizes(pre), post_paddings: sizes(post), padding_value: float(value),
                    input_id: input, output_id: output, flags: flags[]
                }
                11 "AvgPooling2d" AvgPool(pool) => { ..pooling_2d(pool) }
                13 "DepthwiseConv2d" DepthwiseConv(conv) => { ..node_conv(conv) }
                14 "MaxPooling2d" MaxPool(pool) => { ..pooling_2d(pool) }
                18 "Convert" Convert => { ..node_1x1 }
                19 "GlobalAvgPooling2d" GlobalAvgPool { keep_dims } => {
                    input_id: input, output_id: output, flags: flags[0x40 => keep_dims]
                }
                20 "StaticReshape" Reshape { sizes } => {
                    num_dims: length(sizes), new_shape: sizes(sizes), input_id: input, output_id: output,
                    flags: flags[]
                }
                21 "ArgMaxPooling2d" ArgMaxPool(pool) => { ..arg_max_pooling_2d(pool) }
                31 "PReLU" PRelu => { ..node_2x1 }
                32 "Concatenate2" Concat { axis } of 2 => {
                    axis: axis(axis), input1_id: input, input2_id: input, input3_id: absent, input4_id: absent,
                    output_id: output, flags: flags[], input5_id: absent
                }
                33 "Concatenate3" Concat { axis } of 3 => {
                    axis: axis(axis), input1_id: input, input2_id: input, input3_id: input, input4_id: absent,
                    output_id: output, flags: flags[], input5_id: absent
                }
                34 "Concatenate4" Concat { axis } of 4 => {
                    axis: axis(axis), input1_id: input, input2_id: input, input3_id: input, input4_id: input,
                    output_id: output, flags: flags[], input5_id: absent
                }
                35 "StaticSlice" Slice { offsets, sizes } => {
                    num_dims: length(sizes), offsets: sizes(offsets), sizes: sizes(sizes), input_id: input,
                    output_id: output, flags: flags[]
                }
                36 "ScaledDotProductAttention" ScaledDotProductAttention => {
                    query_id: input, key_id: input, value_id: input, scale_id: input, mask_id: input,
                    output_id: output, flags: flags[]
                }
                37 "BatchMatrixMultiply" BatchMatMul { transposed } => {
                    input1_id: input, input2_id: input, output_id: output, flags: flags[1 => transposed]
                }
                38 "Concatenate5" Concat { axis } => {
                    axis: axis(axis), input1_id: input, input2_id: input, input3_id: input, input4_id: input,
                    output_id: output, flags: flags[], input5_id: input
                }
                39 "ConvTranspose2d" ConvTranspose(conv) => { ..node_conv(conv) }
                46 "Copy" Copy => { ..node_1x1 }
            }
        }
    };
}

pub(super) use for_each_node;
