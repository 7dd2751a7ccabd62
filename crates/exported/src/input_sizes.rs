//! The sizes that an export allows for its inputs: fixed sizes, ranges, and sizes computed from others.
//!
//! A program's tables have one upper bound for each size of a dynamic tensor. They cannot say that a size is fixed, that
//! two are equal or that one is twice the other. A compiled program stores that beside them, in the text form of
//! [`InputSizes`]:
//!
//! ```text
//! input sizes 1
//! symbol batch 1 64
//! input s0; 32
//! input s0 2 mul; ?
//! input -
//! ```
//!
//! The first line has the version. A `symbol` line has a name, a minimum and a maximum (`-` for none). There is one `input`
//! line for each input of the method, in order: a postfix [`Expression`] for each size (`s0` is the first symbol), `?` for a
//! size that is only bounded by the tables, or `-` for an input that is no tensor.

use super::{Bounds, ExportedProgram, Expression, Ranges, Size, SymExpr, VarType};
use smallvec::SmallVec;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// The first line of the text form.
const HEADER: &str = "input sizes 1";

/// The maximum number of symbols.
const MAX_SYMBOLS: usize = 4096;

/// Lower bounds up to this value are not enforced: exporters assume that sizes are not 0 or 1 without enforcing it.
const MIN_HELD: i64 = 2;

/// The sizes that an export allows for the inputs of a method.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct InputSizes {
    symbols: Vec<(Arc<str>, Bounds)>,
    /// The sizes of each input; `None` for a non-tensor. A size is `None` if no expression describes it: it calls an
    /// unknown function, or has too many terms.
    inputs: Vec<Option<Vec<Option<Expression>>>>,
}

/// A size that the export does not allow.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeProblem {
    /// The index of the input.
    pub input: usize,
    /// The index of the dimension.
    pub dim: usize,
    /// The size that the caller passed.
    pub found: usize,
    /// The size that was exported, as text: `32`, `s77 from 4 to 64`, or `2*s77, which is 6`.
    pub exported: String,
}

/// The value of each symbol, by number, once the size of an input determines it.
type Values = SmallVec<[Option<i64>; 8]>;

impl InputSizes {
    /// The allowed sizes of the inputs that the caller of a program passes; `None` if the upper bound of each size
    /// describes them completely, or if there are more than 4096 symbols.
    pub fn from_program(program: &ExportedProgram) -> Option<Self> {
        let mut all = Self::default();
        let mut uses = Vec::new();
        let mut beyond_bounds = false;
        for input in program.user_inputs() {
            let VarType::Tensor(spec) = &program.var(input).ty else {
                all.inputs.push(None);
                continue;
            };
            beyond_bounds |= spec.known_sizes().is_none() && spec.sizes.iter().any(|s| s.known().is_some());
            let sizes = spec.sizes.iter().map(|size| {
                let size = has_plain_symbols(size).then(|| size.expr())?;
                Expression::from_size(&size, &mut |name| all.intern_symbol(name, &program.ranges)).ok()
            });
            let sizes: Vec<Option<Expression>> = sizes.collect();
            for expression in sizes.iter().flatten() {
                uses.extend(expression.symbol());
                beyond_bounds |= expression.int().is_none() && expression.symbol().is_none();
            }
            all.inputs.push(Some(sizes));
        }
        uses.sort_unstable();
        beyond_bounds |= uses.windows(2).any(|pair| pair[0] == pair[1]);
        beyond_bounds |= all.symbols.iter().any(|(_, bounds)| bounds.min > MIN_HELD);
        (beyond_bounds && all.symbols.len() <= MAX_SYMBOLS).then_some(all)
    }

    fn intern_symbol(&mut self, name: &Arc<str>, ranges: &Ranges) -> usize {
        let known = self.symbols.iter().position(|(known, _)| known == name);
        known.unwrap_or_else(|| {
            let bounds = ranges.get(name).copied().unwrap_or(Bounds::UNKNOWN);
            self.symbols.push((Arc::clone(name), bounds));
            self.symbols.len() - 1
        })
    }

    /// The bounds of the symbols.
    pub fn ranges(&self) -> Ranges {
        self.symbols.iter().cloned().collect()
    }

    /// The number of inputs, including those that are not tensors.
    pub fn num_inputs(&self) -> usize {
        self.inputs.len()
    }

    /// The sizes of an input; `None` for a non-tensor. A size is `None` if no expression describes it: it calls an
    /// unknown function, or has too many terms.
    pub fn sizes(&self, input: usize) -> Option<Vec<Option<Size>>> {
        let sizes = self.inputs.get(input)?.as_ref()?;
        Some(sizes.iter().map(|size| size.as_ref().map(|e| self.named_size(e))).collect())
    }

    /// The number of dimensions of an input; `None` if it is not a tensor.
    pub fn rank(&self, input: usize) -> Option<usize> {
        self.inputs.get(input)?.as_ref().map(Vec::len)
    }

    /// A size of an input, if the export fixed it.
    pub fn fixed_size(&self, input: usize, dim: usize) -> Option<i64> {
        self.inputs.get(input)?.as_ref()?.get(dim)?.as_ref()?.int()
    }

    fn named_size(&self, expression: &Expression) -> Size {
        expression.size(|symbol| Arc::clone(&self.symbols[symbol].0))
    }

    /// Checks the sizes of one input regardless of other inputs: fixed sizes, and the bounds of sizes that are a single
    /// symbol.
    ///
    /// # Errors
    /// The first size that is not allowed.
    pub fn check_input(&self, input: usize, sizes: &[usize]) -> Result<(), SizeProblem> {
        let Some(Some(rules)) = self.inputs.get(input) else { return Ok(()) };
        for (dim, (rule, &size)) in rules.iter().zip(sizes).enumerate() {
            let Some(rule) = rule else { continue };
            let allowed = match (rule.int(), rule.symbol()) {
                (Some(fixed), _) => i64::try_from(size) == Ok(fixed),
                (_, Some(symbol)) => self.is_in_bounds(symbol, size),
                _ => true,
            };
            if !allowed {
                return Err(self.size_problem(input, dim, size, rule, None));
            }
        }
        Ok(())
    }

    /// Checks the sizes of all inputs together; `sizes_of` returns those of an input, or `None` if it is no tensor.
    ///
    /// # Errors
    /// The first size that is not allowed.
    pub fn check<'s>(&self, sizes_of: impl Fn(usize) -> Option<&'s [usize]>) -> Result<(), SizeProblem> {
        let mut values: Values = SmallVec::from_elem(None, self.symbols.len());
        let rules_and_sizes = |input: usize| {
            let rules = self.inputs[input].as_deref().unwrap_or_default();
            rules.iter().zip(sizes_of(input).unwrap_or_default()).enumerate()
        };
        for input in 0..self.inputs.len() {
            if let Some(sizes) = sizes_of(input) {
                self.check_input(input, sizes)?;
            }
            for (_, (rule, &size)) in rules_and_sizes(input) {
                if let Some(symbol) = rule.as_ref().and_then(Expression::symbol) {
                    values[symbol] = values[symbol].or(i64::try_from(size).ok());
                }
            }
        }
        for input in 0..self.inputs.len() {
            for (dim, (rule, &size)) in rules_and_sizes(input) {
                let Some(rule) = rule else { continue };
                if !self.solve_for_symbol(rule, size, &mut values) {
                    return Err(self.size_problem(input, dim, size, rule, None));
                }
                let value = rule.evaluate(|symbol| values[symbol]);
                if value.is_some_and(|value| i64::try_from(size) != Ok(value)) {
                    return Err(self.size_problem(input, dim, size, rule, value));
                }
            }
        }
        Ok(())
    }

    /// Determines the only symbol without a value in an expression that is linear in it. Returns `false` if no value in
    /// the symbol's range gives the size.
    fn solve_for_symbol(&self, rule: &Expression, size: usize, values: &mut Values) -> bool {
        let mut unknown = rule.symbols().filter(|&symbol| values[symbol].is_none());
        let Some(symbol) = unknown.next() else { return true };
        if unknown.any(|other| other != symbol) || !rule.is_polynomial() {
            return true;
        }
        let at = |x: i64| rule.evaluate(|s| if s == symbol { Some(x) } else { values[s] });
        let (Some(zero), Some(one), Some(two)) = (at(0), at(1), at(2)) else { return true };
        let (Some(slope), Some(next)) = (one.checked_sub(zero), two.checked_sub(one)) else { return true };
        if slope != next || slope == 0 {
            return true;
        }
        let Some(offset) = i64::try_from(size).ok().and_then(|size| size.checked_sub(zero)) else {
            return false;
        };
        let Some(x) = offset.checked_div(slope).filter(|x| x.checked_mul(slope) == Some(offset)) else {
            return false;
        };
        values[symbol] = Some(x);
        usize::try_from(x).is_ok_and(|x| self.is_in_bounds(symbol, x))
    }

    fn is_in_bounds(&self, symbol: usize, size: usize) -> bool {
        let Bounds { min, max } = self.symbols[symbol].1;
        let size = i64::try_from(size).unwrap_or(i64::MAX);
        (min <= MIN_HELD || size >= min) && size <= max
    }

    fn size_problem(
        &self,
        input: usize,
        dim: usize,
        size: usize,
        rule: &Expression,
        value: Option<i64>,
    ) -> SizeProblem {
        let mut exported = self.named_size(rule).to_string();
        match value {
            Some(value) if rule.int().is_none() => exported.push_str(&format!(", which is {value}")),
            _ => rule.symbols().for_each(|symbol| {
                let (name, Bounds { min, max }) = &self.symbols[symbol];
                if rule.symbol().is_none() {
                    exported.push_str(&format!(", {name}"));
                }
                exported.push_str(&match max {
                    &i64::MAX => format!(" at least {min}"),
                    max => format!(" from {min} to {max}"),
                });
            }),
        }
        SizeProblem { input, dim, found: size, exported }
    }
}

/// Whether every symbol of a size is a plain name. A call of an unknown function is read as a symbol, too.
fn has_plain_symbols(size: &Size) -> bool {
    let Size::Sym(expression) = size else { return true };
    let mut plain = true;
    let is_plain = |c: char| c.is_alphanumeric() || matches!(c, '_' | '.');
    SymExpr::for_each_symbol(expression, &mut |name| plain &= !name.is_empty() && name.chars().all(is_plain));
    plain
}

impl fmt::Display for InputSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}")?;
        for (name, Bounds { min, max }) in &self.symbols {
            match max {
                &i64::MAX => writeln!(f, "symbol {name} {min} -")?,
                max => writeln!(f, "symbol {name} {min} {max}")?,
            }
        }
        for input in &self.inputs {
            f.write_str("input")?;
            match input {
                None => f.write_str(" -")?,
                Some(sizes) => {
                    for (i, size) in sizes.iter().enumerate() {
                        f.write_str(if i > 0 { "; " } else { " " })?;
                        match size {
                            None => f.write_str("?")?,
                            Some(size) => write!(f, "{size}")?,
                        }
                    }
                }
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl FromStr for InputSizes {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        match lines.next() {
            Some(HEADER) => {}
            Some(other) if other.starts_with("input sizes ") => {
                return Err(format!("version `{}` is not known here, `{HEADER}` is", shorten(other)));
            }
            _ => return Err(format!("the first line is not `{HEADER}`")),
        }
        let mut all = Self::default();
        for line in lines {
            all.parse_line(line).map_err(|problem| format!("`{}`: {problem}", shorten(line)))?;
        }
        Ok(all)
    }
}

impl InputSizes {
    fn parse_line(&mut self, line: &str) -> Result<(), String> {
        match line.split_once(' ').unwrap_or((line, "")) {
            ("symbol", rest) => {
                let words: Vec<&str> = rest.split(' ').collect();
                let &[name, min, max] = &words[..] else {
                    return Err("a symbol has a name, a minimum and a maximum".into());
                };
                let int = |text: &str| text.parse::<i64>().map_err(|_| format!("`{text}` is no integer"));
                let max = if max == "-" { i64::MAX } else { int(max)? };
                if self.symbols.len() == MAX_SYMBOLS || self.symbols.iter().any(|(known, _)| **known == *name)
                {
                    return Err(format!("the symbol stands twice, or there are more than {MAX_SYMBOLS}"));
                }
                self.symbols.push((name.into(), Bounds { min: int(min)?, max }));
            }
            ("input", "-") => self.inputs.push(None),
            ("input", "") => self.inputs.push(Some(Vec::new())),
            ("input", rest) => {
                let size = |text: &str| match text {
                    "?" => Ok(None),
                    text => Expression::parse(text, self.symbols.len()).map(Some),
                };
                self.inputs.push(Some(rest.split("; ").map(size).collect::<Result<_, _>>()?));
            }
            _ => return Err("neither a symbol nor an input".into()),
        }
        Ok(())
    }
}

fn shorten(line: &str) -> String {
    line.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "input sizes 1\nsymbol b 1 64\nsymbol n 5 -\ninput s0; 32\ninput -\n\
        input s0 2 mul; ?\ninput s1 3 mul -1 add\ninput s0; s1\ninput\n";

    fn check(sizes: [&[usize]; 6]) -> Result<(), String> {
        let all: InputSizes = TEXT.parse().unwrap();
        all.check(|input| (input != 1).then(|| sizes[input]))
            .map_err(|p| format!("{}.{}: {} for {}", p.input, p.dim, p.found, p.exported))
    }

    #[test]
    fn the_text_form_round_trips() {
        assert_eq!(TEXT.parse::<InputSizes>().unwrap().to_string(), TEXT);
        for wrong in [
            "",
            "input sizes 2\n",
            "input sizes 1\nsymbol b 1\n",
            "input sizes 1\nsymbol b 1 x\n",
            "input sizes 1\nsymbol b 1 2\nsymbol b 1 2\n",
            "input sizes 1\ninput s0\n",
            "input sizes 1\noutput 1\n",
        ] {
            assert!(wrong.parse::<InputSizes>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_held_to_what_was_exported() {
        let check_sizes = |rows, columns, twice, less, n| {
            check([&[rows, columns], &[], &[twice, 7], &[less], &[rows, n], &[]])
        };
        assert_eq!(check_sizes(3, 32, 6, 17, 6), Ok(()));
        assert_eq!(check_sizes(3, 31, 6, 17, 6), Err("0.1: 31 for 32".into()));
        assert_eq!(check_sizes(65, 32, 130, 17, 6), Err("0.0: 65 for b from 1 to 64".into()));
        assert_eq!(check_sizes(3, 32, 5, 17, 6), Err("2.0: 5 for 2*b, which is 6".into()));
        assert_eq!(check_sizes(3, 32, 6, 17, 7), Err("3.0: 17 for -1 + 3*n, which is 20".into()));
        assert_eq!(check_sizes(3, 32, 6, 11, 4), Err("4.1: 4 for n at least 5".into()));
        // Exporters specialize neither 0 nor 1.
        assert_eq!(check_sizes(0, 32, 0, 17, 6), Ok(()));
        let equal = check([&[3, 32], &[], &[6, 7], &[17], &[4, 6], &[]]);
        assert_eq!(equal, Err("4.0: 4 for b, which is 3".into()));
    }

    #[test]
    fn a_symbol_that_stands_only_in_a_linear_size_is_determined_by_it() {
        let all: InputSizes =
            "input sizes 1\nsymbol b 3 64\ninput s0 2 mul\ninput s0 2 floordiv\n".parse().unwrap();
        let check = |a: usize, b: usize| all.check(|i| Some(std::slice::from_ref([&a, &b][i]))).is_ok();
        assert!(check(8, 2) && !check(7, 2) && !check(8, 3) && !check(4, 1));
    }

    #[test]
    fn sizes_are_stored_only_if_bounds_do_not_say_them() {
        use pteron_tensor::ScalarType::Float;
        let of = |inputs: &[&[&str]], min| {
            let mut program = ExportedProgram::new("forward");
            program.ranges.insert("b".into(), Bounds { min, max: 64 });
            let size = |text: &&str| text.parse::<i64>().map_or_else(|_| Size::symbol(*text), Size::Int);
            for sizes in inputs {
                let spec = crate::TensorSpec::contiguous(Float, sizes.iter().map(size).collect());
                let var = program.add_var("x", VarType::Tensor(spec));
                program.graph.inputs.push(var);
                program.inputs.push(crate::InputKind::User);
            }
            InputSizes::from_program(&program).map(|sizes| sizes.to_string())
        };
        assert_eq!(of(&[&["b"], &["c"], &["3", "4"]], 0), None);
        assert!(of(&[&["b"]], 3).is_some());
        assert!(of(&[&["b"], &["b"]], 0).is_some());
        assert_eq!(of(&[&["b", "8"]], 0).unwrap(), "input sizes 1\nsymbol b 0 64\ninput s0; 8\n");
    }
}
