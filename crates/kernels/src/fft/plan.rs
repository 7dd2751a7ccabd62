//! Plans of one-dimensional transforms: `rustfft`'s for complex values, and transforms of real values on top of them.

use crate::compute::{Op, Simd, dispatch};
use crate::support::dtype::{Cast, Compute};
use num_complex::Complex;
use pteron_operator::{Error, Isa, KernelContext, Result};
use rustfft::{Fft, FftDirection, FftNum, FftPlanner, FftPlannerScalar};
use smallvec::SmallVec;
use std::f64::consts::TAU;
use std::sync::Arc;

/// The precision of a transform: `f32` or `f64`.
pub(super) trait Precision: FftNum + Compute {}

impl Precision for f32 {}
impl Precision for f64 {}

/// The kind and length of a Fourier transform that a call needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Transform {
    /// The number of values; for a transform of real values, the number of real values.
    pub(super) len: usize,
    pub(super) forward: bool,
    pub(super) real: bool,
}

/// The planned transforms of a call site. A transform that is not planned here is planned when it is used.
pub(super) struct Plans<T> {
    baseline: bool,
    real: Option<(Transform, Arc<RealPlan<T>>)>,
    complex: SmallVec<[(Transform, Arc<dyn Fft<T>>); 2]>,
}

/// Whether plans may use only instructions that every machine has. On x86-64, `rustfft` would detect and use others.
fn is_baseline(isa: Isa) -> bool {
    cfg!(target_arch = "x86_64") && isa == Isa::portable()
}

impl<T: Precision> Plans<T> {
    /// An empty set of plans, for calls that use the instruction set `isa`.
    pub(super) fn empty(isa: Isa) -> Self {
        Self { baseline: is_baseline(isa), real: None, complex: SmallVec::new() }
    }

    /// Plans these transforms, for calls that use the instruction set `isa`.
    pub(super) fn of(isa: Isa, transforms: &[Transform]) -> Self {
        let mut plans = Self::empty(isa);
        for &transform in transforms {
            if transform.real {
                plans.real = Some((transform, Arc::new(RealPlan::new(transform, plans.baseline))));
            } else if !plans.complex.iter().any(|(t, _)| *t == transform) {
                plans.complex.push((transform, make_plan(transform.len, transform.forward, plans.baseline)));
            }
        }
        plans
    }

    /// Whether these plans and the context agree on using only the instructions that every machine has.
    pub(super) fn fits(&self, ctx: &KernelContext<'_>) -> bool {
        self.baseline == is_baseline(ctx.isa())
    }

    pub(super) fn nbytes(&self) -> usize {
        let lens = self.real.iter().map(|(t, _)| t.len).chain(self.complex.iter().map(|(t, _)| t.len));
        lens.map(|len| len.saturating_mul(2 * size_of::<T>())).fold(0, usize::saturating_add)
    }

    pub(super) fn real_plan(
        &self,
        ctx: &KernelContext<'_>,
        transform: Transform,
    ) -> Result<Arc<RealPlan<T>>> {
        match &self.real {
            Some((planned, plan)) if *planned == transform => Ok(Arc::clone(plan)),
            _ => {
                check_len::<T>(ctx, transform.len)?;
                Ok(Arc::new(RealPlan::new(transform, self.baseline)))
            }
        }
    }

    pub(super) fn complex_plan(
        &self,
        ctx: &KernelContext<'_>,
        len: usize,
        forward: bool,
    ) -> Result<Arc<dyn Fft<T>>> {
        let wanted = Transform { len, forward, real: false };
        match self.complex.iter().find(|(planned, _)| *planned == wanted) {
            Some((_, plan)) => Ok(Arc::clone(plan)),
            None => {
                check_len::<T>(ctx, len)?;
                Ok(make_plan(len, forward, self.baseline))
            }
        }
    }
}

/// An estimate of the number of complex elements that a plan holds for each element of a transform: roots of unity, and
/// for large prime factors those of a convolution of two to four times the length.
fn plan_elements(mut len: usize) -> usize {
    for p in 2..=31 {
        while len > 1 && len.is_multiple_of(p) {
            len /= p;
        }
    }
    if len > 1 { 8 } else { 2 }
}

/// Plans are allocated by `rustfft`, which cannot report that memory is missing: the limit of temporary memory is
/// applied to an estimate.
fn check_len<T>(ctx: &KernelContext<'_>, len: usize) -> Result<()> {
    let each = plan_elements(len) * size_of::<Complex<T>>();
    let (needed, limit) = (len.saturating_mul(each), ctx.scratch_limit());
    match needed <= limit {
        true => Ok(()),
        false => Err(Error::Limit { what: "temporary memory", needed, limit }),
    }
}

fn make_plan<T: Precision>(len: usize, forward: bool, baseline: bool) -> Arc<dyn Fft<T>> {
    let direction = if forward { FftDirection::Forward } else { FftDirection::Inverse };
    match baseline {
        true => FftPlannerScalar::new().plan_fft(len, direction),
        false => FftPlanner::new().plan_fft(len, direction),
    }
}

/// The transform of `n` real values to the first `n / 2 + 1` elements of their spectrum, from which the others follow by
/// symmetry, or the unscaled inverse.
///
/// If `n` is even, pairs of real values are complex values of a transform of half the length, whose result is combined
/// with its mirror image (Press et al., *Numerical Recipes*, "FFT of single real function").
pub(super) struct RealPlan<T> {
    len: usize,
    inner: Arc<dyn Fft<T>>,
    /// `-i exp(-2 pi i k / n)` for the first half of `inner`'s elements, if `n` is even.
    roots: Vec<Complex<T>>,
}

impl<T: Precision> RealPlan<T>
where
    Complex<T>: Compute,
{
    fn is_even(&self) -> bool {
        self.len.is_multiple_of(2)
    }

    /// The number of complex elements in the workspace of [`Self::forward`] and [`Self::backward`].
    pub(super) fn work_len(&self) -> usize {
        let complex_len = if self.is_even() { 0 } else { self.len };
        self.inner.get_inplace_scratch_len() + complex_len
    }

    /// Transforms real values to the first half of their spectrum.
    pub(super) fn forward(&self, isa: Isa, signal: &[T], half: &mut [Complex<T>], work: &mut [Complex<T>]) {
        if !self.is_even() {
            let (values, work) = work.split_at_mut(self.len);
            values.iter_mut().zip(signal).for_each(|(z, &x)| *z = Complex::new(x, T::zero()));
            self.inner.process_with_scratch(values, work);
            half.copy_from_slice(&values[..half.len()]);
            half[0].im = T::zero();
            return;
        }
        let m = self.len / 2;
        half.iter_mut().zip(signal.chunks_exact(2)).for_each(|(z, x)| *z = Complex::new(x[0], x[1]));
        self.inner.process_with_scratch(&mut half[..m], work);
        let first = half[0];
        half[0] = Complex::new(first.re + first.im, T::zero());
        half[m] = Complex::new(first.re - first.im, T::zero());
        if let Some(roots) = self.roots.get(1..) {
            dispatch(isa, Untangle { half: &mut half[1..m], roots });
        }
    }

    /// The unscaled inverse of [`Self::forward`]. The imaginary parts of elements that are their own mirror images are
    /// ignored. `half` is overwritten.
    pub(super) fn backward(&self, half: &mut [Complex<T>], signal: &mut [T], work: &mut [Complex<T>]) {
        if !self.is_even() {
            let (values, work) = work.split_at_mut(self.len);
            values[0] = Complex::new(half[0].re, T::zero());
            for (k, &z) in half.iter().enumerate().skip(1) {
                (values[k], values[self.len - k]) = (z, z.conj());
            }
            self.inner.process_with_scratch(values, work);
            signal.iter_mut().zip(values.iter()).for_each(|(x, z)| *x = z.re);
            return;
        }
        let m = self.len / 2;
        let (first, last) = (half[0].re, half[m].re);
        half[0] = Complex::new(first + last, first - last);
        for (k, root) in self.roots.iter().enumerate().skip(1) {
            let (a, b) = (half[k], half[m - k].conj());
            let (even, odd) = (a + b, (a - b) * root.conj());
            half[k] = even + odd;
            half[m - k] = (even - odd).conj();
        }
        self.inner.process_with_scratch(&mut half[..m], work);
        signal.chunks_exact_mut(2).zip(half.iter()).for_each(|(x, z)| x.copy_from_slice(&[z.re, z.im]));
    }
}

/// Combines each element of the spectrum of pairs, except the first, with the element's mirror image.
struct Untangle<'a, T> {
    half: &'a mut [Complex<T>],
    roots: &'a [Complex<T>],
}

impl<T: Precision> Op for Untangle<'_, T> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let split = self.half.len() / 2;
        let (front, back) = self.half.split_at_mut(split);
        let scale = T::one() / (T::one() + T::one());
        for ((front, back), root) in front.iter_mut().zip(back.iter_mut().rev()).zip(self.roots) {
            let (a, b) = (*front, *back);
            let even = ((a.re + b.re) * scale, (a.im - b.im) * scale);
            let odd = ((a.re - b.re) * scale, (a.im + b.im) * scale);
            let odd = (odd.0 * root.re - odd.1 * root.im, odd.0 * root.im + odd.1 * root.re);
            *front = Complex::new(even.0 + odd.0, even.1 + odd.1);
            *back = Complex::new(even.0 - odd.0, odd.1 - even.1);
        }
        // With an odd number of elements, the one in the middle is its own mirror image, and its root is -1.
        if self.half.len() % 2 == 1 {
            self.half[split] = self.half[split].conj();
        }
    }
}

impl<T: Precision> RealPlan<T> {
    fn new(transform: Transform, baseline: bool) -> Self {
        let len = transform.len;
        let is_even = len.is_multiple_of(2);
        let inner = make_plan(if is_even { len / 2 } else { len }, transform.forward, baseline);
        let root = |k: usize| {
            let angle = TAU * k as f64 / len as f64;
            Complex::new(<T as Cast>::from_f64(-angle.sin()), <T as Cast>::from_f64(-angle.cos()))
        };
        let roots = if is_even { (0..=len / 4).map(root).collect() } else { Vec::new() };
        Self { len, inner, roots }
    }
}
