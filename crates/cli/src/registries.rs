//! The operators and backends of the process: those of the library, unless [`main_with`](crate::main_with) got others.

use pteron::{LoadOptions, Registries};
use std::sync::OnceLock;

static REGISTRIES: OnceLock<Registries> = OnceLock::new();

/// Sets them. The first call counts, and nothing may have asked for them before.
pub(crate) fn set_registries(registries: Registries) {
    let _ = REGISTRIES.set(registries);
}

/// The operators and backends of this command.
pub(crate) fn registries() -> &'static Registries {
    REGISTRIES.get_or_init(Registries::default)
}

/// Options with the operators and backends of this command.
pub(crate) fn load_options() -> LoadOptions {
    registries().load_options()
}
