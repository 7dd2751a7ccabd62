//! `tfrt_test`: kernels of the reference's own tests. Source: TFRT's `test_kernels` operation definitions.

use super::check;
use super::tfrt::{parse_symbol_attribute, print_signature};
use super::{Dialect, Row, op};
use crate::ir::{Attribute, Operation, Type};
use crate::parser::{Argument, Delimiter, OpState, Operand, Parse, Parser};
use crate::printer::Printer;

const STRING: &str = "!tfrt.string";
const TENSOR: &str = "!t.tensor";
const EXAMPLE: &str = "!proto.example";

pub(super) const DIALECT: Dialect = Dialect { name: "tfrt_test", rows: ROWS, isolated: true };

const ROWS: &[Row] = &[
    op("do.async")
        .operands("any* operands")
        .results("any* results")
        .regions(1)
        .hooks(parse_do_async, print_do_async)
        .check(check::check_do_async),
    op("benchmark")
        .operands("any* operands")
        .results("!tfrt.chain")
        .attributes("i32 duration_secs, i32 max_count, string name, i32? num_warmup_runs")
        .regions(1)
        .hooks(parse_benchmark, print_benchmark)
        .check(check::check_benchmark),
    op("sync_benchmark")
        .operands("any* operands")
        .attributes("symbol target_fn, i32 duration_secs, i32 max_count, i32? num_warmup_runs")
        .hooks(parse_sync_benchmark, print_sync_benchmark)
        .check(check::check_sync_benchmark),
    op("count3").suffixes(&[&["i32", "i64"]]).operands("T").results("T, T, T").format("operands attr-dict"),
    op("decode_jpeg").operands(STRING).results(TENSOR).format("operands attr-dict"),
    op("resize_bilinear").operands("!t.tensor, i64, i64").results(TENSOR).format("operands attr-dict"),
    op("parse_example_from_bytes").operands(STRING).results(EXAMPLE).format("operands attr-dict"),
    op("get_bytes_field_from_example")
        .operands("!proto.example, !tfrt.string")
        .results(STRING)
        .format("operands attr-dict"),
    op("get_int64_field_from_example")
        .operands("!proto.example, !tfrt.string")
        .results("i64")
        .format("operands attr-dict"),
    op("get_string").results(STRING).attributes("string value").format("attr-dict"),
    op("get_string_sync").results(STRING).attributes("string value").format("attr-dict"),
    op("test_cost")
        .operands("any* args")
        .results("i32 result")
        .attributes("i64 id, i64 _tfrt_cost")
        .format("$args attr-dict `:` type($args)")
        .check(check::check_cost),
];

fn region_arguments<'a>(operands: &[Operand<'a>], types: &[Type]) -> Vec<Argument<'a>> {
    let named = operands.iter().zip(types);
    named.map(|(name, ty)| Argument { name: Some(*name), ty: ty.clone(), location: None }).collect()
}

/// Parses `operands : (types) -> types {body}`; the body's arguments have the names of the operands.
fn parse_do_async(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let operands = parser.operand_list(Delimiter::None)?;
    parser.optional_attributes_keyword(state)?;
    let type_at = parser.current_offset();
    let (inputs, results) = parser.colon_function_type(state)?;
    state.types = results;
    state.operands = parser.resolve_all(state, &operands, &inputs, type_at)?;
    let body = parser.region(&region_arguments(&operands, &inputs), true)?;
    state.regions.push(body);
    Ok(())
}

fn print_do_async(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operands(&op.operands);
    printer.optional_attributes_keyword(&op.attributes, &[]);
    print_signature(printer, &op.operands, op);
    printer.push("  ");
    printer.shadow_region_arguments(&op.regions[0], &op.operands);
    printer.region(op, &op.regions[0], false);
}

/// Parses `(%a : type, ...)`: operands, each with its type.
fn parse_typed_operands<'a>(
    parser: &mut Parser<'a>,
    state: &mut OpState,
) -> Parse<(Vec<Operand<'a>>, Vec<Type>)> {
    parser.literal(state, "(")?;
    let (mut operands, mut types) = (Vec::new(), Vec::new());
    let type_at = parser.current_offset();
    if !parser.optional_literal(")") {
        loop {
            operands.push(parser.operand()?);
            types.push(parser.colon_type()?);
            if !parser.optional_literal(",") {
                break;
            }
        }
        parser.literal(state, ")")?;
    }
    state.operands = parser.resolve_all(state, &operands, &types, type_at)?;
    Ok((operands, types))
}

fn print_typed_operands(printer: &mut Printer<'_>, op: &Operation) {
    printer.push("(");
    for (at, operand) in op.operands.iter().enumerate() {
        if at > 0 {
            printer.push(", ");
        }
        printer.operand(*operand);
        printer.push(" : ");
        printer.types_of(&[*operand]);
    }
    printer.push(") ");
}

/// Parses `name = integer, ...`; the number of warm-up runs defaults to 1.
fn parse_counts(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    loop {
        let name = parser.any_keyword(state)?;
        parser.literal(state, "=")?;
        let value = parser.parse_attribute(Some(&Type::int(32)))?;
        state.attributes.push((name, value));
        if !parser.optional_literal(",") {
            break;
        }
    }
    if !state.has_attribute("num_warmup_runs") {
        state.add_attribute("num_warmup_runs", Attribute::int(32, 1));
    }
    Ok(())
}

fn print_counts(printer: &mut Printer<'_>, op: &Operation, hidden: &str) {
    let shown = op.attributes.iter().filter(|(name, _)| *name != hidden);
    for (at, (name, value)) in shown.enumerate() {
        if at > 0 {
            printer.push(", ");
        }
        printer.keyword_or_string(name);
        printer.push(" = ");
        printer.attribute_without_type(value);
    }
}

/// Parses `"name"(%a : type, ...) duration_secs = N, max_count = N {body}`.
fn parse_benchmark(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let name = parser.parse_attribute(None)?;
    if name.as_text().is_none() {
        return parser.error_in_op(state, at, "invalid kind of attribute specified");
    }
    state.add_attribute("name", name);
    let (operands, types) = parse_typed_operands(parser, state)?;
    state.types = vec![Type::dialect("tfrt", "chain")];
    parse_counts(parser, state)?;
    let body = parser.region(&region_arguments(&operands, &types), true)?;
    state.regions.push(body);
    Ok(())
}

fn print_benchmark(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    if let Some(name) = op.attribute("name") {
        printer.attribute(name);
    }
    print_typed_operands(printer, op);
    print_counts(printer, op, "name");
    printer.push("  ");
    printer.shadow_region_arguments(&op.regions[0], &op.operands);
    printer.region(op, &op.regions[0], false);
}

/// Parses `@target(%a : type, ...) duration_secs = N, max_count = N`.
fn parse_sync_benchmark(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_symbol_attribute(parser, state, "target_fn")?;
    parse_typed_operands(parser, state)?;
    parse_counts(parser, state)
}

fn print_sync_benchmark(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    if let Some(target) = op.attribute("target_fn") {
        printer.attribute(target);
    }
    print_typed_operands(printer, op);
    print_counts(printer, op, "target_fn");
}
