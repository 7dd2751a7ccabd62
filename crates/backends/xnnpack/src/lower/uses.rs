use super::quantized::QuantizationMap;
use pteron_exported::{ExportedProgram, VarId};

/// The uses of a program's values.
pub(super) struct Uses<'p> {
    count: Vec<u32>,
    /// For each value, the index of its last user among the nodes of the outermost graph.
    node: Vec<Option<usize>>,
    pub(super) quantization: QuantizationMap<'p>,
}

impl<'p> Uses<'p> {
    pub(super) fn of(program: &'p ExportedProgram) -> Self {
        let mut node = vec![None; program.num_vars()];
        for (index, user) in program.graph.nodes.iter().enumerate() {
            user.operands().for_each(|var| node[var.index()] = Some(index));
        }
        Self { count: program.use_counts(), node, quantization: QuantizationMap::of(program) }
    }

    /// Whether a value is used.
    pub(super) fn is_used(&self, var: VarId) -> bool {
        self.count.get(var.index()).is_some_and(|count| *count > 0)
    }

    /// The index, in the outermost graph, of the node that uses a value; `None` unless the value has exactly one use.
    pub(super) fn sole_user(&self, var: VarId) -> Option<usize> {
        self.node[var.index()].filter(|_| self.count[var.index()] == 1)
    }
}
