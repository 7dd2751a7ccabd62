//! `func`: functions, and the returns and calls of compiled modules.

use super::check::Problem;
use super::{Dialect, Row, op};
use crate::ir::{Attribute, NamedAttribute, Operation, Region, Type};
use crate::parser::{Argument, Delimiter, OpState, Parse, Parser};
use crate::printer::Printer;
use crate::verify::Verifier;

pub(super) const DIALECT: Dialect = Dialect { name: "func", rows: ROWS, isolated: false };

const ROWS: &[Row] = &[
    op("func").regions(1).unchecked().isolated().hooks(parse_function, print_function).check(check_function),
    op("return").operands("any* operands").hooks(parse_return, print_return).terminator(),
    op("call")
        .operands("any* operands")
        .results("any* results")
        .attributes("symbol callee")
        .hooks(parse_call, print_call),
];

/// Attributes that the custom form of a function shows outside of its attribute dictionary.
const SHOWN_ATTRIBUTES: [&str; 5] = ["sym_name", "function_type", "sym_visibility", "arg_attrs", "res_attrs"];

/// Parses `private @name(arguments) -> results attributes {...} {body}`.
fn parse_function(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    if let Some(visibility) = ["public", "private", "nested"].into_iter().find(|v| parser.optional_keyword(v))
    {
        state.add_attribute("sym_visibility", Attribute::string(visibility));
    }
    let name = parser.symbol_name(state)?;
    state.add_attribute("sym_name", Attribute::string(name));
    let mut arguments: Vec<Argument<'_>> = Vec::new();
    let mut argument_attributes: Vec<Attribute> = Vec::new();
    parser.literal(state, "(")?;
    if !parser.optional_literal(")") {
        loop {
            let at = parser.current_offset();
            let named = parser.at_operand();
            let name = if named { Some(parser.operand()?) } else { None };
            if arguments.last().is_some_and(|last| last.name.is_some() != named) {
                let message =
                    if named { "expected type instead of SSA identifier" } else { "expected SSA identifier" };
                return parser.error_in_op(state, at, message);
            }
            let ty = if named { parser.colon_type()? } else { parser.parse_type()? };
            argument_attributes.push(parse_dictionary(parser)?);
            let location = parser.trailing_location()?;
            arguments.push(Argument { name, ty, location });
            if !parser.optional_literal(",") {
                break;
            }
        }
        parser.literal(state, ")")?;
    }
    let (mut results, mut result_attributes) = (Vec::new(), Vec::new());
    if parser.optional_literal("->") {
        if parser.optional_literal("(") {
            while !parser.optional_literal(")") {
                results.push(parser.parse_type()?);
                result_attributes.push(parse_dictionary(parser)?);
                if !parser.optional_literal(",") {
                    parser.literal(state, ")")?;
                    break;
                }
            }
        } else {
            results.push(parser.parse_type()?);
            result_attributes.push(Attribute::Dictionary([].into()));
        }
    }
    let inputs = arguments.iter().map(|argument| argument.ty.clone()).collect();
    let attributes_at = parser.current_offset();
    let before = state.attributes.len();
    parser.optional_attributes_keyword(state)?;
    for inferred in ["sym_visibility", "sym_name", "function_type"] {
        if state.attributes[before..].iter().any(|(name, _)| *name == inferred) {
            let message = format!(
                "'{inferred}' is an inferred attribute and should not be specified in the explicit attribute \
                 dictionary"
            );
            return parser.error_in_op(state, attributes_at, message);
        }
    }
    state.add_attribute("function_type", Attribute::Type(Type::function(inputs, results)));
    for (name, list) in [("arg_attrs", argument_attributes), ("res_attrs", result_attributes)] {
        if list.iter().any(|a| !matches!(a, Attribute::Dictionary(entries) if entries.is_empty())) {
            state.add_attribute(name, Attribute::array(list));
        }
    }
    let body_at = parser.current_offset();
    let mut body = Region::default();
    if parser.at_brace() {
        body = parser.region(&arguments, false)?;
        if body.blocks.is_empty() {
            return parser.error_in_op(state, body_at, "expected non-empty function body");
        }
    }
    state.regions.push(body);
    Ok(())
}

/// Parses `{...}` as a dictionary attribute; an empty dictionary if absent.
fn parse_dictionary(parser: &mut Parser<'_>) -> Parse<Attribute> {
    if !parser.at_brace() {
        return Ok(Attribute::Dictionary([].into()));
    }
    parser.parse_attribute(None)
}

fn attributes_of(list: Option<&Attribute>, at: usize) -> &[NamedAttribute] {
    match list {
        Some(Attribute::Array(entries)) => match entries.get(at) {
            Some(Attribute::Dictionary(entries)) => entries,
            _ => &[],
        },
        _ => &[],
    }
}

fn print_function(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    if let Some(visibility) = op.attribute("sym_visibility").and_then(Attribute::as_text) {
        printer.push(&visibility.to_string_lossy());
        printer.push(" ");
    }
    printer.symbol_name(op.symbol_name().map_or(&[], |name| name.as_bytes()));
    let Some(Attribute::Type(Type::Function(ty))) = op.attribute("function_type") else { return };
    let body = op.regions.first().filter(|region| !region.blocks.is_empty());
    printer.push("(");
    for (at, input) in ty.inputs.iter().enumerate() {
        if at > 0 {
            printer.push(", ");
        }
        let attributes = attributes_of(op.attribute("arg_attrs"), at);
        match body.and_then(|region| region.blocks[0].arguments.get(at)) {
            Some(argument) => printer.region_argument(*argument, attributes),
            None => {
                printer.ty(input);
                printer.optional_attribute_dictionary(attributes, &[]);
            }
        }
    }
    printer.push(")");
    if !ty.results.is_empty() {
        printer.push(" -> ");
        let bare = attributes_of(op.attribute("res_attrs"), 0).is_empty();
        match ty.results.as_slice() {
            [only] if bare && !matches!(only, Type::Function(_)) => printer.ty(only),
            results => {
                printer.push("(");
                for (at, result) in results.iter().enumerate() {
                    if at > 0 {
                        printer.push(", ");
                    }
                    printer.ty(result);
                    printer.optional_attribute_dictionary(attributes_of(op.attribute("res_attrs"), at), &[]);
                }
                printer.push(")");
            }
        }
    }
    printer.optional_attributes_keyword(&op.attributes, &SHOWN_ATTRIBUTES);
    if let Some(body) = body {
        printer.push(" ");
        printer.region(op, body, false);
    }
}

fn check_function(verifier: &Verifier<'_>, op: &Operation) -> Result<(), Problem> {
    let Some(Attribute::Type(Type::Function(ty))) = op.attribute("function_type") else {
        return Err(Problem::Op("requires attribute 'function_type'".into()));
    };
    if op.symbol_name().is_none() {
        return Err(Problem::Op("requires attribute 'sym_name'".into()));
    }
    let visibility = op.attribute("sym_visibility").and_then(Attribute::as_text);
    if visibility.is_some_and(|v| !["public", "private", "nested"].iter().any(|known| *v == *known)) {
        return Err(Problem::Op(
            "visibility expected to be one of [\"public\", \"private\", \"nested\"]".into(),
        ));
    }
    let Some(block) = op.body() else {
        if visibility.is_none_or(|v| *v == "public") {
            return Err(Problem::Op("symbol declaration cannot have public visibility".into()));
        }
        return Ok(());
    };
    if block.arguments.len() != ty.inputs.len() {
        return Err(Problem::Op(format!(
            "entry block must have {} arguments to match function signature",
            ty.inputs.len()
        )));
    }
    for (at, (argument, input)) in verifier.types(&block.arguments).iter().zip(&ty.inputs).enumerate() {
        if argument != input {
            return Err(Problem::Op(format!(
                "type of entry block argument #{at}('{argument}') must match the type of the corresponding \
                 argument in function signature('{input}')"
            )));
        }
    }
    Ok(())
}

fn parse_return(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    parser.optional_attribute_dictionary(state)?;
    super::tfrt::parse_return(parser, state)
}

fn print_return(printer: &mut Printer<'_>, op: &Operation) {
    printer.optional_attribute_dictionary(&op.attributes, &[]);
    super::tfrt::print_return(printer, op);
}

/// Parses `@callee(operands) {...} : (types) -> types`.
fn parse_call(parser: &mut Parser<'_>, state: &mut OpState) -> Parse {
    super::tfrt::parse_symbol_attribute(parser, state, "callee")?;
    let at = parser.current_offset();
    let operands = parser.operand_list(Delimiter::Paren)?;
    parser.optional_attribute_dictionary(state)?;
    let (inputs, results) = parser.colon_function_type(state)?;
    state.types = results;
    state.operands = parser.resolve_all(state, &operands, &inputs, at)?;
    Ok(())
}

fn print_call(printer: &mut Printer<'_>, op: &Operation) {
    printer.push(" ");
    if let Some(callee) = op.attribute("callee") {
        printer.attribute(callee);
    }
    printer.push("(");
    printer.operands(&op.operands);
    printer.push(")");
    printer.optional_attribute_dictionary(&op.attributes, &["callee"]);
    printer.push(" : ");
    let types = |values: &[crate::ir::ValueId]| values.iter().map(|v| printer.type_of(*v).clone()).collect();
    let ty = Type::function(types(&op.operands), types(&op.results));
    printer.ty(&ty);
}
