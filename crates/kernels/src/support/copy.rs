//! Copies between layouts, on which all shape operators are built.

use crate::compute::{self, Isa, MatMut, MatRef};
use crate::support::layout::Layout;
use pteron_operator::{Args, Error, Outs, Result, ensure};
use pteron_tensor::{TensorView, TensorViewMut};
use smallvec::SmallVec;

/// The number of bytes that are moved or filled between two checks of the interrupt handle.
pub(crate) const PIECE: usize = 1 << 18;

/// Copies a view of argument 0 to the first out; `view` derives the view's layout from the argument's.
pub(crate) fn copy_view(
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    view: impl FnOnce(Layout) -> Result<Layout>,
) -> Result<()> {
    let from = args.tensor(0)?;
    let layout = view(Layout::of_tensor(from.meta()))?;
    copy_to(&from, &layout, outs.tensor(0)?)
}

/// Resizes `out` to the sizes of a view of `from` and copies the view.
pub(crate) fn copy_to(from: &TensorView<'_>, view: &Layout, out: &mut TensorViewMut<'_>) -> Result<()> {
    out.resize(&view.sizes)?;
    let into = Layout::of_tensor(out.meta());
    copy_into(from, view, out, &into)
}

/// Copies a view of `from` to a view of `out` of the same type and number of elements, both in
/// row-major order.
pub(crate) fn copy_into(
    from: &TensorView<'_>,
    view: &Layout,
    out: &mut TensorViewMut<'_>,
    into: &Layout,
) -> Result<()> {
    ensure!(
        from.dtype() == out.dtype(),
        "out: expected a tensor of {}, as the input is, found {}",
        from.dtype(),
        out.dtype()
    );
    let size = from.dtype().size();
    copy_bytes(size, from.bytes(), view, out.bytes_mut(), into)
}

/// Copies elements of `size` bytes from one layout to another with the same number of elements, both in
/// row-major order. Elements of `into` must not overlap.
pub(crate) fn copy_bytes(
    size: usize,
    src: &[u8],
    from: &Layout,
    dst: &mut [u8],
    into: &Layout,
) -> Result<()> {
    let (numel, same_sizes) = (from.numel()?, from.sizes == into.sizes);
    ensure!(
        same_sizes || numel == into.numel()?,
        "a tensor of shape {} has another number of elements than one of shape {}",
        from.sizes,
        into.sizes
    );
    pteron_pool::count(numel);
    if numel == 0 {
        return Ok(());
    }
    if !same_sizes
        && let (Some(a), Some(b)) = (from.walk().contiguous_start(), into.walk().contiguous_start())
    {
        copy_dense(&src[a * size..(a + numel) * size], &mut dst[b * size..(b + numel) * size]);
        return Ok(());
    }
    match size {
        1 => copy_elements::<1>(src, from, dst, into),
        2 => copy_elements::<2>(src, from, dst, into),
        4 => copy_elements::<4>(src, from, dst, into),
        8 => copy_elements::<8>(src, from, dst, into),
        16 => copy_elements::<16>(src, from, dst, into),
        _ => return Err(Error::invalid(format!("elements of {size} bytes cannot be copied"))),
    }
    Ok(())
}

/// Copies bytes, with checks of the interrupt handle.
fn copy_dense(src: &[u8], dst: &mut [u8]) {
    for (dst, src) in dst.chunks_mut(PIECE).zip(src.chunks(PIECE)) {
        dst.copy_from_slice(src);
        pteron_pool::progress(src.len());
    }
}

/// A loop of a copy: the trip count and the strides of both sides, in elements unless [`Loop::in_bytes`] made it.
#[derive(Clone, Copy)]
struct Loop {
    size: usize,
    from: isize,
    into: isize,
}

impl Loop {
    /// The loop with strides in bytes, for elements of `size` bytes.
    fn in_bytes(self, size: usize) -> Self {
        let size = size as isize;
        Self { from: self.from * size, into: self.into * size, ..self }
    }
}

/// Copies runs of `len` bytes. Short runs of a common length are copied in registers: a call of `memcpy` takes as long
/// as copying some hundred bytes.
fn copy_runs(src: &[u8], a: usize, dst: &mut [u8], b: usize, len: usize, runs: Loop) {
    match len {
        4 => copy_short_runs::<4>(src, a, dst, b, runs),
        8 => copy_short_runs::<8>(src, a, dst, b, runs),
        16 => copy_short_runs::<16>(src, a, dst, b, runs),
        32 => copy_short_runs::<32>(src, a, dst, b, runs),
        64 => copy_short_runs::<64>(src, a, dst, b, runs),
        _ => {
            let (mut a, mut b) = (a as isize, b as isize);
            for _ in 0..runs.size {
                dst[b as usize..][..len].copy_from_slice(&src[a as usize..][..len]);
                a += runs.from;
                b += runs.into;
            }
        }
    }
}

fn copy_short_runs<const N: usize>(src: &[u8], a: usize, dst: &mut [u8], b: usize, runs: Loop) {
    // Chunks that are known to be long enough are not checked one by one. The last run may end before its chunk.
    if let (Ok(from), Ok(into), Some(last)) =
        (usize::try_from(runs.from), usize::try_from(runs.into), runs.size.checked_sub(1))
        && from.min(into) >= N
    {
        let from_chunks = src[a..a + last * from].chunks_exact(from);
        for (to, from) in dst[b..b + last * into].chunks_exact_mut(into).zip(from_chunks) {
            to[..N].copy_from_slice(&from[..N]);
        }
        dst[b + last * into..][..N].copy_from_slice(&src[a + last * from..][..N]);
        return;
    }
    let (mut a, mut b) = (a as isize, b as isize);
    for _ in 0..runs.size {
        let run: [u8; N] = src[a as usize..][..N].try_into().unwrap_or([0; N]);
        dst[b as usize..][..N].copy_from_slice(&run);
        a += runs.from;
        b += runs.into;
    }
}

/// Copies two loops as a matrix transposition, in squares that are transposed in registers. Returns `false` and copies
/// nothing unless the source is contiguous along `across` and the destination along `inner`, the other strides are not
/// negative, and both loops have at least four iterations.
fn transpose(src: &[f32], a: isize, dst: &mut [f32], b: isize, inner: Loop, across: Loop) -> bool {
    const SQUARE: usize = 16;
    let steps = [inner.from, across.into].map(usize::try_from);
    let (1, 1, [Ok(from), Ok(into)]) = (across.from, inner.into, steps) else { return false };
    if inner.size < 4 || across.size < 4 {
        return false;
    }
    let band = (LINE / across.size).next_multiple_of(SQUARE).max(SQUARE);
    for first in (0..inner.size).step_by(band) {
        let rows = band.min(inner.size - first);
        let source = MatRef::strided(&src[a as usize + first * from..], rows, across.size, from, 1);
        let target = MatMut::strided(&mut dst[b as usize + first..], rows, across.size, 1, into);
        compute::copy(Isa::detect(), source, target);
        pteron_pool::progress(rows * across.size);
    }
    true
}

fn copy_elements<const S: usize>(src: &[u8], from: &Layout, dst: &mut [u8], into: &Layout) {
    let src: &[[u8; S]] = bytemuck::cast_slice(src);
    let dst: &mut [[u8; S]] = bytemuck::cast_slice_mut(dst);
    let view;
    let (from, into) = if from.sizes == into.sizes {
        (from, into)
    } else if let Some(reshaped) = from.reshape(&into.sizes) {
        view = reshaped;
        (&view, into)
    } else if let Some(reshaped) = into.reshape(&from.sizes) {
        view = reshaped;
        (from, &view)
    } else {
        let (a, b) = (from.walk(), into.walk());
        let numel = from.sizes.iter().product();
        for i in 0..numel {
            dst[b.offset_at(i)] = src[a.offset_at(i)];
            if i.is_multiple_of(LINE) {
                pteron_pool::progress(LINE);
            }
        }
        return;
    };
    let mut loops: SmallVec<[Loop; 8]> = SmallVec::new();
    for ((&size, &from), &into) in from.sizes.iter().zip(from.strides()).zip(into.strides()) {
        if size != 1 {
            loops.push(Loop { size, from, into });
        }
    }
    // The loop with the smallest destination stride becomes the innermost, that is, the last.
    loops.sort_by_key(|l| std::cmp::Reverse(l.into.unsigned_abs()));
    merge_loops(&mut loops);
    let (mut a, mut b) = (from.offset as isize, into.offset as isize);
    let Some(inner) = loops.pop() else {
        dst[b as usize] = src[a as usize];
        return;
    };
    if let (Loop { size, from: 1, into: 1 }, true) = (inner, loops.is_empty()) {
        let (from, to) = (&src[a as usize..][..size], &mut dst[b as usize..][..size]);
        return copy_dense(bytemuck::cast_slice(from), bytemuck::cast_slice_mut(to));
    }
    // A loop along which the source is contiguous is tiled together with the innermost one.
    let across = match loops.iter().rposition(|l| l.from == 1) {
        Some(i) if inner.from != 1 => loops.remove(i),
        _ => Loop { size: 1, from: 0, into: 0 },
    };
    // Runs of elements that are contiguous on both sides are copied as bytes, together with the loop around them.
    let runs = match (inner.from, inner.into) {
        (1, 1) if inner.size <= LINE => Some(loops.pop().unwrap_or(Loop { size: 1, from: 0, into: 0 })),
        _ => None,
    };
    let mut index: SmallVec<[usize; 8]> = SmallVec::from_elem(0, loops.len());
    let mut done = 0;
    loop {
        if let Some(runs) = runs {
            let (src, dst) = (bytemuck::cast_slice(src), bytemuck::cast_slice_mut(dst));
            let most = (LINE / inner.size).max(1);
            for first in (0..runs.size).step_by(most) {
                let part = Loop { size: most.min(runs.size - first), ..runs };
                let at = |start: isize, step: isize| (start + first as isize * step) as usize * S;
                let (a, b) = (at(a, runs.from), at(b, runs.into));
                copy_runs(src, a, dst, b, inner.size * S, part.in_bytes(S));
                done += inner.size * part.size;
                if done >= LINE {
                    pteron_pool::progress(done);
                    done = 0;
                }
            }
        } else {
            let words = (bytemuck::try_cast_slice(src), bytemuck::try_cast_slice_mut(dst));
            let is_done = match words {
                (Ok(src), Ok(dst)) if S == size_of::<f32>() => transpose(src, a, dst, b, inner, across),
                _ => false,
            };
            if !is_done {
                copy_tiles(src, a, dst, b, inner, across);
            }
            done += inner.size * across.size;
        }
        if done >= LINE {
            pteron_pool::progress(done);
            done = 0;
        }
        let mut d = loops.len();
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            let l = loops[d];
            index[d] += 1;
            a += l.from;
            b += l.into;
            if index[d] < l.size {
                break;
            }
            a -= l.from * l.size as isize;
            b -= l.into * l.size as isize;
            index[d] = 0;
        }
    }
}

/// Merges adjacent loops of a list, which begins with the outermost, where one loop can replace two.
fn merge_loops(loops: &mut SmallVec<[Loop; 8]>) {
    let mut i = loops.len();
    while i > 1 {
        i -= 1;
        let (outer, inner) = (loops[i - 1], loops[i]);
        let n = inner.size as isize;
        if outer.from == inner.from.wrapping_mul(n) && outer.into == inner.into.wrapping_mul(n) {
            loops[i - 1] = Loop { size: outer.size * inner.size, ..inner };
            loops.remove(i);
        }
    }
}

/// The number of elements after which a copy reports its progress, at the latest; several reports make one check of the
/// interrupt handle.
const LINE: usize = 1 << 14;

/// Copies two loops in square tiles, which stay in the cache although one side is accessed with a large stride.
fn copy_tiles<T: Copy>(src: &[T], a: isize, dst: &mut [T], b: isize, inner: Loop, across: Loop) {
    const TILE: usize = 32;
    if across.size == 1 {
        for j in (0..inner.size).step_by(LINE) {
            let (line, j) = (Loop { size: LINE.min(inner.size - j), ..inner }, j as isize);
            copy_line(src, a + j * inner.from, dst, b + j * inner.into, line);
            if inner.size > LINE {
                pteron_pool::progress(line.size);
            }
        }
        return;
    }
    let is_transposition = (across.from, inner.into) == (1, 1);
    for i in (0..across.size).step_by(TILE) {
        for j in (0..inner.size).step_by(TILE) {
            if is_transposition {
                let part = |l: Loop, at: usize| Loop { size: TILE.min(l.size - at), ..l };
                let at = |l: isize, m: isize| j as isize * l + i as isize * m;
                let (a, b) = (a + at(inner.from, 1), b + at(1, across.into));
                transpose_tile(src, a, dst, b, part(inner, j), part(across, i));
                continue;
            }
            let line = Loop { size: TILE.min(inner.size - j), ..inner };
            for i in i..(i + TILE).min(across.size) {
                let at = |l: isize, m: isize| j as isize * l + i as isize * m;
                copy_line(src, a + at(inner.from, across.from), dst, b + at(inner.into, across.into), line);
            }
        }
        if inner.size > LINE {
            pteron_pool::progress(TILE * inner.size);
        }
    }
}

/// Copies a tile whose source is contiguous along `across` and whose destination is contiguous along `inner`, in squares
/// that are read and written by rows.
fn transpose_tile<T: Copy>(src: &[T], a: isize, dst: &mut [T], b: isize, inner: Loop, across: Loop) {
    const SIDE: usize = 4;
    let tiled = (inner.size / SIDE * SIDE, across.size / SIDE * SIDE);
    for i in (0..tiled.1).step_by(SIDE) {
        for j in (0..tiled.0).step_by(SIDE) {
            let row = |k: usize| &src[(a + (j + k) as isize * inner.from) as usize + i..][..SIDE];
            let rows: [&[T]; SIDE] = std::array::from_fn(row);
            for k in 0..SIDE {
                let to = &mut dst[(b + (i + k) as isize * across.into) as usize + j..][..SIDE];
                to.iter_mut().zip(rows).for_each(|(to, row)| *to = row[k]);
            }
        }
    }
    // What is left beside the squares, and below them.
    for i in 0..across.size {
        let start = if i < tiled.1 { tiled.0 } else { 0 };
        if start == inner.size {
            continue;
        }
        let line = Loop { size: inner.size - start, ..inner };
        let from = a + start as isize * inner.from + i as isize;
        copy_line(src, from, dst, b + start as isize + i as isize * across.into, line);
    }
}

#[inline]
fn copy_line<T: Copy>(src: &[T], a: isize, dst: &mut [T], b: isize, l: Loop) {
    let (start, end) = (b as usize, b as usize + l.size);
    match (l.from, l.into) {
        (1, 1) => dst[start..end].copy_from_slice(&src[a as usize..][..l.size]),
        (0, 1) => dst[start..end].fill(src[a as usize]),
        (step, 1) => {
            let mut at = a;
            for d in &mut dst[start..end] {
                *d = src[at as usize];
                at += step;
            }
        }
        (step, to) => {
            let (mut at, mut put) = (a, b);
            for _ in 0..l.size {
                dst[put as usize] = src[at as usize];
                at += step;
                put += to;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::{DimOrder, ScalarType, Shape, TensorMeta};

    fn layout(sizes: &[usize], order: &[u8]) -> Layout {
        Layout::of_tensor(&TensorMeta::new(ScalarType::Short, sizes, DimOrder::new(order).unwrap()).unwrap())
    }

    /// Copies numbered elements and checks each against the two traversals.
    fn check(from: Layout, into: Layout, capacity: usize) {
        let src: Vec<u16> = (0..capacity as u16).collect();
        let mut dst = vec![u16::MAX; capacity];
        copy_bytes(2, bytemuck::cast_slice(&src), &from, bytemuck::cast_slice_mut(&mut dst), &into).unwrap();
        for i in 0..from.numel().unwrap() {
            assert_eq!(dst[into.walk().offset_at(i)] as usize, from.walk().offset_at(i), "element {i}");
        }
    }

    #[test]
    fn every_pair_of_layouts() {
        let orders: [&[u8]; 4] = [&[0, 1, 2, 3], &[0, 2, 3, 1], &[3, 2, 1, 0], &[1, 0, 3, 2]];
        let sizes = [2, 33, 5, 40];
        for a in orders {
            for b in orders {
                check(layout(&sizes, a), layout(&sizes, b), 13200);
            }
            check(layout(&sizes, a), layout(&[66, 200], &[1, 0]), 13200);
            check(layout(&sizes, a).flip(3).flip(1), layout(&sizes, &[0, 1, 2, 3]), 13200);
            let part = layout(&sizes, a).slice(3, 1, 20, 2).slice(1, 3, 30, 1);
            check(part, layout(&[2, 30, 5, 20], &[0, 2, 3, 1]), 13200);
        }
        // Runs of 2 to 66 elements that are contiguous on both sides.
        for n in [2, 4, 8, 16, 32, 33] {
            let of = |order: &[u8]| layout(&[3, 5, 2, n], order);
            check(of(&[0, 1, 2, 3]), of(&[1, 0, 2, 3]), 1000);
            check(of(&[2, 1, 0, 3]).flip(1).slice(0, 1, 2, 1), layout(&[2, 5, 2, n], &[0, 1, 2, 3]), 1000);
        }
        let row = layout(&[1, 40], &[0, 1]).expand(&Shape::new(&[3, 40]).unwrap()).unwrap();
        check(row, layout(&[3, 40], &[1, 0]), 120);
        check(layout(&[], &[]), layout(&[1, 1], &[0, 1]), 1);
        check(layout(&[0, 4], &[0, 1]), layout(&[4, 0], &[0, 1]), 0);
    }

    /// Like [`check`], for elements that are transposed in registers: all bit patterns, also of NaN, are preserved.
    #[test]
    fn transposition_preserves_bit_patterns() {
        for sizes in [[40, 70], [4, 4], [5, 3], [17, 1000]] {
            let numel = sizes[0] * sizes[1];
            let src: Vec<u32> =
                (0..numel as u32).map(|i| i.wrapping_mul(0x9e37_79b9) | 0x7f80_0000).collect();
            let mut dst = vec![0u32; numel];
            let (from, into) = (layout(&sizes, &[0, 1]), layout(&sizes, &[1, 0]));
            copy_bytes(4, bytemuck::cast_slice(&src), &from, bytemuck::cast_slice_mut(&mut dst), &into)
                .unwrap();
            for i in 0..numel {
                assert_eq!(dst[into.walk().offset_at(i)], src[i], "element {i} of {sizes:?}");
            }
        }
    }

    #[test]
    fn different_numbers_of_elements_are_an_error() {
        let r = copy_bytes(1, &[0; 4], &layout(&[4], &[0]), &mut [0; 3], &layout(&[3], &[0]));
        assert!(r.unwrap_err().to_string().contains("[4]"));
    }
}
