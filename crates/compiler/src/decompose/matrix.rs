//! Matrices: diagonals, triangles, Kronecker and chained products, powers, and combinations of elements.

use super::Table;
use super::When::{Always, NoKernel};
use super::product::matmul_any_rank;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.diag", NoKernel, diag),
    ("aten.diag_embed", NoKernel, diag_embed),
    ("aten.diagflat", NoKernel, diagflat),
    ("aten.linalg_diagonal", Always, diagonal),
    ("aten.trace", NoKernel, trace),
    ("aten.tril_indices", NoKernel, triangle_indices),
    ("aten.triu_indices", NoKernel, triangle_indices),
    ("aten.block_diag", Always, block_diag),
    ("aten.cross", NoKernel, cross),
    ("aten.linalg_cross", NoKernel, cross),
    ("aten.kron", NoKernel, kron),
    ("aten.tensordot", Always, tensordot),
    ("aten.addr", NoKernel, addr),
    ("aten.addbmm", NoKernel, addbmm),
    ("aten.vdot", NoKernel, vecdot),
    ("aten.linalg_vecdot", Always, vecdot),
    ("aten.linalg_multi_dot", Always, multi_dot),
    ("aten.chain_matmul", Always, multi_dot),
    ("aten.linalg_matrix_power", Always, matrix_power),
    ("aten.matrix_power", Always, matrix_power),
    ("aten.linalg_vander", Always, vander),
    ("aten.vander", Always, vander),
    ("aten.cartesian_prod", Always, cartesian_prod),
    ("aten.combinations", Always, combinations),
];

/// A mask of the diagonal of dimensions `a` and `b` that is shifted right by `offset`.
pub(super) fn diagonal_mask(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (offset, a, b): (i64, usize, usize),
    spec: &TensorSpec,
) -> Result<VarId> {
    let mut along = |dim: usize| -> Result<VarId> {
        let places = cx.arange(node, &spec.sizes[dim], ScalarType::Long)?;
        let mut sizes = vec![Size::Int(1); spec.rank()];
        sizes[dim] = spec.sizes[dim].clone();
        cx.view(node, places, sizes)
    };
    let (down, across) = (along(a)?, along(b)?);
    let moved = if offset == 0 { down } else { cx.add(down, offset) };
    Ok(cx.compare("aten.eq.Tensor", across, moved))
}

/// Permutes `x` so that, once broadcast, its last dimension runs along a diagonal of dimensions `a` and `b`; elements
/// off the diagonal are arbitrary.
pub(super) fn spread_on_diagonal(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (offset, a, b): (i64, usize, usize),
    sizes: [&Size; 2],
) -> Result<VarId> {
    let rank = cx.spec_of(x).rank() + 1;
    if rank < 2 {
        return cx.fail(node, "its diagonal has no dimension");
    }
    // Element `k` is in row `k` if the diagonal starts right of the first column, otherwise in column `k`.
    let (dim, size) = if offset > 0 { (a, sizes[0]) } else { (b, sizes[1]) };
    let last = rank - 2;
    let have = cx.spec_of(x).sizes[last].clone();
    let spare = match size.add(&have.mul(&Size::Int(-1))).known() {
        Some(spare) => spare,
        None => return cx.fail(node, "the size of its diagonal is not known"),
    };
    let padded = cx.pad(x, last, (0, spare), 0);
    let wide = cx.unsqueeze(node, padded, rank - 1)?;
    // The diagonal's dimension becomes `dim`, and the one of size 1 the other of `a` and `b`.
    let other = if dim == a { b } else { a };
    let mut rest = 0..rank - 2;
    let dims: Vec<usize> = (0..rank)
        .filter_map(|d| match d {
            d if d == dim => Some(rank - 2),
            d if d == other => Some(rank - 1),
            _ => rest.next(),
        })
        .collect();
    Ok(cx.permute(wide, &dims))
}

fn embed_diagonal(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (offset, a, b): (i64, usize, usize),
    want: &TensorSpec,
) -> Result<VarId> {
    if want.rank() < 2 || cx.spec_of(x).rank() + 1 != want.rank() {
        return cx.fail(node, "its result is no matrix of its diagonal");
    }
    let spread = spread_on_diagonal(cx, node, x, (offset, a, b), [&want.sizes[a], &want.sizes[b]])?;
    let mask = diagonal_mask(cx, node, (offset, a, b), want)?;
    let zero = cx.scalar(Scalar::Int(0), want.dtype)?;
    Ok(cx.choose(mask, spread, zero))
}

fn diag_embed(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let offset = cx.int(node, "offset", 0)?;
    let (a, b) = (cx.int(node, "dim1", -2)?, cx.int(node, "dim2", -1)?);
    let (a, b) = (cx.dim(node, a, want.rank())?, cx.dim(node, b, want.rank())?);
    let (a, b, offset) = if a < b { (a, b, offset) } else { (b, a, -offset) };
    let new = embed_diagonal(cx, node, x, (offset, a, b), &want)?;
    cx.replace_node(node, new)
}

/// Extracts a diagonal of a matrix, or builds a matrix from its diagonal.
fn diag(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, offset) = (cx.tensor(node, "self")?, cx.int(node, "diagonal", 0)?);
    match cx.spec(node, x)?.rank() {
        1 => {
            let want = cx.result_spec(node)?;
            let new = embed_diagonal(cx, node, x, (offset, 0, 1), &want)?;
            cx.replace_node(node, new)
        }
        _ => {
            let args = vec![
                ("self", Argument::Var(x)),
                ("offset", Argument::Int(offset)),
                ("dim1", Argument::Int(0)),
                ("dim2", Argument::Int(1)),
            ];
            Ok(cx.retarget(node, "aten.diagonal.default", args))
        }
    }
}

fn diagflat(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, offset, want) = (cx.tensor(node, "self")?, cx.int(node, "offset", 0)?, cx.result_spec(node)?);
    let count = cx.spec(node, x)?.numel();
    let row = cx.view(node, x, vec![count])?;
    let new = embed_diagonal(cx, node, row, (offset, 0, 1), &want)?;
    cx.replace_node(node, new)
}

fn diagonal(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = match cx.optional_tensor(node, "A") {
        Some(x) => x,
        None => cx.tensor(node, "self")?,
    };
    let args = vec![
        ("self", Argument::Var(x)),
        ("offset", Argument::Int(cx.int(node, "offset", 0)?)),
        ("dim1", Argument::Int(cx.int(node, "dim1", -2)?)),
        ("dim2", Argument::Int(cx.int(node, "dim2", -1)?)),
    ];
    Ok(cx.retarget(node, "aten.diagonal.default", args))
}

fn trace(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let spec = cx.spec(node, x)?;
    if spec.rank() != 2 {
        return cx.fail(node, "it is no matrix");
    }
    let mask = diagonal_mask(cx, node, (0, 0, 1), &spec)?;
    let zero = cx.scalar(Scalar::Int(0), spec.dtype)?;
    let on = cx.choose(mask, x, zero);
    let on = cx.cast(on, want.dtype);
    let new = cx.sum(on, &[0, 1], false);
    cx.replace_node(node, new)
}

fn triangle_indices(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (rows, columns) = (cx.int(node, "row", 0)?, cx.int(node, "col", 0)?);
    let (offset, want) = (cx.int(node, "offset", 0)?, cx.result_spec(node)?);
    let count = |n: i64| usize::try_from(n).unwrap_or(0);
    cx.check_table_size(node, &[count(rows).max(1), count(columns).max(1)])?;
    let is_lower = node.target.starts_with("aten.tril");
    let places = (0..rows).flat_map(|i| (0..columns).map(move |j| (i, j)));
    let chosen: Vec<(i64, i64)> =
        places.filter(|&(i, j)| if is_lower { j - i <= offset } else { j - i >= offset }).collect();
    let list: Vec<Scalar> =
        chosen.iter().map(|p| Scalar::Int(p.0)).chain(chosen.iter().map(|p| Scalar::Int(p.1))).collect();
    let new = cx.constant(&list, want.dtype, &[2, chosen.len()])?;
    cx.replace_node(node, new)
}

fn block_diag(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (tensors, want) = (cx.tensors(node, "tensors")?, cx.result_spec(node)?);
    let Some(width) = want.sizes.get(1).and_then(Size::known) else {
        return cx.fail(node, "the sizes of its operands are not known");
    };
    let (mut rows, mut before) = (Vec::new(), 0);
    for t in tensors {
        let spec = cx.spec(node, t)?;
        let matrix = match spec.sizes.as_slice() {
            [] => vec![Size::Int(1), Size::Int(1)],
            [n] => vec![Size::Int(1), n.clone()],
            _ => spec.sizes.clone(),
        };
        let Some(columns) = matrix[1].known() else {
            return cx.fail(node, "the sizes of its operands are not known");
        };
        let block = cx.view(node, t, matrix)?;
        let block = cx.cast(block, want.dtype);
        rows.push(cx.pad(block, 1, (before, width - before - columns), 0));
        before += columns;
    }
    if rows.is_empty() {
        return cx.fail(node, "it joins no blocks");
    }
    let new = cx.cat(&rows, 0);
    cx.replace_node(node, new)
}

/// `a[i + 1] * b[i + 2] - a[i + 2] * b[i + 1]`, indices modulo 3.
fn cross(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, want) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?, cx.result_spec(node)?);
    let dim = match node.arg("dim") {
        Some(Argument::Int(d)) => cx.dim(node, *d, want.rank())?,
        _ if node.target.starts_with("aten.linalg") => want.rank().saturating_sub(1),
        _ => want.sizes.iter().position(|s| *s == Size::Int(3)).unwrap_or(0),
    };
    let (a, b) = (cx.expand(node, a, want.sizes.clone())?, cx.expand(node, b, want.sizes.clone())?);
    let (next, after) = (cx.index_constant([1, 2, 0], &[3])?, cx.index_constant([2, 0, 1], &[3])?);
    let mut at = |v, index| cx.index_select(v, dim, index);
    let (a1, b2, a2, b1) = (at(a, next), at(b, after), at(a, after), at(b, next));
    let (left, right) = (cx.mul(a1, b2), cx.mul(a2, b1));
    let new = cx.sub(left, right);
    cx.replace_node(node, new)
}

fn kron(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, want) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?, cx.result_spec(node)?);
    let rank = want.rank();
    if cx.spec_of(a).rank().max(cx.spec_of(b).rank()) != rank {
        return cx.fail(node, "its result has another rank than its operands");
    }
    let spread = |cx: &Rewriter<'_>, v: VarId, first: bool| -> Vec<Size> {
        let sizes = cx.spec_of(v).sizes;
        let full = std::iter::repeat_n(Size::Int(1), rank - sizes.len()).chain(sizes);
        full.flat_map(|s| if first { [s, Size::Int(1)] } else { [Size::Int(1), s] }).collect()
    };
    let (left, right) = (spread(cx, a, true), spread(cx, b, false));
    if left.len() > pteron_tensor::MAX_RANK {
        return cx.fail(node, "it has too many dimensions");
    }
    let (a, b) = (cx.view(node, a, left)?, cx.view(node, b, right)?);
    let each = cx.mul(a, b);
    let new = cx.view(node, each, want.sizes)?;
    cx.replace_node(node, new)
}

/// Moves the summed dimensions to the end of the first operand and to the front of the second, and multiplies matrices.
fn tensordot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b, want) = (cx.tensor(node, "self")?, cx.tensor(node, "other")?, cx.result_spec(node)?);
    let dims = |cx: &Rewriter<'_>, name: &str, rank: usize| -> Result<Vec<usize>> {
        cx.ints(node, name)?.unwrap_or_default().iter().map(|&d| cx.dim(node, d, rank)).collect()
    };
    let (mut a, mut b, mut x, mut y) = (a, b, cx.spec_of(a), cx.spec_of(b));
    if x.rank() == 0 || y.rank() == 0 {
        return cx.fail(node, "it sums over tensors without dimensions");
    }
    let (summed_a, summed_b) = (dims(cx, "dims_self", x.rank())?, dims(cx, "dims_other", y.rank())?);
    // A summed dimension of size 1 is broadcast, so the other operand is summed by itself.
    for (&i, &j) in summed_a.iter().zip(&summed_b) {
        let one = Size::Int(1);
        if x.sizes[i] == one && y.sizes[j] != one {
            b = cx.sum(b, &[j], true);
            y = cx.spec_of(b);
        } else if y.sizes[j] == one && x.sizes[i] != one {
            a = cx.sum(a, &[i], true);
            x = cx.spec_of(a);
        }
    }
    let remaining_dims =
        |rank: usize, summed: &[usize]| (0..rank).filter(|d| !summed.contains(d)).collect::<Vec<_>>();
    let (rows, columns) = (remaining_dims(x.rank(), &summed_a), remaining_dims(y.rank(), &summed_b));
    let count = |sizes: &[Size], dims: &[usize]| dims.iter().fold(Size::Int(1), |n, &d| n.mul(&sizes[d]));
    let left = cx.permute(a, &[rows.clone(), summed_a.clone()].concat());
    let left = cx.view(node, left, vec![count(&x.sizes, &rows), count(&x.sizes, &summed_a)])?;
    let right = cx.permute(b, &[summed_b.clone(), columns.clone()].concat());
    let right = cx.view(node, right, vec![count(&y.sizes, &summed_b), count(&y.sizes, &columns)])?;
    let product = cx.matmul(left, right);
    let new = cx.view(node, product, want.sizes)?;
    cx.replace_node(node, new)
}

/// `beta * self + alpha * product`.
fn add_product(cx: &mut Rewriter<'_>, node: &ExportedNode, product: VarId) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let (alpha, beta) = (cx.float(node, "alpha", 1.0)?, cx.float(node, "beta", 1.0)?);
    let times = |cx: &mut Rewriter<'_>, v: VarId, by: f64| match by {
        1.0 => v,
        by if cx.spec_of(v).dtype.is_floating() => cx.mul(v, by),
        by => cx.mul(v, by as i64),
    };
    let product = times(cx, product, alpha);
    let new = if beta == 0.0 {
        cx.expand(node, product, want.sizes)?
    } else {
        let x = times(cx, x, beta);
        cx.add(product, x)
    };
    cx.replace_node(node, new)
}

fn addr(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "vec1")?, cx.tensor(node, "vec2")?);
    let column = cx.unsqueeze(node, a, 1)?;
    let product = cx.mul(column, b);
    add_product(cx, node, product)
}

fn addbmm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "batch1")?, cx.tensor(node, "batch2")?);
    let products = cx.matmul(a, b);
    let sum = cx.sum(products, &[0], false);
    add_product(cx, node, sum)
}

fn vecdot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let named = |a: &'static str, b: &'static str| if node.arg(a).is_some() { a } else { b };
    let (a, b) = (cx.tensor(node, named("x", "self"))?, cx.tensor(node, named("y", "other"))?);
    let each = cx.mul(a, b);
    let dim = cx.int(node, "dim", -1)?;
    let dim = cx.dim(node, dim, cx.spec_of(each).rank())?;
    let new = cx.sum(each, &[dim], false);
    cx.replace_node(node, new)
}

fn multi_dot(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let named = if node.arg("tensors").is_some() { "tensors" } else { "matrices" };
    let (tensors, want) = (cx.tensors(node, named)?, cx.result_spec(node)?);
    let Some((&first, rest)) = tensors.split_first() else { return cx.fail(node, "it multiplies nothing") };
    let mut value = first;
    if cx.spec_of(value).rank() == 1 {
        value = cx.unsqueeze(node, value, 0)?;
    }
    for &next in rest {
        value = matmul_any_rank(cx, node, value, next)?;
    }
    let new = cx.view(node, value, want.sizes)?;
    cx.replace_node(node, new)
}

fn matrix_power(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = match cx.optional_tensor(node, "A") {
        Some(x) => x,
        None => cx.tensor(node, "self")?,
    };
    let (spec, n) = (cx.spec(node, x)?, cx.int(node, "n", 1)?);
    if spec.rank() < 2 {
        return cx.fail(node, "it is no matrix");
    }
    let rank = spec.rank();
    if n == 0 {
        let mask = diagonal_mask(cx, node, (0, rank - 2, rank - 1), &spec)?;
        let one = cx.cast(mask, spec.dtype);
        let new = cx.expand(node, one, spec.sizes)?;
        return cx.replace_node(node, new);
    }
    let mut power = if n < 0 { super::linalg::inverse(cx, node, x)? } else { x };
    let (mut rest, mut value) = (n.unsigned_abs(), None);
    while rest > 0 {
        if rest & 1 == 1 {
            value = Some(match value {
                Some(value) => matmul_any_rank(cx, node, value, power)?,
                None => power,
            });
        }
        rest >>= 1;
        if rest > 0 {
            power = matmul_any_rank(cx, node, power, power)?;
        }
    }
    cx.replace_node(node, value.unwrap_or(power))
}

/// Powers 0, 1, 2, ... of each element; `vander` has them in descending order, unless `increasing`.
fn vander(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "x")?, cx.result_spec(node)?);
    let Some(count) = want.sizes.last().and_then(Size::known) else {
        return cx.fail(node, "the number of its columns is not known");
    };
    cx.check_unrolled_size(node, count, 2)?;
    let x = cx.cast(x, want.dtype);
    let sizes = cx.spec_of(x).sizes;
    let one = if want.dtype.is_floating() { Argument::Float(1.0) } else { Argument::Int(1) };
    let mut power = cx.full(node, sizes, one, want.dtype)?;
    let mut columns = Vec::new();
    for _ in 0..count {
        let mut column = want.sizes.clone();
        column[want.rank() - 1] = Size::Int(1);
        columns.push(cx.view(node, power, column)?);
        power = cx.mul(power, x);
    }
    if columns.is_empty() {
        return cx.fail(node, "it has no columns");
    }
    if node.target.starts_with("aten.vander") && !cx.bool(node, "increasing", false)? {
        columns.reverse();
    }
    let new = cx.cat(&columns, want.rank() - 1);
    cx.replace_node(node, new)
}

fn cartesian_prod(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (tensors, want) = (cx.tensors(node, "tensors")?, cx.result_spec(node)?);
    if let [only] = tensors.as_slice() {
        return cx.replace_node(node, *only);
    }
    if want.rank() != 2 {
        return cx.fail(node, "its result is no list of points");
    }
    let grid: Vec<Size> = tensors.iter().map(|&t| cx.spec_of(t).numel()).collect();
    let mut columns = Vec::new();
    for (i, &t) in tensors.iter().enumerate() {
        let mut sizes = vec![Size::Int(1); grid.len()];
        sizes[i] = grid[i].clone();
        let placed = cx.view(node, t, sizes)?;
        let wide = cx.expand(node, placed, grid.clone())?;
        columns.push(cx.view(node, wide, vec![want.sizes[0].clone(), Size::Int(1)])?);
    }
    let new = cx.cat(&columns, 1);
    cx.replace_node(node, new)
}

/// All combinations of `r` elements of a vector, one in each row.
fn combinations(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let (size, repeats) = (cx.int(node, "r", 2)?, cx.bool(node, "with_replacement", false)?);
    let count = super::windows::static_size(cx, node, cx.spec_of(x).sizes.first())?;
    let rows = super::windows::static_size(cx, node, want.sizes.first())?;
    let size = usize::try_from(size).unwrap_or(0);
    if rows == 0 {
        let zero = if want.dtype.is_floating() { Argument::Float(0.0) } else { Argument::Int(0) };
        let new = cx.full(node, want.sizes, zero, want.dtype)?;
        return cx.replace_node(node, new);
    }
    cx.check_table_size(node, &[rows, size.max(1)])?;
    if size == 0 || count == 0 || (size > count && !repeats) {
        return cx.fail(node, "it has no combinations");
    }
    let mut list: Vec<usize> = Vec::new();
    let mut at: Vec<usize> = (0..size).map(|i| if repeats { 0 } else { i }).collect();
    while list.len() < rows * size {
        list.extend(&at);
        let most = |i: usize| if repeats { count - 1 } else { count - size + i };
        let Some(i) = (0..size).rev().find(|&i| at[i] < most(i)) else { break };
        at[i] += 1;
        for j in i + 1..size {
            at[j] = if repeats { at[i] } else { at[j - 1] + 1 };
        }
    }
    let len = list.len();
    let index = cx.index_constant(list, &[len])?;
    let flat = cx.index_select(x, 0, index);
    let new = cx.view(node, flat, want.sizes)?;
    cx.replace_node(node, new)
}
