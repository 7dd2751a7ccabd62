//! Opening files: loaders of byte ranges, programs and what their tables say of methods, named data, constants.

mod constants;
mod freeable;
mod input_sizes;
mod loader;
mod meta;
mod named_data;
pub(crate) mod own_data;
mod program;
mod value_names;

pub use constants::ConstantBytes;
pub(crate) use constants::{Deferred, Elements, InProgram, Source, align_elements};
pub use freeable::FreeableBuffer;
pub use loader::{BytesLoader, DataLoader, FileLoader, LoaderReader, MmapLoader, Purpose};
pub use meta::{BackendUse, MethodMeta, OperatorUse, TensorInfo, ValueMeta, check_tensor};
pub(crate) use meta::{check_shape, check_type_and_shape, planned_extent, tensor_meta};
pub(crate) use named_data::{CountedDataMap, InMap};
pub use named_data::{MergedDataMap, NamedDataMap, PtdDataMap, PteDataMap};
pub use program::Program;
pub use value_names::arrange_inputs;
