use crate::{Context, Result};
use pteron_mlir::{Diagnostic, FromBefOptions, Options, PrintOptions};

/// The outcome of parsing or translating a program.
pub enum Translation<T> {
    /// The translated program.
    Done(T),
    /// The translation failed with these errors, each with its location.
    Refused(Vec<Diagnostic>),
}

/// Compares the errors of parsing and translating a text with its `expected-error` comments. The text is refused
/// with every error that was not expected and every expectation without an error. With `split`, the text is split
/// at lines `// -----` into independent programs.
pub fn check_diagnostics(source: &[u8], name: &str, options: Options, split: bool) -> Translation<()> {
    let pieces = if split { pteron_mlir::split(source) } else { vec![(0, source)] };
    let mut left = Vec::new();
    for (lines, piece) in pieces {
        let result = pteron_mlir::parse(piece, name).and_then(|module| pteron_mlir::to_bef(&module, options));
        let wrong = pteron_mlir::check_diagnostics(piece, name, &result.err().unwrap_or_default());
        left.extend(wrong.into_iter().map(|d| d.shifted_by_lines(name, lines).quoted_from(name, source)));
    }
    if left.is_empty() { Translation::Done(()) } else { Translation::Refused(left) }
}

/// Translates MLIR text to the bytes of a BEF file.
pub fn to_bef(source: &[u8], name: &str, options: Options) -> Translation<Vec<u8>> {
    let result = pteron_mlir::parse(source, name).and_then(|module| pteron_mlir::to_bef(&module, options));
    match result {
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

/// A warning if a BEF file lacks optional sections, without which its MLIR text lacks attributes or types.
pub fn missing_sections(bytes: &[u8], name: &str) -> Option<Diagnostic> {
    let file = pteron_bef::File::open(bytes).ok()?;
    let optional = [
        pteron_bef::SectionId::AttributeTypes,
        pteron_bef::SectionId::AttributeNames,
        pteron_bef::SectionId::RegisterTypes,
    ];
    let missing = optional.into_iter().any(|id| file.section(id).is_none());
    missing.then(|| warning(name, "Missing AttributeTypes, AttributeNames or RegisterTypes sections."))
}

fn warning(name: &str, message: &str) -> Diagnostic {
    Diagnostic {
        severity: pteron_mlir::Severity::Warning,
        place: Some(pteron_mlir::Place { file: name.to_owned(), line: 0, column: 0 }),
        message: message.into(),
        quote: None,
        notes: Vec::new(),
    }
}

/// Translates the text of a BEF file, printed with locations, to BEF again.
///
/// Returns a warning if this does not give the bytes of the file: parts that the text leaves out (attributes that no
/// kernel uses, another order of tables or of used-by lists), or a variant of the format that is not written.
pub fn round_trip_warning(bytes: &[u8], text: &str, name: &str) -> Translation<Option<Diagnostic>> {
    match to_bef(text.as_bytes(), name, Options::default()) {
        Translation::Done(again) if again == bytes => Translation::Done(None),
        Translation::Done(_) => {
            let message =
                "Translating the text again gives a program with the same functions, but other bytes.";
            Translation::Done(Some(warning(name, message)))
        }
        Translation::Refused(diagnostics) => Translation::Refused(diagnostics),
    }
}

/// Translates a BEF file to MLIR text. Locations without an MLIR notation are an error only if they are printed.
pub fn to_text(bytes: &[u8], name: &str, print: PrintOptions) -> Result<Translation<String>> {
    let program = pteron_bef::File::open(bytes)
        .and_then(|file| file.verify())
        .and_then(|program| program.to_module())
        .context(|| format!("{name} is not a valid BEF file"))?;
    let options = FromBefOptions { without_locations: !print.locations, ..FromBefOptions::default() };
    Ok(match pteron_mlir::from_bef_named(&program, name, options) {
        Ok(module) => Translation::Done(pteron_mlir::print(&module, print)),
        Err(error) => Translation::Refused(error.0),
    })
}
