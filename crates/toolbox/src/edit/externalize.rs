use super::keys::{Shelf, layout_of, sha256};
use super::{Output, take_apart};
use crate::file::{Progress, source};
use crate::{Error, Result};
use format::pte::{EValue, ExecutionPlan, Tensor, TensorData, TensorDataLocation};
use runtime::Program;
use serde::Serialize;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// Which weights leave a program.
#[derive(Debug, Clone, Copy, Default)]
pub struct MoveOptions {
    /// Only those of at least this many bytes.
    pub at_least: u64,
    /// Also the initial values of tensors that the program changes.
    pub initial: bool,
}

/// A program and the weights that have left it.
#[derive(Debug, Serialize)]
pub struct Externalized {
    /// The keys under which the program asks for its weights.
    pub keys: Vec<String>,
    /// Bytes of weights that were moved.
    pub bytes: u64,
    /// The new program.
    #[serde(skip)]
    pub program: Output,
    /// The weights.
    #[serde(skip)]
    pub data: Output,
}

/// Moves the weights of a program into a `.ptd` file: constants, and named data, which is what delegates
/// keep their weights in. The program does the same if it is given that file.
///
/// A tensor's key is its name in the model, or the SHA-256 of its bytes if it has none. What the reference
/// runtime does not look for outside stays: constants that are outputs, and tensors without elements, which
/// one constant keeps company, as it refuses a segment without bytes.
pub fn externalize(program: &Program, options: MoveOptions, progress: &Progress) -> Result<Externalized> {
    let mut builder = take_apart(program, progress);
    let tables = program.tables();
    let bytes_of = source(program.loader(), progress);
    let mut digests = Digests { program, progress, known: HashMap::new() };

    let moved: HashSet<&str> = tables
        .named_data
        .iter()
        .filter(|entry| {
            let range = tables.named_data(&entry.key).unwrap_or_default();
            range.end - range.start >= options.at_least.max(1)
        })
        .map(|entry| entry.key.as_str())
        .collect();
    let mut shelf = Shelf::new(keys_in_use(program));
    for entry in tables.named_data.iter().filter(|entry| moved.contains(entry.key.as_str())) {
        let range = tables.named_data(&entry.key).unwrap_or_default();
        shelf.blob(&entry.key, digests.of(range.clone())?, || bytes_of(range))?;
    }
    builder.named_data.retain(|entry| !moved.contains(entry.key.as_str()));

    // No runtime knows inline constants and weights outside at once.
    builder.inline_constants = false;
    let stays = staying_constant(program);
    for (plan, new) in tables.execution_plan.iter().zip(&mut builder.execution_plan) {
        for (id, (old, new)) in plan.values.iter().zip(&mut new.values).enumerate() {
            let (EValue::Tensor(old), EValue::Tensor(new)) = (old, new) else { continue };
            if is_seen_outside(plan, id) {
                continue;
            }
            let range = match tables.tensor_data(old) {
                TensorData::Constant(range) => range,
                TensorData::Initial(range) if options.initial => range,
                _ => continue,
            };
            if range.end - range.start < options.at_least.max(1) || Some(&range) == stays.as_ref() {
                continue;
            }
            let digest = digests.of(range.clone())?;
            let key = shelf.tensor(old.fully_qualified_name(), digest, layout_of(old), || bytes_of(range));
            look_outside(new, key);
        }
    }
    if shelf.keys().next().is_none() {
        let name = program.loader().name();
        return Err(Error::input(match options.at_least {
            0 => format!("{name} has no weights to move"),
            n => format!("{name} has no weights of at least {n} bytes to move"),
        }));
    }
    Ok(Externalized {
        keys: shelf.keys().map(str::to_owned).collect(),
        bytes: shelf.bytes(),
        program: Output::program(builder, progress)?,
        data: Output::data(shelf.into_builder(), progress)?,
    })
}

/// Whether a value is an input or output, which the reference runtime does not look for outside.
pub(super) fn is_seen_outside(plan: &ExecutionPlan, id: usize) -> bool {
    plan.inputs.iter().chain(&plan.outputs).any(|&seen| usize::try_from(seen) == Ok(id))
}

/// The smallest constant, if the program has constants without bytes too: without it their segment would have
/// none, which the reference runtime refuses.
pub(super) fn staying_constant(program: &Program) -> Option<Range<u64>> {
    let tables = program.tables();
    let constants = tables.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(EValue::as_tensor);
    let ranges = constants.filter_map(|tensor| match tables.tensor_data(tensor) {
        TensorData::Constant(range) => Some(range),
        _ => None,
    });
    let (empty, full): (Vec<_>, Vec<_>) = ranges.partition(Range::is_empty);
    full.into_iter().min_by_key(|range| (range.end - range.start, range.start)).filter(|_| !empty.is_empty())
}

/// Keys that stand for something already: named data of a program, and what it asks other files for.
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

/// Makes a tensor one whose bytes are outside the program, under this key.
pub(super) fn look_outside(tensor: &mut Tensor, key: String) {
    let info = tensor.extra_tensor_info.get_or_insert_default();
    info.fully_qualified_name = Some(key);
    info.location = TensorDataLocation::External;
    info.mutable_data_segments_idx = 0;
    tensor.data_buffer_idx = 0;
}

/// The SHA-256 of ranges of a program, each read once.
pub(super) struct Digests<'p> {
    pub(super) program: &'p Program,
    pub(super) progress: &'p Progress,
    pub(super) known: HashMap<Range<u64>, String>,
}

impl Digests<'_> {
    pub(super) fn of(&mut self, range: Range<u64>) -> Result<&str> {
        if !self.known.contains_key(&range) {
            let digest = sha256(self.program.loader(), range.clone(), self.progress)?;
            self.known.insert(range.clone(), digest);
        }
        Ok(&self.known[&range])
    }
}
