use super::translate::refused;
use crate::failure::Result;
use crate::general::{GeneralOpts, InputArg, OutputArg, exit_status};
use clap::Args;
use pteron::Limits;
use toolbox::bef::{self, Program};
use toolbox::etdump;
use toolbox::run::LoadMode;

/// Print a BEF program as MLIR text or byte by byte, or an ETDump event by event
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron print program.bef\n\n",
    "  # every byte with its meaning\n",
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
    #[arg(long)]
    bytes: bool,
    /// Print the location of every operation
    #[arg(long)]
    locations: bool,
    /// Print every operation in its generic form
    #[arg(long)]
    generic: bool,
}

impl Opts {
    pub(crate) fn run(self, _: &GeneralOpts) -> Result {
        let loader = self.input.open(LoadMode::Mmap)?;
        if etdump::is_one(&*loader)? {
            return self.output.write_text(&etdump::listing(&etdump::read(&*loader, &Limits::default())?));
        }
        let Some(Program::Bef(bytes)) = bef::open(&*loader)? else {
            return Err(bef::wrong(&*loader, "print", "BEF programs (.bef) and ETDumps").into());
        };
        let text = if self.bytes {
            bef::labelled_bytes(&bytes, loader.name())?
        } else {
            let print = mlir::PrintOptions { locations: self.locations, generic: self.generic };
            refused(bef::to_text(&bytes, loader.name(), print)?)?
        };
        self.output.write_text(&text)
    }
}
