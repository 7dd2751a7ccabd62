//! Copies in which the source coordinate along each of the last dimensions is a function of the
//! destination coordinate: reflection padding, nearest-neighbour resampling.

use crate::support::layout::Layout;
use crate::support::rows::{by_size, expect_type, write_bytes};
use pteron_operator::{KernelContext, Result};
use pteron_tensor::{TensorView, TensorViewMut};
use std::ops::Range;

/// Maps `(k, i)`, coordinate `i` of the out along the `k`th mapped dimension, to the source coordinate.
pub(crate) type Map<'f> = &'f dyn Fn(usize, usize) -> usize;

/// Fills `out`, whose sizes must be set, from `x`. The last `mapped` dimensions (one to three) go through
/// `map`, the others are equal. A mapped dimension of `x` may be empty only if that of `out` is. Along the last
/// dimension, successive coordinates in `run` are mapped to successive coordinates.
pub(crate) fn remap(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    out: &mut TensorViewMut<'_>,
    mapped: usize,
    map: Map<'_>,
    run: Range<usize>,
) -> Result<()> {
    expect_type("out", x.dtype(), out.dtype())?;
    if out.numel() == 0 {
        return Ok(());
    }
    let first = out.rank() - mapped;
    let sizes = *out.sizes();
    // The mapped dimensions padded to three, and a table of source offsets for each.
    let mut extents = [1; 3];
    extents[3 - mapped..].copy_from_slice(&sizes[first..]);
    let mut tables = ctx.scratch::<u64>(extents.iter().sum())?;
    let (a, rest) = tables.split_at_mut(extents[0]);
    let (b, c) = rest.split_at_mut(extents[1]);
    // Dimensions that are not mapped have one coordinate.
    (a[0], b[0]) = (0, 0);
    // Runs of elements that are adjacent in the source are copied whole, and need no table but for their start.
    let run = if x.strides()[out.rank() - 1] == 1 { run } else { 0..0 };
    let after_start = if run.is_empty() { 0..0 } else { run.start + 1..run.end };
    for (k, table) in [a, b, c].into_iter().enumerate().skip(3 - mapped) {
        let d = first + k - (3 - mapped);
        let stride = x.strides()[d];
        let skipped = if k == 2 { after_start.clone() } else { 0..0 };
        for i in (0..skipped.start).chain(skipped.end..table.len()) {
            let at = &mut table[i];
            let from = map(d - first, i);
            debug_assert!(from < x.sizes()[d]);
            *at = (from * stride) as u64;
        }
    }
    let (a, rest) = tables.split_at(extents[0]);
    let (b, c) = rest.split_at(extents[1]);
    let outer = (first..x.rank()).rev().fold(Layout::of_tensor(x.meta()), |l, d| l.select(d, 0)).walk();
    let size = x.dtype().size();
    let plane = extents[1] * extents[2] * extents[0];
    write_bytes(ctx, out, |to| {
        by_size!(size, E => {
            let from: &[E] = bytemuck::cast_slice(x.bytes());
            let to: &mut [E] = bytemuck::cast_slice_mut(to);
            ctx.pool().parallel_chunks_mut(to, plane, (1 << 15) / plane.min(1 << 15), &|p, plane| {
                let base = outer.offset_at(p);
                let mut rows = plane.chunks_exact_mut(c.len());
                for &a in a {
                    for &b in b {
                        let from = &from[base + (a + b) as usize..];
                        let Some(row) = rows.next() else { continue };
                        let each = |(to, &c): (&mut E, &u64)| *to = from[c as usize];
                        row[..run.start].iter_mut().zip(c).for_each(each);
                        if let Some(&start) = c[run.clone()].first() {
                            row[run.clone()].copy_from_slice(&from[start as usize..][..run.len()]);
                        }
                        row[run.end..].iter_mut().zip(&c[run.end..]).for_each(each);
                    }
                }
            });
        });
        Ok(())
    })
}
