//! The types in which a panel of B holds its elements, and how they are widened to f32.

use super::super::isa::Isa;
use super::super::simd::{Op, Simd, dispatch};
use super::args::PANEL_VECTORS;
use super::narrow::Elements;

/// A type in which a panel of B holds its elements.
pub(super) trait Element: Copy {
    /// An element as it is stored.
    type Stored;
    /// Whether each column has a factor by which its widened elements are multiplied.
    const SCALED: bool;

    /// Loads a vector of elements as f32, without the factors of their columns.
    ///
    /// # Safety
    /// `LANES` elements can be read at `p`.
    unsafe fn load<S: Simd>(s: S, p: *const Self::Stored) -> S::F;
}

macro_rules! element {
    ($(#[$doc:meta])* $name:ident: $stored:ty, $load:ident, $scaled:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(super) struct $name;

        impl Element for $name {
            type Stored = $stored;
            const SCALED: bool = $scaled;

            #[inline(always)]
            unsafe fn load<S: Simd>(s: S, p: *const $stored) -> S::F {
                // SAFETY: as the caller promises.
                unsafe { s.$load(p) }
            }
        }
    };
}

element!(
    /// Elements that are not narrower than f32.
    F32: f32, load, false
);
element!(
    /// Finite float16 values.
    F16: u16, load_f16, false
);
element!(
    /// Finite bfloat16 values.
    Bf16: u16, load_bf16, false
);
element!(
    /// Signed bytes, with a factor for each column.
    Int8: i8, load_i8, true
);

/// Widens `rows` rows of a panel of narrow elements, from the first of `elements` on, to the beginning of `out`. f32
/// elements are copied.
///
/// # Panics
/// If `elements` or `out` has fewer rows.
pub(super) fn widen_rows(isa: Isa, elements: Elements<'_>, rows: usize, out: &mut [f32]) {
    dispatch(isa, Widen { elements, rows, out });
}

struct Widen<'a> {
    elements: Elements<'a>,
    rows: usize,
    out: &'a mut [f32],
}

impl Op for Widen<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Self { elements, rows, out } = self;
        match elements {
            Elements::F32(from) => {
                let len = rows * PANEL_VECTORS * S::LANES;
                out[..len].copy_from_slice(&from[..len]);
            }
            Elements::F16(from) => widen::<S, F16>(s, from, &[], rows, out),
            Elements::Bf16(from) => widen::<S, Bf16>(s, from, &[], rows, out),
            Elements::Int8(from, factors) => widen::<S, Int8>(s, from, factors, rows, out),
        }
    }
}

#[inline(always)]
fn widen<S: Simd, E: Element>(s: S, from: &[E::Stored], factors: &[f32], rows: usize, out: &mut [f32]) {
    let width = PANEL_VECTORS * S::LANES;
    let (from, out) = (&from[..rows * width], &mut out[..rows * width]);
    let mut by = [s.splat(1.0); PANEL_VECTORS];
    if E::SCALED {
        for (by, factors) in by.iter_mut().zip(factors[..width].chunks_exact(S::LANES)) {
            // SAFETY: a chunk has as many elements as a vector.
            *by = unsafe { s.load(factors.as_ptr()) };
        }
    }
    for row in 0..rows {
        for (v, &by) in by.iter().enumerate() {
            let at = row * width + v * S::LANES;
            // SAFETY: both slices have whole rows of vectors.
            unsafe {
                let x = E::load(s, from.as_ptr().add(at));
                s.store(out.as_mut_ptr().add(at), if E::SCALED { s.mul(x, by) } else { x });
            }
        }
    }
}
