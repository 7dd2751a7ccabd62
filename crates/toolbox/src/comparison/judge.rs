use crate::tolerance::Tolerance;

/// The criteria by which two values are judged to differ.
pub(super) struct Judge {
    pub(super) tolerance: Tolerance,
    pub(super) min_sqnr: Option<f64>,
}

impl Judge {
    /// Values differ whose signal-to-noise ratio is below `min_sqnr`, in decibels.
    pub(super) fn of_noise(min_sqnr: f64) -> Self {
        Self { tolerance: Tolerance::default(), min_sqnr: Some(min_sqnr) }
    }
}
