use pteron::tensor::{AlignedBuffer, TensorMeta, TensorView};
use pteron::{Tensor, tensor};

/// A tensor at an address that does not change, to which arrays of Python may refer.
pub(crate) struct Storage {
    meta: TensorMeta,
    start: *mut u8,
    /// What the memory is of; never touched again, but dropped.
    _bytes: AlignedBuffer,
}

// SAFETY: the memory is owned and stays where it is. Who reads it and who writes it is for Python's programs to order, as
// this module says; nothing here depends on what is in it.
unsafe impl Send for Storage {}
// SAFETY: as above.
unsafe impl Sync for Storage {}

impl Storage {
    /// The storage of a tensor.
    pub(crate) fn new(tensor: Tensor) -> Self {
        let (meta, mut bytes) = tensor.into_parts();
        Self { meta, start: bytes.as_mut_ptr(), _bytes: bytes }
    }

    /// Type, sizes and layout.
    pub(crate) fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Where the elements are.
    pub(crate) fn start(&self) -> *mut u8 {
        self.start
    }

    /// The tensor, to read.
    pub(crate) fn view(&self) -> tensor::Result<TensorView<'_>> {
        // SAFETY: `start` is the start of a buffer of this value with at least as many bytes as the meta says, all of them
        // initialized.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast_const(), self.meta.nbytes()) };
        TensorView::new(&self.meta, bytes)
    }

    /// Strides in bytes.
    pub(crate) fn byte_strides(&self) -> Vec<isize> {
        let size = self.meta.dtype().size();
        self.meta.strides().iter().map(|&s| (s * size) as isize).collect()
    }
}
