//! Elementwise nodes, and softmax.

use super::emit::Arg;
use super::quantized::Quantizer;
use super::{Layout, NCHW_TO_NHWC, Raise};
use crate::error::{Result, fail, fail_sizes};
use crate::layout::LayoutViews;
use crate::payload::{Aten, Binary, Fixed, Node, Unary};
use pteron_engine::{Expression, Instr, Pointwise, ValueId};
use pteron_tensor::ScalarType;

impl Raise<'_> {
    pub(super) fn unary(&mut self, node: &Node, f: Unary) -> Result<()> {
        let v = node.inputs[0];
        let layout = self.available_layout(v)?;
        let id = layout.id();
        if let (Unary::Clamp, Some(from), Some(to)) = (f, self.quantizer(v), self.quantizer(node.outputs[0]))
            && from == to
        {
            let id = self.clamp_quantized(node, id, to)?;
            return self.set_like(node, layout, id);
        }
        if let (Unary::LeakyRelu { slope }, Some(from), Some(to)) =
            (f, self.quantizer(v), self.quantizer(node.outputs[0]))
            && let Some(id) = self.quantized_leaky_relu(node, id, slope, (from, to))?
        {
            return self.set_like(node, layout, id);
        }
        let x = self.dequantize_value(v, id)?;
        let mut y = self.apply_unary(f, x)?;
        if let (Some(q), Unary::Log | Unary::SquareRoot | Unary::ReciprocalSquareRoot) =
            (self.quantizer(node.outputs[0]), f)
        {
            // The reference quantizes NaN as the integer 0.
            let sizes = self.emit.sizes(y);
            let zero = Arg::Double(f64::from(-q.zero as f32 * q.scale));
            let args = vec![Arg::Tensor(y), zero, Arg::Absent, Arg::Absent];
            let dtype = self.emit.dtype(y);
            y = self.emit.call("aten::nan_to_num.out", args, dtype, &sizes)?;
        }
        let id = match f {
            Unary::Clamp => self.as_stored(node, y)?,
            // Among unary nodes, only clamps have bounds.
            _ => self.as_stored_within(node, y, (f32::NEG_INFINITY, f32::INFINITY))?,
        };
        self.set_like(node, layout, id)
    }

    /// A leaky ReLU of quantized values, or with a slope of 1 their requantization, with the reference's arithmetic:
    /// fixed-point factors with 8 fractional bits, halves rounded up. `None` if the reference does not support the
    /// scales and slope.
    pub(super) fn quantized_leaky_relu(
        &mut self,
        node: &Node,
        id: ValueId,
        slope: f32,
        (from, to): (Quantizer, Quantizer),
    ) -> Result<Option<ValueId>> {
        let positive = from.scale / to.scale;
        let negative = positive * slope;
        let known = (2f32.powi(-8)..=128.0).contains(&positive) && (-127.998..=128.0).contains(&negative);
        if !known || from.signed != to.signed {
            return Ok(None);
        }
        let [positive, negative] = [positive, negative].map(|x| (x * 256.0).round_ties_even() / 256.0);
        let x = self.dequantize_to_units(node.inputs[0], id)?;
        let sizes = self.emit.sizes(x);
        let instrs = vec![
            Instr::Input(0),
            Instr::Clamp { of: 0, low: 0.0, high: f32::INFINITY },
            Instr::Clamp { of: 0, low: f32::NEG_INFINITY, high: 0.0 },
            Instr::Const(positive),
            Instr::Const(negative),
            Instr::Binary(pteron_engine::Binary::Mul, 1, 3),
            Instr::Binary(pteron_engine::Binary::Mul, 2, 4),
            Instr::Binary(pteron_engine::Binary::Add, 5, 6),
            // Rounds halves up: the offset is less than the distance between two unrounded results.
            Instr::Const(1.0 / 1024.0),
            Instr::Binary(pteron_engine::Binary::Add, 7, 8),
        ];
        let op = Pointwise(Expression { instrs });
        let id = self.emit.node(op, vec![x], ScalarType::Float, &sizes)?;
        self.as_stored_from_units(node, id, to).map(Some)
    }

    fn apply_unary(&mut self, f: Unary, x: ValueId) -> Result<ValueId> {
        let (dtype, sizes) = (self.emit.dtype(x), self.emit.sizes(x));
        let instrs = match f {
            Unary::Clamp => return Ok(x),
            // XNNPACK computes these two with other intermediate results than ATen's kernels.
            Unary::Hardswish if dtype == ScalarType::Float => {
                vec![Instr::Input(0), Instr::Unary(pteron_engine::Unary::HardswishBySixth, 0)]
            }
            Unary::LeakyRelu { slope } if dtype == ScalarType::Float => {
                leaky_relu_instrs(Instr::Const(slope))
            }
            _ => {
                let mut args = vec![Arg::Tensor(x)];
                if f == Unary::Square {
                    args.push(Arg::Tensor(x));
                }
                args.extend(f.parameter().map(|parameter| Arg::Double(f64::from(parameter.value))));
                args.extend(fixed_arguments(f.aten()));
                return self.emit.call(f.aten().kernel, args, dtype, &sizes);
            }
        };
        self.emit.node(Pointwise(Expression { instrs }), vec![x], dtype, &sizes)
    }

    pub(super) fn binary(&mut self, node: &Node, f: Binary) -> Result<()> {
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let dims = broadcast_sizes(&self.dims(a), &self.dims(b))?;
        let ([x, y], layout) = self.broadcast_operands([a, b])?;
        let sizes = match layout {
            Layout::Nhwc(_) => dims,
            Layout::Nchw(_) => super::NHWC_TO_NCHW.map(|d| dims[d]).to_vec(),
        };
        if let Some(id) = self.quantized_binary(node, f, [x, y], &sizes)? {
            return self.set_like(node, layout, id);
        }
        let (x, y) = (self.dequantize_value(a, x)?, self.dequantize_value(b, y)?);
        let dtype = self.emit.dtype(x);
        if self.emit.dtype(y) != dtype {
            return Err(self.unsupported_error(node));
        }
        let args = [Arg::Tensor(x), Arg::Tensor(y)].into_iter().chain(fixed_arguments(f.aten())).collect();
        let id = self.emit.call(f.aten().kernel, args, dtype, &sizes)?;
        let id = match f.is_bounded() {
            true => self.as_stored(node, id)?,
            false => self.as_stored_within(node, id, (f32::NEG_INFINITY, f32::INFINITY))?,
        };
        self.set_like(node, layout, id)
    }

    pub(super) fn prelu(&mut self, node: &Node) -> Result<()> {
        self.check_same_float_type(node)?;
        let [v, slope] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let dims = self.dims(v);
        let channels = dims.last().copied().unwrap_or(0);
        let (slopes, layout) = (self.dims(slope), self.available_layout(v)?);
        let one_each = slopes.iter().rev().skip(1).all(|&n| n == 1)
            && slopes.last().is_some_and(|&n| n == channels || n == 1);
        if !one_each {
            return fail_sizes(format!("slopes of {slopes:?} for an input of {dims:?}"));
        }
        let x = layout.id();
        let slope = self.nhwc(slope)?;
        let slope = match layout {
            Layout::Nhwc(_) => self.emit.view(slope, &slopes[slopes.len() - 1..])?,
            Layout::Nchw(_) => self.emit.view(slope, &[slopes[slopes.len() - 1], 1, 1])?,
        };
        let (dtype, sizes) = (self.emit.dtype(x), self.emit.sizes(x));
        let (x, slope) = (self.emit.cast(x, ScalarType::Float)?, self.emit.cast(slope, ScalarType::Float)?);
        let op = Pointwise(Expression { instrs: leaky_relu_instrs(Instr::Input(1)) });
        let id = self.emit.node(op, vec![x, slope], ScalarType::Float, &sizes)?;
        let id = self.emit.cast(id, dtype)?;
        self.set_like(node, layout, id)
    }

    pub(super) fn softmax(&mut self, node: &Node) -> Result<()> {
        let v = node.inputs[0];
        let layout = self.available_layout(v)?;
        let id = layout.id();
        let last = self.dims(v).len() - 1;
        let dim = match layout {
            Layout::Nhwc(_) => last,
            Layout::Nchw(_) => NCHW_TO_NHWC[last],
        };
        let x = self.dequantize_value(v, id)?;
        let (dtype, sizes) = (self.emit.dtype(x), self.emit.sizes(x));
        let args = vec![Arg::Tensor(x), Arg::Int(dim as i64), Arg::Bool(false)];
        let id = self.emit.call("aten::_softmax.out", args, dtype, &sizes)?;
        let id = self.as_stored_within(node, id, (f32::NEG_INFINITY, f32::INFINITY))?;
        self.set_like(node, layout, id)
    }
}

/// The values of the ATen arguments for which payload nodes have no field.
fn fixed_arguments(aten: &Aten) -> impl Iterator<Item = Arg> {
    aten.fixed.iter().map(|&(_, value)| match value {
        Fixed::Int(value) => Arg::Int(value),
        Fixed::Str(value) => Arg::Str(value),
    })
}

/// `max(x, 0) + slope * min(x, 0)` of input 0.
fn leaky_relu_instrs(slope: Instr) -> Vec<Instr> {
    vec![
        Instr::Input(0),
        Instr::Clamp { of: 0, low: 0.0, high: f32::INFINITY },
        Instr::Clamp { of: 0, low: f32::NEG_INFINITY, high: 0.0 },
        slope,
        Instr::Binary(pteron_engine::Binary::Mul, 2, 3),
        Instr::Binary(pteron_engine::Binary::Add, 1, 4),
    ]
}

/// The broadcast sizes of two values.
pub(super) fn broadcast_sizes(a: &[usize], b: &[usize]) -> Result<Vec<usize>> {
    let rank = a.len().max(b.len());
    let size = |dims: &[usize], d: usize| (d + dims.len()).checked_sub(rank).map_or(1, |d| dims[d]);
    let one = |d: usize| match (size(a, d), size(b, d)) {
        (1, n) | (n, 1) => Some(n),
        (m, n) => (m == n).then_some(n),
    };
    let sizes: Option<Vec<usize>> = (0..rank).map(one).collect();
    sizes.map_or_else(|| fail_sizes(format!("values of {a:?} and {b:?}, which do not broadcast")), Ok)
}
