//! The tile of a product: sums of a few rows of A by a few panels of B, and the ways to compute it.

use super::super::isa::Isa;
#[cfg(target_arch = "x86_64")]
use super::super::isa::Level;
use super::super::mat::last_of;
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

    /// The fastest for a level that reads rows in pieces.
    pub(crate) fn of_pieces(isa: Isa) -> Path {
        Self::available(isa).filter(|path| !path.is_amx()).last().unwrap_or(Path(Kind::Portable))
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
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub(crate) fn for_shape(self, m: usize, k: usize, group: usize) -> Path {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx
                if m < AMX_ROWS
                    || k <= AMX_STEP / 2
                    || (group < k && !group.is_multiple_of(AMX_STEP / 2)) =>
            {
                Path(Kind::Avx512Vnni)
            }
            _ => self,
        }
    }

    pub(crate) fn is_amx(self) -> bool {
        #[cfg(target_arch = "x86_64")]
        return self.0 == Kind::Amx;
        #[cfg(not(target_arch = "x86_64"))]
        false
    }

    /// Sums from one row of a tile of so many panels to the next.
    pub(super) fn step(self, panels: usize) -> usize {
        if self.is_amx() { 2 * PANEL } else { panels * PANEL }
    }

    /// The rows of which tiles below each other, of so many rows in all, write sums.
    pub(super) fn rows_written(self, rows: usize) -> usize {
        match self.0 {
            Kind::Portable => rows,
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => AMX_TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            _ => rows - rows % self.tile_rows() + super::x86::rows_written(rows % self.tile_rows()),
        }
    }

    /// Multiplications, counted as those of the fastest path that take as long.
    pub(super) fn work(self, multiplications: usize) -> usize {
        let slower = match self.0 {
            Kind::Portable => 64,
            #[cfg(target_arch = "x86_64")]
            Kind::MultiplyAdd => 16,
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => 8,
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => 3,
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => 1,
        };
        multiplications.saturating_mul(slower)
    }

    /// Rows of the largest tile.
    #[cfg(target_arch = "x86_64")]
    fn tile_rows(self) -> usize {
        match self.0 {
            Kind::MultiplyAdd => super::x86::MULTIPLY_ADD_ROWS,
            Kind::AvxVnni => super::x86::AVX_VNNI_ROWS,
            Kind::Amx => AMX_TILE_ROWS,
            Kind::Avx512Vnni => super::x86::AVX512_VNNI_ROWS,
            Kind::Portable => 8,
        }
    }

    /// The panels that tiles take at once, of blocks of `rows` rows of which `panels` panels are left.
    pub(super) fn panels(self, rows: usize, panels: usize) -> usize {
        let (one, several) = match self.0 {
            Kind::Portable => (1, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::MultiplyAdd => (2, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::AvxVnni => (2, 1),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512Vnni => (4, 2),
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => (2, 2),
        };
        let at_once = if rows == 1 { one } else { several };
        if panels >= at_once { at_once } else { 1 }
    }
}

/// Rows from which on tiles of AMX are full enough.
#[cfg(target_arch = "x86_64")]
const AMX_ROWS: usize = 8;
/// Rows of a tile of AMX.
#[cfg(target_arch = "x86_64")]
const AMX_TILE_ROWS: usize = 32;
/// Rows of a half of it, which may lie anywhere.
pub(super) const AMX_HALF: usize = 16;
/// Bytes of a row that a step of AMX takes.
pub(crate) const AMX_STEP: usize = 64;
/// Rows past the last that a tile may read.
pub(super) const ROWS_READ: usize = 32;

/// The operands of tiles below each other. Rows of A and panels of B go on past the end of what counts, to the tile's step and to as
/// many rows as the path takes at once.
pub(super) struct Args<'a> {
    pub(super) a: &'a [u8],
    /// Bytes from one row of A to the next.
    pub(super) a_step: usize,
    /// Bytes from the first row of A to the 17th, for AMX.
    pub(super) low: usize,
    /// Where the pieces of a row of A begin, each of `k` elements. B goes on from piece to piece with the next block.
    pub(super) pieces: &'a [usize],
    pub(super) b: &'a [u8],
    /// Bytes from one panel of B to the next.
    pub(super) b_step: usize,
    pub(super) k: usize,
    /// Groups that follow each other in A and B, of `k` elements each, and sums from one to the next. Of more than one, a
    /// row of A has one piece, and `k` is a multiple of a step; for AMX it is, too, of several pieces.
    pub(super) groups: usize,
    pub(super) group_step: usize,
    /// Whether B is of 4-bit values: the sums come out 16 times as great.
    pub(super) four: bool,
    pub(super) rows: usize,
    pub(super) panels: usize,
    /// Room for the rows that the path [writes](Path::rows_written), which may be more than those that count.
    pub(super) sums: &'a mut [i32],
}

impl Args<'_> {
    /// The tile from a row on, of at most so many rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tile(&mut self, row: usize, most: usize) -> Args<'_> {
        let sums = &mut self.sums[row * self.panels * PANEL..];
        Args { a: &self.a[row * self.a_step..], rows: (self.rows - row).min(most), sums, ..*self }
    }

    /// Sums from one row of the tile to the next.
    fn step(&self, path: Path) -> usize {
        path.step(self.panels)
    }

    /// Panics unless every byte is there that the path reads, and room for the sums that it writes.
    fn check(&self, ready: &Ready) {
        let path = ready.path;
        let (rows, low, unit) = match path.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => {
                assert!(!self.four && self.rows <= AMX_TILE_ROWS && self.panels <= 2, "a tile of AMX");
                (AMX_HALF, if self.rows > AMX_HALF { self.low } else { 0 }, ready.amx_step())
            }
            _ => (path.rows_written(self.rows), 0, if self.four { 8 } else { 4 }),
        };
        let k = self.k.next_multiple_of(unit);
        assert!(!path.is_amx() || k == self.k || self.pieces.len() == 1, "pieces of a row of AMX");
        assert!(self.groups == 1 || self.groups > 1 && k == self.k && self.pieces == [0], "groups of a tile");
        let k = k.saturating_mul(self.groups);
        assert!(!self.pieces.is_empty(), "pieces of a row");
        let piece = self.pieces.iter().max().unwrap_or(&0).saturating_add(k).saturating_add(low);
        assert!(last_of(rows, self.a_step).saturating_add(piece) <= self.a.len() || k == 0, "A of a tile");
        let panel = k.saturating_mul(self.pieces.len()) * PANEL / if self.four { 2 } else { 1 };
        assert!(
            last_of(self.panels, self.b_step).saturating_add(panel) <= self.b.len() || k == 0,
            "B of a tile"
        );
        let rows = path.rows_written(self.rows);
        let sums = last_of(self.groups, self.group_step).saturating_add(rows.saturating_mul(self.step(path)));
        assert!(sums <= self.sums.len(), "sums of a tile");
    }
}

/// A path on a thread that is ready to take it.
pub(super) struct Ready {
    path: Path,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<super::amx::Tiles>,
}

impl Path {
    /// Makes this thread ready for the path, for groups of so many rows of B.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub(super) fn ready(self, group: usize) -> Ready {
        Ready {
            path: self,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: a path by AMX exists only where it is available.
            tiles: self.is_amx().then(|| unsafe { super::amx::Tiles::configure(group) }),
        }
    }
}

impl Ready {
    pub(super) fn path(&self) -> Path {
        self.path
    }

    /// Bytes of a row that a step of AMX takes.
    #[cfg(target_arch = "x86_64")]
    fn amx_step(&self) -> usize {
        self.tiles.as_ref().map_or(AMX_STEP, |tiles| tiles.step())
    }

    /// Computes the sums of tiles below each other, of as many panels as [`Path::panels`] gives; by AMX of one.
    ///
    /// # Panics
    /// If the path has no tile of so many panels, or operands do not reach as far as it reads.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_unsafe))]
    pub(super) fn run(&self, args: &mut Args<'_>) {
        args.check(self);
        // SAFETY: `check` holds for the path, which proves that the machine has its instructions; the tiles of
        // AMX are configured while this value lives, on the thread that it cannot leave.
        unsafe {
            match self.path.0 {
                Kind::Portable => portable(args),
                #[cfg(target_arch = "x86_64")]
                Kind::MultiplyAdd => super::x86::multiply_add(args),
                #[cfg(target_arch = "x86_64")]
                Kind::AvxVnni => super::x86::avx_vnni(args),
                #[cfg(target_arch = "x86_64")]
                Kind::Avx512Vnni => super::x86::avx512_vnni(args),
                #[cfg(target_arch = "x86_64")]
                Kind::Amx => match &self.tiles {
                    Some(tiles) => super::amx::tile(tiles, args),
                    None => unreachable!("tiles that are not configured"),
                },
            }
        }
    }
}

fn portable(args: &mut Args<'_>) {
    for (g, r) in (0..args.groups).flat_map(|g| (0..args.rows).map(move |r| (g, r))) {
        for p in 0..args.panels {
            let mut sums = [0i32; PANEL];
            let mut add = |k: usize, block: &[u8; 64], number: fn(u8) -> i32| {
                let a = &args.a[r * args.a_step + g * args.k + k..][..4];
                for (sum, b) in sums.iter_mut().zip(block.as_chunks::<4>().0) {
                    for t in 0..4 {
                        *sum += i32::from(a[t]) * number(b[t]);
                    }
                }
            };
            let rows = if args.four { 8 } else { 4 };
            let ks = args.pieces.iter().flat_map(|piece| (0..args.k).step_by(rows).map(move |k| piece + k));
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
