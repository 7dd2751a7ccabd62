//! `cf`: branches between the blocks of compiled functions. BEF has no branches.

use super::check::Problem;
use super::{Dialect, Row, op};
use crate::ir::{Attribute, Operation, Type};
use crate::parser::{OpState, Operand, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

pub(super) const DIALECT: Dialect = Dialect { name: "cf", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("br").operands("any* operands").hooks(parse_br, print_br).check(check_br).terminator(),
    op("cond_br")
        .operands("i1 condition, any* operands")
        .hooks(parse_cond_br, print_cond_br)
        .check(check_cond_br)
        .terminator(),
];

/// The attribute with the numbers of operands of a conditional branch: the condition, and the arguments of the first
/// and of the second block.
const SEGMENTS: &str = "operand_segment_sizes";

/// Parses `^block(operands : types)`; returns the number of operands.
fn parse_successor(parser: &mut Parser<'_>, state: &mut OpState) -> Parse<usize> {
    let successor = parser.successor()?;
    state.successors.push(successor);
    if !parser.optional_literal("(") {
        return Ok(0);
    }
    let mut operands: Vec<Operand<'_>> = Vec::new();
    let at = parser.current_offset();
    while parser.at_operand() {
        operands.push(parser.operand()?);
        if !parser.optional_literal(",") {
            break;
        }
    }
    let types: Vec<Type> = parser.optional_colon_type_list()?;
    parser.literal(state, ")")?;
    let values = parser.resolve_all(state, &operands, &types, at)?;
    state.operands.extend(values);
    Ok(operands.len())
}

fn parse_br(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_successor(parser, state)?;
    parser.optional_attribute_dictionary(state)
}

fn parse_cond_br(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let condition = parser.operand()?;
    let condition = parser.resolve(condition, &Type::int(1))?;
    state.operands.push(condition);
    parser.literal(state, ",")?;
    let first = parse_successor(parser, state)?;
    parser.literal(state, ",")?;
    let second = parse_successor(parser, state)?;
    parser.optional_attribute_dictionary(state)?;
    let sizes = [1, first, second].map(|size| Attribute::int(32, size as i128));
    state.add_attribute(SEGMENTS, Attribute::DenseArray(Type::int(32), sizes.into()));
    Ok(())
}

fn print_successor(
    printer: &mut Printer<'_>,
    op: &Operation,
    index: usize,
    operands: std::ops::Range<usize>,
) {
    printer.push(&format!("^bb{}", op.successors[index]));
    let operands = &op.operands[operands];
    if !operands.is_empty() {
        printer.push("(");
        printer.operands(operands);
        printer.push(" : ");
        printer.types_of(operands);
        printer.push(")");
    }
}

fn print_br(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    print_successor(printer, op, 0, 0..op.operands.len());
    printer.optional_attribute_dictionary(&op.attributes, &[]);
}

fn print_cond_br(printer: &mut Printer<'_>, op: &Operation) {
    let first = operand_segments(op).map_or(0, |sizes| sizes[1]);
    printer.push(" ");
    printer.operand(op.operands[0]);
    printer.push(", ");
    print_successor(printer, op, 0, 1..1 + first);
    printer.push(", ");
    print_successor(printer, op, 1, 1 + first..op.operands.len());
    printer.optional_attribute_dictionary(&op.attributes, &[SEGMENTS]);
}

/// The sizes of the operand segments (`operand_segment_sizes`); absent unless they add up to the number of operands.
fn operand_segments(op: &Operation) -> Option<[usize; 3]> {
    let Some(Attribute::DenseArray(_, sizes)) = op.attribute(SEGMENTS) else { return None };
    let sizes: Vec<usize> =
        sizes.iter().map(|size| usize::try_from(size.as_int()?).ok()).collect::<Option<_>>()?;
    let sizes: [usize; 3] = sizes.try_into().ok()?;
    let total = sizes.iter().try_fold(0usize, |sum, size| sum.checked_add(*size))?;
    (sizes[0] == 1 && total == op.operands.len()).then_some(sizes)
}

fn check_br(_: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    if op.successors.len() != 1 {
        return Err(Problem::Op(
            "requires 1 successor but found ".to_string() + &op.successors.len().to_string(),
        ));
    }
    Ok(())
}

fn check_cond_br(_: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    if op.successors.len() != 2 {
        return Err(Problem::Op(
            "requires 2 successors but found ".to_string() + &op.successors.len().to_string(),
        ));
    }
    if operand_segments(op).is_none() {
        return Err(Problem::Op(format!("'{SEGMENTS}' attribute does not match the operands")));
    }
    Ok(())
}
