//! A program as a scalar function of [DataFusion](https://datafusion.apache.org): `SELECT pteron(picture) FROM pictures`.
//!
//! Each argument is a column of numbers or of lists of numbers for one input of the program; the result is the program's
//! first output, a number or a list of numbers per row. [`pteron::tools::batch`] pads, splits and batches the rows to the
//! batch sizes that the program allows. A row with a null, or one that the program cannot compute, is null in the result and
//! reported in [`Failures`]; the other rows are not affected.

mod column;
mod function;

pub use function::{Failures, Pteron};

use datafusion::logical_expr::{ScalarUDF, ScalarUDFImpl};
use datafusion_ffi::udf::FFI_ScalarUDF;
use std::sync::Arc;

/// Passes the function through DataFusion's C interface, as a library built with another version or compiler would receive it.
pub fn across_ffi(function: Pteron) -> ScalarUDF {
    let exported = FFI_ScalarUDF::from(Arc::new(ScalarUDF::from(function)));
    let imported: Arc<dyn ScalarUDFImpl> = (&exported).into();
    ScalarUDF::new_from_shared_impl(imported)
}
