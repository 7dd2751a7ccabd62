use crate::tolerance::Tolerance;

/// Decides which values differ.
pub(super) struct Judge {
    pub(super) tolerance: Tolerance,
    pub(super) min_sqnr: Option<f64>,
}
