//! Prints whole files as text: all values, instructions and source frames of a program, all entries of
//! named data. The text is not stable across releases.

mod flat_tensor;
mod graph;
mod program;

pub use graph::{Stage, graph_at_stage, graphs, stages};
pub use program::{argument_text, instruction_text, place_text, tensor_type};

use crate::Result;
use crate::file::File;

#[derive(Debug, Clone, Copy, Default)]
pub struct PrintOptions {
    /// Whether the inputs and outputs of chains, and all source frames of an instruction, are printed.
    pub frames: bool,
}

/// Prints the tables of a file as text; its segments are not read.
pub fn print(file: &File, options: PrintOptions) -> Result<String> {
    let mut out = String::new();
    let written = print_to(&mut out, file, options);
    debug_assert!(written.is_ok(), "a String takes all text");
    Ok(out)
}

/// As [`print()`], but writes the text as it is made, so that not all of it is in memory.
///
/// # Errors
/// If `out` takes no more text.
pub fn print_to(out: &mut dyn std::fmt::Write, file: &File, options: PrintOptions) -> std::fmt::Result {
    match file {
        File::Program(program) => program::print(out, program, options),
        File::Data(data) => flat_tensor::print(out, data),
    }
}
