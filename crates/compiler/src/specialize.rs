//! Specializes programs: fixes or narrows sizes that the exporter left dynamic.

use crate::sizes::sizes_of;
use crate::{Error, Result, pt2};
use pteron_exported::{
    Argument, Bounds, ExportedGraph, ExportedProgram, IntArgument, Size, SymExpr, SymOp, VarId, VarType,
};
use pteron_operator::did_you_mean;
use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

/// The greatest minimum that exporters write for sizes that may also be smaller: they assume that a dynamic size is
/// neither 0 nor 1.
const ASSUMED_MIN: i64 = 2;

/// A size of a program, and the values that it may have: one, or a range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SizeBounds {
    /// A symbol (`s77`), or a dimension of an input by the input's name or position (`x.0`, `0.0`).
    pub name: String,
    /// The values, inclusive.
    pub bounds: Bounds,
}

/// The values of symbols.
type Values = BTreeMap<Arc<str>, i64>;

/// Fixes or narrows the sizes of programs. A name is that of a symbol or an input in at least one of them.
///
/// # Errors
/// A name is unknown, the export does not allow the sizes, or two of them contradict each other.
pub(crate) fn specialize(programs: &mut [ExportedProgram], sizes: &[SizeBounds]) -> Result<()> {
    for size in sizes {
        if !programs.iter().any(|program| find_size(program, &size.name).is_some()) {
            return Err(unknown_size_error(programs, &size.name));
        }
    }
    if sizes.is_empty() {
        Ok(())
    } else {
        programs.iter_mut().try_for_each(|program| specialize_program(program, sizes))
    }
}

fn specialize_program(program: &mut ExportedProgram, sizes: &[SizeBounds]) -> Result<()> {
    let mut given: BTreeMap<Arc<str>, String> = BTreeMap::new();
    for SizeBounds { name, bounds } in sizes {
        let Some(size) = find_size(program, name) else { continue };
        let wanted = format_bounds(bounds);
        let (symbol, narrowed) = match solve(&size, *bounds) {
            Solution::Known(known) if bounds.min <= known && known <= bounds.max => continue,
            Solution::Known(known) => {
                return Err(Error::Option(format!(
                    "`{name}` is {known} in the export, and cannot be {wanted}"
                )));
            }
            Solution::None => {
                return Err(Error::Option(format!("`{name}` is `{size}`, which cannot be {wanted}")));
            }
            Solution::Unsolved => {
                let names = symbols(&size).join("`, `");
                return Err(Error::Option(format!(
                    "`{name}` is `{size}`: give the sizes of its symbols, `{names}`"
                )));
            }
            Solution::Symbol(symbol, narrowed) => (symbol, narrowed),
        };
        let exported = program.ranges.get(&symbol).copied().unwrap_or(Bounds::UNKNOWN);
        let allowed = enforced_bounds(exported);
        let joined = Bounds { min: allowed.min.max(narrowed.min), max: allowed.max.min(narrowed.max) };
        if joined.min > joined.max {
            let allowed = match given.get(&symbol) {
                Some(other) => format!("`--size {other}` is given, too"),
                None => format!("the export allows `{symbol}` to be {}", format_bounds(&allowed)),
            };
            let of = if *name == *symbol { String::new() } else { format!("is `{size}`, and ") };
            return Err(Error::Option(format!("`{name}` {of}cannot be {wanted}: {allowed}")));
        }
        program.ranges.insert(Arc::clone(&symbol), joined);
        given.entry(symbol).or_insert_with(|| format!("{name}={wanted}"));
    }
    let fixed = |symbol: &Arc<str>| program.ranges.get(symbol).filter(|b| b.min == b.max).map(|b| b.min);
    let values: Values =
        given.keys().filter_map(|symbol| Some((Arc::clone(symbol), fixed(symbol)?))).collect();
    check_guards(program, &given)?;
    fix_symbols(program, values);
    Ok(())
}

/// What the bounds of a size imply for its symbol.
enum Solution {
    /// The size has no symbol.
    Known(i64),
    /// The size's only symbol, and the bounds that follow for it.
    Symbol(Arc<str>, Bounds),
    /// No value of the size's only symbol gives a size within the bounds.
    None,
    /// The size has several symbols, or does not grow linearly with its only one.
    Unsolved,
}

fn solve(size: &Size, bounds: Bounds) -> Solution {
    if let Some(known) = size.known() {
        return Solution::Known(known);
    }
    let names = symbols(size);
    let [symbol] = &names[..] else { return Solution::Unsolved };
    if !is_polynomial(&size.expr()) {
        return Solution::Unsolved;
    }
    let at = |x: i64| substitute_symbols(size, &Values::from([(Arc::clone(symbol), x)])).known();
    let (Some(zero), Some(one), Some(two)) = (at(0), at(1), at(2)) else { return Solution::Unsolved };
    let (Some(slope), Some(next)) = (one.checked_sub(zero), two.checked_sub(one)) else {
        return Solution::Unsolved;
    };
    if slope != next || slope < 1 {
        return Solution::Unsolved;
    }
    let min = bounds.min.saturating_sub(zero);
    let min = min.div_euclid(slope).saturating_add(i64::from(min.rem_euclid(slope) > 0));
    let max = match bounds.max {
        i64::MAX => i64::MAX,
        max => max.saturating_sub(zero).div_euclid(slope),
    };
    if min > max { Solution::None } else { Solution::Symbol(Arc::clone(symbol), Bounds { min, max }) }
}

/// Whether an expression consists of sums and products.
fn is_polynomial(expression: &SymExpr) -> bool {
    match expression {
        SymExpr::Op(op, args) => matches!(op, SymOp::Add | SymOp::Mul) && args.iter().all(is_polynomial),
        _ => true,
    }
}

/// The bounds that are enforced: an exported minimum up to [`ASSUMED_MIN`] excludes no size but 0.
fn enforced_bounds(Bounds { min, max }: Bounds) -> Bounds {
    Bounds { min: if min <= ASSUMED_MIN { min.min(1) } else { min }, max }
}

/// Fails if the bounds given for symbols violate a guard: a bound of the export on an expression such as `s0*s1`.
fn check_guards(program: &ExportedProgram, given: &BTreeMap<Arc<str>, String>) -> Result<()> {
    for (guard, &bounds) in &program.ranges {
        let Ok(size) = pt2::parse_size(guard) else { continue };
        let used = symbols(&size);
        let options: Vec<String> = used
            .iter()
            .filter_map(|symbol| given.get(symbol))
            .map(|text| format!("`--size {text}`"))
            .collect();
        let (found, allowed) = (size.bounds(&program.ranges), enforced_bounds(bounds));
        if !options.is_empty() && (found.max < allowed.min || found.min > allowed.max) {
            let (options, found, allowed) =
                (options.join(" and "), format_bounds(&found), format_bounds(&allowed));
            let message =
                format!("with {options}, `{size}` is {found}; the export allows it to be {allowed}");
            return Err(Error::Option(message));
        }
    }
    Ok(())
}

/// Replaces symbols by their values in all sizes, and the values that nodes compute from them by constants. Sizes that
/// follow from those of operands become known, too.
fn fix_symbols(program: &mut ExportedProgram, mut values: Values) {
    if values.is_empty() {
        return;
    }
    let mut fixed = HashSet::new();
    loop {
        replace_sizes(program, &values, &mut fixed);
        let mut inferred = Values::new();
        infer_symbols(program, &program.graph, &mut inferred);
        inferred.retain(|symbol, _| !values.contains_key(symbol));
        if inferred.is_empty() {
            break;
        }
        values.extend(inferred);
    }
    program.ranges.retain(|symbol, _| !values.contains_key(symbol));
    let mut graph = std::mem::take(&mut program.graph);
    replace_fixed_integers(program, &mut graph, &fixed);
    program.graph = graph;
}

fn replace_sizes(program: &mut ExportedProgram, values: &Values, fixed: &mut HashSet<VarId>) {
    for id in program.var_ids() {
        match &mut program.var_mut(id).ty {
            VarType::Tensor(spec) => {
                spec.sizes.iter_mut().for_each(|size| *size = substitute_symbols(size, values));
            }
            VarType::Int(size) => {
                let is_symbolic = size.known().is_none();
                *size = substitute_symbols(size, values);
                if is_symbolic && size.known().is_some() {
                    fixed.insert(id);
                }
            }
            _ => {}
        }
    }
}

/// Collects the values of symbols that stand for sizes which follow from those of operands.
fn infer_symbols(program: &ExportedProgram, graph: &ExportedGraph, values: &mut Values) {
    graph.for_each_node(&mut |node| {
        for (index, &output) in node.outputs.iter().enumerate() {
            let Some(spec) = program.spec(output).filter(|spec| spec.known_sizes().is_none()) else {
                continue;
            };
            let Some(found) = sizes_of(program, node, index) else { continue };
            for (size, found) in spec.sizes.iter().zip(&found) {
                if let (Some(symbol), Some(found)) = (symbol_of(size), found.known()) {
                    values.insert(Arc::clone(symbol), found);
                }
            }
        }
    });
}

/// Replaces integers that became known by constants where nodes and outputs use them, but not the inputs of nested
/// graphs, which may change between iterations.
fn replace_fixed_integers(program: &ExportedProgram, graph: &mut ExportedGraph, fixed: &HashSet<VarId>) {
    let number = |var: VarId| match &program.var(var).ty {
        VarType::Int(size) if fixed.contains(&var) => size.known(),
        _ => None,
    };
    let replace = |arg: &mut Argument| match arg {
        Argument::Var(var) => {
            if let Some(number) = number(*var) {
                *arg = Argument::Int(number);
            }
        }
        Argument::Ints(items) => {
            for item in items {
                if let IntArgument::Var(var) = item
                    && let Some(number) = number(*var)
                {
                    *item = IntArgument::Int(number);
                }
            }
        }
        _ => {}
    };
    for node in &mut graph.nodes {
        node.args.iter_mut().for_each(|(_, arg)| replace(arg));
        for inner in node.graphs_mut() {
            let own: HashSet<VarId> =
                fixed.difference(&inner.inputs.iter().copied().collect()).copied().collect();
            replace_fixed_integers(program, inner, &own);
        }
    }
    graph.outputs.iter_mut().for_each(replace);
}

/// The size with symbols replaced by their values.
fn substitute_symbols(size: &Size, values: &Values) -> Size {
    fn substitute(of: &SymExpr, values: &Values) -> SymExpr {
        match of {
            SymExpr::Symbol(name) => {
                values.get(name).map_or_else(|| of.clone(), |&value| SymExpr::Int(value))
            }
            SymExpr::Int(_) => of.clone(),
            SymExpr::Op(op, args) => {
                SymExpr::Op(*op, args.iter().map(|arg| substitute(arg, values)).collect())
            }
        }
    }
    let Size::Sym(symbolic) = size else { return size.clone() };
    let mut is_affected = false;
    symbolic.for_each_symbol(&mut |name| is_affected |= values.contains_key(name));
    if is_affected { substitute(symbolic, values).simplify() } else { size.clone() }
}

/// The symbols of a size, each once.
fn symbols(size: &Size) -> Vec<Arc<str>> {
    let mut names = Vec::new();
    if let Size::Sym(expression) = size {
        expression.for_each_symbol(&mut |name| {
            if !names.contains(name) {
                names.push(Arc::clone(name));
            }
        });
    }
    names
}

fn symbol_of(size: &Size) -> Option<&Arc<str>> {
    match size {
        Size::Sym(expression) => match &**expression {
            SymExpr::Symbol(name) => Some(name),
            _ => None,
        },
        Size::Int(_) => None,
    }
}

/// The size with this name: a symbol in the sizes of inputs, or a dimension of an input.
fn find_size(program: &ExportedProgram, name: &str) -> Option<Size> {
    let by_name =
        named_inputs(program).into_iter().find_map(|(input, sizes)| match name.strip_prefix(&input)? {
            "" if sizes.len() == 1 => sizes.first().cloned(),
            rest => sizes.get(rest.strip_prefix('.')?.parse::<usize>().ok()?).cloned(),
        });
    let by_position = || {
        let (input, dim) = name.split_once('.')?;
        let var = program.user_inputs().nth(input.parse().ok()?)?;
        sizes_of_input(program, var).get(dim.parse::<usize>().ok()?).cloned()
    };
    let by_symbol = || {
        let mut all = program.user_inputs().flat_map(|var| sizes_of_input(program, var));
        all.any(|size| symbols(&size).iter().any(|symbol| **symbol == *name)).then(|| Size::symbol(name))
    };
    by_symbol().or(by_name).or_else(by_position)
}

/// The sizes of a tensor input, or the value of an integer input as its only size.
fn sizes_of_input(program: &ExportedProgram, var: VarId) -> Vec<Size> {
    match &program.var(var).ty {
        VarType::Tensor(spec) => spec.sizes.clone(),
        VarType::Int(size) => vec![size.clone()],
        _ => Vec::new(),
    }
}

/// The inputs that the caller passes, by name or, without one, by position.
fn named_inputs(program: &ExportedProgram) -> Vec<(String, Vec<Size>)> {
    let name = |index: usize| program.input_names.get(index).cloned().flatten();
    let named =
        |(index, var)| (name(index).unwrap_or_else(|| index.to_string()), sizes_of_input(program, var));
    program.user_inputs().enumerate().map(named).collect()
}

fn unknown_size_error(programs: &[ExportedProgram], name: &str) -> Error {
    let mut known: Vec<String> = Vec::new();
    for (input, sizes) in programs.iter().flat_map(named_inputs) {
        for (dim, size) in sizes.iter().enumerate().filter(|(_, size)| size.known().is_none()) {
            known.push(format!("{input}.{dim}"));
            known.extend(symbols(size).iter().map(|symbol| symbol.to_string()));
        }
    }
    known.sort();
    known.dedup();
    if known.is_empty() {
        return Error::Option(format!(
            "there is no dynamic size `{name}`: all sizes of the inputs are fixed"
        ));
    }
    let like = did_you_mean(name, known.iter().map(String::as_str));
    Error::Option(format!("there is no size `{name}`{like}; the dynamic ones are {}", known.join(", ")))
}

fn format_bounds(bounds: &Bounds) -> String {
    match *bounds {
        Bounds { min, max } if min == max => min.to_string(),
        Bounds { min, max: i64::MAX } => format!("{min}.."),
        Bounds { min, max } => format!("{min}..{max}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guards_on_expressions_are_held_and_named() {
        let text = "forward:\n  s0 in 2..=16\n  s1 in 2..=16\n  input %x: float32[s0, s1]\n  return %x\n";
        let with = |a: i64, b: i64| {
            let mut program = pteron_exported::parse(text).unwrap();
            program.ranges.insert("s0*s1".into(), Bounds { min: 4, max: 64 });
            let size = |name: &str, n| SizeBounds { name: name.to_owned(), bounds: Bounds::exactly(n) };
            specialize(&mut [program], &[size("s0", a), size("s1", b)]).map_err(|e| e.to_string())
        };
        assert_eq!(with(8, 8), Ok(()));
        let expected =
            "with `--size s0=16` and `--size s1=8`, `s0*s1` is 128; the export allows it to be 4..64";
        assert_eq!(with(16, 8), Err(expected.to_owned()));
    }
}
