//! Merges several files of named data into one.

use crate::edit::{Output, finish_data, revise_data, undeclared_data};
use crate::file::{InFile, Progress, source};
use crate::{Context, Error, Result, show};
use format::container::Blob;
use format::ptd::{NamedData, TensorLayout};
use runtime::PtdDataMap;
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map;
use std::ops::Range;

/// Conflicts that an error lists at most.
const MAX_LISTED: usize = 20;

/// The result of [`merge`].
#[derive(Debug, Serialize)]
pub struct Merged {
    /// The number of keys.
    pub entries: usize,
    /// Keys that occurred in several files, with the same layout and bytes.
    pub same: Vec<String>,
    /// What could not be kept of files other than the first, or of the first.
    pub lost: Vec<String>,
    /// Bytes of the source files.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub data: Output,
}

/// Merges files into one: entries of further files are added to the first. A key that occurs in two files is kept once if
/// layout and bytes are the same.
///
/// With `share`, entries with equal bytes share storage; to find them, entries of equal length are read once more.
/// Memory use does not depend on the sizes of the files.
///
/// # Errors
/// If there are no files, or a key has different layouts or bytes in two files; the error names the keys and both files.
pub fn merge(files: &[PtdDataMap], share: bool, progress: &Progress) -> Result<Merged> {
    let bytes_before: u64 = files.iter().map(|file| file.loader().size()).sum();
    progress.begin("comparing", if share { bytes_before } else { 0 });
    let first = files.first().ok_or_else(|| Error::input("there are no files to merge"))?;
    let mut revision = revise_data(first, progress)?;
    let mut places: HashMap<String, (usize, Found<'_>)> = HashMap::new();
    let (mut same, mut conflicts, mut lost) = (Vec::new(), Vec::new(), Vec::new());
    for (index, file) in files.iter().enumerate() {
        let (tables, name) = (file.tables(), file.loader().name());
        let bytes_of = source(file.loader(), progress);
        let alignments = tables.segment_alignments();
        // Entries that share bytes go on sharing them.
        let mut known: HashMap<Range<u64>, Blob<'static>> = HashMap::new();
        for entry in &tables.named_data {
            let range = tables.data_range(entry);
            let blob = known.entry(range.clone()).or_insert_with(|| bytes_of(range)).clone();
            let found = Found { layout: entry.tensor_layout.as_ref(), blob };
            match places.entry(entry.key.clone()) {
                hash_map::Entry::Vacant(place) => {
                    if index > 0 {
                        let alignment = alignments.get(entry.segment_index as usize).copied().unwrap_or(1);
                        let NamedData { key, tensor_layout, .. } = entry.clone();
                        revision.add(key, tensor_layout, &found.blob, alignment);
                    }
                    place.insert((index, found));
                }
                hash_map::Entry::Occupied(place) => {
                    let (first, known) = place.get();
                    let key = entry.key.clone();
                    match difference(known, &found).context(|| format!("`{}`", show::name(&key)))? {
                        None => same.push(key),
                        Some((one, other)) => conflicts.push(format!(
                            "`{}` is {one} in {} and {other} in {name}",
                            show::name(&key),
                            files[*first].loader().name()
                        )),
                    }
                }
            }
        }
        if index > 0 {
            lost.extend(undeclared_data(file)?.into_iter().map(|what| format!("{what} in {name}")));
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
    if share {
        revision.share().in_file("the new named data")?;
    }
    let (data, not_kept) = finish_data(revision, progress)?;
    lost.extend(not_kept);
    Ok(Merged { entries: places.len(), same, lost, bytes_before, bytes_after: data.bytes(), data })
}

/// An entry of a file.
struct Found<'f> {
    layout: Option<&'f TensorLayout>,
    blob: Blob<'static>,
}

/// Descriptions of two entries of the same key, if they differ.
fn difference(one: &Found<'_>, other: &Found<'_>) -> format::Result<Option<(String, String)>> {
    let what = |entry: &Found<'_>| match entry.layout {
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
