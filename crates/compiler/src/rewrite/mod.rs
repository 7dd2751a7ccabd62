//! Rewrites a program node by node: the context that decompositions use to build new nodes.

mod arguments;
mod build;
mod flow;

pub(crate) use build::{broadcast_sizes, reduced_sizes};

use crate::limits::{MAX_NODES, MAX_REPLACEMENTS, NODE_BYTES};
use crate::{Error, Result};
use pteron_exported::{
    Argument, ExportedGraph, ExportedNode, ExportedProgram, Size, Source, SymExpr, TensorSpec, VarId, VarType,
};
use std::collections::HashMap;
use std::sync::Arc;

/// What holds symbolic sizes at the current node: integer values in scope, by the expression that each holds, and
/// dimensions of tensors.
#[derive(Clone, Default)]
struct SizesInScope {
    ints: HashMap<SymExpr, VarId>,
    /// For each symbol, a tensor and the dimension that has it as its size.
    dims: HashMap<Arc<str>, (VarId, usize)>,
}

/// What a rule did with a node.
pub(crate) enum Outcome {
    /// The node is kept as it is.
    Kept,
    /// The node is replaced by the nodes that were made; its results have been substituted.
    Replaced,
}

/// A program being rewritten, from its first node to its last.
pub(crate) struct Rewriter<'p> {
    pub(crate) program: &'p mut ExportedProgram,
    replaced: HashMap<VarId, VarId>,
    /// Nodes made so far for the node that is being replaced, in order.
    made: Vec<ExportedNode>,
    source: Arc<Source>,
    /// Prefix of the names of new values.
    stem: Arc<str>,
    scope: SizesInScope,
    words: HashMap<&'static str, Arc<str>>,
    done: usize,
    /// What the current attempt has recorded, so that it can be undone.
    attempt: Attempt,
}

/// What [`Rewriter::attempt`] needs to undo a rule that fails.
#[derive(Default)]
struct Attempt {
    replaced: Vec<VarId>,
    ints: Vec<SymExpr>,
    /// Whether the rule asked for a size that no value before the node has.
    lacks_size: bool,
}

/// An argument with its name.
pub(crate) type Arg = (&'static str, Argument);

impl<'p> Rewriter<'p> {
    /// Offers every node to `visit`, and then the nodes that `visit` replaced it with, until all are kept.
    pub(crate) fn run(
        program: &'p mut ExportedProgram,
        visit: &mut dyn FnMut(&mut Rewriter<'_>, &ExportedNode) -> Result<Outcome>,
    ) -> Result<()> {
        let mut graph = std::mem::take(&mut program.graph);
        let mut rewriter = Rewriter {
            program,
            replaced: HashMap::new(),
            made: Vec::new(),
            source: Arc::default(),
            stem: "x".into(),
            scope: SizesInScope::default(),
            words: HashMap::new(),
            done: 0,
            attempt: Attempt::default(),
        };
        let walked = rewriter.rewrite_graph(&mut graph, visit);
        let replaced = std::mem::take(&mut rewriter.replaced);
        program.graph = graph;
        for mutation in &mut program.mutations {
            mutation.value = resolve_replaced(&replaced, mutation.value);
        }
        walked
    }

    fn rewrite_graph(
        &mut self,
        graph: &mut ExportedGraph,
        visit: &mut dyn FnMut(&mut Rewriter<'_>, &ExportedNode) -> Result<Outcome>,
    ) -> Result<()> {
        for &input in &graph.inputs {
            self.record_sizes(input);
        }
        // Each node with the number of replacements that led to it.
        let mut pending: Vec<(ExportedNode, u32)> =
            std::mem::take(&mut graph.nodes).into_iter().rev().map(|node| (node, 0)).collect();
        let mut finished = Vec::with_capacity(pending.len());
        while let Some((mut node, depth)) = pending.pop() {
            self.done += 1;
            if depth > MAX_REPLACEMENTS {
                return Err(Error::node(self.program, &node, "no kernel takes what it decomposes to"));
            }
            if self.done > MAX_NODES {
                return self.fail(&node, format!("more than {MAX_NODES} nodes are needed"));
            }
            self.substitute_replaced(&mut node);
            self.source = Arc::clone(&node.source);
            self.stem =
                node.outputs.first().map_or_else(|| "x".into(), |&v| Arc::clone(&self.program.var(v).name));
            match visit(self, &node)? {
                Outcome::Kept => {
                    // A rule may keep a node after it has made others for it; these are dropped.
                    if !self.made.is_empty() {
                        self.abandon(&node);
                    }
                    let outside = self.scope.clone();
                    for inner in node.graphs_mut() {
                        self.rewrite_graph(inner, visit)?;
                        self.scope = outside.clone();
                    }
                    for i in 0..node.outputs.len() {
                        self.record_sizes(node.outputs[i]);
                    }
                    finished.push(node);
                }
                Outcome::Replaced => {
                    let bytes = self.made.len().saturating_mul(NODE_BYTES);
                    if let Err(limit) = self.program.budget.charge("the nodes of its decomposition", bytes) {
                        return self.fail(&node, limit.to_string());
                    }
                    let nodes = std::mem::take(&mut self.made);
                    pending.extend(nodes.into_iter().rev().map(|node| (node, depth + 1)));
                }
            }
        }
        graph.nodes = finished;
        for output in &mut graph.outputs {
            output.map_vars(&mut |v| resolve_replaced(&self.replaced, v));
        }
        Ok(())
    }

    /// Substitutes replaced values in the arguments of a node.
    fn substitute_replaced(&self, node: &mut ExportedNode) {
        if self.replaced.is_empty() {
            return;
        }
        for (_, arg) in &mut node.args {
            arg.map_vars(&mut |v| resolve_replaced(&self.replaced, v));
        }
    }

    fn record_sizes(&mut self, var: VarId) {
        match &self.program.var(var).ty {
            VarType::Int(Size::Sym(e)) => {
                self.scope.ints.entry((**e).clone()).or_insert(var);
            }
            VarType::Tensor(spec) => {
                for (d, size) in spec.sizes.iter().enumerate() {
                    if let Size::Sym(e) = size
                        && let SymExpr::Symbol(name) = &**e
                    {
                        self.scope.dims.entry(Arc::clone(name)).or_insert((var, d));
                    }
                }
            }
            _ => {}
        }
    }

    /// The error that `node` cannot be rewritten because of `problem`.
    pub(crate) fn fail<T>(&self, node: &ExportedNode, problem: impl Into<String>) -> Result<T> {
        Err(Error::node(self.program, node, problem))
    }

    /// Applies a rule to a node. If the rule needs a size that only the node itself determines, when it runs, the
    /// rule's effects are undone, and the node is kept, provided that `can_keep`.
    pub(crate) fn attempt(
        &mut self,
        node: &ExportedNode,
        rule: impl FnOnce(&mut Self, &ExportedNode) -> Result<Outcome>,
        can_keep: impl FnOnce(&ExportedProgram) -> bool,
    ) -> Result<Outcome> {
        self.attempt = Attempt::default();
        let num_nodes = self.made.len();
        let done = rule(self, node);
        if done.is_ok() || !self.attempt.lacks_size || !can_keep(self.program) {
            return done;
        }
        let Attempt { replaced, ints, .. } = std::mem::take(&mut self.attempt);
        self.made.truncate(num_nodes);
        self.replaced.retain(|var, _| !replaced.contains(var));
        self.scope.ints.retain(|size, _| !ints.contains(size));
        Ok(Outcome::Kept)
    }

    /// Substitutes `new` for every later use of `old`. If `new` was made for the current node, it takes over the name
    /// and sizes of `old`.
    pub(crate) fn replace(&mut self, old: VarId, new: VarId) {
        if old == new {
            return;
        }
        if self.made.iter().rev().any(|n| n.outputs.contains(&new)) {
            let was = self.program.var(old).clone();
            let var = self.program.var_mut(new);
            var.name = was.name;
            if let (VarType::Tensor(spec), VarType::Tensor(old)) = (&mut var.ty, was.ty) {
                spec.sizes = old.sizes;
            }
        }
        self.attempt.replaced.push(old);
        self.replaced.insert(old, new);
    }

    /// Replaces the node's first result by `new` and the node by the nodes that were made.
    pub(crate) fn replace_node(&mut self, node: &ExportedNode, new: VarId) -> Result<Outcome> {
        match node.outputs.first() {
            Some(&old) => self.replace(old, new),
            None => return self.fail(node, "it has no result"),
        }
        Ok(Outcome::Replaced)
    }

    fn intern(&mut self, text: &'static str) -> Arc<str> {
        Arc::clone(self.words.entry(text).or_insert_with(|| text.into()))
    }

    /// Emits a node with results of these types.
    pub(crate) fn emit_many(
        &mut self,
        target: &'static str,
        args: Vec<Arg>,
        types: Vec<VarType>,
    ) -> Vec<VarId> {
        let outputs: Vec<VarId> = types
            .into_iter()
            .map(|ty| {
                let name = format!("{}_{}", self.stem, self.program.num_vars());
                self.program.add_var(name, ty)
            })
            .collect();
        let args = args.into_iter().map(|(name, arg)| (self.intern(name), arg)).collect();
        let (target, source) = (self.intern(target), Arc::clone(&self.source));
        self.made.push(ExportedNode { target, args, outputs: outputs.clone(), source });
        outputs
    }

    /// Emits a node whose only result is a tensor.
    pub(crate) fn emit(&mut self, target: &'static str, args: Vec<Arg>, spec: TensorSpec) -> VarId {
        self.emit_many(target, args, vec![VarType::Tensor(spec)])[0]
    }

    /// Builds the graph that a control flow node runs: it has inputs of these types, the nodes that `build` makes and
    /// the outputs that it returns.
    pub(crate) fn build_graph(
        &mut self,
        types: Vec<VarType>,
        build: impl FnOnce(&mut Self, &[VarId]) -> Result<Vec<VarId>>,
    ) -> Result<ExportedGraph> {
        let stem = Arc::clone(&self.stem);
        let new = |ty| self.program.add_var(format!("{stem}_{}", self.program.num_vars()), ty);
        let inputs: Vec<VarId> = types.into_iter().map(new).collect();
        let (around, scope) = (std::mem::take(&mut self.made), self.scope.clone());
        let outputs = build(self, &inputs);
        let nodes = std::mem::replace(&mut self.made, around);
        self.scope = scope;
        Ok(ExportedGraph { inputs, nodes, outputs: outputs?.into_iter().map(Argument::Var).collect() })
    }

    /// Replaces a node by a call of another operator with the same results.
    pub(crate) fn retarget(&mut self, node: &ExportedNode, target: &'static str, args: Vec<Arg>) -> Outcome {
        let args = args.into_iter().map(|(name, arg)| (self.intern(name), arg)).collect();
        let target = self.intern(target);
        self.made.push(ExportedNode {
            target,
            args,
            outputs: node.outputs.clone(),
            source: Arc::clone(&node.source),
        });
        Outcome::Replaced
    }

    /// Drops the nodes that a rule made for `node` before it failed, so that the node is kept.
    pub(crate) fn abandon(&mut self, node: &ExportedNode) -> Outcome {
        self.made.clear();
        self.replaced.retain(|old, _| !node.outputs.contains(old));
        Outcome::Kept
    }

    /// Adds a node that was built elsewhere.
    pub(crate) fn push_node(&mut self, node: ExportedNode) {
        self.made.push(node);
    }
}

fn resolve_replaced(replaced: &HashMap<VarId, VarId>, mut var: VarId) -> VarId {
    while let Some(&next) = replaced.get(&var) {
        var = next;
    }
    var
}
