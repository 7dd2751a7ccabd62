//! Short-time Fourier transforms: the spectra of overlapping windows of a signal, and the signal of such spectra.

use super::Table;
use super::When::Always;
use super::spectral::{backward_real, complex_transform, component, forward_real, pairs_of};
use super::windows::known;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{Argument, ExportedNode, Size, TensorSpec, VarId};
use pteron_tensor::{Scalar, ScalarType};

pub(super) const RULES: Table = &[("aten.stft", Always, stft), ("aten.istft", Always, istft)];

/// The most parts of a frame, each of a hop's length, that are added up one by one.
const MAX_PARTS: usize = 1024;

/// The geometry that both directions share.
struct Frames {
    /// The length of a transform.
    len: usize,
    hop: usize,
    /// What frames are multiplied by; `None` for ones.
    window: Option<VarId>,
    /// The kernels' normalization mode of the forward transform.
    normalized: bool,
}

impl Frames {
    fn of(cx: &mut Rewriter<'_>, node: &ExportedNode, dtype: ScalarType) -> Result<Self> {
        let positive = |value: i64| usize::try_from(value).ok().filter(|&v| v > 0);
        let (Some(len), Some(hop)) = (
            positive(cx.int(node, "n_fft", 1)?),
            positive(cx.int(node, "hop_length", cx.int(node, "n_fft", 1)? / 4)?),
        ) else {
            return cx.wrong(node, "its windows or the hops between them are empty");
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
    let given = cx.optional_tensor(node, "window");
    let have = match given {
        Some(window) => known(cx, node, cx.of(window).sizes.first())?,
        None => usize::try_from(cx.int(node, "win_length", len as i64)?).unwrap_or(0),
    };
    let Some(rest) = len.checked_sub(have).filter(|_| have > 0) else {
        return cx.wrong(node, format!("a window of {have} elements for transforms of {len}"));
    };
    let window = match given {
        Some(window) => window,
        None if rest == 0 => return Ok(None),
        None => cx.constant(&vec![Scalar::Double(1.0); have], dtype, &[have])?,
    };
    if rest > 0 && cx.of(window).dtype.is_complex() {
        return cx.wrong(node, "a complex window that is shorter than its transforms");
    }
    let before = rest / 2;
    Ok(Some(cx.pad(window, 0, (before as i64, (rest - before) as i64), 0)))
}

/// Pads a signal by half the length of a transform at both ends, so that frame `i` is centered at `i` hops.
fn centered(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, len: usize) -> Result<VarId> {
    let half = (len / 2) as i64;
    let mode = match node.arg("pad_mode") {
        Some(Argument::Str(mode)) => mode.clone(),
        _ => "reflect".to_owned(),
    };
    let target = match mode.as_str() {
        "constant" => return Ok(cx.pad(x, 1, (half, half), 0)),
        "reflect" => "aten.reflection_pad1d.default",
        "replicate" => "aten.replication_pad1d.default",
        other => return cx.wrong(node, format!("padding of a signal in the mode `{other}`")),
    };
    let mut spec = cx.of(x);
    if spec.dtype.is_complex() {
        return cx.wrong(node, format!("padding of complex numbers in the mode `{mode}`"));
    }
    if let Some(size) = spec.sizes.get_mut(1) {
        *size = size.add(&Size::Int(2 * half));
    }
    let args = vec![("self", Argument::Var(x)), ("padding", Argument::ints(&[half, half]))];
    Ok(cx.emit(target, args, TensorSpec::contiguous(spec.dtype, spec.sizes)))
}

fn stft(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, want) = (cx.tensor(node, "self")?, cx.result(node)?);
    let is_complex = cx.spec(node, x)?.dtype.is_complex();
    if cx.bool(node, "align_to_window", false)? {
        return cx.wrong(node, "frames that are aligned to its window");
    }
    match cx.of(x).rank() {
        1 => x = cx.unsqueeze(node, x, 0)?,
        2 => {}
        rank => return cx.wrong(node, format!("signals of rank {rank}, which are not 1 or 2")),
    }
    let of_window = super::spectral::real_of(cx.of(x).dtype);
    let frames = Frames::of(cx, node, if is_complex { of_window } else { cx.of(x).dtype })?;
    if cx.bool(node, "center", false)? {
        x = centered(cx, node, x, frames.len)?;
    }
    let behind = usize::from(!want.dtype.is_complex());
    let Some(count) = want.rank().checked_sub(1 + behind).and_then(|dim| want.sizes.get(dim)).cloned() else {
        return cx.wrong(node, "its result has no frames");
    };
    let mut parts = framed(cx, x, (&frames, count));
    if let Some(window) = frames.window {
        parts = cx.mul(parts, window);
    }
    let onesided = cx.bool(node, "onesided", !is_complex)?;
    let scale = i64::from(frames.normalized);
    let spectrum = match cx.of(parts).dtype.is_complex() {
        true if onesided => return cx.wrong(node, "half of the spectrum of complex numbers"),
        true => complex_transform(cx, parts, &[2], (scale, true)),
        false => forward_real(cx, parts, &[2], (scale, onesided)),
    };
    let spectrum = cx.permute(spectrum, &[0, 2, 1]);
    let new = if want.dtype.is_complex() { spectrum } else { pairs_of(cx, spectrum) };
    let new = cx.view(node, new, want.sizes)?;
    cx.done(node, new)
}

/// The frames of signals: dimensions batch, frame, sample.
fn framed(cx: &mut Rewriter<'_>, x: VarId, (frames, count): (&Frames, Size)) -> VarId {
    let spec = cx.of(x);
    let args = vec![
        ("self", Argument::Var(x)),
        ("dimension", Argument::Int(1)),
        ("size", Argument::Int(frames.len as i64)),
        ("step", Argument::Int(frames.hop as i64)),
    ];
    let sizes = vec![spec.sizes[0].clone(), count, Size::Int(frames.len as i64)];
    cx.emit("aten.unfold_copy.default", args, TensorSpec::contiguous(spec.dtype, sizes))
}

/// The inverse: overlapping frames are added up and divided by the sums of the squares of their windows.
fn istft(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (mut x, want) = (cx.tensor(node, "self")?, cx.result(node)?);
    let spec = cx.spec(node, x)?;
    if !spec.dtype.is_complex() {
        return cx.wrong(node, "spectra that are not complex");
    }
    match spec.rank() {
        2 => x = cx.unsqueeze(node, x, 0)?,
        3 => {}
        rank => return cx.wrong(node, format!("spectra of rank {rank}, which are not 2 or 3")),
    }
    let real = super::spectral::real_of(spec.dtype);
    let frames = Frames::of(cx, node, real)?;
    let samples = inverse_frames(cx, node, (x, &frames), want.dtype.is_complex())?;
    let windowed = match frames.window {
        Some(window) => cx.mul(samples, window),
        None => samples,
    };
    let signal = overlapped(cx, node, windowed, &frames)?;
    let envelope = envelope(cx, node, (x, &frames), real)?;
    let start = if cx.bool(node, "center", true)? { frames.len / 2 } else { 0 };
    let (signal, envelope) = (
        cropped(cx, node, signal, (start, &want.sizes))?,
        cropped(cx, node, envelope, (start, &want.sizes))?,
    );
    let signal = cx.div(signal, envelope);
    let (have, wanted) = (cx.of(signal).sizes[1].clone(), want.sizes.last().cloned());
    let missing = match (have.known(), wanted.as_ref().and_then(Size::known)) {
        (Some(have), Some(want)) => want - have,
        _ => 0,
    };
    if missing > 0 && cx.of(signal).dtype.is_complex() {
        return cx.wrong(node, "a complex result that is longer than its frames");
    }
    let signal = cx.pad(signal, 1, (0, missing.max(0)), 0);
    let new = cx.view(node, signal, want.sizes)?;
    cx.done(node, new)
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
    backward_real(cx, node, rows, &[2], (scale, &len))
}

/// Adds up frames that are a hop apart. Each is cut into parts of the length of a hop; part `k` of a frame is added `k`
/// hops behind the frame's beginning.
fn overlapped(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, frames: &Frames) -> Result<VarId> {
    if cx.of(x).dtype.is_complex() {
        let (re, im) = (component(cx, x, 0), component(cx, x, 1));
        let (re, im) = (overlapped(cx, node, re, frames)?, overlapped(cx, node, im, frames)?);
        let mut spec = cx.of(re);
        spec.dtype = cx.of(x).dtype;
        return Ok(cx.emit(
            "aten.complex.default",
            vec![("real", Argument::Var(re)), ("imag", Argument::Var(im))],
            spec,
        ));
    }
    let spec = cx.of(x);
    let parts = frames.len.div_ceil(frames.hop);
    if parts > MAX_PARTS {
        return cx.wrong(node, format!("more than {MAX_PARTS} frames that overlap"));
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
    let Some(sum) = sum else { return cx.wrong(node, "its frames are empty") };
    let hops = count.add(&Size::Int(parts as i64 - 1));
    let whole = cx.view(node, sum, vec![batch, hops.mul(&hop)])?;
    // The last part may extend beyond the last frame.
    let end = count.add(&Size::Int(-1)).mul(&hop).add(&Size::Int(frames.len as i64));
    cx.slice(node, whole, 1, (&Size::Int(0), &end))
}

/// The sums of the squares of the windows that overlap at each sample.
fn envelope(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    (x, frames): (VarId, &Frames),
    dtype: ScalarType,
) -> Result<VarId> {
    let (count, len) = (cx.of(x).sizes[2].clone(), Size::Int(frames.len as i64));
    let square = match frames.window {
        Some(window) => {
            let square = cx.mul(window, window);
            cx.expand(node, square, vec![Size::Int(1), count, len])?
        }
        None => cx.filled(node, vec![Size::Int(1), count, len], Argument::Float(1.0), dtype)?,
    };
    overlapped(cx, node, square, frames)
}

/// The samples from `start` on, as many as the result has, if there are so many in the frames.
fn cropped(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    (start, want): (usize, &[Size]),
) -> Result<VarId> {
    let Some(count) = want.last() else { return cx.wrong(node, "its result has no samples") };
    let start = Size::Int(start as i64);
    let end = start.add(count);
    let have = cx.of(x).sizes[1].clone();
    let end = match (end.known(), have.known()) {
        (Some(end), Some(have)) => Size::Int(end.min(have)),
        _ => end,
    };
    cx.slice(node, x, 1, (&start, &end))
}
