//! Emits a program as an execution plan: values, instructions and memory.

mod control;
mod memory;
mod values;

use crate::operators::OperatorTable;
use crate::{Error, Result};
use pteron_exported::{
    Argument, ConstantTensor, ExportedGraph, ExportedNode, ExportedProgram, InputKind, InputSizes, Slot,
    Source, TensorSpec, VarId, delegate,
};
use pteron_format::container::Blob;
use pteron_format::pte::{
    Alignments, BackendDelegate, BackendDelegateDataReference, Builder, Chain, CompileSpec,
    ContainerMetadata, DataLocation, EValue, ExecutionPlan, Frame, FrameList, Instruction, MAX_OWN_BYTES,
    NamedBlob, Operator, ValueNames, value_names_key,
};
use pteron_ir::reopen_or_share;
use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::sync::Arc;
use values::Values;

/// The alignment that all memory is guaranteed to have, in bytes.
const COMMON_ALIGNMENT: u64 = 16;

/// Options of the emitter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct EmitOptions {
    /// Record the source lines of every instruction.
    pub(crate) source_frames: bool,
    /// Alignment of tensors in arenas, in bytes.
    pub(crate) alignment: u64,
    /// Look constants up by name in a `.ptd` file.
    pub(crate) external: bool,
}

/// Adds a program to a builder as an execution plan. External constants are appended to `external` with their names.
pub(crate) fn emit(
    program: &ExportedProgram,
    table: &OperatorTable,
    options: EmitOptions,
    builder: &mut Builder<'static>,
    external: &mut Vec<(String, VarId)>,
) -> Result<PlanSummary> {
    let mut emitter = Emitter {
        program,
        table,
        values: Values::new(program, options.external),
        instructions: Vec::new(),
        sources: Vec::new(),
        operators: HashMap::new(),
        operator_list: Vec::new(),
        counts: HashMap::new(),
    };
    let inputs = emitter.emit_inputs(builder)?;
    emitter.emit_graph(&program.graph)?;
    let outputs = emitter.emit_outputs()?;
    let Emitter { values, instructions, sources, operator_list, counts, .. } = emitter;
    let past_end = program.lowered.iter().map(|module| module.result.reads_past_end).max().unwrap_or(0);
    let (evalues, [arena_bytes, shared_bytes], names) = values.finish(instructions.len(), options.alignment);
    let arena_bytes = arena_bytes.saturating_add(past_end);
    let size = |bytes: u64| match i64::try_from(bytes) {
        Ok(bytes) => Ok(bytes),
        Err(_) => Err(Error::archive(&*program.name, "the memory of its tensors exceeds 2^63 bytes")),
    };
    let mut arenas = vec![0, size(arena_bytes)?];
    if shared_bytes > 0 {
        arenas.push(size(shared_bytes)?);
    }
    external.extend(names);
    let stacktrace =
        if options.source_frames { sources.iter().map(|s| frame_list(s)).collect() } else { Vec::new() };
    let delegates = add_delegates(program, builder);
    builder.named_data.extend(input_sizes_blob(program)?);
    builder.named_data.extend(value_names_blob(program, inputs.len(), outputs.len())?);
    builder.named_data.extend(alignments_blob(program)?);
    if options.source_frames {
        builder.named_data.extend(delegate_sources_blob(program));
    }
    builder.execution_plan.push(ExecutionPlan {
        name: program.name.clone(),
        container_meta_type: Some(ContainerMetadata {
            encoded_inp_str: program.in_spec.clone(),
            encoded_out_str: program.out_spec.clone(),
        }),
        values: evalues,
        inputs,
        outputs,
        chains: vec![Chain { inputs: Vec::new(), outputs: Vec::new(), instructions, stacktrace }],
        operators: operator_list,
        delegates,
        non_const_buffer_sizes: arenas,
        non_const_buffer_device: Vec::new(),
    });
    let arena_bytes = arena_bytes.saturating_add(shared_bytes);
    Ok(PlanSummary { arena_bytes, operators: counts })
}

/// The delegates of a program in index order. Adds the named data that they refer to, once for each key.
fn add_delegates(program: &ExportedProgram, builder: &mut Builder<'static>) -> Vec<BackendDelegate> {
    let mut known: HashSet<String> = builder.named_data.iter().map(|named| named.key.clone()).collect();
    let mut all = Vec::with_capacity(program.lowered.len());
    for module in &program.lowered {
        for data in &module.result.named_data {
            if known.insert(data.key.clone()) {
                let bytes = Arc::clone(&data.bytes);
                let write = move |out: &mut dyn Write| out.write_all(reopen_or_share(&bytes).bytes());
                let blob = Blob::stream(data.bytes.len() as u64, write);
                builder.named_data.push(NamedBlob { key: data.key.clone(), blob, alignment: data.alignment });
            }
        }
        let index = builder.add_delegate_data(Blob::bytes(module.result.processed_bytes.clone()));
        let spec =
            |spec: &delegate::CompileSpec| CompileSpec { key: spec.key.clone(), value: spec.value.clone() };
        all.push(BackendDelegate {
            id: module.spec.backend_id.clone(),
            processed: BackendDelegateDataReference { location: DataLocation::Segment, index },
            compile_specs: module.spec.compile_specs.iter().map(spec).collect(),
        });
    }
    all
}

/// The alignments beyond [`COMMON_ALIGNMENT`] that a program's payloads and named data require.
fn alignments_blob(program: &ExportedProgram) -> Result<Option<NamedBlob<'static>>> {
    let mut asked = Alignments::default();
    for (index, module) in (0..).zip(&program.lowered) {
        let result = &module.result;
        if result.payload_alignment > COMMON_ALIGNMENT {
            asked.payloads.insert(index, result.payload_alignment);
        }
        let data = result.named_data.iter().filter(|data| data.alignment > COMMON_ALIGNMENT);
        asked.data.extend(data.map(|data| (data.key.clone(), data.alignment)));
    }
    if asked.is_empty() {
        return Ok(None);
    }
    let (key, text) = (pteron_format::pte::alignments_key(&program.name), asked.to_string());
    own_data_blob(program, key, text, "the alignments that its delegates ask for")
}

/// A named blob with the sizes allowed for the inputs. `None` if the upper bounds in the plan describe them completely.
fn input_sizes_blob(program: &ExportedProgram) -> Result<Option<NamedBlob<'static>>> {
    let Some(sizes) = InputSizes::from_program(program) else { return Ok(None) };
    let (key, text) = (pteron_format::pte::input_sizes_key(&program.name), sizes.to_string());
    own_data_blob(program, key, text, "the sizes of the inputs")
}

/// A named blob with the names of the inputs and outputs; `None` if none is known.
/// Names whose number differs from that of the plan's values are left out.
fn value_names_blob(
    program: &ExportedProgram,
    inputs: usize,
    outputs: usize,
) -> Result<Option<NamedBlob<'static>>> {
    let known = |names: &[Option<String>], count| match names.len() == count {
        true => names.to_vec(),
        false => vec![None; count],
    };
    let names = ValueNames {
        inputs: known(&program.input_names, inputs),
        outputs: known(&program.output_names, outputs),
    };
    if names.is_empty() {
        return Ok(None);
    }
    own_data_blob(
        program,
        value_names_key(&program.name),
        names.to_string(),
        "the names of inputs and outputs",
    )
}

fn own_data_blob(
    program: &ExportedProgram,
    key: String,
    text: String,
    what: &str,
) -> Result<Option<NamedBlob<'static>>> {
    if text.len() as u64 > MAX_OWN_BYTES {
        let problem = format!("{what} take {} bytes, at most {MAX_OWN_BYTES} can be stored", text.len());
        return Err(Error::archive(format!("method `{}`", program.name), problem));
    }
    Ok(Some(NamedBlob { key, blob: Blob::bytes(text.into_bytes()), alignment: 1 }))
}

/// The source nodes of the delegates as named data, without the last delegates if the text would become too large.
fn delegate_sources_blob(program: &ExportedProgram) -> Option<NamedBlob<'static>> {
    let mut sources = delegate::DelegateSources::from_program(program)?;
    let mut text = sources.to_string();
    while text.len() as u64 > MAX_OWN_BYTES {
        sources.delegates.truncate(sources.delegates.len() / 2);
        text = sources.to_string();
    }
    let key = pteron_format::pte::delegate_sources_key(&program.name);
    Some(NamedBlob { key, blob: Blob::bytes(text.into_bytes()), alignment: 1 })
}

/// For each value, whether a node, an output or a mutation uses it.
fn used_values(program: &ExportedProgram) -> Vec<bool> {
    let mut used: Vec<bool> = program.use_counts().into_iter().map(|count| count > 0).collect();
    program.mutations.iter().for_each(|mutation| used[mutation.input.index()] = true);
    used
}

/// Statistics of an emitted plan.
pub(crate) struct PlanSummary {
    pub(crate) arena_bytes: u64,
    pub(crate) operators: HashMap<String, usize>,
}

fn frame_list(source: &Source) -> FrameList {
    let frame = |f: &pteron_exported::SourceFrame| Frame {
        filename: Some(f.file.clone()),
        lineno: i32::try_from(f.line).unwrap_or(i32::MAX),
        name: Some(f.function.clone()),
        context: Some(f.text.clone()),
    };
    FrameList { items: source.frames.iter().map(frame).collect() }
}

struct Emitter<'p> {
    program: &'p ExportedProgram,
    table: &'p OperatorTable,
    values: Values<'p>,
    instructions: Vec<Instruction>,
    sources: Vec<Arc<Source>>,
    operators: HashMap<String, i32>,
    operator_list: Vec<Operator>,
    counts: HashMap<String, usize>,
}

impl Emitter<'_> {
    fn emit_inputs(&mut self, builder: &mut Builder<'static>) -> Result<Vec<i32>> {
        let mut inputs = Vec::new();
        let used = used_values(self.program);
        for (&constant, data) in self.program.constants.iter().filter(|(c, _)| used[c.index()]) {
            let blob = constant_blob(data);
            self.values.add_constant(constant, data, blob, builder)?;
        }
        for (&input, kind) in self.program.graph.inputs.iter().zip(&self.program.inputs) {
            match kind {
                InputKind::User => inputs.push(self.values.add_input(input)?),
                InputKind::Fixed(value) => {
                    let value = constant_value(value);
                    inputs.push(self.values.push(value));
                }
                InputKind::Parameter | InputKind::Buffer | InputKind::Constant | InputKind::Token => {}
            }
        }
        Ok(inputs)
    }

    fn emit_graph(&mut self, graph: &ExportedGraph) -> Result<()> {
        graph.nodes.iter().try_for_each(|node| self.emit_node(node))
    }

    fn emit_node(&mut self, node: &ExportedNode) -> Result<()> {
        if let Some(inner) = node.graphs().next() {
            return self.emit_control(node, inner);
        }
        match &*node.target {
            delegate::CALL_DELEGATE => self.emit_delegate(node),
            "aten.view.default" => self.emit_view(node),
            "aten.sym_size.int" => self.emit_sym_size(node),
            "aten.item.default" | "aten._local_scalar_dense.default" => {
                self.emit_prim(node, "aten::_local_scalar_dense", "")
            }
            target if prim_for(target).is_some() => {
                self.emit_prim(node, "executorch_prim", prim_for(target).unwrap_or_default())
            }
            _ => self.emit_call(node),
        }
    }

    /// Emits a call of the operator that the node selects.
    fn emit_call(&mut self, node: &ExportedNode) -> Result<()> {
        let Some(selection) = self.table.select_any(self.program, node) else {
            let hint = self.table.hint(self.program, node);
            return Err(Error::node(self.program, node, format!("no kernel takes it{hint}")));
        };
        let schema = selection.kernel.schema();
        let mut args = Vec::with_capacity(schema.instruction_args());
        let mut outs = Vec::new();
        let at = self.instructions.len();
        for (slot, declared) in selection.slots.iter().zip(&schema.args) {
            let value = match slot {
                Slot::Given(Argument::Vars(list)) if declared.optional => {
                    let list = Argument::OptionalVars(list.iter().copied().map(Some).collect());
                    self.emit_argument(node, &list, true, at)?
                }
                Slot::Given(arg) => self.emit_argument(node, arg, declared.list, at)?,
                Slot::Default(text) => self.values.add_default(text.as_deref(), declared),
                Slot::Out(first, count) => {
                    let results = &node.outputs[*first..*first + *count];
                    let value = match (declared.list, results) {
                        (false, [one]) => self.define(node, *one)?,
                        _ => {
                            let list: Vec<i32> =
                                results.iter().map(|&v| self.define(node, v)).collect::<Result<_>>()?;
                            self.values.push(EValue::TensorList(list))
                        }
                    };
                    outs.push(value);
                    value
                }
            };
            args.push(value);
        }
        if schema.has_result_slot() {
            let result = match (outs.as_slice(), node.outputs.as_slice()) {
                ([one], _) => *one,
                ([], [one]) => self.define(node, *one)?,
                (many, _) => self.values.push(EValue::TensorList(many.to_vec())),
            };
            args.push(result);
        }
        let name = schema.name.clone();
        self.push_kernel_call(&name, args, &node.source);
        Ok(())
    }

    /// Emits a delegate call; its arguments are the inputs, followed by the outputs.
    fn emit_delegate(&mut self, node: &ExportedNode) -> Result<()> {
        let Some((_, Argument::Int(index))) = node.args.first() else {
            return Err(Error::node(self.program, node, "it names no payload"));
        };
        let at = self.instructions.len();
        let mut args = Vec::with_capacity(node.args.len() + node.outputs.len());
        for (_, arg) in &node.args[1..] {
            args.push(self.emit_argument(node, arg, false, at)?);
        }
        for &output in &node.outputs {
            args.push(self.define(node, output)?);
        }
        let delegate_index = i32::try_from(*index).unwrap_or(-1);
        self.push(Instruction::DelegateCall { delegate_index, args }, &node.source);
        Ok(())
    }

    fn push_kernel_call(&mut self, name: &str, args: Vec<i32>, source: &Arc<Source>) {
        *self.counts.entry(name.to_owned()).or_insert(0) += 1;
        let op_index = match self.operators.get(name) {
            Some(&index) => index,
            None => {
                let (base, overload) = name.split_once('.').unwrap_or((name, ""));
                self.operator_list.push(Operator { name: base.to_owned(), overload: overload.to_owned() });
                let index = self.operator_list.len() as i32 - 1;
                self.operators.insert(name.to_owned(), index);
                index
            }
        };
        self.push(Instruction::KernelCall { op_index, args }, source);
    }

    fn push(&mut self, instruction: Instruction, source: &Arc<Source>) -> usize {
        self.instructions.push(instruction);
        self.sources.push(Arc::clone(source));
        self.instructions.len() - 1
    }

    /// The plan's index of the value for an argument that the instruction at `at` reads.
    fn emit_argument(&mut self, node: &ExportedNode, arg: &Argument, list: bool, at: usize) -> Result<i32> {
        for var in arg.vars() {
            self.values.record_use(var, at);
        }
        match self.values.add_argument(arg, list) {
            Some(value) => Ok(value),
            None => Err(Error::node(self.program, node, "one of its arguments has no value in a program")),
        }
    }

    fn define(&mut self, node: &ExportedNode, var: VarId) -> Result<i32> {
        let at = self.instructions.len();
        self.values.define(var, at).map_err(|problem| Error::node(self.program, node, problem))
    }

    /// A static view becomes an alias and needs no instruction; a dynamic one is an `et_view` call at run time. A view
    /// of an external constant is a kernel call, which copies.
    fn emit_view(&mut self, node: &ExportedNode) -> Result<()> {
        let (Some(x), Some(&out)) = (node.arg("self").and_then(Argument::var), node.outputs.first()) else {
            return Err(Error::node(self.program, node, "a view of nothing"));
        };
        let at = self.instructions.len();
        self.values.record_use(x, at);
        let (Some(have), Some(want)) = (self.program.spec(x), self.program.spec(out)) else {
            return Err(Error::node(self.program, node, "a view of no tensor"));
        };
        let is_static = have.known_sizes().is_some() && want.known_sizes().is_some();
        let problem = |p| Error::node(self.program, node, p);
        if is_static && self.values.can_alias(x) {
            self.values.add_alias(out, x, at).map_err(problem)?;
            return Ok(());
        }
        let size = node.arg("size").cloned().unwrap_or(Argument::Ints(Vec::new()));
        let args = match self.values.can_alias(x) {
            true => {
                let (from, size) = (self.values.index_of(x), self.emit_argument(node, &size, true, at)?);
                let to = self.values.add_alias(out, x, at).map_err(problem)?;
                ("executorch_prim::et_view.default", vec![from, size, to])
            }
            false => return self.emit_call(node),
        };
        self.push_kernel_call(args.0, args.1, &node.source);
        Ok(())
    }

    fn emit_sym_size(&mut self, node: &ExportedNode) -> Result<()> {
        let at = self.instructions.len();
        let mut args = Vec::new();
        for name in ["self", "dim"] {
            let arg = node.arg(name).cloned().unwrap_or(Argument::None);
            args.push(self.emit_argument(node, &arg, false, at)?);
        }
        args.push(self.define(node, node.outputs[0])?);
        self.push_kernel_call("aten::sym_size.int", args, &node.source);
        Ok(())
    }

    /// Emits an operator on scalars: its operands, then its result.
    fn emit_prim(&mut self, node: &ExportedNode, namespace: &str, name: &str) -> Result<()> {
        let at = self.instructions.len();
        let mut args = Vec::new();
        for (_, arg) in &node.args {
            args.push(self.emit_argument(node, arg, false, at)?);
        }
        let Some(&out) = node.outputs.first() else { return Ok(()) };
        args.push(self.define(node, out)?);
        let full = if name.is_empty() { namespace.to_owned() } else { format!("{namespace}::{name}.Scalar") };
        self.push_kernel_call(&full, args, &node.source);
        Ok(())
    }

    /// The outputs, copied if they alias inputs, constants or state; then the updates of mutated inputs.
    fn emit_outputs(&mut self) -> Result<Vec<i32>> {
        let source = Arc::default();
        let mut outputs = Vec::new();
        for output in &self.program.graph.outputs {
            let value = match output {
                Argument::Var(v) if self.program.spec(*v).is_some() => {
                    let at = self.instructions.len();
                    self.values.record_use(*v, at);
                    if self.values.is_intermediate(*v) {
                        self.values.index_of(*v)
                    } else {
                        self.emit_copy(*v, &source)?
                    }
                }
                Argument::Var(v) => self.values.index_of(*v),
                other => self.values.push(constant_value(other)),
            };
            outputs.push(value);
        }
        // A value may alias an input that is overwritten before the value is read; it is copied first.
        let mut sources = Vec::new();
        for mutation in &self.program.mutations {
            let at = self.instructions.len();
            self.values.record_use(mutation.value, at);
            let from = match self.values.is_intermediate(mutation.value) || mutation.value == mutation.input {
                true => self.values.index_of(mutation.value),
                false => self.emit_copy(mutation.value, &source)?,
            };
            sources.push(from);
        }
        for (mutation, from) in self.program.mutations.iter().zip(sources) {
            let at = self.instructions.len();
            self.values.record_use(mutation.value, at);
            self.values.record_use(mutation.input, at);
            let into = self.values.index_of(mutation.input);
            if from != into {
                let blocking = self.values.push(EValue::Bool(false));
                self.push_kernel_call("aten::copy_", vec![into, from, blocking, into], &source);
            }
        }
        let end = self.instructions.len();
        for output in &self.program.graph.outputs {
            output.vars().into_iter().for_each(|v| self.values.record_use(v, end));
        }
        self.values.keep_copies(end);
        Ok(outputs)
    }

    /// Copies a tensor into memory of its own; returns the plan's index of the copy.
    fn emit_copy(&mut self, var: VarId, source: &Arc<Source>) -> Result<i32> {
        let at = self.instructions.len();
        let from = self.values.index_of(var);
        let Some(spec) = self.program.spec(var) else { return Ok(from) };
        let to = self
            .values
            .add_temporary(spec, at)
            .map_err(|p| Error::archive(&*self.program.var(var).name, p))?;
        self.emit_clone(to, from, spec, source);
        Ok(to)
    }

    /// Copies the tensor `from` into `to`, which has the same type and layout and is resized to the sizes of `from`.
    fn emit_clone(&mut self, to: i32, from: i32, spec: &TensorSpec, source: &Arc<Source>) {
        let blocking = self.values.push(EValue::Bool(false));
        let order: Vec<i64> = spec.dim_order.iter().map(|&d| i64::from(d)).collect();
        let order = self.values.add_ints(&order);
        self.push_kernel_call(
            "dim_order_ops::_clone_dim_order.out",
            vec![from, blocking, order, to, to],
            source,
        );
    }
}

/// The bytes of a constant as a blob. They are not copied before the blob is written; bytes that are loaded on access
/// are loaded only then, and not kept in memory. The owner of the blob is the [`ConstantTensor`].
pub(crate) fn constant_blob(data: &ConstantTensor) -> Blob<'static> {
    let (owner, data) = (Arc::new(data.reopened()), data.reopened());
    let len = data.range.len() as u64;
    Blob::stream(len, move |out| out.write_all(data.reopened().data())).with_owner(owner)
}

fn constant_value(value: &Argument) -> EValue {
    match value {
        Argument::Int(v) => EValue::Int(*v),
        Argument::Float(v) => EValue::Double(*v),
        Argument::Bool(v) => EValue::Bool(*v),
        Argument::Str(v) => EValue::String(v.clone()),
        _ => EValue::Null,
    }
}

/// Python's scalar operators, and the primitive operators that implement them.
pub(crate) const PRIMS: &[(&str, &str)] = &[
    ("_operator.add", "add"),
    ("_operator.sub", "sub"),
    ("_operator.mul", "mul"),
    ("_operator.floordiv", "floordiv"),
    ("_operator.truediv", "truediv"),
    ("_operator.mod", "mod"),
    ("_operator.neg", "neg"),
    ("_operator.eq", "eq"),
    ("_operator.gt", "gt"),
    ("_operator.ge", "ge"),
    ("_operator.lt", "lt"),
    ("_operator.le", "le"),
    ("math.ceil", "ceil"),
    ("math.trunc", "trunc"),
    ("builtins.round", "round"),
    ("_operator.round", "round"),
    ("torch.sym_float", "sym_float"),
    ("torch.sym_int", "sym_int"),
    ("torch.sym_max", "sym_max"),
    ("torch.sym_min", "sym_min"),
    ("torch.sym_not", "sym_not"),
    ("torch.sym_ite", "sym_ite"),
];

/// The primitive operator that implements one of Python's scalar operators.
fn prim_for(target: &str) -> Option<&'static str> {
    PRIMS.iter().find(|(name, _)| *name == target).map(|(_, prim)| *prim)
}
