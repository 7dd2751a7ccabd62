//! Tiles in plain Rust: a row by a panel at a time.

use super::super::isa::Feature;
use super::pack::PANEL;
use super::tile::{Args, Microkernel};

pub(super) struct Portable;

impl Microkernel for Portable {
    fn feature(&self) -> Option<Feature> {
        None
    }
    fn relative_time(&self) -> usize {
        64
    }
    fn panels(&self) -> [usize; 2] {
        [1, 1]
    }
    fn rows_written(&self, rows: usize) -> usize {
        rows
    }
    unsafe fn run(&self, _: usize, args: &mut Args<'_>) {
        tiles(args);
    }
}

fn tiles(args: &mut Args<'_>) {
    for (g, r) in (0..args.groups).flat_map(|g| (0..args.rows).map(move |r| (g, r))) {
        for p in 0..args.panels {
            let mut sums = [0i32; PANEL];
            let mut add = |k: usize, block: &[u8; 64], widen: fn(u8) -> i32| {
                let a = &args.a[r * args.a_step + g * args.k + k..][..4];
                for (sum, b) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
                    for t in 0..4 {
                        *sum += i32::from(a[t]) * widen(b[t]);
                    }
                }
            };
            let rows = if args.four { 8 } else { 4 };
            let ks =
                args.segments.iter().flat_map(|segment| (0..args.k).step_by(rows).map(move |k| segment + k));
            let group = g * args.k * PANEL / if args.four { 2 } else { 1 };
            let blocks = args.b[p * args.b_step + group..].as_chunks::<64>().0;
            for (k, block) in ks.zip(blocks) {
                if args.four {
                    add(k, block, |x| i32::from((x << 4) as i8));
                    add(k + 4, block, |x| i32::from((x & 0xf0) as i8));
                } else {
                    add(k, block, |x| i32::from(x as i8));
                }
            }
            args.sums[g * args.group_step + (r * args.panels + p) * PANEL..][..PANEL].copy_from_slice(&sums);
        }
    }
}
