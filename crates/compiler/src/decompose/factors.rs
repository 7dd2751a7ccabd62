//! QR and LU factorizations where there is no kernel: reflectors and eliminations, unrolled, in float64; and systems solved
//! with LU factors.

use super::Table;
use super::When::{Always, NoKernel};
use super::linalg::{MAX_ROWS, identity_matrices, operand};
use super::product::matmul_any_rank;
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter, broadcast_sizes};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.linalg_qr", NoKernel, qr),
    ("aten.linalg_lu", NoKernel, lu),
    ("aten.linalg_lu_factor", NoKernel, lu_factor),
    ("aten.linalg_lu_factor_ex", NoKernel, lu_factor),
    ("aten._lu_with_info", Always, lu_with_info),
    ("aten.lu_unpack", NoKernel, lu_unpack),
    ("aten.linalg_lu_solve", NoKernel, lu_solve),
    ("aten.lu_solve", Always, lu_solve_of_right_side),
];

fn int(v: usize) -> Size {
    Size::Int(v as i64)
}

/// Matrices to be factorized, with one unrolled step for each row or column, whichever are fewer.
struct Matrices {
    x: VarId,
    batch: Vec<Size>,
    rows: usize,
    columns: usize,
}

impl Matrices {
    fn from_operand(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Self> {
        let spec = cx.spec(node, x)?;
        let Some(first) = spec.rank().checked_sub(2) else { return cx.fail(node, "it is no matrix") };
        if spec.dtype.is_complex() {
            return cx.fail(
                node,
                "its matrices are complex, and no kernel of the table factorizes complex numbers",
            );
        }
        let (rows, columns) = (
            static_size(cx, node, spec.sizes.get(first))?,
            static_size(cx, node, spec.sizes.get(first + 1))?,
        );
        if rows.min(columns) > MAX_ROWS {
            return cx.fail(node, format!("matrices with more than {MAX_ROWS} rows and columns"));
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
fn submatrix(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (rows, columns): ((usize, usize), (usize, usize)),
) -> Result<VarId> {
    let rank = cx.spec_of(x).rank();
    let x = cx.slice(node, x, rank - 2, (&int(rows.0), &int(rows.1)))?;
    cx.slice(node, x, rank - 1, (&int(columns.0), &int(columns.1)))
}

/// A constant boolean matrix that is true where `is_one(row, column)` is.
fn constant_mask(
    cx: &mut Rewriter<'_>,
    (rows, columns): (usize, usize),
    is_one: impl Fn(usize, usize) -> bool,
) -> Result<VarId> {
    let values: Vec<Scalar> =
        (0..rows * columns).map(|i| Scalar::Bool(is_one(i / columns, i % columns))).collect();
    cx.constant(&values, ScalarType::Bool, &[rows, columns])
}

/// Replaces result number `place` of the node by a value, cast and reshaped to that result's type and sizes.
pub(super) fn replace_result(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    place: usize,
    new: VarId,
) -> Result<()> {
    let Some(&old) = node.outputs.get(place) else { return Ok(()) };
    let want = cx.spec(node, old)?;
    let new = cx.cast(new, want.dtype);
    let new = cx.view(node, new, want.sizes)?;
    cx.replace(old, new);
    Ok(())
}

/// QR factorization by Householder reflectors, with LAPACK's choice of signs.
fn qr(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::from_operand(cx, node, x)?;
    let (m, n) = (matrices.rows, matrices.columns);
    let mode = match node.arg("mode") {
        Some(Argument::Str(mode)) => mode.clone(),
        _ => "reduced".to_owned(),
    };
    let inner = if mode == "complete" { m } else { m.min(n) };
    let mut r = matrices.x;
    let mut q = identity_matrices(cx, node, (m, ScalarType::Double), matrices.sizes(m, m))?;
    for k in 0..m.saturating_sub(1).min(n) {
        let (vector, factor) = reflector(cx, node, r, k)?;
        let row = cx.transpose(vector);
        let scaled = cx.mul(vector, factor);
        let parts = matmul_any_rank(cx, node, row, r)?;
        let change = matmul_any_rank(cx, node, scaled, parts)?;
        r = cx.sub(r, change);
        let parts = matmul_any_rank(cx, node, q, scaled)?;
        let change = matmul_any_rank(cx, node, parts, row)?;
        q = cx.sub(q, change);
    }
    let r = submatrix(cx, node, r, ((0, inner), (0, n)))?;
    let upper = constant_mask(cx, (inner, n), |i, j| i <= j)?;
    let zero = cx.scalar(Scalar::Double(0.0), ScalarType::Double)?;
    let r = cx.choose(upper, r, zero);
    let q = match mode.as_str() {
        "r" => cx.constant(&[], ScalarType::Double, &[0])?,
        _ => submatrix(cx, node, q, ((0, m), (0, inner)))?,
    };
    replace_result(cx, node, 0, q)?;
    replace_result(cx, node, 1, r)?;
    Ok(Outcome::Replaced)
}

/// The vector `v` of the reflector `1 - f v v^T` that clears column `k` below the diagonal, and `f`.
fn reflector(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, k: usize) -> Result<(VarId, VarId)> {
    let rank = cx.spec_of(x).rank();
    let rows = static_size(cx, node, cx.spec_of(x).sizes.get(rank - 2))?;
    let (zero, one) = (
        cx.scalar(Scalar::Double(0.0), ScalarType::Double)?,
        cx.scalar(Scalar::Double(1.0), ScalarType::Double)?,
    );
    let column = submatrix(cx, node, x, ((0, rows), (k, k + 1)))?;
    let counts = constant_mask(cx, (rows, 1), |i, _| i >= k)?;
    let column = cx.choose(counts, column, zero);
    let first = submatrix(cx, node, column, ((k, k + 1), (0, 1)))?;
    let squares = cx.mul(column, column);
    let sum = cx.sum(squares, &[rank - 2], true);
    let below = constant_mask(cx, (rows, 1), |i, _| i > k)?;
    let squares = cx.choose(below, squares, zero);
    let sum_below = cx.sum(squares, &[rank - 2], true);
    let length = cx.unary("aten.sqrt.default", sum);
    let minus = cx.unary("aten.neg.default", length);
    let is_negative = cx.compare("aten.lt.Scalar", first, 0.0);
    let target = cx.choose(is_negative, length, minus);
    let here = constant_mask(cx, (rows, 1), |i, _| i == k)?;
    let there = cx.choose(here, target, zero);
    let vector = cx.sub(column, there);
    let squares = cx.mul(vector, vector);
    let size = cx.sum(squares, &[rank - 2], true);
    // Nothing is reflected if the column is clear already.
    let is_clear = cx.compare("aten.eq.Scalar", sum_below, 0.0);
    let divisor = cx.choose(is_clear, one, size);
    let two = cx.scalar(Scalar::Double(2.0), ScalarType::Double)?;
    let factor = cx.div(two, divisor);
    Ok((vector, cx.choose(is_clear, zero, factor)))
}

/// LU factors of matrices. L and U share one matrix, as LAPACK returns them.
struct Factors {
    lu: VarId,
    /// For each step `i`, the index, counted from 1, of the row swapped with row `i`. Its last two sizes are 1.
    pivots: Vec<VarId>,
    /// The original index of each row after the swaps, as a column.
    order: VarId,
    /// The pivot values of each step.
    diagonal: Vec<VarId>,
}

/// LU factorization by elimination, with partial pivoting if `pivot`.
fn factorize(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    matrices: &Matrices,
    pivot: bool,
) -> Result<Factors> {
    let (m, n, row_dim) = (matrices.rows, matrices.columns, matrices.batch.len());
    let places = cx.index_constant(0..m, &[m, 1])?;
    let mut order = cx.expand(node, places, matrices.sizes(m, 1))?;
    let (mut x, mut pivots, mut diagonal) = (matrices.x, Vec::new(), Vec::new());
    let (zero, one) = (
        cx.scalar(Scalar::Double(0.0), ScalarType::Double)?,
        cx.scalar(Scalar::Double(1.0), ScalarType::Double)?,
    );
    for k in 0..m.min(n) {
        let this = cx.scalar(Scalar::Int(k as i64), ScalarType::Long)?;
        if pivot {
            let column = submatrix(cx, node, x, ((0, m), (k, k + 1)))?;
            let sizes = cx.unary("aten.abs.default", column);
            let done = cx.compare("aten.lt.Scalar", places, k as i64);
            let low = cx.scalar(Scalar::Double(-1.0), ScalarType::Double)?;
            let candidates = cx.choose(done, low, sizes);
            let (_, best) = cx.min_or_max(candidates, row_dim, true, true);
            let swapped = swap_rows(cx, (places, this), best);
            let swapped = cx.expand(node, swapped, matrices.sizes(m, 1))?;
            order = cx.gather(order, row_dim, swapped);
            let wide = cx.expand(node, swapped, matrices.sizes(m, n))?;
            x = cx.gather(x, row_dim, wide);
            pivots.push(cx.add(best, 1));
        } else {
            let this = cx.add(this, 1);
            pivots.push(cx.expand(node, this, matrices.sizes(1, 1))?);
        }
        let column = submatrix(cx, node, x, ((0, m), (k, k + 1)))?;
        let row = submatrix(cx, node, x, ((k, k + 1), (0, n)))?;
        let pivot = submatrix(cx, node, row, ((0, 1), (k, k + 1)))?;
        diagonal.push(pivot);
        let is_zero = cx.compare("aten.eq.Scalar", pivot, 0.0);
        let divisor = cx.choose(is_zero, one, pivot);
        let quotients = cx.div(column, divisor);
        let below = constant_mask(cx, (m, 1), |i, _| i > k)?;
        let factors = cx.choose(below, quotients, zero);
        let behind = constant_mask(cx, (1, n), |_, j| j > k)?;
        let row = cx.choose(behind, row, zero);
        let change = cx.mul(factors, row);
        let rest = cx.sub(x, change);
        let stored = constant_mask(cx, (m, n), |i, j| i > k && j == k)?;
        x = cx.choose(stored, quotients, rest);
    }
    Ok(Factors { lu: x, pivots, order, diagonal })
}

/// Swaps the rows `this` and `other` of a row order.
fn swap_rows(cx: &mut Rewriter<'_>, (places, this): (VarId, VarId), other: VarId) -> VarId {
    let (is_this, is_other) =
        (cx.compare("aten.eq.Tensor", places, this), cx.compare("aten.eq.Tensor", places, other));
    let order = cx.choose(is_other, this, places);
    cx.choose(is_this, other, order)
}

fn lu_factor(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::from_operand(cx, node, x)?;
    if matrices.rows.min(matrices.columns) == 0 {
        return cx.fail(node, "its matrices are empty");
    }
    let pivot = cx.bool(node, "pivot", true)?;
    let factorization = factorize(cx, node, &matrices, pivot)?;
    let rank = matrices.batch.len() + 2;
    replace_result(cx, node, 0, factorization.lu)?;
    let pivots = cx.cat(&factorization.pivots, rank - 1);
    replace_result(cx, node, 1, pivots)?;
    if node.outputs.len() > 2 {
        let zeros = cx.cat(&factorization.diagonal, rank - 1);
        let is_zero = cx.compare("aten.eq.Scalar", zeros, 0.0);
        let count = factorization.diagonal.len();
        let numbers = cx.index_constant(1..=count, &[count])?;
        let (none, end) = (
            cx.scalar(Scalar::Int(0), ScalarType::Long)?,
            cx.scalar(Scalar::Int(count as i64 + 1), ScalarType::Long)?,
        );
        let places = cx.choose(is_zero, numbers, end);
        let first = cx.reduce("aten.amin.default", places, &[rank - 2, rank - 1], false);
        let has_none = cx.compare("aten.eq.Scalar", first, count as i64 + 1);
        let info = cx.choose(has_none, none, first);
        replace_result(cx, node, 2, info)?;
    }
    Ok(Outcome::Replaced)
}

/// The permutation matrix that has a one in row `i` at column `order[i]`.
fn permutation(cx: &mut Rewriter<'_>, (order, count): (VarId, usize)) -> Result<VarId> {
    let places = cx.index_constant(0..count, &[1, count])?;
    let is_one = cx.compare("aten.eq.Tensor", order, places);
    Ok(cx.cast(is_one, ScalarType::Double))
}

/// Splits LU factors that share one matrix into L and U.
fn split_lu(cx: &mut Rewriter<'_>, node: &ExportedNode, matrices: &Matrices) -> Result<(VarId, VarId)> {
    let (m, n) = (matrices.rows, matrices.columns);
    let k = m.min(n);
    let zero = cx.scalar(Scalar::Double(0.0), ScalarType::Double)?;
    let (left, right) = (
        submatrix(cx, node, matrices.x, ((0, m), (0, k)))?,
        submatrix(cx, node, matrices.x, ((0, k), (0, n)))?,
    );
    let below = constant_mask(cx, (m, k), |i, j| i > j)?;
    let ones = constant_mask(cx, (m, k), |i, j| i == j)?;
    let ones = cx.cast(ones, ScalarType::Double);
    let lower = cx.choose(below, left, ones);
    let above = constant_mask(cx, (k, n), |i, j| i <= j)?;
    Ok((lower, cx.choose(above, right, zero)))
}

fn lu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let matrices = Matrices::from_operand(cx, node, x)?;
    let pivot = cx.bool(node, "pivot", true)?;
    let factorization = factorize(cx, node, &matrices, pivot)?;
    let rows = permutation(cx, (factorization.order, matrices.rows))?;
    let p = if pivot { cx.transpose(rows) } else { cx.constant(&[], ScalarType::Double, &[0])? };
    let (l, u) = split_lu(cx, node, &Matrices { x: factorization.lu, ..matrices })?;
    replace_result(cx, node, 0, p)?;
    replace_result(cx, node, 1, l)?;
    replace_result(cx, node, 2, u)?;
    Ok(Outcome::Replaced)
}

/// The permutation matrix of the row swaps that LAPACK's pivots describe.
fn row_swaps(cx: &mut Rewriter<'_>, node: &ExportedNode, (pivots, rows): (VarId, usize)) -> Result<VarId> {
    let pivots = cx.cast(pivots, ScalarType::Long);
    let spec = cx.spec_of(pivots);
    let Some((count, batch)) = spec.sizes.split_last() else { return cx.fail(node, "it has no pivots") };
    let count = static_size(cx, node, Some(count))?;
    let places = cx.index_constant(0..rows, &[rows, 1])?;
    let column: Vec<Size> = batch.iter().cloned().chain([int(rows), Size::Int(1)]).collect();
    let mut order = cx.expand(node, places, column.clone())?;
    for k in 0..count.min(rows) {
        let this = cx.scalar(Scalar::Int(k as i64), ScalarType::Long)?;
        let other = cx.slice(node, pivots, batch.len(), (&int(k), &int(k + 1)))?;
        let other = cx.sub(other, 1);
        let other = cx.unsqueeze(node, other, batch.len() + 1)?;
        let swapped = swap_rows(cx, (places, this), other);
        let swapped = cx.expand(node, swapped, column.clone())?;
        order = cx.gather(order, batch.len(), swapped);
    }
    permutation(cx, (order, rows))
}

fn lu_unpack(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, pivots) = (cx.tensor(node, "LU_data")?, cx.tensor(node, "LU_pivots")?);
    let matrices = Matrices::from_operand(cx, node, x)?;
    if cx.bool(node, "unpack_pivots", true)? {
        let rows = row_swaps(cx, node, (pivots, matrices.rows))?;
        let p = cx.transpose(rows);
        replace_result(cx, node, 0, p)?;
    } else {
        let none = cx.constant(&[], ScalarType::Double, &[0])?;
        replace_result(cx, node, 0, none)?;
    }
    if cx.bool(node, "unpack_data", true)? {
        let (l, u) = split_lu(cx, node, &matrices)?;
        replace_result(cx, node, 1, l)?;
        replace_result(cx, node, 2, u)?;
    } else {
        let none = cx.constant(&[], ScalarType::Double, &[0])?;
        replace_result(cx, node, 1, none)?;
        replace_result(cx, node, 2, none)?;
    }
    Ok(Outcome::Replaced)
}

/// Solves `A X = B` for `A = P L U`. The adjoint system, and `X A = B` (`left=False`), are solved by way of transposes.
fn lu_solve(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, pivots, right) = (cx.tensor(node, "LU")?, cx.tensor(node, "pivots")?, cx.tensor(node, "B")?);
    let matrices = Matrices::from_operand(cx, node, x)?;
    let n = matrices.rows;
    let (left, adjoint) = (cx.bool(node, "left", true)?, cx.bool(node, "adjoint", false)?);
    let right = cx.cast(right, ScalarType::Double);
    let right = if left { right } else { cx.transpose(right) };
    let rows = row_swaps(cx, node, (pivots, n))?;
    let solution = if adjoint == left {
        // The transpose of `P L U`.
        let factors = cx.transpose(matrices.x);
        let solution = solve_with_triangle(cx, factors, right, (false, false));
        let solution = solve_with_triangle(cx, factors, solution, (true, true));
        let back = cx.transpose(rows);
        matmul_any_rank(cx, node, back, solution)?
    } else {
        let right = matmul_any_rank(cx, node, rows, right)?;
        let solution = solve_with_triangle(cx, matrices.x, right, (false, true));
        solve_with_triangle(cx, matrices.x, solution, (true, false))
    };
    let solution = if left { solution } else { cx.transpose(solution) };
    let want = cx.result_spec(node)?;
    let solution = cx.cast(solution, want.dtype);
    cx.replace_node(node, solution)
}

/// Solves with one triangle of a matrix, by emitting `linalg_solve_triangular`, which is decomposed in turn.
fn solve_with_triangle(
    cx: &mut Rewriter<'_>,
    matrix: VarId,
    right: VarId,
    (upper, unit): (bool, bool),
) -> VarId {
    let (a, b) = (cx.spec_of(matrix), cx.spec_of(right));
    let (of_a, of_b) = (a.rank().saturating_sub(2), b.rank().saturating_sub(2));
    let mut sizes = broadcast_sizes(&a.sizes[..of_a], &b.sizes[..of_b]);
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
