//! Conformance: runs recorded cases and compares what comes out.

mod case;
mod compare;

pub use case::{Case, Entry, Number, Recorded, Run, SetAside, Values, read};
pub use compare::{Difference, Scope, Tolerance, compare};
