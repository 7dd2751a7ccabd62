//! State that methods share: buffers that `MemoryPlanningPass(share_mutable_buffers=True)` of the reference places in the
//! second arena, at the same offsets in every method.

use pteron_format::pte::{ExecutionPlan, Program};
use std::collections::BTreeMap;

/// The memory id of shared buffers.
pub(super) const SHARED_ARENA: u32 = 2;

/// Whether the methods of a program may share state: several have a second arena, all of the same size, and whatever is
/// in it is at the same place and of the same size in each.
pub(super) fn has_shared_state(program: &Program) -> bool {
    let second = |plan: &ExecutionPlan| plan.non_const_buffer_sizes.get(SHARED_ARENA as usize).copied();
    let sizes: Vec<i64> = program.execution_plan.iter().filter_map(second).filter(|&size| size > 0).collect();
    let others = program.execution_plan.iter().any(|plan| plan.non_const_buffer_sizes.len() > 3);
    if sizes.len() < 2 || sizes.iter().any(|&size| size != sizes[0]) || others {
        return false;
    }
    // The end of each extent, by its start.
    let mut extents: BTreeMap<u64, u64> = BTreeMap::new();
    for tensor in program.execution_plan.iter().flat_map(|plan| &plan.values).filter_map(|v| v.as_tensor()) {
        let Some(place) = tensor.allocation_info.filter(|place| place.memory_id == SHARED_ARENA) else {
            continue;
        };
        let start = u64::from(place.memory_offset_high) << 32 | u64::from(place.memory_offset_low);
        let end = start.saturating_add(tensor.nbytes().unwrap_or(u64::MAX));
        if *extents.entry(start).or_insert(end) != end {
            return false;
        }
    }
    extents.iter().zip(extents.iter().skip(1)).all(|((_, end), (next, _))| end <= next)
}
