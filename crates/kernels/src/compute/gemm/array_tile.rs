//! The micro-kernel for vectors that are arrays.

use super::super::simd::Simd;
use super::args::{Args, Finish, PANEL_VECTORS, Rows};
use super::element::Element;

/// The tile as loops over arrays of lanes, which the compiler vectorizes for the target.
///
/// # Safety
/// The promise of [`Args`] holds for `MR` rows and `NP` panels, the elements of B are of type `E`, and `IN_PLACE` says
/// whether the rows of A are in place.
#[inline(always)]
pub(super) unsafe fn array_tile<
    S: Simd,
    const MR: usize,
    const NP: usize,
    const IN_PLACE: bool,
    E: Element,
>(
    s: S,
    args: &Args,
) {
    let panel = PANEL_VECTORS * S::LANES;
    let mut acc = [[[s.splat(0.0); PANEL_VECTORS]; NP]; MR];
    // Calls `body` for each vector of C: row, panel, vector, first column, address and number of columns.
    let each = |body: &mut dyn FnMut(usize, usize, usize, usize, *mut f32, usize)| {
        for i in 0..MR {
            for p in 0..NP {
                for v in 0..PANEL_VECTORS {
                    let at = p * panel + v * S::LANES;
                    let c = args.c.wrapping_add(i * args.c_step + at);
                    body(i, p, v, at, c, args.n.saturating_sub(at).min(S::LANES));
                }
            }
        }
    };
    let mut b: *const E::Stored = args.b.cast();
    let mut scales = [[s.splat(1.0); PANEL_VECTORS]; NP];
    if const { E::SCALED } {
        for (p, scales) in scales.iter_mut().enumerate() {
            for (v, scale) in scales.iter_mut().enumerate() {
                // SAFETY: there is a scale for each column of the panels.
                *scale = unsafe { s.load(args.scales.add(p * panel + v * S::LANES)) };
            }
        }
    }
    for tap in 0..args.a.tap_count() {
        let rows: [*const f32; MR] = std::array::from_fn(|i| match args.a {
            // SAFETY: there are MR pointers for each tap.
            Rows::Table(table, _) => unsafe { *table.add(tap * MR + i) },
            // SAFETY: there is an offset for each tap.
            Rows::Taps { first, step, offsets, .. } => unsafe {
                first.wrapping_add(*offsets.add(tap) + i * step)
            },
            Rows::Strided(a, step) => a.wrapping_add(i * step),
            Rows::Packed(a, _) => a.wrapping_add(i),
        });
        for k in 0..args.k {
            let at = if IN_PLACE { k } else { k * MR };
            let mut bv = [[s.splat(0.0); PANEL_VECTORS]; NP];
            for (p, bv) in bv.iter_mut().enumerate() {
                for (v, bv) in bv.iter_mut().enumerate() {
                    // SAFETY: B has k rows of NP panels.
                    *bv = unsafe { E::load(s, b.add(p * args.b_panel + v * S::LANES)) };
                    if const { E::SCALED } {
                        *bv = s.mul(*bv, scales[p][v]);
                    }
                }
            }
            for (row, acc) in rows.iter().zip(acc.iter_mut()) {
                // SAFETY: A has MR rows of k columns.
                let x = s.splat(unsafe { *row.add(at) });
                for (acc, bv) in acc.iter_mut().zip(&bv) {
                    for (acc, &bv) in acc.iter_mut().zip(bv) {
                        *acc = s.mul_add(x, bv, *acc);
                    }
                }
            }
            b = b.wrapping_add(args.b_step);
        }
    }
    if args.accumulate {
        each(&mut |i, p, v, _, c, left| {
            // SAFETY: C has MR rows of n columns; `left` of them are read.
            acc[i][p][v] = s.add(unsafe { s.load_first(c, left) }, acc[i][p][v]);
        });
    }
    each(&mut |i, p, v, at, c, left| {
        let mut lanes = [0.0f32; 16];
        // SAFETY: C has MR rows of n columns, of which `left` are written; there are as many biases.
        unsafe {
            s.store(lanes.as_mut_ptr(), acc[i][p][v]);
            for (j, &x) in lanes[..left].iter().enumerate() {
                *c.add(j) = args.register_epilogue().map_or(x, |f| apply_finish(f, x, at + j));
            }
        }
    });
}

/// The result for the sum `x` in column `j`, if the epilogue is no more than a column bias and bounds.
///
/// # Safety
/// The bias of `f` is null or has an element `j`.
#[inline(always)]
unsafe fn apply_finish(f: &Finish, mut x: f32, j: usize) -> f32 {
    if !f.col_bias.is_null() {
        // SAFETY: as the caller promises.
        x += unsafe { *f.col_bias.add(j) };
    }
    match f.bounds {
        Some((low, high)) => {
            let x = if low > x { low } else { x };
            if high < x { high } else { x }
        }
        None => x,
    }
}
