//! Files of named arrays as inputs of a method: `.npz` and `.safetensors`.

use crate::convert::{meta_of, npz_entries, safetensors_entries};
use crate::input::DeclaredInput;
use crate::show::count;
use crate::{Context, Error, Result, npy, run};
use pteron_format::FileKind;
use pteron_format::ptd::Entry;
use pteron_operator::EValue;
use pteron_runtime::{Limits, MethodMeta, Program, ValueMeta, arrange_inputs};
use pteron_tensor::{DimOrder, ShapeDynamism, Tensor, TensorMeta};
use std::path::Path;
use std::sync::Arc;

/// A file of arrays whose headers are read.
///
/// The arrays are one sample, or several: if each has one dimension more than its input, or a multiple of the rows of an input
/// whose number of rows is fixed, and all have the same number of samples.
pub struct ArrayFile {
    name: String,
    entries: Vec<(Entry<'static>, TensorMeta)>,
    /// The array for each input of the method, by index in `entries`; `None` for inputs with a fixed value.
    order: Vec<Option<usize>>,
    samples: Option<usize>,
}

/// The arrays of a file, in memory.
pub struct Arrays {
    file: ArrayFile,
    tensors: Vec<Tensor>,
}

impl ArrayFile {
    /// Whether a path has the extension of a file of named arrays.
    pub fn has_extension(path: &Path) -> bool {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        matches!(ending.as_str(), "npz" | "safetensors")
    }

    /// Reads the headers of a file with the inputs of `method`: the arrays of their names if there is one for each input that
    /// must be given, otherwise all arrays in the order of the file.
    ///
    /// # Errors
    /// The file is of another kind or damaged, or its arrays are not as many as the inputs.
    pub fn open(path: &Path, program: &Program, method: &str, limits: &Limits) -> Result<Self> {
        let loader = run::open(path, run::LoadMode::File)?;
        let entries = match crate::file_kind(&*loader)? {
            Some(FileKind::Safetensors) => Some(safetensors_entries(&loader)?.0),
            Some(FileKind::Zip) => npz_entries(&loader, limits)?,
            _ => None,
        };
        let entries =
            entries.ok_or_else(|| Error::bad_file(path, "it holds no NumPy arrays or safetensors"))?;
        let arrays = entries.into_iter().filter_map(|entry| {
            let meta = meta_of(entry.layout.as_ref()?);
            Some(meta.map(|meta| (entry, meta)))
        });
        let entries: Vec<(Entry<'static>, TensorMeta)> = arrays.collect::<Result<_>>()?;
        let meta = program.method_meta(method)?;
        let declared = meta.inputs();
        let order = arrange(&meta, &declared, &entries).context(|| path.display().to_string())?;
        let samples = samples_of(&declared, &entries, &order);
        Ok(Self { name: path.display().to_string(), entries, order, samples })
    }

    /// The number of samples; `None` if the arrays are the inputs of one.
    pub fn samples(&self) -> Option<usize> {
        self.samples
    }

    /// Reads the arrays that are inputs into memory.
    ///
    /// # Errors
    /// The file cannot be read, or memory is exhausted.
    pub fn read(self) -> Result<Arrays> {
        let tensors = self.order.iter().flatten().map(|&at| {
            let (entry, meta) = &self.entries[at];
            let mut tensor = Tensor::zeros(meta.clone())?;
            let mut view = tensor.view_mut();
            entry.blob.copy_to(&mut &mut *view.bytes_mut()).context(|| format!("`{}`", entry.key))?;
            npy::swap_on_big_endian(meta.dtype(), view.bytes_mut());
            match meta.dim_order().is_contiguous() {
                true => Ok(tensor),
                false => Ok(tensor.to_dim_order(DimOrder::contiguous(meta.rank()))?),
            }
        });
        let tensors = tensors.collect::<Result<_>>().context(|| self.name.clone())?;
        Ok(Arrays { file: self, tensors })
    }
}

impl Arrays {
    /// The inputs of a sample of `method`, by its index in the file.
    ///
    /// # Errors
    /// An array does not match the method's input.
    pub fn inputs(&self, sample: usize, program: &Program, method: &str) -> Result<Vec<EValue>> {
        let meta = program.method_meta(method)?;
        let allowed = meta.input_sizes()?.map(Arc::new);
        let mut tensors = self.tensors.iter();
        let mut inputs = Vec::with_capacity(self.file.order.len());
        for (index, (declared, at)) in meta.inputs().iter().zip(&self.file.order).enumerate() {
            let Some(array) = at.and_then(|_| tensors.next()) else {
                inputs.push(declared.traced.clone().unwrap_or(EValue::None));
                continue;
            };
            let declared = DeclaredInput::new(method, index, declared, allowed.clone());
            let value = match self.file.samples {
                None => array.clone(),
                Some(count) => slice(array, sample, count, declared.meta.as_ref())?,
            };
            declared.check(value.dtype(), value.sizes()).context(|| self.file.name.clone())?;
            inputs.push(value.into());
        }
        Ok(inputs)
    }
}

/// The array for each input.
fn arrange(
    meta: &MethodMeta<'_>,
    declared: &[ValueMeta],
    entries: &[(Entry<'static>, TensorMeta)],
) -> Result<Vec<Option<usize>>> {
    let names = meta.value_names()?.inputs;
    let of_name = |name: &str| entries.iter().position(|(entry, _)| entry.key == name);
    let is_named = |(input, declared): (&Option<String>, &ValueMeta)| {
        declared.traced.is_some() || input.as_deref().and_then(of_name).is_some()
    };
    let named: Vec<(String, usize)> = match names.iter().zip(declared).all(is_named) {
        true => names.iter().flatten().filter_map(|name| Some((name.clone(), of_name(name)?))).collect(),
        false => Vec::new(),
    };
    let positional = if named.is_empty() { 0..entries.len() } else { 0..0 };
    arrange_inputs(meta.name(), declared, &names, positional, named).map_err(|_| {
        let arrays: Vec<&str> = entries.iter().map(|(entry, _)| entry.key.as_str()).collect();
        let open = declared.iter().filter(|input| input.traced.is_none()).count();
        let named: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
        let named = if named.is_empty() { String::new() } else { format!(" ({})", named.join(", ")) };
        Error::input(format!(
            "it holds {} ({}), and method `{}` takes {}{named}",
            count(entries.len(), "array"),
            arrays.join(", "),
            meta.name(),
            count(open, "input"),
        ))
    })
}

/// The number of samples that the arrays of all inputs hold.
fn samples_of(
    declared: &[ValueMeta],
    entries: &[(Entry<'static>, TensorMeta)],
    order: &[Option<usize>],
) -> Option<usize> {
    let arrays = declared.iter().zip(order).filter_map(|(declared, at)| Some((declared, &entries[(*at)?].1)));
    let mut counts = arrays.map(|(declared, array)| samples_in(array, &declared.tensor.as_ref()?.meta));
    let first = counts.next()??;
    counts.all(|count| count == Some(first)).then_some(first)
}

/// The number of samples that an array holds for an input of this type.
fn samples_in(array: &TensorMeta, input: &TensorMeta) -> Option<usize> {
    let &length = array.sizes().first()?;
    if array.rank() == input.rank() + 1 {
        return Some(length);
    }
    let &rows = input.sizes().first().filter(|_| array.rank() == input.rank())?;
    let is_multiple =
        input.dynamism() == ShapeDynamism::Static && rows > 0 && length > rows && length.is_multiple_of(rows);
    is_multiple.then(|| length / rows)
}

/// The part of `array`, which is row-major, that belongs to one of `count` samples.
fn slice(array: &Tensor, sample: usize, count: usize, input: Option<&TensorMeta>) -> Result<Tensor> {
    let sizes = array.sizes();
    let rest = sizes.get(1..).unwrap_or(&[]);
    let sizes = match input.is_some_and(|input| input.rank() == rest.len()) {
        true => rest.to_vec(),
        false => [&[sizes.first().copied().unwrap_or(1) / count.max(1)], rest].concat(),
    };
    let meta = TensorMeta::contiguous(array.dtype(), &sizes)?;
    let from = sample.saturating_mul(meta.nbytes());
    let bytes = array.bytes().get(from..from.saturating_add(meta.nbytes()));
    let bytes = bytes.ok_or_else(|| Error::input(format!("there is no sample {sample}")))?;
    Ok(Tensor::from_bytes(meta, bytes)?)
}
