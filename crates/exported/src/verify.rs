use super::{Argument, ExportedGraph, ExportedProgram, InputKind, VarId, VarType};
use pteron_ir::Malformed;

/// The maximum nesting depth of graphs.
pub(crate) const MAX_NESTING: usize = 64;

impl ExportedProgram {
    /// Checks every invariant: each value is defined once and before its uses; there is one kind for each input;
    /// constants have as many bytes as their specs need; dim orders have the rank of the sizes.
    ///
    /// # Errors
    /// The first invariant that is broken, and where.
    pub fn verify(&self) -> Result<(), Malformed> {
        let mut defined = vec![false; self.num_vars()];
        if self.inputs.len() != self.graph.inputs.len() {
            let problem =
                format!("{} inputs, but {} input kinds", self.graph.inputs.len(), self.inputs.len());
            return Err(Malformed { place: "signature".into(), problem });
        }
        for (&input, kind) in self.graph.inputs.iter().zip(&self.inputs) {
            let constant = matches!(kind, InputKind::Parameter | InputKind::Buffer | InputKind::Constant);
            if constant && !self.constants.contains_key(&input) {
                return Err(self.malformed_error(input, "it is a constant input without bytes"));
            }
        }
        for &constant in self.constants.keys() {
            self.define(constant, &mut defined)?;
            self.verify_constant(constant)?;
        }
        for &input in self.graph.inputs.iter().filter(|v| !self.constants.contains_key(v)) {
            self.define(input, &mut defined)?;
        }
        self.verify_graph(&self.graph, &mut defined, MAX_NESTING)?;
        for mutation in &self.mutations {
            for var in [mutation.input, mutation.value] {
                self.check_defined(var, &defined, || "the signature".into())?;
            }
        }
        Ok(())
    }

    fn verify_constant(&self, id: VarId) -> Result<(), Malformed> {
        let Some(spec) = self.spec(id) else {
            return Err(self.malformed_error(id, "it is a constant, but not a tensor"));
        };
        let numel = spec.known_sizes().and_then(|sizes| {
            sizes.iter().try_fold(spec.dtype.size(), |n, &s| n.checked_mul(usize::try_from(s).ok()?))
        });
        // The bytes are not loaded for this.
        let constant = &self.constants[&id];
        let is_within = constant.range.end <= constant.bytes.len();
        let (actual, expected) = (if is_within { constant.range.len() } else { 0 }, numel);
        if expected == Some(actual) {
            return Ok(());
        }
        Err(self.malformed_error(
            id,
            &format!("it has {actual} bytes, which is not the size of {}", self.var(id).ty),
        ))
    }

    fn verify_graph(
        &self,
        graph: &ExportedGraph,
        defined: &mut [bool],
        nesting: usize,
    ) -> Result<(), Malformed> {
        let Some(nesting) = nesting.checked_sub(1) else {
            let problem = format!("graphs are nested more than {MAX_NESTING} deep");
            return Err(Malformed { place: self.name.clone(), problem });
        };
        for node in &graph.nodes {
            let place = || format!("node {} ({})", self.join_names(&node.outputs), node.target);
            for operand in node.operands() {
                self.check_defined(operand, defined, place)?;
            }
            for inner in node.graphs() {
                for &input in &inner.inputs {
                    self.define(input, defined)?;
                }
                self.verify_graph(inner, defined, nesting)?;
            }
            for &output in &node.outputs {
                self.define(output, defined)?;
            }
        }
        for output in &graph.outputs {
            if matches!(output, Argument::Graph(_)) {
                return Err(Malformed { place: self.name.clone(), problem: "an output is a graph".into() });
            }
            for var in output.vars() {
                self.check_defined(var, defined, || "the outputs".into())?;
            }
        }
        Ok(())
    }

    fn define(&self, id: VarId, defined: &mut [bool]) -> Result<(), Malformed> {
        match defined.get_mut(id.index()) {
            Some(d) if !*d => *d = true,
            Some(_) => return Err(self.malformed_error(id, "it is defined twice")),
            None => {
                return Err(Malformed { place: format!("%{}", id.index()), problem: "no such value".into() });
            }
        }
        match &self.var(id).ty {
            VarType::Tensor(spec) if spec.dim_order.len() != spec.sizes.len() => {
                Err(self.malformed_error(id, "its dim order has another rank than its sizes"))
            }
            _ => Ok(()),
        }
    }

    fn check_defined(
        &self,
        id: VarId,
        defined: &[bool],
        place: impl FnOnce() -> String,
    ) -> Result<(), Malformed> {
        if defined.get(id.index()) == Some(&true) {
            return Ok(());
        }
        let name = if id.index() < self.num_vars() { &*self.var(id).name } else { "?" };
        Err(Malformed { place: place(), problem: format!("%{name} is not defined before it is used") })
    }

    fn join_names(&self, vars: &[VarId]) -> String {
        vars.iter().map(|&v| format!("%{}", self.var(v).name)).collect::<Vec<_>>().join(", ")
    }

    fn malformed_error(&self, id: VarId, problem: &str) -> Malformed {
        Malformed { place: format!("%{}", self.var(id).name), problem: problem.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use crate::*;
    use pteron_tensor::ScalarType;

    fn add(program: &mut ExportedProgram, x: VarId) -> VarId {
        let spec = TensorSpec::contiguous(ScalarType::Float, vec![2.into(), Size::symbol("s0")]);
        let y = program.add_var("y", VarType::Tensor(spec));
        let args = vec![("self".into(), Argument::Var(x)), ("other".into(), Argument::Int(1))];
        let frame = SourceFrame {
            file: "model.py".into(),
            line: 7,
            function: "forward".into(),
            text: "return x + 1".into(),
        };
        let source = Arc::new(Source { frames: vec![frame], module: String::new() });
        program.graph.nodes.push(ExportedNode {
            target: "ns.op.Tensor".into(),
            args,
            outputs: vec![y],
            source,
        });
        y
    }

    fn program() -> (ExportedProgram, VarId, VarId) {
        let mut program = ExportedProgram::new("forward");
        let spec = TensorSpec::contiguous(ScalarType::Float, vec![2.into(), Size::symbol("s0")]);
        let x = program.add_var("x", VarType::Tensor(spec));
        program.graph.inputs.push(x);
        program.inputs.push(InputKind::User);
        program.ranges.insert("s0".into(), Bounds { min: 2, max: 8 });
        let y = add(&mut program, x);
        program.graph.outputs.push(Argument::Var(y));
        (program, x, y)
    }

    #[test]
    fn a_listing_shows_types_and_source_lines() {
        let (program, ..) = program();
        program.verify().unwrap();
        let text = program.listing(PrintOptions { source: true, ..PrintOptions::default() });
        assert_eq!(
            text,
            "forward:\n  s0 in 2..=8\n  input %x: float32[2, s0]\n  # model.py:7, in forward: return x + 1\n  \
             %y: float32[2, s0] = ns.op.Tensor(self=%x, other=1)\n  return %y\n"
        );
    }

    #[test]
    fn values_are_defined_once_and_before_uses() {
        let (mut program, _, y) = program();
        program.graph.nodes[0].args[0].1 = Argument::Var(y);
        assert!(program.verify().unwrap_err().to_string().contains("%y is not defined"));
        let (mut program, ..) = self::program();
        let again = program.graph.nodes[0].clone();
        program.graph.nodes.push(again);
        assert!(program.verify().unwrap_err().to_string().contains("defined twice"));
    }
}
