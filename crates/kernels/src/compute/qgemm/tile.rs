//! The tile of a product: sums of a few rows of A by a few panels of B, and the instruction paths that compute it.

#[cfg(target_arch = "x86_64")]
use super::super::isa::Feature;
use super::super::isa::Isa;
use super::super::mat::last_of;
use super::pack::PANEL;

/// An instruction path for tiles. [`Path::available`] is its only constructor, so that a path exists only on a
/// machine that has its instructions.
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
    /// The fastest path for a level.
    pub(crate) fn of(isa: Isa) -> Path {
        Self::available(isa).last().unwrap_or(Path(Kind::Portable))
    }

    /// The fastest path for a level that reads rows in segments of any length.
    pub(crate) fn for_segments(isa: Isa) -> Path {
        Self::available(isa).filter(|path| !path.is_amx()).last().unwrap_or(Path(Kind::Portable))
    }

    /// The paths that a level may use on this machine, slowest first.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn available(isa: Isa) -> impl Iterator<Item = Path> {
        let all = [
            (Kind::Portable, true),
            (Kind::MultiplyAdd, isa.has(Feature::Avx2)),
            (Kind::AvxVnni, isa.has(Feature::AvxVnni)),
            (Kind::Avx512Vnni, isa.has(Feature::Avx512Vnni)),
            (Kind::Amx, isa.has(Feature::Amx)),
        ];
        all.into_iter().filter(|(_, there)| *there).map(|(kind, _)| Path(kind))
    }

    /// The paths that a level may use on this machine, slowest first.
    #[cfg(not(target_arch = "x86_64"))]
    pub(crate) fn available(_: Isa) -> impl Iterator<Item = Path> {
        [Path(Kind::Portable)].into_iter()
    }

    /// The path for products of `m` rows and groups of `group` out of `k` inner elements: with few rows, AMX tiles
    /// are mostly empty.
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

    /// Sums from one row to the next in a tile of `panels` panels.
    pub(super) fn step(self, panels: usize) -> usize {
        if self.is_amx() { 2 * PANEL } else { panels * PANEL }
    }

    /// How many rows of sums are written by tiles below each other that have `rows` rows in all.
    pub(super) fn rows_written(self, rows: usize) -> usize {
        match self.0 {
            Kind::Portable => rows,
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => AMX_TILE_ROWS,
            #[cfg(target_arch = "x86_64")]
            _ => rows - rows % self.tile_rows() + super::x86::rows_written(rows % self.tile_rows()),
        }
    }

    /// The work of this many multiplications on this path, in multiplications of the fastest path that take as long.
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

    /// How many panels a tile covers, for blocks of `rows` rows if `panels` panels are left.
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

/// Rows from which on AMX tiles are full enough.
#[cfg(target_arch = "x86_64")]
const AMX_ROWS: usize = 8;
/// Rows of an AMX tile.
#[cfg(target_arch = "x86_64")]
const AMX_TILE_ROWS: usize = 32;
/// Rows of half an AMX tile. The two halves can be anywhere in memory.
pub(super) const AMX_HALF: usize = 16;
/// Bytes of a row that an AMX step takes.
pub(crate) const AMX_STEP: usize = 64;
/// Rows past the last that a tile may read.
pub(super) const ROWS_READ: usize = 32;

/// The operands of tiles below each other. Rows of A and panels of B are padded: to the step of the tile, and to as
/// many rows as the path takes at once.
pub(super) struct Args<'a> {
    pub(super) a: &'a [u8],
    /// Bytes from one row of A to the next.
    pub(super) a_step: usize,
    /// Bytes from the first row of A to the 17th, for AMX.
    pub(super) low: usize,
    /// Offsets of the segments of a row of A, of `k` elements each. Each segment goes with the next blocks of B.
    pub(super) segments: &'a [usize],
    pub(super) b: &'a [u8],
    /// Bytes from one panel of B to the next.
    pub(super) b_step: usize,
    pub(super) k: usize,
    /// Consecutive groups in A and B, of `k` elements each, and the number of sums from one group to the next. With
    /// several groups, a row of A has one segment and `k` is a multiple of a step; with several segments, AMX needs
    /// such a `k`, too.
    pub(super) groups: usize,
    pub(super) group_step: usize,
    /// Whether B has 4-bit values: the sums are then 16 times too large.
    pub(super) four: bool,
    pub(super) rows: usize,
    pub(super) panels: usize,
    /// Room for the rows that the path [writes](Path::rows_written), which may be more than `rows`.
    pub(super) sums: &'a mut [i32],
}

impl Args<'_> {
    /// The tile from `row` on, of at most `most` rows.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn tile(&mut self, row: usize, most: usize) -> Args<'_> {
        let sums = &mut self.sums[row * self.panels * PANEL..];
        Args { a: &self.a[row * self.a_step..], rows: (self.rows - row).min(most), sums, ..*self }
    }

    /// Sums from one row of the tile to the next.
    fn step(&self, path: Path) -> usize {
        path.step(self.panels)
    }

    /// Panics unless all that the path reads and the sums that it writes are in bounds.
    fn check(&self, set_up: &SetUp) {
        let path = set_up.path;
        let (rows, low, unit) = match path.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Amx => {
                assert!(!self.four && self.rows <= AMX_TILE_ROWS && self.panels <= 2, "a tile of AMX");
                (AMX_HALF, if self.rows > AMX_HALF { self.low } else { 0 }, set_up.amx_step())
            }
            _ => (path.rows_written(self.rows), 0, if self.four { 8 } else { 4 }),
        };
        let k = self.k.next_multiple_of(unit);
        assert!(!path.is_amx() || k == self.k || self.segments.len() == 1, "segments of a row of AMX");
        assert!(
            self.groups == 1 || self.groups > 1 && k == self.k && self.segments == [0],
            "groups of a tile"
        );
        let k = k.saturating_mul(self.groups);
        assert!(!self.segments.is_empty(), "segments of a row");
        let segment = self.segments.iter().max().unwrap_or(&0).saturating_add(k).saturating_add(low);
        assert!(last_of(rows, self.a_step).saturating_add(segment) <= self.a.len() || k == 0, "A of a tile");
        let panel = k.saturating_mul(self.segments.len()) * PANEL / if self.four { 2 } else { 1 };
        assert!(
            last_of(self.panels, self.b_step).saturating_add(panel) <= self.b.len() || k == 0,
            "B of a tile"
        );
        let rows = path.rows_written(self.rows);
        let sums = last_of(self.groups, self.group_step).saturating_add(rows.saturating_mul(self.step(path)));
        assert!(sums <= self.sums.len(), "sums of a tile");
    }
}

/// A path that is set up on this thread.
pub(super) struct SetUp {
    path: Path,
    #[cfg(target_arch = "x86_64")]
    tiles: Option<super::amx::Tiles>,
}

impl Path {
    /// Sets up this thread for the path, for groups of `group` rows of B.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables))]
    pub(super) fn set_up(self, group: usize) -> SetUp {
        SetUp {
            path: self,
            #[cfg(target_arch = "x86_64")]
            // SAFETY: an AMX path exists only where AMX is available.
            tiles: self.is_amx().then(|| unsafe { super::amx::Tiles::configure(group) }),
        }
    }
}

impl SetUp {
    pub(super) fn path(&self) -> Path {
        self.path
    }

    /// Bytes of a row that an AMX step takes.
    #[cfg(target_arch = "x86_64")]
    fn amx_step(&self) -> usize {
        self.tiles.as_ref().map_or(AMX_STEP, |tiles| tiles.step())
    }

    /// Computes the sums of tiles below each other, of as many panels as [`Path::panels`] gives; with AMX, of a
    /// single tile.
    ///
    /// # Panics
    /// If the path has no tile of so many panels, or operands are too short for what it reads.
    #[cfg_attr(not(target_arch = "x86_64"), expect(unused_unsafe))]
    pub(super) fn run(&self, args: &mut Args<'_>) {
        args.check(self);
        // SAFETY: `check` has passed for the path, which proves that the machine has its instructions; the AMX tiles
        // are configured while this value lives, on the thread that it cannot leave.
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
                    None => unreachable!("AMX tiles are not configured"),
                },
            }
        }
    }
}

fn portable(args: &mut Args<'_>) {
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
