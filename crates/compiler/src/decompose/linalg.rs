//! Linear systems of static size, solved by elimination with pivoting; Cholesky factorization.
//!
//! A program cannot raise: where PyTorch refuses a singular or not positive-definite matrix, its results are not
//! finite. The variants with a result `info` give the number of the failing pivot there.

use super::Table;
use super::When::NoKernel;
use super::product::matmul_any_rank;
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.inverse", NoKernel, linalg_inv),
    ("aten.linalg_inv", NoKernel, linalg_inv),
    ("aten.linalg_inv_ex", NoKernel, linalg_inv),
    ("aten.linalg_solve", NoKernel, solve),
    ("aten.linalg_solve_ex", NoKernel, solve),
    ("aten._linalg_solve_ex", NoKernel, solve),
    ("aten.linalg_solve_triangular", NoKernel, solve_triangular),
    ("aten.linalg_det", NoKernel, determinant),
    ("aten._linalg_det", NoKernel, determinant),
    ("aten.det", NoKernel, determinant),
    ("aten.logdet", NoKernel, determinant),
    ("aten.linalg_slogdet", NoKernel, determinant),
    ("aten.slogdet", NoKernel, determinant),
    ("aten.cholesky", NoKernel, cholesky),
    ("aten.linalg_cholesky", NoKernel, cholesky),
    ("aten.linalg_cholesky_ex", NoKernel, cholesky),
    ("aten.cholesky_solve", NoKernel, cholesky_solve),
    ("aten.cholesky_inverse", NoKernel, cholesky_solve),
];

/// The maximum number of rows: eliminations are unrolled, and larger matrices would make programs too long.
pub(super) const MAX_ROWS: usize = 128;

/// The operand of a factorization: one matrix or a batch of matrices.
pub(super) fn operand(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    match cx.optional_tensor(node, "A") {
        Some(x) => Ok(x),
        None => cx.tensor(node, "self"),
    }
}

/// The number of rows of a square matrix.
fn square_rows(cx: &Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<usize> {
    let spec = cx.spec(node, x)?;
    if spec.rank() < 2 {
        return cx.fail(node, "it is no matrix");
    }
    let rows = static_size(cx, node, spec.sizes.get(spec.rank() - 2))?;
    if spec.sizes.last() != Some(&Size::Int(rows as i64)) || rows > MAX_ROWS || !spec.dtype.is_floating() {
        return cx.fail(node, format!("it is no square matrix of at most {MAX_ROWS} rows of real numbers"));
    }
    Ok(rows)
}

/// Identity matrices with `n` rows and type `dtype`, broadcast to `sizes`.
pub(super) fn identity_matrices(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (n, dtype): (usize, ScalarType),
    sizes: Vec<Size>,
) -> Result<VarId> {
    cx.check_table_size(node, &[n, n])?;
    let one = |i: usize| Scalar::Double(if i.is_multiple_of(n + 1) { 1.0 } else { 0.0 });
    let values: Vec<Scalar> = (0..n * n).map(one).collect();
    let real = if dtype.is_complex() { ScalarType::Double } else { dtype };
    let matrix = cx.constant(&values, real, &[n, n])?;
    let matrix = cx.cast(matrix, dtype);
    cx.expand(node, matrix, sizes)
}

/// The result of Gauss-Jordan elimination.
struct Elimination {
    /// The augmented columns to the right of the matrix, which has become the identity.
    rows: VarId,
    /// The pivots, one tensor each, with dimensions of size 1 for row and column.
    pivots: Vec<VarId>,
    /// For each step, whether two rows were swapped.
    exchanged: Vec<VarId>,
}

/// Gauss-Jordan elimination with partial pivoting: each step swaps the row with the largest element of the column into
/// place and clears the rest of the column. `divisor` maps a pivot to the number by which its row is divided.
fn eliminate(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (matrix, n): (VarId, usize),
    divisor: impl Fn(&mut Rewriter<'_>, VarId) -> VarId,
) -> Result<Elimination> {
    let rank = cx.spec_of(matrix).rank();
    let (row_dim, column_dim) = (rank - 2, rank - 1);
    let places = cx.index_constant(0..n, &[n, 1])?;
    let (mut rows, mut pivots, mut exchanged) = (matrix, Vec::new(), Vec::new());
    let int = |v: usize| Size::Int(v as i64);
    for k in 0..n {
        let column = cx.slice(node, rows, column_dim, (&int(k), &int(k + 1)))?;
        let sizes = cx.unary("aten.abs.default", column);
        let done = cx.compare("aten.lt.Scalar", places, k as i64);
        let low = cx.scalar(Scalar::Double(-1.0), cx.spec_of(matrix).dtype)?;
        let candidates = cx.choose(done, low, sizes);
        let (_, best) = cx.min_or_max(candidates, row_dim, true, true);
        // The row permutation that swaps row `k` and the pivot row.
        let (is_this, is_best) =
            (cx.compare("aten.eq.Scalar", places, k as i64), cx.compare("aten.eq.Tensor", places, best));
        let this = cx.scalar(Scalar::Int(k as i64), ScalarType::Long)?;
        let order = cx.choose(is_best, this, places);
        let order = cx.choose(is_this, best, order);
        let order = cx.expand(node, order, cx.spec_of(rows).sizes)?;
        rows = cx.gather(rows, row_dim, order);
        exchanged.push(cx.compare("aten.ne.Scalar", best, k as i64));
        let row = cx.slice(node, rows, row_dim, (&int(k), &int(k + 1)))?;
        let pivot = cx.slice(node, row, column_dim, (&int(k), &int(k + 1)))?;
        let divisor = divisor(cx, pivot);
        let normal = cx.div(row, divisor);
        let column = cx.slice(node, rows, column_dim, (&int(k), &int(k + 1)))?;
        let part = cx.mul(column, normal);
        let rest = cx.sub(rows, part);
        rows = cx.choose(is_this, normal, rest);
        pivots.push(pivot);
    }
    Ok(Elimination { rows, pivots, exchanged })
}

/// Solves `matrix X = right` for `X`. Returns `X` and the pivots.
fn solve_with_pivots(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    matrix: VarId,
    right: VarId,
) -> Result<(VarId, Vec<VarId>)> {
    let n = square_rows(cx, node, matrix)?;
    if cx.spec_of(right).rank() < 2 {
        return cx.fail(node, "its right side is no matrix");
    }
    let mut sizes = cx.spec_of(matrix).sizes;
    let last = sizes.len() - 1;
    let batch = crate::rewrite::broadcast_sizes(
        &sizes[..last - 1],
        &cx.spec_of(right).sizes[..cx.spec_of(right).rank() - 2],
    );
    sizes = batch.clone();
    sizes.extend([Size::Int(n as i64), Size::Int(n as i64)]);
    let mut right_sizes = batch;
    right_sizes.extend(cx.spec_of(right).sizes[cx.spec_of(right).rank() - 2..].iter().cloned());
    let (matrix, right) = (cx.expand(node, matrix, sizes)?, cx.expand(node, right, right_sizes)?);
    let dim = cx.spec_of(matrix).rank() - 1;
    let wide = cx.cat(&[matrix, right], dim);
    let end = cx.spec_of(wide).sizes[dim].clone();
    let elimination = eliminate(cx, node, (wide, n), |_, pivot| pivot)?;
    Ok((cx.slice(node, elimination.rows, dim, (&Size::Int(n as i64), &end))?, elimination.pivots))
}

fn solve_system(cx: &mut Rewriter<'_>, node: &ExportedNode, matrix: VarId, right: VarId) -> Result<VarId> {
    Ok(solve_with_pivots(cx, node, matrix, right)?.0)
}

/// The inverse of a matrix.
pub(super) fn inverse(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
    Ok(inverse_and_pivots(cx, node, x)?.0)
}

fn inverse_and_pivots(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<(VarId, Vec<VarId>)> {
    let n = square_rows(cx, node, x)?;
    let one = identity_matrices(cx, node, (n, cx.spec_of(x).dtype), cx.spec_of(x).sizes)?;
    solve_with_pivots(cx, node, x, one)
}

/// Sets the result `info`, if the node has it: the number, from 1, of the first pivot that `is_wrong` marks, or 0
/// (success).
fn replace_info(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    pivots: &[VarId],
    is_wrong: impl Fn(&mut Rewriter<'_>, VarId) -> VarId,
) -> Result<()> {
    let Some(&info) = node.outputs.get(1) else { return Ok(()) };
    let want = cx.spec(node, info)?;
    let Some(&first) = pivots.first() else {
        let zero = cx.full(node, want.sizes, Argument::Int(0), want.dtype)?;
        cx.replace(info, zero);
        return Ok(());
    };
    let rank = cx.spec_of(first).rank();
    let all = cx.cat(pivots, rank - 1);
    let wrong = is_wrong(cx, all);
    let numbers: Vec<Scalar> = (1..=pivots.len()).map(|i| Scalar::Int(i as i64)).collect();
    let numbers = cx.constant(&numbers, want.dtype, &[pivots.len()])?;
    let end = cx.scalar(Scalar::Int(pivots.len() as i64 + 1), want.dtype)?;
    let places = cx.choose(wrong, numbers, end);
    let first = cx.reduce("aten.amin.default", places, &[rank - 2, rank - 1], false);
    let none = cx.compare("aten.eq.Scalar", first, pivots.len() as i64 + 1);
    let zero = cx.scalar(Scalar::Int(0), want.dtype)?;
    let mut new = cx.choose(none, zero, first);
    // One matrix for several right sides has one `info`.
    for dim in 0..rank - 2 {
        let is_one = (dim + want.rank()).checked_sub(rank - 2).is_none_or(|d| want.sizes[d] == Size::Int(1));
        if is_one {
            new = cx.slice(node, new, dim, (&Size::Int(0), &Size::Int(1)))?;
        }
    }
    let new = cx.view(node, new, want.sizes)?;
    cx.replace(info, new);
    Ok(())
}

fn zero_mask(cx: &mut Rewriter<'_>, pivots: VarId) -> VarId {
    cx.compare("aten.eq.Scalar", pivots, 0.0)
}

/// A mask of the pivots of a Cholesky factorization that are zero, negative or NaN.
fn nonpositive_mask(cx: &mut Rewriter<'_>, pivots: VarId) -> VarId {
    let positive = cx.compare("aten.gt.Scalar", pivots, 0.0);
    cx.unary("aten.logical_not.default", positive)
}

fn linalg_inv(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let (new, pivots) = inverse_and_pivots(cx, node, x)?;
    replace_info(cx, node, &pivots, zero_mask)?;
    cx.replace_node(node, new)
}

fn solve(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (matrix, right, want) = (operand(cx, node)?, cx.tensor(node, "B")?, cx.result_spec(node)?);
    if node.outputs.len() > 2 {
        return Ok(Outcome::Kept);
    }
    let from_left = cx.bool(node, "left", true)?;
    let (a, b) = (cx.spec_of(matrix), cx.spec_of(right));
    // One vector for each matrix is a column.
    let is_vector = b.rank() == 1 || (b.rank() + 1 == a.rank() && b.sizes == a.sizes[..a.rank() - 1]);
    let right = if is_vector { cx.unsqueeze(node, right, b.rank())? } else { right };
    let (new, pivots) = match from_left {
        true => solve_with_pivots(cx, node, matrix, right)?,
        false => {
            let (matrix, right) = (cx.transpose(matrix), cx.transpose(right));
            let (solution, pivots) = solve_with_pivots(cx, node, matrix, right)?;
            (cx.transpose(solution), pivots)
        }
    };
    let new = cx.view(node, new, want.sizes)?;
    replace_info(cx, node, &pivots, zero_mask)?;
    cx.replace_node(node, new)
}

fn solve_triangular(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (matrix, right) = (operand(cx, node)?, cx.tensor(node, "B")?);
    let spec = cx.spec(node, matrix)?;
    let n = square_rows(cx, node, matrix)?;
    let (upper, unit) = (cx.bool(node, "upper", true)?, cx.bool(node, "unitriangular", false)?);
    let counts = |i: usize| {
        let (row, column) = (i / n, i % n);
        let off = if upper { column > row } else { column < row };
        Scalar::Bool(off || (row == column && !unit))
    };
    let mask: Vec<Scalar> = (0..n * n).map(counts).collect();
    let mask = cx.constant(&mask, ScalarType::Bool, &[n, n])?;
    let other = match unit {
        true => identity_matrices(cx, node, (n, spec.dtype), spec.sizes.clone())?,
        false => cx.scalar(Scalar::Double(0.0), spec.dtype)?,
    };
    let matrix = cx.choose(mask, matrix, other);
    let new = match cx.bool(node, "left", true)? {
        true => solve_system(cx, node, matrix, right)?,
        false => {
            let (matrix, right) = (cx.transpose(matrix), cx.transpose(right));
            let solution = solve_system(cx, node, matrix, right)?;
            cx.transpose(solution)
        }
    };
    cx.replace_node(node, new)
}

/// The factors of the determinants of matrices of `n` rows: their pivots, negated where two rows were swapped. They are
/// along a last dimension, after those of the batch.
fn determinant_factors(cx: &mut Rewriter<'_>, node: &ExportedNode, (x, n): (VarId, usize)) -> Result<VarId> {
    let spec = cx.spec_of(x);
    let mut sizes = spec.sizes[..spec.rank() - 2].to_vec();
    sizes.push(Size::Int(n as i64));
    if n == 0 {
        return cx.view(node, x, sizes);
    }
    let one = cx.scalar(Scalar::Double(1.0), spec.dtype)?;
    // A pivot of zero makes the determinant zero, whatever its row is divided by.
    let elimination = eliminate(cx, node, (x, n), |cx, pivot| {
        let zero = zero_mask(cx, pivot);
        cx.choose(zero, one, pivot)
    })?;
    let minus = cx.scalar(Scalar::Double(-1.0), spec.dtype)?;
    let exchanged = cx.cat(&elimination.exchanged, spec.rank() - 1);
    let signs = cx.choose(exchanged, minus, one);
    let pivots = cx.cat(&elimination.pivots, spec.rank() - 1);
    let factors = cx.mul(pivots, signs);
    cx.view(node, factors, sizes)
}

/// The determinant, its logarithm, or its sign and the logarithm of its absolute value.
fn determinant(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    if node.target.starts_with("aten._linalg_det") && node.outputs.len() > 1 {
        return Ok(Outcome::Kept);
    }
    let x = operand(cx, node)?;
    let n = square_rows(cx, node, x)?;
    let factors = determinant_factors(cx, node, (x, n))?;
    let spec = cx.spec_of(factors);
    let last = spec.rank() - 1;
    let product = |cx: &mut Rewriter<'_>, factors: VarId| {
        let args = vec![("self", Argument::Var(factors)), ("dim", Argument::Int(last as i64))];
        let spec = TensorSpec::contiguous(spec.dtype, spec.sizes[..last].to_vec());
        cx.emit("aten.prod.dim_int", args, spec)
    };
    if !node.target.contains("logdet") {
        let new = product(cx, factors);
        return cx.replace_node(node, new);
    }
    let signs = cx.unary("aten.sign.default", factors);
    let sign = product(cx, signs);
    // The product may overflow or underflow where its logarithm does not.
    let magnitudes = cx.unary("aten.abs.default", factors);
    let logs = cx.unary("aten.log.default", magnitudes);
    let log = cx.sum(logs, &[last], false);
    if let Some(&second) = node.outputs.get(1) {
        cx.replace(second, log);
        return cx.replace_node(node, sign);
    }
    let below = cx.compare("aten.lt.Scalar", sign, 0.0);
    let nan = cx.scalar(Scalar::Double(f64::NAN), spec.dtype)?;
    let new = cx.choose(below, nan, log);
    cx.replace_node(node, new)
}

/// The Cholesky factor, computed column by column.
fn cholesky(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let n = square_rows(cx, node, x)?;
    let upper = cx.bool(node, "upper", false)?;
    let x = if upper { cx.transpose(x) } else { x };
    let rank = cx.spec_of(x).rank();
    let int = |v: usize| Size::Int(v as i64);
    let (mut columns, mut pivots): (Vec<VarId>, Vec<VarId>) = (Vec::new(), Vec::new());
    let places = cx.index_constant(0..n, &[n, 1])?;
    for k in 0..n {
        let mut column = cx.slice(node, x, rank - 1, (&int(k), &int(k + 1)))?;
        if !columns.is_empty() {
            let before = cx.cat(&columns, rank - 1);
            let row = cx.slice(node, before, rank - 2, (&int(k), &int(k + 1)))?;
            let row = cx.transpose(row);
            let part = matmul_any_rank(cx, node, before, row)?;
            column = cx.sub(column, part);
        }
        let pivot = cx.slice(node, column, rank - 2, (&int(k), &int(k + 1)))?;
        let root = cx.unary("aten.sqrt.default", pivot);
        let scaled = cx.div(column, root);
        let above = cx.compare("aten.lt.Scalar", places, k as i64);
        let zero = cx.scalar(Scalar::Double(0.0), cx.spec_of(x).dtype)?;
        columns.push(cx.choose(above, zero, scaled));
        pivots.push(pivot);
    }
    replace_info(cx, node, &pivots, nonpositive_mask)?;
    if columns.is_empty() {
        return cx.replace_node(node, x);
    }
    let mut new = cx.cat(&columns, rank - 1);
    if upper {
        new = cx.transpose(new);
    }
    cx.replace_node(node, new)
}

/// Solves a system given its Cholesky factor, or inverts the product of the factor and its transpose.
fn cholesky_solve(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let is_inverse = node.target.starts_with("aten.cholesky_inverse");
    let factor = cx.tensor(node, if is_inverse { "self" } else { "input2" })?;
    let upper = cx.bool(node, "upper", false)?;
    let n = square_rows(cx, node, factor)?;
    let spec = cx.spec_of(factor);
    let counts = |i: usize| Scalar::Bool(if upper { i % n >= i / n } else { i % n <= i / n });
    let mask: Vec<Scalar> = (0..n * n).map(counts).collect();
    let mask = cx.constant(&mask, ScalarType::Bool, &[n, n])?;
    let zero = cx.scalar(Scalar::Double(0.0), spec.dtype)?;
    let factor = cx.choose(mask, factor, zero);
    let other = cx.transpose(factor);
    let matrix = match upper {
        true => matmul_any_rank(cx, node, other, factor)?,
        false => matmul_any_rank(cx, node, factor, other)?,
    };
    let new = match is_inverse {
        true => inverse(cx, node, matrix)?,
        false => {
            let right = cx.tensor(node, "self")?;
            solve_system(cx, node, matrix, right)?
        }
    };
    cx.replace_node(node, new)
}
