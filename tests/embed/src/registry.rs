//! Written by `pteron ops --emit`. Do not edit.

/// The kernels that these programs call:
///
/// - "mobilenet_v2.pte"
pub fn kernels() -> pteron::KernelRegistry {
    pteron::kernels![
        aten::_native_batch_norm_legit_no_training.out,
        aten::add.out,
        aten::addmm.out,
        aten::convolution.out,
        aten::hardtanh.out,
        aten::mean.out,
        aten::permute_copy.out,
    ]
}
