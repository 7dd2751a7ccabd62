//! `arith` and `math`: the constants and elementwise operations that compiled modules are likely to contain.

use super::check::Problem;
use super::{Dialect, Row, op};
use crate::ir::{Attribute, Operation, Type};
use crate::parser::{Delimiter, OpState, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

pub(super) const DIALECT: Dialect = Dialect { name: "arith", rows: ROWS, isolated: false };

const fn same_type_op(stem: &'static str) -> Row {
    op(stem)
        .operands("any* operands")
        .results("any result")
        .hooks(parse_same_type, print_same_type)
        .check(check_same_type)
}

const fn fastmath_op(stem: &'static str) -> Row {
    op(stem)
        .operands("any* operands")
        .results("any result")
        .hooks(parse_fastmath, print_fastmath)
        .check(check_same_type)
}

const ROWS: &[Row] = &[
    op("constant").results("any result").attributes("any value").hooks(parse_constant, print_constant),
    same_type_op("addi"),
    same_type_op("subi"),
    same_type_op("muli"),
    same_type_op("divsi"),
    same_type_op("divui"),
    same_type_op("remsi"),
    same_type_op("remui"),
    same_type_op("andi"),
    same_type_op("ori"),
    same_type_op("xori"),
    same_type_op("shli"),
    same_type_op("shrsi"),
    same_type_op("shrui"),
    same_type_op("maxsi"),
    same_type_op("maxui"),
    same_type_op("minsi"),
    same_type_op("minui"),
    fastmath_op("addf"),
    fastmath_op("subf"),
    fastmath_op("mulf"),
    fastmath_op("divf"),
    fastmath_op("remf"),
    fastmath_op("maxf"),
    fastmath_op("minf"),
    fastmath_op("negf"),
    op("cmpi")
        .operands("any lhs, any rhs")
        .results("i1")
        .attributes("i64 predicate")
        .hooks(parse_compare, print_compare)
        .check(check_compare),
    op("select")
        .operands("i1 condition, any yes, any no")
        .results("any result")
        .hooks(parse_select, print_select)
        .check(check_select),
    op("index_cast").operands("any in").results("any out").format(CAST),
    op("extf").operands("any in").results("any out").format(CAST),
    op("extsi").operands("any in").results("any out").format(CAST),
    op("extui").operands("any in").results("any out").format(CAST),
    op("truncf").operands("any in").results("any out").format(CAST),
    op("trunci").operands("any in").results("any out").format(CAST),
    op("sitofp").operands("any in").results("any out").format(CAST),
    op("uitofp").operands("any in").results("any out").format(CAST),
    op("fptosi").operands("any in").results("any out").format(CAST),
    op("fptoui").operands("any in").results("any out").format(CAST),
    op("bitcast").operands("any in").results("any out").format(CAST),
];

const CAST: &str = "$in attr-dict `:` type($in) `to` type($out)";

pub(super) const MATH_DIALECT: Dialect = Dialect { name: "math", rows: MATH_ROWS, isolated: false };

const MATH_ROWS: &[Row] = &[
    fastmath_op("absf"),
    fastmath_op("atan"),
    fastmath_op("atan2"),
    fastmath_op("ceil"),
    fastmath_op("cos"),
    fastmath_op("erf"),
    fastmath_op("exp"),
    fastmath_op("exp2"),
    fastmath_op("floor"),
    fastmath_op("fma"),
    fastmath_op("log"),
    fastmath_op("log10"),
    fastmath_op("log1p"),
    fastmath_op("log2"),
    fastmath_op("powf"),
    fastmath_op("rsqrt"),
    fastmath_op("sin"),
    fastmath_op("sqrt"),
    fastmath_op("tan"),
    fastmath_op("tanh"),
];

/// Names of comparison predicates, indexed by their numbers.
const PREDICATES: [&str; 10] = ["eq", "ne", "slt", "sle", "sgt", "sge", "ult", "ule", "ugt", "uge"];

/// Parses `predicate, %a, %b : type`.
fn parse_compare(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let word = parser.any_keyword(state)?;
    let Some(predicate) = PREDICATES.iter().position(|name| word == *name) else {
        return parser.error_in_op(state, at, "expected a predicate");
    };
    state.add_attribute("predicate", Attribute::int(64, predicate as i128));
    parser.literal(state, ",")?;
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::None)?;
    parser.optional_attribute_dictionary(state)?;
    let ty = parser.colon_type()?;
    state.operands = parser.resolve_all(state, &operands, &[ty.clone(), ty], at)?;
    state.types.push(Type::int(1));
    Ok(())
}

fn predicate(op: &Operation) -> Option<&'static str> {
    let number = op.attribute("predicate").and_then(Attribute::as_int)?;
    PREDICATES.get(usize::try_from(number).ok()?).copied()
}

fn print_compare(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.push(predicate(op).unwrap_or("eq"));
    printer.push(", ");
    printer.operands(&op.operands);
    printer.optional_attribute_dictionary(&op.attributes, &["predicate"]);
    printer.push(" : ");
    printer.types_of(&op.operands[..1]);
}

fn check_compare(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    let types = verifier.types(&op.operands);
    if types[0] != types[1] {
        return Err(Problem::Op("requires all operands to have the same type".into()));
    }
    if predicate(op).is_none() {
        return Err(Problem::Op("attribute 'predicate' failed to satisfy constraint: a comparison".into()));
    }
    Ok(())
}

/// Parses `%condition, %a, %b : type`.
fn parse_select(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::None)?;
    parser.optional_attribute_dictionary(state)?;
    let ty = parser.colon_type()?;
    let types = [Type::int(1), ty.clone(), ty.clone()];
    state.operands = parser.resolve_all(state, &operands, &types, at)?;
    state.types.push(ty);
    Ok(())
}

fn print_select(printer: &mut Printer<'_>, op: &Operation) {
    print_same_type(printer, op);
}

/// Parses `{...} value`; the result has the value's type.
fn parse_constant(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parser.optional_attribute_dictionary(state)?;
    let at = parser.current_offset();
    let value = parser.parse_attribute(None)?;
    let ty = match &value {
        Attribute::Integer { ty, .. } => ty.clone(),
        Attribute::Float { kind, .. } => Type::Float(*kind),
        Attribute::Dense(dense) => dense.ty.clone(),
        _ => return parser.error_in_op(state, at, "invalid kind of attribute specified"),
    };
    state.add_attribute("value", value);
    state.types.push(ty);
    Ok(())
}

fn print_constant(printer: &mut Printer<'_>, op: &Operation) {
    printer.optional_attribute_dictionary(&op.attributes, &["value"]);
    printer.push(" ");
    if let Some(value) = op.attribute("value") {
        printer.attribute(value);
    }
}

/// Parses `operands {...} : type`, where `type` is the type of all operands and of the result.
fn parse_same_type(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::None)?;
    parse_same_type_end(parser, state, &operands, at)
}

fn parse_same_type_end<'a>(
    parser: &mut Parser<'a>,
    state: &mut OpState,
    operands: &[crate::parser::Operand<'a>],
    at: u32,
) -> Parse {
    parser.optional_attribute_dictionary(state)?;
    let ty = parser.colon_type()?;
    let types = vec![ty.clone(); operands.len()];
    state.types.push(ty);
    state.operands = parser.resolve_all(state, operands, &types, at)?;
    Ok(())
}

fn print_same_type(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operands(&op.operands);
    print_same_type_hiding(printer, op, &[]);
}

fn print_same_type_hiding(printer: &mut Printer<'_>, op: &Operation, hidden: &[&str]) {
    printer.optional_attribute_dictionary(&op.attributes, hidden);
    printer.push(" : ");
    printer.types_of(&op.results);
}

const NO_FLAGS: &str = "fastmath<none>";

/// Parses `operands fastmath<...> {...} : type`.
fn parse_fastmath(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::None)?;
    let mut flags = Vec::new();
    if parser.optional_keyword("fastmath") {
        parser.literal(state, "<")?;
        loop {
            flags.push(parser.any_keyword(state)?.to_string_lossy());
            if !parser.optional_literal(",") {
                break;
            }
        }
        parser.literal(state, ">")?;
    }
    let body = if flags.is_empty() { NO_FLAGS.to_string() } else { format!("fastmath<{}>", flags.join(",")) };
    let symbol = crate::ir::DialectSymbol { dialect: "arith".into(), body };
    parse_same_type_end(parser, state, &operands, at)?;
    if !state.has_attribute("fastmath") {
        state.add_attribute("fastmath", Attribute::Dialect(symbol.into()));
    }
    Ok(())
}

fn print_fastmath(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    printer.operands(&op.operands);
    if let Some(Attribute::Dialect(symbol)) = op.attribute("fastmath")
        && symbol.body != NO_FLAGS
    {
        printer.push(" ");
        printer.push(&symbol.body);
    }
    print_same_type_hiding(printer, op, &["fastmath"]);
}

fn check_same_type(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    let result = verifier.types(&op.results);
    if verifier.types(&op.operands).iter().any(|ty| Some(ty) != result.first()) {
        return Err(Problem::Op("requires the same type for all operands and results".into()));
    }
    Ok(())
}

fn check_select(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    let result = verifier.types(&op.results);
    if verifier.types(&op.operands[1..]).iter().any(|ty| *ty != result[0]) {
        return Err(Problem::Op("requires the same type for both values and the result".into()));
    }
    Ok(())
}
