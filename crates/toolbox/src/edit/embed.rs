use super::{Output, finish, revise, tensors_mut};
use crate::file::{Progress, blob_source};
use crate::{Error, Result};
use pteron_format::container::Blob;
use pteron_format::ptd::NamedData;
use pteron_format::pte::{NamedBlob, Tensor, TensorDataLocation};
use pteron_runtime::{NamedDataMap, Program, PtdDataMap};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

/// The result of [`embed`]: a self-contained program that needs no `.ptd`.
#[derive(Debug, Serialize)]
pub struct Embedded {
    /// Keys of tensors that became constants or initial values of the program.
    pub tensors: Vec<String>,
    /// Keys that became named data of the program.
    pub named_data: Vec<String>,
    /// Keys of tensors that the program does not use and that were left out.
    pub left_out: Vec<String>,
    /// Descriptions of what the edit could not keep.
    pub lost: Vec<String>,
    /// The new program.
    #[serde(skip)]
    pub program: Output,
}

impl Embedded {
    /// Descriptions of all that the new program lacks: lost fields, and unused tensors.
    pub fn not_kept(&self) -> Vec<String> {
        let left_out = self.left_out.iter().map(|key| format!("the tensor `{key}`, to which nothing refers"));
        self.lost.iter().cloned().chain(left_out).collect()
    }
}

/// Moves the external weights of a program from `.ptd` files into the program. Blobs become named data, and so do tensors
/// that no tensor of the program refers to if it has delegates, which may look them up.
///
/// # Errors
/// If the files lack keys, have a key twice, or hold a tensor of another type, shape or layout; the error names the keys.
pub fn embed(program: &Program, data: &[PtdDataMap], progress: &Progress) -> Result<Embedded> {
    let mut entries: HashMap<&str, (usize, &NamedData)> = HashMap::new();
    for (file, map) in data.iter().enumerate() {
        for entry in &map.tables().named_data {
            if let Some((first, _)) = entries.insert(&entry.key, (file, entry)) {
                return Err(pteron_runtime::Error::DuplicateKey {
                    key: entry.key.clone(),
                    first: data[first].name().to_owned(),
                    second: map.name().to_owned(),
                }
                .into());
            }
        }
    }
    let sources: Vec<_> = data.iter().map(|map| blob_source(map.loader(), progress)).collect();
    program.require_valid_methods()?;
    let mut revision = revise(program, progress)?;
    let (mut missing, mut used) = (BTreeSet::new(), BTreeSet::new());
    // The new buffer index by key and whether it is an initial value.
    let mut places: HashMap<(String, bool), u32> = HashMap::new();
    let (mut wanted, mut seen) = (Vec::new(), HashSet::new());
    for tensor in tensors_mut(&mut revision.program).filter(|tensor| tensor.is_external()) {
        let key = tensor.fully_qualified_name().unwrap_or_default().to_owned();
        let Some((file, entry)) = entries.get(key.as_str()) else {
            missing.insert(key);
            continue;
        };
        check_fit(tensor, entry, data[*file].name())?;
        let place = (key.clone(), tensor.allocation_info.is_some());
        if seen.insert(place.clone()) {
            wanted.push(place);
        }
        used.insert(key);
    }
    if !missing.is_empty() {
        let keys: Vec<String> = missing.iter().map(|key| format!("`{key}`")).collect();
        return Err(Error::input(format!(
            "{} asks for what is in none of the data files: {}",
            program.loader().name(),
            keys.join(", ")
        )));
    }
    // Entries that share bytes go on sharing them.
    let mut known: HashMap<(usize, Range<u64>), Blob<'static>> = HashMap::new();
    let mut blob_of = |file: usize, entry: &NamedData| {
        let range = data[file].tables().data_range(entry);
        known.entry((file, range.clone())).or_insert_with(|| sources[file](range)).clone()
    };
    for (key, initial) in wanted {
        let (file, entry) = entries[key.as_str()];
        let blob = blob_of(file, entry);
        let index = if initial { revision.add_initial_data(blob) } else { revision.add_constant(blob) };
        places.insert((key, initial), index);
    }
    for tensor in tensors_mut(&mut revision.program).filter(|tensor| tensor.is_external()) {
        let key = tensor.fully_qualified_name().unwrap_or_default().to_owned();
        let index = places.get(&(key, tensor.allocation_info.is_some())).copied().unwrap_or_default();
        tensor.data_buffer_idx = index;
        if let Some(info) = &mut tensor.extra_tensor_info {
            info.location = TensorDataLocation::Segment;
            info.mutable_data_segments_idx = 0;
        }
    }

    let delegated = revision.program.execution_plan.iter().any(|plan| !plan.delegates.is_empty());
    let (mut named_data, mut left_out) = (Vec::new(), Vec::new());
    for (file, map) in data.iter().enumerate() {
        let alignments = map.tables().segment_alignments();
        for entry in map.tables().named_data.iter().filter(|entry| !used.contains(&entry.key)) {
            if !delegated && entry.tensor_layout.is_some() {
                left_out.push(entry.key.clone());
                continue;
            }
            if program.tables().named_data(&entry.key).is_some() {
                return Err(pteron_runtime::Error::DuplicateKey {
                    key: entry.key.clone(),
                    first: program.loader().name().to_owned(),
                    second: map.name().to_owned(),
                }
                .into());
            }
            let blob = blob_of(file, entry);
            let alignment = alignments.get(entry.segment_index as usize).copied().unwrap_or(1);
            revision.add_named_data(NamedBlob { key: entry.key.clone(), blob, alignment });
            named_data.push(entry.key.clone());
        }
    }
    let (program, lost) = finish(revision, progress)?;
    Ok(Embedded { tensors: used.into_iter().collect(), named_data, left_out, lost, program })
}

/// Fails if an entry's type, sizes or dim order are not those of the tensor.
fn check_fit(tensor: &Tensor, entry: &NamedData, file: &str) -> Result<()> {
    let wanted = super::keys::layout_of(tensor);
    if entry.tensor_layout.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let actual = entry.tensor_layout.as_ref().map_or_else(|| "a blob".to_owned(), crate::show::layout);
    Err(Error::bad_file(
        file,
        format!("`{}` is {actual}; the program asks for {}", entry.key, crate::show::layout(&wanted)),
    ))
}
