//! Checks a module before it is written: what [verification](crate::File::verify) would refuse is not written.

use super::{Body, Function, Kernel, Module};
use crate::attribute::Attribute;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::framing::SectionId;
use crate::function_kind::FunctionKind;
use crate::ids::TypeId;
use crate::limits::{Limits, MAX_SECTIONS};
use crate::section::functions::check_stream;

/// Checks attribute nesting, the number of sections, and the functions; the writers of the sections check the rest.
pub(super) fn check(module: &Module<'_>, limits: &Limits) -> Result<()> {
    for (index, value) in module.attributes.values().iter().enumerate() {
        check_nesting(value, limits.effective_attribute_nesting(), limits)
            .in_field(|| format!("attributes[{index}]"))?;
    }
    for (index, function) in module.functions.iter().enumerate() {
        check_function(module, function).in_field(|| format!("functions[{index}]"))?;
    }
    let custom = module.custom_sections.len() + SectionId::ALL.len();
    if custom > MAX_SECTIONS as usize {
        let actual = format!("{custom} sections");
        return Err(Error::without_offset(ErrorKind::Limit, actual, format!("at most {MAX_SECTIONS}")));
    }
    Ok(())
}

/// Fails if nonempty aggregates are nested more than `left` deep.
fn check_nesting(value: &Attribute<'_>, left: u32, limits: &Limits) -> Result<()> {
    let Attribute::Aggregate(elements) = value else { return Ok(()) };
    if elements.is_empty() {
        return Ok(());
    }
    let Some(left) = left.checked_sub(1) else {
        return Err(Error::without_offset(
            ErrorKind::Limit,
            "one more aggregate inside another",
            format!("at most {} (Limits::attribute_nesting)", limits.effective_attribute_nesting()),
        ));
    };
    let mut elements = elements.iter().enumerate();
    elements.try_for_each(|(i, element)| {
        check_nesting(element, left, limits).in_field(|| format!("elements[{i}]"))
    })
}

fn check_function(module: &Module<'_>, function: &Function<'_>) -> Result<()> {
    for (name, list) in [("arguments", &function.arguments), ("results", &function.results)] {
        for (index, &id) in list.iter().enumerate() {
            check_type(module, id).in_field(|| format!("{name}[{index}]"))?;
        }
    }
    match &function.body {
        None if function.kind == FunctionKind::Native => Ok(()),
        None => Err(mismatch("no body", "one: only native functions have none")),
        Some(_) if function.kind == FunctionKind::Native => {
            Err(mismatch("a body of a native function", "none: it is found by its name"))
        }
        Some(body) => check_body(module, function, body),
    }
}

fn check_type(module: &Module<'_>, id: TypeId) -> Result<()> {
    let types = module.types.values.len();
    if id.index() < types {
        return Ok(());
    }
    Err(Error::without_offset(ErrorKind::OutOfRange, format!("type {id}"), format!("one below {types}")))
}

#[cold]
fn mismatch(actual: impl Into<String>, expected: impl Into<String>) -> Error {
    Error::without_offset(ErrorKind::Mismatch, actual, expected)
}

fn check_body(module: &Module<'_>, function: &Function<'_>, body: &Body<'_>) -> Result<()> {
    for (index, register) in body.registers.iter().enumerate() {
        register.map_or(Ok(()), |id| check_type(module, id)).in_field(|| format!("registers[{index}]"))?;
    }
    check_stream(body.root_stream, None).in_field(|| "root_stream")?;
    let mut defined = vec![false; body.registers.len()];
    defined.iter_mut().take(function.arguments.len()).for_each(|register| *register = true);
    for (index, kernel) in body.kernels.iter().enumerate() {
        check_kernel(module, kernel, &mut defined).in_field(|| format!("kernels[{}]", index + 1))?;
    }
    if let Some(register) = defined.iter().position(|defined| !defined) {
        let error = Error::without_offset(ErrorKind::Definition, "no definition", "a kernel that defines it");
        return Err(error).in_field(|| format!("registers[{register}]"));
    }
    check_signature(module, function, body)
}

fn check_kernel(module: &Module<'_>, kernel: &Kernel<'_>, defined: &mut [bool]) -> Result<()> {
    let kernels = module.kernels.values.len();
    if kernel.code.index() >= kernels {
        let actual = format!("kernel code {}", kernel.code);
        return Err(Error::without_offset(ErrorKind::OutOfRange, actual, format!("one below {kernels}")));
    }
    check_stream(kernel.stream, None).in_field(|| "stream")?;
    let wrong =
        |actual: String, expected: &str| Err(Error::without_offset(ErrorKind::Definition, actual, expected));
    // Registers out of range are the record writer's errors.
    for (index, register) in kernel.arguments.iter().enumerate() {
        if defined.get(register.index()) == Some(&false) {
            let actual = format!("register {register}, which no kernel before this one defines");
            return wrong(actual, "an argument, or a result of an earlier kernel")
                .in_field(|| format!("args[{index}]"));
        }
    }
    for (index, register) in kernel.results.iter().enumerate() {
        if defined.get_mut(register.index()).is_some_and(|defined| std::mem::replace(defined, true)) {
            let actual = format!("register {register}, which is defined already");
            return wrong(actual, "a register of its own").in_field(|| format!("results[{index}]"));
        }
    }
    Ok(())
}

/// Checks that register types agree with the signature, and that a sync function returns no argument and no register
/// twice.
fn check_signature(module: &Module<'_>, function: &Function<'_>, body: &Body<'_>) -> Result<()> {
    let argument = function.arguments.iter().enumerate();
    let result = body.results.iter().zip(&function.results).map(|(register, kind)| (register.index(), kind));
    for (register, kind) in argument.chain(result).filter(|_| module.optional_sections) {
        let actual = body.registers.get(register).copied().flatten();
        if let Some(actual) = actual.filter(|actual| actual != kind) {
            let name = |id: TypeId| module.type_name(id).unwrap_or_default();
            let expected = format!("{}, by the function's signature", name(*kind));
            return Err(mismatch(format!("type {}", name(actual)), expected))
                .in_field(|| format!("registers[{register}]"));
        }
    }
    if function.kind == FunctionKind::Sync {
        let mut returned = vec![false; body.registers.len()];
        returned.iter_mut().take(function.arguments.len()).for_each(|register| *register = true);
        for (index, register) in body.results.iter().enumerate() {
            if returned.get_mut(register.index()).is_some_and(|seen| std::mem::replace(seen, true)) {
                let actual =
                    format!("register {register}, an argument or returned already, in a sync function");
                return Err(mismatch(actual, "a register that a kernel defines, once"))
                    .in_field(|| format!("results[{index}]"));
            }
        }
    }
    Ok(())
}
