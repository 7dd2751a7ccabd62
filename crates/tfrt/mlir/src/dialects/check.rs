//! Verification of particular operations: constraints between operands, attributes and regions.

use crate::ir::{Attribute, FunctionType, LocationId, Operation, Type, ValueId};
use crate::verify::{Symbol, Verifier};

/// The reason why an operation is invalid.
pub(crate) enum Problem {
    /// A problem of the checked operation: printed as `'name' op ...` at its location.
    Op(String),
    /// A problem of another operation (location, name, message): printed as `'name' op ...` at that location.
    OtherOp(LocationId, String, String),
    /// A problem of the checked operation: printed at its location without a prefix.
    Plain(String),
}

type Check = Result<(), Problem>;

fn invalid_op(message: impl Into<String>) -> Check {
    Err(Problem::Op(message.into()))
}

/// For printing: fails if the operation has attributes besides those in `but`, because its custom form cannot show them.
pub(super) fn check_form_shows_attributes(verifier: &Verifier<'_>, op: &Operation, but: &[&str]) -> Check {
    // Checked only for printing, since other attributes are legal in generic form.
    if verifier.printing && op.attributes.iter().any(|(name, _)| !but.iter().any(|b| *name == *b)) {
        return invalid_op("has attributes that its custom form cannot show");
    }
    Ok(())
}

/// The type of the function that the flat symbol attribute `name` refers to; `Ok(None)` if functions cannot be looked up in this context.
fn callee_type<'a>(
    verifier: &Verifier<'a>,
    op: &Operation,
    name: &str,
    message: &str,
) -> Result<Option<&'a FunctionType>, Problem> {
    let Some(symbol) = op.attribute(name).and_then(Attribute::as_flat_symbol) else {
        return Err(Problem::Op(format!("requires a '{message}' symbol reference attribute")));
    };
    match verifier.function(symbol) {
        Symbol::Function(ty) => Ok(Some(ty)),
        Symbol::Unknown => Ok(None),
        Symbol::Missing => Err(Problem::Op(verifier.not_a_function_message(symbol))),
    }
}

pub(super) fn check_call(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let Some(ty) = callee_type(verifier, op, "callee", "callee")? else { return Ok(()) };
    if ty.inputs.len() != op.operands.len() {
        return invalid_op("incorrect number of operands for callee");
    }
    if ty.inputs != verifier.types(&op.operands) {
        return invalid_op("operand type mismatch");
    }
    if ty.results.len() != op.results.len() {
        return invalid_op("incorrect number of results for callee");
    }
    if ty.results != verifier.types(&op.results) {
        return invalid_op("result type mismatch");
    }
    Ok(())
}

/// Checks that every branch names a function. The reference does not check it, and writes an invalid index.
pub(super) fn check_case(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let Some(Attribute::Array(branches)) = op.attribute("branches") else { return Ok(()) };
    for branch in branches.iter() {
        if let Some(symbol) = branch.as_flat_symbol()
            && matches!(verifier.function(symbol), Symbol::Missing)
        {
            return invalid_op(verifier.not_a_function_message(symbol));
        }
    }
    Ok(())
}

pub(super) fn check_cond(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let yes = callee_type(verifier, op, "a_true_fn", "a_true_fn")?;
    let no = callee_type(verifier, op, "b_false_fn", "a_false_fn")?;
    let (Some(yes), Some(no)) = (yes, no) else { return Ok(()) };
    let both = [(yes, "true"), (no, "false")];
    let sides = [
        ("operand", verifier.types(&op.operands[1..]), both.map(|(ty, _)| &ty.inputs)),
        ("result", verifier.types(&op.results), both.map(|(ty, _)| &ty.results)),
    ];
    for (what, have, wanted) in sides {
        for (wanted, (_, which)) in wanted.iter().zip(both) {
            if wanted.len() != have.len() {
                return invalid_op(format!("incorrect number of {what}s for {which} function"));
            }
        }
        for (at, ty) in have.iter().enumerate() {
            if let Some(which) = (0..2).find(|which| wanted[*which][at] != *ty) {
                return invalid_op(format!("{what} type mismatch for {} function", both[which].1));
            }
        }
    }
    Ok(())
}

/// Checks that region number `region` of the operation ends in a `tfrt.return` of values of these types.
fn check_region_returns(verifier: &Verifier<'_>, op: &Operation, region: usize, types: &[Type]) -> Check {
    let last = op.regions[region].blocks.first().and_then(|block| block.operations.last());
    let Some(last) = last.filter(|last| last.is("tfrt.return")) else {
        return invalid_op("expected tfrt.return in body");
    };
    if verifier.types(&last.operands) != types {
        let message = format!("operand types don't match '{}' result", op.name);
        return Err(Problem::OtherOp(last.location, "tfrt.return".into(), message));
    }
    Ok(())
}

fn body_arguments(op: &Operation, region: usize) -> &[ValueId] {
    op.regions[region].blocks.first().map_or(&[], |block| &block.arguments)
}

/// For printing: checks that the body's arguments have the types of `operands`, since they are printed with their
/// names.
fn check_argument_types(verifier: &Verifier<'_>, op: &Operation, operands: &[ValueId]) -> Check {
    if verifier.types(body_arguments(op, 0)) != verifier.types(operands) && verifier.printing {
        return invalid_op("body arguments do not match the operands");
    }
    Ok(())
}

pub(super) fn check_if(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let passed = verifier.types(&op.operands[1..]);
    for (region, which) in [(0, "then"), (1, "else")] {
        if body_arguments(op, region).len() != passed.len() {
            return invalid_op(format!("incorrect number of arguments to '{which}' block"));
        }
    }
    if (0..2).any(|region| verifier.types(body_arguments(op, region)) != passed) {
        return invalid_op("operand/argument type mismatch");
    }
    let results = verifier.types(&op.results);
    check_region_returns(verifier, op, 0, &results)?;
    check_region_returns(verifier, op, 1, &results)
}

pub(super) fn check_repeat(verifier: &Verifier<'_>, op: &Operation) -> Check {
    if op.results.len() + 1 != op.operands.len() {
        return invalid_op("incorrect number of operands");
    }
    let results = verifier.types(&op.results);
    if verifier.types(&op.operands[1..]) != results {
        return invalid_op("operand/result type mismatch");
    }
    check_argument_types(verifier, op, &op.operands[1..])?;
    check_region_returns(verifier, op, 0, &results)
}

pub(super) fn check_parallel_for(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_form_shows_attributes(verifier, op, &[])?;
    check_only_chain_result(verifier, op)?;
    let shadowed: Vec<ValueId> = op.operands[..2].iter().chain(&op.operands[3..]).copied().collect();
    check_argument_types(verifier, op, &shadowed)?;
    let last = op.regions[0].blocks.first().and_then(|block| block.operations.last());
    match last.filter(|last| last.is("tfrt.return")) {
        None => invalid_op("expected tfrt.return in body"),
        Some(last) if last.operands.is_empty() => Ok(()),
        Some(_) => check_region_returns(verifier, op, 0, &verifier.types(&op.results)),
    }
}

/// For printing: checks that the only result is a chain, as the custom form implies.
fn check_only_chain_result(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let chain = [Type::dialect("tfrt", "chain")];
    if verifier.printing && verifier.types(&op.results) != chain {
        return invalid_op("results are not one chain");
    }
    Ok(())
}

pub(super) fn check_parallel_call(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_form_shows_attributes(verifier, op, &["callee"])?;
    check_only_chain_result(verifier, op)?;
    let Some(ty) = callee_type(verifier, op, "callee", "callee")? else { return Ok(()) };
    if ty.inputs.len() + 1 != op.operands.len() {
        return invalid_op("incorrect number of callee operands");
    }
    if ty.inputs.iter().take(2).any(|input| *input != Type::int(32)) {
        return invalid_op("callee must take stard and end indices first");
    }
    if ty.inputs[2..] != verifier.types(&op.operands[3..]) {
        return invalid_op("operand type mismatch");
    }
    match ty.results.as_slice() {
        [] => Ok(()),
        [only] if only.is_dialect("tfrt", "chain") => Ok(()),
        [_] => invalid_op("async callee must return a chain"),
        _ => invalid_op("invalid callee result type"),
    }
}

/// Checks that the operands of `tfrt.return` have the result types of the enclosing function.
pub(super) fn check_returned_types(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let Some(results) = verifier.enclosing_result_types() else { return Ok(()) };
    if op.operands.len() != results.len() {
        return invalid_op(format!(
            "has {} operands, but enclosing function returns {}",
            op.operands.len(),
            results.len()
        ));
    }
    for (at, (operand, result)) in verifier.types(&op.operands).iter().zip(results).enumerate() {
        if operand != result {
            return Err(Problem::Plain(format!(
                "type of return operand {at} ('{operand}') doesn't match function result type ('{result}')"
            )));
        }
    }
    Ok(())
}

pub(super) fn check_do_async(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_argument_types(verifier, op, &op.operands)?;
    check_region_returns(verifier, op, 0, &verifier.types(&op.results))
}

/// For printing: checks that all attributes except `but` are `i32` and have bare identifiers as names, and that there
/// is a number of warm-up runs.
fn check_only_i32_attributes(verifier: &Verifier<'_>, op: &Operation, but: &str) -> Check {
    let is_count = |(name, value): &(crate::ir::Text, Attribute)| {
        *name == but
            || (crate::lexer::is_bare_identifier(name)
                && matches!(value, Attribute::Integer { ty, .. } if *ty == Type::int(32)))
    };
    if verifier.printing && (!op.attributes.iter().all(is_count) || op.attribute("num_warmup_runs").is_none())
    {
        return invalid_op("has attributes that its custom form cannot show");
    }
    Ok(())
}

pub(super) fn check_benchmark(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_only_i32_attributes(verifier, op, "name")?;
    check_argument_types(verifier, op, &op.operands)?;
    let last = op.regions[0].blocks.first().and_then(|block| block.operations.last());
    let Some(last) = last.filter(|last| last.is("tfrt.return")) else {
        return invalid_op("missing return statement");
    };
    if last.operands.len() != 1 {
        return invalid_op("incorrect number of return values. One return value is expected");
    }
    Ok(())
}

pub(super) fn check_sync_benchmark(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_only_i32_attributes(verifier, op, "target_fn")?;
    let Some(ty) = callee_type(verifier, op, "target_fn", "target_fn")? else { return Ok(()) };
    if ty.inputs.len() != op.operands.len() {
        return invalid_op("incorrect number of operands for callee");
    }
    if ty.inputs != verifier.types(&op.operands) {
        return invalid_op("operand type mismatch");
    }
    if !ty.results.is_empty() {
        return invalid_op("Target benchmark function must return zero value.");
    }
    Ok(())
}

pub(super) fn check_cost(_: &Verifier<'_>, op: &Operation) -> Check {
    match op.attribute("_tfrt_cost").and_then(Attribute::as_int) {
        Some(cost) if cost > 0 => Ok(()),
        Some(_) => invalid_op("cost value must be larger than 0"),
        None => invalid_op("cost attribute not found"),
    }
}

/// Checks that the attribute lists of `executeop` consist of pairs of a name and a value.
pub(super) fn check_execute(verifier: &Verifier<'_>, op: &Operation) -> Check {
    let keys = |list: &str| -> Option<Vec<crate::ir::Text>> {
        let Some(Attribute::Array(pairs)) = op.attribute(list) else { return Some(Vec::new()) };
        pairs
            .iter()
            .map(|pair| match pair {
                Attribute::Array(pair) => match &**pair {
                    [Attribute::String(key, None), _] => Some(key.clone()),
                    _ => None,
                },
                _ => None,
            })
            .collect()
    };
    let Some(mut names) = keys("op_attrs") else {
        return invalid_op("each op_attr should be a key-value pair, where the key is a string");
    };
    if verifier.printing {
        check_form_shows_attributes(verifier, op, &["op_attrs", "op_func_attrs", "op_name"])?;
        let Some(mut functions) = keys("op_func_attrs") else {
            return invalid_op("function attributes are not pairs");
        };
        let unclear = names.is_empty() && !functions.is_empty();
        for list in [&mut names, &mut functions] {
            let count = list.len();
            list.sort();
            list.dedup();
            if unclear || list.len() != count || list.iter().any(|key| key.is_empty()) {
                return invalid_op("attributes cannot be shown as a dictionary");
            }
        }
    }
    Ok(())
}

fn check_function_attribute(
    verifier: &Verifier<'_>,
    op: &Operation,
    name: &str,
    inputs: &[ValueId],
    results: &[ValueId],
) -> Check {
    let Some(ty) = callee_type(verifier, op, name, name)? else { return Ok(()) };
    let shown = op.attribute(name).and_then(Attribute::as_flat_symbol);
    let shown = shown.map(ToString::to_string).unwrap_or_default();
    if ty.inputs != verifier.types(inputs) {
        return invalid_op(format!("'{shown}' has mismatching operand types"));
    }
    if ty.results != verifier.types(results) {
        return invalid_op(format!("'{shown}' has mismatching result types"));
    }
    Ok(())
}

pub(super) fn check_corert_cond(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_function_attribute(verifier, op, "a_true_fn", &op.operands[1..], &op.results)?;
    check_function_attribute(verifier, op, "b_false_fn", &op.operands[1..], &op.results)
}

pub(super) fn check_corert_while(verifier: &Verifier<'_>, op: &Operation) -> Check {
    check_function_attribute(verifier, op, "a_cond_fn", &op.operands, &op.results)?;
    check_function_attribute(verifier, op, "b_body_fn", &op.operands, &op.results)
}
