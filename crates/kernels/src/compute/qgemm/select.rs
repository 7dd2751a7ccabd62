//! The choice of a microkernel for an instruction set and a product.

use super::super::isa::Isa;
use super::columns::Columns;
use super::pack::{PackedWeights, Weights};
#[cfg(not(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128"))))]
use super::portable;
#[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
use super::simd128;
use super::tile::{Args, Microkernel};
#[cfg(target_arch = "x86_64")]
use super::{amx, avx2, avx512vnni, avxvnni};
#[cfg(target_arch = "aarch64")]
use super::{dotprod, i8mm, neon};
use pteron_tensor::Result;
use std::fmt;
use std::marker::PhantomData;
use std::ops::Deref;

/// The microkernels of this target, slowest first.
static MICROKERNELS: &[&dyn Microkernel] = &[
    #[cfg(not(any(target_arch = "aarch64", all(target_arch = "wasm32", target_feature = "simd128"))))]
    &portable::Portable,
    #[cfg(all(target_arch = "wasm32", target_feature = "simd128"))]
    &simd128::Simd128,
    #[cfg(target_arch = "aarch64")]
    &neon::Neon,
    #[cfg(target_arch = "aarch64")]
    &dotprod::DotProd,
    #[cfg(target_arch = "aarch64")]
    &i8mm::I8mm,
    #[cfg(target_arch = "x86_64")]
    &avx2::Avx2,
    #[cfg(target_arch = "x86_64")]
    &avxvnni::AvxVnni,
    #[cfg(target_arch = "x86_64")]
    &avx512vnni::Avx512Vnni,
    #[cfg(target_arch = "x86_64")]
    &amx::Amx,
];

/// A microkernel whose instructions this machine has: [`SupportedKernel::available`] is its only constructor.
#[derive(Clone, Copy)]
pub(crate) struct SupportedKernel(&'static dyn Microkernel);

impl SupportedKernel {
    /// The microkernels that `isa` allows, slowest first.
    pub(crate) fn available(isa: Isa) -> impl Iterator<Item = Self> {
        let is_allowed = move |kernel: &&dyn Microkernel| kernel.feature().is_none_or(|f| isa.has(f));
        MICROKERNELS.iter().copied().filter(is_allowed).map(Self)
    }

    /// The fastest microkernel that `isa` allows.
    pub(crate) fn fastest(isa: Isa) -> Self {
        Self::fastest_where(isa, |_| true)
    }

    /// The fastest microkernel that reads rows in segments of any length.
    pub(crate) fn for_any_segments(isa: Isa) -> Self {
        let fastest = Self::fastest(isa);
        Self::fastest_where(isa, |kernel| kernel.segment_limits().is_none() && kernel.reads_as(fastest))
    }

    /// Whether this microkernel reads the same packed weights as `other`.
    fn reads_as(self, other: Self) -> bool {
        self.adjacent_rows() == other.adjacent_rows()
    }

    /// This microkernel if it is efficient for products of `m` rows and groups of `group` out of `k` inner elements;
    /// otherwise the fastest of the slower ones that is.
    pub(crate) fn for_shape(self, isa: Isa, m: usize, k: usize, group: usize) -> Self {
        if self.is_efficient(m, k, group) {
            return self;
        }
        Self::fastest_where(isa, |kernel| {
            let slower = kernel.relative_time() >= self.relative_time();
            slower && kernel.is_efficient(m, k, group) && kernel.reads_as(self)
        })
    }

    fn fastest_where(isa: Isa, condition: impl Fn(&Self) -> bool) -> Self {
        Self::available(isa).filter(condition).last().unwrap_or(Self(MICROKERNELS[0]))
    }

    /// The number of multiplications that the fastest microkernel does in the time this one takes for `multiplications`.
    pub(super) fn relative_work(self, multiplications: usize) -> usize {
        multiplications.saturating_mul(self.relative_time())
    }

    /// The number of panels that a tile covers, in a block of `rows` rows with `left` panels still to compute.
    pub(super) fn panels_at_once(self, rows: usize, left: usize) -> usize {
        let [one, several] = self.panels();
        let at_once = if rows == 1 { one } else { several };
        if left >= at_once { at_once } else { 1 }
    }

    /// Sets up this microkernel on this thread, for groups of `group` rows of B.
    pub(super) fn for_thread(self, group: usize) -> ThreadKernel {
        // SAFETY: a value of this type proves that the machine has the feature.
        let step = unsafe { self.set_up(group) };
        ThreadKernel { kernel: self, step, not_send: PhantomData }
    }
}

impl Deref for SupportedKernel {
    type Target = dyn Microkernel;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl fmt::Debug for SupportedKernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SupportedKernel({})", self.feature().map_or("portable", |feature| feature.name()))
    }
}

impl PackedWeights {
    /// Packs weights for the microkernels of an instruction set. Fails if memory runs out.
    ///
    /// # Panics
    /// If there are more than [`Self::MAX_ROWS`] rows, there are several groups whose rows are not a multiple of
    /// [`Self::GROUP_UNIT`], the number of scales does not match, or a 4-bit value is out of range.
    pub fn new(isa: Isa, weights: &Weights<'_>) -> Result<Self> {
        Self::with_adjacent_rows(SupportedKernel::fastest(isa).adjacent_rows(), weights)
    }
}

/// A microkernel that is set up on this thread, until it is dropped. Not `Send`.
pub(super) struct ThreadKernel {
    kernel: SupportedKernel,
    /// The number of bytes of a row that a step of the microkernel takes.
    step: usize,
    not_send: PhantomData<*const ()>,
}

impl ThreadKernel {
    pub(super) fn kernel(&self) -> SupportedKernel {
        self.kernel
    }

    /// Computes the sums of tiles below each other, of as many panels as [`SupportedKernel::panels_at_once`] gives; of
    /// a single tile if tiles have two halves.
    ///
    /// # Panics
    /// If there is no tile of so many panels, or operands are too short for what is read.
    pub(super) fn run(&self, args: &mut Args<'_>) {
        args.check(&*self.kernel, self.step);
        // SAFETY: the arguments were checked, and the thread, which this value cannot leave, is set up while it lives.
        unsafe { self.kernel.run(self.step, args) };
    }
}

impl Drop for ThreadKernel {
    fn drop(&mut self) {
        // SAFETY: `SupportedKernel::for_thread` has set up the thread.
        unsafe { self.kernel.release() };
    }
}

/// A function for [`Columns`] whose instructions this machine has: [`ColumnKernel::fastest`] is its only constructor.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ColumnKernel {
    function: unsafe fn(&mut Columns<'_>),
    min_lines: usize,
}

impl ColumnKernel {
    /// The fastest function that `isa` allows; `None` if it allows none.
    pub(crate) fn fastest(isa: Isa) -> Option<Self> {
        let columns = |kernel: SupportedKernel| {
            Some(Self { function: kernel.column_function()?, min_lines: kernel.min_column_lines() })
        };
        SupportedKernel::available(isa).filter_map(columns).last()
    }

    /// The least number of lines of a convolution's kernel from which on the function pays.
    pub(crate) fn min_lines(self) -> usize {
        self.min_lines
    }

    /// # Panics
    /// If operands or sums are too short for what is read or written.
    pub(crate) fn run(self, columns: &mut Columns<'_>) {
        columns.check();
        // SAFETY: a value of this type proves that the machine has the instructions, and the operands were checked.
        unsafe { (self.function)(columns) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn microkernels_are_listed_slowest_first() {
        assert!(MICROKERNELS[0].feature().is_none());
        assert!(MICROKERNELS.is_sorted_by(|a, b| a.relative_time() > b.relative_time()));
    }

    #[test]
    fn products_that_do_not_fill_tiles_get_slower_microkernels() {
        for isa in Isa::available() {
            for kernel in SupportedKernel::available(isa) {
                for (m, k, group) in [(1, 100, 100), (32, 32, 32), (32, 100, 48), (32, 128, 32)] {
                    let chosen = kernel.for_shape(isa, m, k, group);
                    assert!(chosen.is_efficient(m, k, group), "{kernel:?} {m} {k} {group}");
                    assert!(chosen.relative_time() >= kernel.relative_time(), "{kernel:?} {m} {k} {group}");
                }
            }
        }
    }
}
