//! Operators: their schemas, the kernels that compute them, and the registry in which programs look them up.
//!
//! A custom operator is a type that implements [`Kernel`], or a schema and a closure
//! ([`FnKernel`]). [`Kernel::prepare`] is called once when a method is loaded, with the arguments that are
//! constant. It may return a prepared kernel, for example with packed weights, which then runs in its place.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::kernel::{Args, Kernel, KernelContext, Outs, PreparedKernel, Result, Schema};
//! use pteron::{LoadOptions, Module, Tensor};
//!
//! /// `factor * self`.
//! struct Mul {
//!     schema: Schema,
//! }
//!
//! struct PreparedMul {
//!     factor: f32,
//! }
//!
//! impl Kernel for Mul {
//!     fn schema(&self) -> &Schema {
//!         &self.schema
//!     }
//!
//!     fn prepare(&self, _: &Args<'_>) -> Result<Option<Box<dyn PreparedKernel>>> {
//!         Ok(Some(Box::new(PreparedMul { factor: 3.0 })))
//!     }
//!
//!     fn execute(&self, ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
//!         PreparedMul { factor: 3.0 }.execute(ctx, args, outs)
//!     }
//! }
//!
//! impl PreparedKernel for PreparedMul {
//!     fn execute(&self, _: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
//!         let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
//!         out.resize(x.sizes())?;
//!         // Copies the elements, converting from the layout of `x` to that of `out`.
//!         x.relayout(out)?;
//!         out.storage_mut::<f32>()?.iter_mut().for_each(|v| *v *= self.factor);
//!         Ok(())
//!     }
//! }
//!
//! # let program = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/mul3.pte");
//! let mut kernels = pteron::kernel_registry();
//! kernels.register(Mul { schema: Schema::parse("my_ops::mul3.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)")? })?;
//! let mut module = Module::open(program, LoadOptions::new(kernels))?;
//! let outputs = module.forward(&[Tensor::from_slice(&[2, 2], &[1f32, 2.0, 3.0, 4.0])?.into()])?;
//! assert_eq!(outputs[0].as_tensor()?.as_slice::<f32>()?, [3.0, 6.0, 9.0, 12.0]);
//! # Ok(()) }
//! ```
//!
//! An application that runs known programs can link only the kernels that they call: it lists them with
//! [`kernels!`](crate::kernels) instead of using [`kernel_registry`](crate::kernel_registry).

pub use pteron_kernels::{operator as library_operator, operators as library_operators};
pub use pteron_operator::{
    Arg, ArgKey, ArgType, Args, DtypeSet, DuplicateKernel, Error, Feature, Features, FnKernel, Generator,
    Isa, Kernel, KernelContext, KernelFn, KernelRegistry, Operator, Out, Outs, PrepareFn, PreparedKernel,
    Result, Results, Schema, SchemaArg, SchemaError, Scratch, ScratchBuffer,
};

/// A registry of the named kernels of the library only: kernels that are not named are not linked.
///
/// Names are written as in programs: `aten::add.out`. A name that the library lacks is a compile-time error.
/// `pteron ops --file model.pte --emit registry.rs` writes the list.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let kernels = pteron::kernels![aten::add.out, aten::where.self_out, executorch_prim::mod.Scalar];
/// assert_eq!(kernels.names(), ["aten::add.out", "aten::where.self_out", "executorch_prim::mod.Scalar"]);
/// let options = pteron::LoadOptions::new(kernels);
/// # Ok(()) }
/// ```
///
/// ```compile_fail
/// let kernels = pteron::kernels![aten::no_such_operator.out];
/// ```
#[macro_export]
macro_rules! kernels {
    ($($namespace:ident :: $name:ident $(. $overload:ident)?),* $(,)?) => {{
        static TABLE: &[$crate::kernel::Operator] = &[$(
            match $crate::kernel::library_operator(
                concat!(stringify!($namespace), "::", stringify!($name) $(, ".", stringify!($overload))?)
            ) {
                Some(operator) => operator,
                None => panic!(concat!(
                    "the library has no operator `",
                    stringify!($namespace), "::", stringify!($name) $(, ".", stringify!($overload))?,
                    "`: `pteron ops` lists those that it has"
                )),
            }
        ),*];
        $crate::kernel::KernelRegistry::from_table(TABLE)
    }};
}
