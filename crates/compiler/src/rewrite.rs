//! A walk over a program that replaces nodes: what decompositions make new nodes with.

use crate::dtypes::promote;
use crate::limits::MAX_NODES;
use crate::{Error, Result};
use ir::exported::{
    Argument, ConstantTensor, ExportedGraph, ExportedNode, ExportedProgram, IntArgument, Size, Source,
    SymExpr, SymOp, TensorSpec, VarId, VarType,
};
use std::collections::HashMap;
use std::sync::Arc;
use tensor::{Scalar, ScalarType};

/// The integers that are there at a place of the program, by what they are.
#[derive(Clone, Default)]
struct SizesInScope {
    ints: HashMap<SymExpr, VarId>,
    /// A tensor that has a symbol as one of its sizes.
    dims: HashMap<Arc<str>, (VarId, usize)>,
}

/// What becomes of a node.
pub(crate) enum Outcome {
    /// It stays as it is.
    Kept,
    /// Nodes that were made take its place; its results were replaced.
    Replaced,
}

/// A program while it is rewritten from its first node to its last.
pub(crate) struct Rewriter<'p> {
    pub(crate) program: &'p mut ExportedProgram,
    replaced: HashMap<VarId, VarId>,
    /// Nodes made for the node that is being replaced, in order.
    made: Vec<ExportedNode>,
    source: Arc<Source>,
    /// The name that made values get.
    stem: Arc<str>,
    scope: SizesInScope,
    words: HashMap<&'static str, Arc<str>>,
    done: usize,
}

/// An argument by its name.
pub(crate) type Arg = (&'static str, Argument);

impl<'p> Rewriter<'p> {
    /// Offers every node to `visit`, and those that are made for it in turn, until all are kept.
    pub(crate) fn run(
        program: &'p mut ExportedProgram,
        visit: &mut dyn FnMut(&mut Rewriter<'_>, &ExportedNode) -> Result<Outcome>,
    ) -> Result<()> {
        let mut graph = std::mem::take(&mut program.graph);
        let mut rewriter = Rewriter {
            program,
            replaced: HashMap::new(),
            made: Vec::new(),
            source: Arc::default(),
            stem: "x".into(),
            scope: SizesInScope::default(),
            words: HashMap::new(),
            done: 0,
        };
        let walked = rewriter.graph(&mut graph, visit);
        let replaced = std::mem::take(&mut rewriter.replaced);
        program.graph = graph;
        for mutation in &mut program.mutations {
            mutation.value = find(&replaced, mutation.value);
        }
        walked
    }

    fn graph(
        &mut self,
        graph: &mut ExportedGraph,
        visit: &mut dyn FnMut(&mut Rewriter<'_>, &ExportedNode) -> Result<Outcome>,
    ) -> Result<()> {
        for &input in &graph.inputs {
            self.note_sizes(input);
        }
        let mut pending = std::mem::take(&mut graph.nodes);
        pending.reverse();
        let mut kept = Vec::with_capacity(pending.len());
        while let Some(mut node) = pending.pop() {
            self.done += 1;
            if self.done > MAX_NODES {
                return Err(Error::node(
                    self.program,
                    &node,
                    format!("more than {MAX_NODES} nodes are needed"),
                ));
            }
            self.resolve(&mut node);
            self.source = Arc::clone(&node.source);
            self.stem =
                node.outputs.first().map_or_else(|| "x".into(), |&v| Arc::clone(&self.program.var(v).name));
            match visit(self, &node)? {
                Outcome::Kept => {
                    debug_assert!(self.made.is_empty(), "a kept node made others");
                    let outside = self.scope.clone();
                    for inner in node.graphs_mut() {
                        self.graph(inner, visit)?;
                        self.scope = outside.clone();
                    }
                    for i in 0..node.outputs.len() {
                        self.note_sizes(node.outputs[i]);
                    }
                    kept.push(node);
                }
                Outcome::Replaced => {
                    pending.extend(std::mem::take(&mut self.made).into_iter().rev());
                }
            }
        }
        graph.nodes = kept;
        for output in &mut graph.outputs {
            let with = std::mem::replace(output, Argument::None);
            *output = with.map_vars(&mut |v| find(&self.replaced, v));
        }
        Ok(())
    }

    /// Lets the arguments name what has taken the place of what they name.
    fn resolve(&self, node: &mut ExportedNode) {
        if self.replaced.is_empty() {
            return;
        }
        for (_, arg) in &mut node.args {
            let with = std::mem::replace(arg, Argument::None);
            *arg = with.map_vars(&mut |v| find(&self.replaced, v));
        }
    }

    fn note_sizes(&mut self, var: VarId) {
        match &self.program.var(var).ty {
            VarType::Int(Size::Sym(e)) => {
                self.scope.ints.entry((**e).clone()).or_insert(var);
            }
            VarType::Tensor(spec) => {
                for (d, size) in spec.sizes.iter().enumerate() {
                    if let Size::Sym(e) = size
                        && let SymExpr::Symbol(name) = &**e
                    {
                        self.scope.dims.entry(Arc::clone(name)).or_insert((var, d));
                    }
                }
            }
            _ => {}
        }
    }

    /// The error that the node being replaced cannot be.
    pub(crate) fn wrong<T>(&self, node: &ExportedNode, problem: impl Into<String>) -> Result<T> {
        Err(Error::node(self.program, node, problem))
    }

    /// Lets every later use of `old` be one of `new`. A value that was made for it takes its name and its sizes.
    pub(crate) fn replace(&mut self, old: VarId, new: VarId) {
        if old == new {
            return;
        }
        if self.made.iter().rev().any(|n| n.outputs.contains(&new)) {
            let was = self.program.var(old).clone();
            let var = self.program.var_mut(new);
            var.name = was.name;
            if let (VarType::Tensor(spec), VarType::Tensor(old)) = (&mut var.ty, was.ty) {
                spec.sizes = old.sizes;
            }
        }
        self.replaced.insert(old, new);
    }

    /// Replaces the only result of a node.
    pub(crate) fn done(&mut self, node: &ExportedNode, new: VarId) -> Result<Outcome> {
        match node.outputs.first() {
            Some(&old) => self.replace(old, new),
            None => return self.wrong(node, "it has no result"),
        }
        Ok(Outcome::Replaced)
    }

    fn word(&mut self, text: &'static str) -> Arc<str> {
        Arc::clone(self.words.entry(text).or_insert_with(|| text.into()))
    }

    /// A node with results of these types.
    pub(crate) fn emit_many(
        &mut self,
        target: &'static str,
        args: Vec<Arg>,
        types: Vec<VarType>,
    ) -> Vec<VarId> {
        let outputs: Vec<VarId> = types
            .into_iter()
            .map(|ty| {
                let name = format!("{}_{}", self.stem, self.program.num_vars());
                self.program.add_var(name, ty)
            })
            .collect();
        let args = args.into_iter().map(|(name, arg)| (self.word(name), arg)).collect();
        let (target, source) = (self.word(target), Arc::clone(&self.source));
        self.made.push(ExportedNode { target, args, outputs: outputs.clone(), source });
        outputs
    }

    /// A node with a tensor as its result.
    pub(crate) fn emit(&mut self, target: &'static str, args: Vec<Arg>, spec: TensorSpec) -> VarId {
        self.emit_many(target, args, vec![VarType::Tensor(spec)])[0]
    }

    /// Puts a node of another target or arguments in the place of one, with the same results.
    pub(crate) fn retarget(&mut self, node: &ExportedNode, target: &'static str, args: Vec<Arg>) -> Outcome {
        let args = args.into_iter().map(|(name, arg)| (self.word(name), arg)).collect();
        let target = self.word(target);
        self.made.push(ExportedNode {
            target,
            args,
            outputs: node.outputs.clone(),
            source: Arc::clone(&node.source),
        });
        Outcome::Replaced
    }

    /// A node that is made elsewhere.
    pub(crate) fn put(&mut self, node: ExportedNode) {
        self.made.push(node);
    }

    /// The spec of a tensor operand.
    pub(crate) fn spec(&self, node: &ExportedNode, var: VarId) -> Result<TensorSpec> {
        match self.program.spec(var) {
            Some(spec) => Ok(spec.clone()),
            None => self.wrong(node, format!("`{}` is no tensor", self.program.var(var).name)),
        }
    }

    /// The spec of a value that was made here and is a tensor.
    pub(crate) fn of(&self, var: VarId) -> TensorSpec {
        let none = || TensorSpec::contiguous(ScalarType::Float, Vec::new());
        self.program.spec(var).cloned().unwrap_or_else(none)
    }

    /// A tensor argument.
    pub(crate) fn tensor(&self, node: &ExportedNode, name: &str) -> Result<VarId> {
        match self.optional_tensor(node, name) {
            Some(var) => Ok(var),
            None => self.wrong(node, format!("it has no tensor `{name}`")),
        }
    }

    /// A tensor argument that may be absent.
    pub(crate) fn optional_tensor(&self, node: &ExportedNode, name: &str) -> Option<VarId> {
        node.arg(name).and_then(Argument::var).filter(|&v| self.program.spec(v).is_some())
    }

    /// The spec of a node's first result.
    pub(crate) fn result(&self, node: &ExportedNode) -> Result<TensorSpec> {
        match node.outputs.first() {
            Some(&v) => self.spec(node, v),
            None => self.wrong(node, "it has no result"),
        }
    }

    /// An integer argument.
    pub(crate) fn int(&self, node: &ExportedNode, name: &str, default: i64) -> Result<i64> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(default),
            Some(Argument::Int(v)) => Ok(*v),
            Some(Argument::Bool(v)) => Ok(i64::from(*v)),
            Some(Argument::Var(v)) if matches!(self.program.var(*v).ty, VarType::Int(Size::Int(_))) => {
                match self.program.var(*v).ty {
                    VarType::Int(Size::Int(v)) => Ok(v),
                    _ => Ok(default),
                }
            }
            Some(_) => self.wrong(node, format!("`{name}` is no integer that is known")),
        }
    }

    /// A boolean argument.
    pub(crate) fn bool(&self, node: &ExportedNode, name: &str, default: bool) -> Result<bool> {
        Ok(self.int(node, name, i64::from(default))? != 0)
    }

    /// A number.
    pub(crate) fn float(&self, node: &ExportedNode, name: &str, default: f64) -> Result<f64> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(default),
            Some(Argument::Float(v)) => Ok(*v),
            Some(Argument::Int(v)) => Ok(*v as f64),
            Some(Argument::Bool(v)) => Ok(f64::from(u8::from(*v))),
            Some(_) => self.wrong(node, format!("`{name}` is no number that is known")),
        }
    }

    /// A list of known integers; an integer stands for a list of one.
    pub(crate) fn ints(&self, node: &ExportedNode, name: &str) -> Result<Option<Vec<i64>>> {
        match node.arg(name) {
            None | Some(Argument::None) => Ok(None),
            Some(Argument::Int(v)) => Ok(Some(vec![*v])),
            Some(list) => match list.known_ints() {
                Some(list) => Ok(Some(list)),
                None => self.wrong(node, format!("`{name}` is no list of known integers")),
            },
        }
    }

    /// A list of tensors.
    pub(crate) fn tensors(&self, node: &ExportedNode, name: &str) -> Result<Vec<VarId>> {
        match node.arg(name) {
            Some(Argument::Vars(list)) => Ok(list.clone()),
            _ => self.wrong(node, format!("`{name}` is no list of tensors")),
        }
    }

    /// A dimension of a tensor of this rank, which may be counted from the end.
    pub(crate) fn dim(&self, node: &ExportedNode, dim: i64, rank: usize) -> Result<usize> {
        let rank = i64::try_from(rank.max(1)).unwrap_or(1);
        match dim {
            d if (0..rank).contains(&d) => Ok(d as usize),
            d if (-rank..0).contains(&d) => Ok((d + rank) as usize),
            d => self.wrong(node, format!("{d} is no dimension of {rank}")),
        }
    }

    /// Dimensions; all if none are named.
    pub(crate) fn dims(&self, node: &ExportedNode, name: &str, rank: usize) -> Result<Vec<usize>> {
        match self.ints(node, name)? {
            Some(list) if !list.is_empty() => list.iter().map(|&d| self.dim(node, d, rank)).collect(),
            _ => Ok((0..rank).collect()),
        }
    }

    /// A size as an argument: a number, or a value that is there or is made of those that are.
    pub(crate) fn size(&mut self, node: &ExportedNode, size: &Size) -> Result<IntArgument> {
        match size {
            Size::Int(v) => Ok(IntArgument::Int(*v)),
            Size::Sym(e) => {
                let expr = (**e).clone();
                self.expression(node, &expr)
            }
        }
    }

    fn expression(&mut self, node: &ExportedNode, expr: &SymExpr) -> Result<IntArgument> {
        if let SymExpr::Int(v) = expr {
            return Ok(IntArgument::Int(*v));
        }
        if let Some(&var) = self.scope.ints.get(expr) {
            return Ok(IntArgument::Var(var));
        }
        let var = match expr {
            SymExpr::Symbol(name) => {
                let Some(&(tensor, dim)) = self.scope.dims.get(name) else {
                    return self.wrong(node, format!("nothing before it has the size `{name}`"));
                };
                let args = vec![("self", Argument::Var(tensor)), ("dim", Argument::Int(dim as i64))];
                self.emit_many("aten.sym_size.int", args, vec![VarType::Int(Size::symbol(Arc::clone(name)))])
                    [0]
            }
            SymExpr::Op(op, operands) => {
                let mut operands = operands.iter();
                let Some(first) = operands.next() else { return self.wrong(node, "a size of nothing") };
                let mut value = self.expression(node, first)?;
                let mut so_far = first.simplified();
                for next in operands {
                    let with = self.expression(node, next)?;
                    so_far = so_far.combine(*op, &next.simplified());
                    value = IntArgument::Var(self.int_operation(node, *op, value, with, so_far.clone())?);
                }
                match value {
                    IntArgument::Var(v) => v,
                    known => return Ok(known),
                }
            }
            SymExpr::Int(_) => return self.wrong(node, "a known size"),
        };
        self.scope.ints.insert(expr.clone(), var);
        Ok(IntArgument::Var(var))
    }

    fn int_operation(
        &mut self,
        node: &ExportedNode,
        op: SymOp,
        a: IntArgument,
        b: IntArgument,
        result: Size,
    ) -> Result<VarId> {
        let target = match op {
            SymOp::Add => "_operator.add",
            SymOp::Mul => "_operator.mul",
            SymOp::FloorDiv => "_operator.floordiv",
            SymOp::Mod => "_operator.mod",
            SymOp::Max => "torch.sym_max",
            SymOp::Min => "torch.sym_min",
            SymOp::CeilDiv | SymOp::Pow => {
                return self
                    .wrong(node, format!("the size `{result}` cannot be computed from those before it"));
            }
        };
        let arg = |i: IntArgument| match i {
            IntArgument::Int(v) => Argument::Int(v),
            IntArgument::Var(v) => Argument::Var(v),
        };
        let args = vec![("a", arg(a)), ("b", arg(b))];
        Ok(self.emit_many(target, args, vec![VarType::Int(result)])[0])
    }

    /// Sizes as an argument. One that is not known is left to the kernel to find, as -1.
    pub(crate) fn view_sizes(&mut self, node: &ExportedNode, sizes: &[Size]) -> Result<Argument> {
        let unknown = sizes.iter().filter(|s| s.known().is_none()).count();
        let empty = sizes.contains(&Size::Int(0));
        if unknown == 1 && !empty {
            return Ok(Argument::ints(&sizes.iter().map(|s| s.known().unwrap_or(-1)).collect::<Vec<_>>()));
        }
        self.sizes(node, sizes)
    }

    /// Sizes as an argument.
    pub(crate) fn sizes(&mut self, node: &ExportedNode, sizes: &[Size]) -> Result<Argument> {
        Ok(Argument::Ints(sizes.iter().map(|s| self.size(node, s)).collect::<Result<_>>()?))
    }

    /// An elementwise operator of one tensor.
    pub(crate) fn unary(&mut self, target: &'static str, x: VarId) -> VarId {
        let spec = self.of(x);
        self.emit(target, vec![("self", Argument::Var(x))], spec)
    }

    /// An elementwise operator of a tensor and a tensor or number, with results in the promoted type.
    pub(crate) fn binary(&mut self, target: &'static str, x: VarId, other: impl Into<Operand>) -> VarId {
        let (other, spec) = self.joined(x, other.into());
        self.emit(target, vec![("self", Argument::Var(x)), ("other", other)], spec)
    }

    /// The same with booleans as results.
    pub(crate) fn compare(&mut self, target: &'static str, x: VarId, other: impl Into<Operand>) -> VarId {
        let (other, mut spec) = self.joined(x, other.into());
        spec.dtype = ScalarType::Bool;
        self.emit(target, vec![("self", Argument::Var(x)), ("other", other)], spec)
    }

    fn joined(&self, x: VarId, other: Operand) -> (Argument, TensorSpec) {
        let mut spec = self.of(x);
        let arg = match other {
            Operand::Tensor(y) => {
                let y_spec = self.of(y);
                let dtype = match (spec.sizes.is_empty(), y_spec.sizes.is_empty()) {
                    (false, true) if y_spec.dtype.is_floating() <= spec.dtype.is_floating() => spec.dtype,
                    (true, false) if spec.dtype.is_floating() <= y_spec.dtype.is_floating() => y_spec.dtype,
                    _ => promote(spec.dtype, y_spec.dtype),
                };
                let order = if y_spec.rank() > spec.rank() { y_spec.dim_order } else { spec.dim_order };
                let sizes = broadcast(&spec.sizes, &y_spec.sizes);
                spec = TensorSpec { dtype, sizes, dim_order: order };
                Argument::Var(y)
            }
            Operand::Number(Scalar::Int(v)) => Argument::Int(v),
            Operand::Number(Scalar::Bool(v)) => Argument::Bool(v),
            Operand::Number(Scalar::Double(v)) => {
                if !spec.dtype.is_floating() && !spec.dtype.is_complex() {
                    spec.dtype = ScalarType::Float;
                }
                Argument::Float(v)
            }
        };
        (arg, spec)
    }

    /// Elements of `x` where the condition holds, otherwise of `y`.
    pub(crate) fn choose(&mut self, condition: VarId, x: VarId, y: VarId) -> VarId {
        let (c, a, b) = (self.of(condition), self.of(x), self.of(y));
        let sizes = broadcast(&broadcast(&a.sizes, &b.sizes), &c.sizes);
        let dtype = if a.sizes.is_empty() { b.dtype } else { a.dtype };
        let args = vec![
            ("condition", Argument::Var(condition)),
            ("self", Argument::Var(x)),
            ("other", Argument::Var(y)),
        ];
        self.emit("aten.where.self", args, TensorSpec::contiguous(dtype, sizes))
    }

    /// The same elements in another type.
    pub(crate) fn cast(&mut self, x: VarId, dtype: ScalarType) -> VarId {
        let mut spec = self.of(x);
        if spec.dtype == dtype {
            return x;
        }
        spec.dtype = dtype;
        self.emit("dim_order_ops._to_dim_order_copy.default", vec![("self", Argument::Var(x))], spec)
    }

    /// The same elements under other sizes.
    pub(crate) fn view(&mut self, node: &ExportedNode, x: VarId, sizes: Vec<Size>) -> Result<VarId> {
        let spec = self.of(x);
        if spec.sizes == sizes {
            return Ok(x);
        }
        let arg = self.view_sizes(node, &sizes)?;
        let spec = TensorSpec::contiguous(spec.dtype, sizes);
        Ok(self.emit("aten.view.default", vec![("self", Argument::Var(x)), ("size", arg)], spec))
    }

    /// The dimensions in another order.
    pub(crate) fn permute(&mut self, x: VarId, dims: &[usize]) -> VarId {
        if dims.iter().enumerate().all(|(i, &d)| i == d) {
            return x;
        }
        let spec = self.of(x);
        let sizes = dims.iter().map(|&d| spec.sizes[d].clone()).collect();
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let args = vec![("self", Argument::Var(x)), ("dims", Argument::ints(&dims))];
        self.emit("aten.permute.default", args, TensorSpec::contiguous(spec.dtype, sizes))
    }

    /// The last two dimensions exchanged.
    pub(crate) fn transposed(&mut self, x: VarId) -> VarId {
        let rank = self.of(x).rank();
        let mut dims: Vec<usize> = (0..rank).collect();
        dims.swap(rank - 1, rank - 2);
        self.permute(x, &dims)
    }

    /// The elements repeated to sizes.
    pub(crate) fn expand(&mut self, node: &ExportedNode, x: VarId, sizes: Vec<Size>) -> Result<VarId> {
        let spec = self.of(x);
        if spec.sizes == sizes {
            return Ok(x);
        }
        let arg = self.sizes(node, &sizes)?;
        let spec = TensorSpec::contiguous(spec.dtype, sizes);
        Ok(self.emit("aten.expand.default", vec![("self", Argument::Var(x)), ("size", arg)], spec))
    }

    /// Elements `start..end` of a dimension, `step` apart.
    pub(crate) fn slice(
        &mut self,
        node: &ExportedNode,
        x: VarId,
        dim: usize,
        (start, end): (&Size, &Size),
    ) -> Result<VarId> {
        let mut spec = self.of(x);
        if *start == Size::Int(0) && *end == spec.sizes[dim] {
            return Ok(x);
        }
        let arg = |i: IntArgument| match i {
            IntArgument::Int(v) => Argument::Int(v),
            IntArgument::Var(v) => Argument::Var(v),
        };
        let (first, last) = (self.size(node, start)?, self.size(node, end)?);
        spec.sizes[dim] = end.add(&start.mul(&Size::Int(-1)));
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("start", arg(first)),
            ("end", arg(last)),
        ];
        Ok(self.emit("aten.slice.Tensor", args, TensorSpec::contiguous(spec.dtype, spec.sizes)))
    }

    /// One element of a dimension, which goes.
    pub(crate) fn select(&mut self, x: VarId, dim: usize, index: i64) -> VarId {
        let mut spec = self.of(x);
        spec.sizes.remove(dim);
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::Int(dim as i64)),
            ("index", Argument::Int(index)),
        ];
        self.emit("aten.select.int", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// Tensors joined along a dimension.
    pub(crate) fn cat(&mut self, tensors: &[VarId], dim: usize) -> VarId {
        if let [only] = tensors {
            return *only;
        }
        let mut spec = self.of(tensors[0]);
        spec.sizes[dim] = tensors.iter().fold(Size::Int(0), |n, &t| n.add(&self.of(t).sizes[dim]));
        let args = vec![("tensors", Argument::Vars(tensors.to_vec())), ("dim", Argument::Int(dim as i64))];
        self.emit("aten.cat.default", args, TensorSpec::contiguous(spec.dtype, spec.sizes))
    }

    /// A dimension of size one put in.
    pub(crate) fn unsqueeze(&mut self, node: &ExportedNode, x: VarId, dim: usize) -> Result<VarId> {
        let mut sizes = self.of(x).sizes;
        sizes.insert(dim, Size::Int(1));
        self.view(node, x, sizes)
    }

    /// A dimension of size one left out.
    pub(crate) fn squeeze(&mut self, node: &ExportedNode, x: VarId, dim: usize) -> Result<VarId> {
        let mut sizes = self.of(x).sizes;
        sizes.remove(dim);
        self.view(node, x, sizes)
    }

    /// A reduction over dimensions.
    pub(crate) fn reduce(&mut self, target: &'static str, x: VarId, dims: &[usize], keep: bool) -> VarId {
        let spec = self.of(x);
        let sizes = reduced(&spec.sizes, dims, keep);
        let dims: Vec<i64> = dims.iter().map(|&d| d as i64).collect();
        let args = vec![
            ("self", Argument::Var(x)),
            ("dim", Argument::ints(&dims)),
            ("keepdim", Argument::Bool(keep)),
        ];
        self.emit(target, args, TensorSpec::contiguous(spec.dtype, sizes))
    }

    /// The product of matrices, or of batches of matrices of one rank.
    pub(crate) fn product(&mut self, a: VarId, b: VarId) -> VarId {
        let (mut spec, other) = (self.of(a), self.of(b));
        let rank = spec.rank();
        spec.sizes[rank - 1] = other.sizes[rank - 1].clone();
        let spec = TensorSpec::contiguous(spec.dtype, spec.sizes);
        let (x, y) = (Argument::Var(a), Argument::Var(b));
        match rank {
            2 => self.emit("aten.mm.default", vec![("self", x), ("mat2", y)], spec),
            _ => self.emit("aten.bmm.default", vec![("self", x), ("mat2", y)], spec),
        }
    }

    /// A tensor of one number.
    pub(crate) fn filled(
        &mut self,
        node: &ExportedNode,
        sizes: Vec<Size>,
        value: Argument,
        dtype: ScalarType,
    ) -> Result<VarId> {
        let size = self.sizes(node, &sizes)?;
        let spec = TensorSpec::contiguous(dtype, sizes);
        Ok(self.emit("aten.full.default", vec![("size", size), ("fill_value", value)], spec))
    }

    /// A constant without dimensions.
    pub(crate) fn number(&mut self, value: Scalar, dtype: ScalarType) -> Result<VarId> {
        let bytes = crate::constants::scalar_bytes(value, dtype);
        let Some(bytes) = bytes else {
            return Err(Error::archive("a number", format!("{value} is no {dtype}")));
        };
        let name = format!("number_{}", self.program.num_vars());
        let constant = ConstantTensor { name: None, range: 0..bytes.len(), bytes: Arc::new(bytes) };
        Ok(self.program.add_constant(name, TensorSpec::contiguous(dtype, Vec::new()), constant))
    }
}

/// The other side of an elementwise operator.
pub(crate) enum Operand {
    Tensor(VarId),
    Number(Scalar),
}

impl From<VarId> for Operand {
    fn from(v: VarId) -> Self {
        Self::Tensor(v)
    }
}

impl From<f64> for Operand {
    fn from(v: f64) -> Self {
        Self::Number(Scalar::Double(v))
    }
}

impl From<i64> for Operand {
    fn from(v: i64) -> Self {
        Self::Number(Scalar::Int(v))
    }
}

/// The sizes of tensors that are broadcast together.
pub(crate) fn broadcast(a: &[Size], b: &[Size]) -> Vec<Size> {
    let (long, short) = if a.len() >= b.len() { (a, b) } else { (b, a) };
    let mut sizes = long.to_vec();
    let shift = long.len() - short.len();
    for (i, size) in short.iter().enumerate() {
        if sizes[shift + i] == Size::Int(1)
            || (sizes[shift + i].known().is_none() && size.known().is_some_and(|s| s > 1))
        {
            sizes[shift + i] = size.clone();
        }
    }
    sizes
}

/// The sizes after a reduction.
pub(crate) fn reduced(sizes: &[Size], dims: &[usize], keep: bool) -> Vec<Size> {
    let mut left = Vec::with_capacity(sizes.len());
    for (d, size) in sizes.iter().enumerate() {
        match dims.contains(&d) {
            true if keep => left.push(Size::Int(1)),
            true => {}
            false => left.push(size.clone()),
        }
    }
    left
}

fn find(replaced: &HashMap<VarId, VarId>, mut var: VarId) -> VarId {
    while let Some(&next) = replaced.get(&var) {
        var = next;
    }
    var
}
