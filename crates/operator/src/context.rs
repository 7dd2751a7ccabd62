use crate::{Error, Isa, Result};
use pteron_pool::Pool;
use pteron_tensor::{AlignedBuffer, Element};
use std::cell::{Cell, RefCell};

/// The resources that a kernel may use besides its arguments.
#[derive(Clone, Copy)]
pub struct KernelContext<'a> {
    pool: &'a Pool,
    isa: Isa,
    scratch: &'a Scratch,
    generator: &'a Generator,
}

impl<'a> KernelContext<'a> {
    /// A context with these resources and the best instruction set of this machine.
    pub fn new(pool: &'a Pool, scratch: &'a Scratch, generator: &'a Generator) -> Self {
        Self { pool, isa: Isa::detect(), scratch, generator }
    }

    /// This context with another instruction set.
    pub fn with_isa(self, isa: Isa) -> Self {
        Self { isa, ..self }
    }

    /// The thread pool.
    pub fn pool(&self) -> &'a Pool {
        self.pool
    }

    /// The instruction set that may be used.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// The random number generator of random operators.
    pub fn generator(&self) -> &'a Generator {
        self.generator
    }

    /// The limit, in bytes, of all temporary memory together.
    pub fn scratch_limit(&self) -> usize {
        self.scratch.limit
    }

    /// Temporary memory for `len` elements, whose initial values are unspecified, for the duration of the call.
    pub fn scratch<T: Element>(&self, len: usize) -> Result<ScratchBuffer<'a, T>> {
        self.scratch.take(len)
    }
}

/// Temporary memory that is kept between calls, so that a repeated call allocates nothing.
#[derive(Debug)]
pub struct Scratch {
    free: RefCell<Vec<AlignedBuffer>>,
    held: Cell<usize>,
    limit: usize,
}

impl Scratch {
    /// Scratch memory of at most `limit` bytes: buffers in use and buffers kept for reuse together.
    pub fn new(limit: usize) -> Self {
        Self { free: RefCell::default(), held: Cell::new(0), limit }
    }

    /// A buffer of `len` elements with unspecified values.
    pub fn take<T: Element>(&self, len: usize) -> Result<ScratchBuffer<'_, T>> {
        let bytes = len.checked_mul(size_of::<T>()).ok_or(Error::Limit {
            what: "temporary memory",
            needed: usize::MAX,
            limit: self.limit,
        })?;
        Ok(ScratchBuffer { buffer: self.take_bytes(bytes)?, owner: self, element: std::marker::PhantomData })
    }

    fn take_bytes(&self, bytes: usize) -> Result<AlignedBuffer> {
        let mut free = self.free.borrow_mut();
        // The smallest buffer that is large enough; if there is none, the largest one, which then grows.
        let best = (0..free.len()).min_by_key(|&i| match free[i].capacity() {
            c if c >= bytes => (0, c),
            c => (1, usize::MAX - c),
        });
        let mut buffer = best.map(|i| free.swap_remove(i)).unwrap_or_default();
        let needed = |total: usize, buffer: &AlignedBuffer| {
            total.saturating_add(bytes.saturating_sub(buffer.capacity()))
        };
        if needed(self.held.get(), &buffer) > self.limit {
            let freed: usize = free.drain(..).map(|b| b.capacity()).sum();
            self.held.set(self.held.get() - freed - buffer.capacity());
            buffer = AlignedBuffer::default();
            let needed = needed(self.held.get(), &buffer);
            if needed > self.limit {
                return Err(Error::Limit { what: "temporary memory", needed, limit: self.limit });
            }
        }
        let before = buffer.capacity();
        buffer.resize(bytes)?;
        self.held.set(self.held.get() + (buffer.capacity() - before));
        Ok(buffer)
    }
}

/// Elements borrowed from a [`Scratch`], returned on drop.
#[derive(Debug)]
pub struct ScratchBuffer<'a, T> {
    buffer: AlignedBuffer,
    owner: &'a Scratch,
    element: std::marker::PhantomData<T>,
}

impl<T: Element> std::ops::Deref for ScratchBuffer<'_, T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        pteron_tensor::cast(&self.buffer)
    }
}

impl<T: Element> std::ops::DerefMut for ScratchBuffer<'_, T> {
    fn deref_mut(&mut self) -> &mut [T] {
        pteron_tensor::cast_mut(&mut self.buffer)
    }
}

impl<T> Drop for ScratchBuffer<'_, T> {
    fn drop(&mut self) {
        self.owner.free.borrow_mut().push(std::mem::take(&mut self.buffer));
    }
}

/// A seeded random number generator for the random operators. It is SplitMix64, so a seed gives the same random bits
/// on every machine.
#[derive(Debug)]
pub struct Generator(Cell<u64>);

impl Generator {
    /// A generator seeded with `seed`.
    pub fn new(seed: u64) -> Self {
        Self(Cell::new(seed))
    }

    /// The next 64 random bits.
    pub fn next_u64(&self) -> u64 {
        let state = self.0.get().wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0.set(state);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in `[0, 1)`, uniform over the multiples of 2^-53.
    pub fn uniform(&self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// A normally distributed number with mean 0 and standard deviation 1, by the Box-Muller transform.
    pub fn normal(&self) -> f64 {
        let u = 1.0 - self.uniform();
        (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * self.uniform()).cos()
    }

    /// A uniformly distributed integer in `0..n`. `n` must be positive.
    pub fn below(&self, n: u64) -> u64 {
        loop {
            let (hi, lo) = {
                let wide = self.next_u64() as u128 * n as u128;
                ((wide >> 64) as u64, wide as u64)
            };
            // Lemire's method: reject the few products that would bias the result.
            if lo >= n.wrapping_neg() % n {
                return hi;
            }
        }
    }
}

impl Default for Generator {
    fn default() -> Self {
        Self::new(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scratch_is_reused_and_limited() {
        let scratch = Scratch::new(4096);
        let first = {
            let a = scratch.take::<f32>(256).unwrap();
            a.as_ptr()
        };
        let b = scratch.take::<f32>(200).unwrap();
        assert_eq!(b.as_ptr(), first);
        let c = scratch.take::<u8>(3072).unwrap();
        assert!(matches!(scratch.take::<u8>(1), Err(Error::Limit { .. })));
        drop((b, c));
        assert!(scratch.take::<u64>(usize::MAX).is_err());
        assert_eq!(scratch.take::<u8>(4096).unwrap().len(), 4096);
        assert!(scratch.take::<u8>(4097).is_err());
    }

    #[test]
    fn generator_is_deterministic_and_stays_in_range() {
        let (a, b) = (Generator::new(7), Generator::new(7));
        for _ in 0..1000 {
            assert_eq!(a.next_u64(), b.next_u64());
            assert!((0.0..1.0).contains(&a.uniform()));
            b.uniform();
            assert!(a.below(10) < 10);
            b.below(10);
        }
    }
}
