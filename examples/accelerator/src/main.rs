//! `pteron` with the accelerator: `accelerator compile --backend accelerator`, `accelerator run`, …

#![forbid(unsafe_code)]

fn main() -> std::process::ExitCode {
    pteron_cli::main_with(pteron_accelerator::registries())
}
