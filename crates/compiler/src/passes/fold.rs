//! Constant folding: runs the kernels of the table on constants.

use crate::Result;
use crate::operators::{OperatorTable, Selection, Slot};
use crate::rewrite::{Outcome, Rewriter};
use ir::exported::{Argument, ConstantTensor, ExportedNode, ExportedProgram, VarId};
use operator::{Arg, Args, Generator, KernelContext, Out, Outs, Results, Scratch};
use pool::Pool;
use smallvec::SmallVec;
use std::sync::Arc;
use tensor::{Tensor, TensorMeta, TensorView};

/// Maximum bytes of a folded result that is larger than its operands, e.g. a mask or positions.
const MAX_GROWN_BYTES: usize = 1 << 20;

/// Maximum bytes of all folded results.
const MAX_FOLDED_BYTES: usize = 1 << 31;

/// Bytes of scratch memory for the kernels.
const SCRATCH_BYTES: usize = 1 << 28;

pub(super) fn run(program: &mut ExportedProgram, table: &OperatorTable) -> Result<()> {
    let (pool, scratch, generator) = (Pool::new(1), Scratch::new(SCRATCH_BYTES), Generator::default());
    let mut folder = Folder { table, context: KernelContext::new(&pool, &scratch, &generator), folded: 0 };
    Rewriter::run(program, &mut |cx, node| Ok(folder.visit(cx.program, node)))
}

struct Folder<'a> {
    table: &'a OperatorTable,
    context: KernelContext<'a>,
    folded: usize,
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
        if &*node.target == "aten.view.default" {
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
        if bytes > sources.max(MAX_GROWN_BYTES) || self.folded.saturating_add(bytes) > MAX_FOLDED_BYTES {
            return Outcome::Kept;
        }
        let Some(selection) = self.table.select_any(program, node) else { return Outcome::Kept };
        // Repeated elements cost little as a call, but their full size as a constant.
        let is_repetition = selection.kernel.facts().moves && bytes > sources.max(1);
        if selection.kernel.results() == Results::Random || (is_repetition && sources > 0 && bytes > 4096) {
            return Outcome::Kept;
        }
        match self.compute(program, node, &selection, metas) {
            Some(results) => {
                self.folded += bytes;
                for (&output, result) in node.outputs.iter().zip(results) {
                    let range = 0..result.bytes().len();
                    let bytes = Arc::new(Computed(result));
                    program.constants.insert(output, ConstantTensor { name: None, bytes, range });
                }
                Outcome::Replaced
            }
            None => Outcome::Kept,
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
        let operands: Vec<Operand<'_>> =
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
struct Operand<'a> {
    meta: TensorMeta,
    bytes: &'a [u8],
    copy: Option<Tensor>,
}

impl<'a> Operand<'a> {
    fn of(program: &'a ExportedProgram, var: VarId) -> Option<Self> {
        let (meta, bytes) = (meta(program, var)?, program.constants.get(&var)?.data());
        let aligned = bytes.as_ptr().addr().is_multiple_of(meta.dtype().alignment().max(1));
        let copy = if aligned { None } else { Some(Tensor::from_bytes(meta.clone(), bytes).ok()?) };
        Some(Self { meta, bytes, copy })
    }

    fn view(&self) -> Option<TensorView<'_>> {
        match &self.copy {
            Some(copy) => Some(copy.view()),
            None => TensorView::new(&self.meta, self.bytes).ok(),
        }
    }
}

fn meta(program: &ExportedProgram, var: VarId) -> Option<TensorMeta> {
    let spec = program.spec(var)?;
    let sizes: Vec<usize> =
        spec.known_sizes()?.into_iter().map(|s| usize::try_from(s).ok()).collect::<Option<_>>()?;
    TensorMeta::new(spec.dtype, &sizes, spec.dim_order).ok()
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
