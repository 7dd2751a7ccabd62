//! MLIR text for host programs: a parser, a printer, and translation to and from BEF.
//!
//! ```
//! let source = "func.func @answer() -> i32 {\n  %0 = tfrt.constant.i32 42\n  tfrt.return %0 : i32\n}\n";
//! let module = pteron_mlir::parse(source, "answer.mlir").expect("well-formed");
//! let text = pteron_mlir::print(&module, pteron_mlir::PrintOptions::default());
//! assert!(text.contains("tfrt.constant.i32 42"));
//! ```
//!
//! Every operation can be written in generic form. Operations of the dialects `tfrt`, `tfrt_test`, `tfrt_dht`, `ts`,
//! `coo` and `corert` (and their `_sync` variants), of `func` and `builtin`, and some of `arith`, also have their
//! custom form. Syntax, numbering of values, location aliases and error positions are those of MLIR 16.
#![forbid(unsafe_code)]

mod diagnostics;
mod dialects;
mod expectations;
mod ir;
mod lexer;
pub mod limits;
mod parser;
mod printer;
mod source;
mod translate;
mod verify;

pub use diagnostics::{Diagnostic, Error, Place, Severity};
pub use expectations::{Expectation, check_diagnostics, expectations, split};
pub use ir::{
    Attribute, Block, DenseData, DenseElements, DialectSymbol, FloatKind, FunctionType, Location, LocationId,
    Module, NamedAttribute, Operation, Region, ShapedKind, ShapedType, Signedness, Text, Type, Value,
    ValueId,
};
pub use parser::{parse, parse_attribute, parse_type};
pub use printer::{PrintOptions, print};
pub use translate::{FromBefOptions, Options, from_bef, from_bef_named, to_bef, to_bef_module};
pub use verify::verify;
