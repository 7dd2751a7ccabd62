use crate::failure::Result;
use crate::general::{GeneralOpts, OutputArg, exit_status};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use pteron_toolbox::paths::Paths;

/// Print a shell script that completes pteron's verbs and options
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  # bash, for this session\n",
    "  source <(pteron completion bash)\n\n",
    "  # zsh, permanently\n",
    "  pteron completion zsh -o ~/.zfunc/_pteron\n\n",
    "  # fish, permanently\n",
    "  pteron completion fish -o ~/.config/fish/completions/pteron.fish",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The shell
    shell: Shell,
    #[command(flatten)]
    output: OutputArg,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        self.output.declare_paths(paths);
    }

    pub(crate) fn run(self, _: &GeneralOpts) -> Result {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut crate::Cli::command(), "pteron", &mut script);
        self.output.write_text(&String::from_utf8_lossy(&script))
    }
}
