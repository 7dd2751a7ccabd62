//! The `pteron` command, with the operators and backends of the library.
#![forbid(unsafe_code)]

use std::process::ExitCode;

fn main() -> ExitCode {
    pteron_cli::main_with(pteron::Registries::default())
}
