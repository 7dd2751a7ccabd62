//! The backends that `--backend` selects.

use crate::failure::{Failure, Result};
use crate::registries::registries;
use clap::ValueEnum;
use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use pteron::Isa;
use pteron::compile::{Delegation, to_bef, to_xnnpack};

/// The name that stands for no backend.
const NONE: &str = "none";

/// The backends of the library, with the help on each.
const OWN: [(&str, &str); 3] = [
    (NONE, "No backend: kernels compute everything"),
    ("bef", "Pteron's own backend: everything that kernels compute, fused ahead of time"),
    (
        "xnnpack",
        "XNNPACK: float32 operators, and those quantized to int8 or with 4-bit weights. The reference runtime runs them \
         with its XNNPACK backend, Pteron with its own implementation",
    ),
];

/// A backend to which parts of a program are delegated, by its name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct BackendName(String);

impl BackendName {
    /// Whether it stands for no backend.
    pub(crate) fn is_none(&self) -> bool {
        self.0 == NONE
    }

    /// Parses the name of a backend of the library or of the registries of this command.
    pub(crate) fn parser() -> impl TypedValueParser<Value = Self> {
        // Clap keeps the texts as long as the process.
        let text = |text: &str| -> &'static str { String::leak(text.to_owned()) };
        let added = registries().delegations().iter();
        let added = added.map(|known| (text(&known.name), text(&known.about)));
        let own = OWN.into_iter().filter(|(name, _)| !is_added(name));
        let values = own.chain(added).map(|(name, help)| PossibleValue::new(name).help(help));
        PossibleValuesParser::new(values.collect::<Vec<_>>()).map(Self)
    }
}

fn is_added(name: &str) -> bool {
    registries().delegations().iter().any(|known| known.name == name)
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

/// The delegations to pass to the compiler, in order. `none` cannot be combined with other backends.
pub(crate) fn delegation(backends: &[BackendName], target: TargetCpu) -> Result<Vec<Delegation>> {
    if backends.len() > 1 && backends.iter().any(BackendName::is_none) {
        return Err(Failure::Usage("--backend: `none` cannot be combined with other backends".to_owned()));
    }
    let delegation = backends.iter().filter_map(|BackendName(name)| {
        let added = registries().delegations().iter().find(|known| known.name == *name);
        match (added, name.as_str()) {
            (Some(known), _) => Some(known.delegation.clone()),
            (None, "bef") => Some(to_bef(registries().kernels(), target.isa())),
            (None, "xnnpack") => Some(to_xnnpack()),
            (None, _) => None,
        }
    });
    Ok(delegation.collect())
}
