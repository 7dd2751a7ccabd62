//! Singular values and eigenvalues of symmetric matrices where there is no kernel, as on the reference runtime: one-sided
//! Jacobi rotations (Golub and Van Loan, *Matrix Computations*, 8.6.3) in a loop, in float64.
//!
//! A step of the loop rotates disjoint pairs of columns at once, and then permutes the columns so that each meets every
//! other within a sweep, as in a round-robin tournament (Brent and Luk, 1985). The number of sweeps is fixed: convergence is
//! quadratic, and a few sweeps more than usual cost little.

use super::Table;
use super::When::NoKernel;
use super::factors::replace_result;
use super::linalg::identity_matrices;
use super::product::matmul_any_rank;
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.linalg_svd", NoKernel, svd),
    ("aten._linalg_svd", NoKernel, svd),
    ("aten.linalg_svdvals", NoKernel, singular_values),
    ("aten.linalg_eigh", NoKernel, eigh),
    ("aten._linalg_eigh", NoKernel, eigh),
    ("aten.linalg_eigvalsh", NoKernel, eigh),
];

/// The largest number of rows or columns of a matrix: the number of steps of the loop grows with it.
const MAX_SIZE: usize = 256;

fn int(v: usize) -> Size {
    Size::Int(v as i64)
}

/// Fails if a matrix has no rows, or more than [`MAX_SIZE`] rows or columns.
fn check_size(cx: &Rewriter<'_>, node: &ExportedNode, (rows, columns): (usize, usize)) -> Result<()> {
    if rows == 0 || rows.max(columns) > MAX_SIZE {
        let sizes = format!("matrices of {rows} x {columns}: at most {MAX_SIZE} rows and columns");
        return cx.fail(node, sizes);
    }
    Ok(())
}

/// The rows of a matrix, seen as vectors that the Jacobi loop rotates in pairs.
struct Vectors {
    /// The matrix, and beside it, in further columns, an orthogonal matrix to which the same rotations are applied.
    rows: VarId,
    /// The number of columns of the matrix itself.
    width: usize,
    /// The number of vectors. If it is odd, a zero vector is appended as padding.
    count: usize,
}

/// The number of pairs of `count` vectors, rounded up.
fn pair_count(count: usize) -> usize {
    count.div_ceil(2)
}

impl Vectors {
    /// Starts with the rows of a matrix, beside an identity as the orthogonal matrix.
    fn new(cx: &mut Rewriter<'_>, node: &ExportedNode, matrix: VarId) -> Result<Self> {
        let spec = cx.spec_of(matrix);
        let rank = spec.rank();
        let (count, width) = (
            static_size(cx, node, spec.sizes.get(rank - 2))?,
            static_size(cx, node, spec.sizes.get(rank - 1))?,
        );
        check_size(cx, node, (count, width))?;
        let total = 2 * pair_count(count);
        let padded = cx.pad(matrix, rank - 2, (0, (total - count) as i64), 0);
        let mut sizes = spec.sizes[..rank - 2].to_vec();
        sizes.extend([int(total), int(total)]);
        let one = identity_matrices(cx, node, (total, spec.dtype), sizes)?;
        Ok(Self { rows: cx.cat(&[padded, one], rank - 1), width, count })
    }

    /// Rotates the vectors until all pairs are orthogonal.
    fn orthogonalize(self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Self> {
        let total = 2 * pair_count(self.count);
        let sweeps = 9 + usize::BITS as usize - total.leading_zeros() as usize;
        let steps = (total - 1) * sweeps;
        let first = cx.scalar(Scalar::Int(0), ScalarType::Long)?;
        let types = [self.rows, first].map(|v| VarType::Tensor(cx.spec_of(v))).to_vec();
        let head = cx.build_graph(types.clone(), |cx, inputs| {
            Ok(vec![cx.compare("aten.lt.Scalar", inputs[1], steps as i64)])
        })?;
        let body = cx.build_graph(types.clone(), |cx, inputs| {
            let rows = rotate_pairs(cx, node, inputs[0], (total / 2, self.width))?;
            Ok(vec![rows, cx.add(inputs[1], 1)])
        })?;
        let args = vec![
            ("cond_fn", Argument::Graph(Box::new(head))),
            ("body_fn", Argument::Graph(Box::new(body))),
            ("carried_inputs", Argument::Vars(vec![self.rows, first])),
        ];
        let rows = cx.emit_many("higher_order.while_loop", args, types)[0];
        Ok(Self { rows, ..self })
    }

    /// The columns of the orthogonal matrix if `is_orthogonal`, otherwise those of the rotated matrix.
    fn split_columns(
        &self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        is_orthogonal: bool,
    ) -> Result<VarId> {
        let (last, total) = (cx.spec_of(self.rows).rank() - 1, 2 * pair_count(self.count));
        let (from, to) = if is_orthogonal { (self.width, self.width + total) } else { (0, self.width) };
        cx.slice(node, self.rows, last, (&int(from), &int(to)))
    }

    /// Replaces the sort key of the padding vector by `value`, so that it is sorted last. Rotations leave that vector
    /// zero, but may move it.
    fn replace_padding_key(
        &self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        (orthogonal, keys): (VarId, VarId),
        value: f64,
    ) -> Result<VarId> {
        if self.count.is_multiple_of(2) {
            return Ok(keys);
        }
        let last = cx.spec_of(orthogonal).rank() - 1;
        let mark = cx.slice(node, orthogonal, last, (&int(self.count), &int(self.count + 1)))?;
        let is_added = cx.compare("aten.gt.Scalar", mark, 0.5);
        let value = cx.scalar(Scalar::Double(value), ScalarType::Double)?;
        Ok(cx.choose(is_added, value, keys))
    }
}

/// A step of the loop: rotates vector `i` and vector `half + i` for each `i < half`, and permutes the vectors.
fn rotate_pairs(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    rows: VarId,
    (half, width): (usize, usize),
) -> Result<VarId> {
    let (dim, last) = (cx.spec_of(rows).rank() - 2, cx.spec_of(rows).rank() - 1);
    let a = cx.slice(node, rows, dim, (&int(0), &int(half)))?;
    let b = cx.slice(node, rows, dim, (&int(half), &int(2 * half)))?;
    let x = cx.slice(node, a, last, (&int(0), &int(width)))?;
    let y = cx.slice(node, b, last, (&int(0), &int(width)))?;
    let mut dot = |x, y| {
        let products = cx.mul(x, y);
        cx.sum(products, &[last], true)
    };
    let (xx, yy, xy) = (dot(x, x), dot(y, y), dot(x, y));
    let (long, short) = (cx.unary("aten.sqrt.default", xx), cx.unary("aten.sqrt.default", yy));
    let bound = cx.mul(long, short);
    let bound = cx.mul(bound, 4.0 * f64::EPSILON);
    let size = cx.unary("aten.abs.default", xy);
    let is_orthogonal = cx.compare("aten.le.Tensor", size, bound);
    let one = cx.scalar(Scalar::Double(1.0), ScalarType::Double)?;
    let minus = cx.scalar(Scalar::Double(-1.0), ScalarType::Double)?;
    let zero = cx.scalar(Scalar::Double(0.0), ScalarType::Double)?;
    // The tangent of the angle is the smaller root of t^2 + 2 zeta t = 1.
    let divisor = cx.choose(is_orthogonal, one, xy);
    let divisor = cx.mul(divisor, 2.0);
    let difference = cx.sub(yy, xx);
    let zeta = cx.div(difference, divisor);
    let square = cx.mul(zeta, zeta);
    let square = cx.add(square, 1.0);
    let root = cx.unary("aten.sqrt.default", square);
    let size = cx.unary("aten.abs.default", zeta);
    let sum = cx.add(size, root);
    let is_negative = cx.compare("aten.lt.Scalar", zeta, 0.0);
    let sign = cx.choose(is_negative, minus, one);
    let tangent = cx.div(sign, sum);
    let tangent = cx.choose(is_orthogonal, zero, tangent);
    let square = cx.mul(tangent, tangent);
    let square = cx.add(square, 1.0);
    let root = cx.unary("aten.sqrt.default", square);
    let cos = cx.div(one, root);
    let sin = cx.mul(cos, tangent);
    let (ca, sb, sa, cb) = (cx.mul(a, cos), cx.mul(b, sin), cx.mul(a, sin), cx.mul(b, cos));
    let (a, b) = (cx.sub(ca, sb), cx.add(sa, cb));
    let turned = cx.cat(&[a, b], dim);
    if half == 1 {
        return Ok(turned);
    }
    let order = cx.index_constant(round_robin_order(half), &[2 * half])?;
    Ok(cx.index_select(turned, dim, order))
}

/// The order of the vectors for the next round of a round-robin tournament: the first stays, the others move on by one.
fn round_robin_order(half: usize) -> impl Iterator<Item = usize> {
    let upper = [0, half].into_iter().chain(1..half - 1);
    let lower = (half + 1..2 * half).chain([half - 1]);
    upper.chain(lower)
}

/// Reorders the vectors: vector `order[i]` becomes vector `i`.
fn reorder_rows(cx: &mut Rewriter<'_>, node: &ExportedNode, rows: VarId, order: VarId) -> Result<VarId> {
    let dim = cx.spec_of(rows).rank() - 2;
    let mut sizes = cx.spec_of(rows).sizes;
    sizes[dim] = cx.spec_of(order).sizes[dim].clone();
    let order = cx.expand(node, order, sizes)?;
    Ok(cx.gather(rows, dim, order))
}

/// A real matrix operand, as float64.
fn operand(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<VarId> {
    let x = super::linalg::operand(cx, node)?;
    let spec = cx.spec(node, x)?;
    if spec.rank() < 2 {
        return cx.fail(node, "it is no matrix");
    }
    if spec.dtype.is_complex() {
        return cx
            .fail(node, "its matrices are complex, and no kernel of the table factorizes complex numbers");
    }
    Ok(cx.cast(x, ScalarType::Double))
}

/// The singular value decomposition of a matrix with at least as many rows as columns.
struct TallSvd {
    /// The singular values, descending; the last dimension has size 1.
    values: VarId,
    /// The left singular vectors, one in each row.
    left: VarId,
    /// The right singular vectors, one in each row.
    right: VarId,
    /// Whether the operand was transposed to be tall.
    is_transposed: bool,
}

impl TallSvd {
    fn compute(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<Self> {
        let spec = cx.spec_of(x);
        let rank = spec.rank();
        let (rows, columns) = (
            static_size(cx, node, spec.sizes.get(rank - 2))?,
            static_size(cx, node, spec.sizes.get(rank - 1))?,
        );
        let is_transposed = rows < columns;
        // The columns of the tall matrix are the vectors that are rotated.
        let vectors = if is_transposed { x } else { cx.transpose(x) };
        let vectors = Vectors::new(cx, node, vectors)?.orthogonalize(cx, node)?;
        let (left, orthogonal) =
            (vectors.split_columns(cx, node, false)?, vectors.split_columns(cx, node, true)?);
        let squares = cx.mul(left, left);
        let sums = cx.sum(squares, &[rank - 1], true);
        let lengths = cx.unary("aten.sqrt.default", sums);
        let keys = vectors.replace_padding_key(cx, node, (orthogonal, lengths), -1.0)?;
        let (values, order) = cx.topk(node, keys, rank - 2, (&int(vectors.count), true))?;
        let right = cx.slice(node, orthogonal, rank - 1, (&int(0), &int(vectors.count)))?;
        let (left, right) = (reorder_rows(cx, node, left, order)?, reorder_rows(cx, node, right, order)?);
        let one = cx.scalar(Scalar::Double(1.0), ScalarType::Double)?;
        let is_zero = cx.compare("aten.le.Scalar", values, 0.0);
        let divisor = cx.choose(is_zero, one, values);
        let left = cx.div(left, divisor);
        Ok(Self { values, left, right, is_transposed })
    }

    /// The left vectors, with orthonormal vectors in place of those for zero singular values and, with `full`, as many
    /// more as make the matrix square. They span the orthogonal complement of the other left vectors: they are the
    /// eigenvectors, for the eigenvalue 1, of the projection onto it.
    fn complete_left(&self, cx: &mut Rewriter<'_>, node: &ExportedNode, full: bool) -> Result<VarId> {
        let spec = cx.spec_of(self.left);
        let rank = spec.rank();
        let (count, width) = (
            static_size(cx, node, spec.sizes.get(rank - 2))?,
            static_size(cx, node, spec.sizes.get(rank - 1))?,
        );
        let wanted = if full { width } else { count };
        let columns = cx.transpose(self.left);
        let covered = matmul_any_rank(cx, node, columns, self.left)?;
        let one = identity_matrices(cx, node, (width, ScalarType::Double), cx.spec_of(covered).sizes)?;
        let left_out = cx.sub(one, covered);
        let (_, vectors) = eigenvectors(cx, left_out);
        let args = vec![("self", Argument::Var(vectors)), ("dims", Argument::ints(&[rank as i64 - 1]))];
        let descending = cx.emit("aten.flip.default", args, cx.spec_of(vectors));
        let others = cx.transpose(descending);
        let is_there = cx.compare("aten.gt.Scalar", self.values, 0.0);
        let ones = cx.cast(is_there, ScalarType::Long);
        let there = cx.sum(ones, &[rank - 2], true);
        let places = cx.index_constant(0..wanted, &[wanted, 1])?;
        let places = cx.sub(places, there);
        let places = cx.clamp_low(places, 0);
        let others = reorder_rows(cx, node, others, places)?;
        let more = (wanted - count) as i64;
        let left = cx.pad(self.left, rank - 2, (0, more), 0);
        let is_there = cx.cast(ones, ScalarType::Double);
        let is_there = cx.pad(is_there, rank - 2, (0, more), 0);
        let is_there = cx.compare("aten.gt.Scalar", is_there, 0.5);
        Ok(cx.choose(is_there, left, others))
    }
}

/// The eigenvalues and eigenvectors of symmetric matrices, by a node that is decomposed in turn.
fn eigenvectors(cx: &mut Rewriter<'_>, x: VarId) -> (VarId, VarId) {
    let spec = cx.spec_of(x);
    let values = TensorSpec::contiguous(spec.dtype, spec.sizes[..spec.rank() - 1].to_vec());
    let types = vec![VarType::Tensor(values), VarType::Tensor(spec)];
    let outs = cx.emit_many("aten.linalg_eigh.default", vec![("self", Argument::Var(x))], types);
    (outs[0], outs[1])
}

fn svd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let full = cx.bool(node, "full_matrices", !node.target.contains("._linalg_svd"))?;
    let svd = TallSvd::compute(cx, node, x)?;
    if cx.bool(node, "compute_uv", true)? {
        let left = svd.complete_left(cx, node, full)?;
        let (u, v) = if svd.is_transposed { (svd.right, left) } else { (left, svd.right) };
        let u = cx.transpose(u);
        replace_result(cx, node, 0, u)?;
        replace_result(cx, node, 2, v)?;
    } else {
        let none = cx.constant(&[], ScalarType::Double, &[0])?;
        replace_result(cx, node, 0, none)?;
        replace_result(cx, node, 2, none)?;
    }
    replace_result(cx, node, 1, svd.values)?;
    Ok(Outcome::Replaced)
}

fn singular_values(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let svd = TallSvd::compute(cx, node, x)?;
    replace_result(cx, node, 0, svd.values)?;
    Ok(Outcome::Replaced)
}

/// Rotates the rows of `A + c`, where `c` is large enough to make it positive definite, so that its singular vectors
/// are the eigenvectors of `A`. The eigenvalues are their Rayleigh quotients.
fn eigh(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let rank = cx.spec_of(x).rank();
    let n = static_size(cx, node, cx.spec_of(x).sizes.last())?;
    if cx.spec_of(x).sizes[rank - 2] != int(n) {
        return cx.fail(node, "its matrices are not square");
    }
    check_size(cx, node, (n, n))?;
    let upper = matches!(node.arg("UPLO"), Some(Argument::Str(s)) if s.eq_ignore_ascii_case("u"));
    let counts = |i: usize| Scalar::Bool(if upper { i / n <= i % n } else { i / n >= i % n });
    let mask: Vec<Scalar> = (0..n * n).map(counts).collect();
    let mask = cx.constant(&mask, ScalarType::Bool, &[n, n])?;
    let mirrored = cx.transpose(x);
    let x = cx.choose(mask, x, mirrored);
    let squares = cx.mul(x, x);
    let sums = cx.sum(squares, &[rank - 2, rank - 1], true);
    let size = cx.unary("aten.sqrt.default", sums);
    let shift = cx.mul(size, 2.0);
    let one = identity_matrices(cx, node, (n, ScalarType::Double), vec![int(n), int(n)])?;
    let shift = cx.mul(shift, one);
    let shifted = cx.add(x, shift);
    let rotation = Vectors::new(cx, node, shifted)?.orthogonalize(cx, node)?;
    let orthogonal = rotation.split_columns(cx, node, true)?;
    let vectors = cx.slice(node, orthogonal, rank - 1, (&int(0), &int(n)))?;
    let images = matmul_any_rank(cx, node, vectors, x)?;
    let quotients = cx.mul(images, vectors);
    let values = cx.sum(quotients, &[rank - 1], true);
    let keys = rotation.replace_padding_key(cx, node, (orthogonal, values), f64::INFINITY)?;
    let (values, order) = cx.topk(node, keys, rank - 2, (&int(n), false))?;
    replace_result(cx, node, 0, values)?;
    if node.outputs.len() > 1 {
        let vectors = reorder_rows(cx, node, vectors, order)?;
        let vectors = cx.transpose(vectors);
        match cx.bool(node, "compute_v", true)? {
            true => replace_result(cx, node, 1, vectors)?,
            false => {
                let none = cx.constant(&[], ScalarType::Double, &[0])?;
                replace_result(cx, node, 1, none)?;
            }
        }
    }
    Ok(Outcome::Replaced)
}
