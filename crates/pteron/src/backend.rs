//! Delegate backends: the traits that a backend implements, and the registry in which programs look it up by id.
//!
//! A [`Backend`] makes a [`Delegate`] from each payload that a program holds for it; the delegate computes the
//! outputs of a call from its inputs. A backend that can express its payload as a graph returns a
//! [`GraphDelegate`] instead: its [`DelegateGraph`] lists the operator calls that are equivalent to the delegate call, and
//! they are fused with the calls around it.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::backend::{
//!     Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, CompileSpec,
//!     Delegate, Out,
//! };
//! use pteron::{FreeableBuffer, Module, Tensor};
//!
//! /// Computes `a · x + b` of 2x2 matrices and ignores the rest of the payload.
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
//! // The program itself adds 1 to a row of the delegate's output.
//! assert_eq!(outputs[0].to_vec::<f32>()?, [4.0, 4.0]);
//! # Ok(()) }
//! ```
//!
//! The same computation as a graph: a matrix product that is fused with the calls around it. Profiles show it as a node.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::backend::{
//!     Backend, BackendError, BackendInitContext, BackendRegistry, Call, CallArg, CallOut, CompileSpec, Delegate,
//!     DelegateGraph, Graph, GraphDelegate, GraphRequest, Place, ValueId,
//! };
//! use pteron::{FreeableBuffer, Module, Tensor};
//!
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
//!         _: FreeableBuffer,
//!         _: &[CompileSpec<'_>],
//!     ) -> Result<Box<dyn Delegate>, BackendError> {
//!         Ok(Box::new(GraphDelegate::new(Affine)))
//!     }
//! }
//!
//! impl DelegateGraph for Affine {
//!     fn num_inputs(&self) -> usize {
//!         3
//!     }
//!
//!     fn graph(&self, request: &GraphRequest<'_>) -> Result<Graph, BackendError> {
//!         let mut graph = Graph::new();
//!         let inputs: Vec<ValueId> = request.inputs.iter().map(|meta| graph.input(meta.clone())).collect();
//!         let (&[a, x, b], [out]) = (&inputs[..], request.outputs) else {
//!             return Err(BackendError::new("a call has three inputs and one output"));
//!         };
//!         let kernel = pteron::kernel_registry().get("aten::addmm.out");
//!         let kernel = kernel.ok_or_else(|| BackendError::new("there is no kernel for matrix products"))?;
//!         let one = CallArg::Scalar(1i64.into());
//!         let tensors = [CallArg::Tensor, CallArg::Tensor, CallArg::Tensor];
//!         let args = tensors.into_iter().chain([one.clone(), one, CallArg::Out(0)]).collect();
//!         graph.set_origin(Place::node(0));
//!         let call = Call::new(kernel, args, vec![CallOut::Tensor]);
//!         let node = graph.append(call, &[b, a, x], [out.clone()]);
//!         graph.output(graph.node(node).outputs()[0]);
//!         Ok(graph)
//!     }
//! }
//!
//! # let program = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/corpus/wild/demo_backend/model.pte");
//! let mut backends = BackendRegistry::new();
//! backends.register(Affine)?;
//! let mut module = Module::open(program, pteron::load_options().backends(backends))?;
//! let ones = Tensor::from_slice(&[2, 2], &[1f32; 4])?;
//! let outputs = module.forward(&[ones.clone().into(), ones.clone().into(), ones.into()])?;
//! assert_eq!(outputs[0].to_vec::<f32>()?, [4.0, 4.0]);
//! # Ok(()) }
//! ```

pub use pteron_operator::{Arg, Isa, Out};
pub use pteron_runtime::{
    Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendOptions, BackendRegistry,
    Call, CallArg, CallArgument, CallOut, CompileSpec, Constant, Delegate, DelegateGraph, DuplicateBackend,
    Graph, GraphDelegate, GraphRequest, Identity, OptionValue, PayloadBackend, PayloadBytes, PayloadContents,
    PayloadNode, PayloadRole, PayloadSupport, PayloadValue, RefusedNode, ValueId,
};
pub use pteron_trace::Place;
