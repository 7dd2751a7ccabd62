//! Copies in which the source coordinate along each of the last dimensions is a function of the
//! destination coordinate: reflection padding, nearest-neighbour resampling.

use crate::support::layout::Layout;
use crate::support::rows::{by_size, expect_type, write_rows};
use operator::{KernelContext, Result};
use tensor::{TensorView, TensorViewMut};

/// Maps `(k, i)`, coordinate `i` of the out along the `k`th mapped dimension, to the source coordinate.
pub(crate) type Map<'f> = &'f dyn Fn(usize, usize) -> usize;

/// Fills `out`, whose sizes must be set, from `x`. The last `mapped` dimensions (one to three) go through
/// `map`, the others are equal. A mapped dimension of `x` may be empty only if that of `out` is.
pub(crate) fn remap(
    ctx: &KernelContext<'_>,
    x: &TensorView<'_>,
    out: &mut TensorViewMut<'_>,
    mapped: usize,
    map: Map<'_>,
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
    tables.fill(0);
    let (a, rest) = tables.split_at_mut(extents[0]);
    let (b, c) = rest.split_at_mut(extents[1]);
    for (k, table) in [a, b, c].into_iter().enumerate().skip(3 - mapped) {
        let d = first + k - (3 - mapped);
        let stride = x.strides()[d];
        for (i, at) in table.iter_mut().enumerate() {
            let from = map(d - first, i);
            debug_assert!(from < x.sizes()[d]);
            *at = (from * stride) as u64;
        }
    }
    let (a, rest) = tables.split_at(extents[0]);
    let (b, c) = rest.split_at(extents[1]);
    let outer = (first..x.rank()).rev().fold(Layout::of(x.meta()), |l, d| l.select(d, 0)).walk();
    let size = x.dtype().size();
    let plane = extents[1] * extents[2] * extents[0];
    write_rows(ctx, out, |to| {
        by_size!(size, E => {
            let from: &[E] = bytemuck::cast_slice(x.bytes());
            let to: &mut [E] = bytemuck::cast_slice_mut(to);
            ctx.pool().parallel_chunks_mut(to, plane, (1 << 15) / plane.min(1 << 15), &|p, plane| {
                let base = outer.at(p);
                let mut rows = plane.chunks_exact_mut(c.len());
                for &a in a {
                    for &b in b {
                        let from = &from[base + (a + b) as usize..];
                        if let Some(row) = rows.next() {
                            row.iter_mut().zip(c).for_each(|(to, &c)| *to = from[c as usize]);
                        }
                    }
                }
            });
        });
        Ok(())
    })
}
