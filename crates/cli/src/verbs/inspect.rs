use crate::failure::Result;
use crate::general::{self, GeneralOpts, InputArg, OutputArg, exit_status};
use crate::registries::registries;
use clap::Args;
use pteron_toolbox::delegates;
use pteron_toolbox::file::File;
use pteron_toolbox::inspect;
use pteron_toolbox::paths::Paths;

/// Show the contents of a program (.pte, .bpte, .bef), a file of tensors (.ptd, .safetensors, .npz, .gguf) or an ETDump
///
/// Shows methods with their inputs and outputs, operators, delegates, memory plan, segments, constants, and
/// what this build lacks to run it. Only the tables of the file are read, however large it is.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron inspect model.pte\n\n",
    "  # every constant, operator and delegate\n",
    "  pteron inspect model.pte --all\n\n",
    "  # the same, with values and instructions counted by kind\n",
    "  pteron inspect model.pte -v\n\n",
    "  # nodes and tensors of the delegates\n",
    "  pteron inspect model.pte --delegates\n\n",
    "  # the operators of a program, for a script\n",
    "  pteron inspect model.pte --json | jq -r '.methods[].operators[].name'",
    exit_status!()
))]
pub(crate) struct Opts {
    #[command(flatten)]
    input: InputArg,
    /// Do not shorten long lists
    #[arg(short, long)]
    all: bool,
    /// Show the payloads of a program's delegates: nodes and tensors, if the backend is known
    #[arg(long, conflicts_with = "all")]
    delegates: bool,
    /// Print JSON: everything, in a stable form
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.input.declare_paths(paths);
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let loader = self.input.open(general)?;
        let (kernels, backends) = (registries().kernels(), registries().backends());
        if self.delegates {
            let payloads = match File::open(loader, "inspect --delegates", general.limits())? {
                File::Program(program) => delegates::payloads(&program, backends)?,
                _ => Vec::new(),
            };
            return match (self.json, payloads.is_empty()) {
                (true, _) => self.output.write_json(&payloads),
                (false, true) => self.output.write_text("nothing is delegated\n"),
                (false, false) => self.output.write_text(&delegates::text(&payloads)),
            };
        }
        let report = inspect::inspect(&loader, kernels, backends, general.limits())?;
        let verbose = general.verbosity() > 0;
        let detail = inspect::Detail { all: self.all || verbose, counts: verbose };
        match self.json {
            true => self.output.write_json(&report)?,
            false => self.output.write_text_with(|out| {
                general::format_into(out, |out| inspect::write_text(out, &report, detail))
            })?,
        }
        Ok(inspect::require_valid_method(&loader, &report, general.limits())?)
    }
}
