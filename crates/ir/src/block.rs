use crate::{BlockId, NodeId, ValueId};
use smallvec::SmallVec;

/// Nodes that run one after another, and a terminator.
#[derive(Clone, Default)]
pub struct Block {
    pub(crate) parameters: Vec<ValueId>,
    pub(crate) first: Option<NodeId>,
    pub(crate) last: Option<NodeId>,
    pub(crate) terminator: Terminator,
    /// Where each operand of the terminator stands in the uses of its value.
    pub(crate) use_at: Vec<u32>,
}

impl Block {
    /// What the block is given.
    pub fn parameters(&self) -> &[ValueId] {
        &self.parameters
    }

    /// How it ends.
    pub fn terminator(&self) -> &Terminator {
        &self.terminator
    }
}

/// The end of a block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Terminator {
    pub(crate) targets: SmallVec<[BlockId; 2]>,
    /// Whether the first operand is a condition.
    pub(crate) conditional: bool,
    pub(crate) operands: Vec<ValueId>,
    /// Operands before this one go to the first target, after the condition; the others to the second.
    pub(crate) split: usize,
}

impl Default for Terminator {
    /// A return of nothing.
    fn default() -> Self {
        Self::returns(&[])
    }
}

impl Terminator {
    /// The graph ends here, with these results.
    pub fn returns(values: &[ValueId]) -> Self {
        Self { targets: SmallVec::new(), conditional: false, operands: values.to_vec(), split: values.len() }
    }

    /// Goes on with a block, whose parameters become these values.
    pub fn jump(to: BlockId, values: &[ValueId]) -> Self {
        Self {
            targets: SmallVec::from_slice(&[to]),
            conditional: false,
            operands: values.to_vec(),
            split: values.len(),
        }
    }

    /// Goes on with the first block if the condition is true, otherwise with the second.
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

    /// The blocks that may come next: none after a return.
    pub fn targets(&self) -> &[BlockId] {
        &self.targets
    }

    /// The boolean that decides.
    pub fn condition(&self) -> Option<ValueId> {
        self.operands.first().copied().filter(|_| self.conditional)
    }

    /// What the parameters of a target become.
    pub fn values(&self, target: usize) -> &[ValueId] {
        match target {
            0 => &self.operands[usize::from(self.conditional)..self.split],
            _ => &self.operands[self.split..],
        }
    }

    /// All that it uses: the condition, then the values for each target or the results.
    pub fn operands(&self) -> &[ValueId] {
        &self.operands
    }

    /// Whether the graph ends here.
    pub fn is_return(&self) -> bool {
        self.targets.is_empty()
    }
}
