//! Parses programs from the text of their listings, which tests are written in.
//!
//! The grammar is that of [`ExportedProgram::listing`]: a line with the name, a line for each symbol's bounds, a line for
//! each input, the nodes, `return`, and the mutations. Every value has a name of its own. The elements of a constant follow its type,
//! `= [0.5, 1]`, and are repeated to its size; without them a constant is zero. Lines that begin with `#` are comments.

mod cursor;

use crate::verify::MAX_NESTING;
use crate::{
    Argument, Bounds, ConstantTensor, ExportedGraph, ExportedNode, ExportedProgram, InputKind, IntArgument,
    MemoryFormat, Mutation, TensorSpec, VarId, VarType,
};
use cursor::Cursor;
use pteron_tensor::{DimOrder, Scalar, ScalarType};
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum size of each constant of a listing, in bytes.
const MAX_CONSTANT: usize = 1 << 26;

/// The error of a line that cannot be parsed as part of a listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct ParseError {
    /// The line, counted from 1.
    pub line: usize,
    /// What is wrong in the line.
    pub problem: String,
}

type Result<T> = std::result::Result<T, String>;

/// Parses a program.
///
/// # Errors
/// The first line that is not part of a listing: an unknown type, a value that is not defined or is defined twice.
pub fn parse(text: &str) -> std::result::Result<ExportedProgram, ParseError> {
    let lines: Vec<(usize, &str)> = text
        .lines()
        .enumerate()
        .map(|(i, line)| (i + 1, line.trim()))
        .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'))
        .collect();
    let mut parser = Parser {
        lines,
        at: 0,
        program: ExportedProgram::default(),
        names: HashMap::new(),
        source: Arc::default(),
    };
    let parsed = parser.parse_program();
    let line = parser.lines.get(parser.at.saturating_sub(1)).map_or(1, |(line, _)| *line);
    parsed.map(|()| parser.program).map_err(|problem| ParseError { line, problem })
}

struct Parser<'t> {
    /// The lines that are neither empty nor comments, with their numbers.
    lines: Vec<(usize, &'t str)>,
    at: usize,
    program: ExportedProgram,
    names: HashMap<&'t str, VarId>,
    source: Arc<crate::Source>,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<&'t str> {
        self.lines.get(self.at).map(|(_, line)| *line)
    }

    fn next_line(&mut self) -> Result<&'t str> {
        let line = self.peek().ok_or("the listing ends before `return`")?;
        self.at += 1;
        Ok(line)
    }

    fn parse_program(&mut self) -> Result<()> {
        let name = self.next_line()?.strip_suffix(':').ok_or("expected the name of the program and `:`")?;
        self.program.name = name.to_owned();
        while let Some((name, bounds)) = self.peek().and_then(parse_range) {
            self.at += 1;
            self.program.ranges.insert(name.into(), bounds);
        }
        while let Some((kind, rest)) = self.peek().and_then(parse_input_kind) {
            self.at += 1;
            let mut cursor = Cursor::new(rest);
            let var = self.parse_definition(&mut cursor)?;
            if kind.is_some() {
                self.program.graph.inputs.push(var);
            }
            match kind {
                None | Some(InputKind::Parameter | InputKind::Buffer | InputKind::Constant) => {
                    self.parse_constant(var, &mut cursor)?;
                }
                Some(_) => cursor.expect_end()?,
            }
            self.program.inputs.extend(kind);
        }
        self.program.graph = ExportedGraph {
            inputs: std::mem::take(&mut self.program.graph.inputs),
            ..self.parse_graph(MAX_NESTING)?
        };
        while self.at < self.lines.len() {
            let mut cursor = Cursor::new(self.next_line()?);
            let input = self.parse_value(&mut cursor)?;
            cursor.expect(" becomes ")?;
            let value = self.parse_value(&mut cursor)?;
            cursor.expect_end()?;
            self.program.mutations.push(Mutation { input, value });
        }
        Ok(())
    }

    /// Parses `%name: type`, which defines a value.
    fn parse_definition(&mut self, cursor: &mut Cursor<'t>) -> Result<VarId> {
        let name = cursor.name()?;
        cursor.expect(": ")?;
        let ty = parse_type(cursor)?;
        let var = self.program.add_var(name, ty);
        match self.names.insert(name, var) {
            None => Ok(var),
            Some(_) => Err(format!("%{name} is defined twice")),
        }
    }

    /// Parses `%name`, a use of a defined value.
    fn parse_value(&self, cursor: &mut Cursor<'t>) -> Result<VarId> {
        let name = cursor.name()?;
        self.names.get(name).copied().ok_or_else(|| format!("%{name} is not defined"))
    }

    /// Parses the nodes of a graph and its outputs.
    fn parse_graph(&mut self, nesting: usize) -> Result<ExportedGraph> {
        let nesting = nesting.checked_sub(1).ok_or("graphs are nested too deep")?;
        let mut graph = ExportedGraph::default();
        loop {
            let line = self.next_line()?;
            if let Some(outputs) = line.strip_prefix("return") {
                let mut cursor = Cursor::new(outputs.trim_start());
                while !cursor.is_empty() {
                    graph.outputs.push(self.parse_argument(&mut cursor)?);
                    if !cursor.eat(", ") {
                        cursor.expect_end()?;
                    }
                }
                return Ok(graph);
            }
            graph.nodes.push(self.parse_node(line, nesting)?);
        }
    }

    fn parse_node(&mut self, line: &'t str, nesting: usize) -> Result<ExportedNode> {
        let (results, call) = line.split_once(" = ").map_or((None, line), |(a, b)| (Some(a), b));
        let mut cursor = Cursor::new(call);
        let target = cursor.take_until('(').ok_or("expected an operator and `(`")?;
        let (mut args, mut graphs) = (Vec::new(), Vec::new());
        while !cursor.eat(")") {
            let name = cursor.keyword();
            if cursor.eat("graph ") {
                cursor.take_until_any(&[',', ')']);
                graphs.push(args.len());
                args.push((name.into(), Argument::None));
            } else {
                args.push((name.into(), self.parse_argument(&mut cursor)?));
            }
            if !cursor.eat(", ") && !cursor.starts_with(")") {
                return Err(cursor.expected_error("`,` or `)`"));
            }
        }
        cursor.expect_end()?;
        for index in graphs {
            let header = self.next_line()?;
            let mut cursor = Cursor::new(header);
            cursor.take_until('(').filter(|name| name.starts_with("graph ")).ok_or("expected `graph N(`")?;
            let mut inputs = Vec::new();
            while !cursor.eat("):") {
                inputs.push(self.parse_definition(&mut cursor)?);
                if !cursor.eat(", ") && !cursor.starts_with("):") {
                    return Err(cursor.expected_error("`,` or `):`"));
                }
            }
            let graph = ExportedGraph { inputs, ..self.parse_graph(nesting)? };
            args[index].1 = Argument::Graph(Box::new(graph));
        }
        let mut outputs = Vec::new();
        if let Some(results) = results {
            let mut cursor = Cursor::new(results);
            while !cursor.is_empty() {
                outputs.push(self.parse_definition(&mut cursor)?);
                if !cursor.eat(", ") {
                    cursor.expect_end()?;
                }
            }
        }
        Ok(ExportedNode { target: target.into(), args, outputs, source: Arc::clone(&self.source) })
    }

    fn parse_argument(&self, cursor: &mut Cursor<'t>) -> Result<Argument> {
        if cursor.eat("[") {
            return self.parse_list(cursor);
        }
        if cursor.starts_with("%") {
            return Ok(Argument::Var(self.parse_value(cursor)?));
        }
        if cursor.starts_with("\"") {
            return Ok(Argument::Str(cursor.string()?));
        }
        let word = cursor.take_until_any(&[',', ')', ']']);
        Ok(match word {
            "None" => Argument::None,
            "_" => Argument::Ignored,
            "True" => Argument::Bool(true),
            "False" => Argument::Bool(false),
            "Contiguous" => Argument::MemoryFormat(MemoryFormat::Contiguous),
            "ChannelsLast" => Argument::MemoryFormat(MemoryFormat::ChannelsLast),
            "ChannelsLast3d" => Argument::MemoryFormat(MemoryFormat::ChannelsLast3d),
            "Preserve" => Argument::MemoryFormat(MemoryFormat::Preserve),
            _ => match parse_dtype(word) {
                Some(dtype) => Argument::Dtype(dtype),
                None => parse_number(word)?,
            },
        })
    }

    /// Parses the items of a list whose `[` was read.
    fn parse_list(&self, cursor: &mut Cursor<'t>) -> Result<Argument> {
        let mut items = Vec::new();
        while !cursor.eat("]") {
            items.push(match cursor.starts_with("true") || cursor.starts_with("false") {
                true => Argument::Bool(cursor.take_until_any(&[',', ']']) == "true"),
                false => self.parse_argument(cursor)?,
            });
            if !cursor.eat(", ") && !cursor.starts_with("]") {
                return Err(cursor.expected_error("`,` or `]`"));
            }
        }
        self.list_argument(&items).ok_or_else(|| "a list of items of different types".to_owned())
    }

    /// The list argument that has these items.
    fn list_argument(&self, items: &[Argument]) -> Option<Argument> {
        let is_int = |item: &Argument| match item {
            Argument::Int(_) => true,
            Argument::Var(v) => matches!(self.program.var(*v).ty, VarType::Int(_)),
            _ => false,
        };
        if items.iter().all(is_int) {
            let int = |item: &Argument| match item {
                Argument::Var(v) => Some(IntArgument::Var(*v)),
                Argument::Int(v) => Some(IntArgument::Int(*v)),
                _ => None,
            };
            return items.iter().map(int).collect::<Option<_>>().map(Argument::Ints);
        }
        Some(match items.first()? {
            Argument::Float(_) => Argument::Floats(items.iter().map(as_float).collect::<Option<_>>()?),
            Argument::Bool(_) => {
                let bool = |item: &Argument| if let Argument::Bool(v) = item { Some(*v) } else { None };
                Argument::Bools(items.iter().map(bool).collect::<Option<_>>()?)
            }
            Argument::Str(_) => {
                let text = |item: &Argument| if let Argument::Str(v) = item { Some(v.clone()) } else { None };
                Argument::Strs(items.iter().map(text).collect::<Option<_>>()?)
            }
            _ if items.iter().all(|item| item.var().is_some()) => {
                Argument::Vars(items.iter().filter_map(Argument::var).collect())
            }
            _ => {
                let optional = |item: &Argument| match item {
                    Argument::None => Some(None),
                    Argument::Var(v) => Some(Some(*v)),
                    _ => None,
                };
                Argument::OptionalVars(items.iter().map(optional).collect::<Option<_>>()?)
            }
        })
    }

    /// Parses the elements of a constant, ` = [1, 2]` or ` = 1`; zeros if there are none.
    fn parse_constant(&mut self, var: VarId, cursor: &mut Cursor<'t>) -> Result<()> {
        let mut elements = vec![Argument::Int(0)];
        if cursor.eat(" = ") {
            elements.clear();
            let is_list = cursor.eat("[");
            loop {
                match cursor.take_until_any(&[',', ']']) {
                    "..." => break,
                    "True" => elements.push(Argument::Int(1)),
                    "False" => elements.push(Argument::Int(0)),
                    word => elements.push(parse_number(word)?),
                }
                if !cursor.eat(", ") {
                    break;
                }
            }
            if is_list {
                cursor.expect("]")?;
            }
        }
        cursor.expect_end()?;
        let spec = self.program.spec(var).ok_or("a constant is a tensor")?;
        let sizes = spec.known_sizes().ok_or("a constant has known sizes")?;
        let numel = sizes.iter().try_fold(1usize, |n, &s| n.checked_mul(usize::try_from(s).ok()?));
        let numel = numel.filter(|n| n.saturating_mul(spec.dtype.size()) <= MAX_CONSTANT);
        let numel = numel.ok_or("a constant of too many elements")?;
        let mut bytes = Vec::with_capacity(numel * spec.dtype.size());
        for element in elements.iter().cycle().take(numel) {
            let scalar = match element {
                Argument::Float(v) => Scalar::Double(*v),
                Argument::Int(v) => Scalar::Int(*v),
                _ => return Err("a complex element".to_owned()),
            };
            bytes.extend(scalar.to_le_bytes_as(spec.dtype).ok_or("elements of this type have no text")?);
        }
        let data = ConstantTensor {
            name: Some(Arc::clone(&self.program.var(var).name)),
            range: 0..bytes.len(),
            bytes: Arc::new(bytes),
        };
        self.program.constants.insert(var, data);
        Ok(())
    }
}

/// Parses the bounds of a symbol, `s0 >= 2` or `s0 in 2..=8`.
fn parse_range(line: &str) -> Option<(&str, Bounds)> {
    if let Some((name, min)) = line.split_once(" >= ") {
        return Some((name, Bounds { min: min.parse().ok()?, max: i64::MAX }));
    }
    let (name, bounds) = line.split_once(" in ").filter(|(name, _)| !name.contains([' ', '%', '(']))?;
    let (min, max) = bounds.split_once("..=")?;
    Some((name, Bounds { min: min.parse().ok()?, max: max.parse().ok()? }))
}

/// Parses the kind of an input; returns it with the rest of the line. The inner `None` stands for a constant that is
/// not an input.
fn parse_input_kind(line: &str) -> Option<(Option<InputKind>, &str)> {
    let (word, rest) = line.split_once(" %")?;
    let kind = match word {
        "input" => Some(InputKind::User),
        "fixed input" => Some(InputKind::Fixed(Argument::None)),
        "parameter" => Some(InputKind::Parameter),
        "state" | "buffer" => Some(InputKind::Buffer),
        "constant" => Some(InputKind::Constant),
        "token" => Some(InputKind::Token),
        "literal" => None,
        _ => return None,
    };
    Some((kind, &line[line.len() - rest.len() - 1..]))
}

/// Parses the type of a value.
fn parse_type(cursor: &mut Cursor<'_>) -> Result<VarType> {
    let word = cursor.word();
    Ok(match word {
        "float" => VarType::Float,
        "bool" if !cursor.starts_with("[") => VarType::Bool,
        "str" => VarType::Str,
        "_" => VarType::Opaque,
        "int" => {
            cursor.expect(" ")?;
            VarType::Int(cursor.size()?)
        }
        _ => {
            let dtype = parse_dtype(word).ok_or_else(|| format!("`{word}` is no type"))?;
            cursor.expect("[")?;
            let mut sizes = Vec::new();
            while !cursor.eat("]") {
                sizes.push(cursor.size()?);
                if !cursor.eat(", ") && !cursor.starts_with("]") {
                    return Err(cursor.expected_error("`,` or `]`"));
                }
            }
            let mut dim_order = DimOrder::contiguous(sizes.len());
            if cursor.eat(" in dim order [") {
                let order = cursor.take_until(']').ok_or("expected the end of a dim order")?;
                let order: std::result::Result<Vec<u8>, _> = order.split(", ").map(str::parse).collect();
                let order = order.map_err(|_| "a dim order is a list of dimensions")?;
                if order.len() != sizes.len() {
                    return Err(format!("a dim order of {} dimensions for {}", order.len(), sizes.len()));
                }
                dim_order = DimOrder::new(&order).map_err(|e| e.to_string())?;
            }
            VarType::Tensor(TensorSpec { dtype, sizes, dim_order })
        }
    })
}

fn parse_dtype(name: &str) -> Option<ScalarType> {
    ScalarType::ALL.iter().copied().find(|dtype| dtype.name() == name)
}

fn as_float(item: &Argument) -> Option<f64> {
    match item {
        Argument::Float(v) => Some(*v),
        Argument::Int(v) => Some(*v as f64),
        _ => None,
    }
}

/// Parses an integer, a float or a complex number, as listings have them: `1`, `0.5`, `0.5+1.0j`.
fn parse_number(word: &str) -> Result<Argument> {
    if let Ok(int) = word.parse() {
        return Ok(Argument::Int(int));
    }
    if let Ok(float) = word.parse() {
        return Ok(Argument::Float(float));
    }
    let complex = word.strip_suffix('j').and_then(|parts| {
        let at =
            parts.rmatch_indices('+').map(|(at, _)| at).find(|&at| !parts[..at].ends_with(['e', 'E']))?;
        Some(Argument::Complex(parts[..at].parse().ok()?, parts[at + 1..].parse().ok()?))
    });
    complex.ok_or_else(|| format!("`{word}` is no argument"))
}

#[cfg(test)]
mod tests {
    use crate::{Argument, PrintOptions, VarType, parse};

    fn listed(text: &str) -> String {
        let program = parse(text).unwrap_or_else(|e| panic!("{e}"));
        program.verify().unwrap();
        program.listing(PrintOptions { source: false, constants: true })
    }

    #[test]
    fn a_listing_is_parsed_to_the_same_listing() {
        let text = r#"forward:
  s0 in 2..=8
  u0 >= 0
  input %x: float32[2, s0, 2*s0 + 1, (max(s0, 3))//2] in dim order [0, 2, 3, 1]
  input %p: float32[-1*(s0**9), (-2)**s0]
  fixed input %n: int 3
  parameter %w: float32[2, 2] = [0.5, -1.0, inf, NaN]
  state %k: bool[] = [True]
  constant %big: int64[20] = [7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, ...]
  literal %half: float16[1] = [0.5]
  %a: float32[], %b: int s0 % 3 = ns.op.Tensor(self=%x, %w, n=[%n, 2], f=[1.0, 2e-5], e=[], t=True, o=[%w, None])
  ns.effect.default(s="a \"b\", c", d=float16, m=ChannelsLast, i=_, c=1.0+-2.0j, v=[%w, %half], z=None)
  %c: float = higher.cond(%k, graph 0, graph 1)
    graph 0(%d: float32[u0]):
      return %d
    graph 1():
      %e: str = ns.op.default(bools=[true, false])
      return 1.5, %big
  return %a, None
  %k becomes %k
"#;
        assert_eq!(listed(text), text);
    }

    #[test]
    fn a_minus_before_a_power_negates_the_power() {
        let sizes = |text: &str| {
            let program = parse(&format!("f:\n  input %x: float32[{text}]\n  return %x")).unwrap();
            program.spec(program.graph.inputs[0]).unwrap().sizes[0].to_string()
        };
        assert_eq!(sizes("-2**s0"), "-1*(2**s0)");
        assert_eq!(sizes("(-2)**s0"), "(-2)**s0");
        assert_eq!(sizes("-2*s0"), "-2*s0");
    }

    #[test]
    fn lists_have_the_type_of_their_items() {
        let program = parse(
            "f:\n  input %n: int s0\n  input %x: bool[2]\n  %y: float = a.b(i=[%n, 1], v=[%x], e=[])\n  return %y",
        )
        .unwrap();
        let args = &program.graph.nodes[0].args;
        assert!(matches!(args[0].1, Argument::Ints(_)));
        assert!(matches!(args[1].1, Argument::Vars(_)));
        assert!(matches!(args[2].1, Argument::Ints(_)));
        assert!(matches!(program.var(program.graph.outputs[0].var().unwrap()).ty, VarType::Float));
    }

    #[test]
    fn errors_name_the_line() {
        for (text, error) in [
            ("", "line 1: the listing ends before `return`"),
            ("f", "line 1: expected the name of the program and `:`"),
            ("f:\n\n  input %x: f33[2]\n", "line 3: `f33` is no type"),
            ("f:\n  input %x: float32[2\n", "line 2: expected `,` or `]`, found the end of the line"),
            ("f:\n  input %x: float32[2] in dim order [0, 1]\n", "line 2: a dim order of 2 dimensions for 1"),
            ("f:\n  input %x: float\n  input %x: float\n", "line 3: %x is defined twice"),
            ("f:\n  return %x\n", "line 2: %x is not defined"),
            ("f:\n  %y: int -1 = a.b(x=q)\n", "line 2: `q` is no argument"),
            ("f:\n  %y: int 1 = a.b(1\n", "line 2: expected `,` or `)`, found the end of the line"),
            ("f:\n  constant %c: float32[9999999, 99]\n", "line 2: a constant of too many elements"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn nesting_is_limited() {
        let deep = format!("f:\n  input %x: int {}1{}\n", "(".repeat(100_000), ")".repeat(100_000));
        assert!(parse(&deep).unwrap_err().to_string().contains("nested too deep"));
        let call = "a.b(graph 0)\ngraph 0():\n";
        let deep = format!("f:\n{}", call.repeat(100_000));
        assert!(parse(&deep).unwrap_err().to_string().contains("nested too deep"));
    }
}
