//! Tiles with AMX-INT8: 32 rows by two panels. The compiler does not support its intrinsics yet: they are written out
//! as instructions.

use super::super::isa::Feature;
use super::pack::PANEL;
use super::tile::{Args, MAX_ROWS, MAX_STEP, Microkernel, SegmentLimits};
use std::arch::asm;

/// The number of bytes of a row that a step reads, if the length of groups is a multiple of it.
const STEP: usize = MAX_STEP;
/// The number of rows of a tile.
const ROWS: usize = MAX_ROWS;
/// The number of rows of half a tile.
const HALF_ROWS: usize = ROWS / 2;
/// The number of rows of the smallest product that fills tiles well enough.
const MIN_ROWS: usize = 8;

pub(super) struct Amx;

impl Microkernel for Amx {
    fn feature(&self) -> Option<Feature> {
        Some(Feature::Amx)
    }
    fn relative_time(&self) -> usize {
        1
    }
    fn panels(&self) -> [usize; 2] {
        [2, 2]
    }
    fn rows_written(&self, _: usize) -> usize {
        ROWS
    }
    fn row_step(&self, _: usize) -> usize {
        2 * PANEL
    }
    fn half_rows(&self) -> Option<usize> {
        Some(HALF_ROWS)
    }
    fn reads_four_bits(&self, _: usize) -> bool {
        false
    }
    fn is_efficient(&self, m: usize, k: usize, group: usize) -> bool {
        m >= MIN_ROWS && k > STEP / 2 && (group >= k || group.is_multiple_of(STEP / 2))
    }
    fn segment_limits(&self) -> Option<SegmentLimits> {
        Some(SegmentLimits {
            unit: STEP,
            pixels: HALF_ROWS,
            min_utilization: 0.75,
            min_columns: 32,
            min_len: 32,
        })
    }
    unsafe fn set_up(&self, group: usize) -> usize {
        let ends_at_step = group.is_multiple_of(STEP);
        let (config, step) = if ends_at_step { (&WHOLE, STEP) } else { (&HALF, STEP / 2) };
        // SAFETY: AMX is available, and the configuration is one that it supports.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly, preserves_flags));
        }
        step
    }
    unsafe fn release(&self) {
        // SAFETY: AMX is available.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
    unsafe fn run(&self, step: usize, args: &mut Args<'_>) {
        // SAFETY: as the caller promises.
        unsafe { compute_tiles(step, args) }
    }
}

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight tiles of 16 rows of 64 bytes: four for sums, two for A and two for B. Smaller steps have smaller A and B tiles.
const fn tile_config(step: usize) -> Config {
    let mut config =
        Config { palette: 1, start_row: 0, reserved: [0; 14], row_bytes: [0; 16], rows: [0; 16] };
    let mut i = 0;
    while i < 8 {
        config.row_bytes[i] = if i == 4 || i == 5 { step as u16 } else { 64 };
        config.rows[i] = if i < 6 { 16 } else { step as u8 / 4 };
        i += 1;
    }
    config
}

/// Tile configurations for steps of [`STEP`] and of half as much, for groups that do not end at a whole step.
static WHOLE: Config = tile_config(STEP);
static HALF: Config = tile_config(STEP / 2);

/// The sums of 32 rows by two panels for each group; those past `args.rows` and `args.panels` are unspecified.
///
/// # Safety
/// The tiles are configured for steps of `step` bytes of A, and [`Args`] were checked.
unsafe fn compute_tiles(step: usize, args: &mut Args<'_>) {
    if args.k == 0 {
        return args.sums.fill(0);
    }
    for g in 0..args.groups {
        // SAFETY: as the caller promises.
        unsafe {
            match step {
                STEP => multiply_group::<STEP, { STEP * PANEL }>(args, g),
                _ => multiply_group::<{ STEP / 2 }, { STEP / 2 * PANEL }>(args, g),
            }
        };
    }
}

/// Operands of the tile loop that do not change within a row segment.
#[repr(C)]
struct Rows {
    /// The first row.
    first: *const u8,
    /// The number of bytes from the first row to the second half of the rows.
    low: usize,
    /// The number of steps of a segment.
    steps: usize,
    /// The end of the list of segments.
    end: *const usize,
}

/// # Safety
/// As for [`compute_tiles`], and `group` is below `args.groups`. The tiles are configured for steps of `STEP_A` bytes of A
/// and `STEP_B` of B.
#[inline(always)]
unsafe fn multiply_group<const STEP_A: usize, const STEP_B: usize>(args: &mut Args<'_>, group: usize) {
    let b = args.b.as_ptr().wrapping_add(group * args.k * PANEL);
    let sums = args.sums.as_mut_ptr().wrapping_add(group * args.group_step);
    // Where the second half of the rows or the second panel is missing, the first is computed in its place.
    let right = if args.panels > 1 { b.wrapping_add(args.b_step) } else { b };
    let segments = args.segments.as_ptr_range();
    let rows = Rows {
        first: args.a.as_ptr().wrapping_add(group * args.k),
        low: if args.rows > HALF_ROWS { args.low } else { 0 },
        steps: args.k.div_ceil(STEP_A),
        end: segments.end,
    };
    // SAFETY: each step of each segment reads its bytes of 16 rows from `a` and `low`, and 16 times as many from `b`
    // and `right`; the sums fill 32 rows of 128 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "mov {a}, [{segment}]",
            "add {a}, [{rows}]",
            "mov {low}, [{rows} + 8]",
            "add {low}, {a}",
            "mov {steps}, [{rows} + 16]",
            "3:",
            "tileloadd tmm4, [{a} + {a_step}*1]",
            "tileloadd tmm6, [{b} + {line}*1]",
            "tdpbusd tmm0, tmm4, tmm6",
            "tileloadd tmm7, [{right} + {line}*1]",
            "tdpbusd tmm1, tmm4, tmm7",
            "tileloadd tmm5, [{low} + {a_step}*1]",
            "tdpbusd tmm2, tmm5, tmm6",
            "tdpbusd tmm3, tmm5, tmm7",
            "add {a}, {next}",
            "add {low}, {next}",
            "add {b}, {next_b}",
            "add {right}, {next_b}",
            "dec {steps}",
            "jnz 3b",
            "add {segment}, 8",
            "cmp {segment}, [{rows} + 24]",
            "jne 2b",
            "tilestored [{c} + {line}*2], tmm0",
            "tilestored [{c} + {line}*2 + 64], tmm1",
            "tilestored [{c} + {line}*2 + 2048], tmm2",
            "tilestored [{c} + {line}*2 + 2112], tmm3",
            a = out(reg) _,
            low = out(reg) _,
            steps = out(reg) _,
            a_step = in(reg) args.a_step,
            b = inout(reg) b => _,
            right = inout(reg) right => _,
            segment = inout(reg) segments.start => _,
            rows = in(reg) &raw const rows,
            line = in(reg) 64usize,
            c = in(reg) sums,
            next = const STEP_A,
            next_b = const STEP_B,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
