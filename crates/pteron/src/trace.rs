//! Events about loading and running: implement [`EventTracer`] to receive them.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::trace::{EventTracer, Span, SpanKind};
//! use pteron::{LoadOptions, Module, Tensor};
//! use std::sync::{Arc, Mutex};
//! use std::time::Duration;
//!
//! /// Records the time that each operator takes.
//! #[derive(Default)]
//! struct Times(Mutex<Vec<(String, Duration)>>);
//!
//! impl EventTracer for Times {
//!     fn span(&self, span: &Span<'_>) {
//!         if span.kind == SpanKind::Kernel {
//!             self.0.lock().unwrap().push((span.name.to_owned(), span.end - span.start));
//!         }
//!     }
//! }
//!
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
//! let times = Arc::new(Times::default());
//! let options = LoadOptions { tracer: Some(times.clone()), ..pteron::load_options() };
//! let mut module = Module::open(digits, options)?;
//! module.forward(&[Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?.into()])?;
//! for (operator, time) in times.0.lock().unwrap().iter() {
//!     println!("{operator}: {time:?}");
//! }
//! # assert!(!times.0.lock().unwrap().is_empty());
//! # Ok(()) }
//! ```

pub use pteron_clock as clock;
pub use pteron_trace::{EventTracer, Place, Span, SpanKind, Tracer};
