//! Checks that each tagged part can run in one call, and orders the parts.

use super::DelegationError;
use super::propose::all_operands;
use crate::{ExportedGraph, ExportedNode, ExportedProgram, VarId};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, HashSet, VecDeque};
use std::sync::Arc;

impl ExportedProgram {
    /// The tag of a node: that of its first result.
    pub fn tag_of(&self, node: &ExportedNode) -> Option<&Arc<str>> {
        self.tags.get(node.outputs.first()?)
    }

    /// Checks that the nodes of each tag belong to one graph and can run in one call.
    ///
    /// # Errors
    /// A tag is used in two graphs, or a path leads from a part through other nodes back into it.
    pub fn check_tags(&self) -> Result<(), DelegationError> {
        let mut seen = BTreeMap::new();
        self.check_graph_tags(&self.graph, &mut 0, &mut seen)
    }

    fn check_graph_tags(
        &self,
        graph: &ExportedGraph,
        number: &mut usize,
        seen: &mut BTreeMap<Arc<str>, usize>,
    ) -> Result<(), DelegationError> {
        let here = *number;
        for tag in graph.nodes.iter().filter_map(|node| self.tag_of(node)) {
            if *seen.entry(Arc::clone(tag)).or_insert(here) != here {
                return Err(DelegationError::Spread { tag: tag.to_string() });
            }
        }
        groups_in_order(self, graph)?;
        for inner in graph.nodes.iter().flat_map(ExportedNode::graphs) {
            *number += 1;
            self.check_graph_tags(inner, number, seen)?;
        }
        Ok(())
    }
}

/// Nodes that run together: all nodes of a tag, or one untagged node.
pub(super) struct Group {
    pub(super) tag: Option<Arc<str>>,
    /// The indices of the group's nodes in the graph, in increasing order.
    pub(super) nodes: Vec<usize>,
}

/// Sorts the groups of a graph topologically. Ready groups keep the order of their first nodes.
pub(super) fn groups_in_order(
    program: &ExportedProgram,
    graph: &ExportedGraph,
) -> Result<Vec<Group>, DelegationError> {
    let mut groups: Vec<Group> = Vec::new();
    let mut of_tag: HashMap<Arc<str>, usize> = HashMap::new();
    let mut group_of = Vec::with_capacity(graph.nodes.len());
    let mut defined_by: HashMap<VarId, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        let tag = program.tag_of(node).cloned();
        let new = groups.len();
        let group = tag.as_ref().map_or(new, |tag| *of_tag.entry(Arc::clone(tag)).or_insert(new));
        if group == new {
            groups.push(Group { tag, nodes: Vec::new() });
        }
        groups[group].nodes.push(index);
        group_of.push(group);
        defined_by.extend(node.outputs.iter().map(|&v| (v, index)));
    }
    let (mut users, mut waits) = (vec![Vec::new(); groups.len()], vec![0usize; groups.len()]);
    for (index, node) in graph.nodes.iter().enumerate() {
        for from in all_operands(node).iter().filter_map(|v| defined_by.get(v)) {
            if group_of[*from] != group_of[index] {
                users[group_of[*from]].push(group_of[index]);
                waits[group_of[index]] += 1;
            }
        }
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        (0..groups.len()).filter(|&g| waits[g] == 0).map(Reverse).collect();
    let mut order = Vec::with_capacity(groups.len());
    while let Some(Reverse(group)) = ready.pop() {
        order.push(group);
        for &user in &users[group] {
            waits[user] -= 1;
            if waits[user] == 0 {
                ready.push(Reverse(user));
            }
        }
    }
    if order.len() < groups.len() {
        return Err(cycle_error(program, graph, &groups, &group_of, &defined_by, &waits));
    }
    let mut remaining: Vec<Option<Group>> = groups.into_iter().map(Some).collect();
    Ok(order.into_iter().filter_map(|group| remaining[group].take()).collect())
}

/// The error for a cycle: a path from a part through other nodes back into it. There is such a path among the groups
/// with unmet dependencies (`waits`).
fn cycle_error(
    program: &ExportedProgram,
    graph: &ExportedGraph,
    groups: &[Group],
    group_of: &[usize],
    defined_by: &HashMap<VarId, usize>,
    waits: &[usize],
) -> DelegationError {
    let mut users: HashMap<usize, Vec<usize>> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate() {
        for &from in all_operands(node).iter().filter_map(|v| defined_by.get(v)) {
            users.entry(from).or_default().push(index);
        }
    }
    let name = |index: usize| {
        let node = &graph.nodes[index];
        let name = node.outputs.first().map_or("?", |&v| &*program.var(v).name);
        let tag = program.tag_of(node).map_or_else(|| "no tag".to_owned(), |tag| format!("`{tag}`"));
        format!("%{name} ({tag})")
    };
    let number = find_group_on_cycle(graph, group_of, defined_by, waits);
    let tag = groups[number].tag.as_deref().unwrap_or_default().to_owned();
    // Breadth-first search: the predecessor of each reached node, the groups that were reached, and the queue.
    let (mut before, mut entered) = (HashMap::new(), HashSet::new());
    let mut queue: VecDeque<usize> = groups[number].nodes.iter().copied().collect();
    while let Some(at) = queue.pop_front() {
        for &user in users.get(&at).into_iter().flatten() {
            if group_of[user] == number {
                if group_of[at] == number {
                    continue;
                }
                let path = std::iter::successors(Some(at), |node| before.get(node).copied());
                let mut path: Vec<String> = std::iter::once(user).chain(path).map(name).collect();
                path.reverse();
                return DelegationError::Cycle { tag, path: path.join(" -> ") };
            }
            before.entry(user).or_insert(at);
            // A part's outputs are available once all of it has run, so reaching one node reaches the whole group.
            if entered.insert(group_of[user]) {
                for &other in &groups[group_of[user]].nodes {
                    if other != user {
                        before.entry(other).or_insert(user);
                    }
                    queue.push_back(other);
                }
            }
        }
    }
    DelegationError::Cycle { tag, path: "its nodes are in no order in which they can run".to_owned() }
}

/// A tagged group on a dependency cycle. Starts at a group with unmet dependencies, follows dependencies back until a
/// group repeats, and takes the first group of that cycle with several nodes.
fn find_group_on_cycle(
    graph: &ExportedGraph,
    group_of: &[usize],
    defined_by: &HashMap<VarId, usize>,
    waits: &[usize],
) -> usize {
    let mut waits_for: HashMap<usize, usize> = HashMap::new();
    for (index, node) in graph.nodes.iter().enumerate().filter(|(index, _)| waits[group_of[*index]] > 0) {
        for &from in all_operands(node).iter().filter_map(|v| defined_by.get(v)) {
            let (from, to) = (group_of[from], group_of[index]);
            if from != to && waits[from] > 0 {
                waits_for.insert(to, from);
            }
        }
    }
    let members = |group: usize| group_of.iter().filter(|g| **g == group).count();
    let mut at = waits_for.keys().min().copied().unwrap_or_default();
    let mut met = HashSet::new();
    while met.insert(at) {
        at = waits_for.get(&at).copied().unwrap_or(at);
    }
    let circle = std::iter::successors(waits_for.get(&at).copied(), |group| {
        waits_for.get(group).copied().filter(|_| *group != at)
    });
    circle.into_iter().find(|group| members(*group) > 1).unwrap_or(at)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{chain, names};

    #[test]
    fn errors_show_a_cycle_through_an_untagged_node() {
        let mut program = chain(&["a", "b", "c"]);
        for at in [0, 2] {
            let var = program.graph.nodes[at].outputs[0];
            program.tags.insert(var, "t".into());
        }
        let problem = program.check_tags().unwrap_err().to_string();
        assert!(
            problem.contains("`t`") && problem.contains("%v0 (`t`) -> %v1 (no tag) -> %v2 (`t`)"),
            "{problem}"
        );
        assert_eq!(names(&program), ["a", "b", "c"]);
    }

    #[test]
    fn errors_show_a_cycle_between_two_parts() {
        let mut program = chain(&["a", "b", "c", "d"]);
        for (at, tag) in [(0, "s"), (1, "t"), (2, "s"), (3, "t")] {
            let var = program.graph.nodes[at].outputs[0];
            program.tags.insert(var, tag.into());
        }
        let problem = program.check_tags().unwrap_err().to_string();
        assert!(problem.contains("`s`") && problem.contains("%v1 (`t`)"), "{problem}");
    }
}
