use crate::{BlockId, Def, Graph, Live, NodeId, Terminator, Type, Use, User, Value, ValueId};
use pteron_tensor::ScalarType;

/// A graph that breaks an invariant: a bug in the code that built or changed it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("malformed graph, {place}: {problem}")]
pub struct Malformed {
    /// The block, node or value at which the graph breaks an invariant.
    pub place: String,
    /// The invariant that the graph breaks.
    pub problem: String,
}

type Result<T = ()> = std::result::Result<T, Malformed>;

impl Graph {
    /// Checks every invariant: each value is defined once, and its definition dominates its uses; the maintained use
    /// lists, definitions and node order are consistent; terminators pass values that match the parameters of their
    /// targets, with equal sizes or sizes within the parameters' bounds; kinds accept their numbers of inputs and
    /// outputs; constants have enough bytes.
    ///
    /// # Errors
    /// The first invariant that is broken, and where.
    pub fn verify(&self) -> Result {
        let dominators = Dominators::from_graph(self);
        for block in self.blocks() {
            self.verify_order(block)?;
            for node in self.nodes_of(block) {
                self.verify_node(block, node, &dominators)?;
            }
            self.verify_terminator(block, &dominators)?;
        }
        let reached: usize = self.blocks().map(|b| self.nodes_of(b).count()).sum();
        if reached != self.num_nodes() {
            let problem =
                format!("the count is {} nodes, and the blocks contain {reached}", self.num_nodes());
            return Err(Malformed { place: "all blocks".into(), problem });
        }
        (0..self.num_values()).try_for_each(|v| self.verify_value(ValueId::new(v)))
    }

    fn verify_order(&self, block: BlockId) -> Result {
        let mut previous = None;
        for node in self.nodes_of(block) {
            let at = || format!("node {} of block {}", node.index(), block.index());
            check(self.node(node).block() == Some(block), at, || "it is recorded in another block".into())?;
            check(self.previous(node) == previous, at, || "its link to the previous node is wrong".into())?;
            let increases = previous.is_none_or(|p| self.comes_before(p, node));
            check(increases, at, || "its order number does not exceed the previous node's".into())?;
            previous = Some(node);
        }
        let at = || format!("block {}", block.index());
        check(self.blocks[block.index()].last == previous, at, || "its link to the last node is wrong".into())
    }

    fn verify_node(&self, block: BlockId, id: NodeId, dominators: &Dominators) -> Result {
        let node = self.node(id);
        let at = || format!("node {} ({})", id.index(), node.name());
        for (slot, (&value, &use_at)) in node.inputs.iter().zip(&node.use_at).enumerate() {
            let used = Use { user: User::Node(id), slot };
            let is_listed = self.values[value.index()].uses.get(use_at as usize) == Some(&used);
            check(is_listed, at, || {
                format!("its input {slot} is missing from the use list of %{}", value.index())
            })?;
            let defined = match self.value(value).def() {
                Def::Node(by, _) if self.node(by).block() == Some(block) => self.comes_before(by, id),
                Def::Node(by, _) => self.node(by).block().is_some_and(|b| dominators.dominates(b, block)),
                Def::Parameter(b, _) => dominators.dominates(b, block),
                Def::Constant => true,
                Def::Removed => false,
            };
            check(defined, at, || format!("%{} is not defined before it on every path", value.index()))?;
        }
        check(node.inputs.len() == node.use_at.len(), at, || {
            "the numbers of its inputs and uses differ".into()
        })?;
        for (i, &value) in node.outputs.iter().enumerate() {
            let own = self.value(value).def() == Def::Node(id, i);
            check(own, at, || format!("its output %{} has another definition", value.index()))?;
        }
        node.kind.check(node.inputs.len(), node.outputs.len()).or_else(|problem| check(false, at, || problem))
    }

    fn verify_terminator(&self, block: BlockId, dominators: &Dominators) -> Result {
        let (data, end) = (&self.blocks[block.index()], self.block(block).terminator());
        let at = || format!("the end of block {}", block.index());
        for (slot, (&value, &use_at)) in end.operands().iter().zip(&data.use_at).enumerate() {
            let used = Use { user: User::Terminator(block), slot };
            let is_listed = self.values[value.index()].uses.get(use_at as usize) == Some(&used);
            check(is_listed, at, || {
                format!("operand {slot} is missing from the use list of %{}", value.index())
            })?;
            let defined = match self.value(value).def() {
                Def::Node(by, _) => self.node(by).block().is_some_and(|b| dominators.dominates(b, block)),
                Def::Parameter(b, _) => dominators.dominates(b, block),
                Def::Constant => true,
                Def::Removed => false,
            };
            check(defined, at, || format!("%{} is not defined on every path to it", value.index()))?;
        }
        check(end.operands().len() == data.use_at.len(), at, || {
            "the numbers of its operands and uses differ".into()
        })?;
        if let Some(condition) = end.condition() {
            let value = self.value(condition);
            let boolean = value.meta().dtype() == ScalarType::Bool && value.meta().numel() == 1;
            check(boolean, at, || format!("the condition %{} is not a single boolean", condition.index()))?;
        }
        self.verify_targets(end, at)
    }

    fn verify_targets(&self, end: &Terminator, at: impl Fn() -> String + Copy) -> Result {
        if end.is_return() {
            let (count, expected) = (end.operands().len(), self.results().len());
            let problem = || format!("it returns {count} values; the graph has {expected} results");
            return check(count == expected, at, problem);
        }
        for (i, &target) in end.targets().iter().enumerate() {
            let (values, block) = (end.values(i), self.blocks.get(target.index()));
            check(target.index() != 0, at, || "its target is the entry block".into())?;
            let Some(block) = block else { return check(false, at, || "its target does not exist".into()) };
            let parameters = block.parameters();
            let fits = values.len() == parameters.len()
                && values.iter().zip(parameters).all(|(&g, &t)| {
                    let (g, t) = (self.value(g), self.value(t));
                    g.ty() == t.ty()
                        && (g.ty() == Type::Scalar || g.meta().dtype() == t.meta().dtype())
                        && accepts_sizes(t, g)
                });
            check(fits, at, || format!("it does not pass what block {} takes", target.index()))?;
        }
        Ok(())
    }

    fn verify_value(&self, id: ValueId) -> Result {
        let value = self.value(id);
        let at = || format!("%{}", id.index());
        for used in &value.uses {
            let operand = match used.user {
                User::Node(node) => self.node(node).inputs.get(used.slot),
                User::Terminator(block) => self.block(block).terminator().operands().get(used.slot),
            };
            check(operand == Some(&id), at, || format!("{used:?} does not use it"))?;
        }
        let terminators = value.uses.iter().filter(|u| matches!(u.user, User::Terminator(_))).count();
        check(terminators == value.terminator_uses as usize, at, || {
            "its uses by terminators are miscounted".into()
        })?;
        match value.def() {
            Def::Removed => {
                check(value.uses.is_empty(), at, || "it is used, but its definition was removed".into())
            }
            Def::Constant if value.is_bounded() => {
                check(false, at, || "it is a constant, and its sizes are marked as upper bounds".into())
            }
            Def::Constant if value.ty() == Type::Tensor && !value.uses.is_empty() => {
                let there = value.constant().is_some_and(|c| c.nbytes() >= value.meta().nbytes());
                check(there, at, || format!("its bytes are fewer than {} needs", value.meta()))
            }
            _ => Ok(()),
        }
    }

    /// The number of each state that is a result, with its value at the end of an execution.
    pub fn final_states(&self) -> impl Iterator<Item = (usize, ValueId)> + '_ {
        self.results().iter().zip(self.outputs()).filter_map(|(live, &v)| match live {
            Live::State(state) => Some((*state, v)),
            Live::Output => None,
        })
    }
}

/// Whether the parameter `of` accepts all sizes that `value` may have: the sizes of both are equal and static, or those
/// of `value` are within the bounds of `of`.
fn accepts_sizes(of: &Value, value: &Value) -> bool {
    let (bounds, sizes) = (of.meta().sizes(), value.meta().sizes());
    let is_bounded = |(&bound, &n): (&usize, &usize)| n <= bound;
    match of.is_bounded() {
        true => bounds.rank() == sizes.rank() && bounds.iter().zip(sizes.iter()).all(is_bounded),
        false => bounds == sizes && !value.is_bounded(),
    }
}

fn check(holds: bool, place: impl Fn() -> String, problem: impl FnOnce() -> String) -> Result {
    if holds { Ok(()) } else { Err(Malformed { place: place(), problem: problem() }) }
}

/// The dominator tree of the blocks.
struct Dominators {
    /// The immediate dominator of each block; the block itself for the entry and for unreachable blocks.
    idom: Vec<usize>,
    /// The position of each block in reverse postorder; `None` if it is unreachable.
    position: Vec<Option<usize>>,
}

impl Dominators {
    /// Computes the tree by Cooper, Harvey and Kennedy's iteration over the blocks in reverse postorder.
    fn from_graph(graph: &Graph) -> Self {
        let count = graph.num_blocks();
        let order = reverse_postorder(graph);
        let mut position = vec![None; count];
        order.iter().enumerate().for_each(|(i, &b)| position[b] = Some(i));
        let mut predecessors = vec![Vec::new(); count];
        for &b in &order {
            for target in graph.blocks[b].terminator.targets() {
                if let Some(list) = predecessors.get_mut(target.index()) {
                    list.push(b);
                }
            }
        }
        let mut idom: Vec<Option<usize>> = vec![None; count];
        idom[0] = Some(0);
        let mut changed = true;
        while std::mem::take(&mut changed) {
            for &b in order.iter().skip(1) {
                let known = predecessors[b].iter().copied().filter(|&p| idom[p].is_some());
                let met = known.reduce(|mut a, mut b| {
                    // The nearest common dominator.
                    while a != b {
                        let later = if position[a] > position[b] { &mut a } else { &mut b };
                        *later = idom[*later].unwrap_or(0);
                    }
                    a
                });
                if met.is_some() && idom[b] != met {
                    idom[b] = met;
                    changed = true;
                }
            }
        }
        let idom = idom.into_iter().enumerate().map(|(b, c)| c.unwrap_or(b)).collect();
        Self { idom, position }
    }

    /// Whether `a` dominates `b`.
    fn dominates(&self, a: BlockId, b: BlockId) -> bool {
        // Unreachable blocks never run: every block dominates them vacuously.
        if self.position[b.index()].is_none() {
            return true;
        }
        let mut at = b.index();
        while at != a.index() {
            if self.idom[at] == at || self.position[at] < self.position[a.index()] {
                return false;
            }
            at = self.idom[at];
        }
        true
    }
}

fn reverse_postorder(graph: &Graph) -> Vec<usize> {
    let mut order = Vec::new();
    let mut seen = vec![false; graph.num_blocks()];
    // A block, with the number of its targets that were visited.
    let mut stack = vec![(0, 0)];
    seen[0] = true;
    while let Some((block, next)) = stack.last_mut() {
        match graph.blocks[*block].terminator.targets().get(*next) {
            Some(target) => {
                *next += 1;
                if seen.get(target.index()) == Some(&false) {
                    seen[target.index()] = true;
                    stack.push((target.index(), 0));
                }
            }
            None => {
                order.push(*block);
                stack.pop();
            }
        }
    }
    order.reverse();
    order
}
