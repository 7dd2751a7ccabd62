use super::keys::{DedupBuilder, layout_of, sha256};
use super::{Output, finish, revise};
use crate::file::{Progress, blob_source};
use crate::pattern::{Pattern, fits_any, require_fitting};
use crate::{Error, Result};
use pteron_format::pte::{EValue, ExecutionPlan, Tensor, TensorData, TensorDataLocation, is_own_key};
use pteron_runtime::Program;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Which weights to move out of a program.
#[derive(Debug, Clone, Default)]
pub struct MoveOptions {
    /// Moves only weights of at least this many bytes.
    pub at_least: u64,
    /// Whether the initial values of mutable tensors are moved, too.
    pub initial: bool,
    /// Moves only weights whose names fit one of these patterns; all weights if the list is empty. The name of a weight that has none is
    /// the SHA-256 of its bytes.
    pub names: Vec<Pattern>,
}

/// The result of [`externalize`]: a program and its moved weights.
#[derive(Debug, Serialize)]
pub struct Externalized {
    /// The keys under which the program looks up the moved weights.
    pub keys: Vec<String>,
    /// Bytes of the moved weights; weights with equal bytes count once.
    pub bytes: u64,
    /// Descriptions of what the edit could not keep.
    pub lost: Vec<String>,
    /// The new program.
    #[serde(skip)]
    pub program: Output,
    /// The file of the moved weights.
    #[serde(skip)]
    pub data: Output,
}

/// Moves the weights of a program into a `.ptd` file: constants, and named data, in which delegates
/// keep their weights. Together with that file, the new program computes the same results.
///
/// A tensor's key is its name in the model, or the SHA-256 of its bytes if it has none. Tensors that the reference
/// runtime does not resolve externally stay in the program: inputs, outputs, and tensors without elements. If there are
/// tensors without elements, the smallest other constant stays too, because the reference refuses an empty segment.
///
/// # Errors
/// If there is nothing to move, or one of the names is that of no weight.
pub fn externalize(program: &Program, options: &MoveOptions, progress: &Progress) -> Result<Externalized> {
    program.require_valid_methods()?;
    let mut revision = revise(program, progress)?;
    let tables = program.tables();
    let bytes_of = blob_source(program.loader(), progress);
    let mut digests = Digests { program, progress, known: HashMap::new() };

    let mut names: Vec<String> = Vec::new();
    let mut is_wanted = |name: &str| {
        if !options.names.is_empty() {
            names.push(name.to_owned());
        }
        fits_any(&options.names, name)
    };
    let moved: HashSet<&str> = tables
        .named_data
        .iter()
        .filter(|entry| !is_own_key(&entry.key) && is_wanted(&entry.key))
        .filter(|entry| {
            let range = tables.named_data(&entry.key).unwrap_or_default();
            range.end - range.start >= options.at_least.max(1)
        })
        .map(|entry| entry.key.as_str())
        .collect();
    let mut data = DedupBuilder::new(keys_in_use(program));
    for entry in tables.named_data.iter().filter(|entry| moved.contains(entry.key.as_str())) {
        let range = tables.named_data(&entry.key).unwrap_or_default();
        let alignment = revision.alignment_of_segment(entry.segment_index);
        data.add_blob(&entry.key, digests.sha256(range.clone())?, alignment, || bytes_of(range))?;
    }
    revision.program.named_data.retain(|entry| !moved.contains(entry.key.as_str()));

    // No runtime supports inline constants together with external weights.
    revision.move_constants_to_segment();
    let stays = constant_to_keep(program);
    for (plan, new) in tables.execution_plan.iter().zip(&mut revision.program.execution_plan) {
        for (id, (old, new)) in plan.values.iter().zip(&mut new.values).enumerate() {
            let (EValue::Tensor(old), EValue::Tensor(new)) = (old, new) else { continue };
            if is_input_or_output(plan, id) {
                continue;
            }
            let range = match tables.tensor_data(old) {
                TensorData::Constant(range) => range,
                TensorData::Initial(range) if options.initial => range,
                _ => continue,
            };
            let name = old.fully_qualified_name().filter(|name| !name.is_empty());
            let is_wanted = match name {
                Some(name) => is_wanted(name),
                None => options.names.is_empty() || is_wanted(digests.sha256(range.clone())?),
            };
            let is_small = range.end - range.start < options.at_least.max(1);
            if !is_wanted || is_small || Some(&range) == stays.as_ref() {
                continue;
            }
            let digest = digests.sha256(range.clone())?;
            let key = data.add_tensor(name, digest, layout_of(old), || bytes_of(range));
            make_external(new, key);
        }
    }
    require_fitting(&options.names, names.iter().map(String::as_str), "weight")?;
    if data.keys().next().is_none() {
        let name = program.loader().name();
        return Err(Error::input(match options.at_least {
            0 => format!("{name} has no weights to move"),
            n => format!("{name} has no weights of at least {n} bytes to move"),
        }));
    }
    let (program, lost) = finish(revision, progress)?;
    Ok(Externalized {
        keys: data.keys().map(str::to_owned).collect(),
        bytes: data.bytes(),
        lost,
        program,
        data: Output::named_data(data.into_builder(), progress)?,
    })
}

/// Whether a value is an input or output of the method, which the reference runtime does not resolve externally.
pub(super) fn is_input_or_output(plan: &ExecutionPlan, id: usize) -> bool {
    plan.inputs.iter().chain(&plan.outputs).any(|&seen| usize::try_from(seen) == Ok(id))
}

/// The smallest non-empty constant, if the program has empty constants as well. It must stay in the program, because the
/// reference runtime refuses the empty segment that would be left.
pub(super) fn constant_to_keep(program: &Program) -> Option<Range<u64>> {
    let tables = program.tables();
    let constants = tables.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(EValue::as_tensor);
    let ranges = constants.filter_map(|tensor| match tables.tensor_data(tensor) {
        TensorData::Constant(range) => Some(range),
        _ => None,
    });
    let (empty, full): (Vec<_>, Vec<_>) = ranges.partition(Range::is_empty);
    full.into_iter().min_by_key(|range| (range.end - range.start, range.start)).filter(|_| !empty.is_empty())
}

/// Keys that are in use already: those of a program's named data and of its external tensors.
pub(super) fn keys_in_use(program: &Program) -> HashSet<String> {
    let tables = program.tables();
    let external = tables
        .execution_plan
        .iter()
        .flat_map(|plan| &plan.values)
        .filter_map(EValue::as_tensor)
        .filter(|tensor| tensor.is_external())
        .filter_map(Tensor::fully_qualified_name);
    tables.named_data.iter().map(|entry| entry.key.as_str()).chain(external).map(str::to_owned).collect()
}

/// Makes a tensor external: its data is looked up by this key.
pub(super) fn make_external(tensor: &mut Tensor, key: String) {
    let info = tensor.extra_tensor_info.get_or_insert_default();
    info.fully_qualified_name = Some(key);
    info.location = TensorDataLocation::External;
    info.mutable_data_segments_idx = 0;
    tensor.data_buffer_idx = 0;
}

/// The SHA-256 of byte ranges of a program; each range is read once.
pub(super) struct Digests<'p> {
    pub(super) program: &'p Program,
    pub(super) progress: &'p Progress,
    pub(super) known: HashMap<Range<u64>, String>,
}

impl Digests<'_> {
    pub(super) fn sha256(&mut self, range: Range<u64>) -> Result<&str> {
        if !self.known.contains_key(&range) {
            let digest = sha256(self.program.loader(), range.clone(), self.progress)?;
            self.known.insert(range.clone(), digest);
        }
        Ok(&self.known[&range])
    }
}
