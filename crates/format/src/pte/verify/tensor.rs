use super::Verifier;
use crate::ErrorKind;
use crate::flatbuffer::Path;
use crate::pte::{AllocationDetails, ExecutionPlan, Tensor, TensorShapeDynamism};
use crate::shape::Shape;
use pteron_tensor::ScalarType;

impl Verifier<'_> {
    /// Checks the properties of a tensor, and where its bytes are.
    pub(super) fn check_tensor(&mut self, plan: &ExecutionPlan, tensor: &Tensor, path: Path<'_>) {
        let shape =
            Shape { scalar_type: tensor.scalar_type, sizes: &tensor.sizes, dim_order: &tensor.dim_order };
        let checked = self.check_shape(shape, path);
        if tensor.storage_offset != 0 {
            let field = path.field("storage_offset");
            self.fail(ErrorKind::Unsupported, field, "0", tensor.storage_offset);
        }
        if tensor.layout != 0 {
            self.fail(ErrorKind::Unsupported, path.field("layout"), "0, strided", tensor.layout);
        }
        if tensor.shape_dynamism == TensorShapeDynamism::DynamicUnbound {
            let expected = "STATIC or DYNAMIC_BOUND";
            self.fail(ErrorKind::Unsupported, path.field("shape_dynamism"), expected, "DYNAMIC_UNBOUND");
        }
        let Some((dtype, nbytes)) = checked else {
            return;
        };
        if let Some(place) = &tensor.allocation_info {
            self.check_allocation(plan, place, dtype, nbytes, path.field("allocation_info"));
        }
        if tensor.is_external() {
            // Its buffer index is meaningless: the bytes are looked up by name.
            if tensor.fully_qualified_name().is_none() {
                let info = path.field("extra_tensor_info");
                let expected = "the name of a tensor outside the program";
                self.fail_invalid(info.field("fully_qualified_name"), expected, "nothing");
            }
            return;
        }
        let located = match (tensor.constant_idx(), tensor.initial_data_idx()) {
            (Some(index), _) => self.program.constant_range(self.header, index, nbytes).map(drop),
            (_, Some(index)) => {
                let which =
                    tensor.extra_tensor_info.as_ref().map_or(0, |info| info.mutable_data_segments_idx);
                self.program.initial_data_range(self.header, which, index, nbytes).map(drop)
            }
            (None, None) => Ok(()),
        };
        if let Err((expected, actual)) = located {
            self.fail_invalid(path.field("data_buffer_idx"), expected, actual);
        }
    }

    fn check_allocation(
        &mut self,
        plan: &ExecutionPlan,
        place: &AllocationDetails,
        dtype: ScalarType,
        nbytes: u64,
        path: Path<'_>,
    ) {
        let arenas = plan.non_const_buffer_sizes.len();
        let field = path.field("memory_id");
        if place.memory_id == 0 {
            self.fail_invalid(field, "an arena, counted from 1", 0);
            return;
        }
        let Some(arena) =
            self.check_index(field, place.memory_id, arenas, "planned buffers, of which 0 is reserved")
        else {
            return;
        };
        let offset = place.offset();
        let size = u64::try_from(plan.non_const_buffer_sizes[arena]).unwrap_or(0);
        if offset.checked_add(nbytes).is_none_or(|end| end > size) {
            let expected = format!("a place for {nbytes} bytes within the {size} of arena {arena}");
            self.fail_invalid(path.field("memory_offset_low"), expected, format_args!("offset {offset}"));
        }
        if nbytes > 0 && !offset.is_multiple_of(dtype.alignment() as u64) {
            let expected = format!("a multiple of {}, the alignment of {dtype}", dtype.alignment());
            self.fail_invalid(path.field("memory_offset_low"), expected, offset);
        }
    }

    /// Checks type, sizes and dim order; returns the type and the number of bytes if all are valid.
    fn check_shape(&mut self, shape: Shape<'_>, path: Path<'_>) -> Option<(ScalarType, u64)> {
        let mut errors = Vec::new();
        let dtype_and_nbytes = shape.check(self.limits.tensor_bytes, path, |error| errors.push(error));
        for error in errors {
            self.push(error);
        }
        dtype_and_nbytes
    }
}
