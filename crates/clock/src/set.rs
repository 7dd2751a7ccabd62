//! A clock that the embedder sets.

use std::ops::{Add, Sub};
use std::sync::OnceLock;
use std::time::Duration;

static CLOCK: OnceLock<fn() -> Duration> = OnceLock::new();

/// Sets the function that reads the clock: the time since some fixed moment, which must never decrease. Returns `false`
/// and changes nothing if a clock was already set.
pub fn set(clock: fn() -> Duration) -> bool {
    CLOCK.set(clock).is_ok()
}

/// Returns at once: without threads, nothing can make progress during a sleep.
pub fn sleep(_: Duration) {}

/// A point in time, with the interface of `std::time::Instant`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(Duration);

impl Instant {
    /// The current time of the clock that was [`set`]; without a clock, always the same instant.
    pub fn now() -> Self {
        Self(CLOCK.get().map_or(Duration::ZERO, |clock| clock()))
    }

    /// The time since `earlier`; zero if `earlier` is later than this instant.
    pub fn duration_since(&self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }

    /// The same as [`Self::duration_since`].
    pub fn saturating_duration_since(&self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }

    /// The time since this instant.
    pub fn elapsed(&self) -> Duration {
        Self::now().duration_since(*self)
    }

    /// The instant `time` later; `None` on overflow.
    pub fn checked_add(&self, time: Duration) -> Option<Self> {
        self.0.checked_add(time).map(Self)
    }

    /// The instant `time` earlier; `None` on underflow.
    pub fn checked_sub(&self, time: Duration) -> Option<Self> {
        self.0.checked_sub(time).map(Self)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// The instant `time` later; saturates at the latest instant.
    fn add(self, time: Duration) -> Self {
        Self(self.0.saturating_add(time))
    }
}

impl Sub for Instant {
    type Output = Duration;

    /// The same as [`Self::duration_since`].
    fn sub(self, earlier: Self) -> Duration {
        self.duration_since(earlier)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};

    static MILLISECONDS: AtomicU64 = AtomicU64::new(0);

    fn clock() -> Duration {
        Duration::from_millis(MILLISECONDS.load(Ordering::Relaxed))
    }

    /// A single test, because the clock is global to the process.
    #[test]
    fn time_stands_still_until_a_clock_is_set() {
        let begin = Instant::now();
        MILLISECONDS.store(3, Ordering::Relaxed);
        sleep(Duration::from_secs(3600));
        assert_eq!((Instant::now(), begin.elapsed()), (begin, Duration::ZERO));

        assert!(set(clock) && !set(|| Duration::ZERO));
        MILLISECONDS.store(10, Ordering::Relaxed);
        let now = Instant::now();
        assert_eq!(now.duration_since(begin), Duration::from_millis(10));
        assert_eq!((begin - now, begin.saturating_duration_since(now)), (Duration::ZERO, Duration::ZERO));
        let later = now.checked_add(Duration::from_millis(5)).unwrap();
        assert!(later > now && later == now + Duration::from_millis(5));
        assert_eq!(now.checked_add(Duration::MAX), None);
        assert_eq!(now + Duration::MAX, Instant(Duration::MAX));
        assert_eq!(later.checked_sub(Duration::from_millis(15)), Some(begin));
        assert_eq!(begin.checked_sub(Duration::from_millis(1)), None);
        MILLISECONDS.store(17, Ordering::Relaxed);
        assert_eq!(now.elapsed(), Duration::from_millis(7));
    }
}
