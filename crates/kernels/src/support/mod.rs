//! The mechanisms that operators share.

#[cfg(test)]
pub(crate) mod call;
pub(crate) mod convert;
pub(crate) mod copy;
pub(crate) mod dims;
pub(crate) mod dtype;
pub(crate) mod gather_index;
pub(crate) mod lanes;
pub(crate) mod layout;
pub(crate) mod map;
pub(crate) mod meaning;
pub(crate) mod quantized;
pub(crate) mod reduce;
pub(crate) mod remap;
pub(crate) mod rows;
pub(crate) mod select;
pub(crate) mod special;
pub(crate) mod truth;

/// The instruction set that a call may use.
pub(crate) fn isa(ctx: &pteron_operator::KernelContext<'_>) -> crate::compute::Isa {
    ctx.isa()
}
