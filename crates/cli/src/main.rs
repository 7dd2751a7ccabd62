//! The `pteron` command: runs, inspects and checks machine-learning program files.
//!
//! This crate parses arguments, prints and shows progress. What a verb does lives in `toolbox`.
#![forbid(unsafe_code)]

mod call;
mod failure;
mod general;
mod progress;
mod verbs;

use clap::Parser;
use general::GeneralOpts;
use std::process::ExitCode;

/// Runs, inspects and checks ExecuTorch programs and their relatives.
#[derive(Debug, Parser)]
#[command(name = "pteron", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = concat!(
    "Start with:\n",
    "  pteron inspect model.pte            what is in it, and what it needs\n",
    "  pteron run model.pte 2x2xf32=1      compute something\n",
    "  pteron VERB --help                  examples for each verb"
))]
struct Cli {
    #[command(flatten)]
    general: GeneralOpts,
    #[command(subcommand)]
    verb: verbs::Verb,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    match cli.verb.run(&cli.general) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(&cli.general),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_examples_and_its_exit_status() {
        for verb in Cli::command().get_subcommands_mut() {
            let name = verb.get_name().to_owned();
            let help = verb.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{name}");
            assert!(help.contains("Exit status:"), "{name}");
            assert!(help.contains(&format!("pteron {name}")), "{name}: no example shows the verb");
        }
    }
}
