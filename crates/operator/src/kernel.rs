use crate::SchemaError;
use crate::{Args, DtypeSet, Facts, KernelContext, Meaning, MeaningFn, Outs, Result, Rounding, Schema};

/// What an operator's results follow from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Results {
    /// Elements follow from elements; the sizes of the results from sizes and numbers alone.
    #[default]
    Elements,
    /// Everything follows from sizes and numbers alone, whatever the elements.
    Shapes,
    /// The sizes, too, follow from elements.
    DataDependentShape,
    /// Results are drawn from the generator of the call.
    Random,
}

/// Computes an operator.
pub trait Kernel: Send + Sync {
    /// The operator's declaration.
    fn schema(&self) -> &Schema;

    /// The scalar types that its main input may have.
    fn dtypes(&self) -> DtypeSet {
        DtypeSet::ALL
    }

    /// What the results follow from, besides the arguments nothing but the generator of the call.
    fn results(&self) -> Results {
        Results::Elements
    }

    /// What graph passes may know of it. A kernel that says nothing is called wherever a program calls it.
    fn facts(&self) -> Facts {
        Facts::NONE
    }

    /// What a call with these arguments means, if passes may compute it in another way: joined with what
    /// comes before it, say. Then this kernel is not called.
    fn meaning(&self, args: &Args<'_>) -> Option<Meaning> {
        let _ = args;
        None
    }

    /// Positions of the arguments that may share their bytes, exactly, with the first out. The
    /// kernel meets such an argument as [`Arg::InPlace`](crate::Arg::InPlace). Any other overlap
    /// of what a call reads and writes never reaches a kernel.
    fn in_place(&self) -> &[usize] {
        &[]
    }

    /// Makes what can be made once for a call whose constant arguments are known: packed weights,
    /// say. Arguments that are no constants are [`Arg::Spec`](crate::Arg::Spec) or
    /// [`Arg::Unknown`](crate::Arg::Unknown), outs are `Spec`s of their upper bounds. `None` means
    /// that [`Self::execute`] serves.
    fn prepare(&self, args: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
        let _ = args;
        Ok(None)
    }

    /// Computes the outs from the arguments, resizing the outs first.
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()>;
}

/// A kernel made ready for one call: what [`Kernel::prepare`] found in the constants is done.
pub trait PreparedKernel: Send + Sync {
    /// As [`Kernel::execute`]; the constant arguments are those of the preparation.
    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()>;

    /// Bytes that the preparation holds.
    fn nbytes(&self) -> usize {
        0
    }
}

/// The signature of a kernel function.
pub type KernelFn = fn(&KernelContext<'_>, &Args<'_>, &mut Outs<'_>) -> Result<()>;

/// The signature of a preparing function.
pub type PrepareFn = fn(&Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>>;

/// A row of an operator table: the single source of an operator's name, schema, types and kernel.
#[derive(Clone, Copy)]
pub struct Operator {
    schema: &'static str,
    dtypes: DtypeSet,
    results: Results,
    facts: Facts,
    meaning: Option<MeaningFn>,
    in_place: &'static [usize],
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
            in_place: &[],
            execute,
            prepare: None,
        }
    }

    /// The same, which moves or repeats elements and computes none.
    pub const fn moves(mut self) -> Self {
        self.facts.moves = true;
        self.facts.rounding = Rounding::Exact;
        self
    }

    /// The same, with what is known of its results in half precision.
    pub const fn rounding(mut self, rounding: Rounding) -> Self {
        self.facts.rounding = rounding;
        self
    }

    /// The same, which takes images in any dim order and writes images in that.
    pub const fn any_layout(mut self) -> Self {
        self.facts.any_layout = true;
        self
    }

    /// The same, which reads nothing of the argument that it writes.
    pub const fn overwrites(mut self) -> Self {
        self.facts.overwrites = true;
        self
    }

    /// The same, with calls that passes may understand.
    pub const fn means(mut self, meaning: MeaningFn) -> Self {
        self.meaning = Some(meaning);
        self
    }

    /// The same, with results that follow from something else than elements.
    pub const fn results(mut self, results: Results) -> Self {
        self.results = results;
        self
    }

    /// The same, with arguments that may share their bytes with the first out.
    pub const fn in_place(mut self, args: &'static [usize]) -> Self {
        self.in_place = args;
        self
    }

    /// The same, with a function that prepares calls.
    pub const fn prepare(mut self, prepare: PrepareFn) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// The operator's name.
    pub fn name(&self) -> &'static str {
        self.schema.split('(').next().unwrap_or(self.schema)
    }

    /// Whether this is the operator of a full name (`aten::add.out`); also while constants are computed.
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

    /// The declaration, as text.
    pub fn schema(&self) -> &'static str {
        self.schema
    }
}

/// A row of a table with its schema read.
pub(crate) struct TableKernel {
    operator: Operator,
    schema: Schema,
}

impl TableKernel {
    /// # Panics
    /// If the row's schema is malformed, which is a mistake in the table.
    pub(crate) fn new(operator: Operator) -> Self {
        match Schema::parse(operator.schema) {
            Ok(schema) => Self { operator, schema },
            Err(e) => panic!("in an operator table: {e}"),
        }
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

    fn in_place(&self) -> &[usize] {
        self.operator.in_place
    }

    fn prepare(&self, args: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
        self.operator.prepare.map_or(Ok(None), |f| f(args))
    }

    fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
        (self.operator.execute)(ctx, args, outs)
    }
}

/// A kernel that is a schema and a closure: the shortest way to an operator of one's own.
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
