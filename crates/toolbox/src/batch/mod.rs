//! Rows of columns, executed in batches: as many at a time as a program takes, padded and split, joined again in their
//! order. A row that fails is named and leaves the others as they are.

mod convert;
mod outputs;
mod plan;
mod rows;
mod run;

pub use outputs::{Cells, OutputColumn};
pub use plan::{Joining, Plan, Spec};
pub use run::{Outcome, Runner};

use tensor::{ScalarType, Shape};

/// A column of a table: the same input for each row.
pub trait Column: Sync {
    /// Its name, for messages.
    fn name(&self) -> &str;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The type of its elements.
    fn dtype(&self) -> ScalarType;

    /// The elements of a row, in row-major order; otherwise why there are none.
    fn row(&self, index: usize) -> Result<Row<'_>, String>;
}

/// The elements of one row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The elements, in this machine's byte order.
    pub bytes: &'a [u8],
    /// The sizes; one size may stand for any sizes of as many elements.
    pub sizes: Shape,
}

/// A row that has no result.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The index of the row.
    pub row: usize,
    /// The column that is why, if it is one.
    pub column: Option<String>,
    /// Why.
    pub reason: String,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.column {
            Some(column) => write!(f, "row {}, column `{column}`: {}", self.row, self.reason),
            None => write!(f, "row {}: {}", self.row, self.reason),
        }
    }
}
