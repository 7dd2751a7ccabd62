//! Functionalization: replaces operators that write into their operands by functional ones. Each write makes a new
//! value, and later reads of the written memory, also through views, use that value. The final value of an input that
//! was written becomes a [`Mutation`](pteron_exported::Mutation), or an output if the caller passes the input.

use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{
    Argument, ExportedGraph, ExportedNode, ExportedProgram, InputKind, Mutation, TensorSpec, VarId, VarType,
};
use std::collections::{HashMap, HashSet};

/// A marker node appended to every graph during the pass, so that graph outputs are rewritten like operands.
const END: &str = "graph.end";

pub(super) fn run(program: &mut ExportedProgram) -> Result<()> {
    if !has_mutations(program) {
        return Ok(());
    }
    let mut graph = std::mem::take(&mut program.graph);
    append_end_markers(&mut graph);
    program.graph = graph;
    let inputs = program.graph.inputs.clone();
    let mut state = Functionalizer::default();
    let walked = Rewriter::run(program, &mut |cx, node| state.visit(cx, node));
    let mut graph = std::mem::take(&mut program.graph);
    remove_end_markers(&mut graph);
    program.graph = graph;
    walked?;
    let (mut returned, mut returned_names) = (Vec::new(), Vec::new());
    let mut names = program.input_names.iter();
    for (input, kind) in inputs.into_iter().zip(&program.inputs) {
        let is_passed = matches!(kind, InputKind::User | InputKind::Fixed(_));
        let name = if is_passed { names.next().cloned().flatten() } else { None };
        let Some(&value) = state.current.get(&input) else { continue };
        if *kind == InputKind::User {
            returned.push(Argument::Var(value));
            returned_names.push(name);
            continue;
        }
        program.mutations.retain(|m| m.input != input);
        program.mutations.push(Mutation { input, value });
    }
    program.graph.outputs.splice(..0, returned);
    if !program.output_names.is_empty() {
        program.output_names.splice(..0, returned_names);
    }
    Ok(())
}

/// Whether a node of the program writes into an operand.
pub(crate) fn has_mutations(program: &ExportedProgram) -> bool {
    let mut mutates = false;
    program.graph.for_each_node(&mut |node| {
        mutates |= written_operand(node).is_some() || running_statistics(node).is_some()
    });
    mutates
}

fn append_end_markers(graph: &mut ExportedGraph) {
    for node in &mut graph.nodes {
        node.graphs_mut().for_each(append_end_markers);
    }
    let args = graph.outputs.iter().map(|o| ("".into(), o.clone())).collect();
    graph.nodes.push(ExportedNode {
        target: END.into(),
        args,
        outputs: Vec::new(),
        source: Default::default(),
    });
}

fn remove_end_markers(graph: &mut ExportedGraph) {
    if let Some(end) = graph.nodes.pop_if(|n| &*n.target == END) {
        graph.outputs = end.args.into_iter().map(|(_, arg)| arg).collect();
    }
    for node in &mut graph.nodes {
        node.graphs_mut().for_each(remove_end_markers);
    }
}

/// The operand that an operator writes, because it is in place or has an argument `out`, and the functional operator
/// that computes what it writes.
fn written_operand(node: &ExportedNode) -> Option<(VarId, String)> {
    let (base, overload) = node.target.rsplit_once('.')?;
    if let Some(out) = node.arg("out").and_then(Argument::var) {
        // Functional overloads are told apart by their arguments, not by their names.
        let tensors = node.operands().count() > 2;
        let named = match overload.strip_suffix("_out").or(overload.strip_suffix("out")) {
            Some("") if tensors => "Tensor",
            Some("") | None => "default",
            Some(named) => named,
        };
        return Some((out, format!("{base}.{named}")));
    }
    let functional = base.strip_suffix('_').filter(|b| !b.ends_with('_'))?;
    let operand = node.arg("self").or(node.args.first().map(|(_, a)| a))?.var()?;
    Some((operand, format!("{functional}.{overload}")))
}

/// The running mean and variance that a batch norm updates in training, and the operator that returns them as results.
fn running_statistics(node: &ExportedNode) -> Option<([VarId; 2], &'static str)> {
    let trains = matches!(node.arg("training"), Some(Argument::Bool(true)));
    let functional = match &*node.target {
        "aten.batch_norm.default"
        | "aten.native_batch_norm.default"
        | "aten._native_batch_norm_legit.default"
            if trains =>
        {
            "aten._native_batch_norm_legit_functional.default"
        }
        "aten._batch_norm_with_update.default" => "aten._batch_norm_with_update_functional.default",
        _ => return None,
    };
    let statistic = |name| node.arg(name).and_then(Argument::var);
    Some(([statistic("running_mean")?, statistic("running_var")?], functional))
}

/// Whether the result of an operator aliases its operand.
fn is_view(node: &ExportedNode, have: &TensorSpec, want: &TensorSpec) -> bool {
    match &*node.target {
        "aten.view.default"
        | "aten.permute.default"
        | "aten.expand.default"
        | "aten.slice.Tensor"
        | "aten.select.int"
        | "aten.diagonal.default"
        | "aten.unfold.default"
        | "aten.as_strided.default"
        | "aten.view.dtype" => true,
        t if t.starts_with("aten.to.")
            || t.starts_with("aten.contiguous.")
            || t.starts_with("aten.dropout.") =>
        {
            have == want && !matches!(node.arg("copy"), Some(Argument::Bool(true)))
        }
        _ => false,
    }
}

#[derive(Default)]
struct Functionalizer {
    /// For each view, the value that it is a view of, and the node that computes it from that value.
    views: HashMap<VarId, (VarId, ExportedNode)>,
    /// The current version of each value that was written or recomputed.
    current: HashMap<VarId, VarId>,
    /// For each value that is not itself a view, how often its memory was written.
    versions: HashMap<VarId, u64>,
    /// For each view, the version of its memory at which it was last computed.
    synced: HashMap<VarId, u64>,
    /// The results of nodes that functionalization has added.
    made: HashSet<VarId>,
}

impl Functionalizer {
    fn visit(&mut self, cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
        if node.outputs.iter().any(|v| self.made.contains(v)) {
            return Ok(Outcome::Kept);
        }
        let mut fresh = node.clone();
        let before: Vec<VarId> = node.operands().collect();
        for (_, arg) in &mut fresh.args {
            arg.map_vars(&mut |v| self.current_version(cx, v));
        }
        let changed = !before.iter().copied().eq(fresh.operands());
        if let Some((operand, functional)) = written_operand(node) {
            return self.functionalize_write(cx, node, fresh, operand, functional);
        }
        if let Some((running, functional)) = running_statistics(node) {
            fresh.target = functional.into();
            return self.functionalize_statistics(cx, node, fresh, running);
        }
        if let (Some(x), [out]) = (node.arg("self").and_then(Argument::var), node.outputs.as_slice())
            && let (Some(have), Some(want)) = (cx.program.spec(x), cx.program.spec(*out))
            && is_view(node, have, want)
        {
            self.views.insert(*out, (x, node.clone()));
            let version = self.versions.get(&self.root_of_view(x)).copied().unwrap_or(0);
            self.synced.insert(*out, version);
        }
        if !changed {
            return Ok(Outcome::Kept);
        }
        self.made.extend(&fresh.outputs);
        cx.push_node(fresh);
        Ok(Outcome::Replaced)
    }

    fn functionalize_write(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        mut fresh: ExportedNode,
        operand: VarId,
        functional: String,
    ) -> Result<Outcome> {
        let Some(spec) = cx.program.spec(operand).cloned() else {
            return cx.fail(node, "it writes into what is no tensor");
        };
        let moves_only = matches!(
            &*functional,
            "aten.detach.default" | "aten.requires_grad.default" | "aten.alias.default"
        );
        if moves_only {
            return cx.replace_node(node, operand);
        }
        if node.outputs.first().and_then(|&v| cx.program.spec(v)).is_some_and(|s| s.sizes != spec.sizes) {
            return cx.fail(node, "it changes the sizes of its operand in place");
        }
        let name = format!("{}_{}", cx.program.var(operand).name, cx.program.num_vars());
        let new = cx.program.add_var(name, VarType::Tensor(spec));
        fresh.target = functional.into();
        fresh.outputs = vec![new];
        fresh.args.retain(|(name, _)| &**name != "out");
        self.made.insert(new);
        cx.push_node(fresh);
        self.set_version(cx, node, operand, new)?;
        if let Some(&out) = node.outputs.first() {
            cx.replace(out, operand);
        }
        Ok(Outcome::Replaced)
    }

    /// Replaces a training batch norm by one that returns the updated running statistics.
    fn functionalize_statistics(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        mut fresh: ExportedNode,
        running: [VarId; 2],
    ) -> Result<Outcome> {
        let mut like = |var: VarId| {
            let was = cx.program.var(var).clone();
            let name = format!("{}_{}", was.name, cx.program.num_vars());
            cx.program.add_var(name, was.ty)
        };
        if fresh.outputs.len() == 1 {
            fresh.outputs.extend(running.map(&mut like));
        }
        let new = running.map(&mut like);
        fresh.outputs.extend(new);
        fresh.args.retain(|(name, _)| &**name != "cudnn_enabled");
        self.made.extend(&fresh.outputs);
        cx.push_node(fresh);
        for (old, new) in running.into_iter().zip(new) {
            self.set_version(cx, node, old, new)?;
        }
        Ok(Outcome::Replaced)
    }

    fn root_of_view(&self, mut var: VarId) -> VarId {
        while let Some((base, _)) = self.views.get(&var) {
            var = *base;
        }
        var
    }

    /// The current version of a value. A view of memory that has been written since is recomputed.
    fn current_version(&mut self, cx: &mut Rewriter<'_>, var: VarId) -> VarId {
        // The chain of views from `var` down to the value that owns the memory.
        let mut chain = vec![var];
        while let Some((base, _)) = self.views.get(chain.last().unwrap_or(&var)) {
            chain.push(*base);
        }
        let root = chain[chain.len() - 1];
        let version = self.versions.get(&root).copied().unwrap_or(0);
        let mut value = self.current.get(&root).copied().unwrap_or(root);
        for &view in chain[..chain.len() - 1].iter().rev() {
            if self.synced.get(&view).copied().unwrap_or(0) == version {
                value = self.current.get(&view).copied().unwrap_or(view);
                continue;
            }
            let (_, mut node) = self.views[&view].clone();
            let was = cx.program.var(view).clone();
            let name = format!("{}_{}", was.name, cx.program.num_vars());
            let new = cx.program.add_var(name, was.ty);
            set_self_argument(&mut node, value);
            node.outputs = vec![new];
            self.made.insert(new);
            cx.push_node(node);
            self.current.insert(view, new);
            self.synced.insert(view, version);
            value = new;
        }
        value
    }

    /// Makes `new` the current version of `var`, and writes it back to all values that `var` is a view of.
    fn set_version(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        var: VarId,
        new: VarId,
    ) -> Result<()> {
        let root = self.root_of_view(var);
        let version = self.versions.get(&root).copied().unwrap_or(0) + 1;
        let (mut at, mut value) = (var, new);
        let mut updates = Vec::new();
        while let Some((base, view)) = self.views.get(&at).cloned() {
            updates.push((at, value));
            let viewed = self.current_version(cx, base);
            value = self.write_back(cx, node, &view, viewed, value)?;
            at = base;
        }
        self.current.insert(root, value);
        self.versions.insert(root, version);
        for (view, value) in updates {
            self.current.insert(view, value);
            self.synced.insert(view, version);
        }
        Ok(())
    }

    /// The new version of `viewed` after `part` was written through `view`.
    fn write_back(
        &mut self,
        cx: &mut Rewriter<'_>,
        node: &ExportedNode,
        view: &ExportedNode,
        viewed: VarId,
        part: VarId,
    ) -> Result<VarId> {
        let Some(spec) = cx.program.spec(viewed).cloned() else {
            return cx.fail(node, "it writes no tensor");
        };
        let rest: Vec<_> = view.args.iter().filter(|(name, _)| &**name != "self").cloned().collect();
        let (target, args) = match &*view.target {
            "aten.view.default" => {
                let sizes = cx.view_sizes_argument(node, &spec.sizes)?;
                ("aten.view.default", vec![("self".into(), Argument::Var(part)), ("size".into(), sizes)])
            }
            "aten.view.dtype" => (
                "aten.view.dtype",
                vec![("self".into(), Argument::Var(part)), ("dtype".into(), Argument::Dtype(spec.dtype))],
            ),
            "aten.permute.default" => {
                let dims = cx.dims(view, "dims", spec.rank())?;
                let mut back = vec![0i64; dims.len()];
                dims.iter().enumerate().for_each(|(i, &d)| back[d] = i as i64);
                (
                    "aten.permute.default",
                    vec![("self".into(), Argument::Var(part)), ("dims".into(), Argument::ints(&back))],
                )
            }
            "aten.slice.Tensor" | "aten.select.int" | "aten.diagonal.default" => {
                let target = match &*view.target {
                    "aten.slice.Tensor" => "aten.slice_scatter.default",
                    "aten.select.int" => "aten.select_scatter.default",
                    _ => "aten.diagonal_scatter.default",
                };
                let mut args =
                    vec![("self".into(), Argument::Var(viewed)), ("src".into(), Argument::Var(part))];
                args.extend(rest);
                (target, args)
            }
            t if t.starts_with("aten.to.")
                || t.starts_with("aten.contiguous.")
                || t.starts_with("aten.dropout.") =>
            {
                return Ok(part);
            }
            other => {
                return cx
                    .fail(node, format!("it writes through `{other}`, whose elements may share memory"));
            }
        };
        let name = format!("{}_{}", cx.program.var(viewed).name, cx.program.num_vars());
        let new = cx.program.add_var(name, VarType::Tensor(spec));
        self.made.insert(new);
        cx.push_node(ExportedNode {
            target: target.into(),
            args,
            outputs: vec![new],
            source: node.source.clone(),
        });
        Ok(new)
    }
}

fn set_self_argument(node: &mut ExportedNode, value: VarId) {
    for (name, arg) in &mut node.args {
        if &**name == "self" {
            *arg = Argument::Var(value);
        }
    }
}
