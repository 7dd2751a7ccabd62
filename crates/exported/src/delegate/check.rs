//! Checks what a partitioner has done: it may tag nodes, and nothing else.

use super::{CALL_DELEGATE, DelegationError, PartitionResult, Partitioner};
use crate::{Argument, ExportedGraph, ExportedNode, ExportedProgram, IntArgument, VarId};
use std::collections::HashMap;
use std::sync::Arc;

/// Runs a partitioner, and checks that it has only tagged nodes.
///
/// # Errors
/// The partitioner fails, has changed the program, or has tagged something that no backend can take.
pub fn partition(
    program: &ExportedProgram,
    partitioner: &dyn Partitioner,
) -> Result<PartitionResult, DelegationError> {
    let result = partitioner.partition(program)?;
    let tagged = &result.tagged_exported_program;
    if let Some(what) = difference(program, tagged) {
        return Err(DelegationError::Altered { what });
    }
    tagged.check_tagged_values()?;
    Ok(result)
}

/// What a partitioner has changed besides tags; `None` if nothing. It may replace the computed sizes of a view by known
/// sizes of the result, or by -1 (inferred).
fn difference(before: &ExportedProgram, after: &ExportedProgram) -> Option<String> {
    let same_vars = before.num_vars() <= after.num_vars()
        && before.var_ids().all(|id| before.var(id).ty == after.var(id).ty);
    if !same_vars {
        return Some("the types of its values".to_owned());
    }
    let same_constant = |id: &VarId| match (before.constants.get(id), after.constants.get(id)) {
        (Some(a), Some(b)) => {
            a.range == b.range
                && (Arc::ptr_eq(&a.bytes, &b.bytes) || a.reopened().data() == b.reopened().data())
        }
        _ => false,
    };
    if !before.constants.keys().all(same_constant) {
        return Some("its constants".to_owned());
    }
    let of_tables = [
        ("its name", before.name == after.name),
        ("its inputs", before.inputs == after.inputs),
        ("the state that it writes", before.mutations == after.mutations),
        (
            "the state that it shares",
            before.shared == after.shared && before.shared_bytes == after.shared_bytes,
        ),
        ("the bounds of its sizes", before.ranges == after.ranges),
        (
            "the containers of its inputs and outputs",
            before.in_spec == after.in_spec && before.out_spec == after.out_spec,
        ),
        (
            "the payloads of other backends",
            before.lowered.len() == after.lowered.len()
                && before.lowered.iter().zip(&after.lowered).all(|(a, b)| Arc::ptr_eq(a, b)),
        ),
    ];
    let changed = of_tables.into_iter().find(|(_, same)| !same).map(|(what, _)| what.to_owned());
    changed.or_else(|| graph_difference(before, &before.graph, &after.graph))
}

fn graph_difference(
    program: &ExportedProgram,
    before: &ExportedGraph,
    after: &ExportedGraph,
) -> Option<String> {
    if before.inputs != after.inputs {
        return Some("the inputs of a graph".to_owned());
    }
    if before.outputs != after.outputs {
        return Some("the outputs of a graph".to_owned());
    }
    for (a, b) in before.nodes.iter().zip(&after.nodes) {
        if a.target != b.target || a.outputs != b.outputs || a.args.len() != b.args.len() {
            return Some(format!("node `{}`", program.node_name(a)));
        }
        for ((name, x), (other, y)) in a.args.iter().zip(&b.args) {
            match (x, y) {
                (Argument::Graph(x), Argument::Graph(y)) => {
                    if let Some(what) = graph_difference(program, x, y) {
                        return Some(what);
                    }
                }
                _ if name == other && (x == y || is_size_inference(program, a, x, y)) => {}
                _ => return Some(format!("the argument `{name}` of node `{}`", program.node_name(a))),
            }
        }
    }
    (before.nodes.len() != after.nodes.len())
        .then(|| format!("the number of its nodes: {} instead of {}", after.nodes.len(), before.nodes.len()))
}

/// Whether the sizes of a view changed only where they were values or -1, and only to -1 or to the result's known size.
fn is_size_inference(
    program: &ExportedProgram,
    node: &ExportedNode,
    before: &Argument,
    after: &Argument,
) -> bool {
    let (Argument::Ints(before), Argument::Ints(after)) = (before, after) else { return false };
    let sizes = node.outputs.first().and_then(|&out| program.spec(out)).map_or(&[][..], |spec| &spec.sizes);
    let same = |(at, (a, b)): (usize, (&IntArgument, &IntArgument))| {
        let open = matches!(a, IntArgument::Var(_) | IntArgument::Int(-1));
        let known = sizes.get(at).and_then(|size| size.known());
        a == b || open && matches!(b, &IntArgument::Int(n) if n == -1 || known == Some(n))
    };
    *node.target == *"aten.view.default"
        && before.len() == after.len()
        && before.iter().zip(after).enumerate().all(same)
        && after.iter().filter(|size| **size == IntArgument::Int(-1)).count() <= 1
}

impl ExportedProgram {
    /// Checks that each tag is on the first result of a node, and on no call of another backend's payload.
    pub(super) fn check_tagged_values(&self) -> Result<(), DelegationError> {
        if self.tags.is_empty() {
            return Ok(());
        }
        let mut first_of: HashMap<VarId, VarId> = HashMap::new();
        let mut calls: HashMap<VarId, usize> = HashMap::new();
        self.graph.for_each_node(&mut |node| {
            let Some(&first) = node.outputs.first() else { return };
            first_of.extend(node.outputs.iter().map(|&var| (var, first)));
            if *node.target == *CALL_DELEGATE
                && let Some(Argument::Int(index)) = node.arg("lowered_module")
            {
                calls.insert(first, usize::try_from(*index).unwrap_or(usize::MAX));
            }
        });
        for (&var, tag) in &self.tags {
            let problem = match first_of.get(&var) {
                _ if var.index() >= self.num_vars() => "it is a value of another program".to_owned(),
                Some(&first) if first == var => match calls.get(&var) {
                    None => continue,
                    Some(&index) => {
                        let id = self.lowered.get(index).map_or("another backend", |m| &m.spec.backend_id);
                        format!("it is a call of {id}, which took these nodes before")
                    }
                },
                Some(&first) => {
                    format!("it is no node's first result: tag %{} instead", self.var(first).name)
                }
                None if self.constants.contains_key(&var) => "it is a constant".to_owned(),
                None => "it is an input, and no node's result".to_owned(),
            };
            let name = match var.index() < self.num_vars() {
                true => format!("%{}", self.var(var).name),
                false => format!("value {}", var.index()),
            };
            return Err(DelegationError::NotANode { tag: tag.to_string(), value: name, problem });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{Plus, chain, value};
    use super::*;
    use crate::delegate::{DelegationSpec, to_backend, to_backend_whole};
    use std::collections::BTreeMap;

    /// A partitioner that makes a change to the program instead of tagging it.
    struct Alters(fn(&mut ExportedProgram));

    impl Partitioner for Alters {
        fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
            let mut tagged_exported_program = program.clone();
            (self.0)(&mut tagged_exported_program);
            let spec = DelegationSpec { backend_id: "Plus".into(), ..DelegationSpec::default() };
            let partition_tags = BTreeMap::from([("a".into(), spec)]);
            Ok(PartitionResult { tagged_exported_program, partition_tags, reasons: BTreeMap::new() })
        }
    }

    fn refused(alter: fn(&mut ExportedProgram)) -> String {
        to_backend(&chain(&["+a", "b"]), &Alters(alter), &[&Plus]).unwrap_err().to_string()
    }

    #[test]
    fn a_partitioner_may_only_tag() {
        assert!(refused(|p| p.graph.outputs.clear()).contains("the outputs of a graph"));
        assert!(refused(|p| p.graph.nodes[1].target = "c".into()).contains("node `v1`"));
        assert!(refused(|p| p.graph.nodes[1].args.clear()).contains("node `v1`"));
        assert!(refused(|p| p.inputs.clear()).contains("its inputs"));
        assert!(refused(|p| drop(p.graph.nodes.pop())).contains("1 instead of 2"));
        assert!(refused(|p| *p = ExportedProgram::new("forward")).contains("the types of its values"));
        to_backend(&chain(&["+a"]), &Alters(|_| ()), &[&Plus]).unwrap();
    }

    #[test]
    fn only_nodes_are_tagged() {
        let input = refused(|p| drop(p.tags.insert(p.graph.inputs[0], "a".into())));
        assert!(input.contains("%x") && input.contains("an input"), "{input}");
        let foreign = refused(|p| {
            let mut other = p.clone();
            let var = (0..9).map(|_| value(&mut other, "z")).last().unwrap();
            p.tags.insert(var, "a".into());
        });
        assert!(foreign.contains("value 11") && foreign.contains("another program"), "{foreign}");
    }

    #[test]
    fn calls_of_other_backends_are_not_taken() {
        let spec = DelegationSpec { backend_id: "Plus".into(), ..DelegationSpec::default() };
        let program = to_backend(&chain(&["+a", "b"]), &Plus, &[&Plus]).unwrap();
        let refused = to_backend_whole(&program, &Plus, &spec).unwrap_err().to_string();
        assert!(refused.contains("%v0") && refused.contains("a call of Plus"), "{refused}");
        let mut tagged = program;
        let tags = super::super::tag_supported(&mut tagged, "t", &|_, _| true);
        assert_eq!((tags.len(), tagged.tags.len()), (1, 1));
        tagged.check_tagged_values().unwrap();
    }
}
