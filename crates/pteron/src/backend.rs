//! Delegate backends: what one implements, and the registry in which programs find it by its id.
//!
//! A [`Backend`] makes a [`Delegate`] of each payload that a program has for it; the delegate computes the
//! outputs of a call from its inputs.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::backend::{
//!     Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, CompileSpec,
//!     Delegate, Out,
//! };
//! use pteron::{FreeableBuffer, Module, Tensor};
//!
//! /// Computes `a · x + b` of 2x2 matrices, whatever the payload says.
//! struct Affine;
//!
//! impl Backend for Affine {
//!     fn id(&self) -> &str {
//!         "BackendWithCompilerDemo"
//!     }
//!
//!     fn init(
//!         &self,
//!         _: &BackendInitContext<'_>,
//!         payload: FreeableBuffer,
//!         _: &[CompileSpec<'_>],
//!     ) -> Result<Box<dyn Delegate>, BackendError> {
//!         if !payload.starts_with(b"2version:0#") {
//!             return Err(BackendError::new("the payload is not two instructions of version 0"));
//!         }
//!         Ok(Box::new(Affine))
//!     }
//! }
//!
//! impl Delegate for Affine {
//!     fn num_inputs(&self) -> usize {
//!         3
//!     }
//!
//!     fn execute(
//!         &mut self,
//!         _: &BackendExecutionContext<'_>,
//!         inputs: &[Arg<'_>],
//!         outputs: &mut [Out<'_>],
//!     ) -> Result<(), BackendError> {
//!         let ([Arg::Tensor(a), Arg::Tensor(x), Arg::Tensor(b)], [Out::Tensor(out)]) = (inputs, outputs) else {
//!             return Err(BackendError::new("a call has three inputs and one output, all tensors"));
//!         };
//!         let (a, x, b) = (a.to_vec::<f32>()?, x.to_vec::<f32>()?, b.to_vec::<f32>()?);
//!         for (i, out) in out.storage_mut::<f32>()?.iter_mut().enumerate() {
//!             let (row, column) = (i / 2, i % 2);
//!             *out = a[2 * row] * x[column] + a[2 * row + 1] * x[2 + column] + b[i];
//!         }
//!         Ok(())
//!     }
//! }
//!
//! # let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/corpus/wild/demo_backend/model.pte");
//! let mut backends = BackendRegistry::new();
//! backends.register(Affine)?;
//! let mut module = Module::open(program, pteron::load_options().backends(backends))?;
//! let ones = Tensor::from_slice(&[2, 2], &[1f32; 4])?;
//! let outputs = module.forward(&[ones.clone().into(), ones.clone().into(), ones.into()])?;
//! // The program itself adds 1 to a row of what its delegate gives.
//! assert_eq!(outputs[0].to_vec::<f32>()?, [4.0, 4.0]);
//! # Ok(()) }
//! ```

pub use operator::{Arg, Isa, Out};
pub use runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendOptions, BackendRegistry,
    CompileSpec, Delegate, DuplicateBackend, OptionValue,
};
