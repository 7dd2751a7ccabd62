//! What follows from singular values: pseudoinverses, ranks, condition numbers, norms, least squares; and the exponential
//! of a matrix. Computed in float64.

use super::Table;
use super::When::{Always, NoKernel};
use super::linalg::{identity, inverse, operand};
use super::product::product;
use super::spectral::real_of;
use super::windows::known;
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
    ("aten.linalg_cond", NoKernel, condition),
    ("aten.linalg_lstsq", NoKernel, least_squares),
    ("aten.matrix_exp", NoKernel, exponential),
    ("aten.linalg_matrix_exp", NoKernel, exponential),
];

/// The type of double precision with the same kind of numbers.
fn doubled(dtype: ScalarType) -> ScalarType {
    if dtype.is_complex() { ScalarType::ComplexDouble } else { ScalarType::Double }
}

/// A matrix operand in double precision, and the rounding error of its own.
fn precise(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, f64)> {
    let x = operand(cx, node)?;
    let spec = cx.spec(node, x)?;
    if spec.rank() < 2 || !(spec.dtype.is_floating() || spec.dtype.is_complex()) {
        return cx.wrong(node, "it is no matrix of real or complex numbers");
    }
    let epsilon = match real_of(spec.dtype) {
        _ if spec.dtype == ScalarType::Double => f64::EPSILON,
        ScalarType::Double => f64::EPSILON,
        _ => f64::from(f32::EPSILON),
    };
    Ok((cx.cast(x, doubled(spec.dtype)), epsilon))
}

/// The sizes of a matrix, and those of the batch before them.
fn shape_of(cx: &Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<(Vec<Size>, usize, usize)> {
    let sizes = cx.of(x).sizes;
    let [batch @ .., rows, columns] = &*sizes else { return cx.wrong(node, "its operand is no matrix") };
    Ok((batch.to_vec(), known(cx, node, Some(rows))?, known(cx, node, Some(columns))?))
}

fn with(batch: &[Size], each: &[usize]) -> Vec<Size> {
    batch.iter().cloned().chain(each.iter().map(|&s| Size::Int(s as i64))).collect()
}

/// The decomposition `U diag(S) V^H`, by a node that is decomposed in turn where there is no kernel.
fn decomposed(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, full: bool) -> Result<[VarId; 3]> {
    let (batch, m, n) = shape_of(cx, node, x)?;
    let (dtype, k) = (cx.of(x).dtype, m.min(n));
    let (width, height) = if full { (m, n) } else { (k, k) };
    let tensor = |dtype, sizes| VarType::Tensor(TensorSpec::contiguous(dtype, sizes));
    let types = vec![
        tensor(dtype, with(&batch, &[m, width])),
        tensor(real(dtype), with(&batch, &[k])),
        tensor(dtype, with(&batch, &[height, n])),
    ];
    let args = vec![("A", Argument::Var(x)), ("full_matrices", Argument::Bool(full))];
    let outs = cx.emit_many("aten.linalg_svd.default", args, types);
    Ok([outs[0], outs[1], outs[2]])
}

/// The type of the absolute values.
fn real(dtype: ScalarType) -> ScalarType {
    if dtype.is_complex() { real_of(dtype) } else { dtype }
}

/// The singular values, descending.
pub(super) fn singular_values(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
    let (batch, m, n) = shape_of(cx, node, x)?;
    let dtype = real(cx.of(x).dtype);
    let spec = TensorSpec::contiguous(dtype, with(&batch, &[m.min(n)]));
    Ok(cx.emit("aten.linalg_svdvals.default", vec![("A", Argument::Var(x))], spec))
}

/// The conjugate transpose.
fn adjoint(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let x = if cx.of(x).dtype.is_complex() { cx.unary("aten._conj_physical.default", x) } else { x };
    cx.transposed(x)
}

/// `torch.svd`, which gives V and not its adjoint.
fn svd(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = operand(cx, node)?;
    let &[of_u, of_s, of_v] = node.outputs.as_slice() else { return Ok(Outcome::Kept) };
    let full = !cx.bool(node, "some", true)?;
    let [u, s, vh] = decomposed(cx, node, x, full)?;
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
    fn of(cx: &mut Rewriter<'_>, node: &ExportedNode, name: &str) -> Result<Option<Self>> {
        if let Some(each) = cx.optional_tensor(node, name) {
            let each = cx.cast(each, ScalarType::Double);
            let rank = cx.of(each).rank();
            return Ok(Some(Self::Each(cx.unsqueeze(node, each, rank)?)));
        }
        Ok(match node.arg(name) {
            None | Some(Argument::None) => None,
            _ => Some(Self::Number(cx.float(node, name, 0.0)?)),
        })
    }

    fn value(self, cx: &mut Rewriter<'_>) -> Result<VarId> {
        match self {
            Self::Each(each) => Ok(each),
            Self::Number(v) => cx.number(Scalar::Double(v), ScalarType::Double),
        }
    }
}

/// What singular values must exceed to count, given the largest: an absolute or a relative tolerance. The default of the
/// relative one is a rounding error times the size of the matrix, or none if there is an absolute one.
fn threshold(cx: &mut Rewriter<'_>, node: &ExportedNode, (largest, default): (VarId, f64)) -> Result<VarId> {
    let named = |cx: &mut Rewriter<'_>, names: &[&str]| -> Result<Option<Tolerance>> {
        for name in names {
            if let Some(found) = Tolerance::of(cx, node, name)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    };
    let absolute = named(cx, &["atol", "tol"])?;
    let is_absolute_only = node.arg("tol").is_some_and(|arg| !matches!(arg, Argument::None));
    let relative = match (named(cx, &["rtol", "rcond"])?, &absolute) {
        (Some(relative), _) => relative.value(cx)?,
        _ if is_absolute_only => cx.number(Scalar::Double(0.0), ScalarType::Double)?,
        (None, Some(Tolerance::Number(v))) if *v > 0.0 => {
            cx.number(Scalar::Double(0.0), ScalarType::Double)?
        }
        (None, Some(Tolerance::Each(each))) => {
            let is_given = cx.compare("aten.gt.Scalar", *each, 0.0);
            let (zero, default) = (
                cx.number(Scalar::Double(0.0), ScalarType::Double)?,
                cx.number(Scalar::Double(default), ScalarType::Double)?,
            );
            cx.choose(is_given, zero, default)
        }
        _ => cx.number(Scalar::Double(default), ScalarType::Double)?,
    };
    let scaled = cx.mul(largest, relative);
    match absolute {
        None => Ok(scaled),
        Some(absolute) => {
            let absolute = absolute.value(cx)?;
            Ok(cx.binary("aten.maximum.default", scaled, absolute))
        }
    }
}

/// The largest of the sizes of singular values or eigenvalues, in a dimension of size 1.
fn largest(cx: &mut Rewriter<'_>, sizes: VarId) -> VarId {
    let last = cx.of(sizes).rank() - 1;
    cx.reduce("aten.amax.default", sizes, &[last], true)
}

/// `1 / x` where the size of `x` exceeds the threshold, else 0.
fn inverted(cx: &mut Rewriter<'_>, (x, size): (VarId, VarId), threshold: VarId) -> Result<VarId> {
    let counts = cx.compare("aten.gt.Tensor", size, threshold);
    let (zero, one) = (
        cx.number(Scalar::Double(0.0), ScalarType::Double)?,
        cx.number(Scalar::Double(1.0), ScalarType::Double)?,
    );
    let divisor = cx.choose(counts, x, one);
    let inverse = cx.div(one, divisor);
    Ok(cx.choose(counts, inverse, zero))
}

fn pseudoinverse(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = precise(cx, node)?;
    let want = cx.result(node)?;
    let (_, m, n) = shape_of(cx, node, x)?;
    if m == 0 || n == 0 {
        let new = cx.view(node, x, want.sizes)?;
        let new = cx.cast(new, want.dtype);
        return cx.done(node, new);
    }
    let default = match &*node.target {
        "aten.pinverse.default" if node.arg("rcond").is_none() => 1e-15,
        _ => epsilon * m.max(n) as f64,
    };
    let hermitian = cx.bool(node, "hermitian", false)?;
    let new = pseudoinverse_of(cx, node, x, (default, hermitian))?;
    let new = cx.cast(new, want.dtype);
    cx.done(node, new)
}

/// `V diag(1 / S) U^H`, without the singular values that do not count.
fn pseudoinverse_of(
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
            let [u, s, vh] = decomposed(cx, node, x, false)?;
            (s, s, adjoint(cx, vh), adjoint(cx, u))
        }
    };
    let largest = largest(cx, size);
    let threshold = threshold(cx, node, (largest, default))?;
    let factors = inverted(cx, (values, size), threshold)?;
    let dtype = cx.of(x).dtype;
    let factors = cx.cast(factors, dtype);
    let rank = cx.of(factors).rank();
    let factors = cx.unsqueeze(node, factors, rank - 1)?;
    let scaled = cx.mul(columns, factors);
    product(cx, node, scaled, rows)
}

/// Eigenvalues and eigenvectors of Hermitian matrices.
fn eigenvectors(cx: &mut Rewriter<'_>, x: VarId) -> (VarId, VarId) {
    let spec = cx.of(x);
    let values = TensorSpec::contiguous(real(spec.dtype), spec.sizes[..spec.rank() - 1].to_vec());
    let types = vec![VarType::Tensor(values), VarType::Tensor(spec)];
    let outs = cx.emit_many("aten.linalg_eigh.default", vec![("self", Argument::Var(x))], types);
    (outs[0], outs[1])
}

/// The number of singular values that count.
fn matrix_rank(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = precise(cx, node)?;
    let want = cx.result(node)?;
    let (_, m, n) = shape_of(cx, node, x)?;
    if m == 0 || n == 0 {
        let new = cx.filled(node, want.sizes, Argument::Int(0), want.dtype)?;
        return cx.done(node, new);
    }
    let values = singular_values(cx, node, x)?;
    let largest = largest(cx, values);
    let threshold = threshold(cx, node, (largest, epsilon * m.max(n) as f64))?;
    let counts = cx.compare("aten.gt.Tensor", values, threshold);
    let ones = cx.cast(counts, ScalarType::Long);
    let last = cx.of(ones).rank() - 1;
    let new = cx.reduce("aten.sum.dim_IntList", ones, &[last], false);
    cx.done(node, new)
}

/// The norm of a matrix times that of its inverse.
fn condition(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, _) = precise(cx, node)?;
    let want = cx.result(node)?;
    let order = match node.arg("p") {
        None | Some(Argument::None) => Argument::Float(2.0),
        Some(order) => order.clone(),
    };
    let new = match order {
        Argument::Str(_) | Argument::Int(1 | -1) => inverse_condition(cx, node, x, &order)?,
        Argument::Float(p) if p.abs() == 1.0 || p.is_infinite() => inverse_condition(cx, node, x, &order)?,
        _ => {
            let values = singular_values(cx, node, x)?;
            let last = cx.of(values).rank() - 1;
            let most = cx.reduce("aten.amax.default", values, &[last], false);
            let least = cx.reduce("aten.amin.default", values, &[last], false);
            let is_inverse =
                matches!(order, Argument::Int(-2)) || matches!(order, Argument::Float(p) if p < 0.0);
            if is_inverse { cx.div(least, most) } else { cx.div(most, least) }
        }
    };
    let new = cx.cast(new, want.dtype);
    let new = cx.view(node, new, want.sizes)?;
    cx.done(node, new)
}

fn inverse_condition(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    order: &Argument,
) -> Result<VarId> {
    let inverse = inverse(cx, node, x)?;
    let spec = cx.of(x);
    let sizes = spec.sizes[..spec.rank() - 2].to_vec();
    let spec = TensorSpec::contiguous(real(spec.dtype), sizes);
    let mut norm = |x| {
        let args = vec![("self", Argument::Var(x)), ("ord", order.clone())];
        cx.emit("aten.linalg_matrix_norm.default", args, spec.clone())
    };
    let (a, b) = (norm(x), norm(inverse));
    Ok(cx.mul(a, b))
}

/// The solution of the smallest norm among those that minimize `|A X - B|`.
fn least_squares(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, epsilon) = precise(cx, node)?;
    let (right, want) = (cx.tensor(node, "b")?, cx.result(node)?);
    let (_, m, n) = shape_of(cx, node, x)?;
    if m == 0 || n == 0 {
        return cx.wrong(node, "its matrices are empty");
    }
    let right = cx.cast(right, doubled(cx.of(right).dtype));
    let is_vector = cx.of(right).rank() + 1 == cx.of(x).rank();
    let columns = if is_vector { cx.unsqueeze(node, right, cx.of(right).rank())? } else { right };
    let inverse = pseudoinverse_of(cx, node, x, (epsilon * m.max(n) as f64, false))?;
    let solution = product(cx, node, inverse, columns)?;
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
            _ => return cx.wrong(node, "the residuals of least squares"),
        };
        let new = cx.cast(new, spec.dtype);
        let new = cx.view(node, new, spec.sizes)?;
        cx.replace(out, new);
    }
    cx.done(node, solution)
}

/// The degree of the Taylor polynomial, which is exact in float64 for matrices of norm 1.
const DEGREE: i64 = 18;

/// The most times that a matrix is halved, and the result squared.
const MAX_HALVINGS: usize = 24;

/// Scaling and squaring: the Taylor polynomial of a matrix that is halved until its norm is at most 1, and squared as often.
fn exponential(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, _) = precise(cx, node)?;
    let want = cx.result(node)?;
    let (batch, n, columns) = shape_of(cx, node, x)?;
    if n != columns {
        return cx.wrong(node, "its matrices are not square");
    }
    let rank = cx.of(x).rank();
    let spec = cx.of(x);
    let sizes = TensorSpec { dtype: real(spec.dtype), ..spec };
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
    let one = identity(cx, node, (n, cx.of(x).dtype), with(&batch, &[n, n]))?;
    let mut sum = one;
    for k in (1..=DEGREE).rev() {
        let term = product(cx, node, x, sum)?;
        let term = cx.mul(term, 1.0 / k as f64);
        sum = cx.add(one, term);
    }
    for is_large in halved.into_iter().rev() {
        let square = product(cx, node, sum, sum)?;
        sum = cx.choose(is_large, square, sum);
    }
    let new = cx.cast(sum, want.dtype);
    cx.done(node, new)
}
