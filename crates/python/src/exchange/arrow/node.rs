//! Arrays: the buffers of a column, and export to consumers that share them.

use super::abi::{ArrowArray, Released};
use pteron::tensor::AlignedBuffer;
use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

/// The contents that the buffers of arrays without rows point to.
#[repr(align(64))]
struct Zero([u8; 64]);
static ZERO: Zero = Zero([0; 64]);

/// The length and buffer addresses of an array, whose memory an [`Owner`] or the imported struct owns.
#[derive(Clone)]
pub(crate) struct Node {
    pub(super) length: usize,
    pub(super) null_count: i64,
    pub(super) offset: usize,
    pub(super) buffers: Vec<*const c_void>,
    pub(super) children: Vec<Node>,
    dictionary: Option<Box<Node>>,
}

// SAFETY: the pointers are only read through, and nobody writes to the memory while its owner lives.
unsafe impl Send for Node {}
// SAFETY: as above.
unsafe impl Sync for Node {}

/// The owner of an array's buffers, which keeps them alive.
#[expect(dead_code, reason = "held only for their destructors")]
pub(crate) enum Owner {
    Imported(super::ImportedArray),
    Buffers(Vec<AlignedBuffer>),
    Several(Vec<Arc<Owner>>),
}

impl Node {
    /// An array with these buffers, whose offset is zero.
    pub(super) fn new(
        length: usize,
        null_count: usize,
        buffers: Vec<*const c_void>,
        children: Vec<Node>,
    ) -> Self {
        Self { length, null_count: null_count as i64, offset: 0, buffers, children, dictionary: None }
    }

    /// An array without rows; `None` if it is not known which buffers its type has.
    pub(super) fn empty(field: &super::Field) -> Option<Self> {
        let children = field.children.iter().map(Self::empty).collect::<Option<_>>()?;
        let dictionary = match field.dictionary() {
            Some(dictionary) => Some(Box::new(Self::empty(dictionary)?)),
            None => None,
        };
        // The validity buffer may be null. An offsets buffer without rows has one entry, which is 0.
        let mut buffers = vec![ZERO.0.as_ptr().cast::<c_void>(); field.num_buffers()?];
        if let Some(validity) = buffers.first_mut() {
            *validity = ptr::null();
        }
        Some(Self { length: 0, null_count: 0, offset: 0, buffers, children, dictionary })
    }

    /// The values of a dictionary-encoded array.
    pub(super) fn dictionary(&self) -> Option<&Node> {
        self.dictionary.as_deref()
    }

    /// Reads an array; `None` if one of its lengths or counts is negative or overflows, if it lacks children or
    /// buffers, or if it is nested deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    pub(super) fn from_array(array: &ArrowArray) -> Option<Self> {
        Self::from_array_at(array, super::MAX_DEPTH)
    }

    fn from_array_at(array: &ArrowArray, depth: usize) -> Option<Self> {
        let depth = depth.checked_sub(1)?;
        let count = |n: i64| usize::try_from(n).ok();
        // SAFETY: an array that was not released has `n_children` children, each valid unless it is null.
        let children = unsafe { super::abi::children(array.children, array.n_children)? };
        let children = children.into_iter().map(|child| Self::from_array_at(child, depth));
        let children = children.collect::<Option<_>>()?;
        let n_buffers = count(array.n_buffers).filter(|&n| n <= super::abi::MAX_CHILDREN)?;
        (n_buffers == 0 || !array.buffers.is_null()).then_some(())?;
        // SAFETY: an array that was not released has `n_buffers` buffers.
        let buffers = unsafe { (0..n_buffers).map(|i| *array.buffers.add(i)).collect() };
        // SAFETY: a dictionary is null or valid.
        let dictionary = match unsafe { array.dictionary.as_ref() } {
            Some(dictionary) => Some(Box::new(Self::from_array_at(dictionary, depth)?)),
            None => None,
        };
        let (length, offset) = (count(array.length)?, count(array.offset)?);
        length.checked_add(offset)?;
        Some(Self { length, null_count: array.null_count, offset, buffers, children, dictionary })
    }

    /// Slices a child of a struct array to the parent's offset and length; `None` if the child is too short.
    pub(super) fn slice_to_parent(mut self, parent: &Node) -> Option<Self> {
        if parent.offset != 0 || parent.length != self.length {
            (parent.offset + parent.length <= self.length).then_some(())?;
            self.offset += parent.offset;
            self.length = parent.length;
            self.null_count = -1;
        }
        Some(self)
    }

    /// Exports the array to a consumer. The exported struct keeps `owner` alive.
    pub(super) fn export(&self, owner: &Arc<Owner>) -> ArrowArray {
        let export = |node: &Node| Box::into_raw(Box::new(node.export(owner)));
        let mut array_owner = Box::new(ArrayOwner {
            _owner: Arc::clone(owner),
            buffers: self.buffers.clone(),
            children: self.children.iter().map(export).collect(),
            dictionary: self.dictionary.as_deref().map_or(ptr::null_mut(), export),
        });
        ArrowArray {
            length: self.length as i64,
            null_count: self.null_count,
            offset: self.offset as i64,
            n_buffers: array_owner.buffers.len() as i64,
            n_children: array_owner.children.len() as i64,
            buffers: array_owner.buffers.as_mut_ptr(),
            children: array_owner.children.as_mut_ptr(),
            dictionary: array_owner.dictionary,
            release: Some(release),
            private_data: Box::into_raw(array_owner).cast(),
        }
    }
}

/// Owns everything that an exported array points to, until the consumer releases it.
struct ArrayOwner {
    _owner: Arc<Owner>,
    buffers: Vec<*const c_void>,
    children: Vec<*mut ArrowArray>,
    dictionary: *mut ArrowArray,
}

/// The `release` callback of exported arrays, which frees the [`ArrayOwner`].
unsafe extern "C" fn release(array: *mut ArrowArray) {
    // SAFETY: `export` leaked the boxes. A consumer that has moved a child has cleared its `release`, but not freed its struct.
    unsafe {
        let array_owner = Box::from_raw((*array).private_data.cast::<ArrayOwner>());
        for child in array_owner
            .children
            .iter()
            .copied()
            .chain([array_owner.dictionary])
            .filter(|child| !child.is_null())
        {
            let mut child = Box::from_raw(child);
            Released::release(&mut *child);
        }
        (*array).release = None;
    }
}
