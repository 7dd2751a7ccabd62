//! Reads a whole file, for statistics and fuzzing.

use crate::error::Result;
use crate::file::File;
use crate::ids::FunctionId;
use crate::limits::Limits;

/// Counts of what a file contains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Summary {
    /// Sections, unknown ones included.
    pub sections: u64,
    /// Strings in the Strings section.
    pub strings: u64,
    /// Kernel names.
    pub kernel_names: u64,
    /// Types.
    pub types: u64,
    /// Functions, native ones and regions included.
    pub functions: u64,
    /// Registers of all functions.
    pub registers: u64,
    /// Kernels of all functions, pseudo kernels included.
    pub kernels: u64,
    /// Attributes, if the file lists them.
    pub attributes: u64,
    /// Functions and kernels whose location is known.
    pub locations: u64,
}

/// Opens a file, computes its spans, verifies it, converts it to a module and decodes all of it. The entry point for
/// fuzzing.
///
/// # Errors
/// The first error that verification finds. A file that verifies is read and explained without error.
pub fn walk(bytes: &[u8], limits: Limits) -> Result<Summary> {
    let file = File::open_with(bytes, limits)?;
    let explained = file.spans(&mut |_| ());
    let verified = file.verify()?;
    explained?;
    verified.to_module()?;
    count_contents(&file)
}

fn count_contents(file: &File<'_>) -> Result<Summary> {
    let mut summary = Summary { sections: file.sections().count() as u64, ..Summary::default() };
    for string in file.strings().iter() {
        string?;
        summary.strings += 1;
    }
    summary.kernel_names = file.kernel_names()?.len() as u64;
    summary.types = file.type_names()?.len() as u64;
    let index = file.function_index()?;
    summary.functions = index.len() as u64;
    let mut names = file.attribute_names(index.len())?;
    let mut types = file.register_types(index.len())?;
    for id in (0..index.len() as u32).map(FunctionId) {
        let Some(function) = file.function(&index, id)? else { continue };
        summary.registers += function.register_uses().len() as u64;
        summary.kernels += function.kernel_table().len() as u64;
        summary.locations += u64::from(file.locations().get(function.location())?.is_some());
        if let Some(names) = &mut names {
            names.next_function(function.kernel_table().len())?;
        }
        if let Some(types) = &mut types {
            types.next_function(function.register_uses().len())?;
        }
        for kernel in function.kernels() {
            let kernel = kernel?;
            summary.locations += u64::from(file.locations().get(kernel.location().into())?.is_some());
            for _ in kernel.attributes().iter() {
                names.as_mut().map(|names| names.next_name()).transpose()?;
            }
        }
    }
    for (offset, kind) in file.attribute_types()?.iter().flat_map(|types| types.iter()) {
        file.attributes().at(offset).decode(kind)?;
        summary.attributes += 1;
    }
    Ok(summary)
}
