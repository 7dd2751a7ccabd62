//! `.bpte`: a bundled program, i.e. a `.pte` together with test inputs for its methods and the outputs expected.
//!
//! The whole file is one flatbuffer with the identifier `BP08`, which holds the bytes of the program, with its extended
//! header and segments, as a vector. A reader takes the whole file at once:
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use pteron_format::{Limits, bpte};
//! let file = std::fs::read("model.bpte")?;
//! let bundle = bpte::read(&file, &Limits::default())?;
//! let program = &file[bundle.program.start as usize..bundle.program.end as usize];
//! println!("{} bytes of program, {} methods tested", program.len(), bundle.method_test_suites.len());
//! # Ok(()) }
//! ```

mod read;
mod write;

pub use read::read;
pub use write::{PROGRAM_ALIGNMENT, write};

use crate::shape;
use pteron_tensor::ScalarType;
use std::ops::Range;

/// The file identifier at byte 4.
pub const IDENTIFIER: [u8; 4] = *b"BP08";

/// The newest supported version of the schema, which release 1.5 writes.
pub const SCHEMA_VERSION: u32 = 2;

/// A program with test cases (`BundledProgram`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BundledProgram {
    /// Version of the schema, up to [`SCHEMA_VERSION`].
    pub version: u32,
    /// The test cases of each method.
    pub method_test_suites: Vec<BundledMethodTestSuite>,
    /// The byte range of the `.pte` in the file.
    pub program: Range<u64>,
}

/// The test cases of a method (`BundledMethodTestSuite`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BundledMethodTestSuite {
    /// The name of the method.
    pub method_name: String,
    /// The method's test cases.
    pub test_cases: Vec<BundledMethodTestCase>,
}

/// A test case: inputs and the outputs expected for them (`BundledMethodTestCase`).
#[derive(Debug, Clone, PartialEq, Default)]
pub struct BundledMethodTestCase {
    /// The inputs to set.
    pub inputs: Vec<Value>,
    /// The outputs to expect; if empty, there is nothing to compare with.
    pub expected_outputs: Vec<Value>,
}

/// An input or output (`Value`).
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A tensor with its bytes.
    Tensor(Tensor),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A floating-point number.
    Double(f64),
}

/// A tensor with its bytes (`Tensor`).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tensor {
    /// The element type, as its number in ExecuTorch's `ScalarType`.
    pub scalar_type: i8,
    /// Sizes, outermost dimension first.
    pub sizes: Vec<i32>,
    /// The elements, little-endian, in the order of `dim_order`.
    pub data: Vec<u8>,
    /// Dimensions from the outermost in memory to the innermost.
    pub dim_order: Vec<u8>,
}

impl Tensor {
    /// The element type; `None` if its number is unknown.
    pub fn dtype(&self) -> Option<ScalarType> {
        ScalarType::from_i8(self.scalar_type).ok()
    }

    /// Number of bytes that the type and sizes require; `None` if it overflows, a size is negative or the type is
    /// unknown.
    pub fn nbytes(&self) -> Option<u64> {
        shape::nbytes(self.scalar_type, &self.sizes)
    }
}

impl BundledProgram {
    /// The test cases of a method.
    pub fn suite(&self, method: &str) -> Option<&BundledMethodTestSuite> {
        self.method_test_suites.iter().find(|suite| suite.method_name == method)
    }
}
