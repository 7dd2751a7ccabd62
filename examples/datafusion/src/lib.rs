//! A program as a scalar function of [DataFusion](https://datafusion.apache.org): `SELECT pteron(picture) FROM pictures`.
//!
//! Each argument is a column for an input of the program, of numbers or of lists of numbers; the result is the program's
//! first output, a number or a list of numbers a row. Rows are padded, split and joined to the batches that the program
//! allows by [`pteron::tools::batch`]. A row with a null, or of which the program can make nothing, gives null, and the
//! [`Failures`] say which rows and why; the others have their results.

mod column;
mod function;

pub use function::{Failures, Pteron};

use datafusion::logical_expr::{ScalarUDF, ScalarUDFImpl};
use datafusion_ffi::udf::FFI_ScalarUDF;
use std::sync::Arc;

/// The function as another library would get it: across DataFusion's C interface, whatever version and compiler it has.
pub fn across_ffi(function: Pteron) -> ScalarUDF {
    let exported = FFI_ScalarUDF::from(Arc::new(ScalarUDF::from(function)));
    let imported: Arc<dyn ScalarUDFImpl> = (&exported).into();
    ScalarUDF::new_from_shared_impl(imported)
}
