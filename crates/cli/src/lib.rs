//! The `pteron` command: runs, inspects and checks machine-learning program files.
//!
//! This crate parses arguments, prints and shows progress. The verbs are implemented in `toolbox`.
//!
//! An application with operators or backends of its own gets all verbs, `serve` included, from [`main_with`]:
//!
//! ```no_run
//! use pteron::{FnKernel, Registries};
//! use std::process::ExitCode;
//!
//! fn main() -> ExitCode {
//!     let mut kernels = pteron::kernel_registry();
//!     let twice = FnKernel::new("my::twice.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", |_, args, outs| {
//!         let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
//!         out.resize(x.sizes())?;
//!         x.relayout(out)?;
//!         out.storage_mut::<f32>()?.iter_mut().for_each(|v| *v *= 2.0);
//!         Ok(())
//!     });
//!     kernels.register(twice.expect("a valid schema")).expect("a new operator");
//!     // `.backend(...)`, `.delegation(...)` and `.recoverer(...)` add the halves of a backend.
//!     pteron_cli::main_with(Registries::default().with_kernels(kernels))
//! }
//! ```
#![deny(unsafe_code)]

#[cfg(feature = "serve")]
#[allow(unsafe_code)]
mod allocator;
mod backend;
mod call;
mod failure;
mod general;
mod limits;
mod lowering;
#[allow(unsafe_code)]
mod maps;
mod pictures;
mod progress;
mod registries;
mod samples;
mod signals;
mod task;
mod terminal;
mod verbs;

use clap::{CommandFactory, FromArgMatches, Parser};
use general::GeneralOpts;
use std::process::ExitCode;

/// Runs, inspects and checks ExecuTorch programs and their relatives.
#[derive(Debug, Parser)]
#[command(name = "pteron", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = concat!(
    "Start with:\n",
    "  pteron inspect model.pte            show the contents of a program and what it needs\n",
    "  pteron run model.pte 2x2xf32=1      run a program\n",
    "  pteron VERB --help                  examples for each verb"
))]
struct Cli {
    #[command(flatten)]
    general: GeneralOpts,
    #[command(subcommand)]
    verb: verbs::Verb,
}

/// Runs the command with the arguments of the process, and with these operators and backends: their names are those of
/// `--backend`, and every verb uses them. Call it from `main`, once.
#[must_use]
pub fn main_with(registries: pteron::Registries) -> ExitCode {
    registries::set_registries(registries);
    let (mut cli, verb) = parse();
    signals::fail_writes_above_the_size_limit();
    pteron::before_unfinished_files(signals::handle_termination);
    let executes = verbs::EXECUTING.contains(&verb.as_str());
    cli.general.start_timeout(executes);
    let done =
        verbs::refuse_ineffective_options(&cli.general, &verb).and_then(|()| cli.verb.run(&cli.general));
    match done.and_then(|()| cli.general.bounds().check_time()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(cli.general.stderr_style()),
    }
}

/// The command line. The help of each verb hides those general options that have no effect on the verb.
fn command() -> clap::Command {
    let command = Cli::command();
    let heeded: [(&str, &[&str]); 2] =
        [("verbose", &verbs::DETAILED), ("max_instructions", &verbs::EXECUTING)];
    let hidden = heeded.map(|(option, by)| {
        let argument = command.get_arguments().find(|arg| arg.get_id() == option).cloned();
        (argument.map(|arg| arg.hide(true)), by)
    });
    command.mut_subcommands(|verb| {
        let name = verb.get_name().to_owned();
        let hidden = hidden.iter().filter(|(_, by)| !by.contains(&name.as_str()));
        hidden.fold(verb, |verb, (arg, _)| verb.args(arg.clone()))
    })
}

/// The parsed arguments, and the name of the verb. Ends the process if the arguments are invalid, or for --help.
fn parse() -> (Cli, String) {
    let matches = command().get_matches();
    let verb = matches.subcommand_name().unwrap_or_default().to_owned();
    let cli = Cli::from_arg_matches(&matches).unwrap_or_else(|e| e.format(&mut command()).exit());
    (cli, verb)
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_toolbox::input::GivenInput;
    use std::any::TypeId;
    use std::path::PathBuf;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_examples_and_its_exit_status() {
        for verb in command().get_subcommands_mut() {
            let name = verb.get_name().to_owned();
            let help = verb.render_long_help().to_string();
            assert!(help.contains("Examples:"), "{name}");
            assert!(help.contains("Exit status:"), "{name}");
            assert!(help.contains(&format!("pteron {name}")), "{name}: no example shows the verb");
        }
    }

    #[cfg(not(feature = "serve"))]
    #[test]
    fn a_build_without_the_server_says_how_to_get_it() {
        for line in
            [&["pteron", "serve", "models", "--listen", "0.0.0.0:80"][..], &["pteron", "serve", "--help"]]
        {
            let cli = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let failure = cli.verb.run(&cli.general).expect_err("there is no server");
            assert!(format!("{failure:?}").contains("--features serve"), "{failure:?}");
        }
    }

    #[cfg(not(feature = "batch"))]
    #[test]
    fn a_build_without_files_of_tables_says_how_to_get_them() {
        for line in [
            &["pteron", "batch", "model.pte", "rows.parquet", "-o", "out"][..],
            &["pteron", "batch", "--help"],
        ] {
            let cli = Cli::try_parse_from(line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let failure = cli.verb.run(&cli.general).expect_err("it reads no such files");
            assert!(format!("{failure:?}").contains("--features batch"), "{failure:?}");
        }
    }

    /// A command line that passes a different path to every option of the verb that takes one, and the paths.
    fn with_every_path(verb: &clap::Command, words: &[&str]) -> (Vec<String>, Vec<String>) {
        let mut line: Vec<String> = words.iter().map(|&word| word.to_owned()).collect();
        let mut paths = Vec::new();
        for arg in verb.get_arguments() {
            let kind = arg.get_value_parser().type_id();
            let is_path = kind == TypeId::of::<PathBuf>();
            let value = match arg.get_possible_values().first() {
                _ if is_path => format!("{}-{}", verb.get_name(), arg.get_id()),
                _ if kind == TypeId::of::<GivenInput>() => format!("@{}-{}", verb.get_name(), arg.get_id()),
                Some(possible) => possible.get_name().to_owned(),
                None => "1".to_owned(),
            };
            // `--labels` needs `--top`, and `--data` of `print` needs `--graph`.
            let needed = ["top", "graph"].iter().any(|id| arg.get_id() == id);
            if value.contains('-') || arg.is_required_set() || needed {
                line.extend(arg.get_long().map(|long| format!("--{long}")));
                if arg.get_action().takes_values() {
                    line.push(value.clone());
                    let most = arg.get_num_args().map_or(1, |n| n.min_values()).max(1);
                    line.extend((1..most).map(|i| format!("{value}{i}")));
                }
            }
            if value.contains('-') {
                paths.push(value.trim_start_matches('@').to_owned());
            }
        }
        (line, paths)
    }

    #[test]
    fn every_path_of_every_verb_is_declared() {
        let mut command = Cli::command();
        command.build();
        let mut checked = 0;
        for verb in command.get_subcommands() {
            let lines = match verb.get_subcommands().next() {
                Some(inner) if inner.get_name() != "help" => {
                    with_every_path(inner, &["pteron", verb.get_name(), inner.get_name()])
                }
                _ => with_every_path(verb, &["pteron", verb.get_name()]),
            };
            let (line, expected) = lines;
            if verb.get_name() == "help" {
                continue;
            }
            let cli = Cli::try_parse_from(&line).unwrap_or_else(|e| panic!("{line:?}: {e}"));
            let declared: Vec<_> =
                cli.verb.paths().all().map(|(_, path)| path.display().to_string()).collect();
            for path in &expected {
                assert!(declared.contains(path), "{line:?} declares {declared:?}");
            }
            checked += expected.len();
        }
        assert!(checked > 40, "{checked}");
    }
}
