use crate::{Error, Result};
use pteron_tensor::{Tensor, TensorMeta, TensorView};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A memory budget that several owners share: bytes are reserved before they are allocated, and released by
/// dropping the reservation. Clones share the budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    held: AtomicU64,
    limit: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Account { held: AtomicU64::new(0), limit }))
    }

    /// Reserves bytes for as long as the returned value lives. `what` says in the error message what needs them.
    ///
    /// # Errors
    /// If the total would exceed the limit.
    pub fn take(&self, what: &'static str, bytes: usize) -> Result<Reservation> {
        let Account { held, limit } = &*self.0;
        let add = |reserved: u64| reserved.checked_add(bytes as u64).filter(|sum| sum <= limit);
        match held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Reservation { budget: self.clone(), bytes }),
            Err(reserved) => {
                let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                let needed = size(reserved.saturating_add(bytes as u64));
                Err(Error::Limit { what, needed, limit: size(*limit) })
            }
        }
    }

    /// The bytes reserved now.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }
}

impl Default for Budget {
    /// An unlimited budget.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

/// Bytes reserved from a [`Budget`], released on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Budget,
    bytes: usize,
}

impl Reservation {
    /// Reserves the same number of bytes again.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn try_clone(&self, what: &'static str) -> Result<Self> {
        self.budget.take(what, self.bytes)
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// A tensor whose bytes are reserved from a [`Budget`] as long as it lives.
#[derive(Debug)]
pub struct CountedTensor {
    tensor: Tensor,
    _held: Reservation,
}

impl CountedTensor {
    /// A zeroed tensor. `what` says in the error message what needs it.
    ///
    /// # Errors
    /// As [`Budget::take`], or if the allocation fails.
    pub fn zeros(meta: TensorMeta, what: &'static str, budget: &Budget) -> Result<Self> {
        let reservation = budget.take(what, meta.nbytes())?;
        Ok(Self { tensor: Tensor::zeros(meta)?, _held: reservation })
    }

    /// A copy of a tensor. `what` says in the error message what needs it.
    ///
    /// # Errors
    /// As [`Budget::take`], or if the allocation fails.
    pub fn copy_of(of: &TensorView<'_>, what: &'static str, budget: &Budget) -> Result<Self> {
        let reservation = budget.take(what, of.bytes().len())?;
        Ok(Self { tensor: of.to_tensor()?, _held: reservation })
    }

    /// An existing tensor whose bytes are reserved only now: for small tensors whose size is not known before they
    /// are created.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn new(tensor: Tensor, what: &'static str, budget: &Budget) -> Result<Self> {
        let reservation = budget.take(what, tensor.bytes().len())?;
        Ok(Self { tensor, _held: reservation })
    }
}

impl From<Tensor> for CountedTensor {
    /// Wraps a tensor without charging its bytes to a budget.
    fn from(tensor: Tensor) -> Self {
        let reservation = Reservation { budget: Budget::default(), bytes: 0 };
        Self { tensor, _held: reservation }
    }
}

impl Deref for CountedTensor {
    type Target = Tensor;
    fn deref(&self) -> &Tensor {
        &self.tensor
    }
}

impl DerefMut for CountedTensor {
    fn deref_mut(&mut self) -> &mut Tensor {
        &mut self.tensor
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dropping_a_reservation_releases_its_bytes() {
        let budget = Budget::new(100);
        let first = budget.take("a test", 60).unwrap();
        let e = budget.take("a test", 41).unwrap_err();
        assert!(matches!(e, Error::Limit { needed: 101, limit: 100, .. }), "{e}");
        let rest = budget.clone().take("a test", 40).unwrap();
        assert!(rest.try_clone("a test").is_err());
        drop(first);
        assert_eq!((rest.try_clone("a test").map(|h| h.bytes), budget.held()), (Ok(40), 40));
        drop(rest);
        assert_eq!((budget.held(), budget.take("a test", usize::MAX).is_err()), (0, true));
    }
}
