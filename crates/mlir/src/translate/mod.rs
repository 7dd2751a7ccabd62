//! Translation between modules and BEF.

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

use crate::diagnostics::Diagnostic;
use crate::ir::Module;
use crate::limits::MAX_BEF_PAYLOAD;

/// An attribute of functions, and of operations with regions, that states streams instead of letting the analysis
/// find them: for each body the root's and then each kernel's, as `array<i64: ...>`; a list of such where there
/// are regions. It is not written to BEF.
const STREAMS: &str = "_bef_streams";

/// How to translate to BEF.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Write the sections that only translation back to text needs: types and names of attributes, types of
    /// registers.
    pub optional_sections: bool,
    /// Most bytes that dense attributes (splats written out) and texts of compiled modules may take together.
    pub max_payload: u64,
}

impl Default for Options {
    fn default() -> Self {
        Options { optional_sections: true, max_payload: MAX_BEF_PAYLOAD }
    }
}

/// How to translate from BEF.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FromBefOptions {
    /// Do as TFRT's converter does, even where its text does not translate back: call every function attribute
    /// `callee`, and let a fused location of one member stand for that member.
    pub as_reference: bool,
}

/// Translates a module to BEF: the bytes that TFRT's converter writes for it.
///
/// # Errors
/// Each reason why the program cannot be written, with its place: attributes that BEF cannot hold, functions
/// without `tfrt.return` or without a body, regions of several blocks, values used in a region that does not
/// define them, functions that do not exist, payloads beyond the limit.
pub fn to_bef(module: &Module, options: Options) -> Result<Vec<u8>, Vec<Diagnostic>> {
    let program = to_bef_module(module, options)?;
    program.to_bytes().map_err(|error| {
        vec![Diagnostic::error_at(module.location(module.op.location), format!("cannot write BEF: {error}"))]
    })
}

/// Translates a module to BEF's model of a program, to be changed, run or written.
///
/// # Errors
/// As [`to_bef`].
pub fn to_bef_module(module: &Module, options: Options) -> Result<bef::Module<'static>, Vec<Diagnostic>> {
    emit::emit(collect::collect(module, options)?)
}

/// Translates a program read from a BEF file back to a module.
///
/// With the optional sections, translating the result again gives the same bytes. Without them the names and
/// types of attributes and the types of most values are lost; what stands in the text instead
/// is chosen so that translating it without optional sections gives the same bytes where that can be had.
///
/// # Errors
/// Why the program is not one that text can say.
pub fn from_bef(program: &bef::Module<'_>, options: FromBefOptions) -> Result<Module, Vec<Diagnostic>> {
    restore::restore(program, "<bef>", options)
}

/// As [`from_bef`]; `name` is the file's, which becomes the module's own location.
///
/// # Errors
/// As [`from_bef`].
pub fn from_bef_named(
    program: &bef::Module<'_>,
    name: &str,
    options: FromBefOptions,
) -> Result<Module, Vec<Diagnostic>> {
    restore::restore(program, name, options)
}
