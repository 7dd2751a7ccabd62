//! The `pteron` command.
fn main() {}
