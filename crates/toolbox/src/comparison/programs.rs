//! The comparison of two programs.

use super::judge::Judge;
use super::layers::{pair_by_place, pair_layers};
use super::outputs::compare_outputs;
use super::record::{Run, record_layers};
use super::{Comparison, ComparisonOptions, Side};
use crate::{Error, Result};
use pteron_format::pte::Instruction;
use pteron_operator::EValue;
use pteron_runtime::Program;

/// Compares two programs on samples: the inputs of the method, which both take.
///
/// # Errors
/// A program does not run on a sample, there are no samples, or the programs have other numbers of outputs.
pub fn compare_programs(
    a: Side<'_>,
    b: Side<'_>,
    samples: &[Vec<EValue>],
    options: &ComparisonOptions,
) -> Result<Comparison> {
    let Some(first) = samples.first() else {
        return Err(Error::input("there are no inputs to compare with"));
    };
    let method = match &options.method {
        Some(name) => name.clone(),
        None => crate::run::default_method(a.program)?,
    };
    let same_instructions = called_names(a.program, &method)? == called_names(b.program, &method)?;
    // Programs with different instructions are fused differently: run as written, they have more values in common.
    let layers =
        |side| record_layers(side, &method, first, Run { no_prepare: !same_instructions, is_second: true });
    let (of_a, of_b) = (layers(a)?, layers(b)?);
    let judge = Judge::new(options, &of_a, &of_b);
    let outputs = compare_outputs(a, b, &method, samples, &judge)?;
    let pairs = pair_layers(&of_a, &of_b, same_instructions);
    let unpaired = [of_a.layers.len() - pairs.len(), of_b.layers.len() - pairs.len()];
    let layers = judge.compare_layers(&of_a, &of_b, &pairs)?;
    let outputs_agree = outputs.iter().all(|output| output.difference.is_none());
    // Where instructions differ, a pair may be of two values that are not meant to be equal.
    let agree = outputs_agree && !(same_instructions && layers.iter().any(|layer| layer.differs));
    let first_layer = if agree { None } else { layers.iter().position(|layer| layer.differs) };
    let mut instruction = None;
    // The first run reads no state that an earlier run wrote; the second run shows faults in the state that the first one wrote.
    for is_second in [false, true] {
        if agree || !same_instructions || instruction.is_some() {
            break;
        }
        let run = Run { no_prepare: true, is_second };
        let (of_a, of_b) = (record_layers(a, &method, first, run)?, record_layers(b, &method, first, run)?);
        let layers = judge.compare_layers(&of_a, &of_b, &pair_by_place(&of_a, &of_b))?;
        instruction = layers.into_iter().find(|layer| layer.differs).map(|layer| layer.b);
    }
    let samples = samples.len();
    Ok(Comparison {
        method,
        samples,
        min_sqnr: judge.min_sqnr,
        outputs,
        layers,
        unpaired,
        first: first_layer,
        instruction,
        agree,
    })
}

/// What the instructions of a method call, in order: operators, and backends with the sizes of the payloads.
fn called_names(program: &Program, method: &str) -> Result<Vec<String>> {
    let plan = program.method_meta(method)?.plan();
    let name = |instruction: &Instruction| match instruction {
        Instruction::KernelCall { op_index, .. } => {
            plan.operators.get(*op_index as usize).map_or_else(String::new, |op| op.full_name())
        }
        Instruction::DelegateCall { delegate_index, .. } => {
            let delegate = plan.delegates.get(*delegate_index as usize);
            delegate.map_or_else(String::new, |d| {
                format!("{}, {} bytes", d.id, program.tables().delegate_data(d).count())
            })
        }
        other => other.kind().to_owned(),
    };
    Ok(plan.chains.iter().flat_map(|chain| &chain.instructions).map(name).collect())
}
