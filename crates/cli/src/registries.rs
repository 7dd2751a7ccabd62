//! The operators and backends of the process: those of the library, unless [`main_with`](crate::main_with) got others.

use pteron::{LoadOptions, Registries};
use std::sync::OnceLock;

static REGISTRIES: OnceLock<Registries> = OnceLock::new();

/// Sets the registries of the process. Only the first call has an effect, and only before [`registries`] is called.
pub(crate) fn set_registries(registries: Registries) {
    let _ = REGISTRIES.set(registries);
}

/// The operators and backends of this command.
pub(crate) fn registries() -> &'static Registries {
    REGISTRIES.get_or_init(Registries::default)
}

/// The default load options, with the operators and backends of this command.
pub(crate) fn load_options() -> LoadOptions {
    registries().load_options()
}
