//! What follows from singular values: pseudoinverses, ranks, condition numbers, norms, least squares; and the exponential
//! of a matrix. Computed in float64.

use super::Table;
use super::When::{Always, NoKernel};
use super::linalg::{identity_matrices, inverse, operand};
use super::product::matmul_any_rank;
use super::spectral::real_dtype;
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId, VarType};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.svd", Always, svd),
    ("aten.linalg_pinv", NoKernel, pseudoinverse),
    ("aten.pinverse", NoKernel, pseudoinverse),
    ("aten.linalg_matrix_rank", NoKernel, matrix_rank),
    ("aten.matrix_rank", NoKernel, matrix_rank),
    ("aten.linalg_cond", NoKernel, linalg_cond),
    ("aten.linalg_lstsq", NoKernel, least_squares),
    ("aten.matrix_exp", NoKernel, matrix_exp),
    ("aten.linalg_matrix_exp", NoKernel, matrix_exp),
];

/// The double-precision type of the same kind, real or complex.
fn double_precision(dtype: ScalarType) -> ScalarType {
    if dtype.is_complex() { ScalarType::ComplexDouble } else { ScalarType::Double }
}

/// The matrix operand in double precision, and the machine epsilon of its original type.
fn double_precision_operand(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, f64)> {
    let x = operand(cx, node)?;
    let spec = cx.spec(node, x)?;
    if spec.rank() < 2 || !(spec.dtype.is_floating() || spec.dtype.is_complex()) {
        return cx.fail(node, "it is no matrix of real or complex numbers");
    }
    let epsilon = match real_dtype(spec.dtype) {
        _ if spec.dtype == ScalarType::Double => f64::EPSILON,
        ScalarType::Double => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    Ok((cx.cast(x, double_precision(spec.dtype)), epsilon))
}

/// The batch sizes of matrices, and their numbers of rows and columns.
fn batch_and_matrix_sizes(
    cx: &Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
) -> Result<(Vec<Size>, usize, usize)> {
    let sizes = cx.spec_of(x).sizes;
    let [batch @ .., rows, columns] = &*sizes else { return cx.fail(node, "its operand is no matrix") };
    Ok((batch.to_vec(), static_size(cx, node, Some(rows))?, static_size(cx, node, Some(columns))?))
}

fn append_sizes(batch: &[Size], each: &[usize]) -> Vec<Size> {
    batch.iter().cloned().chain(each.iter().map(|&s| Size::Int(s as i64))).collect()
}

/// The decomposition `U diag(S) V^H`, by a node that is decomposed in turn where there is no kernel.
fn emit_svd(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, full: bool) -> Result<[VarId; 3]> {
    let (batch, m, n) = batch_and_matrix_sizes(cx, node, x)?;
    let (dtype, k) = (cx.spec_of(x).dtype, m.min(n));
    let (width, height) = if full { (m, n) } else { (k, k) };
    let tensor = |dtype, sizes| VarType::Tensor(TensorSpec::contiguous(dtype, sizes));
    let types = vec![
        tensor(dtype, append_sizes(&batch, &[m, width])),
        tensor(magnitude_dtype(dtype), append_sizes(&batch, &[k])),
        tensor(dtype, append_sizes(&batch, &[height, n])),
    ];
    let args = vec![("A", Argument::Var(x)), ("full_matrices", Argument::Bool(full))];
    let outs = cx.emit_many("aten.linalg_svd.default", args, types);
    Ok([outs[0], outs[1], outs[2]])
}

/// The real type that the absolute values of elements have.
fn magnitude_dtype(dtype: ScalarType) -> ScalarType {
    if dtype.is_complex() { real_dtype(dtype) } else { dtype }
}

/// The singular values, descending.
pub(super) fn singular_values(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
    let (batch, m, n) = batch_and_matrix_sizes(cx, node, x)?;
    let dtype = magnitude_dtype(cx.spec_of(x).dtype);
    let spec = TensorSpec::contiguous(dtype, append_sizes(&batch, &[m.min(n)]));
    Ok(cx.emit("aten.linalg_svdvals.default", vec![("A", Argument::Var(x))], spec))
}

/// The conjugate transpose.
fn adjoint(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let x = if cx.spec_of(x).dtype.is_complex() { cx.unary("aten._conj_physical.default", x) } else { x };
    cx.transpose(x)
}

/// `torch.svd`, which gives V and not its adjoint.
fn svd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let &[of_u, of_s, of_v] = node.outputs.as_slice() else { return Ok(Outcome::Kept) };
    let full = !cx.bool(node, "some", true)?;
    let [u, s, vh] = emit_svd(cx, node, x, full)?;
    let v = adjoint(cx, vh);
    let (mut u, mut v) = (u, v);
    if !cx.bool(node, "compute_uv", true)? {
        // The factors are zero, and square.
        for (factor, of) in [(&mut u, of_u), (&mut v, of_v)] {
            let want = cx.spec(node, of)?;
            *factor = super::windows::zeros(cx, node, want.sizes, want.dtype)?;
        }
    }
    cx.replace(of_u, u);
    cx.replace(of_s, s);
    cx.replace(of_v, v);
    Ok(Outcome::Replaced)
}

/// An absolute or relative tolerance: one for each matrix, or a number.
enum Tolerance {
    Number(f64),
    Each(VarId),
}

impl Tolerance {
    fn from_argument(cx: &mut Rewriter<'_>, node: &ExportedNode, name: &str) -> Result<Option<Self>> {
        if let Some(each) = cx.optional_tensor(node, name) {
            let each = cx.cast(each, ScalarType::Double);
            let rank = cx.spec_of(each).rank();
            return Ok(Some(Self::Each(cx.unsqueeze(node, each, rank)?)));
        }
        Ok(match node.arg(name) {
            None | Some(Argument::None) => None,
            _ => Some(Self::Number(cx.float(node, name, 0.0)?)),
        })
    }

    fn into_tensor(self, cx: &mut Rewriter<'_>) -> Result<VarId> {
        match self {
            Self::Each(each) => Ok(each),
            Self::Number(v) => cx.scalar(Scalar::Double(v), ScalarType::Double),
        }
    }
}

/// The threshold that singular values must exceed to count: the larger of the absolute tolerance and of the relative
/// tolerance times `largest`. If the node gives no relative tolerance, that is `default`, or 0 if the node gives an
/// absolute one.
fn singular_threshold(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (largest, default): (VarId, f64),
) -> Result<VarId> {
    let named = |cx: &mut Rewriter<'_>, names: &[&str]| -> Result<Option<Tolerance>> {
        for name in names {
            if let Some(tolerance) = Tolerance::from_argument(cx, node, name)? {
                return Ok(Some(tolerance));
            }
        }
        Ok(None)
    };
    let absolute = named(cx, &["atol", "tol"])?;
    let is_absolute_only = node.arg("tol").is_some_and(|arg| !matches!(arg, Argument::None));
    let relative = match (named(cx, &["rtol", "rcond"])?, &absolute) {
        (Some(relative), _) => relative.into_tensor(cx)?,
        _ if is_absolute_only => cx.scalar(Scalar::Double(0.0), ScalarType::Double)?,
        (None, Some(Tolerance::Number(v))) if *v > 0.0 => {
            cx.scalar(Scalar::Double(0.0), ScalarType::Double)?
        }
        (None, Some(Tolerance::Each(each))) => {
            let is_given = cx.compare("aten.gt.Scalar", *each, 0.0);
            let (zero, default) = (
                cx.scalar(Scalar::Double(0.0), ScalarType::Double)?,
                cx.scalar(Scalar::Double(default), ScalarType::Double)?,
            );
            cx.choose(is_given, zero, default)
        }
        _ => cx.scalar(Scalar::Double(default), ScalarType::Double)?,
    };
    let scaled = cx.mul(largest, relative);
    match absolute {
        None => Ok(scaled),
        Some(absolute) => {
            let absolute = absolute.into_tensor(cx)?;
            Ok(cx.binary("aten.maximum.default", scaled, absolute))
        }
    }
}

/// The largest magnitude among singular values or eigenvalues, in a dimension of size 1.
fn largest_magnitude(cx: &mut Rewriter<'_>, sizes: VarId) -> VarId {
    let last = cx.spec_of(sizes).rank() - 1;
    cx.reduce("aten.amax.default", sizes, &[last], true)
}

/// `1 / x` where `size`, the magnitude of `x`, exceeds the threshold, else 0.
fn invert_above(cx: &mut Rewriter<'_>, (x, size): (VarId, VarId), threshold: VarId) -> Result<VarId> {
    let counts = cx.compare("aten.gt.Tensor", size, threshold);
    let (zero, one) = (
        cx.scalar(Scalar::Double(0.0), ScalarType::Double)?,
        cx.scalar(Scalar::Double(1.0), ScalarType::Double)?,
    );
    let divisor = cx.choose(counts, x, one);
    let inverse = cx.div(one, divisor);
    Ok(cx.choose(counts, inverse, zero))
}

fn pseudoinverse(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = double_precision_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let (_, m, n) = batch_and_matrix_sizes(cx, node, x)?;
    if m == 0 || n == 0 {
        let new = cx.view(node, x, want.sizes)?;
        let new = cx.cast(new, want.dtype);
        return cx.replace_node(node, new);
    }
    let default = match &*node.target {
        "aten.pinverse.default" if node.arg("rcond").is_none() => 1e-15,
        _ => epsilon * m.max(n) as f64,
    };
    let hermitian = cx.bool(node, "hermitian", false)?;
    let new = emit_pseudoinverse(cx, node, x, (default, hermitian))?;
    let new = cx.cast(new, want.dtype);
    cx.replace_node(node, new)
}

/// `V diag(1 / S) U^H`, without the singular values that are below the tolerance.
fn emit_pseudoinverse(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (default, hermitian): (f64, bool),
) -> Result<VarId> {
    let (values, size, columns, rows) = match hermitian {
        true => {
            let (values, vectors) = eigenvectors(cx, x);
            let size = cx.unary("aten.abs.default", values);
            (values, size, vectors, adjoint(cx, vectors))
        }
        false => {
            let [u, s, vh] = emit_svd(cx, node, x, false)?;
            (s, s, adjoint(cx, vh), adjoint(cx, u))
        }
    };
    let largest = largest_magnitude(cx, size);
    let threshold = singular_threshold(cx, node, (largest, default))?;
    let factors = invert_above(cx, (values, size), threshold)?;
    let dtype = cx.spec_of(x).dtype;
    let factors = cx.cast(factors, dtype);
    let rank = cx.spec_of(factors).rank();
    let factors = cx.unsqueeze(node, factors, rank - 1)?;
    let scaled = cx.mul(columns, factors);
    matmul_any_rank(cx, node, scaled, rows)
}

/// Eigenvalues and eigenvectors of Hermitian matrices.
fn eigenvectors(cx: &mut Rewriter<'_>, x: VarId) -> (VarId, VarId) {
    let spec = cx.spec_of(x);
    let values = TensorSpec::contiguous(magnitude_dtype(spec.dtype), spec.sizes[..spec.rank() - 1].to_vec());
    let types = vec![VarType::Tensor(values), VarType::Tensor(spec)];
    let outs = cx.emit_many("aten.linalg_eigh.default", vec![("self", Argument::Var(x))], types);
    (outs[0], outs[1])
}

/// The number of singular values that are above the tolerance.
fn matrix_rank(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = double_precision_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let (_, m, n) = batch_and_matrix_sizes(cx, node, x)?;
    if m == 0 || n == 0 {
        let new = cx.full(node, want.sizes, Argument::Int(0), want.dtype)?;
        return cx.replace_node(node, new);
    }
    let values = singular_values(cx, node, x)?;
    let largest = largest_magnitude(cx, values);
    let threshold = singular_threshold(cx, node, (largest, epsilon * m.max(n) as f64))?;
    let counts = cx.compare("aten.gt.Tensor", values, threshold);
    let ones = cx.cast(counts, ScalarType::Long);
    let last = cx.spec_of(ones).rank() - 1;
    let new = cx.reduce("aten.sum.dim_IntList", ones, &[last], false);
    cx.replace_node(node, new)
}

/// The norm of a matrix times that of its inverse.
fn linalg_cond(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = double_precision_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let order = match node.arg("p") {
        None | Some(Argument::None) => Argument::Float(2.0),
        Some(order) => order.clone(),
    };
    let new = match order {
        Argument::Str(_) | Argument::Int(1 | -1) => cond_by_inverse(cx, node, x, &order)?,
        Argument::Float(p) if p.abs() == 1.0 || p.is_infinite() => cond_by_inverse(cx, node, x, &order)?,
        _ => {
            let values = singular_values(cx, node, x)?;
            let last = cx.spec_of(values).rank() - 1;
            let most = cx.reduce("aten.amax.default", values, &[last], false);
            let least = cx.reduce("aten.amin.default", values, &[last], false);
            let is_inverse =
                matches!(order, Argument::Int(-2)) || matches!(order, Argument::Float(p) if p < 0.0);
            if is_inverse { cx.div(least, most) } else { cx.div(most, least) }
        }
    };
    let new = cx.cast(new, want.dtype);
    let new = cx.view(node, new, want.sizes)?;
    cx.replace_node(node, new)
}

fn cond_by_inverse(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, order: &Argument) -> Result<VarId> {
    let inverse = inverse(cx, node, x)?;
    let spec = cx.spec_of(x);
    let sizes = spec.sizes[..spec.rank() - 2].to_vec();
    let spec = TensorSpec::contiguous(magnitude_dtype(spec.dtype), sizes);
    let mut norm = |x| {
        let args = vec![("self", Argument::Var(x)), ("ord", order.clone())];
        cx.emit("aten.linalg_matrix_norm.default", args, spec.clone())
    };
    let (a, b) = (norm(x), norm(inverse));
    Ok(cx.mul(a, b))
}

/// The solution of the smallest norm among those that minimize `|A X - B|`.
fn least_squares(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = double_precision_operand(cx, node)?;
    let (right, want) = (cx.tensor(node, "b")?, cx.result_spec(node)?);
    let (_, m, n) = batch_and_matrix_sizes(cx, node, x)?;
    if m == 0 || n == 0 {
        return cx.fail(node, "its matrices are empty");
    }
    let right = cx.cast(right, double_precision(cx.spec_of(right).dtype));
    let is_vector = cx.spec_of(right).rank() + 1 == cx.spec_of(x).rank();
    let columns = if is_vector { cx.unsqueeze(node, right, cx.spec_of(right).rank())? } else { right };
    let inverse = emit_pseudoinverse(cx, node, x, (epsilon * m.max(n) as f64, false))?;
    let solution = matmul_any_rank(cx, node, inverse, columns)?;
    let solution = cx.cast(solution, want.dtype);
    let solution = cx.view(node, solution, want.sizes)?;
    for (place, &out) in node.outputs.iter().enumerate().skip(1) {
        // Residuals, rank and singular values, of which drivers return some.
        let Some(spec) = cx.program.spec(out).cloned() else { continue };
        let new = match place {
            _ if spec.sizes.contains(&Size::Int(0)) => cx.constant(&[], spec.dtype, &[0])?,
            2 => {
                let spec_args = vec![("input", Argument::Var(x))];
                cx.emit("aten.linalg_matrix_rank.atol_rtol_tensor", spec_args, spec.clone())
            }
            3 => singular_values(cx, node, x)?,
            _ => return cx.fail(node, "the residuals of least squares"),
        };
        let new = cx.cast(new, spec.dtype);
        let new = cx.view(node, new, spec.sizes)?;
        cx.replace(out, new);
    }
    cx.replace_node(node, solution)
}

/// The degree of the Taylor polynomial, which is exact in float64 for matrices of norm 1.
const DEGREE: i64 = 18;

/// The maximum number of times that a matrix is halved, and the result squared.
const MAX_HALVINGS: usize = 24;

/// The matrix exponential: halves a matrix until its norm is at most 1, evaluates the Taylor polynomial, and squares
/// the result as often.
fn matrix_exp(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, _) = double_precision_operand(cx, node)?;
    let want = cx.result_spec(node)?;
    let (batch, n, columns) = batch_and_matrix_sizes(cx, node, x)?;
    if n != columns {
        return cx.fail(node, "its matrices are not square");
    }
    let rank = cx.spec_of(x).rank();
    let spec = cx.spec_of(x);
    let sizes = TensorSpec { dtype: magnitude_dtype(spec.dtype), ..spec };
    let sizes = cx.emit("aten.abs.default", vec![("self", Argument::Var(x))], sizes);
    let sums = cx.sum(sizes, &[rank - 2], true);
    let mut norm = cx.reduce("aten.amax.default", sums, &[rank - 1], true);
    let mut halved = Vec::new();
    if n > 0 {
        for _ in 0..MAX_HALVINGS {
            let is_large = cx.compare("aten.gt.Scalar", norm, 1.0);
            let (half, half_norm) = (cx.mul(x, 0.5), cx.mul(norm, 0.5));
            x = cx.choose(is_large, half, x);
            norm = cx.choose(is_large, half_norm, norm);
            halved.push(is_large);
        }
    }
    let one = identity_matrices(cx, node, (n, cx.spec_of(x).dtype), append_sizes(&batch, &[n, n]))?;
    let mut sum = one;
    for k in (1..=DEGREE).rev() {
        let term = matmul_any_rank(cx, node, x, sum)?;
        let term = cx.mul(term, 1.0 / k as f64);
        sum = cx.add(one, term);
    }
    for is_large in halved.into_iter().rev() {
        let square = matmul_any_rank(cx, node, sum, sum)?;
        sum = cx.choose(is_large, square, sum);
    }
    let new = cx.cast(sum, want.dtype);
    cx.replace_node(node, new)
}
