use crate::node::{Node, Op};
use std::fmt;
use std::sync::Arc;
use tensor::{Tensor, TensorMeta, TensorView};
use trace::Place;

/// Index of a value of a [`Graph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ValueId(pub(crate) usize);

impl ValueId {
    /// The index.
    pub fn index(self) -> usize {
        self.0
    }
}

/// Bytes that somebody else owns too: a segment of weights, say.
pub type SharedBytes = Arc<dyn AsRef<[u8]> + Send + Sync>;

/// The bytes of a constant.
#[derive(Clone)]
pub enum Constant {
    /// Bytes of a file or of another owner, aligned for their type.
    Shared(SharedBytes),
    /// Computed by a pass.
    Computed(Arc<Tensor>),
}

impl Constant {
    /// The bytes, in the storage order of the value's meta.
    pub fn bytes(&self) -> &[u8] {
        match self {
            Self::Shared(bytes) => (**bytes).as_ref(),
            Self::Computed(tensor) => tensor.bytes(),
        }
    }
}

/// A tensor of a graph.
#[derive(Clone)]
pub struct Value {
    /// Type, sizes and layout.
    pub meta: TensorMeta,
    /// Its bytes, if they are known.
    pub constant: Option<Constant>,
    /// The instruction of a program whose result it is, where the caller has said so.
    pub origin: Place,
}

impl Value {
    /// The constant as a tensor.
    pub fn view(&self) -> Option<TensorView<'_>> {
        let bytes = self.constant.as_ref()?.bytes();
        TensorView::new(&self.meta, bytes.get(..self.meta.nbytes())?).ok()
    }
}

/// A state of a graph that was growing: see [`Graph::mark`].
#[derive(Debug, Clone)]
pub struct Mark {
    values: usize,
    nodes: usize,
    inputs: usize,
}

/// Tensors and the nodes that compute them, in an order in which they can run. Every value is
/// written by at most one node; those written by none are inputs or constants.
#[derive(Clone, Default)]
pub struct Graph {
    pub(crate) values: Vec<Value>,
    pub(crate) nodes: Vec<Node>,
    pub(crate) inputs: Vec<ValueId>,
    pub(crate) outputs: Vec<ValueId>,
}

impl Graph {
    /// A graph without anything.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a tensor that the caller gives at each run.
    pub fn input(&mut self, meta: TensorMeta) -> ValueId {
        let id = self.value(meta);
        self.inputs.push(id);
        id
    }

    /// Adds a constant. Its bytes are as many as the meta says, or more.
    pub fn constant(&mut self, meta: TensorMeta, constant: Constant) -> ValueId {
        let id = self.value(meta);
        self.values[id.0].constant = Some(constant);
        id
    }

    /// Adds a tensor that a node will write.
    pub fn value(&mut self, meta: TensorMeta) -> ValueId {
        self.values.push(Value { meta, constant: None, origin: Place::default() });
        ValueId(self.values.len() - 1)
    }

    /// Says which instruction's result a value is. Whatever step comes to compute it, events and
    /// errors name that instruction.
    pub fn set_origin(&mut self, value: ValueId, origin: Place) {
        self.values[value.0].origin = origin;
    }

    /// Adds a tensor that holds what another does, in another layout.
    pub(crate) fn twin(&mut self, of: ValueId, meta: TensorMeta) -> ValueId {
        let twin = self.value(meta);
        self.values[twin.0].origin = self.values[of.0].origin;
        twin
    }

    /// Adds a node that runs after all that are there. Its inputs exist; its outputs are written by
    /// no other node.
    pub fn node(&mut self, op: Op, inputs: Vec<ValueId>, outputs: Vec<ValueId>) {
        self.nodes.push(Node { op, inputs, outputs });
    }

    /// Where the graph ends now, to come back to with [`Self::rollback`].
    pub fn mark(&self) -> Mark {
        Mark { values: self.values.len(), nodes: self.nodes.len(), inputs: self.inputs.len() }
    }

    /// Takes away what was added since a mark.
    pub fn rollback(&mut self, mark: &Mark) {
        self.values.truncate(mark.values);
        self.nodes.truncate(mark.nodes);
        self.inputs.truncate(mark.inputs);
    }

    /// Makes a value a result that the caller takes at each run.
    pub fn output(&mut self, value: ValueId) {
        self.outputs.push(value);
    }

    /// The number of values.
    pub fn num_values(&self) -> usize {
        self.values.len()
    }

    /// Type, sizes and layout of a value.
    pub fn meta(&self, value: ValueId) -> &TensorMeta {
        &self.values[value.0].meta
    }

    /// What is known of a value.
    pub fn get(&self, value: ValueId) -> &Value {
        &self.values[value.0]
    }

    /// The inputs, in the order in which they were added.
    pub fn inputs(&self) -> &[ValueId] {
        &self.inputs
    }

    /// The results, in the order in which they were added.
    pub fn outputs(&self) -> &[ValueId] {
        &self.outputs
    }

    /// The nodes, in the order in which they run.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Elements of a constant in f32, if it is one.
    pub(crate) fn floats(&self, value: ValueId) -> Option<&[f32]> {
        let bytes = self.values[value.0].view()?;
        bytes.storage::<f32>().ok()
    }

    /// For each value the number of nodes and results that use it.
    pub(crate) fn use_counts(&self) -> Vec<usize> {
        #[cfg(test)]
        scans::count();
        let mut counts = vec![0; self.values.len()];
        let uses = self.nodes.iter().flat_map(|n| &n.inputs).chain(&self.outputs);
        uses.for_each(|v| counts[v.0] += 1);
        counts
    }

    /// For each value the index of the node that writes it.
    pub(crate) fn producers(&self) -> Vec<Option<usize>> {
        #[cfg(test)]
        scans::count();
        let mut producers = vec![None; self.values.len()];
        for (i, node) in self.nodes.iter().enumerate() {
            node.outputs.iter().for_each(|v| producers[v.0] = Some(i));
        }
        producers
    }

    /// Takes away nodes none of whose outputs is used.
    pub(crate) fn drop_unused_nodes(&mut self) {
        let mut counts = self.use_counts();
        let mut keep = vec![true; self.nodes.len()];
        for (i, node) in self.nodes.iter().enumerate().rev() {
            if node.outputs.iter().all(|v| counts[v.0] == 0) {
                keep[i] = false;
                node.inputs.iter().for_each(|v| counts[v.0] -= 1);
            }
        }
        let mut keep = keep.into_iter();
        self.nodes.retain(|_| keep.next() == Some(true));
    }
}

impl fmt::Display for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for &v in &self.inputs {
            writeln!(f, "%{} = input {}", v.0, self.meta(v))?;
        }
        for node in &self.nodes {
            let list = |vs: &[ValueId]| vs.iter().map(|v| format!("%{}", v.0)).collect::<Vec<_>>().join(", ");
            let metas: Vec<_> = node.outputs.iter().map(|&v| self.meta(v).to_string()).collect();
            writeln!(
                f,
                "{} = {}({}) : {}",
                list(&node.outputs),
                node.op.name(),
                list(&node.inputs),
                metas.join(", ")
            )?;
        }
        for &v in &self.outputs {
            writeln!(f, "return %{}", v.0)?;
        }
        Ok(())
    }
}

impl fmt::Debug for Graph {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Graph({} values, {} nodes)", self.values.len(), self.nodes.len())
    }
}

/// How often all nodes of a graph were looked at, for tests.
#[cfg(test)]
pub(crate) mod scans {
    use std::cell::Cell;

    thread_local!(static SCANS: Cell<usize> = const { Cell::new(0) });

    pub(crate) fn count() {
        SCANS.set(SCANS.get() + 1);
    }

    pub(crate) fn of(work: impl FnOnce()) -> usize {
        let before = SCANS.get();
        work();
        SCANS.get() - before
    }
}
