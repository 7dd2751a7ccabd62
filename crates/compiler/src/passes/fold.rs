//! Constant folding: runs the kernels of the table on constants.

use crate::Result;
use crate::operators::{OperatorTable, Selection, Slot};
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, VarId};
use operator::{Arg, Args, Generator, KernelContext, Out, Outs, Results, Scratch};
use pool::Pool;
use smallvec::SmallVec;
use std::collections::HashMap;
use std::sync::Arc;
use tensor::{Tensor, TensorMeta, TensorView};

/// Maximum bytes of a folded result that is larger than its operands, e.g. a mask or positions.
const MAX_GROWN_BYTES: usize = 1 << 20;

/// Maximum bytes of the folded results that are in memory at a time. What is over it is computed where the program is
/// loaded, once.
const MAX_FOLDED_BYTES: usize = 1 << 31;

/// Bytes of scratch memory for the kernels.
const SCRATCH_BYTES: usize = 1 << 28;

pub(super) fn run(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    let (pool, scratch, generator) = (Pool::new(1), Scratch::new(SCRATCH_BYTES), Generator::default());
    let context = KernelContext::new(&pool, &scratch, &generator);
    let mut folder = Folder { table, context, held: 0, computed: HashMap::new(), uses: program.use_counts() };
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
    /// The bytes that are freed with each folded result: none for a view of another.
    computed: HashMap<VarId, usize>,
    /// The uses of each value that are left.
    uses: Vec<u32>,
}

/// A computed tensor as shared bytes.
struct Computed(Tensor);

impl AsRef<[u8]> for Computed {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

impl Folder<'_> {
    fn visit(&mut self, program: &mut ExportedProgram, node: &ExportedNode) -> Outcome {
        let fixed = |v: VarId| program.constants.contains_key(&v) && !program.is_mutated(v);
        if node.outputs.is_empty() || node.graphs().next().is_some() || !node.operands().all(fixed) {
            return Outcome::Kept;
        }
        if is_view(node) {
            return view(program, node);
        }
        // Weights stay quantized, since dequantized they are larger.
        if node.target.starts_with("quantized_decomposed.dequantize") {
            return Outcome::Kept;
        }
        let Some(metas) = node.outputs.iter().map(|&v| meta(program, v)).collect::<Option<Vec<_>>>() else {
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
        // Repeated elements cost little as a call, but their full size as a constant.
        let is_repetition = selection.kernel.facts().moves && bytes > sources.max(1);
        if selection.kernel.results() == Results::Random || (is_repetition && sources > 0 && bytes > 4096) {
            return Outcome::Kept;
        }
        match self.compute(program, node, &selection, metas) {
            Some(results) => {
                for (&output, result) in node.outputs.iter().zip(results) {
                    let range = 0..result.bytes().len();
                    self.held += range.len();
                    self.computed.insert(output, range.len());
                    let bytes = Arc::new(Computed(result));
                    program.constants.insert(output, ConstantTensor { name: None, bytes, range });
                }
                Outcome::Replaced
            }
            None => Outcome::Kept,
        }
    }

    /// Drops the results that only `node` has used, which is folded now, so that the intermediate results of a chain are
    /// not all in memory.
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
            program.constants.remove(&var);
            match view {
                // Its bytes live on in the view.
                Some(&view) => _ = self.computed.insert(view, bytes),
                None => self.held -= bytes,
            }
        }
    }

    /// The results; `None` if the kernel fails.
    fn compute(
        &self,
        program: &ExportedProgram,
        node: &ExportedNode,
        selection: &Selection,
        metas: Vec<TensorMeta>,
    ) -> Option<Vec<Tensor>> {
        let schema = selection.kernel.schema();
        let operands: Vec<Operand> =
            node.operands().map(|v| Operand::of(program, v)).collect::<Option<_>>()?;
        let mut next = operands.iter();
        let mut take = |count: usize| -> Option<SmallVec<[TensorView<'_>; 4]>> {
            (0..count).map(|_| next.next()?.view()).collect()
        };
        let mut args: SmallVec<[Arg<'_>; 12]> = SmallVec::new();
        let mut outs = 0;
        // Operands are taken in the order of the node's arguments, which must be that of the schema to match them.
        let mut order =
            selection.slots.iter().filter_map(|s| if let Slot::Given(a) = s { Some(a.vars()) } else { None });
        if !order.by_ref().flatten().eq(node.operands()) {
            return None;
        }
        for (slot, declared) in selection.slots.iter().zip(&schema.args) {
            args.push(match slot {
                Slot::Out(..) => {
                    outs += 1;
                    Arg::Out(outs - 1)
                }
                Slot::Default(text) => Arg::of_default(text.as_deref(), declared),
                Slot::Given(arg) => match arg {
                    Argument::Var(_) => Arg::Tensor(take(1)?[0]),
                    Argument::Vars(list) => Arg::Tensors(take(list.len())?),
                    Argument::OptionalVars(list) => {
                        let each = list.iter().map(|v| match v {
                            Some(_) => Some(Some(*take(1)?.first()?)),
                            None => Some(None),
                        });
                        Arg::OptionalTensors(each.collect::<Option<_>>()?)
                    }
                    Argument::Int(v) => Arg::Int(*v),
                    Argument::Float(v) => Arg::Double(*v),
                    Argument::Bool(v) => Arg::Bool(*v),
                    Argument::Str(v) => Arg::Str(v),
                    Argument::Floats(v) => Arg::Doubles(v),
                    Argument::Bools(v) => Arg::Bools(v),
                    Argument::Dtype(v) => Arg::Int(*v as i64),
                    Argument::None | Argument::Ignored | Argument::MemoryFormat(_) => Arg::None,
                    list => Arg::Ints(list.known_ints()?.into()),
                },
            });
        }
        let mut results = metas.into_iter().map(Tensor::zeros).collect::<Result<Vec<_>, _>>().ok()?;
        let views: Vec<_> = results.iter_mut().map(Tensor::view_mut).collect();
        let lists = selection.slots.iter().any(|s| matches!(s, Slot::Out(_, n) if *n != 1));
        let list: SmallVec<[Out<'_>; 3]> = match lists {
            true => SmallVec::from_iter([Out::Tensors(views.into_iter().collect())]),
            false => views.into_iter().map(Out::Tensor).collect(),
        };
        let expected: Vec<TensorMeta> = node.outputs.iter().filter_map(|&v| meta(program, v)).collect();
        selection.kernel.execute(&self.context, &Args::new(schema, args), &mut Outs::new(list)).ok()?;
        let fits = results.iter().zip(&expected).all(|(r, e)| r.meta().sizes() == e.sizes());
        (fits && results.len() == expected.len()).then_some(results)
    }
}

/// A constant operand, copied if its bytes are not aligned for its type.
struct Operand {
    meta: TensorMeta,
    constant: ConstantTensor,
    copy: Option<Tensor>,
}

impl Operand {
    fn of(program: &ExportedProgram, var: VarId) -> Option<Self> {
        let (meta, constant) = (meta(program, var)?, program.constants.get(&var)?.reopened());
        let bytes = constant.data();
        let aligned = bytes.as_ptr().addr().is_multiple_of(meta.dtype().alignment().max(1));
        let copy = if aligned { None } else { Some(Tensor::from_bytes(meta.clone(), bytes).ok()?) };
        Some(Self { meta, constant, copy })
    }

    fn view(&self) -> Option<TensorView<'_>> {
        match &self.copy {
            Some(copy) => Some(copy.view()),
            None => TensorView::new(&self.meta, self.constant.data()).ok(),
        }
    }
}

fn meta(program: &ExportedProgram, var: VarId) -> Option<TensorMeta> {
    let spec = program.spec(var)?;
    let sizes: Vec<usize> =
        spec.known_sizes()?.into_iter().map(|s| usize::try_from(s).ok()).collect::<Option<_>>()?;
    TensorMeta::new(spec.dtype, &sizes, spec.dim_order).ok()
}

fn is_view(node: &ExportedNode) -> bool {
    &*node.target == "aten.view.default"
}

/// A view shares the bytes of its operand.
fn view(program: &mut ExportedProgram, node: &ExportedNode) -> Outcome {
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
    use ir::exported::{Size, TensorSpec, VarType};
    use tensor::ScalarType;

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
        run(&mut program, &OperatorTable::all(&kernels::registry())).unwrap();
        assert_eq!(program.graph.num_nodes(), 0);
        let kept: Vec<VarId> = program.constants.keys().copied().collect();
        assert_eq!(kept, [weight, negative, root]);
        let of_negative: Vec<f32> = tensor_of(&program, negative);
        assert_eq!(of_negative, [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
    }

    fn tensor_of(program: &ExportedProgram, var: VarId) -> Vec<f32> {
        program.constants[&var].data().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
    }
}
