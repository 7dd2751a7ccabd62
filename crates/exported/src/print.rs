use super::{Argument, ExportedGraph, ExportedNode, ExportedProgram, InputKind, IntArgument, VarId, VarType};
use pteron_operator::{shown, shown_line};
use pteron_tensor::{ScalarType, bf16, f16};
use std::collections::HashSet;
use std::fmt::{self, Write};

/// Options of a program listing.
#[derive(Debug, Clone, Copy, Default)]
pub struct PrintOptions {
    /// Show each line of source code above the nodes that it produced.
    pub source: bool,
    /// Show the constants, including those that are not graph inputs, with up to sixteen elements of each.
    pub constants: bool,
}

impl ExportedProgram {
    /// The program as text.
    pub fn listing(&self, options: PrintOptions) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = Printer { program: self, options, out: &mut text, line: None }.write_program();
        text
    }
}

impl fmt::Display for ExportedProgram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.listing(PrintOptions::default()))
    }
}

/// The maximum number of elements of a constant that a listing shows.
const MAX_ELEMENTS: usize = 16;

/// The first elements of a constant as text; `None` for types whose elements cannot be printed.
fn first_elements(bytes: &[u8], dtype: ScalarType) -> Option<Vec<String>> {
    fn format_each<const N: usize>(bytes: &[u8], text: impl Fn([u8; N]) -> String) -> Option<Vec<String>> {
        let elements = bytes.as_chunks::<N>().0;
        Some(elements.iter().take(MAX_ELEMENTS).map(|&element| text(element)).collect())
    }
    match dtype {
        ScalarType::Bool => format_each(bytes, |[b]| if b == 0 { "False" } else { "True" }.to_owned()),
        ScalarType::Byte => format_each(bytes, |[b]| b.to_string()),
        ScalarType::Char => format_each(bytes, |b| i8::from_le_bytes(b).to_string()),
        ScalarType::Short => format_each(bytes, |b| i16::from_le_bytes(b).to_string()),
        ScalarType::Int => format_each(bytes, |b| i32::from_le_bytes(b).to_string()),
        ScalarType::Long => format_each(bytes, |b| i64::from_le_bytes(b).to_string()),
        ScalarType::Half => format_each(bytes, |b| format!("{:?}", f16::from_le_bytes(b).to_f32())),
        ScalarType::BFloat16 => format_each(bytes, |b| format!("{:?}", bf16::from_le_bytes(b).to_f32())),
        ScalarType::Float => format_each(bytes, |b| format!("{:?}", f32::from_le_bytes(b))),
        ScalarType::Double => format_each(bytes, |b| format!("{:?}", f64::from_le_bytes(b))),
        _ => None,
    }
}

struct Printer<'a> {
    program: &'a ExportedProgram,
    options: PrintOptions,
    out: &'a mut String,
    line: Option<String>,
}

impl Printer<'_> {
    fn write_program(&mut self) -> fmt::Result {
        let program = self.program;
        writeln!(self.out, "{}:", shown(&program.name))?;
        for (name, range) in &program.ranges {
            match range.max {
                i64::MAX => writeln!(self.out, "  {name} >= {}", range.min)?,
                max => writeln!(self.out, "  {name} in {}..={max}", range.min)?,
            }
        }
        for (&input, kind) in program.graph.inputs.iter().zip(&program.inputs) {
            let kind = match kind {
                InputKind::User => "input",
                InputKind::Fixed(_) => "fixed input",
                InputKind::Parameter => "parameter",
                InputKind::Buffer if program.is_mutated(input) => "state",
                InputKind::Buffer => "buffer",
                InputKind::Constant => "constant",
                InputKind::Token => "token",
            };
            write!(self.out, "  {kind} ")?;
            self.write_typed_name(input)?;
            self.write_elements(input)?;
            writeln!(self.out)?;
        }
        if self.options.constants {
            let uses = program.use_counts();
            let inputs: HashSet<VarId> = program.graph.inputs.iter().copied().collect();
            let is_literal = |v: &VarId| uses[v.index()] > 0 && !inputs.contains(v);
            for &literal in program.constants.keys().filter(|v| is_literal(v)) {
                self.out.write_str("  literal ")?;
                self.write_typed_name(literal)?;
                self.write_elements(literal)?;
                writeln!(self.out)?;
            }
        }
        self.write_graph(&program.graph, 1)?;
        for mutation in &program.mutations {
            let (input, value) = (self.name(mutation.input), self.name(mutation.value));
            writeln!(self.out, "  {input} becomes {value}")?;
        }
        Ok(())
    }

    fn write_graph(&mut self, graph: &ExportedGraph, depth: usize) -> fmt::Result {
        for node in &graph.nodes {
            self.write_node(node, depth)?;
        }
        self.write_indent(depth)?;
        let outputs: Vec<String> = graph.outputs.iter().map(|o| self.format_argument(o)).collect();
        writeln!(self.out, "return {}", outputs.join(", "))
    }

    fn write_node(&mut self, node: &ExportedNode, depth: usize) -> fmt::Result {
        if self.options.source
            && let Some(line) = node.line().map(ToString::to_string)
            && self.line.as_ref() != Some(&line)
        {
            self.write_indent(depth)?;
            writeln!(self.out, "# {}", shown_line(&line))?;
            self.line = Some(line);
        }
        self.write_indent(depth)?;
        for (i, &output) in node.outputs.iter().enumerate() {
            self.out.write_str(if i > 0 { ", " } else { "" })?;
            self.write_typed_name(output)?;
        }
        if !node.outputs.is_empty() {
            self.out.write_str(" = ")?;
        }
        write!(self.out, "{}(", shown(node.target.as_ref()))?;
        let mut graphs = Vec::new();
        for (i, (name, arg)) in node.args.iter().enumerate() {
            self.out.write_str(if i > 0 { ", " } else { "" })?;
            if !name.is_empty() {
                write!(self.out, "{}=", shown(name))?;
            }
            if let Argument::Graph(graph) = arg {
                graphs.push(graph);
                write!(self.out, "graph {}", graphs.len() - 1)?;
            } else {
                let arg = self.format_argument(arg);
                self.out.write_str(&arg)?;
            }
        }
        writeln!(self.out, ")")?;
        for (i, graph) in graphs.into_iter().enumerate() {
            self.write_indent(depth + 1)?;
            write!(self.out, "graph {i}(")?;
            for (i, &input) in graph.inputs.iter().enumerate() {
                self.out.write_str(if i > 0 { ", " } else { "" })?;
                self.write_typed_name(input)?;
            }
            writeln!(self.out, "):")?;
            self.write_graph(graph, depth + 2)?;
        }
        Ok(())
    }

    fn write_indent(&mut self, depth: usize) -> fmt::Result {
        write!(self.out, "{:1$}", "", depth * 2)
    }

    fn name(&self, var: VarId) -> String {
        format!("%{}", shown(&self.program.var(var).name))
    }

    fn write_typed_name(&mut self, var: VarId) -> fmt::Result {
        let name = self.name(var);
        write!(self.out, "{name}: {}", self.program.var(var).ty)
    }

    /// Writes the first elements of a constant, such as ` = [1.0, 2.0]`, if the options ask for constants.
    fn write_elements(&mut self, var: VarId) -> fmt::Result {
        let (constant, spec) = (self.program.constants.get(&var), self.program.spec(var));
        let (true, Some(constant), Some(spec)) = (self.options.constants, constant, spec) else {
            return Ok(());
        };
        let Some(elements) = first_elements(constant.data(), spec.dtype) else { return Ok(()) };
        let more = if constant.range.len() > MAX_ELEMENTS * spec.dtype.size() { ", ..." } else { "" };
        write!(self.out, " = [{}{more}]", elements.join(", "))
    }

    fn format_argument(&self, arg: &Argument) -> String {
        let list = |items: Vec<String>| format!("[{}]", items.join(", "));
        match arg {
            Argument::None => "None".into(),
            Argument::Ignored => "_".into(),
            Argument::Var(v) => self.name(*v),
            Argument::Int(v) => v.to_string(),
            Argument::Float(v) => format!("{v:?}"),
            Argument::Bool(v) => if *v { "True" } else { "False" }.into(),
            Argument::Str(v) => format!("{v:?}"),
            Argument::Complex(re, im) => format!("{re:?}+{im:?}j"),
            Argument::Ints(v) => list(v.iter().map(|i| self.format_int(i)).collect()),
            Argument::Floats(v) => list(v.iter().map(|v| format!("{v:?}")).collect()),
            Argument::Bools(v) => list(v.iter().map(|v| format!("{v}")).collect()),
            Argument::Strs(v) => list(v.iter().map(|v| format!("{v:?}")).collect()),
            Argument::Vars(v) => list(v.iter().map(|&v| self.name(v)).collect()),
            Argument::OptionalVars(v) => {
                list(v.iter().map(|v| v.map_or("None".into(), |v| self.name(v))).collect())
            }
            Argument::Dtype(v) => v.name().into(),
            Argument::MemoryFormat(v) => format!("{v:?}"),
            Argument::Graph(_) => "graph".into(),
        }
    }

    fn format_int(&self, int: &IntArgument) -> String {
        match int {
            IntArgument::Int(v) => v.to_string(),
            IntArgument::Var(v) => self.name(*v),
        }
    }
}

impl fmt::Display for VarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor(spec) => {
                write!(f, "{}[", spec.dtype)?;
                for (i, size) in spec.sizes.iter().enumerate() {
                    write!(f, "{}{size}", if i > 0 { ", " } else { "" })?;
                }
                f.write_str("]")?;
                if !spec.dim_order.is_contiguous() {
                    write!(f, " in dim order {}", spec.dim_order)?;
                }
                Ok(())
            }
            Self::Int(size) => write!(f, "int {size}"),
            Self::Float => f.write_str("float"),
            Self::Bool => f.write_str("bool"),
            Self::Str => f.write_str("str"),
            Self::Opaque => f.write_str("_"),
        }
    }
}
