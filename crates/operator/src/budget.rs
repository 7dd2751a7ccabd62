use crate::{Error, Result};
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tensor::{Tensor, TensorMeta, TensorView};

/// Memory that several owners may hold together: bytes are taken before they are allocated, and given back by
/// dropping what was taken. Clones are the same budget.
#[derive(Debug, Clone)]
pub struct Budget(Arc<Account>);

#[derive(Debug)]
struct Account {
    held: AtomicU64,
    limit: u64,
}

impl Budget {
    /// At most `limit` bytes at a time.
    pub fn new(limit: u64) -> Self {
        Self(Arc::new(Account { held: AtomicU64::new(0), limit }))
    }

    /// Takes bytes, for as long as what comes of it lives. `what` needs them, for the message.
    ///
    /// # Errors
    /// If all that is held would be more than the limit.
    pub fn take(&self, what: &'static str, bytes: usize) -> Result<Held> {
        let Account { held, limit } = &*self.0;
        let add = |held: u64| held.checked_add(bytes as u64).filter(|sum| sum <= limit);
        match held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add) {
            Ok(_) => Ok(Held { budget: self.clone(), bytes }),
            Err(held) => {
                let size = |n: u64| usize::try_from(n).unwrap_or(usize::MAX);
                let needed = size(held.saturating_add(bytes as u64));
                Err(Error::Limit { what, needed, limit: size(*limit) })
            }
        }
    }

    /// Bytes that are held now.
    pub fn held(&self) -> u64 {
        self.0.held.load(Ordering::Relaxed)
    }

    /// Bytes that may be held at a time.
    pub fn limit(&self) -> u64 {
        self.0.limit
    }
}

impl Default for Budget {
    /// Without a bound.
    fn default() -> Self {
        Self::new(u64::MAX)
    }
}

/// Bytes of a [`Budget`], given back on drop.
#[derive(Debug)]
pub struct Held {
    budget: Budget,
    bytes: usize,
}

impl Held {
    /// As many bytes once more.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn again(&self, what: &'static str) -> Result<Self> {
        self.budget.take(what, self.bytes)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.budget.0.held.fetch_sub(self.bytes as u64, Ordering::Relaxed);
    }
}

/// A tensor whose bytes are taken from a [`Budget`] for as long as it lives.
#[derive(Debug)]
pub struct CountedTensor {
    tensor: Tensor,
    _held: Held,
}

impl CountedTensor {
    /// A tensor of zero bytes. `what` needs them, for the message.
    ///
    /// # Errors
    /// As [`Budget::take`], or if the memory cannot be had.
    pub fn zeros(meta: TensorMeta, what: &'static str, budget: &Budget) -> Result<Self> {
        let held = budget.take(what, meta.nbytes())?;
        Ok(Self { tensor: Tensor::zeros(meta)?, _held: held })
    }

    /// A copy of a tensor. `what` needs it, for the message.
    ///
    /// # Errors
    /// As [`Budget::take`], or if the memory cannot be had.
    pub fn copied(of: &TensorView<'_>, what: &'static str, budget: &Budget) -> Result<Self> {
        let held = budget.take(what, of.bytes().len())?;
        Ok(Self { tensor: of.to_tensor()?, _held: held })
    }

    /// A tensor that is there: for small ones, whose bytes are not known before.
    ///
    /// # Errors
    /// As [`Budget::take`].
    pub fn new(tensor: Tensor, what: &'static str, budget: &Budget) -> Result<Self> {
        let held = budget.take(what, tensor.bytes().len())?;
        Ok(Self { tensor, _held: held })
    }
}

impl From<Tensor> for CountedTensor {
    /// Counted in no budget that anybody has.
    fn from(tensor: Tensor) -> Self {
        let held = Held { budget: Budget::default(), bytes: 0 };
        Self { tensor, _held: held }
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
    fn what_is_dropped_is_given_back() {
        let budget = Budget::new(100);
        let first = budget.take("a test", 60).unwrap();
        let e = budget.take("a test", 41).unwrap_err();
        assert!(matches!(e, Error::Limit { needed: 101, limit: 100, .. }), "{e}");
        let rest = budget.clone().take("a test", 40).unwrap();
        assert!(rest.again("a test").is_err());
        drop(first);
        assert_eq!((rest.again("a test").map(|h| h.bytes), budget.held()), (Ok(40), 40));
        drop(rest);
        assert_eq!((budget.held(), budget.take("a test", usize::MAX).is_err()), (0, true));
    }
}
