use pteron::tensor::{AlignedBuffer, TensorMeta, TensorView};
use pteron::{Tensor, tensor};

/// A tensor at a fixed address, to which Python arrays may refer.
pub(crate) struct Storage {
    meta: TensorMeta,
    start: *mut u8,
    /// Owns the memory; only `start` is used to access it.
    _bytes: AlignedBuffer,
}

// SAFETY: the memory is owned and does not move. Python programs must synchronize reads and writes, as this module says;
// nothing here depends on the contents.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    /// Moves a tensor to a storage.
    pub(crate) fn new(tensor: Tensor) -> Self {
        let (meta, mut bytes) = tensor.into_parts();
        Self { meta, start: bytes.as_mut_ptr(), _bytes: bytes }
    }

    /// The tensor's type, sizes and dim order.
    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// The address of the first element.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// A view of the tensor.
    pub(crate) fn view(&self) -> tensor::Result<TensorView<'_>> {
        // SAFETY: `start` is the start of the owned buffer, which has at least `nbytes` initialized bytes.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast_const(), self.meta.nbytes()) };
        TensorView::new(&self.meta, bytes)
    }

    /// The strides of the tensor's dimensions, in bytes.
    pub(crate) fn byte_strides(&self) -> Vec<isize> {
        let size = self.meta.dtype().size();
        self.meta.strides().iter().map(|&s| (s * size) as isize).collect()
    }
}
