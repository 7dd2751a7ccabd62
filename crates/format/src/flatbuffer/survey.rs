use super::Path;
use super::layout::{FieldKind, Layout};
use super::raw::Raw;
use std::collections::HashSet;
use std::ops::Range;

/// The maximum number of unknown parts that are listed by path.
const MAX_LISTED: usize = 64;

/// What a flatbuffer contains beyond what a schema declares.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// The paths of the first fields that the schema does not declare, and of the first unions with members that it does not have; at most
    /// [`MAX_LISTED`] in all.
    pub(crate) unknown: Vec<String>,
    /// The number of unknown parts, listed or not.
    pub(crate) unknown_count: usize,
    /// The number of nonzero bytes to which no declared field refers.
    pub(crate) loose: usize,
    /// The positions of tables and vectors that several fields refer to.
    pub(super) shared: HashSet<usize>,
    /// The byte ranges of everything that declared fields refer to, sorted and disjoint.
    pub(super) covered: Vec<Range<usize>>,
    /// The positions that undeclared fields point to if they are taken for offsets.
    pub(super) suspects: Vec<usize>,
}

impl Survey {
    /// Walks all tables from the root. `header` are the bytes between identifier and tables that belong to neither.
    /// Each table is visited once, whatever refers to it.
    pub(crate) fn new(buffer: &[u8], layout: &'static Layout, header: Range<usize>) -> Self {
        let raw = Raw(buffer);
        let mut walker =
            Walker { raw, visited: HashSet::new(), seen: HashSet::new(), survey: Self::default() };
        walker.cover(0..8);
        walker.cover(header);
        if let Some(root) = raw.follow(0) {
            walker.visit_table(root, layout, &Path::ROOT);
        }
        let mut survey = walker.survey;
        survey.covered = merge_ranges(std::mem::take(&mut survey.covered));
        let mut at = 0;
        for range in survey.covered.iter().cloned().chain(std::iter::once(buffer.len()..buffer.len())) {
            survey.loose += buffer[at..range.start.max(at)].iter().filter(|&&byte| byte != 0).count();
            at = range.end.max(at);
        }
        survey
    }

    /// Surveys one table, whose path is `path`, and everything that it refers to.
    pub(super) fn of_subtree(raw: Raw<'_>, at: usize, layout: &'static Layout, path: &Path<'_>) -> Self {
        let mut walker =
            Walker { raw, visited: HashSet::new(), seen: HashSet::new(), survey: Self::default() };
        walker.visit_table(at, layout, path);
        walker.survey
    }

    /// Whether everything in the buffer is declared, so that writing it again loses nothing.
    pub(crate) fn is_complete(&self) -> bool {
        self.unknown_count == 0 && self.loose == 0
    }

    /// The undeclared parts as phrases: the first of them, and how many more there are.
    pub(crate) fn phrases(&self) -> Vec<String> {
        let mut all = self.unknown.clone();
        let more = self.unknown_count - all.len();
        if more > 0 {
            all.push(format!("{more} more unknown fields"));
        }
        if self.loose > 0 {
            all.push(format!("{} bytes of the tables to which nothing refers", self.loose));
        }
        all
    }
}

/// Sorts ranges and merges those that overlap or touch.
pub(super) fn merge_ranges(mut ranges: Vec<Range<usize>>) -> Vec<Range<usize>> {
    ranges.sort_unstable_by_key(|range| (range.start, range.end));
    let mut all: Vec<Range<usize>> = Vec::new();
    for range in ranges.into_iter().filter(|range| !range.is_empty()) {
        match all.last_mut() {
            Some(last) if range.start <= last.end => last.end = last.end.max(range.end),
            _ => all.push(range),
        }
    }
    all
}

struct Walker<'a> {
    raw: Raw<'a>,
    /// The positions visited so far, each with the layout used.
    visited: HashSet<(usize, usize)>,
    /// The positions of the tables and vectors seen so far.
    seen: HashSet<usize>,
    survey: Survey,
}

impl Walker<'_> {
    fn cover(&mut self, range: Range<usize>) {
        self.survey.covered.push(range);
    }

    /// Records that `at` is visited with this layout; returns false if that was recorded before.
    fn mark_visited(&mut self, at: usize, layout: &'static Layout) -> bool {
        if !self.seen.insert(at) {
            self.survey.shared.insert(at);
        }
        self.visited.insert((at, std::ptr::from_ref(layout).addr()))
    }

    fn add_unknown(&mut self, text: impl FnOnce() -> String) {
        self.survey.unknown_count += 1;
        if self.survey.unknown.len() < MAX_LISTED {
            self.survey.unknown.push(text());
        }
    }

    fn visit_table(&mut self, at: usize, layout: &'static Layout, path: &Path<'_>) {
        if !self.mark_visited(at, layout) {
            return;
        }
        let Some(table) = self.raw.table(at) else {
            self.add_unknown(|| format!("{path}, which cannot be read"));
            return;
        };
        self.cover(at..at + table.len);
        self.cover(table.vtable..table.vtable + table.vtable_len);
        for id in layout.0.len()..table.vtable_len / 2 - 2 {
            let Some(offset) = self.raw.slot(table, id) else { continue };
            self.add_unknown(|| match path.to_string().as_str() {
                "" => format!("unknown field {id} of the root"),
                path => format!("unknown field {id} of {path}"),
            });
            self.survey.suspects.extend(self.raw.follow(table.at + offset));
        }
        for (id, &(name, kind)) in layout.0.iter().enumerate() {
            let Some(at) = self.raw.field(table, id, kind.size()) else { continue };
            let path = path.field(name);
            match kind {
                FieldKind::Scalar(_) | FieldKind::Member => {}
                FieldKind::Text => self.visit_contents(at, 1, 1),
                FieldKind::Scalars(size) => self.visit_contents(at, size, 0),
                FieldKind::Bulk => self.visit_contents(at, 1, 0),
                FieldKind::Table(layout) => {
                    if let Some(at) = self.raw.follow(at) {
                        self.visit_table(at, layout, &path);
                    }
                }
                FieldKind::Tables(layout) => self.visit_tables(at, layout, &path),
                FieldKind::Union(members) => {
                    let member = usize::from(self.raw.0[at]);
                    let target = self.raw.field(table, id + 1, 4).and_then(|at| self.raw.follow(at));
                    match (members.get(member.wrapping_sub(1)), target) {
                        (Some(layout), Some(at)) => self.visit_table(at, layout, &path),
                        (None, target) if member != 0 => {
                            self.add_unknown(|| format!("{path}, of the unknown kind {member}"));
                            self.survey.suspects.extend(target);
                        }
                        _ => {}
                    }
                }
            }
        }
    }

    /// Covers the string or scalar vector to which the offset at `at` points, and the `end` bytes that terminate it.
    fn visit_contents(&mut self, at: usize, size: usize, end: usize) {
        let Some(at) = self.raw.follow(at) else { return };
        if let Some(vector) = self.raw.vector(at, size) {
            self.cover(at..(vector.start + vector.count * size + end).min(self.raw.0.len()));
        }
    }

    fn visit_tables(&mut self, at: usize, layout: &'static Layout, path: &Path<'_>) {
        let Some(at) = self.raw.follow(at) else { return };
        let Some(vector) = self.raw.vector(at, 4) else { return };
        if !self.mark_visited(at, layout) {
            return;
        }
        self.cover(at..vector.start + 4 * vector.count);
        for index in 0..vector.count {
            if let Some(entry) = self.raw.follow(vector.start + 4 * index) {
                self.visit_table(entry, layout, &path.index(index));
            }
        }
    }
}
