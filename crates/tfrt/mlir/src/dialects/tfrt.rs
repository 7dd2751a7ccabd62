//! `tfrt`: the basic kernels. Source: TFRT's `basic_kernels` operation definitions.

use super::check::{self, Problem};
use super::{Dialect, Row, op};
use crate::ir::{Operation, Type, ValueId};
use crate::parser::{Argument, Delimiter, OpState, Operand, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

const CHAIN: &str = "!tfrt.chain";

pub(super) const DIALECT: Dialect = Dialect { name: "tfrt", rows: ROWS, isolated: true };

const ROWS: &[Row] = &[
    op("call")
        .operands("any* operands")
        .results("any* results")
        .attributes("symbol callee")
        .hooks(parse_call, print_call)
        .check(check::check_call),
    op("constant")
        .suffixes(&[&["i1", "i32", "i64", "bf16", "f16", "f32", "f64", "ui32", "ui64"]])
        .results("T")
        .attributes("T value")
        .format("$value attr-dict"),
    op("constant.complex64")
        .results("c64")
        .attributes("f32 real, f32 imaginary")
        .format("$real `,` $imaginary attr-dict"),
    op("constant.complex128")
        .results("c128")
        .attributes("f64 real, f64 imaginary")
        .format("$real `,` $imaginary attr-dict"),
    op("constant_s")
        .suffixes(&[&["i64", "f16", "f32", "f64"]])
        .results("T")
        .attributes("T value")
        .format("$value attr-dict"),
    op("case")
        .operands("i32 branch_index, any* branch_operands")
        .results("any* branch_outputs")
        .attributes("array branches")
        .format(
            "$branch_index $branches `(` $branch_operands `)` attr-dict \
            `:` `(` type($branch_operands) `)` `->` `(` type($branch_outputs) `)`",
        )
        .check(check::check_case),
    op("if")
        .operands("i1 cond, any* operands")
        .results("any* results")
        .regions(2)
        .hooks(parse_if, print_if)
        .check(check::check_if),
    op("cond")
        .operands("i1 cond, any* fn_operands")
        .results("any* outputs")
        .attributes("symbol a_true_fn, symbol b_false_fn")
        .format(
            "$cond $a_true_fn $b_false_fn `(` $fn_operands `)` attr-dict \
            `:` `(` type($fn_operands) `)` `->` `(` type($outputs) `)`",
        )
        .check(check::check_cond),
    op("while")
        .operands("i1 cond, any* arguments")
        .results("any* results")
        .attributes("symbol body_fn, i64 parallel_iterations")
        .format(
            "$cond $body_fn `(` $arguments `)` attr-dict `parallel_iterations` `(` $parallel_iterations `)` \
            `:` `(` type($arguments) `)` `->` `(` type(results) `)`",
        ),
    op("once")
        .operands("any* inputs")
        .results("any* results")
        .attributes("symbol function")
        .format("$function `(` $inputs `)` attr-dict `:` `(` type($inputs) `)` `->` `(` type(results) `)`"),
    op("new.chain").results(CHAIN).format("attr-dict"),
    op("merge.chains").operands("any* inputs").results(CHAIN).format("$inputs attr-dict `:` type($inputs)"),
    op("repeat.i32")
        .operands("i32 trip_count, any* operands")
        .results("any* results")
        .regions(1)
        .hooks(parse_repeat, print_repeat)
        .check(check::check_repeat),
    op("parallel_for.i32")
        .operands("i32 start, i32 end, i32 block_size, any* operands")
        .results("any* results")
        .regions(1)
        .hooks(parse_parallel_for, print_parallel_for)
        .check(check::check_parallel_for),
    op("parallel_call.i32")
        .operands("i32 start, i32 end, i32 block_size, any* arguments")
        .results("any* results")
        .attributes("symbol callee")
        .hooks(parse_parallel_call, print_parallel_call)
        .check(check::check_parallel_call),
    op("return").operands("any* operands").hooks(parse_return, print_return).check(check_return).terminator(),
    op("add")
        .suffixes(&[&["i32", "i64", "f32", "f64"]])
        .operands("T, T")
        .results("T")
        .format("operands attr-dict"),
    op("and").suffixes(&[&["i1"]]).operands("T, T").results("T").format("operands attr-dict"),
    op("equal").suffixes(&[&["i32", "i64"]]).operands("T, T").results("i1").format("operands attr-dict"),
    op("div").suffixes(&[&["i32", "i64"]]).operands("T, T").results("T, T").format("operands attr-dict"),
    op("mul").suffixes(&[&["i32", "i64"]]).operands("T, T").results("T").format("operands attr-dict"),
    op("mul_s").suffixes(&[&["i32", "i64"]]).operands("T, T").results("T").format("operands attr-dict"),
    op("print")
        .suffixes(&[&["i1", "i32", "i64", "f32", "f64"]])
        .operands("T, !tfrt.chain")
        .results(CHAIN)
        .format("operands attr-dict"),
    op("get_device")
        .operands(CHAIN)
        .results("!tfrt.device")
        .attributes("string device_name")
        .format("operands attr-dict"),
];

/// Arguments for a region's entry block, with the names of the operands, whose values they shadow.
fn region_arguments<'a>(operands: &[Operand<'a>], types: &[Type]) -> Vec<Argument<'a>> {
    let argument = |(operand, ty): (&Operand<'a>, &Type)| Argument {
        name: Some(*operand),
        ty: ty.clone(),
        location: None,
    };
    operands.iter().zip(types).map(argument).collect()
}

/// Parses `@callee(operands) {attributes} : (types) -> types`.
fn parse_call(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_symbol_attribute(parser, state, "callee")?;
    let operands = parser.operand_list(Delimiter::Paren)?;
    parser.optional_attribute_dictionary(state)?;
    let (inputs, results) = parser.colon_function_type(state)?;
    state.types = results;
    state.operands = parser.resolve_all(state, &operands, &inputs, state.name_at)?;
    Ok(())
}

fn print_call(printer: &mut Printer<'_>, op: &Operation) {
    print_callee(printer, op, "callee");
    printer.operands(&op.operands);
    printer.push(")");
    printer.optional_attribute_dictionary(&op.attributes, &["callee"]);
    printer.push(" : ");
    print_function_type(printer, &op.operands, &op.results);
}

fn print_callee(printer: &mut Printer<'_>, op: &Operation, name: &str) {
    printer.push(" ");
    if let Some(callee) = op.attribute(name) {
        printer.attribute(callee);
    }
    printer.push("(");
}

fn print_function_type(printer: &mut Printer<'_>, inputs: &[ValueId], results: &[ValueId]) {
    let types = |values: &[ValueId]| values.iter().map(|v| printer.type_of(*v).clone()).collect();
    let ty = Type::function(types(inputs), types(results));
    printer.ty(&ty);
}

/// Parses `@symbol` as an attribute.
pub(super) fn parse_symbol_attribute(parser: &mut Parser<'_>, state: &mut OpState, name: &str) -> Parse {
    let at = parser.current_offset();
    let callee = parser.parse_attribute(None)?;
    if !matches!(callee, crate::ir::Attribute::SymbolRef { .. }) {
        return parser.error_in_op(state, at, "invalid kind of attribute specified");
    }
    state.add_attribute(name, callee);
    Ok(())
}

/// Parses `%cond, operands : (types) -> types {then} else {else}`; the regions' arguments have the operands' names.
fn parse_if(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let operands = parser.operand_list(Delimiter::None)?;
    parser.optional_attributes_keyword(state)?;
    let type_at = parser.current_offset();
    let (inputs, results) = parser.colon_function_type(state)?;
    state.types = results;
    let Some((condition, passed)) = operands.split_first() else {
        return parser.error_in_op(state, parser.current_offset(), "expected condition");
    };
    let condition = parser.resolve(*condition, &Type::int(1))?;
    state.operands.push(condition);
    let passed_values = parser.resolve_all(state, passed, &inputs, type_at)?;
    state.operands.extend(passed_values);
    let arguments = region_arguments(passed, &inputs);
    let then = parser.region(&arguments, true)?;
    state.regions.push(then);
    if parser.optional_keyword("else") {
        let otherwise = parser.region(&arguments, true)?;
        state.regions.push(otherwise);
    } else if state.types.is_empty() {
        let empty = parser.returning_region(&inputs, state.location);
        state.regions.push(empty);
    } else {
        return parser.error_in_op(
            state,
            parser.current_offset(),
            "expected 'else' in 'tfrt.if' with result values",
        );
    }
    Ok(())
}

fn print_if(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operands(&op.operands);
    printer.optional_attributes_keyword(&op.attributes, &[]);
    print_signature(printer, &op.operands[1..], op);
    printer.push("  ");
    for (at, region) in op.regions.iter().enumerate() {
        if at > 0 {
            printer.push(" else  ");
        }
        printer.shadow_region_arguments(region, &op.operands[1..]);
        printer.region(op, region, false);
    }
}

/// Prints ` : (types) -> (types)`.
pub(super) fn print_signature(printer: &mut Printer<'_>, operands: &[ValueId], op: &Operation) {
    printer.push(" : (");
    printer.types_of(operands);
    printer.push(") -> (");
    printer.types_of(&op.results);
    printer.push(")");
}

/// Parses `%count, operands : types {body}`; the results have the operands' types.
fn parse_repeat(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let operands = parser.operand_list(Delimiter::None)?;
    parser.optional_attributes_keyword(state)?;
    let type_at = parser.current_offset();
    let types = parser.optional_colon_type_list()?;
    state.types = types.clone();
    let Some((count, carried)) = operands.split_first() else {
        return parser.error_in_op(state, parser.current_offset(), "expected trip count");
    };
    let count = parser.resolve(*count, &Type::int(32))?;
    state.operands.push(count);
    let carried_values = parser.resolve_all(state, carried, &types, type_at)?;
    state.operands.extend(carried_values);
    let body = parser.region(&region_arguments(carried, &types), true)?;
    state.regions.push(body);
    Ok(())
}

fn print_repeat(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operands(&op.operands);
    printer.optional_attributes_keyword(&op.attributes, &[]);
    print_body(printer, op, &op.operands[1..], &op.operands[1..]);
}

/// Prints ` : types {body}`, with the types of `typed`; the body's arguments get the names of `shadows`.
fn print_body(printer: &mut Printer<'_>, op: &Operation, typed: &[ValueId], shadows: &[ValueId]) {
    if !typed.is_empty() {
        printer.push(" : ");
        printer.types_of(typed);
    }
    printer.push(" ");
    printer.shadow_region_arguments(&op.regions[0], shadows);
    printer.region(op, &op.regions[0], false);
}

/// Parses `%start to %end fixed %block_size`.
fn parse_range<'a>(parser: &mut Parser<'a>, state: &OpState) -> Parse<[Operand<'a>; 3]> {
    let start = parser.operand()?;
    parser.keyword(state, "to")?;
    let end = parser.operand()?;
    parser.keyword(state, "fixed")?;
    Ok([start, end, parser.operand()?])
}

fn print_range(printer: &mut Printer<'_>, op: &Operation) {
    for (word, value) in [" ", " to ", " fixed "].iter().zip(&op.operands) {
        printer.push(word);
        printer.operand(*value);
    }
}

fn resolve_range<'a>(parser: &mut Parser<'a>, state: &mut OpState, range: &[Operand<'a>; 3]) -> Parse {
    for operand in range {
        let value = parser.resolve(*operand, &Type::int(32))?;
        state.operands.push(value);
    }
    state.types = vec![Type::dialect("tfrt", "chain")];
    Ok(())
}

/// Parses `%start to %end fixed %block_size, operands : types {body}`.
fn parse_parallel_for(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let range = parse_range(parser, state)?;
    let mut passed = Vec::new();
    if parser.optional_literal(",") {
        passed = parser.operand_list(Delimiter::None)?;
    }
    let type_at = parser.current_offset();
    let types = parser.optional_colon_type_list()?;
    resolve_range(parser, state, &range)?;
    let values = parser.resolve_all(state, &passed, &types, type_at)?;
    state.operands.extend(values);
    let mut body_arguments = region_arguments(&range[..2], &[Type::int(32), Type::int(32)]);
    body_arguments.extend(region_arguments(&passed, &types));
    let body = parser.region(&body_arguments, true)?;
    state.regions.push(body);
    Ok(())
}

fn print_parallel_for(printer: &mut Printer<'_>, op: &Operation) {
    print_range(printer, op);
    if op.operands.len() > 3 {
        printer.push(", ");
        printer.operands(&op.operands[3..]);
    }
    let shadows: Vec<ValueId> = op.operands[..2].iter().chain(&op.operands[3..]).copied().collect();
    print_body(printer, op, &op.operands[3..], &shadows);
}

/// Parses `%start to %end fixed %block_size @callee(operands) : types`.
fn parse_parallel_call(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let range = parse_range(parser, state)?;
    parse_symbol_attribute(parser, state, "callee")?;
    let passed = parser.operand_list(Delimiter::Paren)?;
    let type_at = parser.current_offset();
    let types = parser.optional_colon_type_list()?;
    resolve_range(parser, state, &range)?;
    let values = parser.resolve_all(state, &passed, &types, type_at)?;
    state.operands.extend(values);
    Ok(())
}

fn print_parallel_call(printer: &mut Printer<'_>, op: &Operation) {
    print_range(printer, op);
    print_callee(printer, op, "callee");
    printer.operands(&op.operands[3..]);
    printer.push(")");
    if op.operands.len() > 3 {
        printer.push(" : ");
        printer.types_of(&op.operands[3..]);
    }
}

/// Parses `operands : types`, or nothing.
pub(super) fn parse_return(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::None)?;
    let mut types = Vec::new();
    if !operands.is_empty() {
        parser.literal(state, ":")?;
        types = parser.type_list()?;
    }
    state.operands = parser.resolve_all(state, &operands, &types, at)?;
    Ok(())
}

pub(super) fn print_return(printer: &mut Printer<'_>, op: &Operation) {
    if !op.operands.is_empty() {
        printer.push(" ");
        printer.operands(&op.operands);
        printer.push(" : ");
        printer.types_of(&op.operands);
    }
}

fn check_return(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    check::check_form_shows_attributes(verifier, op, &[])?;
    check::check_returned_types(verifier, op)
}
