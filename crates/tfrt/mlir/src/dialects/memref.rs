//! `memref`: the memory accesses that compiled modules are likely to contain.

use super::check::Problem;
use super::{Dialect, Row, op};
use crate::ir::{Operation, ShapedKind, Type, ValueId};
use crate::parser::{Delimiter, OpState, Operand, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

pub(super) const DIALECT: Dialect = Dialect { name: "memref", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("load")
        .operands("any memref, any* indices")
        .results("any result")
        .hooks(parse_load, print_load)
        .check(check_load),
    op("store")
        .operands("any value, any memref, any* indices")
        .hooks(parse_store, print_store)
        .check(check_store),
    op("dim")
        .operands("any source, any index")
        .results("any result")
        .hooks(parse_dim, print_dim)
        .check(check_dim),
    op("dealloc").operands("any memref").format("$memref attr-dict `:` type($memref)"),
];

/// Parses `%memref[%indices]`.
fn parse_access<'a>(parser: &mut Parser<'a>, state: &mut OpState) -> Parse<(Operand<'a>, Vec<Operand<'a>>)> {
    let memref = parser.operand()?;
    parser.literal(state, "[")?;
    let indices = parser.operand_list(Delimiter::None)?;
    parser.literal(state, "]")?;
    parser.optional_attribute_dictionary(state)?;
    Ok((memref, indices))
}

/// Parses `: type`, where `type` must be a memref. Also returns the memref's element type.
fn parse_memref_type(parser: &mut Parser<'_>, state: &OpState) -> Parse<(Type, Type)> {
    let at = parser.current_offset();
    let ty = parser.colon_type()?;
    match &ty {
        Type::Shaped(shaped) if shaped.kind == ShapedKind::MemRef => {
            let element = shaped.element.clone();
            Ok((ty, element))
        }
        _ => parser.error_in_op(state, at, "invalid kind of type specified"),
    }
}

fn parse_load(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let (memref, indices) = parse_access(parser, state)?;
    let (ty, element) = parse_memref_type(parser, state)?;
    let memref = parser.resolve(memref, &ty)?;
    state.operands.push(memref);
    resolve_indices(parser, state, &indices)?;
    state.types.push(element);
    Ok(())
}

fn resolve_indices<'a>(parser: &mut Parser<'a>, state: &mut OpState, indices: &[Operand<'a>]) -> Parse {
    for index in indices {
        let value = parser.resolve(*index, &Type::Index)?;
        state.operands.push(value);
    }
    Ok(())
}

fn parse_store(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let value = parser.operand()?;
    parser.literal(state, ",")?;
    let (memref, indices) = parse_access(parser, state)?;
    let (ty, element) = parse_memref_type(parser, state)?;
    let value = parser.resolve(value, &element)?;
    let memref = parser.resolve(memref, &ty)?;
    state.operands.extend([value, memref]);
    resolve_indices(parser, state, &indices)
}

fn print_access(printer: &mut Printer<'_>, op: &Operation, memref: ValueId, indices: &[ValueId]) {
    printer.operand(memref);
    printer.push("[");
    printer.operands(indices);
    printer.push("]");
    printer.optional_attribute_dictionary(&op.attributes, &[]);
    printer.push(" : ");
    printer.types_of(&[memref]);
}

fn print_load(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    print_access(printer, op, op.operands[0], &op.operands[1..]);
}

fn print_store(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operand(op.operands[0]);
    printer.push(", ");
    print_access(printer, op, op.operands[1], &op.operands[2..]);
}

/// Parses `%source, %index : type`.
fn parse_dim(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parser.optional_attribute_dictionary(state)?;
    let source = parser.operand()?;
    parser.literal(state, ",")?;
    let index = parser.operand()?;
    let ty = parser.colon_type()?;
    let source = parser.resolve(source, &ty)?;
    let index = parser.resolve(index, &Type::Index)?;
    state.operands.extend([source, index]);
    state.types.push(Type::Index);
    Ok(())
}

fn print_dim(printer: &mut Printer<'_>, op: &Operation) {
    printer.optional_attribute_dictionary(&op.attributes, &[]);
    printer.push(" ");
    printer.operands(&op.operands);
    printer.push(" : ");
    printer.types_of(&op.operands[..1]);
}

/// Checks that the indices have type `index`, and that the element type is the type of the loaded or stored value.
fn check_access(
    verifier: &Verifier<'_>,
    memref: ValueId,
    element: ValueId,
    indices: &[ValueId],
) -> Result<(), Problem> {
    let types = verifier.types(&[memref, element]);
    let fits = matches!(&types[0], Type::Shaped(shaped)
        if shaped.kind == ShapedKind::MemRef && shaped.element == types[1]);
    if !fits || verifier.types(indices).iter().any(|ty| *ty != Type::Index) {
        return Err(Problem::Op("must access elements of a memref by indices".into()));
    }
    Ok(())
}

fn check_load(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    check_access(verifier, op.operands[0], op.results[0], &op.operands[1..])
}

fn check_store(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    check_access(verifier, op.operands[1], op.operands[0], &op.operands[2..])
}

fn check_dim(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    if verifier.types(&[op.operands[1], op.results[0]]).iter().any(|ty| *ty != Type::Index) {
        return Err(Problem::Op("requires an index operand and an index result".into()));
    }
    Ok(())
}
