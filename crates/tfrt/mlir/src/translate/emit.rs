//! The second pass of the translation to BEF: emits the bodies of the functions that the first pass collected.

use std::collections::HashMap;

use pteron_bef::stream_analysis::{self, Options as StreamOptions};
use pteron_bef::{Body, Function, FunctionId, Kernel, NamedAttribute, Register};

use super::collect::{Collected, FunctionEntry, Use, classify, is_return};
use super::locations;
use crate::diagnostics::Diagnostic;
use crate::ir::{Attribute, Block, Operation, Type, ValueId};

/// Emits the bodies of the collected functions.
pub(super) fn emit(mut collected: Collected<'_>) -> Result<pteron_bef::Module<'static>, Vec<Diagnostic>> {
    let entries = std::mem::take(&mut collected.functions);
    for entry in &entries {
        let function = emit_function(&mut collected, entry)?;
        collected.program.push_function(function);
    }
    Ok(collected.program)
}

fn emit_function(
    collected: &mut Collected<'_>,
    entry: &FunctionEntry<'_>,
) -> Result<Function<'static>, Vec<Diagnostic>> {
    let body = match entry.body {
        Some((op, block)) => Some(emit_body(collected, op, block)?),
        None => None,
    };
    Ok(Function {
        name: entry.name.clone().into(),
        kind: entry.kind,
        arguments: entry.inputs.iter().map(|ty| collected.type_id(ty)).collect(),
        results: entry.results.iter().map(|ty| collected.type_id(ty)).collect(),
        body,
    })
}

fn emit_body(
    collected: &mut Collected<'_>,
    op: &Operation,
    block: &Block,
) -> Result<Body<'static>, Vec<Diagnostic>> {
    let module = collected.module;
    let defined = block.arguments.iter().chain(block.operations.iter().flat_map(|op| &op.results));
    let values: Vec<ValueId> = defined.copied().collect();
    let registers: HashMap<ValueId, Register> = values.iter().copied().zip((0..).map(Register)).collect();
    let mut body = Body {
        location: Some(locations::to_bef(module.location(op.location))),
        registers: values.iter().map(|value| Some(collected.type_id(module.type_of(*value)))).collect(),
        ..Body::default()
    };
    let read = |values: &[ValueId]| -> Option<Vec<Register>> {
        values.iter().map(|value| registers.get(value).copied()).collect()
    };
    let mut costs = Vec::new();
    let mut defined_so_far = block.arguments.len() as u32;
    for op in &block.operations {
        let arguments =
            read(&op.operands).filter(|used| used.iter().all(|register| register.0 < defined_so_far));
        let Some(arguments) = arguments else {
            let location = module.location(op.location);
            return Err(vec![Diagnostic::error_at(location, "operation uses a value before it is defined")]);
        };
        if is_return(op) {
            body.results = arguments;
            continue;
        }
        costs.push(kernel_cost(op));
        let results = read(&op.results).unwrap_or_default();
        defined_so_far += results.len() as u32;
        body.kernels.push(emit_kernel(collected, op, arguments, results));
    }
    let is_chain = |register: Register| {
        values.get(register.index()).is_some_and(|value| module.type_of(*value).is_dialect("tfrt", "chain"))
    };
    let options = stream_options(op, &module.op);
    let costs = |index: usize| costs.get(index).copied().flatten();
    stream_analysis::assign_streams(&mut body, &options, costs, is_chain);
    if let Some(streams) = recorded_streams(op, block) {
        let mut streams = streams.into_iter();
        body.root_stream = streams.next().unwrap_or(body.root_stream);
        body.kernels.iter_mut().zip(streams).for_each(|(kernel, stream)| kernel.stream = stream);
    }
    Ok(body)
}

/// The streams that an attribute of `op` records for the body `block`, if any: the root's, then each kernel's.
fn recorded_streams(op: &Operation, block: &Block) -> Option<Vec<u64>> {
    let mut stated = op.attribute(super::STREAMS)?;
    if let Attribute::Array(lists) = stated {
        let own = |region: &crate::ir::Region| region.blocks.first().is_some_and(|b| std::ptr::eq(b, block));
        stated = lists.get(op.regions.iter().position(own)?)?;
    }
    match stated {
        Attribute::DenseArray(_, streams) => {
            streams.iter().map(|stream| u64::try_from(stream.as_int()?).ok()).collect()
        }
        _ => None,
    }
}

/// The cost of an operation for the stream analysis; `None` for the analysis's default.
fn kernel_cost(op: &Operation) -> Option<i64> {
    if op.is("tfrt.merge.chains") {
        return Some(1);
    }
    if op.is("tfrt_test.test_cost") {
        let cost = op.attribute("_tfrt_cost").and_then(Attribute::as_int);
        return cost.and_then(|cost| i64::try_from(cost).ok());
    }
    None
}

/// Options of the stream analysis for `op`: from the attributes of the function or, where it has none, of the module.
fn stream_options(op: &Operation, module: &Operation) -> StreamOptions {
    let own = |name: &str| op.attribute(name).filter(|_| op.is("func.func"));
    let option = |name: &str| own(name).or_else(|| module.attribute(name));
    let number = |name: &str| match option(name) {
        Some(Attribute::Integer { value, .. }) => i64::try_from(*value).ok(),
        _ => None,
    };
    let merge = match option("tfrt.merge_inter_dependent_streams") {
        Some(Attribute::Integer { ty, value }) => *ty == Type::int(1) && *value != 0,
        _ => false,
    };
    let default = StreamOptions::default();
    StreamOptions {
        cost_threshold: number("tfrt.cost_threshold").map_or(default.cost_threshold, |cost| cost.max(1)),
        upper_cost_threshold: number("tfrt.upper_cost_threshold").unwrap_or(default.upper_cost_threshold),
        merge_inter_dependent_streams: merge,
    }
}

fn emit_kernel(
    collected: &mut Collected<'_>,
    op: &Operation,
    arguments: Vec<Register>,
    results: Vec<Register>,
) -> Kernel<'static> {
    let module = collected.module;
    let mut attributes = Vec::new();
    let mut functions: Vec<FunctionId> = Vec::new();
    for (name, value) in &op.attributes {
        match classify(&collected.symbols, name, value) {
            Use::Dropped => {}
            Use::Functions(names) => {
                functions.extend(
                    names.into_iter().filter_map(|name| collected.named.get(name.as_bytes()).copied()),
                );
            }
            Use::Value => {
                if let Some(value) = collected.attributes.get(value) {
                    attributes
                        .push(NamedAttribute { name: Some(name.to_string_lossy().into()), value: *value });
                }
            }
        }
    }
    let regions =
        op.regions.iter().filter_map(|region| collected.regions.get(&std::ptr::from_ref(region)).copied());
    functions.extend(regions);
    Kernel {
        code: collected.kernel_code(&op.name),
        location: Some(locations::to_bef(module.location(op.location))),
        stream: 0,
        arguments,
        attributes,
        functions,
        results,
    }
}
