//! Fourier transforms in terms of three kernels: real to complex, complex to real, complex to complex.

use super::Table;
use super::When::{Always, NoKernel};
use super::windows::static_size;
use crate::Result;
use crate::operators::int_argument;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[
    ("aten.fft_rfft", Always, real_to_complex),
    ("aten.fft_rfft2", Always, real_to_complex),
    ("aten.fft_rfftn", Always, real_to_complex),
    ("aten.fft_irfft", Always, complex_to_real),
    ("aten.fft_irfft2", Always, complex_to_real),
    ("aten.fft_irfftn", Always, complex_to_real),
    ("aten.fft_fft", Always, complex_to_complex),
    ("aten.fft_fft2", Always, complex_to_complex),
    ("aten.fft_fftn", Always, complex_to_complex),
    ("aten.fft_ifft", Always, complex_to_complex),
    ("aten.fft_ifft2", Always, complex_to_complex),
    ("aten.fft_ifftn", Always, complex_to_complex),
    ("aten.fft_hfft", Always, hermitian_to_real),
    ("aten.fft_hfft2", Always, hermitian_to_real),
    ("aten.fft_hfftn", Always, hermitian_to_real),
    ("aten.fft_ihfft", Always, real_to_hermitian),
    ("aten.fft_ihfft2", Always, real_to_hermitian),
    ("aten.fft_ihfftn", Always, real_to_hermitian),
    ("aten.fft_fftfreq", Always, fftfreq),
    ("aten.fft_rfftfreq", Always, fftfreq),
    ("aten.fft_fftshift", Always, fftshift),
    ("aten.fft_ifftshift", Always, fftshift),
    ("aten.complex", NoKernel, make_complex),
    ("aten.polar", NoKernel, polar),
    ("aten.imag", Always, imag),
];

/// The dimensions of a transform, and the sizes to which they are cropped or padded, if given; -1 keeps a size.
fn transform_dims(
    cx: &Rewriter<'_>,
    node: &ExportedNode,
    rank: usize,
) -> Result<(Vec<usize>, Option<Vec<i64>>)> {
    let sizes = match (cx.ints(node, "n")?, cx.ints(node, "s")?) {
        (Some(n), _) => Some(n),
        (_, s) => s,
    };
    let name = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
    let is_one = !name.ends_with(['2', 'n']);
    let list = match cx.ints(node, "dim")? {
        Some(list) => list,
        None if is_one => vec![-1],
        None if name.ends_with('2') => vec![-2, -1],
        None => {
            let count = sizes.as_ref().map_or(rank, Vec::len);
            (rank.saturating_sub(count)..rank).map(|d| d as i64).collect()
        }
    };
    if rank == 0 {
        return cx.fail(node, "its operand has no dimensions");
    }
    let dims: Vec<usize> = list.iter().map(|&d| cx.dim(node, d, rank)).collect::<Result<_>>()?;
    if dims.is_empty() || sizes.as_ref().is_some_and(|s| s.len() != dims.len()) {
        return cx.fail(node, "its sizes and dimensions differ in number");
    }
    Ok((dims, sizes))
}

/// The kernels' normalization mode: 0 for none, 1 to divide by the square root of the size, 2 to divide by the size.
fn normalization_mode(node: &ExportedNode, forward: bool) -> i64 {
    match (node.arg("norm"), forward) {
        (Some(Argument::Str(s)), _) if s == "ortho" => 1,
        (Some(Argument::Str(s)), true) if s == "forward" => 2,
        (Some(Argument::Str(s)), false) if s == "forward" => 0,
        (_, true) => 0,
        (_, false) => 2,
    }
}

/// Crops dimensions to `sizes`, or pads them with zeros at the end.
fn fit_sizes(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    mut x: VarId,
    dims: &[usize],
    sizes: Option<&[i64]>,
) -> Result<VarId> {
    for (&dim, &want) in dims.iter().zip(sizes.unwrap_or_default()) {
        // A size of -1 stands for that of the operand.
        if want < 0 {
            continue;
        }
        let have = static_size(cx, node, cx.spec_of(x).sizes.get(dim))? as i64;
        if want > have {
            x = pad_end(cx, node, x, (dim, want - have))?;
        } else {
            x = cx.slice(node, x, dim, (&Size::Int(0), &Size::Int(want)))?;
        }
    }
    Ok(x)
}

/// Appends zeros to a dimension; for a complex tensor, to its real and imaginary parts.
fn pad_end(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (dim, count): (usize, i64),
) -> Result<VarId> {
    let dtype = cx.spec_of(x).dtype;
    let parts = if dtype.is_complex() { view_as_real(cx, x) } else { x };
    let spec = cx.spec_of(parts);
    let mut more = spec.sizes.clone();
    more[dim] = Size::Int(count);
    let zeros = super::windows::zeros(cx, node, more, spec.dtype)?;
    let longer = cx.cat(&[parts, zeros], dim);
    Ok(if dtype.is_complex() { view_as_complex(cx, longer, dtype) } else { longer })
}

/// The real and imaginary parts of a complex tensor, along a new last dimension.
pub(super) fn view_as_real(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    let spec = cx.spec_of(x);
    let mut sizes = spec.sizes;
    sizes.push(Size::Int(2));
    let spec = TensorSpec::contiguous(real_dtype(spec.dtype), sizes);
    cx.emit("aten.view_as_real.default", vec![("self", Argument::Var(x))], spec)
}

/// The inverse of [`view_as_real`].
fn view_as_complex(cx: &mut Rewriter<'_>, pairs: VarId, dtype: ScalarType) -> VarId {
    let mut sizes = cx.spec_of(pairs).sizes;
    sizes.pop();
    let spec = TensorSpec::contiguous(dtype, sizes);
    cx.emit("aten.view_as_complex.default", vec![("self", Argument::Var(pairs))], spec)
}

/// The type of the parts of a complex type.
pub(super) fn real_dtype(dtype: ScalarType) -> ScalarType {
    match dtype {
        ScalarType::ComplexDouble => ScalarType::Double,
        ScalarType::ComplexHalf => ScalarType::Half,
        _ => ScalarType::Float,
    }
}

fn complex_dtype(dtype: ScalarType) -> ScalarType {
    if dtype == ScalarType::Double { ScalarType::ComplexDouble } else { ScalarType::ComplexFloat }
}

fn as_float_or_double(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    match cx.spec_of(x).dtype {
        ScalarType::Float | ScalarType::Double => x,
        _ => cx.cast(x, ScalarType::Float),
    }
}

/// The transform of a real tensor: the full spectrum, or only the half that is not redundant.
pub(super) fn real_transform(
    cx: &mut Rewriter<'_>,
    x: VarId,
    dims: &[usize],
    (normalization, onesided): (i64, bool),
) -> VarId {
    let mut spec = cx.spec_of(x);
    if let (true, Some(&last)) = (onesided, dims.last()) {
        let half = spec.sizes[last].combine(pteron_exported::SymOp::FloorDiv, &Size::Int(2));
        spec.sizes[last] = half.add(&Size::Int(1));
    }
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&list)),
        ("normalization", Argument::Int(normalization)),
        ("onesided", Argument::Bool(onesided)),
    ];
    cx.emit("aten._fft_r2c.default", args, TensorSpec::contiguous(complex_dtype(spec.dtype), spec.sizes))
}

pub(super) fn complex_transform(
    cx: &mut Rewriter<'_>,
    x: VarId,
    dims: &[usize],
    (normalization, forward): (i64, bool),
) -> VarId {
    let spec = cx.spec_of(x);
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&list)),
        ("normalization", Argument::Int(normalization)),
        ("forward", Argument::Bool(forward)),
    ];
    cx.emit("aten._fft_c2c.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
}

fn real_to_complex(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let x = as_float_or_double(cx, x);
    let (dims, sizes) = transform_dims(cx, node, cx.spec_of(x).rank())?;
    let x = fit_sizes(cx, node, x, &dims, sizes.as_deref())?;
    let new = real_transform(cx, x, &dims, (normalization_mode(node, true), true));
    cx.replace_node(node, new)
}

fn complex_to_complex(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let forward = !node.target.contains("fft_ifft");
    let scale = normalization_mode(node, forward);
    if cx.spec(node, x)?.dtype.is_complex() {
        let (dims, sizes) = transform_dims(cx, node, cx.spec_of(x).rank())?;
        let x = fit_sizes(cx, node, x, &dims, sizes.as_deref())?;
        let new = complex_transform(cx, x, &dims, (scale, forward));
        return cx.replace_node(node, new);
    }
    let x = as_float_or_double(cx, x);
    let (dims, sizes) = transform_dims(cx, node, cx.spec_of(x).rank())?;
    let x = fit_sizes(cx, node, x, &dims, sizes.as_deref())?;
    let new = real_transform(cx, x, &dims, (scale, false));
    if forward {
        return cx.replace_node(node, new);
    }
    // The inverse transform of real input is the conjugate of the forward transform.
    let new = cx.unary("aten._conj_physical.default", new);
    cx.replace_node(node, new)
}

fn as_complex(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
    let x = as_float_or_double(cx, x);
    let spec = cx.spec_of(x);
    let zeros = super::windows::zeros(cx, node, spec.sizes.clone(), spec.dtype)?;
    let (re, im) = (cx.unsqueeze(node, x, spec.rank())?, cx.unsqueeze(node, zeros, spec.rank())?);
    let pairs = cx.cat(&[re, im], spec.rank());
    let complex_spec = TensorSpec::contiguous(complex_dtype(spec.dtype), spec.sizes);
    Ok(cx.emit("aten.view_as_complex.default", vec![("self", Argument::Var(pairs))], complex_spec))
}

/// The inverse transform of a half spectrum whose time-domain values are real.
pub(super) fn inverse_real_transform(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    dims: &[usize],
    (normalization, last): (i64, &Size),
) -> Result<VarId> {
    let mut spec = cx.spec_of(x);
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    if let Some(size) = dims.last().and_then(|&d| spec.sizes.get_mut(d)) {
        *size = last.clone();
    }
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&list)),
        ("normalization", Argument::Int(normalization)),
        ("last_dim_size", int_argument(cx.size_argument(node, last)?)),
    ];
    let spec = TensorSpec::contiguous(real_dtype(spec.dtype), spec.sizes);
    Ok(cx.emit("aten._fft_c2r.default", args, spec))
}

/// The complex operand of a transform to real values, cropped or padded, its dimensions, and the size of the last one
/// in the result.
fn half_spectrum(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<(VarId, Vec<usize>, Size)> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let x = if cx.spec(node, x)?.dtype.is_complex() { x } else { as_complex(cx, node, x)? };
    let (dims, sizes) = transform_dims(cx, node, cx.spec_of(x).rank())?;
    let Some(last) = dims.last().and_then(|&d| want.sizes.get(d)).cloned() else {
        return cx.fail(node, "it transforms no dimension of its result");
    };
    let Some(mut sizes) = sizes else { return Ok((x, dims, last)) };
    if let Some(size) = sizes.last_mut() {
        *size = match last.known() {
            Some(last) => last / 2 + 1,
            None => -1,
        };
    }
    let x = fit_sizes(cx, node, x, &dims, Some(&sizes))?;
    Ok((x, dims, last))
}

fn complex_to_real(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, dims, last) = half_spectrum(cx, node)?;
    let new = inverse_real_transform(cx, node, x, &dims, (normalization_mode(node, false), &last))?;
    cx.replace_node(node, new)
}

/// The real spectrum of a Hermitian signal, given its first half; the other half is the mirrored conjugate.
fn hermitian_to_real(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, dims, last) = half_spectrum(cx, node)?;
    let scale = normalization_mode(node, true);
    let (&last_dim, others) = dims.split_last().unwrap_or((&0, &[]));
    if !others.is_empty() {
        x = complex_transform(cx, x, others, (scale, true));
    }
    let x = cx.unary("aten._conj_physical.default", x);
    let new = inverse_real_transform(cx, node, x, &[last_dim], (scale, &last))?;
    cx.replace_node(node, new)
}

/// The inverse of [`hermitian_to_real`].
fn real_to_hermitian(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let x = as_float_or_double(cx, x);
    let (dims, sizes) = transform_dims(cx, node, cx.spec_of(x).rank())?;
    let x = fit_sizes(cx, node, x, &dims, sizes.as_deref())?;
    let scale = normalization_mode(node, false);
    let (&last_dim, others) = dims.split_last().unwrap_or((&0, &[]));
    let half = real_transform(cx, x, &[last_dim], (scale, true));
    let mut new = cx.unary("aten._conj_physical.default", half);
    if !others.is_empty() {
        new = complex_transform(cx, new, others, (scale, false));
    }
    cx.replace_node(node, new)
}

/// The frequencies of the elements of a spectrum of `n` samples that are `d` apart.
fn fftfreq(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let want = cx.result_spec(node)?;
    let count = static_size(cx, node, want.sizes.first())?;
    cx.check_table_size(node, &[count])?;
    let (n, d) = (cx.int(node, "n", 1)?, cx.float(node, "d", 1.0)?);
    let scale = 1.0 / (n as f64 * d);
    let is_half = node.target.contains("rfftfreq");
    let at = |i: usize| {
        let i = i as i64;
        let signed = if is_half || i < (n.saturating_add(1)) / 2 { i } else { i.saturating_sub(n) };
        // PyTorch multiplies in the type of the result.
        Scalar::Double(match want.dtype {
            ScalarType::Double => signed as f64 * scale,
            _ => f64::from(signed as f32 * scale as f32),
        })
    };
    let values: Vec<Scalar> = (0..count).map(at).collect();
    let new = cx.constant(&values, want.dtype, &[count])?;
    cx.replace_node(node, new)
}

/// Rolls dimensions by half their sizes.
fn fftshift(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let is_back = node.target.contains("ifftshift");
    let mut shifts = Vec::new();
    for &dim in &dims {
        let size = static_size(cx, node, spec.sizes.get(dim))?;
        shifts.push(if is_back { size.div_ceil(2) } else { size / 2 } as i64);
    }
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let args = vec![
        ("self", Argument::Var(x)),
        ("shifts", Argument::ints(&shifts)),
        ("dims", Argument::ints(&list)),
    ];
    Ok(cx.retarget(node, "aten.roll.default", args))
}

fn replace_with_complex(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (re, im): (VarId, VarId),
) -> Result<Outcome> {
    let want = cx.result_spec(node)?;
    let rank = want.rank();
    let half = |cx: &mut Rewriter<'_>, v| -> Result<VarId> {
        let wide = cx.expand(node, v, want.sizes.clone())?;
        cx.unsqueeze(node, wide, rank)
    };
    let (re, im) = (half(cx, re)?, half(cx, im)?);
    let pairs = cx.cat(&[re, im], rank);
    Ok(cx.retarget(node, "aten.view_as_complex.default", vec![("self", Argument::Var(pairs))]))
}

fn make_complex(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let parts = (cx.tensor(node, "real")?, cx.tensor(node, "imag")?);
    replace_with_complex(cx, node, parts)
}

fn polar(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (size, angle) = (cx.tensor(node, "abs")?, cx.tensor(node, "angle")?);
    let (cos, sin) = (cx.unary("aten.cos.default", angle), cx.unary("aten.sin.default", angle));
    let parts = (cx.mul(size, cos), cx.mul(size, sin));
    replace_with_complex(cx, node, parts)
}

/// The imaginary part; the real part is handled as a view.
fn imag(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let new = real_or_imag(cx, x, 1);
    cx.replace_node(node, new)
}

/// The real part (`which` is 0) or the imaginary part (1) of a complex tensor.
pub(super) fn real_or_imag(cx: &mut Rewriter<'_>, x: VarId, which: i64) -> VarId {
    let pairs = view_as_real(cx, x);
    let last = cx.spec_of(pairs).rank() - 1;
    cx.select(pairs, last, which)
}
