//! The settings under which a program can be run; the results must agree.

use pteron_operator::Isa;
use pteron_pool::Pool;
use pteron_runtime::LoadOptions;
use serde::Serialize;
use std::fmt;

/// Threads, instruction set and preparation with which programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Whether instructions run as written, without preparation.
    pub no_prepare: bool,
    /// The instruction set to use.
    #[serde(serialize_with = "serialize_isa")]
    pub isa: Isa,
    /// The number of threads.
    pub threads: usize,
}

fn serialize_isa<S: serde::Serializer>(isa: &Isa, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(&isa.to_string())
}

impl Setting {
    /// All combinations of prepared and as written, each instruction set that this machine supports, and one and two threads.
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for no_prepare in [false, true] {
            for isa in Isa::available() {
                all.extend([1, 2].map(|threads| Self { no_prepare, isa, threads }));
            }
        }
        all
    }

    /// A copy of the load options with this setting applied.
    pub fn apply(&self, load: &LoadOptions) -> LoadOptions {
        LoadOptions {
            no_prepare: self.no_prepare,
            isa: self.isa,
            pool: Pool::new(self.threads),
            ..load.clone()
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let form = if self.no_prepare { "as written" } else { "prepared" };
        let plural = if self.threads == 1 { "" } else { "s" };
        write!(f, "{form}, {}, {} thread{plural}", self.isa, self.threads)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_occurs_once() {
        let all = Setting::all();
        assert_eq!(all.len(), 4 * Isa::available().count());
        assert_eq!(all[0].to_string(), "prepared, portable, 1 thread");
        assert!(all.iter().all(|a| all.iter().filter(|b| a == *b).count() == 1));
        let load = all[all.len() - 1].apply(&LoadOptions::default());
        assert!(load.no_prepare && load.pool.threads() == 2 && load.isa == Isa::detect());
    }
}
