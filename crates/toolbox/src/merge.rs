//! Merges several files of named data into one.

use crate::edit::{Output, finish_data, revise_data, undeclared_fields};
use crate::file::{InFile, Progress, blob_source};
use crate::pattern::{Pattern, fits_any, require_fitting};
use crate::{Context, Error, Result, show};
use pteron_format::container::Blob;
use pteron_format::ptd::TensorLayout;
use pteron_runtime::PtdDataMap;
use serde::Serialize;
use std::collections::{HashMap, HashSet, hash_map};
use std::ops::Range;

/// Maximum number of conflicts that an error lists.
const MAX_LISTED: usize = 20;

/// The result of [`merge`]: one file with the entries of several.
#[derive(Debug, Serialize)]
pub struct Merged {
    /// The number of entries of the new file.
    pub entries: usize,
    /// Keys with the same layout and bytes in several files, listed once for each file after the first.
    pub same: Vec<String>,
    /// Descriptions of the contents of the source files that could not be kept.
    pub lost: Vec<String>,
    /// Bytes of the source files.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub data: Output,
}

/// Selects the entries that [`merge`] takes, and their keys.
#[derive(Debug, Clone, Default)]
pub struct MergeOptions {
    /// Takes only entries whose old keys match one of these patterns; if there are none, all entries.
    pub names: Vec<Pattern>,
    /// Pairs of an old key and the new key that replaces it.
    pub rename: Vec<(String, String)>,
    /// The file whose entry is taken if entries of a key differ; `None` makes that an error.
    pub prefer: Option<Prefer>,
    /// Whether entries with equal bytes share storage; to find them, entries of equal length are read twice.
    pub share: bool,
}

/// Which of several files is preferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Prefer {
    /// The first file that has the key.
    First,
    /// The last file that has the key.
    Last,
}

/// Merges files into one: entries of further files are added to the first. A key that occurs in two files is kept once if
/// layout and bytes are the same. Memory use does not depend on the sizes of the files.
///
/// # Errors
/// If there are no files, a key has different layouts or bytes in two files of which none is preferred (the error names the
/// keys and both files), a pattern or a key to rename is that of no entry that is kept, or a key is renamed to two.
pub fn merge(files: &[PtdDataMap], options: &MergeOptions, progress: &Progress) -> Result<Merged> {
    let bytes_before: u64 = files.iter().map(|file| file.loader().size()).sum();
    progress.begin("comparing", if options.share { bytes_before } else { 0 });
    let first = files.first().ok_or_else(|| Error::input("there are no files to merge"))?;
    let keys = || files.iter().flat_map(|file| &file.tables().named_data).map(|entry| entry.key.as_str());
    require_fitting(&options.names, keys(), "key")?;
    let mut renamed: HashMap<&str, &str> = HashMap::new();
    for (old, new) in &options.rename {
        let kept = keys().filter(|key| fits_any(&options.names, key));
        require_fitting(&[Pattern::name(old)], kept, "key")?;
        if let Some(other) = renamed.insert(old, new).filter(|other| other != new) {
            return Err(Error::input(format!("`{old}` is renamed to `{other}` and to `{new}`")));
        }
    }

    let mut places: HashMap<String, EntryOf<'_>> = HashMap::new();
    let (mut same, mut conflicts) = (Vec::new(), Vec::new());
    for (index, file) in files.iter().enumerate() {
        let (tables, name) = (file.tables(), file.loader().name());
        let bytes_of = blob_source(file.loader(), progress);
        // Entries that share bytes go on sharing them.
        let mut known: HashMap<Range<u64>, Blob<'static>> = HashMap::new();
        for (at, entry) in tables.named_data.iter().enumerate() {
            if !fits_any(&options.names, &entry.key) {
                continue;
            }
            let range = tables.data_range(entry);
            let blob = known.entry(range.clone()).or_insert_with(|| bytes_of(range)).clone();
            let entry_of = EntryOf { place: (index, at), layout: entry.tensor_layout.as_ref(), blob };
            let key =
                renamed.get(entry.key.as_str()).map_or_else(|| entry.key.clone(), |&new| new.to_owned());
            match places.entry(key) {
                hash_map::Entry::Vacant(place) => {
                    place.insert(entry_of);
                }
                hash_map::Entry::Occupied(mut place) => {
                    let key = place.key().clone();
                    let known = place.get();
                    match entry_difference(known, &entry_of).context(|| format!("`{}`", show::name(&key)))? {
                        None => same.push(key),
                        Some(_) if options.prefer == Some(Prefer::First) => {}
                        Some(_) if options.prefer == Some(Prefer::Last) => drop(place.insert(entry_of)),
                        Some((one, other)) => conflicts.push(format!(
                            "`{}` is {one} in {} and {other} in {name}",
                            show::name(&key),
                            files[known.place.0].loader().name()
                        )),
                    }
                }
            }
        }
    }
    if !conflicts.is_empty() {
        let more = conflicts.len().saturating_sub(MAX_LISTED);
        conflicts.truncate(MAX_LISTED);
        if more > 0 {
            conflicts.push(format!("and {}", show::count(more, "further key")));
        }
        return Err(Error::Conflicts(conflicts));
    }

    let mut chosen: Vec<(String, EntryOf<'_>)> = places.into_iter().collect();
    chosen.sort_unstable_by_key(|(_, entry)| entry.place);
    let entries = chosen.len();
    let split = chosen.partition_point(|(_, entry)| entry.place.0 == 0);
    let added = chosen.split_off(split);
    let mut revision = revise_data(first, progress)?;
    let stay: HashSet<usize> = chosen.iter().map(|(_, entry)| entry.place.1).collect();
    let mut at = 0..;
    revision.retain(|_| at.next().is_some_and(|at| stay.contains(&at)));
    for (index, (key, _)) in chosen.into_iter().enumerate() {
        revision.rename(index, key);
    }
    let alignments: Vec<Vec<u64>> = files.iter().map(|file| file.tables().segment_alignments()).collect();
    for (key, entry) in added {
        let (file, at) = entry.place;
        let segment = files[file].tables().named_data[at].segment_index as usize;
        let alignment = alignments[file].get(segment).copied().unwrap_or(1);
        revision.add(key, entry.layout.cloned(), &entry.blob, alignment);
    }
    if options.share {
        revision.share_equal_bytes().in_file("the new named data")?;
    }
    let (data, mut lost) = finish_data(revision, progress)?;
    for file in &files[1..] {
        let name = file.loader().name();
        lost.extend(undeclared_fields(file)?.into_iter().map(|what| format!("{what} in {name}")));
    }
    Ok(Merged { entries, same, lost, bytes_before, bytes_after: data.bytes(), data })
}

/// An entry of a file.
struct EntryOf<'f> {
    /// The index of the file, and the index of the entry in the file.
    place: (usize, usize),
    layout: Option<&'f TensorLayout>,
    blob: Blob<'static>,
}

/// Descriptions of two entries with the same key, if the entries differ.
fn entry_difference(
    one: &EntryOf<'_>,
    other: &EntryOf<'_>,
) -> pteron_format::Result<Option<(String, String)>> {
    let what = |entry: &EntryOf<'_>| match entry.layout {
        Some(layout) => show::layout(layout),
        None => format!("a blob of {}", show::bytes(entry.blob.len())),
    };
    if one.layout != other.layout || one.blob.len() != other.blob.len() {
        return Ok(Some((what(one), what(other))));
    }
    if one.blob.digest()? != other.blob.digest()? {
        return Ok(Some((what(one), "the same with other bytes".to_owned())));
    }
    Ok(None)
}
