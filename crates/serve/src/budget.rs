use crate::refusal::{Reason, Refusal, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A limit on the total bytes that all requests hold at a time.
#[derive(Debug)]
pub(crate) struct Budget {
    held: AtomicU64,
    limit: u64,
}

impl Budget {
    pub(crate) fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { held: AtomicU64::new(0), limit })
    }

    /// The number of bytes that requests hold now.
    pub(crate) fn bytes_held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    fn reserve(&self, bytes: u64) -> Result<()> {
        let fits = |total: u64| total.checked_add(bytes).filter(|&sum| sum <= self.limit);
        let updated = self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        updated.map(drop).map_err(|total| {
            Refusal::new(
                Reason::Busy,
                format!("requests hold {total} of {} bytes; try again later", self.limit),
            )
        })
    }
}

/// Bytes reserved from the server's memory budget; they are returned to it on drop.
#[derive(Debug)]
pub struct Reservation {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Reservation {
    pub(crate) fn empty(budget: &Arc<Budget>) -> Self {
        Self { budget: Arc::clone(budget), bytes: 0 }
    }

    /// Takes more bytes from the budget.
    ///
    /// # Errors
    /// [`Reason::Busy`] if the budget would be exceeded; [`Reason::TooLarge`] if this share alone would exceed it.
    pub fn grow(&mut self, bytes: u64) -> Result<()> {
        let limit = self.budget.limit;
        if self.bytes.saturating_add(bytes) > limit {
            let message = format!("a request and its response hold at most {limit} bytes");
            return Err(Refusal::new(Reason::TooLarge, message));
        }
        self.budget.reserve(bytes)?;
        self.bytes += bytes;
        Ok(())
    }

    /// Moves the bytes of `other`, a reservation from the same budget, to this reservation.
    pub(crate) fn absorb(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget));
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_hold_no_more_than_the_limit() {
        let budget = Budget::new(100);
        let mut a = Reservation::empty(&budget);
        a.grow(60).unwrap();
        let mut b = Reservation::empty(&budget);
        assert_eq!(b.grow(41).unwrap_err().reason, Reason::Busy);
        assert_eq!(b.grow(u64::MAX).unwrap_err().reason, Reason::TooLarge);
        assert_eq!(a.grow(41).unwrap_err().reason, Reason::TooLarge);
        b.grow(40).unwrap();
        drop(a);
        assert_eq!(budget.bytes_held(), 40);
        let mut c = Reservation::empty(&budget);
        c.grow(10).unwrap();
        c.absorb(b);
        assert_eq!(budget.bytes_held(), 50);
        drop(c);
        assert_eq!(budget.bytes_held(), 0);
    }
}
