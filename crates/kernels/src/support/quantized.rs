//! Checks shared by operators with quantized weights.

use pteron_operator::{Result, ensure};
use pteron_tensor::TensorView;

/// Fails if zero points are given and their shape differs from that of the scales.
pub(crate) fn check_zero_point_shape(zeros: Option<&TensorView<'_>>, scales: &TensorView<'_>) -> Result<()> {
    let Some(zeros) = zeros else { return Ok(()) };
    ensure!(
        zeros.sizes() == scales.sizes(),
        "weight_zero_points: expected the shape {}, as the scales have, found {}",
        scales.sizes(),
        zeros.sizes()
    );
    Ok(())
}
