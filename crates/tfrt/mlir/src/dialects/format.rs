//! Declarative custom forms: one description serves for both parsing and printing.
//!
//! The notation is a subset of MLIR's assembly format: `$name` is an operand or attribute, `type($name)` its types,
//! `operands` all operands, `attr-dict` the attributes that the form does not mention, a text in backquotes is a
//! literal, and `( ... $name^ ... )?` is a group that is present if the operands `$name` are.

use super::{AttributeDef, AttributeKind, OpDef, Slot};
use crate::ir::{Attribute, Operation, Type, ValueId};
use crate::parser::{Delimiter, OpState, Operand, Parse, Parser};
use crate::printer::Printer;

/// The custom form of an operation, declared in the notation of MLIR's op definitions.
pub(crate) struct Format {
    elements: Vec<Element>,
}

enum Element {
    Literal(String),
    Operands,
    Operand(usize),
    Attribute(usize),
    AttributeDictionary,
    OperandTypes,
    OperandType(usize),
    ResultTypes,
    ResultType(usize),
    Optional { anchor: usize, elements: Vec<Element> },
}

impl Format {
    /// Parses a description.
    ///
    /// # Panics
    /// If the description is malformed: descriptions are constants of this crate, and a test builds them all.
    pub(crate) fn new(
        text: &str,
        operands: &[Slot],
        results: &[Slot],
        attributes: &[AttributeDef],
    ) -> Format {
        let words: Vec<&str> = text.split_whitespace().collect();
        let name = |word: &str| word.trim_start_matches('$').to_string();
        let mut stack: Vec<(Vec<Element>, Option<usize>)> = vec![(Vec::new(), None)];
        for word in words {
            let element = match word {
                "(" => {
                    stack.push((Vec::new(), None));
                    continue;
                }
                ")?" => {
                    let (elements, anchor) = stack.pop().unwrap_or_default();
                    Element::Optional { anchor: anchor.unwrap_or(0), elements }
                }
                "operands" => Element::Operands,
                "attr-dict" => Element::AttributeDictionary,
                "type(operands)" => Element::OperandTypes,
                "type(results)" => Element::ResultTypes,
                literal if literal.starts_with('`') => {
                    Element::Literal(literal.trim_matches('`').to_string())
                }
                types if types.starts_with("type(") => {
                    let wanted = name(&types[5..types.len() - 1]);
                    match operands.iter().position(|s| s.name == wanted) {
                        Some(at) => Element::OperandType(at),
                        None => Element::ResultType(
                            results.iter().position(|s| s.name == wanted).expect("a name in the row"),
                        ),
                    }
                }
                variable => {
                    let anchored = variable.ends_with('^');
                    let wanted = name(variable.trim_end_matches('^'));
                    match operands.iter().position(|s| s.name == wanted) {
                        Some(at) => {
                            if let (true, Some(group)) = (anchored, stack.last_mut()) {
                                group.1 = Some(at);
                            }
                            Element::Operand(at)
                        }
                        None => Element::Attribute(
                            attributes.iter().position(|a| a.name == wanted).expect("a name in the row"),
                        ),
                    }
                }
            };
            if let Some(group) = stack.last_mut() {
                group.0.push(element);
            }
        }
        Format { elements: stack.pop().unwrap_or_default().0 }
    }

    /// Whether the form shows the attribute with this position in the operation's definition.
    fn mentions_attribute(&self, attribute: usize) -> bool {
        self.elements.iter().any(|e| matches!(e, Element::Attribute(at) if *at == attribute))
    }
}

/// The operands and types of an operation that have been parsed so far.
#[derive(Default)]
struct Parsed<'a> {
    all: Option<(Vec<Operand<'a>>, u32)>,
    operands: Vec<(Vec<Operand<'a>>, u32)>,
    operand_types: Vec<Option<Vec<Type>>>,
    all_types: Option<Vec<Type>>,
    result_types: Vec<Option<Vec<Type>>>,
    all_result_types: Option<Vec<Type>>,
}

/// Parses the part after the name of an operation whose custom form is `format`.
pub(crate) fn parse_format<'a>(
    parser: &mut Parser<'a>,
    state: &mut OpState,
    definition: &OpDef,
    format: &Format,
) -> Parse {
    let mut parsed = Parsed {
        operands: vec![(Vec::new(), parser.current_offset()); definition.operands.len()],
        operand_types: vec![None; definition.operands.len()],
        result_types: vec![None; definition.results.len()],
        ..Parsed::default()
    };
    parse_elements(parser, state, definition, &format.elements, &mut parsed)?;
    match parsed.all_result_types {
        Some(types) => state.types = types,
        None => {
            for (slot, types) in definition.results.iter().zip(parsed.result_types) {
                match types {
                    Some(types) => state.types.extend(types),
                    None => state.types.extend(parser.slot_type(slot).filter(|_| !slot.variadic)),
                }
            }
        }
    }
    if let Some((operands, at)) = parsed.all {
        let fixed = definition.operands.iter().filter_map(|slot| parser.slot_type(slot)).collect();
        let types = parsed.all_types.unwrap_or(fixed);
        state.operands = parser.resolve_all(state, &operands, &types, at)?;
        return Ok(());
    }
    for ((slot, (operands, at)), types) in
        definition.operands.iter().zip(&parsed.operands).zip(parsed.operand_types)
    {
        let types = match (types, parser.slot_type(slot)) {
            (Some(types), _) => types,
            (None, Some(ty)) => vec![ty; operands.len()],
            (None, None) => Vec::new(),
        };
        let values = parser.resolve_all(state, operands, &types, *at)?;
        state.operands.extend(values);
    }
    Ok(())
}

fn parse_elements<'a>(
    parser: &mut Parser<'a>,
    state: &mut OpState,
    definition: &OpDef,
    elements: &[Element],
    parsed: &mut Parsed<'a>,
) -> Parse {
    for element in elements {
        match element {
            Element::Literal(literal) => parser.literal(state, literal)?,
            Element::Operands => {
                let at = parser.current_offset();
                parsed.all = Some((parser.operand_list(Delimiter::None)?, at));
            }
            Element::Operand(index) => {
                let at = parser.current_offset();
                let operands = if definition.operands[*index].variadic {
                    parser.operand_list(Delimiter::None)?
                } else {
                    vec![parser.operand()?]
                };
                parsed.operands[*index] = (operands, at);
            }
            Element::Attribute(index) => {
                let attribute = &definition.attributes[*index];
                let value = parse_attribute(parser, state, attribute)?;
                state.add_attribute(attribute.name, value);
            }
            Element::AttributeDictionary => parser.optional_attribute_dictionary(state)?,
            Element::OperandTypes => parsed.all_types = Some(parse_types(parser)?),
            Element::ResultTypes => parsed.all_result_types = Some(parse_types(parser)?),
            Element::OperandType(index) => {
                let types = parse_slot_types(parser, &definition.operands[*index])?;
                parsed.operand_types[*index] = Some(types);
            }
            Element::ResultType(index) => {
                let types = parse_slot_types(parser, &definition.results[*index])?;
                parsed.result_types[*index] = Some(types);
            }
            Element::Optional { elements, .. } => {
                if let Some(Element::Literal(first)) = elements.first()
                    && parser.optional_literal(first)
                {
                    parse_elements(parser, state, definition, &elements[1..], parsed)?;
                }
            }
        }
    }
    Ok(())
}

/// Parses types separated by commas; none if the next token closes a bracket or ends the form.
fn parse_types(parser: &mut Parser<'_>) -> Parse<Vec<Type>> {
    if parser.at_type() { parser.type_list() } else { Ok(Vec::new()) }
}

fn parse_slot_types(parser: &mut Parser<'_>, slot: &Slot) -> Parse<Vec<Type>> {
    if slot.variadic { parse_types(parser) } else { Ok(vec![parser.parse_type()?]) }
}

/// Parses the value of a declared attribute, whose type may be left out if the declaration fixes it.
fn parse_attribute(parser: &mut Parser<'_>, state: &OpState, attribute: &AttributeDef) -> Parse<Attribute> {
    let at = parser.current_offset();
    let ty = match &attribute.kind {
        AttributeKind::Number(ty) => Some(ty.clone()),
        AttributeKind::String => Some(Type::None),
        _ => None,
    };
    let value = parser.parse_attribute(ty.as_ref())?;
    let fits = match (&attribute.kind, &value) {
        (AttributeKind::Number(Type::Float(_)), value) => matches!(value, Attribute::Float { .. }),
        (AttributeKind::Number(_), value) => matches!(value, Attribute::Integer { .. }),
        (AttributeKind::String, value) => matches!(value, Attribute::String(..)),
        (AttributeKind::FlatSymbol, value) => value.as_flat_symbol().is_some(),
        (AttributeKind::Array | AttributeKind::I64Array | AttributeKind::StringArray, value) => {
            matches!(value, Attribute::Array(_))
        }
        (AttributeKind::Elements, value) => matches!(value, Attribute::Dense(_)),
        (AttributeKind::Any, _) => true,
    };
    if fits { Ok(value) } else { parser.error_in_op(state, at, "invalid kind of attribute specified") }
}

/// Prints the part after the name of an operation whose custom form is `format`.
pub(crate) fn print_format(printer: &mut Printer<'_>, op: &Operation, definition: &OpDef, format: &Format) {
    let mut spacing = Spacing { space: true, punctuation: false };
    print_elements(printer, op, definition, format, &format.elements, &mut spacing);
}

/// Tracks whether a space is needed before the next element of a printed custom form.
struct Spacing {
    space: bool,
    punctuation: bool,
}

impl Spacing {
    fn space_before_word(&mut self, printer: &mut Printer<'_>) {
        if self.space || !self.punctuation {
            printer.push(" ");
        }
        self.space = true;
        self.punctuation = false;
    }

    fn print_literal(&mut self, printer: &mut Printer<'_>, literal: &str) {
        let due = if literal.len() != 1 && literal != "->" {
            true
        } else if self.punctuation {
            !">)}],".contains(literal.chars().next().unwrap_or(' '))
        } else {
            !"<>(){}[],".contains(literal.chars().next().unwrap_or(' '))
        };
        if self.space && due {
            printer.push(" ");
        }
        printer.push(literal);
        self.space = literal.len() != 1 || !"<({[".contains(literal);
        self.punctuation = !literal.starts_with(|c: char| c == '_' || c.is_ascii_alphabetic());
    }
}

fn slot_range(values: &[ValueId], slots: &[Slot], index: usize) -> std::ops::Range<usize> {
    let variadic = slots.iter().position(|s| s.variadic);
    let extra = (values.len() + 1).saturating_sub(slots.len());
    let start = match variadic {
        Some(at) if at < index => index - 1 + extra,
        _ => index,
    };
    let len = if variadic == Some(index) { extra } else { 1 };
    start.min(values.len())..(start + len).min(values.len())
}

fn print_elements(
    printer: &mut Printer<'_>,
    op: &Operation,
    definition: &OpDef,
    format: &Format,
    elements: &[Element],
    spacing: &mut Spacing,
) {
    for element in elements {
        match element {
            Element::Literal(literal) => spacing.print_literal(printer, literal),
            Element::Operands => {
                spacing.space_before_word(printer);
                printer.operands(&op.operands);
            }
            Element::Operand(index) => {
                spacing.space_before_word(printer);
                printer.operands(&op.operands[slot_range(&op.operands, &definition.operands, *index)]);
            }
            Element::Attribute(index) => {
                spacing.space_before_word(printer);
                let attribute = &definition.attributes[*index];
                if let Some(value) = op.attribute(attribute.name) {
                    if matches!(attribute.kind, AttributeKind::Number(_)) {
                        printer.attribute_without_type(value);
                    } else {
                        printer.attribute(value);
                    }
                }
            }
            Element::AttributeDictionary => {
                let hidden = (0..definition.attributes.len()).filter(|&at| format.mentions_attribute(at));
                let hidden: Vec<&str> = hidden.map(|at| definition.attributes[at].name).collect();
                printer.optional_attribute_dictionary(&op.attributes, &hidden);
                spacing.space = true;
                spacing.punctuation = false;
            }
            Element::OperandTypes => {
                spacing.space_before_word(printer);
                printer.types_of(&op.operands);
            }
            Element::ResultTypes => {
                spacing.space_before_word(printer);
                printer.types_of(&op.results);
            }
            Element::OperandType(index) => {
                spacing.space_before_word(printer);
                printer.types_of(&op.operands[slot_range(&op.operands, &definition.operands, *index)]);
            }
            Element::ResultType(index) => {
                spacing.space_before_word(printer);
                printer.types_of(&op.results[slot_range(&op.results, &definition.results, *index)]);
            }
            Element::Optional { anchor, elements } => {
                if !slot_range(&op.operands, &definition.operands, *anchor).is_empty() {
                    print_elements(printer, op, definition, format, elements, spacing);
                }
            }
        }
    }
}
