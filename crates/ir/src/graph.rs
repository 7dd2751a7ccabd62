use crate::kind::Removed;
use crate::node::Near;
use crate::value::scalar_meta;
use crate::{Block, BlockId, Constant, Def, Effect, IntoKind, Kind, Memory, Node, NodeId, Terminator, Type};
use crate::{Use, User, Value, ValueId};
use pteron_operator::{Budget, CountedTensor};
use pteron_tensor::{Scalar, Tensor, TensorMeta, TensorView};
use pteron_trace::Place;
use smallvec::SmallVec;
use std::sync::Arc;

/// The name of computed constants in errors about an exhausted memory budget.
const CONSTANTS: &str = "its computed constants";

/// The purpose of a graph result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Live {
    /// An output of the program.
    Output,
    /// The contents of a state when an execution ends. The input with the same state number, counted by
    /// [`Graph::state`], has them in the next execution.
    State(usize),
}

/// A snapshot of a graph's lengths, to roll back additions: see [`Graph::mark`].
#[derive(Debug, Clone)]
pub struct Mark {
    values: usize,
    nodes: usize,
    inputs: usize,
}

/// Values, the nodes that compute them, and the blocks that contain the nodes. See the crate's page.
#[derive(Clone)]
pub struct Graph {
    pub(crate) name: String,
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) results: Vec<Live>,
    /// The state number of each input; `None` for inputs that are not state.
    pub(crate) states: Vec<Option<usize>>,
    pub(crate) memories: u32,
    /// The block to which nodes are appended.
    cursor: BlockId,
    /// The instruction that nodes and values added now belong to.
    origin: Place,
    /// The number of nodes that are in blocks.
    pub(crate) num_nodes: usize,
    /// The number of steps that edits have taken: tests check that it is linear in the size of a graph.
    pub(crate) work: u64,
    /// The memory budget of the constants that passes compute.
    budget: Budget,
}

impl Default for Graph {
    fn default() -> Self {
        Self::new()
    }
}

impl Graph {
    /// A graph of one block, the entry, which returns no values yet.
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

    /// Adds a tensor that the caller passes at each execution.
    pub fn input(&mut self, meta: TensorMeta) -> ValueId {
        self.states.push(None);
        self.parameter(self.entry(), Type::Tensor, meta)
    }

    /// Adds a scalar that the caller passes at each execution.
    pub fn scalar_input(&mut self, dtype: pteron_tensor::ScalarType) -> ValueId {
        self.states.push(None);
        self.parameter(self.entry(), Type::Scalar, scalar_meta(dtype))
    }

    /// Adds state, whose contents persist from one execution to the next. Returns the input that holds its contents,
    /// and its number for [`Live::State`].
    pub fn state(&mut self, meta: TensorMeta) -> (ValueId, usize) {
        let number = self.states.iter().flatten().count();
        self.states.push(Some(number));
        (self.parameter(self.entry(), Type::Tensor, meta), number)
    }

    /// The state number of an input; `None` if the input is not state.
    pub fn state_of_input(&self, input: usize) -> Option<usize> {
        self.states.get(input).copied().flatten()
    }

    /// Adds memory whose contents are not SSA values, for [`Effect::Read`] and [`Effect::Write`].
    pub fn memory(&mut self) -> Memory {
        self.memories += 1;
        Memory(self.memories - 1)
    }

    /// Adds a constant tensor. It must have at least as many bytes as the meta needs.
    pub fn constant(&mut self, meta: TensorMeta, constant: Constant) -> ValueId {
        let id = self.add_value(Type::Tensor, meta, Def::Constant);
        self.values[id.index()].constant = Some(constant);
        id
    }

    /// Adds a computed tensor of any layout as a constant, and counts it against the [budget](Self::budget).
    ///
    /// # Errors
    /// The budget is exhausted.
    pub fn computed_constant(&mut self, tensor: Tensor) -> pteron_operator::Result<ValueId> {
        let tensor = CountedTensor::new(tensor, CONSTANTS, &self.budget)?;
        Ok(self.constant(tensor.meta().clone(), tensor.into()))
    }

    /// A zeroed tensor for a constant that is about to be computed, counted against the [budget](Self::budget).
    ///
    /// # Errors
    /// The budget is exhausted, or the allocation fails.
    pub fn zeros(&self, meta: TensorMeta) -> pteron_operator::Result<CountedTensor> {
        CountedTensor::zeros(meta, CONSTANTS, &self.budget)
    }

    /// A copy of a constant that is about to be changed, counted against the [budget](Self::budget).
    ///
    /// # Errors
    /// The budget is exhausted, or the allocation fails.
    pub fn copy_of(&self, of: &TensorView<'_>) -> pteron_operator::Result<CountedTensor> {
        CountedTensor::copy_of(of, CONSTANTS, &self.budget)
    }

    /// The memory budget of computed constants: unlimited unless [`Self::set_budget`] has set one.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Counts the constants that are computed from now on against this budget.
    pub fn set_budget(&mut self, budget: Budget) {
        self.budget = budget;
    }

    /// Adds a constant scalar.
    pub fn scalar(&mut self, scalar: Scalar) -> ValueId {
        let id = self.add_value(Type::Scalar, scalar_meta(scalar.dtype()), Def::Constant);
        self.values[id.index()].constant = Some(Constant::Scalar(scalar));
        id
    }

    pub(crate) fn add_value(&mut self, ty: Type, meta: TensorMeta, def: Def) -> ValueId {
        let id = ValueId::new(self.values.len());
        self.values.push(Value::new(ty, meta, self.origin, def));
        id
    }

    /// Adds a block, which returns no values yet.
    pub fn add_block(&mut self) -> BlockId {
        self.blocks.push(Block::default());
        BlockId::new(self.blocks.len() - 1)
    }

    /// Adds a parameter to a block. Terminators that target the block must pass one value more from then on.
    pub fn parameter(&mut self, block: BlockId, ty: Type, meta: TensorMeta) -> ValueId {
        let index = self.blocks[block.index()].parameters.len();
        let id = self.add_value(ty, meta, Def::Parameter(block, index));
        self.blocks[block.index()].parameters.push(id);
        id
    }

    /// Makes [`Self::append`] and [`Self::output`] add to the end of this block.
    pub fn set_cursor(&mut self, block: BlockId) {
        self.cursor = block;
    }

    /// The block to which nodes are appended.
    pub fn cursor(&self) -> BlockId {
        self.cursor
    }

    /// Sets the instruction that nodes and values added from now on belong to.
    pub fn set_origin(&mut self, origin: Place) {
        self.origin = origin;
    }

    /// The instruction that nodes and values added now belong to.
    pub fn origin(&self) -> Place {
        self.origin
    }

    /// Appends a node to the block at the cursor. It has one tensor output for each meta.
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

    /// As [`Self::append`], with results that may be scalars.
    pub fn append_typed(
        &mut self,
        kind: impl IntoKind,
        inputs: &[ValueId],
        outputs: impl IntoIterator<Item = (Type, TensorMeta)>,
    ) -> NodeId {
        let last = self.blocks[self.cursor.index()].last;
        self.insert_at(self.cursor, last, Near::Previous, kind.into_kind(), inputs, outputs)
    }

    /// Inserts a node before another, in its block.
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

    /// Inserts a node after another, in its block.
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

    /// Inserts a node at the start of a block.
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
        let outputs = results.map(|(i, (ty, meta))| self.add_value(ty, meta, Def::Node(id, i))).collect();
        let known = self.origin != Place::default();
        self.nodes.push(Node {
            kind,
            inputs: SmallVec::new(),
            use_at: SmallVec::new(),
            outputs,
            origins: known.then_some(self.origin).into_iter().collect(),
            origins_sorted: true,
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

    /// Gives a node an effect besides those of its kind.
    pub fn add_effect(&mut self, node: NodeId, effect: Effect) {
        self.nodes[node.index()].effects.push(effect);
    }

    /// Makes a value an output, by appending it to the return of the block at the cursor.
    pub fn output(&mut self, value: ValueId) {
        self.add_result(value, Live::Output);
    }

    /// Makes a value a result with this purpose, by appending it to the return of the block at the cursor.
    pub fn add_result(&mut self, value: ValueId, live: Live) {
        let block = self.cursor;
        let mut operands = self.blocks[block.index()].terminator.operands.clone();
        operands.push(value);
        self.results.push(live);
        self.set_terminator(block, Terminator::returns(&operands));
    }

    /// Sets the terminator of a block. In a graph of several blocks, a return passes the results that
    /// [`Self::set_results`] has declared.
    pub fn set_terminator(&mut self, block: BlockId, terminator: Terminator) {
        while let (Some(value), Some(at)) = {
            let end = &mut self.blocks[block.index()];
            (end.terminator.operands.pop(), end.use_at.pop())
        } {
            self.remove_use(value, at);
        }
        let user = User::Terminator(block);
        let use_at = terminator.operands.iter().enumerate().map(|(slot, &v)| self.add_use(v, user, slot));
        let use_at = use_at.collect();
        let slot = &mut self.blocks[block.index()];
        (slot.terminator, slot.use_at) = (terminator, use_at);
    }

    /// Declares the purpose of each value that the graph's returns pass.
    pub fn set_results(&mut self, results: Vec<Live>) {
        self.results = results;
    }

    /// The purpose of each value that the graph's returns pass.
    pub fn results(&self) -> &[Live] {
        &self.results
    }

    /// A mark to roll back to with [`Self::rollback`].
    pub fn mark(&self) -> Mark {
        Mark { values: self.values.len(), nodes: self.nodes.len(), inputs: self.blocks[0].parameters.len() }
    }

    /// Removes the nodes, inputs and constants that were added since a mark. Nothing else may have changed since then.
    pub fn rollback(&mut self, mark: &Mark) {
        for index in (mark.nodes..self.nodes.len()).rev() {
            self.unlink(NodeId::new(index));
        }
        self.nodes.truncate(mark.nodes);
        self.values.truncate(mark.values);
        self.blocks[0].parameters.truncate(mark.inputs);
        self.states.truncate(mark.inputs);
    }

    /// The number of values ever created; all value indices are below it.
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
    pub fn block(&self, block: BlockId) -> &Block {
        &self.blocks[block.index()]
    }

    /// A node.
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.index()]
    }

    /// A value.
    pub fn value(&self, value: ValueId) -> &Value {
        &self.values[value.index()]
    }

    /// The ids of all values ever created.
    pub fn values(&self) -> impl Iterator<Item = ValueId> + use<> {
        (0..self.values.len()).map(ValueId::new)
    }

    /// Element type, sizes and layout of a value.
    pub fn meta(&self, value: ValueId) -> &TensorMeta {
        &self.values[value.index()].meta
    }

    /// A constant tensor as a view; `None` if the value is not a constant tensor.
    pub fn view(&self, value: ValueId) -> Option<TensorView<'_>> {
        self.values[value.index()].view()
    }

    /// The elements of an f32 constant, in storage order; `None` for any other value.
    pub fn floats(&self, value: ValueId) -> Option<&[f32]> {
        self.view(value)?.storage::<f32>().ok()
    }

    /// Whether the graph uses scalars that are computed in it or passed to it. Such a graph only describes the data
    /// flow; it can be lowered once those scalars are known and have become attributes.
    pub fn has_dynamic_scalars(&self) -> bool {
        let is_constant = |v: &Value| v.def == Def::Constant;
        self.values.iter().any(|v| v.ty == Type::Scalar && !v.uses.is_empty() && !is_constant(v))
    }

    /// Whether the contents of a value are known.
    pub fn is_constant(&self, value: ValueId) -> bool {
        self.values[value.index()].constant.is_some()
    }

    /// The inputs: the parameters of the entry block.
    pub fn inputs(&self) -> &[ValueId] {
        &self.blocks[0].parameters
    }

    /// The results of a graph of one block, in the order of [`Self::results`]; empty if the entry does not return.
    pub fn outputs(&self) -> &[ValueId] {
        let terminator = &self.blocks[0].terminator;
        if terminator.is_return() { &terminator.operands } else { &[] }
    }

    /// All nodes of the graph in order, block by block.
    pub fn order(&self) -> Vec<NodeId> {
        let mut all = Vec::with_capacity(self.num_nodes);
        self.blocks().for_each(|block| all.extend(self.nodes_of(block)));
        all
    }

    /// The nodes of a block, in order.
    pub fn nodes_of(&self, block: BlockId) -> impl Iterator<Item = NodeId> + '_ {
        std::iter::successors(self.blocks[block.index()].first, |&n| self.nodes[n.index()].next)
    }

    /// The next node in the same block.
    pub fn next(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].next
    }

    /// The previous node in the same block.
    pub fn previous(&self, node: NodeId) -> Option<NodeId> {
        self.nodes[node.index()].previous
    }

    /// Whether a node has not been removed.
    pub fn contains(&self, node: NodeId) -> bool {
        self.nodes[node.index()].block.is_some()
    }

    /// Whether node `a` comes before node `b` of the same block.
    pub fn comes_before(&self, a: NodeId, b: NodeId) -> bool {
        self.nodes[a.index()].order < self.nodes[b.index()].order
    }

    /// The node that defines a value; `None` if no node does, as for a parameter or a constant.
    pub fn producer(&self, value: ValueId) -> Option<NodeId> {
        if let Def::Node(node, _) = self.values[value.index()].def { Some(node) } else { None }
    }

    /// The uses of a value, in no particular order.
    pub fn uses(&self, value: ValueId) -> &[Use] {
        &self.values[value.index()].uses
    }

    /// Whether a value has a use.
    pub fn is_used(&self, value: ValueId) -> bool {
        !self.values[value.index()].uses.is_empty()
    }

    /// The only user of a value, if that is one node, which may use it several times.
    pub fn only_user(&self, value: ValueId) -> Option<NodeId> {
        let mut uses = self.uses(value).iter();
        let User::Node(node) = uses.next()?.user else { return None };
        // Stops at the first other user, so that a value with many users costs little.
        uses.all(|u| u.user == User::Node(node)).then_some(node)
    }

    /// Whether a terminator uses the value: it is a result of the graph or passed to another block.
    pub fn is_live_out(&self, value: ValueId) -> bool {
        self.values[value.index()].terminator_uses > 0
    }

    /// The number of steps that edits have taken so far. Tests use it to check that a pass is linear in the size of the
    /// graph, for which run times are too imprecise.
    pub fn work(&self) -> u64 {
        self.work
    }

    pub(crate) fn removed_kind() -> Arc<dyn Kind> {
        Arc::new(Removed)
    }
}
