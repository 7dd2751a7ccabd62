use super::{Output, finish, finish_data, revise, revise_data, tensors_mut};
use crate::file::{File, InFile, Progress, blob_source};
use crate::{Error, Result, npy, show};
use pteron_format::container::Blob;
use pteron_format::ptd::{NamedData, TensorLayout};
use pteron_format::pte::{EValue, Tensor, TensorData, VerifiedProgram};
use pteron_runtime::{DataLoader, Program, PtdDataMap};
use pteron_tensor::{DimOrder, ScalarType, bf16};
use serde::Serialize;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

/// The result of [`set_weight`]: a file with a weight replaced.
#[derive(Debug, Serialize)]
pub struct WeightSet {
    /// The type of the weight: `float32[2, 3]`.
    pub layout: String,
    /// The number of tensors, in all methods, that use the weight; 1 for a `.ptd`.
    pub tensors: usize,
    /// Descriptions of what the edit could not keep.
    pub lost: Vec<String>,
    /// The new file.
    #[serde(skip)]
    pub file: Output,
}

/// Replaces the values of a weight by those of a NumPy array of the same shape and type.
///
/// In a program, `name` is the name of a constant or initial value in the model or, for an unnamed constant, the number
/// that `pteron print` shows: `7` for `constant 7`. In a `.ptd` it is a key. Other weights that shared the
/// old bytes keep them. A bfloat16 weight, a type that NumPy lacks, takes a float32 array, which is rounded.
pub fn set_weight(file: &File, name: &str, array: &Path, progress: &Progress) -> Result<WeightSet> {
    match file {
        File::Program(program) => set_in_program(program, name, array, progress),
        File::Data(data) => set_in_data(data, name, array, progress),
    }
}

fn set_in_program(program: &Program, name: &str, array: &Path, progress: &Progress) -> Result<WeightSet> {
    let tables = program.tables();
    let all = || tables.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(EValue::as_tensor);
    let stored = |t: &Tensor| t.constant_idx().is_some() || t.initial_data_idx().is_some();
    let named = all().any(|t| stored(t) && t.fully_qualified_name() == Some(name));
    let number: Option<u32> = if named { None } else { name.parse().ok() };
    let wanted = |t: &Tensor| match number {
        Some(number) => t.constant_idx() == Some(number),
        None => stored(t) && t.fully_qualified_name() == Some(name),
    };
    let Some(first) = all().find(|t| wanted(t)) else { return Err(no_such_weight_error(program, name)) };
    let layout = super::keys::layout_of(first);
    if let Some(other) = all().filter(|t| wanted(t)).find(|t| super::keys::layout_of(t) != layout) {
        return Err(Error::input(format!(
            "the program uses `{name}` both as {} and as {}",
            show::layout(&layout),
            show::layout(&super::keys::layout_of(other))
        )));
    }
    let blob = Blob::bytes(array_bytes(&layout, array)?);
    let tensors = all().filter(|t| wanted(t)).count();
    let mut ranges: Vec<_> =
        all().filter(|t| wanted(t)).filter_map(|t| file_range(tables, t)).filter(|r| !r.is_empty()).collect();
    ranges.sort_by_key(|range| range.start);
    ranges.dedup();
    let done = |file, lost| WeightSet { layout: show::layout(&layout), tensors, lost, file };
    let apart = ranges.windows(2).all(|pair| !ranges_overlap(&pair[0], &pair[1]));
    let is_shared = || {
        let others = all().filter(|t| !wanted(t)).filter_map(|t| file_range(tables, t));
        let named = tables.named_data.iter().filter_map(|entry| tables.named_data(&entry.key));
        let delegates = tables.execution_plan.iter().flat_map(|plan| &plan.delegates);
        let mut others = others.chain(named).chain(delegates.map(|delegate| tables.delegate_data(delegate)));
        others.any(|other| {
            let first = ranges.partition_point(|range| range.end <= other.start);
            ranges.get(first).is_some_and(|range| ranges_overlap(range, &other))
        })
    };
    if apart && (!is_shared() || has_bytes(program.loader(), &ranges, &blob, progress)?) {
        let patches = ranges.into_iter().map(|range| (range, blob.clone())).collect();
        return Ok(done(Output::with_overwritten(program.loader(), patches, progress), Vec::new()));
    }
    program.require_valid_methods()?;
    let mut revision = revise(program, progress)?;
    let targets = |t: &&mut Tensor| wanted(t);
    let (mut constant, mut initial) = (None, None);
    let mut program = std::mem::take(&mut revision.program);
    for tensor in tensors_mut(&mut program).filter(targets) {
        tensor.data_buffer_idx = match tensor.allocation_info {
            Some(_) => *initial.get_or_insert_with(|| revision.add_initial_data(blob.clone())),
            None => *constant.get_or_insert_with(|| revision.add_constant(blob.clone())),
        };
        if let (Some(_), Some(info)) = (tensor.allocation_info, &mut tensor.extra_tensor_info) {
            info.mutable_data_segments_idx = 0;
        }
    }
    revision.program = program;
    let (file, lost) = finish(revision, progress)?;
    Ok(done(file, lost))
}

/// The byte range of a weight in the file; `None` if the file does not store the weight.
fn file_range(tables: &VerifiedProgram, tensor: &Tensor) -> Option<Range<u64>> {
    match tables.tensor_data(tensor) {
        TensorData::Constant(range) | TensorData::Initial(range) => Some(range),
        _ => None,
    }
}

fn ranges_overlap(one: &Range<u64>, other: &Range<u64>) -> bool {
    one.start < other.end && other.start < one.end
}

/// Whether all of these ranges of the file already contain the blob's bytes.
fn has_bytes(
    loader: &Arc<dyn DataLoader>,
    ranges: &[Range<u64>],
    blob: &Blob<'static>,
    progress: &Progress,
) -> Result<bool> {
    let bytes_of = blob_source(loader, progress);
    let wanted = blob.digest().in_file(loader.name())?;
    for range in ranges {
        if range.end - range.start != blob.len()
            || bytes_of(range.clone()).digest().in_file(loader.name())? != wanted
        {
            return Ok(false);
        }
    }
    Ok(true)
}

#[cold]
fn no_such_weight_error(program: &Program, name: &str) -> Error {
    let tables = program.tables();
    let all = tables.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(|v| v.as_tensor());
    let stored = all.filter(|t| t.constant_idx().is_some() || t.initial_data_idx().is_some());
    let mut names: Vec<&str> = stored.clone().filter_map(Tensor::fully_qualified_name).collect();
    names.sort_unstable();
    names.dedup();
    let meant = crate::did_you_mean(name, names.iter().copied());
    names.truncate(20);
    let file = program.loader().name();
    Error::input(match (names.as_slice(), stored.count()) {
        (_, 0) => format!("{file} holds no weights"),
        ([], _) => format!(
            "{file} has no weight `{name}`, and no names; `pteron print` shows the numbers of its constants"
        ),
        (names, _) => format!("{file} has no weight `{name}`; it has {}{meant}", names.join(", ")),
    })
}

fn set_in_data(data: &PtdDataMap, name: &str, array: &Path, progress: &Progress) -> Result<WeightSet> {
    let tables = data.tables();
    let Some(index) = tables.named_data.iter().position(|entry| entry.key == name) else {
        return Err(pteron_runtime::Error::NoSuchKey {
            key: name.to_owned(),
            source_name: data.loader().name().to_owned(),
        }
        .into());
    };
    let entry = &tables.named_data[index];
    let Some(layout) = &entry.tensor_layout else {
        return Err(Error::input(format!("`{name}` is a blob, not a tensor")));
    };
    let text = show::layout(layout);
    let blob = Blob::bytes(array_bytes(layout, array)?);
    let range = tables.data_range(entry);
    let others = tables.named_data.iter().enumerate().filter(|(other, _)| *other != index);
    let is_shared = |(_, other): (usize, &NamedData)| ranges_overlap(&range, &tables.data_range(other));
    let is_shared = others.clone().any(is_shared);
    if !is_shared || has_bytes(data.loader(), std::slice::from_ref(&range), &blob, progress)? {
        let patch = if range.is_empty() { Vec::new() } else { vec![(range, blob)] };
        let file = Output::with_overwritten(data.loader(), patch, progress);
        return Ok(WeightSet { layout: text, tensors: 1, lost: Vec::new(), file });
    }
    let mut revision = revise_data(data, progress)?;
    revision.set(index, blob);
    let (file, lost) = finish_data(revision, progress)?;
    Ok(WeightSet { layout: text, tensors: 1, lost, file })
}

/// The values of a `.npy` file as the little-endian bytes of a tensor of this layout. Shape and type are checked before the
/// elements are read.
fn array_bytes(layout: &TensorLayout, path: &Path) -> Result<Vec<u8>> {
    let array = npy::open(path)?;
    let dtype = ScalarType::from_i8(layout.scalar_type)?;
    let sizes: Vec<usize> = layout.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
    let array_dtype = array.meta().dtype();
    let is_rounded = array_dtype == ScalarType::Float && dtype == ScalarType::BFloat16;
    let is_raw = npy::is_written_raw(dtype) && array_dtype.size() == dtype.size();
    if **array.meta().sizes() != *sizes || !(array_dtype == dtype || is_rounded || is_raw) {
        let problem = format!("a {}; the weight is {}", array.meta(), show::layout(layout));
        return Err(Error::bad_file(path, problem));
    }
    let array = array.read().map_err(|problem| Error::bad_file(path, problem))?;
    let array = array.to_dim_order(DimOrder::new(&layout.dim_order)?)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(array.numel() * dtype.size())
        .map_err(|_| pteron_tensor::Error::OutOfMemory(array.nbytes()))?;
    if is_rounded {
        let rounded = array.storage::<f32>()?.iter().map(|&v| bf16::from_f32(v).to_bits().to_le_bytes());
        bytes.extend(rounded.flatten());
    } else {
        bytes.extend_from_slice(array.bytes());
        npy::swap_on_big_endian(array.dtype(), &mut bytes);
    }
    Ok(bytes)
}
