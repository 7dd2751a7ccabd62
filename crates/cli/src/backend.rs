//! The backends that `--backend` selects.

use crate::failure::{Failure, Result};
use crate::registries::registries;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pteron::Isa;
use pteron::compile::Delegation;

/// The name that stands for no backend.
const NONE: &str = "none";

/// A backend to which parts of a program are delegated, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendName(String);

impl BackendName {
    /// Whether the name is `none`, which stands for no backend.
    pub(crate) fn is_none(&self) -> bool {
        self.0 == NONE
    }

    /// Parses the name of a registered backend, or `none`.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        // Clap keeps the texts as long as the process.
        let text = |text: &str| -> &'static str { String::leak(text.to_owned()) };
        let none = (NONE, "No backend: kernels compute everything");
        let values = std::iter::once(none).chain(registries().delegations());
        let values = values.map(|(name, about)| PossibleValue::new(text(name)).help(text(about)));
        PossibleValuesParser::new(values.collect::<Vec<_>>()).map(Self)
    }
}

/// The machine for which packed weights are stored, in addition to the portable ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(crate) enum TargetCpu {
    /// Store no packed weights: the file is the same for every machine
    #[default]
    None,
    /// Machines with the instruction set of this one
    Native,
}

impl TargetCpu {
    fn isa(self) -> Option<Isa> {
        (self == Self::Native).then(Isa::detect)
    }
}

/// The delegations for the compiler, in the order of `backends`. `none` cannot be combined with other backends.
pub(crate) fn delegations(backends: &[BackendName], target: TargetCpu) -> Result<Vec<Delegation>> {
    if backends.len() > 1 && backends.iter().any(BackendName::is_none) {
        return Err(Failure::Usage("--backend: `none` cannot be combined with other backends".to_owned()));
    }
    let isa = target.isa();
    if isa.is_some() && backends.iter().all(BackendName::is_none) {
        return Err(Failure::Usage(
            "--target-cpu: only a backend stores packed weights; name it with --backend".to_owned(),
        ));
    }
    Ok(backends.iter().filter_map(|BackendName(name)| registries().delegation_to(name, isa)).collect())
}
