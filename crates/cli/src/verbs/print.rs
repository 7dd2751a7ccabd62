use super::translate::refused;
use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, OutputArg, exit_status};
use crate::limits::limits;
use clap::Args;
use toolbox::bef::{self, Program};
use toolbox::delegates;
use toolbox::etdump;
use toolbox::file::File;
use toolbox::paths::Paths;
use toolbox::print::{PrintOptions, print};
use toolbox::run::LoadMode;

/// Print a whole program (.pte) or named data (.ptd) as text, a BEF program as MLIR text or bytes,
/// an ETDump event by event
///
/// Of a program every method is a listing: values with types and places, instructions with operators,
/// values and source lines; payloads of delegates are listed by their backends.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron print model.pte\n\n",
    "  # with every source frame of every instruction\n",
    "  pteron print model.pte -v\n\n",
    "  pteron print weights.ptd\n",
    "  pteron print program.bef\n\n",
    "  # every byte of a BEF program with its meaning\n",
    "  pteron print --bytes program.bef\n\n",
    "  # what a runtime recorded\n",
    "  pteron print trace.etdp",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    output: OutputArg,
    /// Print the bytes of the file with what each of them means
    #[arg(long, help_heading = "Options for BEF programs")]
    bytes: bool,
    /// Print the location of every operation
    #[arg(long, help_heading = "Options for BEF programs")]
    locations: bool,
    /// Print every operation in its generic form
    #[arg(long, help_heading = "Options for BEF programs")]
    generic: bool,
}

impl Opts {
    pub(crate) fn paths(&self, paths: &mut Paths) {
        self.input.paths(paths);
        self.output.paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(LoadMode::File)?;
        if etdump::is_one(&*loader)? {
            return self.output.write_text(&etdump::listing(&etdump::read(&*loader, &limits())?));
        }
        let text = match bef::open(&*loader)? {
            Some(Program::Bef(bytes)) if self.bytes => bef::labelled_bytes(&bytes, loader.name())?,
            Some(Program::Bef(bytes)) => {
                let print = mlir::PrintOptions { locations: self.locations, generic: self.generic };
                refused(bef::to_text(&bytes, loader.name(), print)?)?
            }
            Some(Program::Mlir(_)) => {
                let expected = "programs (.pte, .bef), named data (.ptd) and ETDumps";
                return Err(bef::wrong(&*loader, "print", expected).into());
            }
            None => {
                let file = File::open(loader, "print", &limits())?;
                let mut text = print(&file, PrintOptions { frames: general.verbosity() > 0 })?;
                if let File::Program(program) = &file {
                    let payloads = delegates::listing(program, &general::backends())?;
                    text.extend((!payloads.is_empty()).then_some(format!("\n{payloads}")));
                }
                text
            }
        };
        self.output.write_text(&text)
    }
}
