//! Matrix multiplications: fully connected and batched.

use super::elementwise::broadcast_sizes;
use super::{Layout, Recovery};
use crate::error::{Result, fail};
use crate::layout::LayoutViews;
use crate::payload::Node;
use pteron_exported::Argument;

impl Recovery<'_> {
    pub(super) fn fully_connected(&mut self, node: &Node, transposed: bool) -> Result<()> {
        let x = self.nhwc(node.inputs[0])?;
        let perm = if transposed { [1, 0] } else { [0, 1] };
        let mut weight = self.weights(node, node.inputs[1], &perm)?;
        let mut bias = node.inputs.get(2).map(|&v| self.nhwc(v)).transpose()?;
        let weights = self.spec(weight).sizes.clone();
        let mut sizes = self.spec(x).sizes.clone();
        let ([outputs, inputs], Some(last)) = (&weights[..], sizes.last_mut()) else {
            return fail("a product of other than a matrix");
        };
        if last.known().is_some() && *last != *inputs {
            return fail(format!("an input of {last} for {inputs} inputs"));
        }
        *last = outputs.clone();
        // Weights and bias of another type are cast to the type of the input.
        let dtype = self.dtype(x);
        weight = self.cast(weight, dtype);
        bias = bias.map(|bias| self.cast(bias, dtype));
        let args = vec![
            ("input", Argument::Var(x)),
            ("weight", Argument::Var(weight)),
            ("bias", bias.map_or(Argument::None, Argument::Var)),
        ];
        let var = self.emit("aten.linear.default", args, dtype, sizes);
        self.store_bounded(node, Layout::Nhwc(var))
    }

    pub(super) fn batch_mat_mul(&mut self, node: &Node, transposed: bool) -> Result<()> {
        let [a, b] = node.inputs[..] else { return fail("a node of other than two inputs") };
        let (x, mut y) = (self.nhwc(a)?, self.nhwc(b)?);
        if transposed {
            let rank = self.spec(y).rank();
            let mut perm: Vec<usize> = (0..rank).collect();
            if rank >= 2 {
                perm.swap(rank - 2, rank - 1);
            }
            y = self.permute(y, &perm)?;
        }
        let (left, right) = (self.spec(x).sizes.clone(), self.spec(y).sizes.clone());
        let (Some((batch, [m, k])), Some((other, [inner, n]))) =
            (left.split_last_chunk::<2>(), right.split_last_chunk::<2>())
        else {
            return fail("a product of other than matrices");
        };
        if k.known().is_some() && inner.known().is_some() && k != inner {
            return fail(format!("a product of {k} columns and {inner} rows"));
        }
        let mut sizes = broadcast_sizes(batch, other)?;
        sizes.extend([m.clone(), n.clone()]);
        let dtype = self.dtype(x);
        let (target, second) = match (batch, other) {
            ([one], [same]) if one == same => ("aten.bmm.default", "mat2"),
            _ => ("aten.matmul.default", "other"),
        };
        let args = vec![("self", Argument::Var(x)), (second, Argument::Var(y))];
        let var = self.emit(target, args, dtype, sizes);
        self.store(node, Layout::Nhwc(var))
    }
}
