//! Runs a method over the rows of a table in batches: rows are grouped into the batch sizes that the program takes, padded,
//! executed, and their results put back into row order. A row that fails is reported by index; the others still get results.

mod convert;
mod outputs;
mod plan;
mod rows;
mod run;
mod stacked;
mod top;

pub use outputs::{Cells, OutputColumn};
pub use plan::{Joining, Plan, RowRules, Spec};
pub use run::{Outcome, Runner};
pub use stacked::Stacked;
pub use top::top;

use pteron_tensor::{ScalarType, Shape};

/// A column of a table: for each row, the value of one input.
pub trait Column: Sync {
    /// The column's name, for messages.
    fn name(&self) -> &str;

    /// The number of rows.
    fn rows(&self) -> usize;

    /// The type of the elements.
    fn dtype(&self) -> ScalarType;

    /// The elements of a row, in row-major order, or why the row has none.
    fn row(&self, index: usize) -> Result<Row<'_>, Fault>;

    /// The name of the column from which the element at this index of a row comes, if rows combine several columns.
    fn part(&self, _element: usize) -> Option<&str> {
        None
    }
}

/// Why a row of a column cannot be given to the program.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fault {
    /// The column at fault, if the row combines several columns.
    pub part: Option<String>,
    /// What is wrong with the row.
    pub reason: String,
}

impl From<String> for Fault {
    fn from(reason: String) -> Self {
        Self { part: None, reason }
    }
}

/// The elements of one row.
#[derive(Debug, Clone, Copy)]
pub struct Row<'a> {
    /// The elements, in native byte order.
    pub bytes: &'a [u8],
    /// The sizes of the row. A row of rank 1 fits any input with as many elements.
    pub sizes: Shape,
}

/// A row whose execution failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    /// The index of the row.
    pub row: usize,
    /// The input column that caused the failure; `None` if no single column did.
    pub column: Option<String>,
    /// Why the row failed.
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
