//! What a program says of a method in named data of its own: the sizes that the export allows for the inputs, and what
//! the delegates compute.

use crate::open::own_data::{malformed_entry, parse_entry};
use crate::{Program, Result};
use pteron_exported::InputSizes;
use pteron_exported::delegate::DelegateSources;
use pteron_format::pte::{EValue, ExecutionPlan, delegate_sources_key, input_sizes_key};

/// The allowed sizes of the inputs of a plan; `None` if the program does not record them.
pub(crate) fn of(program: &Program, plan: &ExecutionPlan) -> Result<Option<InputSizes>> {
    let key = input_sizes_key(&plan.name);
    let Some(sizes) = parse_entry(program, &plan.name, &key)? else { return Ok(None) };
    check(&sizes, plan).map_err(|problem| malformed_entry(&plan.name, &key, problem))?;
    Ok(Some(sizes))
}

/// The source operators from which a plan's delegates were compiled; `None` if the program does not record them.
pub(crate) fn delegate_sources(program: &Program, plan: &ExecutionPlan) -> Result<Option<DelegateSources>> {
    parse_entry(program, &plan.name, &delegate_sources_key(&plan.name))
}

/// Checks that `sizes` fits the plan's inputs: equally many, with the same ranks, and within the upper bounds.
fn check(sizes: &InputSizes, plan: &ExecutionPlan) -> Result<(), String> {
    if sizes.num_inputs() != plan.inputs.len() {
        return Err(format!("it is for {} inputs, the method has {}", sizes.num_inputs(), plan.inputs.len()));
    }
    for (input, &value) in plan.inputs.iter().enumerate() {
        let tensor = plan.values.get(value as usize).and_then(EValue::as_tensor);
        let fits = match (sizes.rank(input), tensor) {
            (Some(rank), Some(tensor)) if rank == tensor.sizes.len() => {
                tensor.sizes.iter().enumerate().all(|(dim, &bound)| {
                    sizes.fixed_size(input, dim).is_none_or(|size| (0..=i64::from(bound)).contains(&size))
                })
            }
            (None, None) => true,
            _ => false,
        };
        if !fits {
            return Err(format!("its sizes of input {input} are not those of the method's tables"));
        }
    }
    Ok(())
}
