//! Merges several files of named data into one.

use crate::edit::Output;
use crate::file::{Progress, source};
use crate::{Context, Error, Result, show};
use format::ptd::{Builder, Entry};
use runtime::PtdDataMap;
use serde::Serialize;
use std::collections::HashMap;
use std::collections::hash_map;

/// Conflicts that an error lists at most.
const MAX_LISTED: usize = 20;

/// The result of [`merge`].
#[derive(Debug, Serialize)]
pub struct Merged {
    /// The number of keys.
    pub entries: usize,
    /// Keys that occurred in several files, with the same layout and bytes.
    pub same: Vec<String>,
    /// Bytes of the source files.
    pub bytes_before: u64,
    /// Bytes of the new file.
    pub bytes_after: u64,
    /// The new file.
    #[serde(skip)]
    pub data: Output,
}

/// Merges files into one. A key that occurs in two files is kept once if layout and bytes are the same.
///
/// With `share`, entries with equal bytes share storage; to find them, entries of equal length are read once more.
/// Memory use does not depend on the sizes of the files.
///
/// # Errors
/// If a key has different layouts or bytes in two files; the error names the keys and both files.
pub fn merge(files: &[PtdDataMap], share: bool, progress: &Progress) -> Result<Merged> {
    let bytes_before: u64 = files.iter().map(|file| file.loader().size()).sum();
    progress.begin("comparing", if share { bytes_before } else { 0 });
    let mut builder = Builder { share, ..Builder::new() };
    let mut places: HashMap<String, (usize, usize)> = HashMap::new();
    let (mut same, mut conflicts) = (Vec::new(), Vec::new());
    for (index, file) in files.iter().enumerate() {
        for entry in Builder::from_flat_tensor(file.tables(), source(file.loader(), progress)).entries {
            let (key, name) = (entry.key.clone(), file.loader().name());
            match places.entry(key.clone()) {
                hash_map::Entry::Vacant(place) => {
                    place.insert((index, builder.entries.len()));
                    builder.entries.push(entry);
                }
                hash_map::Entry::Occupied(place) => {
                    let (first, at) = *place.get();
                    let known = &builder.entries[at];
                    match difference(known, &entry).context(|| format!("`{key}`"))? {
                        None => same.push(key),
                        Some((one, other)) => conflicts.push(format!(
                            "`{key}` is {one} in {} and {other} in {name}",
                            files[first].loader().name()
                        )),
                    }
                }
            }
        }
    }
    if !conflicts.is_empty() {
        let more = conflicts.len().saturating_sub(MAX_LISTED);
        conflicts.truncate(MAX_LISTED);
        let mut text = format!("the files do not agree:\n  {}", conflicts.join("\n  "));
        if more > 0 {
            text.push_str(&format!("\n  and {}", show::count(more, "further key")));
        }
        return Err(Error::input(text));
    }
    let entries = builder.entries.len();
    let data = Output::data(builder, progress)?;
    Ok(Merged { entries, same, bytes_before, bytes_after: data.bytes(), data })
}

/// Descriptions of two entries of the same key, if they differ.
fn difference(one: &Entry<'_>, other: &Entry<'_>) -> format::Result<Option<(String, String)>> {
    let what = |entry: &Entry<'_>| match &entry.layout {
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
