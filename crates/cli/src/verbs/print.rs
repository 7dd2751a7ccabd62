use super::translate::require_translated;
use crate::call::refuse_options;
use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, OutputArg, exit_status, format_into};
use crate::maps;
use crate::registries;
use clap::Args;
use clap::builder::PossibleValuesParser;
use pteron::{DataLoader, Program};
use std::path::PathBuf;
use std::sync::Arc;
use pteron_toolbox::bef;
use pteron_toolbox::delegates;
use pteron_toolbox::etdump;
use pteron_toolbox::file::File;
use pteron_toolbox::paths::Paths;
use pteron_toolbox::print::{PrintOptions, Stage, graphs, print_to, stages};
use pteron_toolbox::run::{expect_program, open_data};

/// Print a whole program (.pte) or named data (.ptd) as text, a BEF program as MLIR text or bytes,
/// an ETDump event by event
///
/// For a program, lists every method: values with their types and memory, instructions with operators, values and
/// source lines. Payloads of delegates are listed by their backends.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron print model.pte\n\n",
    "  # with every source frame of every instruction, and what chains declare to take and give\n",
    "  pteron print model.pte -v\n\n",
    "  pteron print weights.ptd\n",
    "  pteron print program.bef\n\n",
    "  # every byte of a BEF program with its meaning\n",
    "  pteron print --bytes program.bef\n\n",
    "  # the lowered graphs of a program: fused nodes, with the instructions that each replaces\n",
    "  pteron print --graph model.pte\n",
    "  pteron print --graph --after calls model.pte\n\n",
    "  # the events that a runtime recorded\n",
    "  pteron print trace.etdp",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    #[command(flatten)]
    output: OutputArg,
    /// Print the graphs to which regions of instructions are lowered
    #[arg(long, help_heading = "Options for programs (.pte)")]
    graph: bool,
    /// Print the graphs after this pass; `calls` is before the first
    #[arg(long, value_name = "PASS", requires = "graph", value_parser = pass_names(), help_heading = "Options for programs (.pte)")]
    after: Option<String>,
    /// The method whose graphs to print [default: all]
    #[arg(short, long, value_name = "NAME", requires = "graph", help_heading = "Options for programs (.pte)")]
    method: Option<String>,
    /// A file of external weights of the program (.ptd); may be repeated
    #[arg(short, long, value_name = "FILE", requires = "graph", help_heading = "Options for programs (.pte)")]
    data: Vec<PathBuf>,
    /// Print the bytes of the file with their meanings
    #[arg(long, conflicts_with_all = ["locations", "generic"], help_heading = "Options for BEF programs")]
    bytes: bool,
    /// Print the location of every operation
    #[arg(long, help_heading = "Options for BEF programs")]
    locations: bool,
    /// Print every operation in its generic form
    #[arg(long, help_heading = "Options for BEF programs")]
    generic: bool,
}

/// The names of the passes.
fn pass_names() -> PossibleValuesParser {
    PossibleValuesParser::new(stages().map(|(name, about)| clap::builder::PossibleValue::new(name).help(about)))
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.data.iter().for_each(|path| paths.read("--data", path));
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(general)?;
        let bef = [("--bytes", self.bytes), ("--locations", self.locations), ("--generic", self.generic)];
        if self.graph {
            refuse_options("print", loader.name(), "no BEF program", bef.into_iter())?;
            return self.output.write_text(&self.graphs(loader, general)?);
        }
        if etdump::is_etdump(&*loader)? {
            refuse_options("print", loader.name(), "no BEF program", bef.into_iter())?;
            return self.output.write_text(&etdump::listing(&etdump::read(&*loader, general.limits())?));
        }
        let text = match bef::open(&*loader)? {
            Some(bef::Program::Bef(bytes)) if self.bytes => bef::labelled_bytes(&bytes, loader.name())?,
            Some(bef::Program::Bef(bytes)) => {
                let print = pteron_mlir::PrintOptions { locations: self.locations, generic: self.generic };
                require_translated(bef::to_text(&bytes, loader.name(), print)?)?
            }
            Some(bef::Program::Mlir(_)) => {
                let expected = "programs (.pte, .bef), named data (.ptd) and ETDumps";
                return Err(bef::wrong_format(&*loader, "print", expected).into());
            }
            None => {
                refuse_options("print", loader.name(), "no BEF program", bef.into_iter())?;
                return self.print_tables(loader, general);
            }
        };
        self.output.write_text(&text)
    }

    /// Prints a program or named data. If none of the methods is valid, prints what can be read, and fails.
    fn print_tables(&self, loader: Arc<dyn DataLoader>, general: &GeneralOpts) -> Result {
        let file = File::open_readable(loader, "print", general.limits())?;
        let options = PrintOptions { frames: general.verbosity() > 0 };
        self.output.write_text_with(|out| {
            format_into(out, |out| print_to(out, &file, options))?;
            if let File::Program(program) = &file {
                let payloads = delegates::text(&delegates::payloads(program, &general::backends())?);
                if !payloads.is_empty() {
                    write!(out, "\n{payloads}")?;
                }
            }
            Ok(())
        })?;
        Ok(file.require_valid_method()?)
    }

    /// The graphs of the program's methods as text.
    fn graphs(&self, loader: Arc<dyn DataLoader>, general: &GeneralOpts) -> Result<String> {
        expect_program(&*loader, "print --graph", "programs (.pte) and archives (.pt2)")?;
        let program = Program::load(loader, general.limits()).map_err(pteron_toolbox::Error::from)?;
        let mut options = registries::load_options().limits(general.limits().clone());
        options.data = open_data(&self.data, maps::map_large_bef(), general.limits())?;
        let stage = self.after.as_deref().and_then(Stage::by_name).unwrap_or(Stage::last());
        Ok(graphs(&program, self.method.as_deref(), stage, &options)?)
    }
}
