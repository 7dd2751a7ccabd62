//! The memory that the values of a request take.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The number of bytes that are charged to a request. Values that outlive the request keep the account alive.
#[derive(Debug, Default)]
pub(crate) struct Account(AtomicU64);

impl Account {
    /// Charges bytes until the returned value is dropped; `None` if the sum would be larger than `limit`.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64, limit: u64) -> Option<Charge> {
        let fits = |used: u64| used.checked_add(bytes).filter(|&sum| sum <= limit);
        let updated = self.0.try_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        updated.is_ok().then(|| Charge { account: Arc::clone(self), bytes })
    }

    /// The number of bytes that are currently charged.
    pub(crate) fn charged_bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Memory that is charged to a request ([`ExecutionContext::charge`](crate::ExecutionContext::charge)) until this value is dropped. Store
/// it beside the data that takes the memory.
#[must_use = "the memory is charged only until this value is dropped"]
pub struct Charge {
    account: Arc<Account>,
    bytes: u64,
}

impl Charge {
    /// The number of bytes that this charge holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.account.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl fmt::Debug for Charge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Charge({} bytes)", self.bytes)
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn charges_add_up_to_the_limit_and_end_when_dropped() {
        let account = Arc::new(Account::default());
        let first = account.charge(60, 100).unwrap();
        assert!(account.charge(41, 100).is_none() && account.charge(u64::MAX, u64::MAX).is_none());
        let second = account.charge(40, 100).unwrap();
        assert_eq!((account.charged_bytes(), second.bytes()), (100, 40));
        drop(first);
        assert_eq!(account.charged_bytes(), 40);
    }
}
