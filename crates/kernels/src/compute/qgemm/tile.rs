//! The tile of a product: sums of a few rows of A by a few panels of B, and the ways to compute it.

use super::super::isa::{Isa, Level};
use super::epilogue::MAX_TILE;
use super::pack::PANEL;

/// A way to compute tiles. There is none for what the machine lacks: [`Path::available`] is the only
/// source of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Path(pub(super) Kind);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Portable,
    #[cfg(target_arch = "x86_64")]
    MultiplyAdd,
    #[cfg(target_arch = "x86_64")]
    AvxVnni,
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    Amx,
}

impl Path {
    /// The fastest for a level.
    pub(crate) fn of(isa: Isa) -> Path {
        Self::available(isa).last().unwrap_or(Path(Kind::Portable))
    }

    /// Those that a level may take on this machine, slowest first.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn available(isa: Isa) -> impl Iterator<Item = Path> {
        let level = isa.level();
        let avx2 = level >= Level::Avx2;
        let all = [
            (Kind::Portable, true),
            (Kind::MultiplyAdd, avx2),
            (Kind::AvxVnni, avx2 && is_x86_feature_detected!("avxvnni")),
            (Kind::Avx512Vnni, isa.vnni()),
            (Kind::Amx, isa.vnni() && super::amx::is_available()),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(kind, _)| Path(kind))
    }

    /// Those that a level may take on this machine, slowest first.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn available(_: Isa) -> impl Iterator<Item = Path> {
        [Path(Kind::Portable)].into_iter()
    }

    /// The path for products of `m` rows and groups of `group` of `k`: of few rows, tiles of AMX stay empty.
    pub(crate) fn for_shape(self, m: usize, k: usize, group: usize) -> Path {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx
                if m < AMX_ROWS || k <= AMX_STEP / 2 || (group < k && !group.is_multiple_of(AMX_STEP)) =>
            {
                Path(Kind::Avx512Vnni)
            }
            _ => self,
        }
    }

    pub(super) fn is_amx(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// The rows and panels of the tile for `rows` rows of which `panels` panels are left.
    pub(super) fn shape(self, rows: usize, panels: usize) -> (usize, usize) {
        let (most, one, several) = match self.0 {
            Kind::Portable => (8, 1, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::MultiplyAdd => (2, 2, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => (4, 2, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => (8, 4, 2),
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => (32, 2, 2),
        };
        let rows = rows.min(most);
        let at_once = if rows == 1 { one } else { several };
        (rows, if panels >= at_once { at_once } else { 1 })
    }
}

/// Rows from which on tiles of AMX are full enough.
#[cfg(target_arch = "x86_64")]
const AMX_ROWS: usize = 8;
/// Bytes of a row that a step of AMX takes.
pub(super) const AMX_STEP: usize = 64;
/// Rows past the last that a tile may read.
pub(super) const ROWS_READ: usize = 32;

/// A tile's operands. Whoever makes one vouches that they are there: `k` bytes of `rows` rows of A, rounded
/// up to the tile's step and to as many rows as the tile has ([`ROWS_READ`] are enough), and `k` rows of
/// `panels` panels of B, rounded up likewise.
#[derive(Clone, Copy)]
pub(super) struct Args {
    pub(super) a: *const u8,
    /// Bytes from one row of A to the next.
    pub(super) a_step: usize,
    pub(super) b: *const u8,
    /// Bytes from one panel of B to the next.
    pub(super) b_step: usize,
    pub(super) k: usize,
    /// Whether B is of 4-bit numbers: the sums come out 16 times as great.
    pub(super) four: bool,
    pub(super) rows: usize,
    pub(super) panels: usize,
    /// Room for [`MAX_TILE`] sums.
    pub(super) sums: *mut i32,
}

impl Args {
    /// Sums from one row of the tile to the next.
    pub(super) fn step(&self, path: Path) -> usize {
        if path.is_amx() { 2 * PANEL } else { self.panels * PANEL }
    }
}

/// Computes the sums of a tile of a shape that [`Path::shape`] gives.
///
/// # Safety
/// The promise of [`Args`] holds.
pub(super) unsafe fn run(path: Path, args: &Args) {
    debug_assert!(args.rows * args.step(path) <= MAX_TILE);
    // SAFETY: as the caller promises; a path proves that the machine has its instructions.
    unsafe {
        match path.0 {
            Kind::Portable => portable(args),
            #[cfg(target_arch = "x86_64")]
            Kind::MultiplyAdd => super::x86::multiply_add(args),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => super::x86::avx_vnni(args),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => super::x86::avx512_vnni(args),
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => super::amx::tile(args),
        }
    }
}

/// # Safety
/// The promise of [`Args`] holds.
unsafe fn portable(args: &Args) {
    for r in 0..args.rows {
        for p in 0..args.panels {
            let mut sums = [0i32; PANEL];
            let mut add = |k: usize, block: &[u8; 64], number: fn(u8) -> i32| {
                // SAFETY: A has `k` bytes in each row, rounded up to a block's rows.
                let a = unsafe { args.a.add(r * args.a_step + k).cast::<[u8; 4]>().read() };
                for (sum, b) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
                    for t in 0..4 {
                        *sum += i32::from(a[t]) * number(b[t]);
                    }
                }
            };
            let rows = if args.four { 8 } else { 4 };
            for (i, k) in (0..args.k).step_by(rows).enumerate() {
                // SAFETY: B has `k` rows, rounded up to those of a block.
                let block = unsafe { &*args.b.add(p * args.b_step + i * 64).cast::<[u8; 64]>() };
                if args.four {
                    add(k, block, |x| i32::from((x << 4) as i8));
                    add(k + 4, block, |x| i32::from((x & 0xf0) as i8));
                } else {
                    add(k, block, |x| i32::from(x as i8));
                }
            }
            let to = args.sums.wrapping_add((r * args.panels + p) * PANEL);
            // SAFETY: there is room for every tile.
            unsafe { to.cast::<[i32; PANEL]>().write_unaligned(sums) };
        }
    }
}
