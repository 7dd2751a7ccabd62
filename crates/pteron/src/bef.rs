//! TFRT's Binary Executable Format: read, verify, write, translate from and to MLIR text, run.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::bef::{File, driver, mlir};
//! use std::sync::Arc;
//!
//! let source = br#"
//! func.func @main() -> i32 {
//!   %x = tfrt.constant.i32 40
//!   %y = tfrt.constant.i32 2
//!   %sum = tfrt.add.i32 %x, %y
//!   tfrt.return %sum : i32
//! }"#;
//! let module = mlir::parse(source, "sum.mlir")?;
//! let bytes = mlir::to_bef(&module, mlir::Options::default())?;
//!
//! // Read and print.
//! let program = File::open(&bytes)?.verify()?.to_module()?;
//! let module = mlir::from_bef(&program, mlir::FromBefOptions::default())?;
//! assert!(mlir::print(&module, mlir::PrintOptions::default()).contains("tfrt.add.i32"));
//!
//! // Run every function that takes no arguments, as the reference's executor does.
//! let status = driver::run(Arc::new(bytes), &driver::Options::default(), std::io::stdout(), std::io::stderr());
//! assert_eq!(status, 0);
//! # Ok(()) }
//! ```
//!
//! [`host`] executes functions that take arguments, and custom kernels, on a [`WorkQueue`]; `docs/host.md` is a guide.

pub use pteron_bef::*;
pub use pteron_host as host;
pub use pteron_mlir as mlir;
pub use pteron_pool::WorkQueue;
pub use pteron_tfrt_kernels::{driver, register, registry};

/// The guide `docs/host.md`, whose code blocks are tested as doc tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/host.md")]
mod guide {}
