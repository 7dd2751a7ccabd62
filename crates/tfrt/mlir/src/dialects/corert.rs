//! `corert` and `corert_sync`: the core runtime's operations. Source: TFRT's `core_runtime` definitions.

use super::check;
use super::{Dialect, Row, op};
use crate::ir::{Attribute, Operation, Text, Type};
use crate::parser::{Delimiter, OpState, Parse, Parser};
use crate::printer::Printer;

const HANDLE: &str = "!corert.tensorhandle";
const DTYPES: &[&str] = &[
    "ui8",
    "ui16",
    "ui32",
    "ui64",
    "i1",
    "i8",
    "i16",
    "i32",
    "i64",
    "bf16",
    "f16",
    "f32",
    "f64",
    "complex64",
    "complex128",
];

pub(super) const DIALECT: Dialect = Dialect { name: "corert", rows: ROWS, isolated: true };

const ROWS: &[Row] = &[
    op("create_dense_tensor")
        .suffixes(&[DTYPES])
        .results(HANDLE)
        .attributes("i64s shape, array value")
        .format("attr-dict"),
    op("const_dense_tensor").results(HANDLE).attributes("elements value").format("$value attr-dict"),
    op("const_string_tensor").results(HANDLE).attributes("i64s shape, strings value").format("attr-dict"),
    op("executeop")
        .operands("!corert.ophandler op_handler, !corert.tensorhandle* arguments")
        .results("!corert.tensorhandle* results")
        .attributes("array op_attrs, array op_func_attrs, string op_name")
        .hooks(parse_execute, print_execute)
        .check(check::check_execute),
    op("executeop.seq")
        .operands("!corert.ophandler op_handler, !tfrt.chain in_op_chain, !corert.tensorhandle* arguments")
        .results("!tfrt.chain out_op_chain, !corert.tensorhandle* results")
        .attributes("array op_attrs, array op_func_attrs, string op_name")
        .hooks(parse_execute_seq, print_execute_seq)
        .check(check::check_execute),
    op("get_op_handler")
        .operands("!tfrt.chain in_op_chain")
        .results("!corert.ophandler op_handler")
        .attributes("string op_handler_name")
        .format("$in_op_chain $op_handler_name attr-dict"),
    op("register_op_handler")
        .operands("!corert.ophandler op_handler")
        .results("!tfrt.chain out_op_chain")
        .attributes("string op_handler_name")
        .format("$op_handler $op_handler_name attr-dict"),
    op("cond")
        .operands("!corert.tensorhandle cond, !tfrt.chain in_op_chain, any* fn_operands")
        .results("!tfrt.chain out_op_chain, any* fn_outputs")
        .attributes("symbol a_true_fn, symbol b_false_fn")
        .format(
            "$cond $a_true_fn $b_false_fn `(` $in_op_chain ( `,` $fn_operands^ )? `)` attr-dict \
            `:` `(` type($fn_operands) `)` `->` `(` type($fn_outputs) `)`",
        )
        .check(check::check_corert_cond),
    op("while")
        .operands("!tfrt.chain in_op_chain, any* fn_operands")
        .results("!tfrt.chain out_op_chain, any* fn_outputs")
        .attributes("symbol a_cond_fn, symbol b_body_fn")
        .format(
            "$a_cond_fn $b_body_fn `(` $in_op_chain ( `,` $fn_operands^ )? `)` attr-dict \
            `:` `(` type($fn_operands) `)` `->` `(` type($fn_outputs) `)`",
        )
        .check(check::check_corert_while),
    op("get_dst_tensor_type")
        .operands("!corert.tensorhandle, !tfrt.device")
        .results("!tfrt.tensor_type")
        .format("operands attr-dict"),
    op("transfer")
        .operands("!corert.tensorhandle, !tfrt.device, !tfrt.tensor_type")
        .results(HANDLE)
        .format("operands attr-dict"),
    op("transfer_inferred_tensortype")
        .operands("!corert.tensorhandle, !tfrt.device")
        .results(HANDLE)
        .format("operands attr-dict"),
    op("tensorhandle_to_int32").operands(HANDLE).results("i32").format("operands attr-dict"),
];

pub(super) const SYNC_DIALECT: Dialect = Dialect { name: "corert_sync", rows: SYNC_ROWS, isolated: true };

const SYNC_ROWS: &[Row] = &[
    op("create_dense_tensor")
        .suffixes(&[DTYPES])
        .results(HANDLE)
        .attributes("i64s shape, array value")
        .format("attr-dict"),
    op("const_dense_tensor").results(HANDLE).attributes("elements value").format("$value attr-dict"),
    op("executeop")
        .operands("!corert.ophandler op_handler, !corert.tensorhandle* arguments")
        .results("!corert.tensorhandle* results")
        .attributes("array op_attrs, string op_name")
        .hooks(parse_execute_sync, print_execute)
        .check(check::check_execute),
    op("get_op_handler")
        .results("!corert.ophandler op_handler")
        .attributes("string device_name")
        .format("$device_name attr-dict"),
];

/// Parses `shape<2x?x3>`, `shape<*>` or `shape<>`.
pub(super) fn parse_shape(spec: &str) -> Option<Attribute> {
    let mut rest = spec.strip_prefix("shape<")?;
    if rest.starts_with("*>") {
        return Some(Attribute::Shape(None));
    }
    let mut dims: Vec<i64> = Vec::new();
    while !rest.starts_with('>') {
        if let Some(after) = rest.strip_prefix('?') {
            dims.push(-1);
            rest = after;
        } else {
            let sign = usize::from(rest.starts_with('-'));
            let end = sign + rest[sign..].bytes().take_while(u8::is_ascii_digit).count();
            dims.push(rest.get(..end)?.parse().ok()?);
            rest = &rest[end..];
        }
        rest = rest.strip_prefix('x').unwrap_or(rest);
        if rest.is_empty() {
            return None;
        }
    }
    Some(Attribute::Shape(Some(dims.into())))
}

fn parse_execute(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_execute_with(parser, state, false, true)
}

fn parse_execute_seq(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_execute_with(parser, state, true, true)
}

fn parse_execute_sync(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parse_execute_with(parser, state, false, false)
}

/// Parses `(%handler) "op"(operands) {attributes} {function attributes} : number-of-results`.
fn parse_execute_with(parser: &mut Parser<'_>, state: &mut OpState, chain: bool, functions: bool) -> Parse {
    let chains = usize::from(chain);
    let at = parser.current_offset();
    let handler = parser.operand_list(Delimiter::Paren)?;
    if handler.len() != chains + 1 {
        return parser.error_in_op(state, at, format_args!("expected {} operands", chains + 1));
    }
    let at = parser.current_offset();
    let name = parser.parse_attribute(None)?;
    if name.as_text().is_none() {
        return parser.error_in_op(state, at, "invalid kind of attribute specified");
    }
    state.add_attribute("op_name", name);
    let operands = parser.operand_list(Delimiter::Paren)?;
    let attributes = parse_key_values(parser)?;
    let function_attributes = parse_key_values(parser)?;
    let mut results = 0;
    if parser.optional_literal(":") {
        let at = parser.current_offset();
        results = match parser.parse_attribute(None)?.as_int() {
            Some(count) if count <= 0 => 0,
            Some(count) if parser.add_implied_results(count) => count as usize,
            Some(_) => return parser.error_in_op(state, at, "has too many results"),
            None => return parser.error_in_op(state, at, "invalid kind of attribute specified"),
        };
    }
    let chain_type = Type::dialect("tfrt", "chain");
    let tensor = Type::dialect("corert", "tensorhandle");
    let mut types = vec![Type::dialect("corert", "ophandler")];
    types.extend(std::iter::repeat_n(chain_type.clone(), chains));
    state.operands = parser.resolve_all(state, &handler, &types, state.name_at)?;
    for operand in operands {
        let value = parser.resolve(operand, &tensor)?;
        state.operands.push(value);
    }
    state.types.extend(std::iter::repeat_n(chain_type, chains));
    state.types.extend(std::iter::repeat_n(tensor, results));
    state.add_attribute("op_attrs", attributes);
    if functions {
        state.add_attribute("op_func_attrs", function_attributes);
    }
    Ok(())
}

/// Parses `{key = value, ...}` as an array of pairs, in source order; an empty array if absent.
fn parse_key_values(parser: &mut Parser<'_>) -> Parse<Attribute> {
    let entries = if parser.at_brace() { parser.attribute_dictionary()? } else { Vec::new() };
    let pair = |(key, value): (Text, Attribute)| Attribute::array(vec![Attribute::string(key), value]);
    Ok(Attribute::array(entries.into_iter().map(pair).collect()))
}

fn print_execute(printer: &mut Printer<'_>, op: &Operation) {
    print_execute_with(printer, op, 0);
}

fn print_execute_seq(printer: &mut Printer<'_>, op: &Operation) {
    print_execute_with(printer, op, 1);
}

fn print_execute_with(printer: &mut Printer<'_>, op: &Operation, chains: usize) {
    printer.push("(");
    printer.operands(&op.operands[..=chains]);
    printer.push(") ");
    if let Some(name) = op.attribute("op_name") {
        printer.attribute(name);
    }
    printer.push("(");
    printer.operands(&op.operands[chains + 1..]);
    printer.push(")");
    for list in ["op_attrs", "op_func_attrs"] {
        print_key_values(printer, op.attribute(list));
    }
    if op.results.len() > chains {
        printer.push(&format!(" : {}", op.results.len() - chains));
    }
}

fn print_key_values(printer: &mut Printer<'_>, list: Option<&Attribute>) {
    let Some(Attribute::Array(pairs)) = list.filter(|l| !matches!(l, Attribute::Array(p) if p.is_empty()))
    else {
        return;
    };
    printer.push(" {");
    for (at, pair) in pairs.iter().enumerate() {
        if at > 0 {
            printer.push(", ");
        }
        if let Attribute::Array(pair) = pair
            && let [Attribute::String(key, _), value] = &**pair
        {
            printer.keyword_or_string(key);
            printer.push(" = ");
            printer.attribute(value);
        }
    }
    printer.push("}");
}
