//! The operands of the first value that differs.

use super::Divergence;
use pteron_runtime::{RaisedMethod, ReachingDef};
use pteron_trace::Place;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A result from which the first differing value was computed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Operand {
    /// The chain and instruction that computed the result.
    pub place: (u32, u32),
    /// The operator that computed the result, or the kind of instruction.
    pub what: String,
    /// The outcome of comparing the result.
    pub state: OperandState,
}

/// The outcome of comparing a result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum OperandState {
    /// The result is equal in both runs, within the tolerance.
    Agrees,
    /// The result differs between the runs.
    Differs,
    /// The result does not exist as a value, because its instruction is fused into the consumer.
    Fused,
    /// The result was not compared.
    Unknown,
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = match self.state {
            OperandState::Agrees => "which agrees",
            OperandState::Differs => "which differs",
            OperandState::Fused => "which is fused into it",
            OperandState::Unknown => "which was not compared",
        };
        let (chain, instruction) = self.place;
        let chain = if chain == 0 { String::new() } else { format!("{chain}:") };
        write!(f, "instruction {chain}{instruction} ({}), {state}", self.what)
    }
}

/// The results that the first differing value reads and, transitively through fused results, their operands; in
/// instruction order.
pub(super) fn operands_of_first_difference(report: &Divergence, raised: &RaisedMethod) -> Vec<Operand> {
    let first = report.first.and_then(|first| report.values[first].place);
    let place = |(chain, instruction)| Place::instruction(chain, instruction);
    let Some(first) = first.and_then(|first| raised.index_of(place(first))) else { return Vec::new() };
    let states = operand_states(report);
    let (mut known, mut open, mut operands) = (BTreeSet::from([first]), vec![first], BTreeMap::new());
    while let Some(instruction) = open.pop().and_then(|index| raised.instruction(index)) {
        for read in &instruction.reads {
            let (ReachingDef::Whole { instruction: Some(from), .. }
            | ReachingDef::Parts { latest: Some(from) }) = read.def
            else {
                continue;
            };
            let Some(source) = raised.instruction(from).filter(|_| known.insert(from)) else { continue };
            let Some(place) = source.place.chain.zip(source.place.instruction) else { continue };
            let state = states.get(&place).copied().unwrap_or(OperandState::Unknown);
            if state == OperandState::Fused {
                open.push(from);
            }
            let what = raised.name(from).unwrap_or_default().to_owned();
            operands.insert(from, Operand { place, what, state });
        }
    }
    operands.into_values().collect()
}

fn operand_states(report: &Divergence) -> BTreeMap<(u32, u32), OperandState> {
    let fused = report.fused.iter().filter_map(|value| Some((value.place?, OperandState::Fused)));
    let mut states: BTreeMap<_, _> = fused.collect();
    for value in &report.values {
        let Some(place) = value.place else { continue };
        let state = states.entry(place).or_insert(OperandState::Agrees);
        match value.difference {
            Some(_) => *state = OperandState::Differs,
            None if *state == OperandState::Fused => *state = OperandState::Agrees,
            None => {}
        }
    }
    states
}
