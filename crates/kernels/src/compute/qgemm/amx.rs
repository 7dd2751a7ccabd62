//! Tiles with AMX-INT8. The compiler does not support its intrinsics yet: they are written out as instructions.

use super::pack::PANEL;
use super::tile::{AMX_STEP, Args};
use std::arch::asm;
use std::marker::PhantomData;

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight tiles of 16 rows of 64 bytes: four for sums, two for A and two for B, which are smaller for smaller steps.
const fn config(step: usize) -> Config {
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

/// Configurations for steps of [`AMX_STEP`] and of half as much, for groups that do not end at a whole step.
static WHOLE: Config = config(AMX_STEP);
static HALF: Config = config(AMX_STEP / 2);

/// The AMX tiles of this thread, configured while this value lives for steps of `step` bytes of a row. Not `Send`.
pub(super) struct Tiles {
    step: usize,
    not_send: PhantomData<*const ()>,
}

impl Tiles {
    /// Configures the tiles for rows whose groups have `group` bytes.
    ///
    /// # Safety
    /// The machine has AMX-INT8, and the system lets this process use it.
    pub(super) unsafe fn configure(group: usize) -> Self {
        let whole = group.is_multiple_of(AMX_STEP);
        let (config, step) = if whole { (&WHOLE, AMX_STEP) } else { (&HALF, AMX_STEP / 2) };
        // SAFETY: AMX is available, and the configuration is one that it supports.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly, preserves_flags));
        }
        Self { step, not_send: PhantomData }
    }

    /// Bytes of a row that a step takes.
    pub(super) fn step(&self) -> usize {
        self.step
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a value of this type exists only where AMX is available.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// The sums of 32 rows by two panels for each group; those past `args.rows` and `args.panels` are unspecified.
///
/// # Safety
/// [`Args`] were checked, and B has 8-bit values.
pub(super) unsafe fn tile(tiles: &Tiles, args: &mut Args<'_>) {
    if args.k == 0 {
        return args.sums.fill(0);
    }
    for g in 0..args.groups {
        // SAFETY: as the caller promises.
        unsafe {
            match tiles.step {
                AMX_STEP => group::<AMX_STEP, { AMX_STEP * PANEL }>(args, g),
                _ => group::<{ AMX_STEP / 2 }, { AMX_STEP / 2 * PANEL }>(args, g),
            }
        };
    }
}

/// Operands of the tile loop that do not change within a row segment.
#[repr(C)]
struct Rows {
    /// The first row.
    first: *const u8,
    /// Bytes from there to the second half of the rows.
    low: usize,
    /// Steps of a segment.
    steps: usize,
    /// The end of the list of segments.
    end: *const usize,
}

/// # Safety
/// As for [`tile`], and `group` is below `args.groups`. The tiles are configured for steps of `STEP` bytes of A and
/// `STEP_B` of B.
#[inline(always)]
unsafe fn group<const STEP: usize, const STEP_B: usize>(args: &mut Args<'_>, group: usize) {
    let b = args.b.as_ptr().wrapping_add(group * args.k * PANEL);
    let sums = args.sums.as_mut_ptr().wrapping_add(group * args.group_step);
    // Where the second half of the rows or the second panel is missing, the first is computed in its place.
    let right = if args.panels > 1 { b.wrapping_add(args.b_step) } else { b };
    let segments = args.segments.as_ptr_range();
    let rows = Rows {
        first: args.a.as_ptr().wrapping_add(group * args.k),
        low: if args.rows > 16 { args.low } else { 0 },
        steps: args.k.div_ceil(STEP),
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
            next = const STEP,
            next_b = const STEP_B,
            out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
            out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _,
            options(nostack),
        );
    }
}
