use pteron_toolbox::batch::{self, Column, OutputColumn, Spec, Stacked};
use pteron_toolbox::{Error, Result};

/// Calls `execute` with one column for each of `inputs`: the only one of its `parts`, or all of them, stacked.
///
/// # Errors
/// As [`Stacked::of`], and those of `execute`.
pub fn with_stacked<T, E: From<Error>>(
    inputs: &[Spec],
    parts: &[Vec<&dyn Column>],
    execute: impl FnOnce(&[&dyn Column]) -> Result<T, E>,
) -> Result<T, E> {
    let stacked = parts.iter().zip(inputs).map(|(parts, spec)| match &parts[..] {
        [_] => Ok(None),
        _ => Stacked::of(&spec.label("input"), parts, spec.dtype).map(Some),
    });
    let stacked: Vec<_> = stacked.collect::<Result<_>>()?;
    let columns = parts.iter().enumerate().map(|(i, parts)| match stacked.get(i) {
        Some(Some(stacked)) => stacked as &dyn Column,
        _ => parts[0],
    });
    execute(&columns.collect::<Vec<_>>())
}

/// The outputs or, with `count`, the indices of that many largest elements of the only output, and these elements.
///
/// # Errors
/// If there is another number of outputs, or as [`batch::top`].
pub fn with_top(outputs: Vec<OutputColumn>, count: Option<usize>) -> Result<Vec<OutputColumn>> {
    let Some(count) = count else { return Ok(outputs) };
    let mut outputs = outputs.into_iter();
    match (outputs.next(), outputs.next()) {
        (Some(only), None) => Ok(batch::top(only, count)?.into()),
        _ => Err(Error::input("top is of the only output, and the program has another number")),
    }
}
