use std::fmt;

/// The type of a schema argument, without its list and optional markers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArgType {
    /// `Tensor`
    Tensor,
    /// `Scalar`: an int, a float or a bool
    Scalar,
    /// `int` or `SymInt`
    Int,
    /// `float` or `SymFloat`
    Float,
    /// `bool` or `SymBool`
    Bool,
    /// `str`
    Str,
    /// `ScalarType`, carried as an int
    ScalarType,
    /// `MemoryFormat`, carried as an int
    MemoryFormat,
    /// `Layout`, carried as an int
    Layout,
    /// `Device`, carried as an int
    Device,
    /// `Generator`; programs never contain one
    Generator,
}

impl ArgType {
    fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "Tensor" => Self::Tensor,
            "Scalar" => Self::Scalar,
            "int" | "SymInt" => Self::Int,
            "float" | "SymFloat" => Self::Float,
            "bool" | "SymBool" => Self::Bool,
            "str" => Self::Str,
            "ScalarType" => Self::ScalarType,
            "MemoryFormat" => Self::MemoryFormat,
            "Layout" => Self::Layout,
            "Device" => Self::Device,
            "Generator" => Self::Generator,
            _ => return None,
        })
    }
}

/// One argument or result of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaArg {
    /// The argument's name; empty for results.
    pub name: String,
    /// The argument's type, without list and optional markers.
    pub ty: ArgType,
    /// Whether the argument is a list: `T[]`.
    pub list: bool,
    /// Whether the argument may be absent (`T?`) or, for a list, its elements may be (`T?[]`).
    pub optional: bool,
    /// Whether the operator writes the argument: `Tensor(a!)`.
    pub written: bool,
    /// The letter of `Tensor(a)`: the argument aliases the arguments and results with the same letter.
    pub alias: Option<char>,
    /// The default value, as the schema spells it; `None` if the argument is required.
    pub default: Option<String>,
}

/// The declaration of an operator in PyTorch's schema syntax.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema {
    /// Name and overload: `aten::add.out`.
    pub name: String,
    /// The arguments, in order.
    pub args: Vec<SchemaArg>,
    /// The results, in order.
    pub returns: Vec<SchemaArg>,
}

/// A malformed schema.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("operator schema `{schema}`: {problem}")]
pub struct SchemaError {
    /// The schema's text.
    pub schema: String,
    /// What is wrong with the schema.
    pub problem: String,
}

impl Schema {
    /// Parses a declaration such as
    /// `aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)`.
    pub fn parse(text: &str) -> Result<Self, SchemaError> {
        parse(text).map_err(|problem| SchemaError { schema: text.to_owned(), problem })
    }

    /// Positions of the arguments that the operator writes.
    pub fn written_args(&self) -> impl Iterator<Item = usize> + '_ {
        self.args.iter().enumerate().filter(|(_, a)| a.written).map(|(i, _)| i)
    }

    /// The result, if there is exactly one and it is not a written argument.
    pub fn fresh_result(&self) -> Option<&SchemaArg> {
        match self.returns.as_slice() {
            [only] if !only.written => Some(only),
            _ => None,
        }
    }

    /// The position of the argument that the result aliases, for operators such as `et_view` that create a view.
    pub fn viewed_arg(&self) -> Option<usize> {
        let letter = self.fresh_result()?.alias?;
        self.args.iter().position(|a| a.alias == Some(letter))
    }

    /// Whether an instruction has one value more than the schema has arguments: the result,
    /// or a repetition of the outs.
    pub fn has_result_slot(&self) -> bool {
        !self.returns.is_empty() || self.args.iter().any(|a| a.written && a.list)
    }

    /// The number of values in an instruction that calls this operator: its arguments, and a result slot if it has one.
    pub fn instruction_args(&self) -> usize {
        self.args.len() + self.has_result_slot() as usize
    }
}

impl fmt::Display for SchemaArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ty = match self.ty {
            ArgType::Int => "int",
            ArgType::Float => "float",
            ArgType::Bool => "bool",
            ArgType::Str => "str",
            other => return write!(f, "{other:?}{}", Marks(self)),
        };
        write!(f, "{ty}{}", Marks(self))
    }
}

struct Marks<'a>(&'a SchemaArg);

impl fmt::Display for Marks<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let arg = self.0;
        if let Some(letter) = arg.alias {
            write!(f, "({letter}{})", if arg.written { "!" } else { "" })?;
        }
        f.write_str(match (arg.list, arg.optional) {
            (true, true) if arg.ty == ArgType::Tensor => "?[]",
            (true, true) => "[]?",
            (true, false) => "[]",
            (false, true) => "?",
            (false, false) => "",
        })?;
        if !arg.name.is_empty() {
            write!(f, " {}", arg.name)?;
        }
        if let Some(default) = &arg.default {
            write!(f, "={default}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Schema {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |args: &[SchemaArg]| args.iter().map(|a| a.to_string()).collect::<Vec<_>>().join(", ");
        write!(f, "{}({}) -> ", self.name, list(&self.args))?;
        match self.returns.as_slice() {
            [one] => one.fmt(f),
            many => write!(f, "({})", list(many)),
        }
    }
}

fn parse(text: &str) -> Result<Schema, String> {
    let open = text.find('(').ok_or("no argument list")?;
    let close = closing_parenthesis(text, open).ok_or("the argument list does not end")?;
    let name = text[..open].trim();
    if !name.contains("::") {
        return Err(format!("`{name}` has no namespace (`aten::add.out`)"));
    }
    let mut args = Vec::new();
    for item in split_at_top_commas(&text[open + 1..close]) {
        if item != "*" {
            args.push(parse_arg(item)?);
        }
    }
    let returns = text[close + 1..].trim().strip_prefix("->").ok_or("no `->` after the arguments")?.trim();
    let returns = match returns.strip_prefix('(') {
        Some(inner) => inner.strip_suffix(')').ok_or("the result list does not end")?,
        None => returns,
    };
    let returns = split_at_top_commas(returns).into_iter().map(parse_arg).collect::<Result<_, _>>()?;
    Ok(Schema { name: name.to_owned(), args, returns })
}

/// Parses `Tensor(a!)[]? name=default`, where name and default may be absent.
fn parse_arg(text: &str) -> Result<SchemaArg, String> {
    let (decl, default) = match text.split_once('=') {
        Some((d, v)) => (d.trim(), Some(v.trim().to_owned())),
        None => (text, None),
    };
    let (ty, name) = match decl.rsplit_once(' ') {
        Some((t, n)) => (t.trim(), n),
        None => (decl, ""),
    };
    let end = ty.find(|c: char| !c.is_alphanumeric()).unwrap_or(ty.len());
    let (base, mut marks) = ty.split_at(end);
    let base = ArgType::parse(base).ok_or_else(|| format!("`{base}` is no argument type"))?;
    let mut arg = SchemaArg {
        name: name.to_owned(),
        ty: base,
        list: false,
        optional: false,
        written: false,
        alias: None,
        default,
    };
    while !marks.is_empty() {
        let end = match marks.as_bytes()[0] {
            b'?' => {
                arg.optional = true;
                1
            }
            b'[' => {
                arg.list = true;
                marks.find(']').ok_or("`[` without `]`")? + 1
            }
            b'(' => {
                let end = marks.find(')').ok_or("`(` without `)`")?;
                arg.alias = marks[1..end].chars().next();
                arg.written = marks[1..end].ends_with('!');
                end + 1
            }
            _ => return Err(format!("`{marks}` after a type")),
        };
        marks = &marks[end..];
    }
    Ok(arg)
}

/// The index of the `)` that closes the `(` at `open`.
fn closing_parenthesis(text: &str, open: usize) -> Option<usize> {
    let mut depth = 0;
    for (i, c) in text.char_indices().skip_while(|&(i, _)| i < open) {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => continue,
        }
        if depth == 0 {
            return Some(i);
        }
    }
    None
}

/// Splits at commas outside brackets.
fn split_at_top_commas(text: &str) -> Vec<&str> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(text[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(text[start..].trim());
    parts.retain(|p| !p.is_empty());
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_out_variant_writes_its_out_and_returns_it() {
        let s = Schema::parse(
            "aten::add.out(Tensor self, Tensor other, *, Scalar alpha=1, Tensor(a!) out) -> Tensor(a!)",
        )
        .unwrap();
        assert_eq!(s.name, "aten::add.out");
        assert_eq!(s.written_args().collect::<Vec<_>>(), [3]);
        assert_eq!(s.instruction_args(), 5);
        assert_eq!(s.args[2].default.as_deref(), Some("1"));
        assert!(s.fresh_result().is_none());
    }

    #[test]
    fn lists_optionals_and_defaults() {
        let s = Schema::parse(
            "aten::max_pool2d.x(Tensor self, int[2] k, int[2] stride=[], int[1]? dim=None, \
             Tensor?[] indices, str? mode='a', Tensor(a!)[] out) -> ()",
        )
        .unwrap();
        assert!(s.args[1].list && !s.args[1].optional);
        assert_eq!(s.args[2].default.as_deref(), Some("[]"));
        assert!(s.args[3].list && s.args[3].optional);
        assert!(s.args[4].list && s.args[4].optional && s.args[4].ty == ArgType::Tensor);
        assert!(s.args[6].written && s.args[6].list);
        assert_eq!(s.instruction_args(), 8);
    }

    #[test]
    fn views_and_fresh_results() {
        let s = Schema::parse("executorch_prim::et_view.default(Tensor(a) self, int[] size) -> Tensor(a)")
            .unwrap();
        assert_eq!(s.viewed_arg(), Some(0));
        assert_eq!(s.instruction_args(), 3);
        let s = Schema::parse("aten::sym_size.int(Tensor self, int dim) -> int").unwrap();
        assert!(s.fresh_result().is_some() && s.viewed_arg().is_none());
    }

    #[test]
    fn printed_schemas_parse_to_the_same_text() {
        for text in [
            "aten::split_copy.Tensor_out(Tensor self, int split_size, int dim=0, Tensor(a!)[] out) -> ()",
            "aten::index.Tensor_out(Tensor self, Tensor?[] indices, Tensor(a!) out) -> Tensor(a!)",
            "a::b(Tensor self, int[]? dim=None, float? eps=None) -> (Tensor, Scalar)",
        ] {
            assert_eq!(Schema::parse(text).unwrap().to_string(), text);
        }
    }

    #[test]
    fn errors_say_what_is_wrong_with_a_schema() {
        for (text, part) in [
            ("add.out(Tensor x) -> Tensor", "namespace"),
            ("a::b(Tensor x", "does not end"),
            ("a::b(Tensr x) -> ()", "Tensr"),
            ("a::b(Tensor x)", "->"),
        ] {
            let e = Schema::parse(text).unwrap_err();
            assert!(e.problem.contains(part), "{e}");
        }
    }
}
