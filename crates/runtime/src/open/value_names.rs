//! The names of a method's inputs and outputs, and calls by name.

use crate::open::own_data::{malformed_entry, parse_entry};
use crate::{Error, InputProblem, MethodMeta, Result, ValueMeta};
use pteron_exported::containers;
use pteron_format::pte::{ValueNames, value_names_key};

impl MethodMeta<'_> {
    /// The names of the inputs and outputs. A program that Pteron compiled stores them; for any other, the name of an input
    /// or output is that of its tensor, or of the keyword argument that it was passed as when the model was exported.
    ///
    /// # Errors
    /// The stored names cannot be read, or are not those of this method.
    pub fn value_names(&self) -> Result<ValueNames> {
        let (plan, key) = (self.plan(), value_names_key(self.name()));
        let Some(names) = parse_entry::<ValueNames>(self.program(), self.name(), &key)? else {
            return Ok(self.names_in_tables());
        };
        let (stored, expected) =
            ([names.inputs.len(), names.outputs.len()], [plan.inputs.len(), plan.outputs.len()]);
        if stored != expected {
            let [inputs, outputs] = stored;
            let problem = format!(
                "it names {inputs} inputs and {outputs} outputs, the method has {} and {}",
                expected[0], expected[1]
            );
            return Err(malformed_entry(self.name(), &key, problem));
        }
        Ok(names)
    }

    fn names_in_tables(&self) -> ValueNames {
        let tensors = |values: Vec<ValueMeta>| {
            values.into_iter().map(|value| value.tensor.and_then(|tensor| tensor.name)).collect()
        };
        let mut names = ValueNames { inputs: tensors(self.inputs()), outputs: tensors(self.outputs()) };
        let containers = self.plan().container_meta_type.as_ref();
        let inputs = containers.and_then(|c| containers::input_names(c.encoded_inp_str.as_deref()?, &[]));
        let outputs = containers.and_then(|c| containers::output_names(c.encoded_out_str.as_deref()?));
        for (names, by_container) in [(&mut names.inputs, inputs), (&mut names.outputs, outputs)] {
            // Containers with another number of values do not describe these.
            let by_container = by_container.filter(|by_container| by_container.len() == names.len());
            for (name, by_container) in names.iter_mut().zip(by_container.into_iter().flatten()) {
                *name = name.take().or(by_container);
            }
        }
        names
    }
}

/// The inputs of a call in the order of the method: those given by position, and those given by name. Inputs that the
/// exporter fixed may be omitted, and are `None`. Positional values go to the other inputs, or to all inputs if there
/// are more values than those.
///
/// # Errors
/// There are too many, a name is not that of an input, or an input is given twice or is missing.
pub fn arrange_inputs<T>(
    method: &str,
    declared: &[ValueMeta],
    names: &[Option<String>],
    positional: impl ExactSizeIterator<Item = T>,
    named: impl IntoIterator<Item = (String, T)>,
) -> Result<Vec<Option<T>>> {
    let fails = |problem| Error::Input { method: method.to_owned(), problem };
    let is_open = |&i: &usize| declared[i].traced.is_none();
    let mut open: Vec<usize> = (0..declared.len()).filter(is_open).collect();
    if positional.len() > open.len() {
        open = (0..declared.len()).collect();
    }
    if positional.len() > open.len() {
        return Err(fails(InputProblem::Count { expected: declared.len(), found: positional.len() }));
    }
    let mut inputs: Vec<Option<T>> = declared.iter().map(|_| None).collect();
    let mut count = positional.len();
    positional.zip(open).for_each(|(value, i)| inputs[i] = Some(value));
    for (name, value) in named {
        count += 1;
        let at = names.iter().position(|known| known.as_deref() == Some(&name));
        let Some(at) = at.filter(|&at| at < inputs.len()) else {
            return Err(fails(unknown_name(name, names)));
        };
        if inputs[at].replace(value).is_some() {
            return Err(fails(InputProblem::Twice { name }));
        }
    }
    let is_missing =
        |(input, declared): (&Option<T>, &ValueMeta)| input.is_none() && declared.traced.is_none();
    if inputs.iter().zip(declared).any(is_missing) {
        return Err(fails(InputProblem::Count { expected: declared.len(), found: count }));
    }
    Ok(inputs)
}

fn unknown_name(name: String, names: &[Option<String>]) -> InputProblem {
    let known: Vec<&str> = names.iter().flatten().map(String::as_str).collect();
    let hint = match known.is_empty() {
        true => "; the program does not name its inputs, so give them by position".to_owned(),
        false => pteron_operator::did_you_mean(&name, known.iter().copied()),
    };
    InputProblem::Name { name, hint }
}
