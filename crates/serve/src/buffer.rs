use crate::budget::Reservation;
use crate::refusal::{Reason, Refusal, Result};
use std::{fmt, io};

/// The initial capacity of a buffer, in bytes.
const FIRST_BYTES: usize = 512;

/// A growing buffer for a response. Its capacity is charged to the memory budget before it is allocated.
#[derive(Debug)]
pub(crate) struct Buffer {
    bytes: Vec<u8>,
    reservation: Reservation,
    /// Why a write failed, since the errors of `fmt::Write` and `io::Write` cannot say it.
    refusal: Option<Refusal>,
}

impl Buffer {
    /// An empty buffer, whose capacity will be charged to `reservation`.
    pub(crate) fn new(reservation: Reservation) -> Self {
        Self { bytes: Vec::new(), reservation, refusal: None }
    }

    /// The number of bytes that have been written.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Removes the last byte.
    pub(crate) fn pop(&mut self) {
        self.bytes.pop();
    }

    /// Appends bytes.
    ///
    /// # Errors
    /// The budget is exceeded, or there is not enough memory.
    pub(crate) fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.reserve(bytes.len())?;
        self.bytes.extend_from_slice(bytes);
        Ok(())
    }

    /// Charges and allocates capacity for `more` bytes: at least half as much again as there was, so that a byte is
    /// moved a bounded number of times.
    fn reserve(&mut self, more: usize) -> Result<()> {
        let (len, capacity) = (self.bytes.len(), self.bytes.capacity());
        let needed = len.saturating_add(more);
        if needed <= capacity {
            return Ok(());
        }
        let grown = needed.max(capacity + capacity / 2).max(FIRST_BYTES);
        self.reservation.grow((grown - capacity) as u64)?;
        let reserved = self.bytes.try_reserve_exact(grown - len);
        reserved.map_err(|_| Refusal::new(Reason::Busy, "there is not enough memory; try again later"))
    }

    /// Serializes a value as JSON.
    ///
    /// # Errors
    /// As [`Self::push`].
    pub(crate) fn write_json(&mut self, value: &impl serde::Serialize) -> Result<()> {
        let written = serde_json::to_writer(&mut *self, value);
        self.check()?;
        written.map_err(|e| Refusal::from_error(Reason::Failed, &e))
    }

    /// Fails with the refusal of the first write that failed, if any did.
    pub(crate) fn check(&mut self) -> Result<()> {
        self.refusal.take().map_or(Ok(()), Err)
    }

    /// The bytes, and the share of the budget that includes them.
    ///
    /// # Errors
    /// A write failed.
    pub(crate) fn finish(mut self) -> Result<(Vec<u8>, Reservation)> {
        self.check()?;
        Ok((self.bytes, self.reservation))
    }
}

impl io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes).map_err(|refusal| {
            self.refusal.get_or_insert(refusal);
            io::Error::from(io::ErrorKind::OutOfMemory)
        })?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl fmt::Write for Buffer {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        io::Write::write_all(self, text.as_bytes()).map_err(|_| fmt::Error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use std::fmt::Write;

    #[test]
    fn a_buffer_is_charged_before_it_grows() {
        let budget = Budget::new(4096);
        let mut buffer = Buffer::new(Reservation::empty(&budget));
        let mut written = 0;
        let refusal = loop {
            match buffer.push(b"0123456789") {
                Ok(()) => written += 10,
                Err(refusal) => break refusal,
            }
            assert_eq!(budget.bytes_held(), buffer.bytes.capacity() as u64);
        };
        assert_eq!(refusal.reason, Reason::TooLarge);
        assert!(written > 2048 && budget.bytes_held() <= 4096);
        drop(buffer);
        assert_eq!(budget.bytes_held(), 0);
    }

    #[test]
    fn a_failed_write_is_reported_at_the_end() {
        let mut buffer = Buffer::new(Reservation::empty(&Budget::new(1000)));
        let _ = write!(buffer, "{}", "x".repeat(2000));
        let _ = write!(buffer, "more");
        assert_eq!(buffer.finish().unwrap_err().reason, Reason::TooLarge);
    }
}
