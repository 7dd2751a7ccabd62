use crate::Result;
use crate::container::{Blob, Content, align_up, infer_alignments, too_long_error};
use crate::pte::{EValue, ExecutionPlan, SubsegmentOffsets, Tensor, VerifiedProgram};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The number of bytes used of each entry, by segment and entry: the most that one tensor needs. `which` gives the
/// segment and entry of a tensor.
pub(super) fn used_entries(
    plans: &[ExecutionPlan],
    which: impl Fn(&Tensor) -> Option<(u64, u32)>,
) -> HashMap<u64, HashMap<u32, u64>> {
    let mut used: HashMap<u64, HashMap<u32, u64>> = HashMap::new();
    for tensor in plans.iter().flat_map(|plan| &plan.values).filter_map(EValue::as_tensor) {
        if let Some((segment, entry)) = which(tensor) {
            let most = used.entry(segment).or_default().entry(entry).or_default();
            *most = (*most).max(tensor.nbytes().unwrap_or(0));
        }
    }
    used
}

/// A range of a segment that entries share, and the entries.
pub(super) struct Part {
    range: Range<u64>,
    entries: Vec<u32>,
}

/// Divides a segment of `size` bytes into the ranges that its entries use. An entry that no tensor uses, whose length
/// is not known, ends where the next starts. Entry 0 is a placeholder.
pub(super) fn segment_parts(offsets: &[u64], used: &HashMap<u32, u64>, size: u64) -> Vec<Part> {
    let starts: BTreeMap<u64, Vec<u32>> =
        offsets.iter().enumerate().skip(1).fold(BTreeMap::new(), |mut starts, (index, &offset)| {
            starts.entry(offset).or_insert_with(Vec::new).push(index as u32);
            starts
        });
    let mut parts: Vec<Part> = Vec::new();
    let mut next = starts.keys().skip(1).copied().chain([size]);
    for (&start, entries) in &starts {
        let until = next.next().unwrap_or(size);
        let known = entries.iter().filter_map(|entry| used.get(entry)).max();
        let all_known = entries.iter().all(|entry| used.contains_key(entry));
        let len = match known {
            Some(&len) if all_known => len,
            known => known.copied().unwrap_or(0).max(until.saturating_sub(start)),
        };
        let end = start.saturating_add(len).min(size.max(start));
        match parts.last_mut().filter(|last| start < last.range.end) {
            Some(last) => {
                last.range.end = last.range.end.max(end);
                last.entries.extend(entries);
            }
            None => parts.push(Part { range: start..end, entries: entries.clone() }),
        }
    }
    parts
}

pub(super) fn part_alignment(parts: &[Part], default: u64) -> u64 {
    let mut end = 0;
    let places: Vec<(u64, u64)> = parts
        .iter()
        .filter(|part| !part.range.is_empty())
        .map(|part| {
            let padding = part.range.start.saturating_sub(end);
            end = part.range.end;
            (padding, part.range.start)
        })
        .filter(|&(_, start)| start > 0)
        .collect();
    infer_alignments(&places, default).common
}

/// An edit of the entries of one segment: constants, or initial data.
pub(super) struct Entries<'e> {
    /// The old entries, if there are any.
    pub(super) old: Option<&'e SubsegmentOffsets>,
    /// For each entry, the number of its bytes that tensors used before the edit.
    pub(super) before: HashMap<u32, u64>,
    /// For each entry, the number of its bytes that tensors use after the edit.
    pub(super) after: HashMap<u32, u64>,
    /// The alignment of entries in bytes, unless the old entries' offsets imply another.
    pub(super) default: u64,
    /// Whether nothing except the edited entries refers to the old segment.
    pub(super) is_alone: bool,
}

impl Entries<'_> {
    /// Whether the edit removed the last use of an entry.
    pub(super) fn is_dropped(&self, entry: &u32) -> bool {
        self.before.contains_key(entry) && !self.after.contains_key(entry)
    }

    /// The entries after the edit, with `added` behind them, in a segment whose contents are replaced; `None` if
    /// nothing changed. What no tensor uses any more is dropped, and what none used before is kept. Entries keep their
    /// indices.
    pub(super) fn apply<'d>(
        self,
        added: Vec<Blob<'d>>,
        program: &VerifiedProgram,
        source: &dyn Fn(Range<u64>) -> Blob<'d>,
        contents: &mut Vec<Content<'d>>,
    ) -> Result<Option<SubsegmentOffsets>> {
        let is_dropped = |entry: &u32| self.is_dropped(entry);
        if added.is_empty() && !self.before.keys().any(is_dropped) {
            return Ok(None);
        }
        let mut offsets = self.old.map_or(Vec::new(), |old| old.offsets.clone());
        offsets.resize(offsets.len().max(1), 0);
        let segment = self.old.and_then(|old| program.segment(old.segment_index)).unwrap_or_default();
        let parts = segment_parts(&offsets, &self.before, segment.end - segment.start);
        let alignment = part_alignment(&parts, self.default);
        let mut pieces: Vec<(u64, Blob<'d>)> = Vec::new();
        let mut end = 0;
        let mut push = |pieces: &mut Vec<(u64, Blob<'d>)>, blob: Blob<'d>| -> Result<u64> {
            let start = align_up(end, alignment).ok_or_else(too_long_error)?;
            end = start.checked_add(blob.len()).ok_or_else(too_long_error)?;
            pieces.push((start, blob));
            Ok(start)
        };
        if parts.iter().all(|part| !part.entries.iter().all(is_dropped)) {
            if !segment.is_empty() {
                push(&mut pieces, source(segment))?;
            }
        } else {
            for part in parts {
                let is_kept = !part.entries.iter().all(is_dropped);
                let range = segment.start + part.range.start..segment.start + part.range.end;
                let start = if is_kept { push(&mut pieces, source(range))? } else { 0 };
                for &entry in &part.entries {
                    let offset = &mut offsets[entry as usize];
                    *offset = if is_kept { start + (*offset - part.range.start) } else { 0 };
                }
            }
        }
        while added.is_empty() && offsets.len() > 1 && is_dropped(&(offsets.len() as u32 - 1)) {
            offsets.pop();
        }
        let mut placed: HashMap<usize, u64> = HashMap::new();
        for blob in added {
            let offset = match placed.get(&blob.identity()) {
                Some(&offset) => offset,
                None => push(&mut pieces, blob.clone())?,
            };
            placed.insert(blob.identity(), offset);
            offsets.push(offset);
        }
        let blob = Blob::parts(pieces);
        let old = self.old.map(|old| old.segment_index).filter(|_| self.is_alone);
        let segment_index = match old.filter(|&index| (index as usize) < contents.len()) {
            Some(index) => {
                contents[index as usize] =
                    Content::New { blob, alignment: 1, replaces: Some(index as usize) };
                index
            }
            None => {
                contents.push(Content::new_segment(blob, 1));
                (contents.len() - 1) as u32
            }
        };
        Ok(Some(SubsegmentOffsets { segment_index, offsets }))
    }
}
