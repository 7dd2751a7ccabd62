//! When values are written and read, and which steps may therefore write in place.

use super::super::placed::PlacedStep;
use crate::graph::{Graph, ValueId};

/// The steps that write and read each value. Reading an alias counts as reading the value that it stands for.
pub(super) struct Uses {
    /// The step that writes each value; `usize::MAX` if none does.
    pub(super) first: Vec<usize>,
    /// The last step that writes or reads each value; the number of steps for a graph output.
    pub(super) last: Vec<usize>,
    /// Whether a step, or the caller, reads each value.
    pub(super) is_read: Vec<bool>,
}

impl Uses {
    pub(super) fn of(graph: &Graph, steps: &[PlacedStep], alias: &[usize]) -> Self {
        let count = graph.num_values();
        let mut uses =
            Self { first: vec![usize::MAX; count], last: vec![0; count], is_read: vec![false; count] };
        for (i, step) in steps.iter().enumerate() {
            for &v in &step.outputs {
                (uses.first[v], uses.last[v]) = (i, i.max(uses.last[v]));
            }
            step.inputs.iter().for_each(|&v| uses.note_read(alias[v], i));
        }
        graph.outputs().iter().for_each(|v| uses.note_read(alias[v.index()], steps.len()));
        uses
    }

    fn note_read(&mut self, value: usize, step: usize) {
        (self.last[value], self.is_read[value]) = (step, true);
    }
}

/// Lets steps that update a part of a value, such as a slice, write into its memory if nothing reads the old value
/// afterwards: the rest is not copied. Returns for each value the one whose memory it has: itself, or the first of a
/// chain of updates.
pub(super) fn overwrite_dead_inputs(
    graph: &Graph,
    steps: &mut [PlacedStep],
    alias: &[usize],
    uses: &Uses,
) -> Vec<usize> {
    let mut shared: Vec<usize> = (0..graph.num_values()).collect();
    let (ids, end): (Vec<ValueId>, usize) = (graph.values().collect(), steps.len());
    for (i, step) in steps.iter_mut().enumerate() {
        let &[out] = &step.outputs[..] else { continue };
        let meta = graph.meta(ids[out]);
        let may_overwrite = |&read: &usize| {
            let value = alias[step.inputs[read]];
            let is_own = uses.first[value] != usize::MAX && graph.meta(ids[value]).nbytes() == meta.nbytes();
            let readers = step.inputs.iter().filter(|&&other| alias[other] == value).count();
            is_own && uses.last[value] == i && readers == 1 && graph.meta(ids[step.inputs[read]]) == meta
        };
        // A graph output may be in the caller's memory.
        if uses.last[out] == end {
            continue;
        }
        if let Some(read) = step.step.overwritable_reads().into_iter().find(may_overwrite) {
            shared[out] = shared[alias[step.inputs[read]]];
            step.step.overwrite(read, meta);
            step.inputs.remove(read);
        }
    }
    shared
}
