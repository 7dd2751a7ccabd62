use crate::{BlockId, NodeId, ValueId};
use smallvec::SmallVec;

/// Nodes that run one after another, and a terminator.
#[derive(Clone, Default)]
pub struct Block {
    pub(crate) parameters: Vec<ValueId>,
    pub(crate) first: Option<NodeId>,
    pub(crate) last: Option<NodeId>,
    pub(crate) terminator: Terminator,
    /// For each operand of the terminator, the index of its entry in the use list of the operand's value.
    pub(crate) use_at: Vec<u32>,
}

impl Block {
    /// The values that predecessors pass to the block.
    pub fn parameters(&self) -> &[ValueId] {
        &self.parameters
    }

    /// The jump, branch or return that ends the block.
    pub fn terminator(&self) -> &Terminator {
        &self.terminator
    }
}

/// The last instruction of a block: a jump, a branch or a return.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminator {
    pub(crate) targets: SmallVec<[BlockId; 2]>,
    /// Whether the first operand is the branch condition.
    pub(crate) conditional: bool,
    pub(crate) operands: Vec<ValueId>,
    /// The index of the first operand that is passed to the second target. The operands before it, except the
    /// condition, are passed to the first target or, by a return, to the caller.
    pub(crate) split: usize,
}

impl Default for Terminator {
    /// A return without results.
    fn default() -> Self {
        Self::returns(&[])
    }
}

impl Terminator {
    /// Returns from the graph with these results.
    pub fn returns(values: &[ValueId]) -> Self {
        Self { targets: SmallVec::new(), conditional: false, operands: values.to_vec(), split: values.len() }
    }

    /// Jumps to a block and passes these values for its parameters.
    pub fn jump(to: BlockId, values: &[ValueId]) -> Self {
        Self {
            targets: SmallVec::from_slice(&[to]),
            conditional: false,
            operands: values.to_vec(),
            split: values.len(),
        }
    }

    /// Branches to the first block if the condition is true, otherwise to the second.
    pub fn branch(
        condition: ValueId,
        (then, then_values): (BlockId, &[ValueId]),
        (otherwise, otherwise_values): (BlockId, &[ValueId]),
    ) -> Self {
        Self {
            targets: SmallVec::from_slice(&[then, otherwise]),
            conditional: true,
            operands: [&[condition], then_values, otherwise_values].concat(),
            split: 1 + then_values.len(),
        }
    }

    /// The successor blocks: none for a return.
    pub fn targets(&self) -> &[BlockId] {
        &self.targets
    }

    /// The boolean that a branch tests; `None` for jumps and returns.
    pub fn condition(&self) -> Option<ValueId> {
        self.operands.first().copied().filter(|_| self.conditional)
    }

    /// The values passed for the parameters of the target with this index; index 0 of a return gives its results.
    pub fn values(&self, target: usize) -> &[ValueId] {
        match target {
            0 => &self.operands[usize::from(self.conditional)..self.split],
            _ => &self.operands[self.split..],
        }
    }

    /// All values that the terminator uses: the condition, then the values for each target, or the results.
    pub fn operands(&self) -> &[ValueId] {
        &self.operands
    }

    /// Whether this terminator is a return.
    pub fn is_return(&self) -> bool {
        self.targets.is_empty()
    }
}
