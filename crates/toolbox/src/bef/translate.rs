use crate::{Context, Result};
use mlir::{Diagnostic, FromBefOptions, Options, PrintOptions};

/// What came of reading or translating text.
pub enum Translation<T> {
    /// The result.
    Done(T),
    /// Why there is none, each with its place.
    Refused(Vec<Diagnostic>),
}

/// Reads MLIR text. With `verify_diagnostics`, what reading and translating it reports is compared with
/// the `expected-error` comments of the text: what is left over either way is why it is refused, and if
/// nothing is left over and something was expected, there is nothing to do: `Done(None)`.
pub fn read_mlir(
    source: &[u8],
    name: &str,
    options: Options,
    verify_diagnostics: bool,
) -> Translation<Option<mlir::Module>> {
    let read = mlir::parse(source, name);
    if !verify_diagnostics {
        return match read {
            Ok(module) => Translation::Done(Some(module)),
            Err(diagnostics) => Translation::Refused(diagnostics),
        };
    }
    let reported = match &read {
        Ok(module) => mlir::to_bef(module, options).err().unwrap_or_default(),
        Err(diagnostics) => diagnostics.clone(),
    };
    let left = mlir::check_diagnostics(source, name, &reported);
    match (left.is_empty(), reported.is_empty(), read) {
        (false, ..) => Translation::Refused(left),
        (true, true, Ok(module)) => Translation::Done(Some(module)),
        _ => Translation::Done(None),
    }
}

/// Translates MLIR text to the bytes of a BEF file.
pub fn to_bef(source: &[u8], name: &str, options: Options) -> Translation<Vec<u8>> {
    let made = mlir::parse(source, name).and_then(|module| mlir::to_bef(&module, options));
    match made {
        Ok(bytes) => Translation::Done(bytes),
        Err(diagnostics) => {
            let quoted = diagnostics.into_iter().map(|d| match &d.quote {
                Some(_) => d,
                None => d.quoted_from(name, source),
            });
            Translation::Refused(quoted.collect())
        }
    }
}

/// Translates the bytes of a BEF file to MLIR text.
pub fn to_text(bytes: &[u8], name: &str, print: PrintOptions) -> Result<Translation<String>> {
    let program = bef::File::open(bytes)
        .and_then(|file| file.verify())
        .and_then(|program| program.to_module())
        .context(|| format!("{name} is not a valid BEF file"))?;
    Ok(match mlir::from_bef_named(&program, name, FromBefOptions::default()) {
        Ok(module) => Translation::Done(mlir::print(&module, print)),
        Err(diagnostics) => Translation::Refused(diagnostics),
    })
}
