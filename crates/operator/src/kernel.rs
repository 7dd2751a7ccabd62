use crate::SchemaError;
use crate::{Args, DtypeSet, Facts, KernelContext, Meaning, MeaningFn, Outs, Result, Rounding, Schema};
use pteron_tensor::Shape;
use smallvec::SmallVec;

/// A function that computes [`Kernel::result_sizes`].
pub type SizesFn = fn(&Args<'_>) -> Option<Shape>;

/// What an operator's results depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Results {
    /// The elements of the results depend on the arguments' elements, but their sizes only on sizes and scalars.
    #[default]
    Elements,
    /// The results depend only on the arguments' sizes and scalars, never on their elements.
    Shapes,
    /// The sizes of the results, too, depend on the arguments' elements.
    DataDependentShape,
    /// The results are drawn from the context's random number generator.
    Random,
}

/// Computes an operator.
pub trait Kernel: Send + Sync {
    /// The operator's declaration.
    fn schema(&self) -> &Schema;

    /// The scalar types that the operator's main input may have.
    fn dtypes(&self) -> DtypeSet {
        DtypeSet::ALL
    }

    /// What the results depend on: the arguments and, at most, the context's random number generator.
    fn results(&self) -> Results {
        Results::Elements
    }

    /// What graph passes may assume about the operator. A kernel without facts is called wherever a program calls it.
    fn facts(&self) -> Facts {
        Facts::NONE
    }

    /// The meaning of a call with these arguments, if passes may compute it in another way, for example by fusing
    /// it with its producer. Then this kernel is not called.
    fn meaning(&self, args: &Args<'_>) -> Option<Meaning> {
        let _ = args;
        None
    }

    /// The sizes of the first result of a call; `None` unless they are declared separately from the call's meaning.
    fn result_sizes(&self, args: &Args<'_>) -> Option<Shape> {
        let _ = args;
        None
    }

    /// Positions of the arguments that may alias the first out exactly. The
    /// kernel receives such an argument as [`Arg::InPlace`](crate::Arg::InPlace). In a kernel call, inputs and
    /// outputs never overlap in any other way.
    fn in_place(&self) -> &[usize] {
        &[]
    }

    /// Does the one-time work of a call whose constant arguments are known, such as packing weights. Arguments that
    /// are not constants are [`Arg::Spec`](crate::Arg::Spec) or [`Arg::Unknown`](crate::Arg::Unknown), outs are
    /// `Spec`s with the upper bounds of their sizes. `None` means that there is nothing to prepare: [`Self::execute`]
    /// is called.
    fn prepare(&self, args: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
        let _ = args;
        Ok(None)
    }

    /// Computes the outs from the arguments, resizing the outs first.
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()>;
}

/// A kernel prepared for one call site by [`Kernel::prepare`].
pub trait PreparedKernel: Send + Sync {
    /// Like [`Kernel::execute`]; the constant arguments are the same as at preparation.
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()>;

    /// The bytes that the prepared kernel holds.
    fn nbytes(&self) -> usize {
        0
    }
}

/// The signature of a kernel function.
pub type KernelFn = fn(&KernelContext<'_>, &Args<'_>, &mut Outs<'_>) -> Result<()>;

/// A function that prepares a call: see [`Kernel::prepare`].
pub type PrepareFn = fn(&Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>>;

/// A row of an operator table: the single source of an operator's name, schema, types and kernel.
#[derive(Clone, Copy)]
pub struct Operator {
    schema: &'static str,
    dtypes: DtypeSet,
    results: Results,
    facts: Facts,
    meaning: Option<MeaningFn>,
    sizes: Option<SizesFn>,
    in_place: &'static [&'static str],
    execute: KernelFn,
    prepare: Option<PrepareFn>,
}

impl Operator {
    /// An operator declared by a schema and computed by a function.
    pub const fn new(schema: &'static str, dtypes: DtypeSet, execute: KernelFn) -> Self {
        Self {
            schema,
            dtypes,
            results: Results::Elements,
            facts: Facts::NONE,
            meaning: None,
            sizes: None,
            in_place: &[],
            execute,
            prepare: None,
        }
    }

    /// Declares that the operator only moves or repeats elements and computes none.
    pub const fn moves_elements(mut self) -> Self {
        self.facts.moves = true;
        self.facts.rounding = Rounding::Exact;
        self
    }

    /// Declares how the operator's results in half precision relate to those in f32.
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.facts.rounding = rounding;
        self
    }

    /// Declares that the operator accepts images in any dim order and writes images in the same order.
    pub const fn any_layout(mut self) -> Self {
        self.facts.any_layout = true;
        self
    }

    /// Declares that the operator writes its written argument without reading the previous contents.
    pub const fn overwrites(mut self) -> Self {
        self.facts.overwrites = true;
        self
    }

    /// Declares the meaning of the operator's calls for graph passes.
    pub const fn means(mut self, meaning: MeaningFn) -> Self {
        self.meaning = Some(meaning);
        self
    }

    /// Declares how to compute the sizes of the operator's first result, where its meaning leaves them open.
    pub const fn sized(mut self, sizes: SizesFn) -> Self {
        self.sizes = Some(sizes);
        self
    }

    /// Declares what the operator's results depend on; the default is [`Results::Elements`].
    pub const fn results(mut self, results: Results) -> Self {
        self.results = results;
        self
    }

    /// Declares the arguments, by name, that may alias the first out.
    pub const fn in_place(mut self, args: &'static [&'static str]) -> Self {
        self.in_place = args;
        self
    }

    /// Sets the function that prepares the operator's calls.
    pub const fn prepare(mut self, prepare: PrepareFn) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// The operator's name.
    pub fn name(&self) -> &'static str {
        self.schema.split('(').next().unwrap_or(self.schema)
    }

    /// Whether this operator has this full name (`aten::add.out`).
    pub const fn is_named(&self, name: &str) -> bool {
        let (schema, name) = (self.schema.as_bytes(), name.as_bytes());
        if schema.len() <= name.len() || schema[name.len()] != b'(' {
            return false;
        }
        let mut i = 0;
        while i < name.len() {
            if schema[i] != name[i] {
                return false;
            }
            i += 1;
        }
        true
    }

    /// The operator's schema, as text.
    pub fn schema(&self) -> &'static str {
        self.schema
    }
}

/// A row of an operator table with its parsed schema.
pub(crate) struct TableKernel {
    operator: Operator,
    schema: Schema,
    /// The positions of the operator's `in_place` arguments.
    in_place: SmallVec<[usize; 2]>,
}

impl TableKernel {
    /// The kernel of a table row.
    ///
    /// # Panics
    /// If the row's schema is malformed or lacks an `in_place` argument, which is a bug in the table.
    pub(crate) fn new(operator: Operator) -> Self {
        let schema = match Schema::parse(operator.schema) {
            Ok(schema) => schema,
            Err(e) => panic!("in an operator table: {e}"),
        };
        let position = |name: &&str| match schema.args.iter().position(|arg| arg.name == *name) {
            Some(position) => position,
            None => panic!("in an operator table: {} has no argument {name}", schema.name),
        };
        let in_place = operator.in_place.iter().map(position).collect();
        Self { operator, schema, in_place }
    }
}

impl Kernel for TableKernel {
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn dtypes(&self) -> DtypeSet {
        self.operator.dtypes
    }

    fn results(&self) -> Results {
        self.operator.results
    }

    fn facts(&self) -> Facts {
        self.operator.facts
    }

    fn meaning(&self, args: &Args<'_>) -> Option<Meaning> {
        self.operator.meaning.and_then(|meaning| meaning(args))
    }

    fn result_sizes(&self, args: &Args<'_>) -> Option<Shape> {
        self.operator.sizes.and_then(|sizes| sizes(args))
    }

    fn in_place(&self) -> &[usize] {
        &self.in_place
    }

    fn prepare(&self, args: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
        self.operator.prepare.map_or(Ok(None), |f| f(args))
    }

    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
        (self.operator.execute)(ctx, args, outs)
    }
}

/// A kernel made of a schema and a closure: the shortest way to define a custom operator.
pub struct FnKernel<F> {
    schema: Schema,
    execute: F,
}

impl<F> FnKernel<F>
where
    F: Fn(&KernelContext<'_>, &Args<'_>, &mut Outs<'_>) -> Result<()> + Send + Sync,
{
    /// An operator declared by `schema` and computed by `execute`.
    pub fn new(schema: &str, execute: F) -> Result<Self, SchemaError> {
        Ok(Self { schema: Schema::parse(schema)?, execute })
    }
}

impl<F> Kernel for FnKernel<F>
where
    F: Fn(&KernelContext<'_>, &Args<'_>, &mut Outs<'_>) -> Result<()> + Send + Sync,
{
    fn schema(&self) -> &Schema {
        &self.schema
    }

    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
        (self.execute)(ctx, args, outs)
    }
}
