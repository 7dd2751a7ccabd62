//! Decompositions: rewrites operators for which there is no kernel in terms of operators that have one. There is one
//! file for each family; a rule is a function and a row in its family's table.

mod attention;
mod batch_norm;
mod counting;
mod distance;
mod draws;
mod dynamic;
mod elementwise;
mod factors;
mod factory;
mod index;
mod jacobi;
mod layout;
mod linalg;
mod loss;
mod matrix;
mod nn;
mod nodes;
mod operands;
mod order;
mod pairs;
mod pool;
mod product;
mod quantized;
mod recurrent;
mod reduce;
mod resample;
mod scan;
mod scatter;
mod shape;
mod short_time;
mod singular;
mod special;
mod spectral;
mod volume;
mod windows;

use crate::operators::OperatorTable;
use crate::passes::functionalize;
use crate::rewrite::{Outcome, Rewriter};
use crate::{Error, Result, UnsupportedOperator};
use pteron_exported::{Argument, ExportedNode, ExportedProgram, TensorSpec, VarType};
use pteron_tensor::ScalarType;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// Replaces a node by others, or reports that it is kept.
type Rule = fn(&mut Rewriter<'_>, &ExportedNode) -> Result<Outcome>;

/// When a rule applies.
#[derive(Clone, Copy, PartialEq, Eq)]
enum When {
    /// Always, even if a kernel takes the node: the rule brings it to the canonical form that later passes expect.
    Always,
    /// Only if no kernel takes the node.
    NoKernel,
}

/// A family's rules, keyed by the operator's namespace and name, without the overload.
type Table = &'static [(&'static str, When, Rule)];

const TABLES: &[Table] = &[
    layout::ALIASES,
    layout::RULES,
    shape::VIEWS,
    shape::RULES,
    elementwise::RULES,
    factory::RULES,
    nn::RULES,
    pool::RULES,
    product::RULES,
    quantized::RULES,
    attention::RULES,
    recurrent::RULES,
    reduce::RULES,
    index::RULES,
    order::RULES,
    scan::RULES,
    loss::RULES,
    matrix::RULES,
    linalg::RULES,
    jacobi::RULES,
    singular::RULES,
    factors::RULES,
    scatter::RULES,
    batch_norm::RULES,
    counting::RULES,
    distance::RULES,
    draws::RULES,
    dynamic::RULES,
    special::RULES,
    spectral::RULES,
    short_time::RULES,
    resample::RULES,
    windows::RULES,
    volume::RULES,
];

pub(crate) use layout::convert;

/// Canonicalizes operators whose results alias their operand to the few forms that functionalization handles. Rules
/// that may elide a copy run only after it: if the result of an elided copy were mutated, its source would change, too.
///
/// # Errors
/// A node that a rule rejects.
pub(crate) fn rewrite_views(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    let mutates = functionalize::has_mutations(program);
    let rules: HashMap<&str, Rule> = shape::VIEWS.iter().chain(layout::ALIASES).map(|r| (r.0, r.2)).collect();
    Rewriter::run(program, &mut |cx, node| {
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        let Some(rule) = rules.get(base) else { return Ok(Outcome::Kept) };
        cx.attempt(node, rule, |program| !mutates && table.select(program, node).is_some())
    })
}

/// Whether the emitter handles the operator itself, without a kernel.
fn is_structural(target: &str) -> bool {
    ["higher_order.", "_operator.", "torch.sym_", "math.", "builtins."].iter().any(|p| target.starts_with(p))
        || matches!(
            target,
            "aten.view.default"
                | "aten.sym_size.int"
                | "aten.item.default"
                | "aten._local_scalar_dense.default"
        )
}

/// What an error suggests if the program is limited to the reference runtime's kernels.
const USE_ALL_OPERATORS: &str = "compile it with every operator of Pteron (`--operators all`)";

/// Why a node with complex operands is not supported.
const COMPLEX_OPERANDS: &str = "; its operands are complex, and no kernel of the table makes complex numbers";

/// Replaces every node that no operator of the table takes, and brings others to the form that later passes expect.
///
/// # Errors
/// All operators that have neither a kernel nor a rule; or a node that a rule rejects.
pub(crate) fn run(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    let mut rules: HashMap<&str, (When, Rule)> = HashMap::new();
    for (name, when, rule) in TABLES.iter().copied().flatten().copied() {
        let before = rules.insert(name, (when, rule));
        debug_assert!(before.is_none(), "two rules for {name}");
    }
    let mut unsupported: BTreeMap<String, UnsupportedOperator> = BTreeMap::new();
    let mut pairs = pairs::Pairs::default();
    let declared = output_types(program);
    Rewriter::run(program, &mut |cx, node| {
        if table.is_kept(node) {
            return Ok(Outcome::Kept);
        }
        let base = node.target.rsplit_once('.').map_or(&*node.target, |(base, _)| base);
        if let Outcome::Replaced = operands::replace_complex_scalars(cx, node)? {
            return Ok(Outcome::Replaced);
        }
        if let Outcome::Replaced = resample::interpolate_uint8(cx, node)? {
            return Ok(Outcome::Replaced);
        }
        if table.is_portable()
            && (matches!(operands::half_item_as_float32(cx, node)?, Outcome::Replaced)
                || matches!(operands::drop_dims_of_scalar(cx, node)?, Outcome::Replaced)
                || matches!(operands::unfold_scalar(cx, node)?, Outcome::Replaced)
                || matches!(operands::replace_empty_results(cx, node)?, Outcome::Replaced))
        {
            return Ok(Outcome::Replaced);
        }
        let rule = rules.get(base).copied();
        let of_pairs = node.operands().any(|var| pairs.contains(var));
        if of_pairs && let Outcome::Replaced = pairs.visit(cx, node)? {
            return Ok(Outcome::Replaced);
        }
        if let Some((When::Always, rule)) = rule
            && let Outcome::Replaced =
                cx.attempt(node, rule, |program| table.select(program, node).is_some())?
        {
            return Ok(Outcome::Replaced);
        }
        let is_taken = is_structural(&node.target) || table.select(cx.program, node).is_some();
        if is_taken && !of_pairs && !table.splits(node) {
            return Ok(Outcome::Kept);
        }
        if let Some((When::NoKernel, rule)) = rule {
            match rule(cx, node) {
                Ok(Outcome::Replaced) => return Ok(Outcome::Replaced),
                Ok(Outcome::Kept) => {}
                // A node whose operands became pairs cannot be kept: they no longer exist.
                Err(_) if !of_pairs && table.select_any(cx.program, node).is_some() => {
                    return Ok(cx.abandon(node));
                }
                Err(problem) => return Err(problem),
            }
        }
        if !of_pairs && let Outcome::Replaced = pairs.visit(cx, node)? {
            return Ok(Outcome::Replaced);
        }
        if let Outcome::Replaced = operands::replace_scalar_operands(cx, node, table)? {
            return Ok(Outcome::Replaced);
        }
        if let Outcome::Replaced = operands::compute_in_float32(cx, node, table)? {
            return Ok(Outcome::Replaced);
        }
        if !of_pairs && table.select_any(cx.program, node).is_some() {
            return Ok(Outcome::Kept);
        }
        let operator = unsupported.entry(node.target.to_string()).or_insert_with(|| UnsupportedOperator {
            target: node.target.to_string(),
            count: 0,
            node: cx.program.node_name(node),
            line: node.line().cloned(),
            hint: if of_pairs { COMPLEX_OPERANDS.to_owned() } else { table.hint(cx.program, node) },
        });
        operator.count += 1;
        Ok(Outcome::Kept)
    })?;
    let left = program
        .graph
        .outputs
        .iter()
        .flat_map(Argument::vars)
        .chain(program.mutations.iter().map(|m| m.value));
    if let Some(var) = left.into_iter().find(|&var| pairs.contains(var)) {
        let place = format!("the result `{}`", program.var(var).name);
        return Err(Error::archive_with_help(
            place,
            "it is complex, and no kernel of the table makes complex numbers",
            USE_ALL_OPERATORS,
        ));
    }
    restore_output_types(program, &declared);
    if unsupported.is_empty() { Ok(()) } else { Err(Error::Unsupported(unsupported.into_values().collect())) }
}

/// The type of each output that is a tensor of real numbers.
fn output_types(program: &ExportedProgram) -> Vec<Option<ScalarType>> {
    let dtype = |output: &Argument| program.spec(output.var()?).map(|spec| spec.dtype);
    program.graph.outputs.iter().map(|output| dtype(output).filter(|dtype| !dtype.is_complex())).collect()
}

/// Casts outputs that rules have computed in another type back to their declared types.
fn restore_output_types(program: &mut ExportedProgram, declared: &[Option<ScalarType>]) {
    for (i, (want, have)) in declared.iter().zip(output_types(program)).enumerate() {
        let (Some(want), Some(have)) = (*want, have) else { continue };
        let Some(var) = program.graph.outputs[i].var().filter(|_| want != have) else { continue };
        let Some(spec) = program.spec(var).cloned() else { continue };
        let name = format!("{}_{}", program.var(var).name, program.num_vars());
        let cast = program.add_var(name, VarType::Tensor(TensorSpec { dtype: want, ..spec }));
        program.graph.nodes.push(ExportedNode {
            target: "dim_order_ops._to_dim_order_copy.default".into(),
            args: vec![("self".into(), Argument::Var(var))],
            outputs: vec![cast],
            source: Arc::default(),
        });
        program.graph.outputs[i] = Argument::Var(cast);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::{InputKind, IntArgument, Size, VarId};
    use std::collections::BTreeSet;
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::path::Path;

    /// The names of the arguments that decomposition rules read, each with all the ways in which rules read it.
    fn arguments() -> BTreeMap<Arc<str>, BTreeSet<Read>> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/decompose");
        let mut all: BTreeMap<Arc<str>, BTreeSet<Read>> = BTreeMap::new();
        let mut folders = vec![folder];
        while let Some(folder) = folders.pop() {
            for path in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
                match path.is_dir() {
                    true => folders.push(path),
                    false => arguments_of(&std::fs::read_to_string(path).unwrap(), &mut all),
                }
            }
        }
        assert!(all.len() > 150, "only {} names", all.len());
        all
    }

    fn arguments_of(source: &str, all: &mut BTreeMap<Arc<str>, BTreeSet<Read>>) {
        for (i, _) in source.match_indices("(node, \"").chain(source.match_indices(".arg(\"")) {
            let before = &source[..source[i..].find('(').map_or(i, |at| i + at)];
            let reader = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default();
            let name = source[i..].split('"').nth(1).unwrap_or_default();
            let read = match reader {
                "tensor" | "optional_tensor" | "optional" => Read::Tensor,
                "tensors" => Read::Tensors,
                "int" | "bool" => Read::Int,
                "float" => Read::Float,
                "ints" | "dims" | "list" => Read::Ints,
                _ => Read::Other,
            };
            all.entry(name.into()).or_default().insert(read);
        }
    }

    /// How a rule reads an argument.
    #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    enum Read {
        Tensor,
        Tensors,
        Int,
        Float,
        Ints,
        Other,
    }

    /// The ranks and values of a single node's arguments in a test.
    #[derive(Debug)]
    struct NodeCase {
        /// The ranks of `self`, of the other operands and of the results.
        ranks: [usize; 3],
        /// The value of every integer argument, and of every element of an integer list.
        number: i64,
        /// The length of every list argument.
        len: usize,
        outputs: usize,
        /// For a name that rules read in several ways, the index of the way in which the argument is given.
        way: usize,
    }

    /// A program with a single node.
    fn program(name: &str, case: &NodeCase, names: &BTreeMap<Arc<str>, BTreeSet<Read>>) -> ExportedProgram {
        let mut program = ExportedProgram::new("forward");
        let add = |program: &mut ExportedProgram, rank: usize| -> VarId {
            let spec = TensorSpec::contiguous(ScalarType::Float, vec![Size::Int(2); rank]);
            program.add_var(format!("v{}", program.num_vars()), VarType::Tensor(spec))
        };
        let inputs = [add(&mut program, case.ranks[0]), add(&mut program, case.ranks[1])];
        program.graph.inputs = inputs.to_vec();
        program.inputs = vec![InputKind::User; 2];
        let mut args = Vec::with_capacity(names.len());
        for (name, reads) in names {
            let known = reads.iter().filter(|read| !matches!(read, Read::Other));
            let reads: Vec<&Read> =
                if known.clone().count() > 0 { known.collect() } else { reads.iter().collect() };
            let arg = match reads[case.way % reads.len()] {
                Read::Tensor => Argument::Var(inputs[usize::from(!matches!(&**name, "self" | "input"))]),
                Read::Tensors => Argument::Vars(inputs.iter().copied().cycle().take(case.len).collect()),
                Read::Int => Argument::Int(case.number),
                Read::Float => Argument::Float(case.number as f64),
                Read::Ints => Argument::Ints(vec![IntArgument::Int(case.number); case.len]),
                Read::Other if **name == *"reduce" => Argument::Str("amax".into()),
                Read::Other if **name == *"equation" => Argument::Str("ij,jk->ik".into()),
                Read::Other => continue,
            };
            args.push((Arc::clone(name), arg));
        }
        let outputs: Vec<VarId> = (0..case.outputs).map(|_| add(&mut program, case.ranks[2])).collect();
        let target = format!("{name}.default").into();
        program.graph.nodes.push(ExportedNode { target, args, outputs, source: Default::default() });
        program
    }

    /// The test cases for a node whose operands have the ranks `a` and `b`.
    fn all_given(a: usize, b: usize) -> Vec<NodeCase> {
        let own = b.max(1);
        let mut numbers =
            vec![(0, own, 1), (1, own, 2), (-1, own, 3), (i64::MAX, own, 1), (i64::MIN, own, 2)];
        // Lengths of lists are independent of the rank of a second operand.
        if a == b {
            numbers.extend([(1, 0, 1), (1, own + 1, 1), (-1, 2 * own + 2, 1), (2, 2 * own, 1)]);
        }
        let case = |(i, (number, len, outputs))| {
            let way: usize = i + a + b;
            NodeCase { ranks: [a, b, [0, 2, 5][way % 3]], number, len, outputs, way }
        };
        numbers.into_iter().enumerate().map(case).collect()
    }

    #[test]
    fn no_rule_panics_on_ranks_and_lists_that_its_operator_does_not_take() {
        let names = arguments();
        let mut failed: BTreeMap<String, String> = BTreeMap::new();
        for &(name, _, rule) in TABLES.iter().copied().flatten() {
            for case in (0..6).flat_map(|a| (0..6).flat_map(move |b| all_given(a, b))) {
                let mut program = program(name, &case, &names);
                let outcome = catch_unwind(AssertUnwindSafe(|| {
                    let mut asked = false;
                    Rewriter::run(&mut program, &mut |cx, node| {
                        // Nodes that the rule makes are kept as they are.
                        match std::mem::replace(&mut asked, true) {
                            false => rule(cx, node),
                            true => Ok(Outcome::Kept),
                        }
                    })
                }));
                if outcome.is_err() {
                    failed.entry(name.to_owned()).or_insert_with(|| format!("{case:?}"));
                }
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
