use pteron_operator::{Budget, Reservation, Result};
use std::sync::{Arc, Mutex, PoisonError};

/// The memory that compiling programs may take beside the file that they come from: copies of weights, folded
/// constants, nodes. Clones share the budget. Unlimited by default.
#[derive(Debug, Clone, Default)]
pub struct CompileBudget {
    budget: Budget,
    /// The reservations that `charge` has made, in order.
    charged: Arc<Mutex<Vec<Reservation>>>,
}

impl CompileBudget {
    /// A budget of `limit` bytes.
    pub fn new(limit: u64) -> Self {
        Self { budget: Budget::new(limit), charged: Arc::default() }
    }

    /// Reserves bytes for as long as the returned value lives. `what` says in the error message what needs them.
    ///
    /// # Errors
    /// If the total would exceed the limit.
    pub fn take(&self, what: &'static str, bytes: usize) -> Result<Reservation> {
        self.budget.take(what, bytes)
    }

    /// Reserves bytes until `release_after` releases them, or the budget is dropped: for memory
    /// that is estimated and has no single owner.
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn charge(&self, what: &'static str, bytes: usize) -> Result<()> {
        let reservation = self.take(what, bytes)?;
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).push(reservation);
        Ok(())
    }

    /// The number of reservations that `charge` has made and that have not been released.
    pub fn num_charged(&self) -> usize {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Releases all but the first `count` reservations; the caller has dropped what the released ones were made for.
    pub fn release_after(&self, count: usize) {
        self.charged.lock().unwrap_or_else(PoisonError::into_inner).truncate(count);
    }
}
