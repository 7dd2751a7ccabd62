//! QR and LU factorizations where there is no kernel: reflectors and eliminations, unrolled, in float64; and systems solved
//! with LU factors.

use super::Table;
use super::When::{Always, NoKernel};
use super::linalg::{MAX_ROWS, identity, operand};
use super::product::product;
use super::windows::known;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter, broadcast};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.linalg_qr", NoKernel, qr),
    ("aten.linalg_lu", NoKernel, lu),
    ("aten.linalg_lu_factor", NoKernel, lu_factor),
    ("aten.linalg_lu_factor_ex", NoKernel, lu_factor),
    ("aten._lu_with_info", Always, lu_with_info),
    ("aten.lu_unpack", NoKernel, unpack),
    ("aten.linalg_lu_solve", NoKernel, lu_solve),
    ("aten.lu_solve", Always, lu_solve_of_right_side),
];

fn int(v: usize) -> Size {
    Size::Int(v as i64)
}

/// Matrices whose factorization is unrolled: as many steps as the smaller of their sizes.
struct Matrices {
    x: VarId,
    batch: Vec<Size>,
    rows: usize,
    columns: usize,
}

impl Matrices {
    fn of(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Self> {
        let spec = cx.spec(node, x)?;
        let Some(first) = spec.rank().checked_sub(2) else { return cx.wrong(node, "it is no matrix") };
        if spec.dtype.is_complex() {
            return cx.wrong(
                node,
                "its matrices are complex, and no kernel of the table factorizes complex numbers",
            );
        }
        let (rows, columns) =
            (known(cx, node, spec.sizes.get(first))?, known(cx, node, spec.sizes.get(first + 1))?);
        if rows.min(columns) > MAX_ROWS {
            return cx.wrong(node, format!("matrices with more than {MAX_ROWS} rows and columns"));
        }
        cx.check_table_size(node, &[rows, columns])?;
        let x = cx.cast(x, ScalarType::Double);
        Ok(Self { x, batch: spec.sizes[..first].to_vec(), rows, columns })
    }

    fn sizes(&self, rows: usize, columns: usize) -> Vec<Size> {
        self.batch.iter().cloned().chain([int(rows), int(columns)]).collect()
    }
}

/// Part of a matrix: rows `rows.0..rows.1`, columns `columns.0..columns.1`.
fn block(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (rows, columns): ((usize, usize), (usize, usize)),
) -> Result<VarId> {
    let rank = cx.of(x).rank();
    let x = cx.slice(node, x, rank - 2, (&int(rows.0), &int(rows.1)))?;
    cx.slice(node, x, rank - 1, (&int(columns.0), &int(columns.1)))
}

/// A constant matrix of ones where `is_one(row, column)`.
fn mask(
    cx: &mut Rewriter<'_>,
    (rows, columns): (usize, usize),
    is_one: impl Fn(usize, usize) -> bool,
) -> Result<VarId> {
    let values: Vec<Scalar> =
        (0..rows * columns).map(|i| Scalar::Bool(is_one(i / columns, i % columns))).collect();
    cx.constant(&values, ScalarType::Bool, &[rows, columns])
}

/// Replaces result `place` of the node by a value, cast and reshaped to that result's type and sizes.
pub(super) fn replace(cx: &mut Rewriter<'_>, node: &ExportedNode, place: usize, new: VarId) -> Result<()> {
    let Some(&old) = node.outputs.get(place) else { return Ok(()) };
    let want = cx.spec(node, old)?;
    let new = cx.cast(new, want.dtype);
    let new = cx.view(node, new, want.sizes)?;
    cx.replace(old, new);
    Ok(())
}

/// Householder reflectors, with LAPACK's choice of signs.
fn qr(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::of(cx, node, x)?;
    let (m, n) = (matrices.rows, matrices.columns);
    let mode = match node.arg("mode") {
        Some(Argument::Str(mode)) => mode.clone(),
        _ => "reduced".to_owned(),
    };
    let inner = if mode == "complete" { m } else { m.min(n) };
    let mut r = matrices.x;
    let mut q = identity(cx, node, (m, ScalarType::Double), matrices.sizes(m, m))?;
    for k in 0..m.saturating_sub(1).min(n) {
        let (vector, factor) = reflector(cx, node, r, k)?;
        let row = cx.transposed(vector);
        let scaled = cx.mul(vector, factor);
        let parts = product(cx, node, row, r)?;
        let change = product(cx, node, scaled, parts)?;
        r = cx.sub(r, change);
        let parts = product(cx, node, q, scaled)?;
        let change = product(cx, node, parts, row)?;
        q = cx.sub(q, change);
    }
    let r = block(cx, node, r, ((0, inner), (0, n)))?;
    let upper = mask(cx, (inner, n), |i, j| i <= j)?;
    let zero = cx.number(Scalar::Double(0.0), ScalarType::Double)?;
    let r = cx.choose(upper, r, zero);
    let q = match mode.as_str() {
        "r" => cx.constant(&[], ScalarType::Double, &[0])?,
        _ => block(cx, node, q, ((0, m), (0, inner)))?,
    };
    replace(cx, node, 0, q)?;
    replace(cx, node, 1, r)?;
    Ok(Outcome::Replaced)
}

/// The vector `v` of the reflector `1 - f v v^T` that clears column `k` below the diagonal, and `f`.
fn reflector(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, k: usize) -> Result<(VarId, VarId)> {
    let rank = cx.of(x).rank();
    let rows = known(cx, node, cx.of(x).sizes.get(rank - 2))?;
    let (zero, one) = (
        cx.number(Scalar::Double(0.0), ScalarType::Double)?,
        cx.number(Scalar::Double(1.0), ScalarType::Double)?,
    );
    let column = block(cx, node, x, ((0, rows), (k, k + 1)))?;
    let counts = mask(cx, (rows, 1), |i, _| i >= k)?;
    let column = cx.choose(counts, column, zero);
    let first = block(cx, node, column, ((k, k + 1), (0, 1)))?;
    let squares = cx.mul(column, column);
    let sum = cx.sum(squares, &[rank - 2], true);
    let below = mask(cx, (rows, 1), |i, _| i > k)?;
    let squares = cx.choose(below, squares, zero);
    let sum_below = cx.sum(squares, &[rank - 2], true);
    let length = cx.unary("aten.sqrt.default", sum);
    let minus = cx.unary("aten.neg.default", length);
    let is_negative = cx.compare("aten.lt.Scalar", first, 0.0);
    let target = cx.choose(is_negative, length, minus);
    let here = mask(cx, (rows, 1), |i, _| i == k)?;
    let there = cx.choose(here, target, zero);
    let vector = cx.sub(column, there);
    let squares = cx.mul(vector, vector);
    let size = cx.sum(squares, &[rank - 2], true);
    // Nothing is reflected if the column is clear already.
    let is_clear = cx.compare("aten.eq.Scalar", sum_below, 0.0);
    let divisor = cx.choose(is_clear, one, size);
    let two = cx.number(Scalar::Double(2.0), ScalarType::Double)?;
    let factor = cx.div(two, divisor);
    Ok((vector, cx.choose(is_clear, zero, factor)))
}

/// The factors of matrices in one matrix, as LAPACK returns them.
struct Factors {
    lu: VarId,
    /// For each step the row that was swapped, from 1 on; dimensions of size 1 for row and column.
    pivots: Vec<VarId>,
    /// The original row at each place, in a column.
    order: VarId,
    /// The pivots themselves.
    diagonal: Vec<VarId>,
}

/// Eliminates with partial pivoting.
fn factorize(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    matrices: &Matrices,
    pivot: bool,
) -> Result<Factors> {
    let (m, n, row_dim) = (matrices.rows, matrices.columns, matrices.batch.len());
    let places = cx.indices(0..m, &[m, 1])?;
    let mut order = cx.expand(node, places, matrices.sizes(m, 1))?;
    let (mut x, mut pivots, mut diagonal) = (matrices.x, Vec::new(), Vec::new());
    let (zero, one) = (
        cx.number(Scalar::Double(0.0), ScalarType::Double)?,
        cx.number(Scalar::Double(1.0), ScalarType::Double)?,
    );
    for k in 0..m.min(n) {
        let this = cx.number(Scalar::Int(k as i64), ScalarType::Long)?;
        if pivot {
            let column = block(cx, node, x, ((0, m), (k, k + 1)))?;
            let sizes = cx.unary("aten.abs.default", column);
            let done = cx.compare("aten.lt.Scalar", places, k as i64);
            let low = cx.number(Scalar::Double(-1.0), ScalarType::Double)?;
            let candidates = cx.choose(done, low, sizes);
            let (_, best) = cx.extremes(candidates, row_dim, true, true);
            let swapped = swapped(cx, (places, this), best);
            let swapped = cx.expand(node, swapped, matrices.sizes(m, 1))?;
            order = cx.gather(order, row_dim, swapped);
            let wide = cx.expand(node, swapped, matrices.sizes(m, n))?;
            x = cx.gather(x, row_dim, wide);
            pivots.push(cx.add(best, 1));
        } else {
            let this = cx.add(this, 1);
            pivots.push(cx.expand(node, this, matrices.sizes(1, 1))?);
        }
        let column = block(cx, node, x, ((0, m), (k, k + 1)))?;
        let row = block(cx, node, x, ((k, k + 1), (0, n)))?;
        let pivot = block(cx, node, row, ((0, 1), (k, k + 1)))?;
        diagonal.push(pivot);
        let is_zero = cx.compare("aten.eq.Scalar", pivot, 0.0);
        let divisor = cx.choose(is_zero, one, pivot);
        let quotients = cx.div(column, divisor);
        let below = mask(cx, (m, 1), |i, _| i > k)?;
        let factors = cx.choose(below, quotients, zero);
        let behind = mask(cx, (1, n), |_, j| j > k)?;
        let row = cx.choose(behind, row, zero);
        let change = cx.mul(factors, row);
        let rest = cx.sub(x, change);
        let stored = mask(cx, (m, n), |i, j| i > k && j == k)?;
        x = cx.choose(stored, quotients, rest);
    }
    Ok(Factors { lu: x, pivots, order, diagonal })
}

/// The order of rows of which two are swapped: `this` and `other`.
fn swapped(cx: &mut Rewriter<'_>, (places, this): (VarId, VarId), other: VarId) -> VarId {
    let (is_this, is_other) =
        (cx.compare("aten.eq.Tensor", places, this), cx.compare("aten.eq.Tensor", places, other));
    let order = cx.choose(is_other, this, places);
    cx.choose(is_this, other, order)
}

fn lu_factor(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::of(cx, node, x)?;
    if matrices.rows.min(matrices.columns) == 0 {
        return cx.wrong(node, "its matrices are empty");
    }
    let pivot = cx.bool(node, "pivot", true)?;
    let found = factorize(cx, node, &matrices, pivot)?;
    let rank = matrices.batch.len() + 2;
    replace(cx, node, 0, found.lu)?;
    let pivots = cx.cat(&found.pivots, rank - 1);
    replace(cx, node, 1, pivots)?;
    if node.outputs.len() > 2 {
        let zeros = cx.cat(&found.diagonal, rank - 1);
        let is_zero = cx.compare("aten.eq.Scalar", zeros, 0.0);
        let count = found.diagonal.len();
        let numbers = cx.indices(1..=count, &[count])?;
        let (none, end) = (
            cx.number(Scalar::Int(0), ScalarType::Long)?,
            cx.number(Scalar::Int(count as i64 + 1), ScalarType::Long)?,
        );
        let places = cx.choose(is_zero, numbers, end);
        let first = cx.reduce("aten.amin.default", places, &[rank - 2, rank - 1], false);
        let has_none = cx.compare("aten.eq.Scalar", first, count as i64 + 1);
        let info = cx.choose(has_none, none, first);
        replace(cx, node, 2, info)?;
    }
    Ok(Outcome::Replaced)
}

/// The matrix with a one in each row, at the place that `order` names.
fn permutation(cx: &mut Rewriter<'_>, (order, count): (VarId, usize)) -> Result<VarId> {
    let places = cx.indices(0..count, &[1, count])?;
    let is_one = cx.compare("aten.eq.Tensor", order, places);
    Ok(cx.cast(is_one, ScalarType::Double))
}

/// L and U of factors in one matrix.
fn triangles(cx: &mut Rewriter<'_>, node: &ExportedNode, matrices: &Matrices) -> Result<(VarId, VarId)> {
    let (m, n) = (matrices.rows, matrices.columns);
    let k = m.min(n);
    let zero = cx.number(Scalar::Double(0.0), ScalarType::Double)?;
    let (left, right) =
        (block(cx, node, matrices.x, ((0, m), (0, k)))?, block(cx, node, matrices.x, ((0, k), (0, n)))?);
    let below = mask(cx, (m, k), |i, j| i > j)?;
    let ones = mask(cx, (m, k), |i, j| i == j)?;
    let ones = cx.cast(ones, ScalarType::Double);
    let lower = cx.choose(below, left, ones);
    let above = mask(cx, (k, n), |i, j| i <= j)?;
    Ok((lower, cx.choose(above, right, zero)))
}

fn lu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::of(cx, node, x)?;
    let pivot = cx.bool(node, "pivot", true)?;
    let found = factorize(cx, node, &matrices, pivot)?;
    let rows = permutation(cx, (found.order, matrices.rows))?;
    let p = if pivot { cx.transposed(rows) } else { cx.constant(&[], ScalarType::Double, &[0])? };
    let (l, u) = triangles(cx, node, &Matrices { x: found.lu, ..matrices })?;
    replace(cx, node, 0, p)?;
    replace(cx, node, 1, l)?;
    replace(cx, node, 2, u)?;
    Ok(Outcome::Replaced)
}

/// The matrix that swaps rows as pivots name them.
fn row_swaps(cx: &mut Rewriter<'_>, node: &ExportedNode, (pivots, rows): (VarId, usize)) -> Result<VarId> {
    let pivots = cx.cast(pivots, ScalarType::Long);
    let spec = cx.of(pivots);
    let Some((count, batch)) = spec.sizes.split_last() else { return cx.wrong(node, "it has no pivots") };
    let count = known(cx, node, Some(count))?;
    let places = cx.indices(0..rows, &[rows, 1])?;
    let column: Vec<Size> = batch.iter().cloned().chain([int(rows), Size::Int(1)]).collect();
    let mut order = cx.expand(node, places, column.clone())?;
    for k in 0..count.min(rows) {
        let this = cx.number(Scalar::Int(k as i64), ScalarType::Long)?;
        let other = cx.slice(node, pivots, batch.len(), (&int(k), &int(k + 1)))?;
        let other = cx.sub(other, 1);
        let other = cx.unsqueeze(node, other, batch.len() + 1)?;
        let swapped = swapped(cx, (places, this), other);
        let swapped = cx.expand(node, swapped, column.clone())?;
        order = cx.gather(order, batch.len(), swapped);
    }
    permutation(cx, (order, rows))
}

fn unpack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, pivots) = (cx.tensor(node, "LU_data")?, cx.tensor(node, "LU_pivots")?);
    let matrices = Matrices::of(cx, node, x)?;
    if cx.bool(node, "unpack_pivots", true)? {
        let rows = row_swaps(cx, node, (pivots, matrices.rows))?;
        let p = cx.transposed(rows);
        replace(cx, node, 0, p)?;
    } else {
        let none = cx.constant(&[], ScalarType::Double, &[0])?;
        replace(cx, node, 0, none)?;
    }
    if cx.bool(node, "unpack_data", true)? {
        let (l, u) = triangles(cx, node, &matrices)?;
        replace(cx, node, 1, l)?;
        replace(cx, node, 2, u)?;
    } else {
        let none = cx.constant(&[], ScalarType::Double, &[0])?;
        replace(cx, node, 1, none)?;
        replace(cx, node, 2, none)?;
    }
    Ok(Outcome::Replaced)
}

/// Solves `A X = B` for `A = P L U`; the other forms are transposed to it.
fn lu_solve(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, pivots, right) = (cx.tensor(node, "LU")?, cx.tensor(node, "pivots")?, cx.tensor(node, "B")?);
    let matrices = Matrices::of(cx, node, x)?;
    let n = matrices.rows;
    let (left, adjoint) = (cx.bool(node, "left", true)?, cx.bool(node, "adjoint", false)?);
    let right = cx.cast(right, ScalarType::Double);
    let right = if left { right } else { cx.transposed(right) };
    let rows = row_swaps(cx, node, (pivots, n))?;
    let found = if adjoint == left {
        // The transpose of `P L U`.
        let factors = cx.transposed(matrices.x);
        let found = triangular(cx, factors, right, (false, false));
        let found = triangular(cx, factors, found, (true, true));
        let back = cx.transposed(rows);
        product(cx, node, back, found)?
    } else {
        let right = product(cx, node, rows, right)?;
        let found = triangular(cx, matrices.x, right, (false, true));
        triangular(cx, matrices.x, found, (true, false))
    };
    let found = if left { found } else { cx.transposed(found) };
    let want = cx.result(node)?;
    let found = cx.cast(found, want.dtype);
    cx.done(node, found)
}

/// Solves with a triangle of a matrix, by a node that is decomposed in turn.
fn triangular(cx: &mut Rewriter<'_>, matrix: VarId, right: VarId, (upper, unit): (bool, bool)) -> VarId {
    let (a, b) = (cx.of(matrix), cx.of(right));
    let (of_a, of_b) = (a.rank().saturating_sub(2), b.rank().saturating_sub(2));
    let mut sizes = broadcast(&a.sizes[..of_a], &b.sizes[..of_b]);
    sizes.extend_from_slice(&b.sizes[of_b..]);
    let args = vec![
        ("self", Argument::Var(matrix)),
        ("B", Argument::Var(right)),
        ("upper", Argument::Bool(upper)),
        ("unitriangular", Argument::Bool(unit)),
    ];
    cx.emit("aten.linalg_solve_triangular.default", args, TensorSpec::contiguous(b.dtype, sizes))
}

/// `torch.lu_solve`, which takes the right side first.
fn lu_solve_of_right_side(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (right, lu, pivots) =
        (cx.tensor(node, "self")?, cx.tensor(node, "LU_data")?, cx.tensor(node, "LU_pivots")?);
    let args =
        vec![("LU", Argument::Var(lu)), ("pivots", Argument::Var(pivots)), ("B", Argument::Var(right))];
    Ok(cx.retarget(node, "aten.linalg_lu_solve.default", args))
}

/// `torch.lu`, whose results are those of `linalg_lu_factor_ex`.
fn lu_with_info(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, pivot) = (cx.tensor(node, "self")?, cx.bool(node, "pivot", true)?);
    let args = vec![("A", Argument::Var(x)), ("pivot", Argument::Bool(pivot))];
    let types = node.outputs.iter().map(|&v| cx.program.var(v).ty.clone()).collect::<Vec<VarType>>();
    let outs = cx.emit_many("aten.linalg_lu_factor_ex.default", args, types);
    node.outputs.iter().zip(outs).for_each(|(&old, new)| cx.replace(old, new));
    Ok(Outcome::Replaced)
}
