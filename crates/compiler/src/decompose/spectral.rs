//! Fourier transforms in terms of three kernels: real to complex, complex to real, complex to complex.

use super::Table;
use super::When::{Always, NoKernel};
use super::windows::{known, windows};
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use tensor::ScalarType;

pub(super) const RULES: Table = &[
    ("aten.fft_rfft", Always, real_to_complex),
    ("aten.fft_rfft2", Always, real_to_complex),
    ("aten.fft_rfftn", Always, real_to_complex),
    ("aten.fft_irfft", Always, complex_to_real),
    ("aten.fft_irfft2", Always, complex_to_real),
    ("aten.fft_irfftn", Always, complex_to_real),
    ("aten.fft_fft", Always, complex),
    ("aten.fft_fft2", Always, complex),
    ("aten.fft_fftn", Always, complex),
    ("aten.fft_ifft", Always, complex),
    ("aten.fft_ifft2", Always, complex),
    ("aten.fft_ifftn", Always, complex),
    ("aten.fft_fftshift", Always, shift),
    ("aten.fft_ifftshift", Always, shift),
    ("aten.stft", Always, stft),
    ("aten.complex", NoKernel, make_complex),
    ("aten.polar", NoKernel, polar),
    ("aten.imag", Always, part),
];

/// The dimensions of a transform, and the sizes to which they are cropped or padded, if given; -1 keeps a size.
fn dims(cx: &Rewriter<'_>, node: &ExportedNode, rank: usize) -> Result<(Vec<usize>, Option<Vec<i64>>)> {
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
    let dims: Vec<usize> = list.iter().map(|&d| cx.dim(node, d, rank)).collect::<Result<_>>()?;
    if dims.is_empty() || sizes.as_ref().is_some_and(|s| s.len() != dims.len()) {
        return cx.wrong(node, "its sizes and dimensions differ in number");
    }
    Ok((dims, sizes))
}

/// The kernels' normalization mode: 0 for none, 1 to divide by the square root of the size, 2 to divide by the size.
fn normalization(node: &ExportedNode, forward: bool) -> i64 {
    match (node.arg("norm"), forward) {
        (Some(Argument::Str(s)), _) if s == "ortho" => 1,
        (Some(Argument::Str(s)), true) if s == "forward" => 2,
        (Some(Argument::Str(s)), false) if s == "forward" => 0,
        (_, true) => 0,
        (_, false) => 2,
    }
}

/// Crops dimensions to `sizes`, or pads them with zeros at the end.
fn fitted(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    mut x: VarId,
    dims: &[usize],
    sizes: Option<&[i64]>,
) -> Result<VarId> {
    for (&dim, &want) in dims.iter().zip(sizes.unwrap_or_default()) {
        let have = known(cx, node, cx.of(x).sizes.get(dim))? as i64;
        if want > have {
            let spec = cx.of(x);
            let mut more = spec.sizes.clone();
            more[dim] = Size::Int(want - have);
            if spec.dtype.is_complex() {
                return cx.wrong(node, "it pads complex numbers");
            }
            let zeros = super::windows::zeros(cx, node, more, spec.dtype)?;
            x = cx.cat(&[x, zeros], dim);
        } else if (0..have).contains(&want) {
            x = cx.slice(node, x, dim, (&Size::Int(0), &Size::Int(want)))?;
        }
    }
    Ok(x)
}

fn complex_of(dtype: ScalarType) -> ScalarType {
    if dtype == ScalarType::Double { ScalarType::ComplexDouble } else { ScalarType::ComplexFloat }
}

fn real(cx: &mut Rewriter<'_>, x: VarId) -> VarId {
    match cx.of(x).dtype {
        ScalarType::Float | ScalarType::Double => x,
        _ => cx.cast(x, ScalarType::Float),
    }
}

/// The transform of a real tensor: the full spectrum, or only the half that is not redundant.
pub(super) fn forward_real(
    cx: &mut Rewriter<'_>,
    x: VarId,
    dims: &[usize],
    (normalization, onesided): (i64, bool),
) -> VarId {
    let mut spec = cx.of(x);
    if let (true, Some(&last)) = (onesided, dims.last()) {
        let half = spec.sizes[last].combine(ir::exported::SymOp::FloorDiv, &Size::Int(2));
        spec.sizes[last] = half.add(&Size::Int(1));
    }
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&list)),
        ("normalization", Argument::Int(normalization)),
        ("onesided", Argument::Bool(onesided)),
    ];
    cx.emit("aten._fft_r2c.default", args, TensorSpec::contiguous(complex_of(spec.dtype), spec.sizes))
}

fn complex_transform(
    cx: &mut Rewriter<'_>,
    x: VarId,
    dims: &[usize],
    (normalization, forward): (i64, bool),
) -> VarId {
    let spec = cx.of(x);
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
    let x = real(cx, x);
    let (dims, sizes) = dims(cx, node, cx.of(x).rank())?;
    let x = fitted(cx, node, x, &dims, sizes.as_deref())?;
    let new = forward_real(cx, x, &dims, (normalization(node, true), true));
    cx.done(node, new)
}

fn complex(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let forward = !node.target.contains("fft_ifft");
    let scale = normalization(node, forward);
    if cx.spec(node, x)?.dtype.is_complex() {
        let (dims, sizes) = dims(cx, node, cx.of(x).rank())?;
        let x = fitted(cx, node, x, &dims, sizes.as_deref())?;
        let new = complex_transform(cx, x, &dims, (scale, forward));
        return cx.done(node, new);
    }
    let x = real(cx, x);
    let (dims, sizes) = dims(cx, node, cx.of(x).rank())?;
    let x = fitted(cx, node, x, &dims, sizes.as_deref())?;
    let new = forward_real(cx, x, &dims, (scale, false));
    if forward {
        return cx.done(node, new);
    }
    // The inverse transform of real input is the conjugate of the forward transform.
    let new = cx.unary("aten._conj_physical.default", new);
    cx.done(node, new)
}

fn with_no_imaginary_part(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId) -> Result<VarId> {
    let x = real(cx, x);
    let spec = cx.of(x);
    let zeros = super::windows::zeros(cx, node, spec.sizes.clone(), spec.dtype)?;
    let (re, im) = (cx.unsqueeze(node, x, spec.rank())?, cx.unsqueeze(node, zeros, spec.rank())?);
    let pairs = cx.cat(&[re, im], spec.rank());
    let whole = TensorSpec::contiguous(complex_of(spec.dtype), spec.sizes);
    Ok(cx.emit("aten.view_as_complex.default", vec![("self", Argument::Var(pairs))], whole))
}

fn complex_to_real(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, want) = (cx.tensor(node, "self")?, cx.result(node)?);
    let x = if cx.spec(node, x)?.dtype.is_complex() { x } else { with_no_imaginary_part(cx, node, x)? };
    let (dims, sizes) = dims(cx, node, cx.of(x).rank())?;
    let mut have = sizes.unwrap_or_else(|| vec![-1; dims.len()]);
    let last_dim = dims[dims.len() - 1];
    let last = known(cx, node, want.sizes.get(last_dim))? as i64;
    if let Some(size) = have.last_mut() {
        *size = last / 2 + 1;
    }
    let x = fitted(cx, node, x, &dims, Some(&have))?;
    let list: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
    let args = vec![
        ("self", Argument::Var(x)),
        ("dim", Argument::ints(&list)),
        ("normalization", Argument::Int(normalization(node, false))),
        ("last_dim_size", Argument::Int(last)),
    ];
    Ok(cx.retarget(node, "aten._fft_c2r.default", args))
}

/// Rolls dimensions by half their sizes.
fn shift(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let spec = cx.spec(node, x)?;
    let dims = cx.dims(node, "dim", spec.rank())?;
    let is_back = node.target.contains("ifftshift");
    let mut shifts = Vec::new();
    for &dim in &dims {
        let size = known(cx, node, spec.sizes.get(dim))?;
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

/// Short-time Fourier transform: the spectra of windows of a signal.
fn stft(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, want) = (cx.tensor(node, "self")?, cx.result(node)?);
    if cx.spec(node, x)?.dtype.is_complex() || cx.bool(node, "center", false)? {
        return cx.wrong(node, "a transform of complex or padded signals");
    }
    if cx.spec(node, x)?.rank() == 1 {
        x = cx.unsqueeze(node, x, 0)?;
    }
    let count = usize::try_from(cx.int(node, "n_fft", 1)?).unwrap_or(1);
    let hop = usize::try_from(cx.int(node, "hop_length", (count / 4) as i64)?).unwrap_or(1).max(1);
    let length = known(cx, node, cx.of(x).sizes.get(1))?;
    let Some(frames) = length.checked_sub(count).map(|rest| rest / hop + 1) else {
        return cx.wrong(node, "its signal is shorter than a window");
    };
    let places: Vec<Vec<usize>> = (0..frames).map(|i| (i * hop..i * hop + count).collect()).collect();
    let mut parts = windows(cx, node, x, 1, &places)?;
    if let Some(window) = cx.optional_tensor(node, "window") {
        let have = known(cx, node, cx.of(window).sizes.first())?;
        let before = count.saturating_sub(have) / 2;
        let after = count.saturating_sub(have + before);
        let window = cx.pad(window, 0, (before as i64, after as i64), 0);
        parts = cx.mul(parts, window);
    }
    let scale = i64::from(cx.bool(node, "normalized", false)?);
    let onesided = cx.bool(node, "onesided", true)?;
    let spectrum = forward_real(cx, parts, &[2], (scale, onesided));
    let spectrum = cx.permute(spectrum, &[0, 2, 1]);
    let new = match want.dtype.is_complex() {
        true => cx.view(node, spectrum, want.sizes)?,
        false => {
            let mut sizes = cx.of(spectrum).sizes;
            sizes.push(Size::Int(2));
            let args = vec![("self", Argument::Var(spectrum))];
            let pairs = cx.emit("aten.view_as_real.default", args, TensorSpec::contiguous(want.dtype, sizes));
            cx.view(node, pairs, want.sizes)?
        }
    };
    cx.done(node, new)
}

fn complex_from(cx: &mut Rewriter<'_>, node: &ExportedNode, (re, im): (VarId, VarId)) -> Result<Outcome> {
    let want = cx.result(node)?;
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
    complex_from(cx, node, parts)
}

fn polar(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (size, angle) = (cx.tensor(node, "abs")?, cx.tensor(node, "angle")?);
    let (cos, sin) = (cx.unary("aten.cos.default", angle), cx.unary("aten.sin.default", angle));
    let parts = (cx.mul(size, cos), cx.mul(size, sin));
    complex_from(cx, node, parts)
}

/// The imaginary part; the real part is handled as a view.
fn part(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "self")?;
    let new = component(cx, x, 1);
    cx.done(node, new)
}

/// The real part (`which` is 0) or the imaginary part (1) of a complex tensor.
pub(super) fn component(cx: &mut Rewriter<'_>, x: VarId, which: i64) -> VarId {
    let spec = cx.of(x);
    let dtype = match spec.dtype {
        ScalarType::ComplexDouble => ScalarType::Double,
        ScalarType::ComplexHalf => ScalarType::Half,
        _ => ScalarType::Float,
    };
    let mut sizes = spec.sizes;
    sizes.push(Size::Int(2));
    let pairs = cx.emit(
        "aten.view_as_real.default",
        vec![("self", Argument::Var(x))],
        TensorSpec::contiguous(dtype, sizes),
    );
    let last = cx.of(pairs).rank() - 1;
    cx.select(pairs, last, which)
}
