use crate::edit::Near;
use crate::node::Removed;
use crate::value::scalar_meta;
use crate::{Block, BlockId, Constant, Def, Effect, IntoKind, Kind, Memory, Node, NodeId, Terminator, Type};
use crate::{Use, User, Value, ValueId};
use operator::{Budget, CountedTensor};
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{Scalar, Tensor, TensorMeta, TensorView};
use trace::Place;

/// What takes the memory of computed constants, for messages.
const CONSTANTS: &str = "its computed constants";

/// Between the order numbers of nodes that were appended; nodes put between them take numbers in between.
pub(crate) const GAP: u64 = 1 << 40;

/// What a result of a graph is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Live {
    /// An output of the program.
    Output,
    /// The contents of state when an execution ends: the input of the same number, in the order of
    /// [`Graph::state`], finds them in the next one.
    State(usize),
}

/// Where a graph that only grows stood: see [`Graph::mark`].
#[derive(Debug, Clone)]
pub struct Mark {
    values: usize,
    nodes: usize,
    inputs: usize,
}

/// Values, the nodes that compute them, and the blocks in which those stand. See the crate's page.
#[derive(Clone)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) results: Vec<Live>,
    /// For each input the number of the state that it is, if it is one.
    pub(crate) states: Vec<Option<usize>>,
    pub(crate) memories: u32,
    /// The block that grows.
    cursor: BlockId,
    /// The instruction that is being added.
    origin: Place,
    /// Nodes that are in blocks.
    pub(crate) num_nodes: usize,
    /// Steps of work that edits took, for tests that growth is linear.
    pub(crate) work: u64,
    /// What constants that passes compute are taken from.
    budget: Budget,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Graph {
    /// A graph of one block, the entry, which returns nothing yet.
    pub fn new() -> Self {
        Self {
            name: String::new(),
            values: Vec::new(),
            nodes: Vec::new(),
            blocks: vec![Block::default()],
            results: Vec::new(),
            states: Vec::new(),
            memories: 0,
            cursor: BlockId(0),
            origin: Place::default(),
            num_nodes: 0,
            work: 0,
            budget: Budget::default(),
        }
    }

    /// Names the graph, for listings.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.name = name.into();
    }

    /// The block in which execution begins.
    pub fn entry(&self) -> BlockId {
        BlockId(0)
    }

    /// Adds a tensor that the caller gives at each run.
    pub fn input(&mut self, meta: TensorMeta) -> ValueId {
        self.states.push(None);
        self.parameter(self.entry(), Type::Tensor, meta)
    }

    /// Adds a number that the caller gives at each run.
    pub fn scalar_input(&mut self, dtype: tensor::ScalarType) -> ValueId {
        self.states.push(None);
        self.parameter(self.entry(), Type::Scalar, scalar_meta(dtype))
    }

    /// Adds memory that an execution finds as the last one left it: its contents, an input, and its number,
    /// for [`Live::State`].
    pub fn state(&mut self, meta: TensorMeta) -> (ValueId, usize) {
        let number = self.states.iter().flatten().count();
        self.states.push(Some(number));
        (self.parameter(self.entry(), Type::Tensor, meta), number)
    }

    /// The number of the state that an input is, if it is one.
    pub fn state_of_input(&self, input: usize) -> Option<usize> {
        self.states.get(input).copied().flatten()
    }

    /// Adds memory whose contents are no values, for [`Effect::Read`] and [`Effect::Write`].
    pub fn memory(&mut self) -> Memory {
        self.memories += 1;
        Memory(self.memories - 1)
    }

    /// Adds a constant tensor. Its bytes are as many as the meta says, or more.
    pub fn constant(&mut self, meta: TensorMeta, constant: Constant) -> ValueId {
        let id = self.value_of(Type::Tensor, meta, Def::Constant);
        self.values[id.index()].constant = Some(constant);
        id
    }

    /// Adds a constant that was computed, row-major or not, which counts in the [budget](Self::budget).
    ///
    /// # Errors
    /// If the budget does not have the bytes.
    pub fn computed(&mut self, tensor: Tensor) -> operator::Result<ValueId> {
        let tensor = CountedTensor::new(tensor, CONSTANTS, &self.budget)?;
        Ok(self.constant(tensor.meta().clone(), tensor.into()))
    }

    /// Zero bytes for a constant that is about to be computed, which count in the [budget](Self::budget).
    ///
    /// # Errors
    /// If the budget does not have the bytes, or the system has no memory.
    pub fn zeros(&self, meta: TensorMeta) -> operator::Result<CountedTensor> {
        CountedTensor::zeros(meta, CONSTANTS, &self.budget)
    }

    /// A copy of a constant that is about to be changed, which counts in the [budget](Self::budget).
    ///
    /// # Errors
    /// If the budget does not have the bytes, or the system has no memory.
    pub fn copied(&self, of: &TensorView<'_>) -> operator::Result<CountedTensor> {
        CountedTensor::copied(of, CONSTANTS, &self.budget)
    }

    /// What computed constants are taken from: without a bound, unless [`Self::set_budget`] has said otherwise.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Lets the constants that are computed from now on count in this budget.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Adds a constant number.
    pub fn scalar(&mut self, scalar: Scalar) -> ValueId {
        let id = self.value_of(Type::Scalar, scalar_meta(scalar.dtype()), Def::Constant);
        self.values[id.index()].constant = Some(Constant::Scalar(scalar));
        id
    }

    pub(crate) fn value_of(&mut self, ty: Type, meta: TensorMeta, def: Def) -> ValueId {
        let id = ValueId::new(self.values.len());
        self.values.push(Value::new(ty, meta, self.origin, def));
        id
    }

    /// Adds a block, which returns nothing yet.
    pub fn block(&mut self) -> BlockId {
        self.blocks.push(Block::default());
        BlockId::new(self.blocks.len() - 1)
    }

    /// Adds a parameter to a block. Those that jump to the block pass one value more from then on.
    pub fn parameter(&mut self, block: BlockId, ty: Type, meta: TensorMeta) -> ValueId {
        let index = self.blocks[block.index()].parameters.len();
        let id = self.value_of(ty, meta, Def::Parameter(block, index));
        self.blocks[block.index()].parameters.push(id);
        id
    }

    /// Lets [`Self::append`] and [`Self::output`] add to the end of a block.
    pub fn set_cursor(&mut self, block: BlockId) {
        self.cursor = block;
    }

    /// The block that grows.
    pub fn cursor(&self) -> BlockId {
        self.cursor
    }

    /// Names the instruction that nodes and values added from now on belong to.
    pub fn set_origin(&mut self, origin: Place) {
        self.origin = origin;
    }

    /// The instruction that nodes and values added now belong to.
    pub fn origin(&self) -> Place {
        self.origin
    }

    /// Adds a node of one tensor for each meta to the end of the block at the cursor.
    pub fn append(
        &mut self,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = TensorMeta>,
    ) -> NodeId {
        let last = self.blocks[self.cursor.index()].last;
        let outputs = outputs.into_iter().map(|meta| (Type::Tensor, meta));
        self.insert_at(self.cursor, last, Near::Previous, kind.into_kind(), inputs, outputs)
    }

    /// As [`Self::append`], of results that may be numbers.
    pub fn append_typed(
        &mut self,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = (Type, TensorMeta)>,
    ) -> NodeId {
        let last = self.blocks[self.cursor.index()].last;
        self.insert_at(self.cursor, last, Near::Previous, kind.into_kind(), inputs, outputs)
    }

    /// Adds a node before another, in its block.
    pub fn insert_before(
        &mut self,
        node: NodeId,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = TensorMeta>,
    ) -> NodeId {
        let Node { block, previous, .. } = self.nodes[node.index()];
        let outputs = outputs.into_iter().map(|meta| (Type::Tensor, meta));
        self.insert_at(
            block.unwrap_or(BlockId(0)),
            previous,
            Near::Previous,
            kind.into_kind(),
            inputs,
            outputs,
        )
    }

    /// Adds a node after another, in its block.
    pub fn insert_after(
        &mut self,
        node: NodeId,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = TensorMeta>,
    ) -> NodeId {
        let block = self.nodes[node.index()].block.unwrap_or(BlockId(0));
        let outputs = outputs.into_iter().map(|meta| (Type::Tensor, meta));
        self.insert_at(block, Some(node), Near::Next, kind.into_kind(), inputs, outputs)
    }

    /// Adds a node before all others of a block.
    pub fn insert_first(
        &mut self,
        block: BlockId,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = TensorMeta>,
    ) -> NodeId {
        let outputs = outputs.into_iter().map(|meta| (Type::Tensor, meta));
        self.insert_at(block, None, Near::Next, kind.into_kind(), inputs, outputs)
    }

    fn insert_at(
        &mut self,
        block: BlockId,
        previous: Option<NodeId>,
        near: Near,
        kind: Arc<dyn Kind>,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = (Type, TensorMeta)>,
    ) -> NodeId {
        let id = NodeId::new(self.nodes.len());
        let results = outputs.into_iter().enumerate();
        let outputs = results.map(|(i, (ty, meta))| self.value_of(ty, meta, Def::Node(id, i))).collect();
        let known = self.origin != Place::default();
        self.nodes.push(Node {
            kind,
            inputs: SmallVec::new(),
            use_at: SmallVec::new(),
            outputs,
            origins: known.then_some(self.origin).into_iter().collect(),
            origins_rise: true,
            effects: SmallVec::new(),
            block: None,
            previous: None,
            next: None,
            order: 0,
        });
        self.link(id, block, previous, near);
        self.add_inputs(id, inputs);
        id
    }

    /// Says that a node has an effect beside those of its kind.
    pub fn add_effect(&mut self, node: NodeId, effect: Effect) {
        self.nodes[node.index()].effects.push(effect);
    }

    /// Makes a value an output: the block at the cursor returns one value more.
    pub fn output(&mut self, value: ValueId) {
        self.add_result(value, Live::Output);
    }

    /// Makes a value a result of this kind: the block at the cursor returns one value more.
    pub fn add_result(&mut self, value: ValueId, live: Live) {
        let block = self.cursor;
        let mut operands = self.blocks[block.index()].terminator.operands.clone();
        operands.push(value);
        self.results.push(live);
        self.set_terminator(block, Terminator::returns(&operands));
    }

    /// Says how a block ends. Returns of a graph of several blocks pass the results that
    /// [`Self::set_results`] has declared.
    pub fn set_terminator(&mut self, block: BlockId, terminator: Terminator) {
        while let (Some(value), Some(at)) = {
            let end = &mut self.blocks[block.index()];
            (end.terminator.operands.pop(), end.use_at.pop())
        } {
            self.forget_use(value, at);
        }
        let user = User::Terminator(block);
        let use_at = terminator.operands.iter().enumerate().map(|(slot, &v)| self.note_use(v, user, slot));
        let use_at = use_at.collect();
        let slot = &mut self.blocks[block.index()];
        (slot.terminator, slot.use_at) = (terminator, use_at);
    }

    /// Declares what the values are that returns pass.
    pub fn set_results(&mut self, results: Vec<Live>) {
        self.results = results;
    }

    /// What the values are that a return passes.
    pub fn results(&self) -> &[Live] {
        &self.results
    }

    /// Where the graph stands now, to come back to with [`Self::rollback`].
    pub fn mark(&self) -> Mark {
        Mark { values: self.values.len(), nodes: self.nodes.len(), inputs: self.blocks[0].parameters.len() }
    }

    /// Takes away the nodes, inputs and constants that were added since a mark. Nothing else may have
    /// changed since then.
    pub fn rollback(&mut self, mark: &Mark) {
        for index in (mark.nodes..self.nodes.len()).rev() {
            self.unlink(NodeId::new(index));
        }
        self.nodes.truncate(mark.nodes);
        self.values.truncate(mark.values);
        self.blocks[0].parameters.truncate(mark.inputs);
        self.states.truncate(mark.inputs);
    }

    /// The number of values ever made: ids are below it.
    pub fn num_values(&self) -> usize {
        self.values.len()
    }

    /// The number of nodes that are in blocks.
    pub fn num_nodes(&self) -> usize {
        self.num_nodes
    }

    /// The number of blocks.
    pub fn num_blocks(&self) -> usize {
        self.blocks.len()
    }

    /// The ids of all blocks; the entry is the first.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> + use<> {
        (0..self.blocks.len()).map(BlockId::new)
    }

    /// A block.
    pub fn block_of(&self, block: BlockId) -> &Block {
        &self.blocks[block.index()]
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// What is known of a value.
    pub fn value(&self, value: ValueId) -> &Value {
        &self.values[value.index()]
    }

    /// The ids of all values ever made.
    pub fn values(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len()).map(ValueId::new)
    }

    /// Type, sizes and layout of a value.
    pub fn meta(&self, value: ValueId) -> &TensorMeta {
        &self.values[value.index()].meta
    }

    /// A constant as a tensor.
    pub fn view(&self, value: ValueId) -> Option<TensorView<'_>> {
        self.values[value.index()].view()
    }

    /// Elements of a constant of f32, in storage order.
    pub fn floats(&self, value: ValueId) -> Option<&[f32]> {
        self.view(value)?.storage::<f32>().ok()
    }

    /// Whether nodes read numbers that are computed in the graph, or given to it. Such a graph says what follows from what; it is lowered
    /// once they are known, as attributes.
    pub fn has_numbers(&self) -> bool {
        let is_constant = |v: &Value| v.def == Def::Constant;
        self.values.iter().any(|v| v.ty == Type::Scalar && !v.uses.is_empty() && !is_constant(v))
    }

    /// Whether a value is known.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.values[value.index()].constant.is_some()
    }

    /// The inputs: the parameters of the entry block.
    pub fn inputs(&self) -> &[ValueId] {
        &self.blocks[0].parameters
    }

    /// The results of a graph of one block, in the order of [`Self::results`].
    pub fn outputs(&self) -> &[ValueId] {
        let terminator = &self.blocks[0].terminator;
        if terminator.is_return() { &terminator.operands } else { &[] }
    }

    /// The nodes of the graph in the order in which they stand, block by block.
    pub fn order(&self) -> Vec<NodeId> {
        let mut all = Vec::with_capacity(self.num_nodes);
        self.blocks().for_each(|block| all.extend(self.nodes_of(block)));
        all
    }

    /// The nodes of a block, in order.
    pub fn nodes_of(&self, block: BlockId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.blocks[block.index()].first, |&n| self.nodes[n.index()].next)
    }

    /// The node that comes after another in its block.
    pub fn next(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].next
    }

    /// The node that comes before another in its block.
    pub fn previous(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].previous
    }

    /// Whether a node has not been removed.
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes[node.index()].block.is_some()
    }

    /// Whether a node comes before another of the same block.
    pub fn comes_before(&self, a: NodeId, b: NodeId) -> bool {
        self.nodes[a.index()].order < self.nodes[b.index()].order
    }

    /// The node that defines a value; none of a parameter or a constant.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        if let Def::Node(node, _) = self.values[value.index()].def { Some(node) } else { None }
    }

    /// Who uses a value, in no particular order.
    pub fn uses(&self, value: ValueId) -> &[Use] {
        &self.values[value.index()].uses
    }

    /// Whether something uses a value.
    pub fn is_used(&self, value: ValueId) -> bool {
        !self.values[value.index()].uses.is_empty()
    }

    /// The node that alone uses a value, once or several times.
    pub fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let mut uses = self.uses(value).iter();
        let User::Node(node) = uses.next()?.user else { return None };
        // A value with many users is told at the first that differs.
        uses.all(|u| u.user == User::Node(node)).then_some(node)
    }

    /// Whether a value is a result of the graph or passed on at the end of a block.
    pub fn is_live_out(&self, value: ValueId) -> bool {
        self.values[value.index()].ends > 0
    }

    /// Steps of work that edits have taken so far: for tests that a pass does work in proportion to the
    /// graph, as clocks cannot say.
    pub fn work(&self) -> u64 {
        self.work
    }

    pub(crate) fn removed() -> Arc<dyn Kind> {
        Arc::new(Removed)
    }
}
