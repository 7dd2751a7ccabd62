//! The choice of the instruction set that an [`Isa`] allows.

use super::super::isa::Isa;
#[cfg(target_arch = "aarch64")]
use super::neon as baseline;
#[cfg(not(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128"))))]
use super::portable as baseline;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use super::simd128 as baseline;
use super::{Op, VectorIsa};

/// Evaluates an expression in which a name stands for the module of the best instruction set that an [`Isa`] allows.
macro_rules! with_best {
    ($isa:expr, $module:ident => $body:expr) => {
        match $isa {
            #[cfg(target_arch = "x86_64")]
            isa if isa.has(super::super::isa::Feature::Avx512) => {
                use super::avx512 as $module;
                $body
            }
            #[cfg(target_arch = "x86_64")]
            isa if isa.has(super::super::isa::Feature::Avx2) => {
                use super::avx2 as $module;
                $body
            }
            _ => {
                use baseline as $module;
                $body
            }
        }
    };
}

/// Runs the instance of `op` that was compiled for the best instruction set that `isa` allows.
#[inline]
pub(crate) fn dispatch<O: Op>(isa: Isa, op: O) -> O::Out {
    // SAFETY: an `Isa` has a feature only if the machine has it, and `with_best` checks the feature of each module.
    with_best!(isa, best => unsafe { best::enter(op) })
}

impl From<Isa> for VectorIsa {
    #[inline]
    fn from(isa: Isa) -> Self {
        with_best!(isa, best => best::CONSTANTS)
    }
}
