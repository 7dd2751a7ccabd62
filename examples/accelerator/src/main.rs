//! `pteron` with the accelerator: `accelerator compile --backend accelerator`, `accelerator run`, …

fn main() -> std::process::ExitCode {
    pteron_cli::main_with(pteron_accelerator::registries())
}
