//! Constant folding: runs the kernels of the table on constants.

use super::folded::{FoldedCall, SCRATCH_BYTES, fold_call, tensor_meta};
use crate::operators::OperatorTable;
use crate::rewrite::{Outcome, Rewriter};
use crate::{Result, weights};
use pteron_exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, VarId};
use pteron_operator::{Generator, KernelContext, Results, Scratch};
use pteron_pool::Pool;
use pteron_tensor::TensorMeta;
use std::collections::HashMap;

/// Maximum bytes of a folded result that is larger than its operands, e.g. a mask or positions.
const MAX_GROWN_BYTES: usize = 1 << 20;

/// Maximum bytes of the folded results that are in memory at a time. Results beyond that are not folded here, but
/// computed once when the program is loaded.
const MAX_FOLDED_BYTES: usize = 1 << 31;

pub(super) fn run(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    let (pool, scratch, generator) = (Pool::new(1), Scratch::new(SCRATCH_BYTES), Generator::default());
    let context = KernelContext::new(&pool, &scratch, &generator);
    let mut folder = Folder {
        table,
        context,
        held: 0,
        computed: HashMap::new(),
        calls: HashMap::new(),
        uses: program.use_counts(),
    };
    Rewriter::run(program, &mut |cx, node| {
        let outcome = folder.visit(cx.program, node);
        if matches!(outcome, Outcome::Replaced) {
            folder.release(cx.program, node);
        }
        Ok(outcome)
    })
}

struct Folder<'a> {
    table: &'a OperatorTable,
    context: KernelContext<'a>,
    /// Bytes of the folded results that are in memory.
    held: usize,
    /// The bytes that are freed with each folded result: none for a view of another result.
    computed: HashMap<VarId, usize>,
    /// The number of calls that recompute each folded result, if it can be recomputed.
    calls: HashMap<VarId, usize>,
    /// For each value, the number of uses that have not been visited yet.
    uses: Vec<u32>,
}

impl Folder<'_> {
    fn visit(&mut self, program: &mut ExportedProgram, node: &ExportedNode) -> Outcome {
        let fixed = |v: VarId| program.constants.contains_key(&v) && !program.is_mutated(v);
        if node.outputs.is_empty() || node.graphs().next().is_some() || !node.operands().all(fixed) {
            return Outcome::Kept;
        }
        if is_view(node) {
            let known = node.operands().find_map(|v| self.calls.get(&v).copied());
            let view = fold_view(program, node);
            if let (Outcome::Replaced, Some(calls)) = (&view, known) {
                self.calls.extend(node.outputs.first().map(|&output| (output, calls)));
            }
            return view;
        }
        // Weights stay quantized or in half precision, since they are larger in float32.
        if node.target.starts_with("quantized_decomposed.dequantize") || weights::is_widened(program, node) {
            return Outcome::Kept;
        }
        let Some(metas) = node.outputs.iter().map(|&v| tensor_meta(program, v)).collect::<Option<Vec<_>>>()
        else {
            return Outcome::Kept;
        };
        let sources: usize = node.operands().map(|v| program.constants[&v].range.len()).sum();
        let bytes: usize = metas.iter().map(TensorMeta::nbytes).sum();
        if bytes > sources.max(MAX_GROWN_BYTES) || self.held.saturating_add(bytes) > MAX_FOLDED_BYTES {
            return Outcome::Kept;
        }
        let Some(selection) = self.table.select_any(program, node) else { return Outcome::Kept };
        if program.budget.charge("a folded constant", bytes).is_err() {
            return Outcome::Kept;
        }
        // A repetition costs little as a call, but the full size of its result as a constant.
        let is_repetition = selection.kernel.facts().moves && bytes > sources.max(1);
        if selection.kernel.results() == Results::Random || (is_repetition && sources > 0 && bytes > 4096) {
            return Outcome::Kept;
        }
        let recipe = FoldedCall::from_node(program, node, selection, metas, &self.calls);
        match recipe.and_then(|recipe| fold_call(recipe, &self.context)) {
            Some((results, calls)) => {
                for (&output, bytes) in node.outputs.iter().zip(results) {
                    let range = 0..bytes.len();
                    self.calls.extend(calls.map(|calls| (output, calls)));
                    self.held += range.len();
                    self.computed.insert(output, range.len());
                    program.constants.insert(output, ConstantTensor { name: None, bytes, range });
                }
                Outcome::Replaced
            }
            None => Outcome::Kept,
        }
    }

    /// Drops earlier folded results whose last user was `node`, which has just been folded, so that the intermediate
    /// results of a chain are not all in memory.
    fn release(&mut self, program: &mut ExportedProgram, node: &ExportedNode) {
        let view = node.outputs.first().filter(|_| is_view(node));
        for var in node.operands() {
            if let (Some(&view), true) = (view, self.computed.contains_key(&var)) {
                self.computed.insert(view, 0);
            }
            let Some(uses) = self.uses.get_mut(var.index()) else { continue };
            *uses = uses.saturating_sub(1);
            if *uses > 0 {
                continue;
            }
            let Some(bytes) = self.computed.remove(&var) else { continue };
            let removed = program.constants.remove(&var);
            match view {
                // Its bytes live on in the view.
                Some(&view) => _ = self.computed.insert(view, bytes),
                None => {
                    self.held -= bytes;
                    // Constants that were computed from this one may keep it, so that they can be computed again.
                    removed.iter().for_each(|constant| constant.bytes.release());
                }
            }
        }
    }
}

fn is_view(node: &ExportedNode) -> bool {
    &*node.target == "aten.view.default"
}

/// Folds a view, which shares the bytes of its operand.
fn fold_view(program: &mut ExportedProgram, node: &ExportedNode) -> Outcome {
    let (Some(x), [out]) = (node.arg("self").and_then(Argument::var), node.outputs.as_slice()) else {
        return Outcome::Kept;
    };
    let known = program.spec(*out).is_some_and(|s| s.known_sizes().is_some());
    match program.constants.get(&x).cloned().filter(|_| known) {
        Some(data) => {
            program.constants.insert(*out, ConstantTensor { name: None, ..data });
            Outcome::Replaced
        }
        None => Outcome::Kept,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_exported::{Size, TensorSpec, VarType};
    use pteron_tensor::ScalarType;
    use std::sync::Arc;

    /// Appends a node with one result of sizes [2, 3].
    fn push(program: &mut ExportedProgram, target: &str, args: Vec<(&str, Argument)>) -> VarId {
        let spec = TensorSpec::contiguous(ScalarType::Float, vec![Size::Int(2), Size::Int(3)]);
        let out = program.add_var(format!("v{}", program.num_vars()), VarType::Tensor(spec));
        program.graph.nodes.push(ExportedNode {
            target: target.into(),
            args: args.into_iter().map(|(name, arg)| (name.into(), arg)).collect(),
            outputs: vec![out],
            source: Arc::default(),
        });
        out
    }

    #[test]
    fn intermediate_results_are_not_kept() {
        let mut program = ExportedProgram::new("forward");
        let bytes: Vec<u8> =
            [1f32, -2.0, 3.0, -4.0, 5.0, -6.0].iter().flat_map(|v| v.to_le_bytes()).collect();
        let (range, bytes) = (0..bytes.len(), Arc::new(bytes));
        let spec = TensorSpec::contiguous(ScalarType::Float, vec![Size::Int(2), Size::Int(3)]);
        let weight = program.add_constant("w".to_owned(), spec, ConstantTensor { name: None, bytes, range });
        let of = |var| vec![("self", Argument::Var(var))];
        let absolute = push(&mut program, "aten.abs.default", of(weight));
        let sizes = ("size", Argument::ints(&[2, 3]));
        let view = push(&mut program, "aten.view.default", vec![of(absolute).remove(0), sizes]);
        let negative = push(&mut program, "aten.neg.default", of(view));
        let root = push(&mut program, "aten.sqrt.default", of(absolute));
        program.graph.outputs = vec![Argument::Var(negative), Argument::Var(root)];
        run(&mut program, &OperatorTable::all(&pteron_kernels::registry())).unwrap();
        assert_eq!(program.graph.num_nodes(), 0);
        let constants: Vec<VarId> = program.constants.keys().copied().collect();
        assert_eq!(constants, [weight, negative, root]);
        let of_negative: Vec<f32> = tensor_of(&program, negative);
        assert_eq!(of_negative, [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    }

    #[test]
    fn large_results_are_dropped_and_computed_again() {
        let mut program = ExportedProgram::new("forward");
        let numbers: Vec<u8> = (0..1u16 << 15).flat_map(|v| f32::from(v).to_le_bytes()).collect();
        let (range, bytes) = (0..numbers.len(), Arc::new(numbers));
        let sizes = vec![Size::Int(1 << 7), Size::Int(1 << 8)];
        let spec = TensorSpec::contiguous(ScalarType::Float, sizes);
        // A handle to a file, which can be loaded again.
        let weight = ConstantTensor { name: None, bytes: Arc::new(File(bytes)), range };
        let mut var = program.add_constant("w".to_owned(), spec.clone(), weight);
        for target in ["aten.neg.default", "aten.abs.default", "aten.sqrt.default"] {
            let out = program.add_var(format!("v{}", program.num_vars()), VarType::Tensor(spec.clone()));
            program.graph.nodes.push(ExportedNode {
                target: target.into(),
                args: vec![("self".into(), Argument::Var(var))],
                outputs: vec![out],
                source: Arc::default(),
            });
            var = out;
        }
        program.graph.outputs = vec![Argument::Var(var)];
        run(&mut program, &OperatorTable::all(&pteron_kernels::registry())).unwrap();
        let root = &program.constants[&var];
        let first = root.reopened();
        let at = first.data().as_ptr();
        root.bytes.release();
        // The handle has the bytes, and so has another one as long as the first lives.
        assert_eq!(root.reopened().data().as_ptr(), at);
        let bytes = first.data().to_vec();
        drop(first);
        assert_eq!(root.reopened().data(), bytes);
        assert_eq!(bytes[4 * 9..][..4], 3f32.to_le_bytes());
    }

    /// The bytes of a file, which can be loaded again.
    struct File(Arc<Vec<u8>>);

    impl pteron_ir::Bytes for File {
        fn bytes(&self) -> &[u8] {
            &self.0
        }

        fn reopen(&self) -> Option<pteron_ir::SharedBytes> {
            Some(Arc::new(Self(Arc::clone(&self.0))))
        }
    }

    fn tensor_of(program: &ExportedProgram, var: VarId) -> Vec<f32> {
        program.constants[&var].data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}
