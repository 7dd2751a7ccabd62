//! Short-time Fourier transforms: the spectra of overlapping windows of a signal, and the signal of such spectra.

use super::Table;
use super::When::Always;
use super::spectral::{
    complex_transform, inverse_real_transform, real_or_imag, real_transform, view_as_real,
};
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[("aten.stft", Always, stft), ("aten.istft", Always, istft)];

/// The maximum number of hop-sized parts of a frame that are added up one by one.
const MAX_PARTS: usize = 1024;

/// The frame geometry that `stft` and `istft` share.
struct Frames {
    /// The length of a transform, in samples.
    len: usize,
    hop: usize,
    /// The window by which frames are multiplied; `None` for a window of ones.
    window: Option<VarId>,
    /// Whether the forward transform divides by the square root of its length.
    normalized: bool,
}

impl Frames {
    fn from_node(cx: &mut Rewriter<'_>, node: &ExportedNode, dtype: ScalarType) -> Result<Self> {
        let positive = |value: i64| usize::try_from(value).ok().filter(|&v| v > 0);
        let (Some(len), Some(hop)) = (
            positive(cx.int(node, "n_fft", 1)?),
            positive(cx.int(node, "hop_length", cx.int(node, "n_fft", 1)? / 4)?),
        ) else {
            return cx.fail(node, "its windows or the hops between them are empty");
        };
        let window = window(cx, node, (len, dtype))?;
        Ok(Self { len, hop, window, normalized: cx.bool(node, "normalized", false)? })
    }
}

/// The window, with zeros around it up to the length of a transform.
fn window(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (len, dtype): (usize, ScalarType),
) -> Result<Option<VarId>> {
    let window_operand = cx.optional_tensor(node, "window");
    let have = match window_operand {
        Some(window) => static_size(cx, node, cx.spec_of(window).sizes.first())?,
        None => usize::try_from(cx.int(node, "win_length", len as i64)?).unwrap_or(0),
    };
    let Some(rest) = len.checked_sub(have).filter(|_| have > 0) else {
        return cx.fail(node, format!("a window of {have} elements for transforms of {len}"));
    };
    let window = match window_operand {
        Some(window) => window,
        None if rest == 0 => return Ok(None),
        None => cx.constant(&vec![Scalar::Double(1.0); have], dtype, &[have])?,
    };
    if rest > 0 && cx.spec_of(window).dtype.is_complex() {
        return cx.fail(node, "a complex window that is shorter than its transforms");
    }
    let before = rest / 2;
    Ok(Some(cx.pad(window, 0, (before as i64, (rest - before) as i64), 0)))
}

/// Pads a signal by half the length of a transform at both ends, so that frame `i` is centered at `i` hops.
fn pad_to_center(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, len: usize) -> Result<VarId> {
    let half = (len / 2) as i64;
    let mode = match node.arg("pad_mode") {
        Some(Argument::Str(mode)) => mode.clone(),
        _ => "reflect".to_owned(),
    };
    let target = match mode.as_str() {
        "constant" => return Ok(cx.pad(x, 1, (half, half), 0)),
        "reflect" => "aten.reflection_pad1d.default",
        "replicate" => "aten.replication_pad1d.default",
        other => return cx.fail(node, format!("padding of a signal in the mode `{other}`")),
    };
    let mut spec = cx.spec_of(x);
    if spec.dtype.is_complex() {
        return cx.fail(node, format!("padding of complex numbers in the mode `{mode}`"));
    }
    if let Some(size) = spec.sizes.get_mut(1) {
        *size = size.add(&Size::Int(2 * half));
    }
    let args = vec![("self", Argument::Var(x)), ("padding", Argument::ints(&[half, half]))];
    Ok(cx.emit(target, args, TensorSpec::contiguous(spec.dtype, spec.sizes)))
}

fn stft(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let is_complex = cx.spec(node, x)?.dtype.is_complex();
    if cx.bool(node, "align_to_window", false)? {
        return cx.fail(node, "frames that are aligned to its window");
    }
    match cx.spec_of(x).rank() {
        1 => x = cx.unsqueeze(node, x, 0)?,
        2 => {}
        rank => return cx.fail(node, format!("signals of rank {rank}, which are not 1 or 2")),
    }
    let of_window = super::spectral::real_dtype(cx.spec_of(x).dtype);
    let frames = Frames::from_node(cx, node, if is_complex { of_window } else { cx.spec_of(x).dtype })?;
    if cx.bool(node, "center", false)? {
        x = pad_to_center(cx, node, x, frames.len)?;
    }
    let behind = usize::from(!want.dtype.is_complex());
    let Some(count) = want.rank().checked_sub(1 + behind).and_then(|dim| want.sizes.get(dim)).cloned() else {
        return cx.fail(node, "its result has no frames");
    };
    let mut parts = split_frames(cx, x, (&frames, count));
    if let Some(window) = frames.window {
        parts = cx.mul(parts, window);
    }
    let onesided = cx.bool(node, "onesided", !is_complex)?;
    let scale = i64::from(frames.normalized);
    let spectrum = match cx.spec_of(parts).dtype.is_complex() {
        true if onesided => return cx.fail(node, "half of the spectrum of complex numbers"),
        true => complex_transform(cx, parts, &[2], (scale, true)),
        false => real_transform(cx, parts, &[2], (scale, onesided)),
    };
    let spectrum = cx.permute(spectrum, &[0, 2, 1]);
    let new = if want.dtype.is_complex() { spectrum } else { view_as_real(cx, spectrum) };
    let new = cx.view(node, new, want.sizes)?;
    cx.replace_node(node, new)
}

/// The frames of signals: dimensions batch, frame, sample.
fn split_frames(cx: &mut Rewriter<'_>, x: VarId, (frames, count): (&Frames, Size)) -> VarId {
    let spec = cx.spec_of(x);
    let args = vec![
        ("self", Argument::Var(x)),
        ("dimension", Argument::Int(1)),
        ("size", Argument::Int(frames.len as i64)),
        ("step", Argument::Int(frames.hop as i64)),
    ];
    let sizes = vec![spec.sizes[0].clone(), count, Size::Int(frames.len as i64)];
    cx.emit("aten.unfold_copy.default", args, TensorSpec::contiguous(spec.dtype, sizes))
}

/// The inverse of `stft`: overlapping frames are added up and divided by the summed squares of their windows.
fn istft(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, want) = (cx.tensor(node, "self")?, cx.result_spec(node)?);
    let spec = cx.spec(node, x)?;
    if !spec.dtype.is_complex() {
        return cx.fail(node, "spectra that are not complex");
    }
    match spec.rank() {
        2 => x = cx.unsqueeze(node, x, 0)?,
        3 => {}
        rank => return cx.fail(node, format!("spectra of rank {rank}, which are not 2 or 3")),
    }
    let real = super::spectral::real_dtype(spec.dtype);
    let frames = Frames::from_node(cx, node, real)?;
    let samples = inverse_frames(cx, node, (x, &frames), want.dtype.is_complex())?;
    let windowed = match frames.window {
        Some(window) => cx.mul(samples, window),
        None => samples,
    };
    let signal = overlap_add(cx, node, windowed, &frames)?;
    let envelope = window_envelope(cx, node, (x, &frames), real)?;
    let start = if cx.bool(node, "center", true)? { frames.len / 2 } else { 0 };
    let (signal, envelope) =
        (crop(cx, node, signal, (start, &want.sizes))?, crop(cx, node, envelope, (start, &want.sizes))?);
    let signal = cx.div(signal, envelope);
    let (have, wanted) = (cx.spec_of(signal).sizes[1].clone(), want.sizes.last().cloned());
    let missing = match (have.known(), wanted.as_ref().and_then(Size::known)) {
        (Some(have), Some(want)) => want - have,
        _ => 0,
    };
    if missing > 0 && cx.spec_of(signal).dtype.is_complex() {
        return cx.fail(node, "a complex result that is longer than its frames");
    }
    let signal = cx.pad(signal, 1, (0, missing.max(0)), 0);
    let new = cx.view(node, signal, want.sizes)?;
    cx.replace_node(node, new)
}

/// The samples of each frame: dimensions batch, frame, sample.
fn inverse_frames(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (x, frames): (VarId, &Frames),
    is_complex: bool,
) -> Result<VarId> {
    let scale = if frames.normalized { 1 } else { 2 };
    let (len, half) = (Size::Int(frames.len as i64), Size::Int(frames.len as i64 / 2 + 1));
    let rows = cx.permute(x, &[0, 2, 1]);
    if is_complex {
        return Ok(complex_transform(cx, rows, &[2], (scale, false)));
    }
    let rows = cx.slice(node, rows, 2, (&Size::Int(0), &half))?;
    inverse_real_transform(cx, node, rows, &[2], (scale, &len))
}

/// Adds up frames that are a hop apart. Each is cut into parts of the length of a hop; part `k` of a frame is added `k`
/// hops after the frame's beginning.
fn overlap_add(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, frames: &Frames) -> Result<VarId> {
    if cx.spec_of(x).dtype.is_complex() {
        let (re, im) = (real_or_imag(cx, x, 0), real_or_imag(cx, x, 1));
        let (re, im) = (overlap_add(cx, node, re, frames)?, overlap_add(cx, node, im, frames)?);
        let mut spec = cx.spec_of(re);
        spec.dtype = cx.spec_of(x).dtype;
        return Ok(cx.emit(
            "aten.complex.default",
            vec![("real", Argument::Var(re)), ("imag", Argument::Var(im))],
            spec,
        ));
    }
    let spec = cx.spec_of(x);
    let parts = frames.len.div_ceil(frames.hop);
    if parts > MAX_PARTS {
        return cx.fail(node, format!("more than {MAX_PARTS} frames that overlap"));
    }
    let hop = Size::Int(frames.hop as i64);
    let (batch, count) = (spec.sizes[0].clone(), spec.sizes[1].clone());
    let filled = cx.pad(x, 2, (0, (parts * frames.hop - frames.len) as i64), 0);
    let cut =
        cx.view(node, filled, vec![batch.clone(), count.clone(), Size::Int(parts as i64), hop.clone()])?;
    let mut sum = None;
    for k in 0..parts {
        let part = cx.select(cut, 2, k as i64);
        let placed = cx.pad(part, 1, (k as i64, (parts - 1 - k) as i64), 0);
        sum = Some(sum.map_or(placed, |sum| cx.add(sum, placed)));
    }
    let Some(sum) = sum else { return cx.fail(node, "its frames are empty") };
    let hops = count.add(&Size::Int(parts as i64 - 1));
    let signal = cx.view(node, sum, vec![batch, hops.mul(&hop)])?;
    // The last part may extend beyond the last frame.
    let end = count.add(&Size::Int(-1)).mul(&hop).add(&Size::Int(frames.len as i64));
    cx.slice(node, signal, 1, (&Size::Int(0), &end))
}

/// The sums of the squares of the windows that overlap at each sample.
fn window_envelope(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (x, frames): (VarId, &Frames),
    dtype: ScalarType,
) -> Result<VarId> {
    let (count, len) = (cx.spec_of(x).sizes[2].clone(), Size::Int(frames.len as i64));
    let square = match frames.window {
        Some(window) => {
            let square = cx.mul(window, window);
            cx.expand(node, square, vec![Size::Int(1), count, len])?
        }
        None => cx.full(node, vec![Size::Int(1), count, len], Argument::Float(1.0), dtype)?,
    };
    overlap_add(cx, node, square, frames)
}

/// The samples from `start` on, up to the length of the result or the end of the frames.
fn crop(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (start, want): (usize, &[Size]),
) -> Result<VarId> {
    let Some(count) = want.last() else { return cx.fail(node, "its result has no samples") };
    let start = Size::Int(start as i64);
    let end = start.add(count);
    let have = cx.spec_of(x).sizes[1].clone();
    let end = match (end.known(), have.known()) {
        (Some(end), Some(have)) => Size::Int(end.min(have)),
        _ => end,
    };
    cx.slice(node, x, 1, (&start, &end))
}
