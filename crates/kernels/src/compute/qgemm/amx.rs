//! Tiles by AMX-INT8. The compiler has neither its intrinsics nor its detection yet: both are
//! instructions written out.

use super::pack::PANEL;
use super::tile::{AMX_STEP, Args};
use std::arch::asm;
use std::arch::x86_64::{__cpuid, __cpuid_count, _xgetbv};
use std::marker::PhantomData;
use std::sync::OnceLock;

/// Whether the machine has AMX-INT8 and the system lets this process use it. Asked once.
pub(super) fn is_available() -> bool {
    static AVAILABLE: OnceLock<bool> = OnceLock::new();
    *AVAILABLE.get_or_init(|| has_instructions() && permitted())
}

/// Whether the processor has AMX-INT8 and the system keeps its state.
pub(super) fn has_instructions() -> bool {
    const TILE: u32 = 1 << 24;
    const INT8: u32 = 1 << 25;
    const OSXSAVE: u32 = 1 << 27;
    const TILE_STATE: u64 = 3 << 17;
    if __cpuid(0).eax < 7 || __cpuid(1).ecx & OSXSAVE == 0 {
        return false;
    }
    // SAFETY: OSXSAVE says that the instruction is there.
    let state = unsafe { xgetbv() };
    __cpuid_count(7, 0).edx & (TILE | INT8) == TILE | INT8 && state & TILE_STATE == TILE_STATE
}

/// # Safety
/// The processor has XSAVE, switched on by the system.
#[target_feature(enable = "xsave")]
unsafe fn xgetbv() -> u64 {
    // SAFETY: as the caller promises.
    unsafe { _xgetbv(0) }
}

/// Asks the system for the state of the tiles, which it saves only for processes that asked.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: u64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XTILEDATA: u64 = 18;
    let result: i64;
    // SAFETY: this call changes nothing but what the process may use.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") ARCH_PRCTL => result,
            in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XTILEDATA,
            out("rcx") _,
            out("r11") _,
            options(nostack),
        );
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

#[repr(C, align(64))]
struct Config {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Eight tiles of 16 rows of 64 bytes: four of sums, two of A and two of B, of which a step may take fewer.
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

/// For steps of [`AMX_STEP`], and of half as much, for groups that end there.
static WHOLE: Config = config(AMX_STEP);
static HALF: Config = config(AMX_STEP / 2);

/// The tiles of this thread, configured while it lives for steps of so many bytes of a row. It cannot be sent to another.
pub(super) struct Tiles {
    step: usize,
    here: PhantomData<*const ()>,
}

impl Tiles {
    /// For rows whose groups have so many bytes.
    ///
    /// # Safety
    /// [`is_available`].
    pub(super) unsafe fn configure(group: usize) -> Self {
        let whole = group.is_multiple_of(AMX_STEP);
        let (config, step) = if whole { (&WHOLE, AMX_STEP) } else { (&HALF, AMX_STEP / 2) };
        // SAFETY: AMX is there, and the configuration is one that it has.
        unsafe {
            asm!("ldtilecfg [{}]", in(reg) config, options(nostack, readonly, preserves_flags));
        }
        Self { step, here: PhantomData }
    }

    /// Bytes of a row that a step takes.
    pub(super) fn step(&self) -> usize {
        self.step
    }
}

impl Drop for Tiles {
    fn drop(&mut self) {
        // SAFETY: a value of this type is made only where AMX is there.
        unsafe { asm!("tilerelease", options(nostack, preserves_flags)) };
    }
}

/// The sums of 32 rows by two panels, those past `args.rows` and `args.panels` undefined, for each group.
///
/// # Safety
/// [`Args`] were checked, and numbers of B are of 8 bits.
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

/// What is read once for a piece of a row.
#[repr(C)]
struct Rows {
    /// Where the rows begin.
    first: *const u8,
    /// Bytes from there to the second half of them.
    low: usize,
    /// Steps of a piece.
    steps: usize,
    /// The end of the pieces.
    end: *const usize,
}

/// # Safety
/// As [`tile`], which has so many groups. The tiles are configured for steps of `STEP` bytes, for which B has `STEP_B`.
#[inline(always)]
unsafe fn group<const STEP: usize, const STEP_B: usize>(args: &mut Args<'_>, group: usize) {
    let b = args.b.as_ptr().wrapping_add(group * args.k * PANEL);
    let sums = args.sums.as_mut_ptr().wrapping_add(group * args.group_step);
    // Tiles of rows or panels that are missing are computed from those that are present.
    let right = if args.panels > 1 { b.wrapping_add(args.b_step) } else { b };
    let pieces = args.pieces.as_ptr_range();
    let rows = Rows {
        first: args.a.as_ptr().wrapping_add(group * args.k),
        low: if args.rows > 16 { args.low } else { 0 },
        steps: args.k.div_ceil(STEP),
        end: pieces.end,
    };
    // SAFETY: each step of each piece reads its bytes of 16 rows from `a` and `low`, and 16 times as many of `b` and
    // `right`; the sums fill 32 rows of 128 bytes.
    unsafe {
        asm!(
            "tilezero tmm0",
            "tilezero tmm1",
            "tilezero tmm2",
            "tilezero tmm3",
            "2:",
            "mov {a}, [{piece}]",
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
            "add {piece}, 8",
            "cmp {piece}, [{rows} + 24]",
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
            piece = inout(reg) pieces.start => _,
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
