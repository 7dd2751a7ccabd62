use crate::tolerance::Tolerance;

/// The criteria by which two values are judged to differ.
pub(super) struct Judge {
    pub(super) tolerance: Tolerance,
    pub(super) min_sqnr: Option<f64>,
}
