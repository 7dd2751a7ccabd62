//! Edits of a graph. Each one keeps definitions, use lists and node order up to date.

use crate::node::{GAP, Near};
use crate::{BlockId, Constant, Def, Graph, IntoKind, NodeId, Use, User, ValueId};
use pteron_tensor::TensorMeta;
use pteron_trace::Place;

impl Graph {
    /// Replaces the kind and inputs of a node. The node keeps its position, results and origins.
    pub fn rewrite(&mut self, node: NodeId, kind: impl IntoKind, inputs: &[ValueId]) {
        self.set_kind(node, kind);
        self.set_inputs(node, inputs);
    }

    /// Replaces the kind of a node.
    pub fn set_kind(&mut self, node: NodeId, kind: impl IntoKind) {
        self.work += 1;
        self.nodes[node.index()].kind = kind.into_kind();
    }

    /// Replaces all inputs of a node.
    pub fn set_inputs(&mut self, node: NodeId, inputs: &[ValueId]) {
        if self.nodes[node.index()].inputs[..] != *inputs {
            self.clear_inputs(node);
            self.add_inputs(node, inputs);
        }
    }

    /// Replaces one input of a node.
    pub fn set_input(&mut self, node: NodeId, slot: usize, value: ValueId) {
        let old = self.nodes[node.index()].inputs[slot];
        if old == value {
            return;
        }
        let at = self.nodes[node.index()].use_at[slot];
        self.remove_use(old, at);
        let at = self.add_use(value, User::Node(node), slot);
        let node = &mut self.nodes[node.index()];
        (node.inputs[slot], node.use_at[slot]) = (value, at);
    }

    /// Replaces all uses of a value by another value.
    pub fn replace_uses(&mut self, old: ValueId, new: ValueId) {
        if old == new {
            return;
        }
        self.values[old.index()].terminator_uses = 0;
        for used in std::mem::take(&mut self.values[old.index()].uses) {
            let at = self.add_use(new, used.user, used.slot);
            match used.user {
                User::Node(node) => {
                    let node = &mut self.nodes[node.index()];
                    (node.inputs[used.slot], node.use_at[used.slot]) = (new, at);
                }
                User::Terminator(block) => {
                    let block = &mut self.blocks[block.index()];
                    (block.terminator.operands[used.slot], block.use_at[used.slot]) = (new, at);
                }
            }
        }
    }

    /// Replaces one use of a value by another value.
    pub fn replace_use(&mut self, used: Use, new: ValueId) {
        match used.user {
            User::Node(node) => self.set_input(node, used.slot, new),
            User::Terminator(block) => {
                let end = &self.blocks[block.index()];
                let (old, at) = (end.terminator.operands[used.slot], end.use_at[used.slot]);
                self.remove_use(old, at);
                let at = self.add_use(new, used.user, used.slot);
                let end = &mut self.blocks[block.index()];
                (end.terminator.operands[used.slot], end.use_at[used.slot]) = (new, at);
            }
        }
    }

    /// Records that `node` also implements the instructions of `absorbed`, which precedes it. The last origin of `node`
    /// stays last: the results of `node` belong to that instruction.
    pub fn absorb(&mut self, node: NodeId, absorbed: NodeId) {
        // An unused node is about to be removed and no longer needs its origins. Moving them keeps the fusion of a
        // long chain linear: the list is not copied at every node.
        let is_used = self.nodes[absorbed.index()].outputs.iter().any(|&v| self.is_used(v));
        let theirs = &mut self.nodes[absorbed.index()];
        let mut origins = if is_used { theirs.origins.clone() } else { std::mem::take(&mut theirs.origins) };
        let (theirs_sorted, own) = (theirs.origins_sorted, &mut self.nodes[node.index()]);
        let is_before = match (origins.last(), own.origins.first()) {
            (Some(last), Some(first)) => program_order_key(last) < program_order_key(first),
            _ => true,
        };
        // Usually nodes absorb in program order. Then the lists are disjoint, and the longer one is moved as it is.
        let sorted = theirs_sorted && own.origins_sorted && is_before;
        self.work += if sorted && !is_used { 1 } else { origins.len() as u64 };
        if !sorted {
            origins.retain(|o| !own.origins.contains(o));
        }
        origins.extend(own.origins.drain(..));
        own.origins_sorted = sorted || are_in_program_order(&origins);
        own.origins = origins;
    }

    /// Sets the instructions that a node implements; the node's results belong to the last one.
    pub fn set_origins(&mut self, node: NodeId, origins: &[Place]) {
        let node = &mut self.nodes[node.index()];
        node.origins = origins.iter().copied().collect();
        node.origins_sorted = are_in_program_order(origins);
    }

    /// Sets the instruction whose result a value is.
    pub fn set_value_origin(&mut self, value: ValueId, origin: Place) {
        self.values[value.index()].origin = origin;
    }

    /// Records that the contents of a node's result are known: users of the result read this constant from now on.
    pub fn set_constant(&mut self, value: ValueId, constant: Constant) {
        self.values[value.index()].constant = Some(constant);
    }

    /// Drops the bytes of a constant that is no longer read.
    pub fn forget_constant(&mut self, value: ValueId) {
        self.values[value.index()].constant = None;
    }

    /// Changes the element type, sizes or layout of a node's result; the caller makes sure that its producer and users
    /// agree. Known contents are dropped, because they are in the old type.
    pub fn set_meta(&mut self, value: ValueId, meta: TensorMeta) {
        let value = &mut self.values[value.index()];
        value.meta = meta;
        value.constant = None;
    }

    /// Marks the sizes of a value as upper bounds. [`Self::specialize_to_bounds`] reverts this.
    pub fn set_bounded(&mut self, value: ValueId) {
        let meta = &mut self.values[value.index()].meta;
        *meta = meta.clone().with_dynamism(pteron_tensor::ShapeDynamism::DynamicBound);
    }

    /// Makes all sizes static: upper bounds become the sizes.
    pub fn specialize_to_bounds(&mut self) {
        for value in &mut self.values {
            if value.is_bounded() {
                value.meta = value.meta.clone().with_dynamism(pteron_tensor::ShapeDynamism::Static);
            }
        }
    }

    /// Drops outputs from the end of a node's list of outputs, so that `count` are left. The dropped ones must be
    /// unused.
    pub fn truncate_outputs(&mut self, node: NodeId, count: usize) {
        let dropped: Vec<ValueId> = self.nodes[node.index()].outputs.iter().skip(count).copied().collect();
        debug_assert!(dropped.iter().all(|&v| !self.is_used(v)), "a dropped output is still used");
        dropped.iter().for_each(|v| self.values[v.index()].def = Def::Removed);
        self.nodes[node.index()].outputs.truncate(count);
    }

    /// Inlines a graph of one block at the end of the block at the cursor, as part of the instruction at
    /// [`Self::origin`]. `inputs` replace the graph's inputs. Returns the values that replace its outputs.
    ///
    /// # Errors
    /// `other`'s inputs differ from `inputs` in number or metas, or `other` has several blocks, state or memory.
    pub fn inline(&mut self, other: &Graph, inputs: &[ValueId]) -> Result<Vec<ValueId>, String> {
        let known = other.inputs();
        let fits = |(&ours, &theirs): (&ValueId, &ValueId)| self.meta(ours) == other.meta(theirs);
        if known.len() != inputs.len() || !inputs.iter().zip(known).all(fits) {
            return Err("the number or metas of its inputs differ from the given values".into());
        }
        let has_state = other.states.iter().any(Option::is_some) || other.memories > 0;
        if other.num_blocks() != 1 || has_state {
            return Err("it has several blocks, state or memory".into());
        }
        let origin = self.origin();
        let within = |theirs: Place| Place { node: theirs.node, ..origin };
        let mut ours: Vec<Option<ValueId>> = vec![None; other.num_values()];
        known.iter().zip(inputs).for_each(|(theirs, v)| ours[theirs.index()] = Some(*v));
        for id in other.order() {
            let theirs = other.node(id);
            let inputs = theirs.inputs().iter().map(|&v| self.import_value(other, v, &mut ours));
            let inputs: Vec<ValueId> = inputs.collect();
            let outputs = theirs.outputs().iter().map(|&v| {
                let value = other.value(v);
                (value.ty(), value.meta().clone())
            });
            let node = self.append_typed(theirs.kind.clone(), &inputs, outputs);
            self.nodes[node.index()].effects = theirs.effects.clone();
            let origins: Vec<Place> = theirs.origins().iter().map(|&place| within(place)).collect();
            if !origins.is_empty() {
                self.set_origins(node, &origins);
            }
            for (i, &v) in theirs.outputs().iter().enumerate() {
                let value = self.nodes[node.index()].outputs[i];
                self.set_value_origin(value, within(other.value(v).origin()));
                if let Some(constant) = other.value(v).constant() {
                    self.set_constant(value, constant.clone());
                }
                ours[v.index()] = Some(value);
            }
        }
        Ok(other.outputs().iter().map(|&v| self.import_value(other, v, &mut ours)).collect())
    }

    /// The value in this graph for a value of a graph that is being inlined. Constants are copied on first use.
    fn import_value(&mut self, other: &Graph, theirs: ValueId, ours: &mut [Option<ValueId>]) -> ValueId {
        if let Some(v) = ours[theirs.index()] {
            return v;
        }
        let value = other.value(theirs);
        let v = self.add_value(value.ty(), value.meta().clone(), Def::Constant);
        self.values[v.index()].constant = value.constant().cloned();
        ours[theirs.index()] = Some(v);
        v
    }

    /// Moves a node directly before another, in the same or another block.
    pub fn move_before(&mut self, node: NodeId, before: NodeId) {
        if node == before {
            return;
        }
        self.unlink_from_block(node);
        let (block, previous) = (self.nodes[before.index()].block, self.nodes[before.index()].previous);
        self.link(node, block.unwrap_or(BlockId(0)), previous, Near::Previous);
    }

    /// Removes a node. Its results must be unused.
    pub fn remove(&mut self, node: NodeId) {
        debug_assert!(
            self.nodes[node.index()].outputs.iter().all(|&v| !self.is_used(v)),
            "a removed node's results are still used"
        );
        self.unlink(node);
        let outputs = std::mem::take(&mut self.nodes[node.index()].outputs);
        for value in outputs {
            let value = &mut self.values[value.index()];
            (value.def, value.constant) = (Def::Removed, None);
        }
        self.clear(node);
    }

    /// Frees the kind, effects and origins of a node that is no longer in a block.
    fn clear(&mut self, node: NodeId) {
        let removed = &mut self.nodes[node.index()];
        removed.kind = Self::removed_kind();
        removed.effects.clear();
        removed.origins = Default::default();
    }

    /// Turns the results of a node into these constants and removes the node.
    pub fn fold(&mut self, node: NodeId, constants: Vec<Constant>) {
        self.unlink(node);
        let outputs = std::mem::take(&mut self.nodes[node.index()].outputs);
        for (value, constant) in outputs.into_iter().zip(constants) {
            let value = &mut self.values[value.index()];
            (value.def, value.constant) = (Def::Constant, Some(constant));
        }
        self.clear(node);
    }

    /// Whether a node is dead: its results are unused, and no effect keeps it
    /// ([`Node::is_kept`](crate::Node::is_kept)).
    pub fn is_dead(&self, node: NodeId) -> bool {
        let n = &self.nodes[node.index()];
        n.block.is_some() && n.outputs.iter().all(|&v| !self.is_used(v)) && !n.is_kept()
    }

    /// Removes a node if it is dead, and then the producers of its inputs that became dead.
    pub fn remove_dead(&mut self, node: NodeId) {
        let mut next = Some(node);
        let mut candidates = Vec::new();
        while let Some(node) = next {
            if self.is_dead(node) {
                let inputs = self.nodes[node.index()].inputs.clone();
                self.remove(node);
                candidates.extend(inputs.iter().filter_map(|&v| self.producer(v)));
            }
            next = candidates.pop();
        }
    }

    /// Removes all dead nodes.
    pub fn sweep(&mut self) {
        for node in self.order().into_iter().rev() {
            self.remove_dead(node);
        }
    }

    pub(crate) fn add_inputs(&mut self, node: NodeId, inputs: &[ValueId]) {
        for (slot, &value) in inputs.iter().enumerate() {
            let at = self.add_use(value, User::Node(node), slot);
            let node = &mut self.nodes[node.index()];
            node.inputs.push(value);
            node.use_at.push(at);
        }
    }

    fn clear_inputs(&mut self, node: NodeId) {
        while let Some(value) = self.nodes[node.index()].inputs.pop() {
            if let Some(at) = self.nodes[node.index()].use_at.pop() {
                self.remove_use(value, at);
            }
        }
    }

    /// Adds a use. Returns its index in the value's use list.
    pub(crate) fn add_use(&mut self, value: ValueId, user: User, slot: usize) -> u32 {
        self.work += 1;
        let uses = &mut self.values[value.index()].uses;
        uses.push(Use { user, slot });
        let at = (uses.len() - 1) as u32;
        self.values[value.index()].terminator_uses += u32::from(matches!(user, User::Terminator(_)));
        at
    }

    /// Removes the use at index `at` from a value's use list. The last use of the list moves to that index, and the
    /// `use_at` of its user is updated.
    pub(crate) fn remove_use(&mut self, value: ValueId, at: u32) {
        self.work += 1;
        let value = &mut self.values[value.index()];
        let gone = value.uses.swap_remove(at as usize);
        value.terminator_uses -= u32::from(matches!(gone.user, User::Terminator(_)));
        if let Some(&Use { user, slot }) = value.uses.get(at as usize) {
            match user {
                User::Node(node) => self.nodes[node.index()].use_at[slot] = at,
                User::Terminator(block) => self.blocks[block.index()].use_at[slot] = at,
            }
        }
    }

    /// Links a node into a block after `previous` (first if `None`); its order number is close to that of the
    /// neighbour `near`.
    pub(crate) fn link(&mut self, node: NodeId, block: BlockId, previous: Option<NodeId>, near: Near) {
        self.work += 1;
        let next = match previous {
            Some(p) => self.nodes[p.index()].next,
            None => self.blocks[block.index()].first,
        };
        let low = previous.map_or(0, |p| self.nodes[p.index()].order);
        let order = match next {
            // Many nodes may be inserted before the same node, or after it. Each gets an order number far from that
            // node's and leaves room for the next.
            Some(n) => {
                let high = self.nodes[n.index()].order;
                let step = ((high - low) / 2).min(GAP >> 24);
                if near == Near::Previous { low + step } else { high - step }
            }
            None => low.saturating_add(GAP),
        };
        let full =
            order == low || order == u64::MAX || next.is_some_and(|n| self.nodes[n.index()].order == order);
        let linked = &mut self.nodes[node.index()];
        (linked.block, linked.previous, linked.next, linked.order) = (Some(block), previous, next, order);
        match previous {
            Some(p) => self.nodes[p.index()].next = Some(node),
            None => self.blocks[block.index()].first = Some(node),
        }
        match next {
            Some(n) => self.nodes[n.index()].previous = Some(node),
            None => self.blocks[block.index()].last = Some(node),
        }
        self.num_nodes += 1;
        if full {
            self.renumber(block);
        }
    }

    /// Reassigns the order numbers of a block with equal gaps.
    fn renumber(&mut self, block: BlockId) {
        let nodes: Vec<NodeId> = self.nodes_of(block).collect();
        self.work += nodes.len() as u64;
        let gap = (u64::MAX / (nodes.len() as u64 + 2)).min(GAP);
        for (i, node) in nodes.into_iter().enumerate() {
            self.nodes[node.index()].order = (i as u64 + 1) * gap;
        }
    }

    fn unlink_from_block(&mut self, node: NodeId) {
        let n = &mut self.nodes[node.index()];
        let (Some(block), previous, next) = (n.block.take(), n.previous.take(), n.next.take()) else {
            return;
        };
        match previous {
            Some(p) => self.nodes[p.index()].next = next,
            None => self.blocks[block.index()].first = next,
        }
        match next {
            Some(n) => self.nodes[n.index()].previous = previous,
            None => self.blocks[block.index()].last = previous,
        }
        self.num_nodes -= 1;
    }

    /// Removes a node from its block and from the use lists of its inputs.
    pub(crate) fn unlink(&mut self, node: NodeId) {
        self.work += 1;
        self.clear_inputs(node);
        self.unlink_from_block(node);
    }
}

/// The sort key of an instruction in program order.
fn program_order_key(place: &Place) -> (Option<u32>, Option<u32>, Option<u32>) {
    (place.chain, place.instruction, place.node)
}

/// Whether places are in program order without duplicates.
fn are_in_program_order(places: &[Place]) -> bool {
    places.is_sorted_by(|a, b| program_order_key(a) < program_order_key(b))
}
