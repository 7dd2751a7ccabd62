//! The verbs of the `pteron` command as functions: inspect, print, validate, verify, edit, diff, plan,
//! profile, compare, convert. They return values and print nothing.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::tools::{inspect, run};
//!
//! # let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/digits/digits.pte");
//! let loader = run::open(digits.as_ref(), run::LoadMode::File)?;
//! let options = pteron::load_options();
//! let report = inspect::inspect(&loader, &options.kernels, &options.backends, &options.limits)?;
//! let inspect::Report::Pte(program) = &report else { panic!("a program was given") };
//! assert_eq!(program.methods.len(), 1);
//! println!("{}", inspect::text(&report, false));
//! # Ok(()) }
//! ```

pub use pteron_report as report;
pub use pteron_toolbox::*;
pub use pteron_verify as verify;
