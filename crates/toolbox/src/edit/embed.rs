use super::{Output, take_apart, tensors_mut};
use crate::file::{Progress, source};
use crate::{Error, Result};
use format::ptd::NamedData;
use format::pte::{NamedBlob, Tensor, TensorDataLocation};
use runtime::{NamedDataMap, Program, PtdDataMap};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};

/// The result of [`embed`]: a self-contained program that needs no `.ptd`.
#[derive(Debug, Serialize)]
pub struct Embedded {
    /// Keys of tensors that became constants or initial values of the program.
    pub tensors: Vec<String>,
    /// Keys that became named data of the program, for its delegates.
    pub named_data: Vec<String>,
    /// Keys that the program does not use and that were left out.
    pub left_out: Vec<String>,
    /// The new program.
    #[serde(skip)]
    pub program: Output,
}

/// Moves the external weights of a program from `.ptd` files into the program. Entries that no tensor refers to
/// become named data if the program has delegates, which may look them up.
///
/// # Errors
/// If the files lack keys, have a key twice, or hold a tensor of another type, shape or layout; the error names the keys.
pub fn embed(program: &Program, data: &[PtdDataMap], progress: &Progress) -> Result<Embedded> {
    let mut entries: HashMap<&str, (usize, &NamedData)> = HashMap::new();
    for (file, map) in data.iter().enumerate() {
        for entry in &map.tables().named_data {
            if let Some((first, _)) = entries.insert(&entry.key, (file, entry)) {
                return Err(runtime::Error::DuplicateKey {
                    key: entry.key.clone(),
                    first: data[first].name().to_owned(),
                    second: map.name().to_owned(),
                }
                .into());
            }
        }
    }
    let sources: Vec<_> = data.iter().map(|map| source(map.loader(), progress)).collect();
    let blob_of = |file: usize, entry: &NamedData| sources[file](data[file].tables().data_range(entry));

    let mut builder = take_apart(program, progress)?;
    let (mut missing, mut used) = (BTreeSet::new(), BTreeSet::new());
    // The new buffer index by key and whether it is an initial value.
    let mut places: HashMap<(String, bool), u32> = HashMap::new();
    let mut wanted: Vec<(String, bool)> = Vec::new();
    for tensor in tensors_mut(&mut builder).filter(|tensor| tensor.is_external()) {
        let key = tensor.fully_qualified_name().unwrap_or_default().to_owned();
        let Some((file, entry)) = entries.get(key.as_str()) else {
            missing.insert(key);
            continue;
        };
        check_fit(tensor, entry, data[*file].name())?;
        let place = (key.clone(), tensor.allocation_info.is_some());
        if !wanted.contains(&place) {
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
    for (key, initial) in wanted {
        let (file, entry) = entries[key.as_str()];
        let blob = blob_of(file, entry);
        let index = if initial { builder.add_initial_data(blob) } else { builder.add_constant(blob) };
        places.insert((key, initial), index);
    }
    for tensor in tensors_mut(&mut builder).filter(|tensor| tensor.is_external()) {
        let key = tensor.fully_qualified_name().unwrap_or_default().to_owned();
        let index = places.get(&(key, tensor.allocation_info.is_some())).copied().unwrap_or_default();
        tensor.data_buffer_idx = index;
        if let Some(info) = &mut tensor.extra_tensor_info {
            info.location = TensorDataLocation::Segment;
        }
    }

    let delegated = builder.execution_plan.iter().any(|plan| !plan.delegates.is_empty());
    let (mut named_data, mut left_out) = (Vec::new(), Vec::new());
    for (file, map) in data.iter().enumerate() {
        for entry in map.tables().named_data.iter().filter(|entry| !used.contains(&entry.key)) {
            if !delegated {
                left_out.push(entry.key.clone());
                continue;
            }
            if program.tables().named_data(&entry.key).is_some() {
                return Err(runtime::Error::DuplicateKey {
                    key: entry.key.clone(),
                    first: program.loader().name().to_owned(),
                    second: map.name().to_owned(),
                }
                .into());
            }
            let blob = blob_of(file, entry);
            builder.named_data.push(NamedBlob { key: entry.key.clone(), blob, alignment: 1 });
            named_data.push(entry.key.clone());
        }
    }
    Ok(Embedded {
        tensors: used.into_iter().collect(),
        named_data,
        left_out,
        program: Output::program(builder, progress)?,
    })
}

/// Fails if an entry's type, sizes or dim order are not those of the tensor.
fn check_fit(tensor: &Tensor, entry: &NamedData, file: &str) -> Result<()> {
    let wanted = super::keys::layout_of(tensor);
    if entry.tensor_layout.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let found = entry.tensor_layout.as_ref().map_or_else(|| "a blob".to_owned(), crate::show::layout);
    Err(Error::bad_file(
        file,
        format!("`{}` is {found}; the program asks for {}", entry.key, crate::show::layout(&wanted)),
    ))
}
