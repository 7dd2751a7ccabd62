use crate::{Effect, Kind};
use pteron_operator::{
    Arg, Args, Kernel, KernelContext, Meaning, Out, Outs, PreparedKernel, Result, Results,
};
use pteron_tensor::{Scalar, Shape, TensorMeta, TensorView, TensorViewMut};
use smallvec::SmallVec;
use std::fmt;
use std::sync::Arc;

/// A call of an operator by its kernel. The node's inputs and outputs are in the order in which the arguments and
/// outs refer to them.
#[derive(Clone)]
pub struct Call {
    /// The operator's kernel.
    pub kernel: Arc<dyn Kernel>,
    /// The prepared kernel; `None` if the kernel did not prepare this call.
    pub prepared: Option<Arc<dyn PreparedKernel>>,
    /// The argument at each position of the schema.
    pub args: Vec<CallArg>,
    /// The outs, in the order of [`pteron_operator::Outs`].
    pub outs: Vec<CallOut>,
}

/// An argument of a call.
#[derive(Debug, Clone)]
pub enum CallArg {
    /// An absent argument.
    None,
    /// A known number or boolean.
    Scalar(Scalar),
    /// A string.
    Str(Arc<str>),
    /// A list of known integers.
    Ints(Vec<i64>),
    /// A list of known floating-point numbers.
    Doubles(Arc<[f64]>),
    /// A list of known booleans.
    Bools(Arc<[bool]>),
    /// The next input of the node, a tensor.
    Tensor,
    /// The next inputs of the node, this many tensors.
    Tensors(usize),
    /// A list of tensors: for each element, whether it is present. Present elements are the next inputs of the node.
    OptionalTensors(Vec<bool>),
    /// The next input of the node, a scalar.
    Value,
    /// The next inputs of the node, this many integers.
    Values(usize),
    /// The out with this index.
    Out(usize),
}

/// An out of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallOut {
    /// The next output of the node: a tensor, a view or a scalar.
    Tensor,
    /// The next outputs of the node, this many.
    Tensors(usize),
}

impl Call {
    /// A call without a prepared kernel.
    pub fn new(kernel: Arc<dyn Kernel>, args: Vec<CallArg>, outs: Vec<CallOut>) -> Self {
        Self { kernel, prepared: None, args, outs }
    }

    /// The operator's full name.
    pub fn name(&self) -> &str {
        &self.kernel.schema().name
    }

    /// The scalar argument at a position of the schema, if its value is known.
    pub fn scalar(&self, position: usize) -> Option<Scalar> {
        if let Some(CallArg::Scalar(s)) = self.args.get(position) { Some(*s) } else { None }
    }

    /// The integer argument at a position of the schema, if its value is known.
    pub fn int(&self, position: usize) -> Option<i64> {
        if let Some(Scalar::Int(v)) = self.scalar(position) { Some(v) } else { None }
    }

    /// The boolean argument at a position, if its value is known; an integer counts as true if it is not 0.
    pub fn bool(&self, position: usize) -> Option<bool> {
        match self.scalar(position)? {
            Scalar::Bool(v) => Some(v),
            Scalar::Int(v) => Some(v != 0),
            Scalar::Double(_) => None,
        }
    }

    /// The list of integers at a position of the schema, if its values are known.
    pub fn ints(&self, position: usize) -> Option<&[i64]> {
        if let Some(CallArg::Ints(v)) = self.args.get(position) { Some(v) } else { None }
    }

    /// The index, among the node's inputs, of the argument at a position of the schema; `None` if that argument is not
    /// a single tensor.
    pub fn input_at(&self, position: usize) -> Option<usize> {
        let before: usize = self.args.get(..position)?.iter().map(CallArg::inputs).sum();
        matches!(self.args.get(position)?, CallArg::Tensor).then_some(before)
    }

    /// Whether the argument at a position is absent.
    pub fn is_none(&self, position: usize) -> bool {
        matches!(self.args.get(position), None | Some(CallArg::None))
    }

    /// The arguments of the call, with `inputs` in place of the node's inputs: views to run the call, or metas
    /// ([`Arg::Spec`]) to analyse it. Computed scalars are [`Arg::Unknown`], whatever `inputs` has for them, and so are
    /// missing inputs.
    pub fn arguments<'a>(&'a self, mut inputs: impl Iterator<Item = Arg<'a>>) -> Args<'a> {
        self.arguments_from(&mut || inputs.next())
    }

    /// Like [`Self::arguments`], but calls `next` for each of the node's inputs.
    fn arguments_from<'a>(&'a self, next: &mut dyn FnMut() -> Option<Arg<'a>>) -> Args<'a> {
        fn view<'a>(arg: Option<Arg<'a>>) -> Option<TensorView<'a>> {
            if let Some(Arg::Tensor(view)) = arg { Some(view) } else { None }
        }
        let mut list = SmallVec::new();
        for arg in &self.args {
            list.push(match arg {
                CallArg::None => Arg::None,
                CallArg::Scalar(Scalar::Int(v)) => Arg::Int(*v),
                CallArg::Scalar(Scalar::Double(v)) => Arg::Double(*v),
                CallArg::Scalar(Scalar::Bool(v)) => Arg::Bool(*v),
                CallArg::Str(s) => Arg::Str(s),
                CallArg::Ints(v) => Arg::Ints(SmallVec::from_slice(v)),
                CallArg::Doubles(v) => Arg::Doubles(v),
                CallArg::Bools(v) => Arg::Bools(v),
                CallArg::Out(i) => Arg::Out(*i),
                CallArg::Tensor => next().unwrap_or(Arg::Unknown),
                CallArg::Value | CallArg::Values(_) => {
                    (0..arg.inputs()).for_each(|_| drop(next()));
                    Arg::Unknown
                }
                CallArg::Tensors(n) => {
                    // All are taken, even if one is not a tensor.
                    let views: SmallVec<[_; 4]> = (0..*n).map(|_| view(next())).collect();
                    views.into_iter().collect::<Option<_>>().map_or(Arg::Unknown, Arg::Tensors)
                }
                CallArg::OptionalTensors(present) => {
                    let list = present.iter().map(|p| if *p { view(next()) } else { None });
                    Arg::OptionalTensors(list.collect())
                }
            });
        }
        Args::new(self.kernel.schema(), list)
    }

    /// The sizes of the first result of the call on inputs with these metas; `None` if neither the kernel nor the
    /// meaning determines them.
    pub fn result_sizes<'a>(
        &'a self,
        inputs: impl Iterator<Item = &'a TensorMeta>,
        meaning: &Meaning,
    ) -> Option<Shape> {
        let args = self.arguments(inputs.map(Arg::Spec));
        self.kernel.result_sizes(&args).or_else(|| meaning.result_sizes(&args))
    }

    /// The meaning of the call on inputs with these metas, if the kernel declares one.
    pub fn meaning<'a>(&'a self, inputs: impl Iterator<Item = &'a TensorMeta>) -> Option<Meaning> {
        self.kernel.meaning(&self.arguments(inputs.map(Arg::Spec)))
    }

    /// Executes the call on the node's inputs and outputs, in their order.
    ///
    /// # Errors
    /// The kernel fails, or there are too few outputs.
    pub fn execute<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        inputs: &[TensorView<'a>],
        outputs: impl IntoIterator<Item = TensorViewMut<'a>>,
    ) -> Result<()> {
        self.execute_in_place(ctx, inputs, None, outputs)
    }

    /// As [`Self::execute`]. `in_place` is the position of a node input that aliases an out, and that input
    /// ([`Arg::InPlace`]); `inputs` are the others.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn execute_in_place<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        inputs: &[TensorView<'a>],
        in_place: Option<(usize, Arg<'a>)>,
        outputs: impl IntoIterator<Item = TensorViewMut<'a>>,
    ) -> Result<()> {
        let (mut views, mut num_taken) = (inputs.iter(), 0);
        let args = self.arguments_from(&mut || {
            num_taken += 1;
            match &in_place {
                Some((at, arg)) if *at + 1 == num_taken => Some(arg.clone()),
                _ => views.next().map(|view| Arg::Tensor(*view)),
            }
        });
        let mut outputs = outputs.into_iter();
        let mut list = SmallVec::new();
        for out in &self.outs {
            list.push(match out {
                CallOut::Tensor => match outputs.next() {
                    Some(view) => Out::Tensor(view),
                    None => {
                        return Err(pteron_operator::Error::invalid(
                            "a call has fewer outputs than its outs need",
                        ));
                    }
                },
                CallOut::Tensors(n) => Out::Tensors(outputs.by_ref().take(*n).collect()),
            });
        }
        let mut outs = Outs::new(list);
        match &self.prepared {
            Some(prepared) => prepared.execute(ctx, &args, &mut outs),
            None => self.kernel.execute(ctx, &args, &mut outs),
        }
    }
}

impl CallArg {
    /// The number of the node's inputs that the argument takes.
    pub fn inputs(&self) -> usize {
        match self {
            Self::Tensor | Self::Value => 1,
            Self::Tensors(n) | Self::Values(n) => *n,
            Self::OptionalTensors(present) => present.iter().filter(|p| **p).count(),
            _ => 0,
        }
    }

    fn is_default(&self, declared: Option<&str>) -> bool {
        match self {
            Self::None => declared == Some("None"),
            Self::Scalar(s) => declared.is_some_and(|d| d.eq_ignore_ascii_case(&s.to_string())),
            _ => false,
        }
    }
}

impl Kind for Call {
    fn name(&self) -> &str {
        self.name()
    }

    /// Lists the arguments that are not inputs of the node by their schema names, without those that have the default
    /// value.
    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (declared, arg) in self.kernel.schema().args.iter().zip(&self.args) {
            if arg.is_default(declared.default.as_deref()) {
                continue;
            }
            let mut write = |value: fmt::Arguments<'_>| {
                let written = write!(f, "{separator}{}: {value}", declared.name);
                separator = ", ";
                written
            };
            match arg {
                CallArg::Scalar(s) => write(format_args!("{s}"))?,
                CallArg::Str(s) => write(format_args!("{s:?}"))?,
                CallArg::Ints(v) => write(format_args!("{v:?}"))?,
                CallArg::Doubles(v) => write(format_args!("{v:?}"))?,
                CallArg::Bools(v) => write(format_args!("{v:?}"))?,
                _ => {}
            }
        }
        Ok(())
    }

    fn effects(&self) -> &[Effect] {
        match self.kernel.results() {
            Results::Random => &[Effect::Random],
            _ => &[],
        }
    }

    fn check(&self, inputs: usize, outputs: usize) -> Result<(), String> {
        let schema = self.kernel.schema();
        let (args, outs) = (self.args.len(), self.outs.len());
        if args != schema.args.len() {
            return Err(format!(
                "the call has {args} arguments, the schema `{schema}` has {}",
                schema.args.len()
            ));
        }
        let misplaced = schema.args.iter().zip(&self.args).position(|(declared, arg)| match arg {
            CallArg::Out(index) => !declared.written || *index >= outs,
            _ => declared.written,
        });
        if let Some(at) = misplaced {
            let name = &schema.args[at].name;
            return Err(format!(
                "argument {at} (`{name}`) does not fit the schema `{schema}`: exactly the arguments that a kernel writes are outs"
            ));
        }
        let num_inputs: usize = self.args.iter().map(CallArg::inputs).sum();
        let num_outputs: usize =
            self.outs.iter().map(|o| if let CallOut::Tensors(n) = o { *n } else { 1 }).sum();
        if num_inputs != inputs {
            return Err(format!("its arguments take {num_inputs} inputs, and it has {inputs}"));
        }
        // A pass may have dropped unused outputs.
        if num_outputs < outputs {
            return Err(format!("its outs define {num_outputs} outputs, and it has {outputs}"));
        }
        Ok(())
    }
}

impl fmt::Debug for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Call({})", self.name())
    }
}
