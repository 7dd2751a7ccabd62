//! The reader of listings: the text that a graph's [`Display`](std::fmt::Display) writes.
//!
//! ```text
//! graph      = "graph" [" " name] parameters " {" line* "}"
//! line       = constant | scalar | node | return | jump | branch | "^" number parameters ":"
//! parameters = "(" [value [" state " number] {", " …}] ")"
//! value      = "%" name ": " type
//! type       = "int" | "float" | "bool" | dtype "[" sizes "]" [" in dim order [" dims "]"] [" at most"]
//! constant   = value " = constant" {" " number} [origins]
//! scalar     = value " = " number [origins]
//! node       = [value {", " value} " = "] operator "(" [operand {", " operand}] ")" [" {" attributes "}"] effect* [origins]
//! operand    = "%" name | "none"
//! attributes = name ": " (number | "None" | string | "[" numbers "]") {", " …}
//! effect     = " Random" | " External" | " Read(Memory(" number "))" | " Write(Memory(" number "))"
//! return     = "return" [" %" name [" state " number] {", " …}]
//! jump       = "jump " target
//! branch     = "branch %" name ", " target ", " target
//! target     = "^" number "(" ["%" name {", " …}] ")"
//! origins    = "  // " place {", " place}
//! place      = chain ":" instruction ["." node] | "node " number
//! ```
//!
//! A constant repeats its numbers to its size; without numbers it is zero. Values may have any names, and are numbered
//! in the order of the text. A node reads values of the lines before it, and a terminator those of any line. The first
//! `return` says what the results are.
//!
//! The arguments of a call that are not inputs are given by their schema names. One that is omitted is the next input,
//! if that is a scalar; otherwise it has the schema's default, or is absent. The inputs are assigned in the order of the
//! schema. `none` is an absent tensor; optional tensors are also absent where the inputs do not suffice.
//!
//! What a listing does not tell, and so is not read back:
//! - nodes of other kinds than calls, which have no kernel;
//! - the elements of a constant, except of a single `float32`;
//! - which of several optional tensors or omitted scalars is absent: the last are;
//! - whether a `Scalar` without a fraction is an integer or floating-point: it is an integer;
//! - attributes that the listing cuts short, names of graphs that contain `(`, the text that describes origins, and
//!   values computed in a block that is listed after a node that reads them.

mod call;
mod cursor;

use crate::{BlockId, Constant, Effect, Graph, Kind, Live, Memory, Terminator, Type, ValueId};
use call::Input;
use cursor::{Cursor, Result, Typed};
use pteron_operator::KernelRegistry;
use pteron_tensor::{Scalar, Tensor, TensorMeta};
use pteron_trace::Place;
use std::collections::HashMap;

/// The maximum size of all constants of a listing together, in bytes.
pub const MAX_CONSTANTS: usize = 1 << 26;

/// The error of parsing a text that is not a listing, with the line at which parsing fails.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// What was expected in this line, and what was found.
    pub problem: String,
}

impl Graph {
    /// The graph of a listing, whose calls get their kernels from `kernels`: see [`parse`](crate::parse). Its
    /// invariants are not checked: see [`Self::verify`].
    ///
    /// # Errors
    /// The first line that is not part of a listing.
    pub fn parse(text: &str, kernels: &KernelRegistry) -> std::result::Result<Self, ParseError> {
        let mut parser = Parser {
            kernels,
            graph: Graph::new(),
            values: HashMap::new(),
            blocks: HashMap::new(),
            ends: Vec::new(),
            next: Next::Header,
            constants: 0,
        };
        let mut last = 1;
        for (at, line) in text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
            last = at + 1;
            parser.parse_line(last, line.trim()).map_err(|problem| ParseError { line: last, problem })?;
        }
        match parser.next {
            Next::End => parser.add_terminators(),
            _ => Err(ParseError { line: last, problem: "expected `}`, found the end of the text".into() }),
        }
    }
}

/// What the next line may be.
enum Next {
    Header,
    /// A line of a block: a constant, a scalar, a node or a terminator.
    Node,
    /// A block, or the end of the graph.
    Block,
    End,
}

struct Parser<'t> {
    kernels: &'t KernelRegistry,
    graph: Graph,
    values: HashMap<&'t str, ValueId>,
    blocks: HashMap<&'t str, BlockId>,
    /// The terminators and their lines. They are added last, because they refer to blocks of later lines.
    ends: Vec<(usize, BlockId, End<'t>)>,
    next: Next,
    /// The total size of the constants so far, in bytes.
    constants: usize,
}

enum End<'t> {
    Return(Vec<(&'t str, Live)>),
    Jump(Target<'t>),
    Branch(&'t str, Target<'t>, Target<'t>),
}

struct Target<'t> {
    block: &'t str,
    values: Vec<&'t str>,
}

impl<'t> Parser<'t> {
    fn parse_line(&mut self, line: usize, text: &'t str) -> Result {
        let mut cursor = Cursor::new(text);
        match self.next {
            Next::Header => self.parse_header(&mut cursor),
            Next::Node => match parse_terminator(&mut cursor)? {
                Some(end) => {
                    self.ends.push((line, self.graph.cursor(), end));
                    self.next = Next::Block;
                    cursor.expect_end()
                }
                None => self.parse_definition(&mut cursor),
            },
            Next::Block if cursor.eat("}") => {
                self.next = Next::End;
                cursor.expect_end()
            }
            Next::Block => self.parse_block(&mut cursor),
            Next::End => Err(format!("expected the end of the text, found `{text}`")),
        }
    }

    fn parse_header(&mut self, cursor: &mut Cursor<'t>) -> Result {
        cursor.expect("graph")?;
        if cursor.eat(" ") {
            let name = cursor.take_until_any(&['(']);
            self.graph.set_name(name);
        }
        for (at, parameter) in cursor.list("(", ")", parse_parameter)?.into_iter().enumerate() {
            let (Typed { name, ty, meta }, state) = parameter;
            let value = match (ty, state) {
                (Type::Tensor, None) => self.graph.input(meta),
                (Type::Scalar, None) => self.graph.scalar_input(meta.dtype()),
                (Type::Scalar, Some(_)) => {
                    return Err(format!("expected a tensor, found the scalar %{name}"));
                }
                (Type::Tensor, Some(state)) => {
                    let (value, number) = self.graph.state(meta);
                    if state != number {
                        return Err(format!("expected state {number} for input {at}, found state {state}"));
                    }
                    value
                }
            };
            self.define(name, value)?;
        }
        self.next = Next::Node;
        cursor.expect(" {")?;
        cursor.expect_end()
    }

    fn parse_block(&mut self, cursor: &mut Cursor<'t>) -> Result {
        let number = parse_block_number(cursor)?;
        let block = self.graph.add_block();
        if self.blocks.insert(number, block).is_some() {
            return Err(format!("^{number} is defined twice"));
        }
        for Typed { name, ty, meta } in cursor.list("(", ")", Cursor::typed_name)? {
            let value = self.graph.parameter(block, ty, meta);
            self.define(name, value)?;
        }
        self.graph.set_cursor(block);
        self.next = Next::Node;
        cursor.expect(":")?;
        cursor.expect_end()
    }

    /// Parses a line that defines a constant, a scalar or the results of a node.
    fn parse_definition(&mut self, cursor: &mut Cursor<'t>) -> Result {
        let results = match cursor.starts_with("%") {
            true => cursor.list("", " = ", Cursor::typed_name)?,
            false => Vec::new(),
        };
        let word = cursor.take_until_any(&[' ', '(']);
        if cursor.starts_with("(") {
            return self.parse_node(results, word, cursor);
        }
        let Ok([Typed { name, ty, meta }]) = <[Typed<'t>; 1]>::try_from(results) else {
            return Err(format!("expected a constant's name and type or a call, found `{word}`"));
        };
        let value = match ty {
            Type::Tensor if word == "constant" => self.parse_constant(meta, cursor)?,
            Type::Tensor => return Err(format!("expected a call or `constant`, found `{word}`")),
            Type::Scalar => {
                let scalar = cursor::scalar(word)?;
                if scalar.dtype() != meta.dtype()
                    && !matches!((scalar, meta.dtype().is_floating()), (Scalar::Int(_), true))
                {
                    return Err(format!("expected the type {}, found `{word}`", meta.dtype()));
                }
                self.graph.scalar(if meta.dtype().is_floating() {
                    Scalar::Double(scalar.to_f64())
                } else {
                    scalar
                })
            }
        };
        if let Some(&place) = parse_origins(cursor)?.first() {
            self.graph.set_value_origin(value, place);
        }
        self.define(name, value)
    }

    fn parse_constant(&mut self, meta: TensorMeta, cursor: &mut Cursor<'t>) -> Result<ValueId> {
        let left = MAX_CONSTANTS - self.constants;
        if meta.nbytes() > left {
            return Err(format!(
                "a constant of {} bytes, where {left} of {MAX_CONSTANTS} are left",
                meta.nbytes()
            ));
        }
        self.constants += meta.nbytes();
        let mut numbers = Vec::new();
        while !cursor.starts_with("  ") && cursor.eat(" ") {
            let number = cursor::scalar(cursor.take_until_any(&[' ']))?.to_le_bytes_as(meta.dtype());
            let mut number = number.ok_or_else(|| format!("elements of {} cannot be given", meta.dtype()))?;
            if cfg!(target_endian = "big") {
                number.reverse();
            }
            numbers.extend(number);
        }
        let tensor = match numbers.is_empty() {
            true => Tensor::zeros(meta.clone()),
            false => {
                let bytes: Vec<u8> = numbers.iter().copied().cycle().take(meta.nbytes()).collect();
                Tensor::from_bytes(meta.clone(), &bytes)
            }
        };
        Ok(self.graph.constant(meta, Constant::from(tensor.map_err(|e| e.to_string())?)))
    }

    fn parse_node(&mut self, results: Vec<Typed<'t>>, operator: &str, cursor: &mut Cursor<'t>) -> Result {
        let kernel = self.kernels.get(operator).ok_or_else(|| format!("`{operator}` has no kernel"))?;
        let inputs = cursor.list("(", ")", Cursor::operand)?.into_iter().map(|name| {
            let Some(name) = name else { return Ok(Input::None) };
            let value = self.value_named(name)?;
            Ok(Input::Value(value, self.graph.value(value).ty()))
        });
        let inputs = inputs.collect::<Result<Vec<_>>>()?;
        let (call, operands) = call::build_call(kernel, &inputs, cursor, results.len())?;
        let own = call.effects().to_vec();
        let types = results.iter().map(|result| (result.ty, result.meta.clone()));
        let node = self.graph.append_typed(call, &operands, types);
        while let Some(effect) = parse_effect(cursor)? {
            if let Effect::Read(Memory(number)) | Effect::Write(Memory(number)) = effect {
                let count = number.checked_add(1).ok_or("too many memories")?;
                self.graph.memories = self.graph.memories.max(count);
            }
            if !own.contains(&effect) {
                self.graph.add_effect(node, effect);
            }
        }
        let outputs = self.graph.node(node).outputs().to_vec();
        let places = parse_origins(cursor)?;
        if let Some(&last) = places.last() {
            self.graph.set_origins(node, &places);
            outputs.iter().for_each(|&value| self.graph.set_value_origin(value, last));
        }
        results.iter().zip(outputs).try_for_each(|(result, value)| self.define(result.name, value))
    }

    fn define(&mut self, name: &'t str, value: ValueId) -> Result {
        match self.values.insert(name, value) {
            None => Ok(()),
            Some(_) => Err(format!("%{name} is defined twice")),
        }
    }

    fn value_named(&self, name: &str) -> Result<ValueId> {
        self.values.get(name).copied().ok_or_else(|| format!("%{name} is not defined"))
    }

    /// Adds the terminators, and returns the complete graph.
    fn add_terminators(mut self) -> std::result::Result<Graph, ParseError> {
        let mut results = None;
        for (line, block, end) in std::mem::take(&mut self.ends) {
            let end =
                self.build_terminator(end, &mut results).map_err(|problem| ParseError { line, problem })?;
            self.graph.set_terminator(block, end);
        }
        self.graph.set_results(results.unwrap_or_default());
        Ok(self.graph)
    }

    fn build_terminator(&self, end: End<'t>, results: &mut Option<Vec<Live>>) -> Result<Terminator> {
        let block = |number: &str| {
            self.blocks.get(number).copied().ok_or_else(|| format!("^{number} is not defined"))
        };
        let values = |names: Vec<&str>| {
            names.into_iter().map(|name| self.value_named(name)).collect::<Result<Vec<_>>>()
        };
        Ok(match end {
            End::Return(lives_by_name) => {
                let (names, lives): (Vec<_>, Vec<_>) = lives_by_name.into_iter().unzip();
                if *results.get_or_insert_with(|| lives.clone()) != lives {
                    return Err("expected the results of the first `return`, found others".into());
                }
                Terminator::returns(&values(names)?)
            }
            End::Jump(to) => Terminator::jump(block(to.block)?, &values(to.values)?),
            End::Branch(condition, then, otherwise) => Terminator::branch(
                self.value_named(condition)?,
                (block(then.block)?, &values(then.values)?),
                (block(otherwise.block)?, &values(otherwise.values)?),
            ),
        })
    }
}

fn parse_parameter<'t>(cursor: &mut Cursor<'t>) -> Result<(Typed<'t>, Option<usize>)> {
    let typed = cursor.typed_name()?;
    let state = if cursor.eat(" state ") { Some(cursor.number()?) } else { None };
    Ok((typed, state))
}

/// Reads `^number` and returns the digits.
fn parse_block_number<'t>(cursor: &mut Cursor<'t>) -> Result<&'t str> {
    cursor.expect("^")?;
    match cursor.digits() {
        "" => Err(cursor.expected_error("the number of a block")),
        number => Ok(number),
    }
}

/// Reads a terminator. `None` if the line is not one.
fn parse_terminator<'t>(cursor: &mut Cursor<'t>) -> Result<Option<End<'t>>> {
    let target = |cursor: &mut Cursor<'t>| -> Result<Target<'t>> {
        Ok(Target { block: parse_block_number(cursor)?, values: cursor.list("(", ")", Cursor::name)? })
    };
    let result = |cursor: &mut Cursor<'t>| -> Result<(&'t str, Live)> {
        let name = cursor.name()?;
        Ok((name, if cursor.eat(" state ") { Live::State(cursor.number()?) } else { Live::Output }))
    };
    Ok(Some(if cursor.eat("return ") {
        End::Return(cursor.list("", "", result)?)
    } else if cursor.eat("return") {
        End::Return(Vec::new())
    } else if cursor.eat("jump ") {
        End::Jump(target(cursor)?)
    } else if cursor.eat("branch ") {
        let condition = cursor.name()?;
        cursor.expect(", ")?;
        let then = target(cursor)?;
        cursor.expect(", ")?;
        End::Branch(condition, then, target(cursor)?)
    } else {
        return Ok(None);
    }))
}

fn parse_effect(cursor: &mut Cursor<'_>) -> Result<Option<Effect>> {
    let memory = |cursor: &mut Cursor<'_>| -> Result<Memory> {
        let number = cursor.number()?;
        cursor.expect("))")?;
        Ok(Memory(number))
    };
    Ok(if cursor.eat(" Random") {
        Some(Effect::Random)
    } else if cursor.eat(" External") {
        Some(Effect::External)
    } else if cursor.eat(" Read(Memory(") {
        Some(Effect::Read(memory(cursor)?))
    } else if cursor.eat(" Write(Memory(") {
        Some(Effect::Write(memory(cursor)?))
    } else {
        None
    })
}

/// Reads the origins at the end of a node's line; empty if the line has none.
fn parse_origins(cursor: &mut Cursor<'_>) -> Result<Vec<Place>> {
    if !cursor.eat("  // ") {
        cursor.expect_end()?;
    }
    Ok(cursor.rest().split(", ").filter_map(parse_place).collect())
}

/// Parses the place at the start of a text.
fn parse_place(text: &str) -> Option<Place> {
    let mut words = text.split(' ');
    let first = words.next()?;
    if first == "node" {
        return Some(Place::node(words.next()?.parse().ok()?));
    }
    let (chain, rest) = first.split_once(':')?;
    let (instruction, node) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
    let node = node.map(|node| node.parse().ok()).map_or(Some(None), |node| node.map(Some))?;
    Some(Place { node, ..Place::instruction(chain.parse().ok()?, instruction.parse().ok()?) })
}
