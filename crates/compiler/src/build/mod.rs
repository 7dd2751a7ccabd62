//! Builds exported programs call by call, without an exporter.

mod bind;
mod types;

use crate::{Error, NodeError, Result};
use bind::{BoundCall, Signatures};
use pteron_exported::{
    Argument, Bounds, ConstantTensor, ExportedNode, ExportedProgram, InputKind, Ranges, Size, SymExpr,
    TensorSpec, VarId, VarType,
};
use pteron_ir::SharedBytes;
use pteron_operator::{KernelRegistry, did_you_mean};
use pteron_tensor::MAX_RANK;
use std::collections::HashSet;
use std::fmt::Display;
use std::sync::Arc;

/// Builds the [`ExportedProgram`] of one method, for [`compile_exported`](crate::compile_exported).
///
/// Operators are named as exporters name them, `aten.add.Tensor`, or as kernels are, `aten::add.out`; without an
/// overload, the first that takes the arguments is called. Arguments follow the operator's schema: that of its kernel,
/// or PyTorch's for an operator without one.
///
/// ```
/// use pteron_exported::{Argument, Bounds, TensorSpec};
/// use pteron_compiler::GraphBuilder;
/// use pteron_tensor::ScalarType::Float;
///
/// # fn main() -> pteron_compiler::Result<()> {
/// let mut graph = GraphBuilder::new("forward", &pteron_kernels::registry());
/// let rows = graph.symbol("rows", Bounds { min: 1, max: 64 })?;
/// let x = graph.input("x", TensorSpec::contiguous(Float, vec![rows, 3.into()]))?;
/// let y = graph.call("aten.softmax", &[x.into(), Argument::Int(-1)], &[])?[0];
/// let y = graph.call("aten.add", &[y.into()], &[("other", Argument::Float(1.5))])?[0];
/// graph.output(y)?;
/// assert_eq!(graph.var(y)?.ty.to_string(), "float32[rows, 3]");
/// let program = graph.finish()?;
/// # assert_eq!(program.graph.nodes.len(), 2);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct GraphBuilder {
    program: ExportedProgram,
    signatures: Arc<Signatures>,
    names: HashSet<Arc<str>>,
}

impl GraphBuilder {
    /// An empty graph for the method `name`, which may call the operators of a registry and those that the compiler
    /// decomposes into them.
    pub fn new(name: impl Into<String>, registry: &KernelRegistry) -> Self {
        let signatures = Arc::new(Signatures::from_registry(registry));
        Self { program: ExportedProgram::new(name), signatures, names: HashSet::new() }
    }

    /// The program built so far.
    pub fn program(&self) -> &ExportedProgram {
        &self.program
    }

    /// A size that the caller chooses. Sizes with the same name are equal.
    ///
    /// # Errors
    /// The bounds are no bounds of a size, or differ from those given before.
    pub fn symbol(&mut self, name: &str, bounds: Bounds) -> Result<Size> {
        if bounds.min < 0 || bounds.max < bounds.min || bounds.max > i64::from(i32::MAX) {
            let Bounds { min, max } = bounds;
            return self.fail(format_args!("size `{name}` cannot be from {min} to {max}"));
        }
        match self.program.ranges.get(name) {
            Some(known) if *known != bounds => {
                let Bounds { min, max } = *known;
                return self.fail(format_args!("size `{name}` is from {min} to {max} already"));
            }
            Some(_) => {}
            None => drop(self.program.ranges.insert(name.into(), bounds)),
        }
        Ok(Size::symbol(name))
    }

    /// Adds an input that the caller passes.
    ///
    /// # Errors
    /// Another value has its name, its dim order has another rank, or a size is neither known nor a symbol of the
    /// graph.
    pub fn input(&mut self, name: &str, spec: TensorSpec) -> Result<VarId> {
        self.check_sizes(name, &spec.sizes)?;
        if spec.dim_order.len() != spec.rank() {
            return self.fail(format_args!("`{name}` has another rank than its dim order"));
        }
        let name = self.new_name(name)?;
        self.program.input_names.push(Some(name.to_string()));
        let var = self.program.add_var(name, VarType::Tensor(spec));
        self.program.graph.inputs.push(var);
        self.program.inputs.push(InputKind::User);
        Ok(var)
    }

    /// Adds a constant, whose elements have the dim order of `spec`. A constant with a name is stored outside the
    /// program if weights are; one without a name stays in the program.
    ///
    /// # Errors
    /// Another value has its name, a size is not known, or it has another number of bytes than `spec` needs.
    pub fn constant(&mut self, name: Option<&str>, spec: TensorSpec, bytes: SharedBytes) -> Result<VarId> {
        let numel = spec.known_sizes().and_then(|sizes| {
            sizes.iter().try_fold(spec.dtype.size(), |n, &size| n.checked_mul(usize::try_from(size).ok()?))
        });
        if numel != Some(bytes.len()) {
            let (ty, actual) = (VarType::Tensor(spec), bytes.len());
            return self.fail(format_args!("a constant {ty} of {actual} bytes"));
        }
        let unique_name = name.map(|name| self.new_name(name)).transpose()?;
        let range = 0..bytes.len();
        let data = ConstantTensor { name: unique_name.clone(), bytes, range };
        let name = unique_name.unwrap_or_else(|| self.unused_name("constant"));
        Ok(self.program.add_constant(name, spec, data))
    }

    /// Calls an operator, and returns its results. Their types follow from its arguments.
    ///
    /// # Errors
    /// There is no such operator, it does not take the arguments, or the types of its results are not known without
    /// running it: [`call_as`](Self::call_as) takes them.
    pub fn call(
        &mut self,
        operator: &str,
        args: &[Argument],
        named: &[(&str, Argument)],
    ) -> Result<Vec<VarId>> {
        let (bound, node) = self.bind_call(operator, args, named)?;
        let types = types::result_count(&self.program, &node, &bound.schema)
            .and_then(|count| types::result_types(&self.program, &node, &bound.schema, count));
        match types {
            Ok(types) => Ok(self.push(node, types)),
            Err(problem) => self.reject(&node.target, problem),
        }
    }

    /// Calls an operator whose results have these types.
    ///
    /// # Errors
    /// There is no such operator, it does not take the arguments, or it has another number of results.
    pub fn call_as(
        &mut self,
        operator: &str,
        args: &[Argument],
        named: &[(&str, Argument)],
        results: Vec<TensorSpec>,
    ) -> Result<Vec<VarId>> {
        let (bound, node) = self.bind_call(operator, args, named)?;
        if let Ok(count) = types::result_count(&self.program, &node, &bound.schema)
            && count != results.len()
        {
            return self.reject(&node.target, format!("it has {count} results, not {}", results.len()));
        }
        results.iter().try_for_each(|spec| self.check_sizes(operator, &spec.sizes))?;
        Ok(self.push(node, results.into_iter().map(VarType::Tensor).collect()))
    }

    /// Adds a value to the outputs of the method.
    ///
    /// # Errors
    /// The graph has no such value.
    pub fn output(&mut self, value: VarId) -> Result<()> {
        self.var(value)?;
        self.program.graph.outputs.push(Argument::Var(value));
        Ok(())
    }

    /// A value.
    ///
    /// # Errors
    /// The graph has no such value.
    pub fn var(&self, value: VarId) -> Result<&pteron_exported::Var> {
        match value.index() < self.program.num_vars() {
            true => Ok(self.program.var(value)),
            false => self.fail("a value of another graph"),
        }
    }

    /// The finished program.
    ///
    /// # Errors
    /// It has no output.
    pub fn finish(self) -> Result<ExportedProgram> {
        if self.program.graph.outputs.is_empty() {
            return self.fail("it has no output");
        }
        self.program.verify()?;
        Ok(self.program)
    }

    /// Selects the overload that takes the arguments. Returns the bound call, and a node for it without results so far.
    fn bind_call(
        &self,
        operator: &str,
        args: &[Argument],
        named: &[(&str, Argument)],
    ) -> Result<(BoundCall, ExportedNode)> {
        for var in args.iter().chain(named.iter().map(|(_, arg)| arg)).flat_map(Argument::vars) {
            self.var(var)?;
        }
        let binding = self.signatures.bind(&self.program, operator, args, named);
        let bound = binding.or_else(|problem| self.reject(operator, problem))?;
        let node = ExportedNode {
            target: bound.target.as_str().into(),
            args: bound.args.clone(),
            outputs: Vec::new(),
            source: Arc::default(),
        };
        Ok((bound, node))
    }

    fn push(&mut self, node: ExportedNode, types: Vec<VarType>) -> Vec<VarId> {
        let name = node.target.split('.').nth(1).unwrap_or_default().to_owned();
        let mut outputs = Vec::with_capacity(types.len());
        for ty in types {
            let name = self.unused_name(&name);
            outputs.push(self.program.add_var(name, ty));
        }
        self.program.graph.nodes.push(ExportedNode { outputs: outputs.clone(), ..node });
        outputs
    }

    fn check_sizes(&self, what: &str, sizes: &[Size]) -> Result<()> {
        if sizes.len() > MAX_RANK {
            return self.fail(format_args!("`{what}` has {} dimensions, of at most {MAX_RANK}", sizes.len()));
        }
        for size in sizes {
            match size {
                Size::Int(size) if !(0..=i64::from(i32::MAX)).contains(size) => {
                    return self.fail(format_args!("`{what}` cannot have a size of {size}"));
                }
                Size::Int(_) => {}
                Size::Sym(expr) => {
                    if let Some(symbol) = find_undeclared(expr, &self.program.ranges) {
                        let like = did_you_mean(symbol, self.program.ranges.keys().map(|name| &**name));
                        return self.fail(format_args!("`{what}`: there is no size `{symbol}`{like}"));
                    }
                }
            }
        }
        Ok(())
    }

    fn new_name(&mut self, name: &str) -> Result<Arc<str>> {
        let name: Arc<str> = name.into();
        match self.names.insert(Arc::clone(&name)) {
            true => Ok(name),
            false => self.fail(format_args!("two values have the name `{name}`")),
        }
    }

    /// A name that no other value has: `name`, or `name_N` with the first free number from the count of values on.
    fn unused_name(&mut self, name: &str) -> Arc<str> {
        let mut free: Arc<str> = name.into();
        let mut number = self.program.num_vars();
        while !self.names.insert(Arc::clone(&free)) {
            free = format!("{name}_{number}").into();
            number += 1;
        }
        free
    }

    fn fail<T>(&self, problem: impl Display) -> Result<T> {
        Err(Error::Option(format!("graph `{}`: {problem}", self.program.name)))
    }

    fn reject<T>(&self, operator: &str, problem: String) -> Result<T> {
        let node = format!("{}.{}", self.program.name, self.program.graph.nodes.len());
        Err(Error::Node(Box::new(NodeError { node, target: operator.to_owned(), line: None, problem })))
    }
}

/// Finds a symbol in `expr` that has no bounds in `ranges`.
fn find_undeclared<'e>(expr: &'e SymExpr, ranges: &Ranges) -> Option<&'e str> {
    match expr {
        SymExpr::Symbol(name) => (!ranges.contains_key(name)).then_some(name),
        SymExpr::Int(_) => None,
        SymExpr::Op(_, operands) => operands.iter().find_map(|operand| find_undeclared(operand, ranges)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType::{Float, Long};

    fn graph() -> GraphBuilder {
        GraphBuilder::new("forward", &pteron_kernels::registry())
    }

    fn input(graph: &mut GraphBuilder, name: &str, sizes: &[i64]) -> Argument {
        let sizes = sizes.iter().map(|&size| size.into()).collect();
        graph.input(name, TensorSpec::contiguous(Float, sizes)).unwrap().into()
    }

    fn called(graph: &mut GraphBuilder, operator: &str, args: &[Argument]) -> String {
        match graph.call(operator, args, &[]) {
            Ok(vars) => {
                let node = graph.program.graph.nodes.last().unwrap();
                let types: Vec<_> = vars.iter().map(|&var| graph.var(var).unwrap().ty.to_string()).collect();
                format!("{}: {}", node.target, types.join(", "))
            }
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn overloads_and_types_follow_from_the_arguments() {
        let mut graph = graph();
        let x = input(&mut graph, "x", &[2, 3]);
        let row = input(&mut graph, "row", &[3]);
        let of = |graph: &mut GraphBuilder, operator: &str, args: &[Argument]| {
            called(graph, operator, &[std::slice::from_ref(&x), args].concat())
        };
        let (int, row) = (Argument::Int, std::slice::from_ref(&row));
        assert_eq!(of(&mut graph, "aten.add", row), "aten.add.Tensor: float32[2, 3]");
        assert_eq!(of(&mut graph, "aten::add.out", row), "aten.add.Tensor: float32[2, 3]");
        assert_eq!(of(&mut graph, "aten.add", &[int(2)]), "aten.add.Scalar: float32[2, 3]");
        assert_eq!(of(&mut graph, "aten.eq", row), "aten.eq.Tensor: bool[2, 3]");
        assert_eq!(of(&mut graph, "aten.sum", &[int(1)]), "aten.sum.dim_IntList: float32[2]");
        assert_eq!(of(&mut graph, "aten.max", &[int(1)]), "aten.max.dim: float32[2], int64[2]");
        assert_eq!(of(&mut graph, "aten.max", &[]), "aten.max.default: float32[]");
        assert_eq!(
            of(&mut graph, "aten.view", &[Argument::ints(&[3, -1])]),
            "aten.view.default: float32[3, 2]"
        );
        assert_eq!(
            of(&mut graph, "aten.split", &[int(2), int(1)]),
            "aten.split.Tensor: float32[2, 2], float32[2, 1]"
        );
        assert_eq!(of(&mut graph, "aten.matmul", row), "aten.matmul.default: float32[2]");
        assert_eq!(of(&mut graph, "aten.flatten", &[]), "aten.flatten.using_ints: float32[6]");
        let dtype = Argument::Str("int64".to_owned());
        let cast = graph.call("aten.to", &[x.clone(), dtype], &[]).unwrap()[0];
        assert_eq!(graph.program.spec(cast).unwrap().dtype, Long);
    }

    #[test]
    fn sizes_may_be_symbols() {
        let mut graph = graph();
        let rows = graph.symbol("rows", Bounds { min: 1, max: 8 }).unwrap();
        let x = graph.input("x", TensorSpec::contiguous(Float, vec![rows, 4.into()])).unwrap();
        let n = graph.call("aten.sym_size", &[x.into(), Argument::Int(0)], &[]).unwrap()[0];
        let sizes = Argument::Vars(vec![n, n]);
        assert_eq!(
            called(&mut graph, "aten.full", &[sizes, Argument::Float(0.0)]),
            "aten.full.default: float32[rows, rows]"
        );
        assert_eq!(
            called(&mut graph, "aten.flatten", &[x.into()]),
            "aten.flatten.using_ints: float32[4*rows]"
        );
        let other = graph.symbol("rows", Bounds { min: 1, max: 9 }).unwrap_err().to_string();
        assert_eq!(other, "graph `forward`: size `rows` is from 1 to 8 already");
        let row = Size::symbol("row");
        let unknown = graph.input("y", TensorSpec::contiguous(Float, vec![row])).unwrap_err().to_string();
        assert_eq!(unknown, "graph `forward`: `y`: there is no size `row`; did you mean `rows`?");
    }

    #[test]
    fn calls_that_do_not_fit_are_refused() {
        let mut graph = graph();
        let x = input(&mut graph, "x", &[2, 3]);
        let y = input(&mut graph, "y", &[2, 2]);
        for (operator, args, problem) in [
            ("aten.rleu", vec![x.clone()], "there is no such operator; there is `aten.relu`"),
            ("aten.relu.Tensor", vec![x.clone()], "there is no such overload; there is aten.relu.default"),
            (
                "aten.add",
                vec![x.clone(), y.clone()],
                "its operands float32[2, 3] and float32[2, 2] do not broadcast",
            ),
            ("aten.mm", vec![x.clone(), x.clone()], "a row of `self` has 3 elements, and `mat2` takes 2"),
            ("aten.mm", vec![x.clone()], "`mat2` is missing"),
            ("aten.relu", vec![x.clone(), y.clone()], "it takes 1 arguments, not 2"),
            ("aten.nonzero", vec![x.clone()], "the types of its results are not known"),
            (
                "aten.view",
                vec![x.clone(), Argument::ints(&[4, -1])],
                "its operand has 6 elements, and its result would have 4",
            ),
            ("aten.view", vec![x.clone(), Argument::ints(&[0, -1])], "a size of its result would be 6//0"),
            (
                "aten.full",
                vec![Argument::ints(&[1 << 40]), Argument::Int(1)],
                "a size of its result would be 1099511627776",
            ),
            ("aten.unbind", vec![x.clone(), Argument::Int(2)], "how many results it has is not known"),
            ("aten.relu", vec![Argument::Int(1)], "it does not take this `self`"),
        ] {
            let message = called(&mut graph, operator, &args);
            assert!(message.contains(problem), "{message}");
        }
        let named =
            graph.call("aten.mm", std::slice::from_ref(&x), &[("mat", y.clone())]).unwrap_err().to_string();
        assert!(named.contains("it has no argument `mat`; did you mean `mat2`?"), "{named}");
        let twice = graph.call("aten.mm", &[x.clone(), y.clone()], &[("mat2", y)]).unwrap_err().to_string();
        assert!(twice.contains("`mat2` is given twice"), "{twice}");
        let none = graph.call_as("aten.relu", std::slice::from_ref(&x), &[], vec![]).unwrap_err().to_string();
        assert!(none.contains("it has 1 results, not 0"), "{none}");
        let no_output = graph.clone().finish().unwrap_err().to_string();
        assert_eq!(no_output, "graph `forward`: it has no output");
        let spec = TensorSpec::contiguous(Float, vec![2.into()]);
        let short = graph.constant(None, spec, Arc::new(vec![0u8; 4])).unwrap_err().to_string();
        assert_eq!(short, "graph `forward`: a constant float32[2] of 4 bytes");
    }
}
