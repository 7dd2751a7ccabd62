use super::{Output, take_apart, tensors_mut};
use crate::file::{File, Progress, source};
use crate::{Error, Result, npy, show};
use format::container::Blob;
use format::ptd::{Builder, TensorLayout};
use format::pte::Tensor;
use runtime::{Program, PtdDataMap};
use serde::Serialize;
use std::path::Path;
use tensor::{DimOrder, ScalarType, bf16};

/// The result of [`set_weight`]: a file with a weight replaced.
#[derive(Debug, Serialize)]
pub struct WeightSet {
    /// The type of the weight: `float32[2, 3]`.
    pub layout: String,
    /// The number of tensors, in all methods, that use the weight; 1 for a `.ptd`.
    pub tensors: usize,
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
        File::Program(program) => in_program(program, name, array, progress),
        File::Data(data) => in_data(data, name, array, progress),
    }
}

fn in_program(program: &Program, name: &str, array: &Path, progress: &Progress) -> Result<WeightSet> {
    let mut builder = take_apart(program, progress)?;
    let stored = |t: &Tensor| t.constant_idx().is_some() || t.initial_data_idx().is_some();
    let named = tensors_mut(&mut builder).any(|t| stored(t) && t.fully_qualified_name() == Some(name));
    let number: Option<u32> = if named { None } else { name.parse().ok() };
    let wanted = |t: &Tensor| match number {
        Some(number) => t.constant_idx() == Some(number),
        None => stored(t) && t.fully_qualified_name() == Some(name),
    };
    let mut targets = tensors_mut(&mut builder).filter(|t| wanted(t));
    let Some(first) = targets.next().cloned() else {
        drop(targets);
        return Err(no_such_weight(program, name));
    };
    let layout = super::keys::layout_of(&first);
    if let Some(other) = targets.find(|t| super::keys::layout_of(t) != layout) {
        return Err(Error::input(format!(
            "the program uses `{name}` both as {} and as {}",
            show::layout(&layout),
            show::layout(&super::keys::layout_of(other))
        )));
    }
    drop(targets);
    let blob = Blob::bytes(values(&layout, array)?);
    let constant = builder.add_constant(blob.clone());
    let initial = builder.add_initial_data(blob);
    let mut tensors = 0;
    for tensor in tensors_mut(&mut builder).filter(|t| wanted(t)) {
        tensor.data_buffer_idx = if tensor.allocation_info.is_some() { initial } else { constant };
        tensors += 1;
    }
    Ok(WeightSet { layout: show::layout(&layout), tensors, file: Output::program(builder, progress)? })
}

#[cold]
fn no_such_weight(program: &Program, name: &str) -> Error {
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

fn in_data(data: &PtdDataMap, name: &str, array: &Path, progress: &Progress) -> Result<WeightSet> {
    let mut builder = Builder::from_flat_tensor(data.tables(), source(data.loader(), progress));
    let Some(entry) = builder.entries.iter_mut().find(|entry| entry.key == name) else {
        return Err(runtime::Error::NoSuchKey {
            key: name.to_owned(),
            source_name: data.loader().name().to_owned(),
        }
        .into());
    };
    let Some(layout) = &entry.layout else {
        return Err(Error::input(format!("`{name}` is a blob, not a tensor")));
    };
    let text = show::layout(layout);
    entry.blob = Blob::bytes(values(layout, array)?);
    progress.begin("comparing", data.loader().size());
    Ok(WeightSet { layout: text, tensors: 1, file: Output::data(builder, progress)? })
}

/// The values of a `.npy` file as the little-endian bytes of a tensor of this layout. Shape and type are checked before the
/// elements are read.
fn values(layout: &TensorLayout, path: &Path) -> Result<Vec<u8>> {
    let array = npy::open(path)?;
    let dtype = ScalarType::from_i8(layout.scalar_type)?;
    let sizes: Vec<usize> = layout.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
    let found = array.meta().dtype();
    let is_rounded = found == ScalarType::Float && dtype == ScalarType::BFloat16;
    let is_raw = npy::raw(dtype) && found.size() == dtype.size();
    if **array.meta().sizes() != *sizes || !(found == dtype || is_rounded || is_raw) {
        let problem = format!("a {}; the weight is {}", array.meta(), show::layout(layout));
        return Err(Error::bad_file(path, problem));
    }
    let array = array.read().map_err(|problem| Error::bad_file(path, problem))?;
    let array = array.to_dim_order(DimOrder::new(&layout.dim_order)?)?;
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(array.numel() * dtype.size())
        .map_err(|_| tensor::Error::OutOfMemory(array.nbytes()))?;
    if is_rounded {
        let rounded = array.storage::<f32>()?.iter().map(|&v| bf16::from_f32(v).to_bits().to_le_bytes());
        bytes.extend(rounded.flatten());
    } else {
        bytes.extend_from_slice(array.bytes());
        npy::swap_on_big_endian(array.dtype(), &mut bytes);
    }
    Ok(bytes)
}
