//! Extracts parts of a file into separate files: segments, payloads of delegates, named data, constants.

use crate::edit::Output;
use crate::file::{File, Progress, blob_source};
use crate::pattern::{Pattern, fits_any, require_fitting};
use crate::{Result, delegates, npy, show};
use pteron_format::ptd::TensorLayout;
use pteron_format::pte::{EValue, TensorData};
use pteron_runtime::{
    BackendRegistry, DataLoader, PayloadBytes, PayloadRole, PayloadValue, Program, PtdDataMap, Purpose,
};
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use serde::Serialize;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

/// The kinds of parts to extract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Selection {
    /// Segments, byte for byte.
    pub segments: bool,
    /// The payloads of delegates.
    pub delegates: bool,
    /// Named data: of a program, and the blobs of a `.ptd`.
    pub named_data: bool,
    /// Constants and initial values of a program, constants of its delegates' payloads, and the tensors of a `.ptd`.
    pub constants: bool,
}

impl Selection {
    /// All kinds except segments, because all bytes of segments belong to parts of other kinds.
    pub const PARTS: Self = Self { segments: false, delegates: true, named_data: true, constants: true };
}

/// An extracted part of a file.
#[derive(Debug, Serialize)]
pub struct Part {
    /// The part's path relative to the output folder: `constants/linear.weight.npy`. File names have only ASCII letters, digits and `._-`,
    /// whatever the name of the part is.
    pub path: String,
    /// A description of the part.
    pub what: String,
    /// The part's name in the file: a key, or the name of a constant in the model.
    pub name: Option<String>,
    /// The part's byte range in the source file.
    pub bytes: Range<u64>,
    /// The output file.
    #[serde(skip)]
    pub output: Output,
}

/// Extracts the selected parts of a file. Tensors become NumPy arrays in row-major order, everything else
/// is copied byte for byte.
pub fn extract(
    file: &File,
    selection: Selection,
    backends: &BackendRegistry,
    progress: &Progress,
) -> Result<Vec<Part>> {
    let mut parts = Parts { all: Vec::new(), used_paths: HashSet::new(), progress };
    match file {
        File::Program(program) => {
            add_program(program, selection, &mut parts)?;
            if selection.constants {
                add_payload_constants(program, backends, &mut parts)?;
            }
        }
        File::Data(data) => add_named_data(data, selection, &mut parts)?,
    }
    Ok(parts.all)
}

/// Keeps the parts whose names fit one of the patterns; all, if there are none.
///
/// # Errors
/// A pattern fits no part.
pub fn retain_named(parts: &mut Vec<Part>, names: &[Pattern]) -> Result<()> {
    require_fitting(names, parts.iter().filter_map(|part| part.name.as_deref()), "part")?;
    if !names.is_empty() {
        parts.retain(|part| part.name.as_deref().is_some_and(|name| fits_any(names, name)));
    }
    Ok(())
}

fn add_program(program: &Program, selection: Selection, parts: &mut Parts<'_>) -> Result<()> {
    let (tables, loader) = (program.tables(), program.loader());
    if selection.segments {
        for (holds, index) in crate::inspect::uses_of_segments(tables).into_iter().zip(0..) {
            let range = tables.segment(index).unwrap_or_default();
            let holds = holds.join("; ");
            parts.add_bytes(loader, "segments", &format!("{index:03}"), holds, None, range);
        }
    }
    if selection.delegates {
        for plan in &tables.execution_plan {
            for (index, delegate) in plan.delegates.iter().enumerate() {
                let stem = format!("{}.{index}.{}", plan.name, delegate.id);
                let what = format!("payload of {}'s delegate {index} ({})", plan.name, delegate.id);
                parts.add_bytes(loader, "delegates", &stem, what, None, tables.delegate_data(delegate));
            }
        }
    }
    if selection.named_data {
        for entry in &tables.named_data {
            let range = tables.named_data(&entry.key).unwrap_or_default();
            let what = "named data".to_owned();
            parts.add_bytes(loader, "named_data", &entry.key, what, Some(&entry.key), range);
        }
    }
    if selection.constants {
        let mut seen = HashSet::new();
        let values = tables.execution_plan.iter().flat_map(|plan| &plan.values);
        for tensor in values.filter_map(EValue::as_tensor) {
            let (kind, range) = match tables.tensor_data(tensor) {
                TensorData::Constant(range) => ("constant", range),
                TensorData::Initial(range) => ("initial value", range),
                _ => continue,
            };
            let layout = crate::edit::layout_of(tensor);
            let name = tensor.fully_qualified_name();
            let number = tensor.data_buffer_idx;
            if !seen.insert((kind, number, name, show::layout(&layout))) {
                continue;
            }
            let unnamed = format!("{}_{number}", kind.replace(' ', "_"));
            let what = format!("{kind} {number}, {}", show::layout(&layout));
            parts.add_array(loader, name.unwrap_or(&unnamed), what, name, range, &layout)?;
        }
    }
    Ok(())
}

/// Extracts the constants, and their scales, of payloads that the backends can read; each distinct tensor once. Packed
/// elements are copied byte for byte. Constants whose bytes are not in the file are skipped.
fn add_payload_constants(program: &Program, backends: &BackendRegistry, parts: &mut Parts<'_>) -> Result<()> {
    let mut seen = HashSet::new();
    for plan in &program.tables().execution_plan {
        for (index, delegate) in plan.delegates.iter().enumerate() {
            let Some(backend) = backends.get(&delegate.id) else { continue };
            let Some(Ok(contents)) = backend.contents(&delegates::read_payload(program, delegate)?) else {
                continue;
            };
            let base = program.tables().delegate_data(delegate);
            let place = |bytes: &PayloadBytes| match bytes {
                PayloadBytes::Payload(part) => Some(base.start + part.start..base.start + part.end),
                PayloadBytes::Named(key, _) => program.tables().named_data(key),
            };
            for value in &contents.values {
                let PayloadRole::Constant(bytes) = &value.role else { continue };
                let stem = format!("{}.{index}.{}", plan.name, value.name.trim_start_matches('%'));
                let what = format!(
                    "constant {} of {}'s delegate {index}, {}",
                    value.name,
                    plan.name,
                    value.type_text()
                );
                if let Some(range) =
                    place(bytes).filter(|range| seen.insert((range.clone(), value.type_text())))
                {
                    parts.add_payload_constant(program.loader(), &stem, what, value, range)?;
                }
                if let Some(range) = value.scales.as_ref().and_then(place)
                    && seen.insert((range.clone(), String::new()))
                {
                    let what =
                        format!("scales of constant {} of {}'s delegate {index}", value.name, plan.name);
                    parts.add_bytes(
                        program.loader(),
                        "constants",
                        &format!("{stem}.scales"),
                        what,
                        None,
                        range,
                    );
                }
            }
        }
    }
    Ok(())
}

fn add_named_data(data: &PtdDataMap, selection: Selection, parts: &mut Parts<'_>) -> Result<()> {
    let (tables, loader) = (data.tables(), data.loader());
    if selection.segments {
        let base = data.header().segment_base_offset;
        for (index, segment) in tables.segments.iter().enumerate().filter(|(_, s)| s.size > 0) {
            let start = base.saturating_add(segment.offset);
            let range = start..start.saturating_add(segment.size);
            parts.add_bytes(loader, "segments", &format!("{index:03}"), "segment".to_owned(), None, range);
        }
    }
    for entry in &tables.named_data {
        let (range, name) = (tables.data_range(entry), Some(entry.key.as_str()));
        match &entry.tensor_layout {
            Some(layout) if selection.constants => {
                parts.add_array(loader, &entry.key, show::layout(layout), name, range, layout)?;
            }
            None if selection.named_data => {
                parts.add_bytes(loader, "named_data", &entry.key, "blob".to_owned(), name, range);
            }
            _ => {}
        }
    }
    Ok(())
}

/// Parts under construction.
struct Parts<'p> {
    all: Vec<Part>,
    used_paths: HashSet<String>,
    progress: &'p Progress,
}

impl Parts<'_> {
    fn add_bytes(
        &mut self,
        loader: &Arc<dyn DataLoader>,
        folder: &str,
        stem: &str,
        what: String,
        name: Option<&str>,
        bytes: Range<u64>,
    ) {
        let blob = blob_source(loader, self.progress)(bytes.clone());
        let output = Output::stream(blob.len(), self.progress, move |out| blob.copy_to(out));
        let path = self.unique_path(folder, stem, "bin");
        self.all.push(Part { path, what, name: name.map(str::to_owned), bytes, output });
    }

    fn add_array(
        &mut self,
        loader: &Arc<dyn DataLoader>,
        stem: &str,
        what: String,
        name: Option<&str>,
        bytes: Range<u64>,
        layout: &TensorLayout,
    ) -> Result<()> {
        let sizes: Vec<usize> = layout.sizes.iter().map(|&size| usize::try_from(size).unwrap_or(0)).collect();
        let dtype = ScalarType::from_i8(layout.scalar_type)?;
        let meta = TensorMeta::new(dtype, &sizes, DimOrder::new(&layout.dim_order)?)?;
        let (loader, range) = (Arc::clone(loader), bytes.clone());
        let make = move || -> Result<npy::File> {
            let (expected, available) = (meta.nbytes(), range.end.saturating_sub(range.start));
            if expected as u64 != available {
                let available = usize::try_from(available).unwrap_or(usize::MAX);
                return Err(pteron_tensor::Error::WrongByteCount { expected, found: available }.into());
            }
            let mut tensor = Tensor::zeros(meta.clone())?;
            let mut view = tensor.view_mut();
            loader.load_into(range.start, view.bytes_mut(), Purpose::Constant)?;
            npy::swap_on_big_endian(meta.dtype(), view.bytes_mut());
            npy::File::new(&tensor)
        };
        let len = bytes.end - bytes.start;
        let output = Output::stream(len, self.progress, move |out| {
            let file = make().map_err(|e| std::io::Error::other(crate::one_line(&e)))?;
            Ok(file.write_to(out)?)
        });
        let path = self.unique_path("constants", stem, "npy");
        self.all.push(Part { path, what, name: name.map(str::to_owned), bytes, output });
        Ok(())
    }

    /// Adds a constant of a payload. `range` may include padding after the elements.
    fn add_payload_constant(
        &mut self,
        loader: &Arc<dyn DataLoader>,
        stem: &str,
        what: String,
        value: &PayloadValue,
        range: Range<u64>,
    ) -> Result<()> {
        let sizes: Option<Vec<i32>> = value.sizes.iter().map(|&size| i32::try_from(size).ok()).collect();
        let order: Option<Vec<u8>> = (0..value.sizes.len()).map(|d| u8::try_from(d).ok()).collect();
        let layout = value
            .scalar_type
            .zip(sizes)
            .zip(order)
            .map(|((dtype, sizes), dim_order)| TensorLayout { scalar_type: dtype as i8, sizes, dim_order });
        let Some((layout, len)) = layout.and_then(|layout| layout.nbytes().map(|len| (layout, len))) else {
            self.add_bytes(loader, "constants", stem, what, None, range);
            return Ok(());
        };
        let end = range.start.saturating_add(len).min(range.end);
        self.add_array(loader, stem, what, None, range.start..end, &layout)
    }

    /// A new path, different from those of all other parts.
    fn unique_path(&mut self, folder: &str, stem: &str, end: &str) -> String {
        /// Maximum number of characters of a name in a path.
        const MAX_STEM: usize = 100;
        let safe = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let stem: String = stem.chars().map(safe).take(MAX_STEM).collect();
        let stem = match stem.trim_start_matches('.') {
            "" => "unnamed".to_owned(),
            stem => stem.to_owned(),
        };
        let numbered = (2..).map(|n| format!("{folder}/{stem}.{n}.{end}"));
        let mut candidates = std::iter::once(format!("{folder}/{stem}.{end}")).chain(numbered);
        // File systems may be case-insensitive.
        let path = candidates.find(|path| self.used_paths.insert(path.to_ascii_lowercase()));
        path.unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_stay_in_the_folder_and_are_unique() {
        let progress = Progress::default();
        let mut parts = Parts { all: Vec::new(), used_paths: HashSet::new(), progress: &progress };
        let mut path = |stem: &str| parts.unique_path("named_data", stem, "bin");
        assert_eq!(path("../../etc/passwd"), "named_data/_.._etc_passwd.bin");
        assert_eq!(path(""), "named_data/unnamed.bin");
        assert_eq!(path(".."), "named_data/unnamed.2.bin");
        assert_eq!(path("a b"), "named_data/a_b.bin");
        assert_eq!(path("A/B"), "named_data/A_B.2.bin");
        assert_eq!(path(&"x".repeat(5000)).len(), "named_data/.bin".len() + 100);
    }
}
