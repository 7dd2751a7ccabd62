use crate::call::refuse_options;
use crate::failure::{Failure, Result};
use crate::general::{GeneralOpts, InputArg, OutputArg, exit_status};
use crate::terminal::{say, say_lines};
use clap::Args;
use pteron_toolbox::bef::{self, Program, Translation};
use pteron_toolbox::paths::Paths;

/// Translate MLIR text to a BEF program, or a BEF program to text
///
/// The file determines the direction: BEF starts with its magic bytes, text has a name that ends in .mlir or
/// comes from stdin. Text that cannot be translated is refused with a location for each diagnostic; a program
/// that text cannot hold, with the names of function and kernel. Text has the locations that the program
/// records, so that translating it again gives the program again.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron translate program.mlir -o program.bef\n",
    "  pteron translate program.bef\n\n",
    "  # without the sections that only translation back to text needs\n",
    "  pteron translate program.mlir --no-optional-sections -o small.bef\n\n",
    "  # check the `// expected-error` comments of a test\n",
    "  pteron translate test.mlir --verify-diagnostics",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    output: OutputArg,
    /// Omit the types and names of attributes and the types of registers
    #[arg(long)]
    no_optional_sections: bool,
    /// Compare the diagnostics with the `expected-error` comments of the text, and write nothing
    #[arg(long)]
    verify_diagnostics: bool,
    /// Treat each part between `// -----` lines as a separate program
    #[arg(long, requires = "verify_diagnostics")]
    split_input_file: bool,
    /// Print the location of every operation (the default)
    #[arg(long, conflicts_with = "no_locations")]
    locations: bool,
    /// Leave locations out of the text
    #[arg(long)]
    no_locations: bool,
    /// Print every operation in its generic form
    #[arg(long)]
    generic: bool,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open_uncompiled()?;
        let options = |source: &[u8]| -> Result<pteron_mlir::Options> {
            let limited = general.bounds().translation_options(source, loader.name());
            let options = limited.map_err(|why| Failure::Failed(why.into()))?;
            Ok(pteron_mlir::Options { optional_sections: !self.no_optional_sections, ..options })
        };
        let program = bef::open(&*loader)?;
        match &program {
            Some(Program::Mlir(_)) => {
                let of_text = [("--locations", self.locations), ("--no-locations", self.no_locations), ("--generic", self.generic)];
                refuse_options("translate", loader.name(), "MLIR text", of_text.into_iter())?;
            }
            Some(Program::Bef(_)) => {
                let of_bef = [
                    ("--no-optional-sections", self.no_optional_sections),
                    ("--verify-diagnostics", self.verify_diagnostics),
                    ("--split-input-file", self.split_input_file),
                ];
                refuse_options("translate", loader.name(), "a BEF program", of_bef.into_iter())?;
            }
            None => {}
        }
        match program {
            Some(Program::Mlir(source)) if self.verify_diagnostics => {
                let options = options(&source)?;
                require_translated(bef::check_diagnostics(&source, loader.name(), options, self.split_input_file))
            }
            Some(Program::Mlir(source)) => {
                let options = options(&source)?;
                self.output.write_binary(&require_translated(bef::to_bef(&source, loader.name(), options))?)
            }
            Some(Program::Bef(bytes)) => {
                let name = loader.name();
                let without_sections = bef::missing_sections(&bytes, name);
                let print = pteron_mlir::PrintOptions { locations: self.locations || !self.no_locations, generic: self.generic };
                let text = require_translated(bef::to_text(&bytes, name, print)?)?;
                let comes_back = !self.no_locations && without_sections.is_none();
                let other = match comes_back {
                    true => require_translated(bef::round_trip_warning(&bytes, &text, name))?,
                    false => None,
                };
                without_sections.into_iter().chain(other).for_each(say);
                self.output.write_source(&text)
            }
            None => Err(bef::wrong_format(&*loader, "translate", "BEF programs (.bef) and MLIR text (.mlir)").into()),
        }
    }
}

/// Returns the translated result, or prints the diagnostics to stderr and fails.
pub(crate) fn require_translated<T>(translation: Translation<T>) -> Result<T> {
    match translation {
        Translation::Done(result) => Ok(result),
        Translation::Refused(diagnostics) => {
            for diagnostic in diagnostics {
                say_lines(&diagnostic.to_string());
            }
            Err(Failure::Reported)
        }
    }
}
