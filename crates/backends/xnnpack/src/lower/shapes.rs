//! Whether the sizes that a program records for a node follow from its operands. Payloads are built from recorded
//! sizes, so nodes for which they do not are left to kernels, which report them when they run. Sizes that are not known
//! are not compared.

use super::call::Reason;
use super::matched::{ConvMatch, Match, Operand};
use crate::payload::Pool;
use pteron_exported::{ExportedNode, ExportedProgram, Size, VarId};

/// Checks the recorded sizes of a node's result.
pub(super) fn check(program: &ExportedProgram, node: &ExportedNode, matched: &Match) -> Result<(), Reason> {
    let sizes = |var: VarId| program.spec(var).map_or(&[][..], |spec| &spec.sizes);
    let Some(out) = node.outputs.first().map(|&var| sizes(var)) else { return Ok(()) };
    let follows = match matched {
        Match::Fused | Match::Dequantize => true,
        Match::Relayout(x)
        | Match::Quantize(x)
        | Match::Unary(_, x)
        | Match::Clamp { x, .. }
        | Match::Softmax(x) => may_be_same(sizes(*x), out),
        Match::BatchNorm { x, scale, .. } => {
            may_be_same(sizes(*x), out) && sizes(*x).get(1).is_some_and(|size| may_be(size, scale.len()))
        }
        Match::Binary(_, a, b) => {
            let operands = [a, b].map(|operand| match operand {
                Operand::Var(var) => sizes(*var),
                Operand::Number(_) => &[],
            });
            fits_broadcast(operands, out)
        }
        Match::Linear { x, weight, transposed, .. } => {
            fits_linear(sizes(*x), sizes(*weight), *transposed, out)
        }
        Match::BatchMatMul(a, b) => fits_batch_mat_mul(sizes(*a), sizes(*b), out),
        Match::Conv(conv) => fits_convolution(conv, sizes(conv.x), out),
        Match::MaxPool(x, pool) | Match::AvgPool(x, pool) => fits_pool(sizes(*x), pool, out),
        Match::SpatialMax(x, pool) => fits_spatial_max(sizes(*x), pool, out),
        Match::SpatialMean(x) => matches!((sizes(*x), out), ([n, c, _, _], [m, d, h, w])
            if may_be_equal(n, m) && may_be_equal(c, d) && may_be(h, 1) && may_be(w, 1)),
        Match::Resize { x, .. } => {
            matches!((sizes(*x), out), ([n, c, _, _], [m, d, _, _]) if may_be_equal(n, m) && may_be_equal(c, d))
        }
        Match::Transpose { x, perm } => fits_permute(sizes(*x), perm, out),
        Match::Reshape(x) => may_be_equal(&numel(sizes(*x)), &numel(out)),
        Match::Concat { tensors, axis } => {
            tensors.iter().all(|&x| may_be_same_except(sizes(x), *axis, out)) && {
                let total = tensors.iter().filter_map(|&x| sizes(x).get(*axis));
                let total = total.fold(Size::Int(0), |sum, size| sum.add(size));
                out.get(*axis).is_some_and(|size| may_be_equal(size, &total))
            }
        }
        Match::Slice { x, axis, .. } => {
            let from = sizes(*x);
            let left = from.iter().enumerate().filter(|(d, _)| d != axis).map(|(_, size)| size);
            may_be_same_except(from, *axis, out)
                || out.len() + 1 == from.len() && left.zip(out).all(|(a, b)| may_be_equal(a, b))
        }
        Match::Pad { x, pre, post, .. } => {
            let from = sizes(*x);
            let added = pre.iter().zip(post).map(|(pre, post)| Size::Int((pre + post) as i64));
            from.len() == out.len()
                && from.iter().zip(added).zip(out).all(|((a, more), b)| may_be_equal(&a.add(&more), b))
        }
    };
    if follows { Ok(()) } else { Err("its sizes do not follow from its operands".to_owned()) }
}

/// Whether two sizes may be equal.
fn may_be_equal(a: &Size, b: &Size) -> bool {
    !matches!((a.known(), b.known()), (Some(a), Some(b)) if a != b)
}

/// Whether a size may be `n`.
fn may_be(size: &Size, n: usize) -> bool {
    size.known().is_none_or(|known| usize::try_from(known) == Ok(n))
}

fn may_be_same(a: &[Size], b: &[Size]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| may_be_equal(a, b))
}

/// Whether all sizes except along one dimension may be equal.
fn may_be_same_except(a: &[Size], axis: usize, b: &[Size]) -> bool {
    a.len() == b.len() && a.iter().zip(b).enumerate().all(|(d, (a, b))| d == axis || may_be_equal(a, b))
}

fn numel(sizes: &[Size]) -> Size {
    sizes.iter().fold(Size::Int(1), |n, size| n.mul(size))
}

/// Whether operands broadcast to `out`: one operand has each size, and the other has the same size, 1 or no such
/// dimension.
fn fits_broadcast(operands: [&[Size]; 2], out: &[Size]) -> bool {
    let rank = operands.iter().map(|sizes| sizes.len()).max();
    rank == Some(out.len())
        && out.iter().rev().enumerate().all(|(back, size)| {
            let own = |sizes: &[Size]| sizes.iter().rev().nth(back).cloned().unwrap_or(Size::Int(1));
            let [a, b] = operands.map(own);
            let is_one = |size: &Size| *size == Size::Int(1);
            (may_be_equal(&a, size) || is_one(&a))
                && (may_be_equal(&b, size) || is_one(&b))
                && (may_be_equal(&a, size) || may_be_equal(&b, size))
        })
}

fn fits_linear(x: &[Size], weights: &[Size], transposed: bool, out: &[Size]) -> bool {
    let [rows, columns] = weights else { return false };
    let (inner, outer) = if transposed { (rows, columns) } else { (columns, rows) };
    match (x, out) {
        ([batch @ .., x], [lead @ .., last]) => {
            may_be_same(batch, lead) && may_be_equal(x, inner) && may_be_equal(last, outer)
        }
        _ => false,
    }
}

fn fits_batch_mat_mul(a: &[Size], b: &[Size], out: &[Size]) -> bool {
    match (a, b, out) {
        ([batch @ .., rows, inner], [others @ .., as_inner, columns], [lead @ .., m, n]) => {
            may_be_same(batch, others)
                && may_be_same(batch, lead)
                && may_be_equal(inner, as_inner)
                && may_be_equal(rows, m)
                && may_be_equal(columns, n)
        }
        _ => false,
    }
}

fn fits_convolution(conv: &ConvMatch, x: &[Size], out: &[Size]) -> bool {
    let attributes = &conv.attributes;
    let ([batch, channels, from @ ..], [lead, outputs, to @ ..]) = (x, out) else { return false };
    let rank = if conv.is_1d { 1 } else { 2 };
    let inputs = attributes.group_inputs.checked_mul(attributes.groups);
    let space = (0..rank).all(|d| {
        let (Some(from), Some(to)) = (from.get(d).and_then(Size::known), to.get(d).and_then(Size::known))
        else {
            return true;
        };
        let number = |n: usize| n as i128;
        let [kernel, stride] = [attributes.kernel[d], attributes.stride[d]].map(number);
        let [dilation, adjustment] = [attributes.dilation[d], attributes.adjustment[d]].map(number);
        let padding = number(attributes.padding[d]) + number(attributes.padding[d + 2]);
        let reach = dilation * (kernel - 1) + 1;
        let expected = match conv.is_transposed {
            true => (i128::from(from) - 1) * stride - padding + reach + adjustment,
            false if stride == 0 => return false,
            false => (i128::from(from) + padding - reach).div_euclid(stride) + 1,
        };
        i128::from(to) == expected
    });
    from.len() == rank
        && to.len() == rank
        && may_be_equal(batch, lead)
        && inputs.is_some_and(|inputs| may_be(channels, inputs))
        && may_be(outputs, attributes.outputs())
        && space
}

/// The size of a pool's result along dimension `d`; `None` if no window fits.
fn pooled_size(from: i64, pool: &Pool, d: usize) -> Option<i64> {
    let number = |n: usize| i64::try_from(n).ok();
    let reach =
        number(pool.dilation[d])?.checked_mul(number(pool.window[d])?.checked_sub(1)?)?.checked_add(1)?;
    let padded = from.checked_add(number(pool.padding[d])?)?.checked_add(number(pool.padding[d + 2])?)?;
    let last = padded.checked_sub(reach).filter(|&last| last >= 0)?;
    last.checked_div(number(pool.stride[d])?)?.checked_add(1)
}

fn fits_pool(x: &[Size], pool: &Pool, out: &[Size]) -> bool {
    let ([n, c, from @ ..], [m, d, to @ ..]) = (x, out) else { return false };
    let space = |d: usize| match (from.get(d).and_then(Size::known), to.get(d).and_then(Size::known)) {
        // In the ceiling mode a last window may reach beyond the padding.
        (Some(from), Some(to)) => {
            pooled_size(from, pool, d).is_some_and(|least| to == least || to == least + 1)
        }
        _ => true,
    };
    from.len() == 2 && to.len() == 2 && may_be_equal(n, m) && may_be_equal(c, d) && space(0) && space(1)
}

/// Whether `out` are the sizes of the image `x` without the dimension that the pooling window covers entirely.
fn fits_spatial_max(x: &[Size], pool: &Pool, out: &[Size]) -> bool {
    let gone = if pool.window[0] > 1 { 2 } else { 3 };
    let left = x.iter().enumerate().filter(|(d, _)| *d != gone).map(|(_, size)| size);
    x.len() == 4 && out.len() == 3 && left.zip(out).all(|(a, b)| may_be_equal(a, b))
}

fn fits_permute(x: &[Size], perm: &[usize], out: &[Size]) -> bool {
    let mut dims = perm.to_vec();
    dims.sort_unstable();
    dims.into_iter().eq(0..x.len())
        && out.len() == x.len()
        && perm.iter().zip(out).all(|(&d, size)| x.get(d).is_some_and(|from| may_be_equal(from, size)))
}
