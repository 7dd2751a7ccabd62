//! Translation of modules to and from BEF.

mod attributes;
mod collect;
mod emit;
mod locations;
mod names;
mod restore;
mod signs;
mod symbols;
mod units;
mod untyped;

use crate::diagnostics::{Diagnostic, Error};
use crate::ir::{Attribute, Module};
use crate::limits::MAX_BEF_PAYLOAD;

/// An attribute of functions, and of operations with regions, that records streams to be used instead of those of the
/// stream analysis: for each body, the root's stream and then each kernel's, as `array<i64: ...>`; for regions, a list
/// of such arrays. It is not written to BEF.
const STREAMS: &str = "_bef_streams";

/// The attribute of a function that records the function's name if it differs from the symbol: a BEF file may have two functions of one
/// name.
const NAME: &str = "_bef_name";

/// An attribute of the module that records the sections that the format does not define, as a list of
/// `[id, alignment, "contents"]`.
const SECTIONS: &str = "_bef_sections";

/// Options for the translation to BEF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Write the sections that are only needed to translate back to text: types and names of attributes, types of
    /// registers.
    pub optional_sections: bool,
    /// Maximum total size in bytes of dense attributes (with splats expanded) and texts of compiled modules.
    pub max_payload: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { optional_sections: true, max_payload: MAX_BEF_PAYLOAD }
    }
}

/// Options for the translation from BEF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromBefOptions {
    /// Behave like TFRT's converter, even if its text does not translate back: name every function attribute `callee`,
    /// and replace a fused location of one member by that member.
    pub as_reference: bool,
    /// Whether to leave out all locations, including those that the text form cannot represent.
    pub without_locations: bool,
}

/// Translates a module to BEF: the same bytes that TFRT's converter writes for it.
///
/// # Errors
/// The reasons why the program cannot be written, with their positions: attributes that BEF cannot represent, functions
/// without `tfrt.return` or without a body, regions of several blocks, values used in a region that does not define
/// them, functions that do not exist, payloads beyond the limit.
pub fn to_bef(module: &Module, options: Options) -> Result<Vec<u8>, Error> {
    let program = to_bef_module(module, options)?;
    program.to_bytes().map_err(|error| {
        let location = module.location(module.op.location);
        Error(vec![Diagnostic::error_at(location, format!("cannot write BEF: {error}"))])
    })
}

/// Translates a module to a [`pteron_bef::Module`], which can be changed, run or written.
///
/// # Errors
/// As [`to_bef`].
pub fn to_bef_module(module: &Module, options: Options) -> Result<pteron_bef::Module<'static>, Error> {
    let mut program = emit::emit(collect::collect(module, options)?)?;
    program.custom_sections = custom_sections(module)?;
    Ok(program)
}

/// The custom sections that the module's attribute [`SECTIONS`] records, to be written to the BEF file.
fn custom_sections(module: &Module) -> Result<Vec<pteron_bef::CustomSection<'static>>, Vec<Diagnostic>> {
    let Some(stated) = module.op.attribute(SECTIONS) else { return Ok(Vec::new()) };
    let section = |element: &Attribute| {
        let Attribute::Array(fields) = element else { return None };
        let [id, alignment, contents] = &**fields else { return None };
        let number = |field: &Attribute| u8::try_from(field.as_int()?).ok();
        Some(pteron_bef::CustomSection {
            id: number(id)?,
            alignment: number(alignment)?,
            data: contents.as_text()?.as_bytes().to_vec().into(),
        })
    };
    let sections = match stated {
        Attribute::Array(elements) => elements.iter().map(section).collect(),
        _ => None,
    };
    sections.ok_or_else(|| {
        let message = format!("'{SECTIONS}' must be a list of [id, alignment, \"contents\"]");
        vec![Diagnostic::error_at(module.location(module.op.location), message)]
    })
}

/// Translates a program read from a BEF file back to a module.
///
/// With the optional sections, translating the result again gives the same bytes. Without them, the names and types of
/// attributes and the types of most values are lost; substitutes are chosen so that translating the text without
/// optional sections gives the same bytes if possible.
///
/// # Errors
/// The reasons why text cannot represent the program, with the name of the function and kernel: a region of itself or
/// of several kernels, nesting or numbers beyond the limits of text, kernels that text takes for
/// the end of a function. Text for which this does not fail is read again.
pub fn from_bef(program: &pteron_bef::Module<'_>, options: FromBefOptions) -> Result<Module, Error> {
    from_bef_named(program, "<bef>", options)
}

/// As [`from_bef`]; `name` is the file name in the module's location.
///
/// # Errors
/// As [`from_bef`].
pub fn from_bef_named(
    program: &pteron_bef::Module<'_>,
    name: &str,
    options: FromBefOptions,
) -> Result<Module, Error> {
    Ok(restore::restore(program, name, options)?)
}
