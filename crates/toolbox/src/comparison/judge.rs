use super::record::Recorded;
use super::{ComparisonOptions, MIN_SQNR};
use crate::tolerance::Tolerance;

/// The criteria by which two values are judged to differ.
pub(super) struct Judge {
    pub(super) tolerance: Tolerance,
    pub(super) min_sqnr: Option<f64>,
}

impl Judge {
    /// Judges by the tolerance if both sides compute in the same precisions, and otherwise by noise.
    pub(super) fn new(options: &ComparisonOptions, a: &Recorded, b: &Recorded) -> Self {
        let same_precision = a.reduced_precisions() == b.reduced_precisions();
        let min_sqnr = options.min_sqnr.or((!same_precision).then_some(MIN_SQNR));
        Self { tolerance: options.tolerance, min_sqnr }
    }

    /// A judge by which values differ if their signal-to-noise ratio is below `min_sqnr` decibels.
    pub(super) fn with_min_sqnr(min_sqnr: f64) -> Self {
        Self { tolerance: Tolerance::default(), min_sqnr: Some(min_sqnr) }
    }
}
