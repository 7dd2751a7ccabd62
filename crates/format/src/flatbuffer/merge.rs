use super::layout::{FieldKind, Layout};
use super::raw::{Raw, RawTable, RawVector};
use super::survey::{Survey, merge_ranges};
use super::{Finished, Path};
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// The alignment of appended tables and vectors, in bytes, relative to the start of the buffer.
const APPENDED: usize = 8;

/// The maximum number of lost parts that are listed.
const MAX_LOST: usize = 64;

/// The old flatbuffer, patched to have the new contents, and what it lost.
#[derive(Debug)]
pub(crate) struct Merged {
    pub(crate) bytes: Vec<u8>,
    /// The paths at which undeclared parts could not be kept.
    pub(crate) lost: Vec<String>,
}

/// Patches the flatbuffer `old` so that its declared fields have the values of `new`, which was written from scratch by
/// the same schema, and everything else stays as it is.
///
/// Scalars are overwritten. New strings, vectors and tables are appended, and the offset that refers to the old ones is
/// redirected. A table whose fields come or go gets a vtable of its own. A table for whose new fields there is no room
/// is appended as a whole: then its undeclared fields are lost, because nothing says which of them are offsets. What
/// nothing refers to any more is overwritten with zeros.
///
/// `opaque` are the indices of entries of the root's vector `opaque_field` that `new` does not have; they stay as they
/// are. `header` are the bytes between identifier and tables. `None` if `old` is malformed or too large.
pub(crate) fn merge(
    old: &[u8],
    new: &Finished,
    layout: &'static Layout,
    (opaque_field, opaque): (&'static str, &[usize]),
    header: Range<usize>,
) -> Option<Merged> {
    let survey = Survey::new(old, layout, header.clone());
    let mut merger = Merger {
        old: Raw(old),
        new: Raw(&new.bytes),
        out: old.to_vec(),
        survey: &survey,
        alignment: new.alignment.max(APPENDED),
        opaque_field,
        opaque,
        vtables: HashMap::new(),
        lost: Vec::new(),
    };
    let (from, to) = (merger.old.follow(0)?, merger.new.follow(0)?);
    if let Fate::Moves(at) = merger.merge_table(from, to, layout, &Path::ROOT)? {
        merger.set_offset(0, at)?;
    }
    let Merger { mut out, mut lost, .. } = merger;
    let more = lost.len().saturating_sub(MAX_LOST);
    lost.truncate(MAX_LOST);
    if more > 0 {
        lost.push(format!("{more} more unknown fields"));
    }
    out.resize(out.len().next_multiple_of(APPENDED), 0);
    i32::try_from(out.len()).ok()?;
    erase_unused(&mut out, &survey, layout, header);
    Some(Merged { bytes: out, lost })
}

/// Zeroes the bytes that declared fields referred to in `before` and that no field refers to any more.
fn erase_unused(out: &mut [u8], before: &Survey, layout: &'static Layout, header: Range<usize>) {
    let now = Survey::new(out, layout, header);
    let mut suspects = now.suspects.clone();
    suspects.sort_unstable();
    let in_use =
        merge_ranges(now.covered.iter().chain(&before.uncovered_ranges(out.len())).cloned().collect());
    let mut next = 0;
    for range in &before.covered {
        let mut at = range.start;
        while next < in_use.len() && in_use[next].end <= at {
            next += 1;
        }
        let mut scan = next;
        while at < range.end {
            let (free, resume) = match in_use.get(scan) {
                Some(used) if used.start < range.end => (at..used.start.max(at), used.end.max(at)),
                _ => (at..range.end, range.end),
            };
            let first = suspects.partition_point(|&suspect| suspect < free.start);
            if suspects.get(first).is_none_or(|&suspect| suspect >= free.end) {
                out[free].fill(0);
            }
            at = resume;
            scan += 1;
        }
    }
}

impl Survey {
    /// The byte ranges to which no declared field refers; they may belong to undeclared fields.
    fn uncovered_ranges(&self, len: usize) -> Vec<Range<usize>> {
        let mut at = 0;
        let mut ranges = Vec::new();
        for range in self.covered.iter().cloned().chain(std::iter::once(len..len)) {
            ranges.push(at..range.start.max(at));
            at = range.end;
        }
        ranges
    }
}

/// What became of a table or vector.
enum Fate {
    Stays,
    /// The table or vector was copied to this position, after the old buffer.
    Moves(usize),
}

struct Merger<'a> {
    old: Raw<'a>,
    new: Raw<'a>,
    /// The patched old buffer, followed by appended data. Positions in the old buffer keep their meaning.
    out: Vec<u8>,
    survey: &'a Survey,
    /// Alignment of bulk bytes in the buffer, in bytes.
    alignment: usize,
    opaque_field: &'static str,
    opaque: &'a [usize],
    /// Positions of the appended vtables, by the bytes of the vtable.
    vtables: HashMap<Vec<u8>, usize>,
    lost: Vec<String>,
}

impl Merger<'_> {
    /// Patches the old table `from` so that its declared fields equal those of the new table `to`.
    fn merge_table(
        &mut self,
        from: usize,
        to: usize,
        layout: &'static Layout,
        path: &Path<'_>,
    ) -> Option<Fate> {
        if self.survey.shared.contains(&from) {
            return match self.is_same_table(from, to, layout) {
                true => Some(Fate::Stays),
                false => self.replace_table(from, to, layout, path),
            };
        }
        let (old, new) = (self.old.table(from)?, self.new.table(to)?);
        let Some(room) = self.find_room(old, new, layout) else {
            return self.replace_table(from, to, layout, path);
        };
        for &(id, at) in &room.removed {
            self.record_removed(layout.0[id], at, path)?;
        }
        self.make_room(old, &room, layout)?;
        for (id, &(name, kind)) in layout.0.iter().enumerate() {
            let added = room.added.iter().find(|(added, _)| *added == id).map(|&(_, at)| at);
            let Some(at) = added.or_else(|| self.old.field(old, id, kind.size())) else { continue };
            if room.removed.iter().any(|&(removed, _)| removed == id) {
                continue;
            }
            if !self.merge_field((old, new), id, (name, kind), (at, added.is_none()), path)? {
                return self.replace_table(from, to, layout, path);
            }
        }
        Some(Fate::Stays)
    }

    /// Records the undeclared parts of a removed field as lost.
    fn record_removed(
        &mut self,
        (name, kind): (&'static str, FieldKind),
        at: usize,
        path: &Path<'_>,
    ) -> Option<()> {
        let path = path.field(name);
        match kind {
            FieldKind::Table(layout) => {
                let from = self.old.follow(at)?;
                self.lost.extend(Survey::of_subtree(self.old, from, layout, &path).unknown);
            }
            FieldKind::Tables(layout) => {
                let vector = self.old.vector(self.old.follow(at)?, 4)?;
                self.record_removed_entries(vector, layout, &path, |_| true)?;
            }
            _ => {}
        }
        Some(())
    }

    /// Records the undeclared parts of removed vector entries as lost.
    fn record_removed_entries(
        &mut self,
        old: RawVector,
        layout: &'static Layout,
        path: &Path<'_>,
        is_lost: impl Fn(usize) -> bool,
    ) -> Option<()> {
        for index in 0..old.count {
            let from = self.old.follow(old.start + 4 * index)?;
            if is_lost(from) {
                self.lost.extend(Survey::of_subtree(self.old, from, layout, &path.index(index)).unknown);
            }
        }
        Some(())
    }

    /// Sets field `id` of a table; `at` is the position in the table that is reserved for it, and `had` whether the old table has the
    /// field. Returns false if the table must be replaced.
    fn merge_field(
        &mut self,
        (old, new): (RawTable, RawTable),
        id: usize,
        (name, kind): (&'static str, FieldKind),
        (at, had): (usize, bool),
        path: &Path<'_>,
    ) -> Option<bool> {
        let source = self.new.field(new, id, kind.size());
        let path = path.field(name);
        match kind {
            FieldKind::Scalar(size) => {
                let value = source.map_or(&[0; 8][..size], |at| &self.new.0[at..at + size]);
                self.out[at..at + size].copy_from_slice(value);
            }
            FieldKind::Member => {}
            FieldKind::Union(members) => {
                let kind_of = |raw: Raw<'_>, at: Option<usize>| at.map_or(0, |at| usize::from(raw.0[at]));
                let member = kind_of(self.new, source);
                if !had || member != kind_of(self.old, Some(at)) {
                    return Some(false);
                }
                let Some(layout) = members.get(member.wrapping_sub(1)) else { return Some(member == 0) };
                let slot = self.old.field(old, id + 1, 4)?;
                let to = self.new.follow(self.new.field(new, id + 1, 4)?)?;
                let fate = self.merge_table(self.old.follow(slot)?, to, layout, &path)?;
                self.apply_fate(slot, fate)?;
            }
            FieldKind::Table(layout) => {
                let Some(to) = source.and_then(|at| self.new.follow(at)) else { return Some(true) };
                let fate = match self.old.follow(at).filter(|_| had) {
                    Some(from) => self.merge_table(from, to, layout, &path)?,
                    None => Fate::Moves(self.copy_table(to, layout)?),
                };
                self.apply_fate(at, fate)?;
            }
            FieldKind::Tables(layout) => {
                let Some(to) = source.and_then(|at| self.new.follow(at)) else { return Some(true) };
                let fate = match self.old.follow(at).filter(|_| had) {
                    Some(from) => self.merge_tables(from, to, layout, (name, &path))?,
                    None => Fate::Moves(self.copy_tables(to, layout)?),
                };
                self.apply_fate(at, fate)?;
            }
            FieldKind::Text | FieldKind::Scalars(_) | FieldKind::Bulk => {
                let Some(to) = source.and_then(|at| self.new.follow(at)) else { return Some(true) };
                let size = if let FieldKind::Scalars(size) = kind { size } else { 1 };
                let value = self.new.contents(to, size)?;
                let before = self.old.follow(at).filter(|_| had);
                if before.and_then(|from| self.old.contents(from, size)) != Some(value) {
                    let copied = self.copy_contents(to, kind)?;
                    self.set_offset(at, copied)?;
                }
            }
        }
        Some(true)
    }

    /// Patches the old vector of tables `from` to equal the new vector `to`; `name` is the field that holds it.
    fn merge_tables(
        &mut self,
        from: usize,
        to: usize,
        layout: &'static Layout,
        (name, path): (&'static str, &Path<'_>),
    ) -> Option<Fate> {
        let (old, new) = (self.old.vector(from, 4)?, self.new.vector(to, 4)?);
        let opaque = if name == self.opaque_field { self.opaque } else { &[] };
        let entries: Vec<usize> = (0..old.count).filter(|index| !opaque.contains(index)).collect();
        if self.survey.shared.contains(&from) && !self.are_same_tables(from, to, layout) {
            return self.replace_tables(old, to, layout, path);
        }
        if entries.len() == new.count {
            for (index, &entry) in entries.iter().enumerate() {
                let slot = old.start + 4 * entry;
                let target = self.new.follow(new.start + 4 * index)?;
                let fate = self.merge_table(self.old.follow(slot)?, target, layout, &path.index(entry))?;
                self.apply_fate(slot, fate)?;
            }
            return Some(Fate::Stays);
        }
        if !opaque.is_empty() {
            return None;
        }
        match self.match_subsequence(old, new, layout) {
            Some(positions) => {
                let still: HashSet<usize> = positions.iter().copied().collect();
                self.record_removed_entries(old, layout, path, |entry| !still.contains(&entry))?;
                self.shorten_vector(from, old, &positions)
            }
            None => self.replace_tables(old, to, layout, path),
        }
    }

    /// The buffer positions of the old entries that equal the new ones; `None` if the new vector is no subsequence of
    /// the old.
    fn match_subsequence(
        &self,
        old: RawVector,
        new: RawVector,
        layout: &'static Layout,
    ) -> Option<Vec<usize>> {
        let mut positions = Vec::new();
        let mut next = 0;
        for index in 0..new.count {
            let to = self.new.follow(new.start + 4 * index)?;
            loop {
                if next >= old.count {
                    return None;
                }
                let from = self.old.follow(old.start + 4 * next)?;
                next += 1;
                if self.is_same_table(from, to, layout) {
                    positions.push(from);
                    break;
                }
            }
        }
        Some(positions)
    }

    /// Shortens a vector in place to its entries at the buffer positions `positions`.
    fn shorten_vector(&mut self, from: usize, old: RawVector, positions: &[usize]) -> Option<Fate> {
        self.out[from..from + 4].copy_from_slice(&u32::try_from(positions.len()).ok()?.to_le_bytes());
        self.out[old.start..old.start + 4 * old.count].fill(0);
        for (index, &target) in positions.iter().enumerate() {
            self.set_offset(old.start + 4 * index, target)?;
        }
        Some(Fate::Stays)
    }

    fn replace_table(
        &mut self,
        from: usize,
        to: usize,
        layout: &'static Layout,
        path: &Path<'_>,
    ) -> Option<Fate> {
        self.lost.extend(Survey::of_subtree(self.old, from, layout, path).unknown);
        Some(Fate::Moves(self.copy_table(to, layout)?))
    }

    fn replace_tables(
        &mut self,
        old: RawVector,
        to: usize,
        layout: &'static Layout,
        path: &Path<'_>,
    ) -> Option<Fate> {
        self.record_removed_entries(old, layout, path, |_| true)?;
        Some(Fate::Moves(self.copy_tables(to, layout)?))
    }

    fn apply_fate(&mut self, slot: usize, fate: Fate) -> Option<()> {
        match fate {
            Fate::Stays => Some(()),
            Fate::Moves(at) => self.set_offset(slot, at),
        }
    }

    /// Makes the offset at `slot` refer to `target`.
    fn set_offset(&mut self, slot: usize, target: usize) -> Option<()> {
        let offset = u32::try_from(target.checked_sub(slot)?).ok()?;
        self.out[slot..slot + 4].copy_from_slice(&offset.to_le_bytes());
        Some(())
    }
}

/// How an old table stores the fields that only the new table has.
struct Room {
    /// The ids of the added fields, and their positions in the buffer, which reuse the space of removed fields.
    added: Vec<(usize, usize)>,
    /// The ids of the removed fields, and the positions that they had in the buffer.
    removed: Vec<(usize, usize)>,
}

impl Merger<'_> {
    /// Finds room in a table for the fields that only the new one has; `None` if there is not enough.
    fn find_room(&self, old: RawTable, new: RawTable, layout: &'static Layout) -> Option<Room> {
        let (mut missing, mut removed, mut free) = (Vec::new(), Vec::new(), Vec::new());
        for (id, &(_, kind)) in layout.0.iter().enumerate() {
            let size = kind.size();
            let is_blank = self.new.is_default(new, id, kind);
            match self.old.field(old, id, size) {
                None if is_blank => {}
                None => missing.push((id, size)),
                Some(at) if matches!(kind, FieldKind::Scalar(_)) => {
                    free.extend(is_blank.then_some((id, at, size)));
                }
                Some(at)
                    if self.new.field(new, id, size).is_none() && !self.old.is_default(old, id, kind) =>
                {
                    removed.push((id, at));
                    free.push((id, at, size));
                }
                Some(_) => {}
            }
        }
        let mut added = Vec::new();
        for (id, size) in missing {
            let index = free.iter().position(|&(_, at, room)| room >= size && at.is_multiple_of(size))?;
            let (gone, at, _) = free.swap_remove(index);
            removed.push((gone, at));
            added.push((id, at));
        }
        removed.sort_unstable();
        removed.dedup();
        Some(Room { added, removed })
    }

    /// Gives a table a vtable with the fields that `room` adds, and without those that it removes.
    fn make_room(&mut self, old: RawTable, room: &Room, layout: &'static Layout) -> Option<()> {
        if room.added.is_empty() && room.removed.is_empty() {
            return Some(());
        }
        let mut vtable = self.old.0[old.vtable..old.vtable + old.vtable_len].to_vec();
        for &(id, at) in &room.removed {
            let size = layout.0[id].1.size();
            self.out[at..at + size].fill(0);
        }
        let changes = room.removed.iter().map(|&(id, _)| (id, 0)).chain(room.added.iter().copied());
        for (id, at) in changes {
            let slot = 4 + 2 * id;
            vtable.resize(vtable.len().max(slot + 2), 0);
            let offset = u16::try_from(if at == 0 { 0 } else { at - old.at }).ok()?;
            vtable[slot..slot + 2].copy_from_slice(&offset.to_le_bytes());
        }
        let len = u16::try_from(vtable.len()).ok()?;
        vtable[..2].copy_from_slice(&len.to_le_bytes());
        let vtable = self.append_vtable(vtable);
        self.set_vtable(old.at, vtable)
    }

    fn set_vtable(&mut self, table: usize, vtable: usize) -> Option<()> {
        let back = i32::try_from(table as i64 - vtable as i64).ok()?;
        self.out[table..table + 4].copy_from_slice(&back.to_le_bytes());
        Some(())
    }

    fn append_vtable(&mut self, vtable: Vec<u8>) -> usize {
        if let Some(&at) = self.vtables.get(&vtable) {
            return at;
        }
        let at = self.append(&vtable, 0, 4);
        self.vtables.insert(vtable, at);
        at
    }

    /// Appends bytes at a position that equals `like` modulo `alignment`.
    fn append(&mut self, bytes: &[u8], like: usize, alignment: usize) -> usize {
        let at = self.out.len() + (like + alignment - self.out.len() % alignment) % alignment;
        self.out.resize(at, 0);
        self.out.extend_from_slice(bytes);
        at
    }

    /// Appends a copy of a new table and of everything that it refers to.
    fn copy_table(&mut self, to: usize, layout: &'static Layout) -> Option<usize> {
        let table = self.new.table(to)?;
        let vtable = self.new.slice(table.vtable..table.vtable + table.vtable_len)?.to_vec();
        let vtable = self.append_vtable(vtable);
        let new = self.new;
        let at = self.append(new.slice(to..to + table.len)?, to % APPENDED, APPENDED);
        self.set_vtable(at, vtable)?;
        for (id, &(_, kind)) in layout.0.iter().enumerate() {
            let Some(field) = new.field(table, id, kind.size()) else { continue };
            let (slot, copied) = match kind {
                FieldKind::Scalar(_) | FieldKind::Member => continue,
                FieldKind::Union(members) => {
                    let layout = members.get(usize::from(new.0[field]).wrapping_sub(1))?;
                    let member = new.field(table, id + 1, 4)?;
                    (member, self.copy_table(new.follow(member)?, layout)?)
                }
                FieldKind::Table(layout) => (field, self.copy_table(new.follow(field)?, layout)?),
                FieldKind::Tables(layout) => (field, self.copy_tables(new.follow(field)?, layout)?),
                FieldKind::Text | FieldKind::Scalars(_) | FieldKind::Bulk => {
                    (field, self.copy_contents(new.follow(field)?, kind)?)
                }
            };
            self.set_offset(at + (slot - to), copied)?;
        }
        Some(at)
    }

    fn copy_tables(&mut self, to: usize, layout: &'static Layout) -> Option<usize> {
        let new = self.new;
        let vector = new.vector(to, 4)?;
        let at = self.append(new.slice(to..vector.start + 4 * vector.count)?, 0, 4);
        for index in 0..vector.count {
            let copied = self.copy_table(new.follow(vector.start + 4 * index)?, layout)?;
            self.set_offset(at + 4 + 4 * index, copied)?;
        }
        Some(at)
    }

    /// Appends a copy of a new string or vector of scalars.
    fn copy_contents(&mut self, to: usize, kind: FieldKind) -> Option<usize> {
        let (size, end, alignment) = match kind {
            FieldKind::Text => (1, 1, 4),
            FieldKind::Scalars(size) => (size, 0, APPENDED),
            _ => (1, 0, self.alignment),
        };
        let new = self.new;
        let vector = new.vector(to, size)?;
        let bytes = new.slice(to..vector.start + vector.count * size + end)?;
        Some(self.append(bytes, to % alignment, alignment))
    }

    /// Whether an old and a new table have equal declared fields.
    fn is_same_table(&self, from: usize, to: usize, layout: &'static Layout) -> bool {
        let (Some(old), Some(new)) = (self.old.table(from), self.new.table(to)) else { return false };
        layout.0.iter().enumerate().all(|(id, &(_, kind))| {
            let blank = (self.old.is_default(old, id, kind), self.new.is_default(new, id, kind));
            if blank != (false, false) {
                return blank == (true, true);
            }
            self.is_same_field((old, new), id, kind).unwrap_or(false)
        })
    }

    fn is_same_field(&self, (old, new): (RawTable, RawTable), id: usize, kind: FieldKind) -> Option<bool> {
        let size = kind.size();
        let (from, to) = (self.old.field(old, id, size)?, self.new.field(new, id, size)?);
        let targets = || Some((self.old.follow(from)?, self.new.follow(to)?));
        Some(match kind {
            FieldKind::Scalar(_) => self.old.0[from..from + size] == self.new.0[to..to + size],
            FieldKind::Member => true,
            FieldKind::Union(members) => {
                let layout = members.get(usize::from(self.new.0[to]).wrapping_sub(1))?;
                let (from_table, to_table) =
                    (self.old.field(old, id + 1, 4)?, self.new.field(new, id + 1, 4)?);
                self.old.0[from] == self.new.0[to]
                    && self.is_same_table(self.old.follow(from_table)?, self.new.follow(to_table)?, layout)
            }
            FieldKind::Table(layout) => {
                let (from, to) = targets()?;
                self.is_same_table(from, to, layout)
            }
            FieldKind::Tables(layout) => {
                let (from, to) = targets()?;
                self.are_same_tables(from, to, layout)
            }
            FieldKind::Text | FieldKind::Scalars(_) | FieldKind::Bulk => {
                let size = if let FieldKind::Scalars(size) = kind { size } else { 1 };
                let (from, to) = targets()?;
                self.old.contents(from, size) == self.new.contents(to, size)
            }
        })
    }

    fn are_same_tables(&self, from: usize, to: usize, layout: &'static Layout) -> bool {
        let (Some(old), Some(new)) = (self.old.vector(from, 4), self.new.vector(to, 4)) else { return false };
        old.count == new.count
            && (0..old.count).all(|index| {
                let from = self.old.follow(old.start + 4 * index);
                let to = self.new.follow(new.start + 4 * index);
                from.zip(to).is_some_and(|(from, to)| self.is_same_table(from, to, layout))
            })
    }
}
