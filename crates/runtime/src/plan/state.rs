//! The values of a method and their memory.

use super::value::{Id, Storage, Value};
use crate::error::ExecuteError;
use crate::open::ConstantBytes;
use pteron_operator::Error as KernelError;
use pteron_tensor::{Arenas, Extent, Tensor, TensorMeta, TensorView};

type Result<T, E = ExecuteError> = std::result::Result<T, E>;

/// The memory and the values of a method.
pub(crate) struct State {
    pub(crate) values: Vec<Value>,
    pub(crate) arenas: Arenas,
    /// The bytes of each constant tensor, aligned for its type.
    pub(crate) constants: Vec<ConstantBytes>,
}

impl State {
    /// An owned copy of a tensor.
    pub(crate) fn copy_tensor(&self, id: Id) -> Result<Tensor> {
        Ok(self.view(id)?.to_tensor()?)
    }

    /// Makes `to` a view of the bytes of `of`, with these sizes.
    pub(crate) fn make_view(&mut self, to: Id, of: Id, sizes: &[usize]) -> Result<()> {
        let (storage, dtype, nbytes) = match self.values[of].tensor() {
            Some(t) => (t.storage, t.meta.dtype(), t.meta.nbytes()),
            None => return Err(ExecuteError::NoMemory(of)),
        };
        let Some(t) = self.values[to].tensor_mut() else {
            return Err(KernelError::invalid(format!("value {to} is made a view but is not a tensor")).into());
        };
        let mut meta = t.meta.clone();
        meta.resize(sizes)?;
        if meta.dtype() != dtype || meta.nbytes() != nbytes {
            return Err(KernelError::invalid(format!(
                "a view {meta} of {nbytes} bytes of {dtype}: a view must have the type and size of what it views"
            ))
            .into());
        }
        (t.meta, t.storage) = (meta, storage);
        Ok(())
    }

    /// A read-only view of a tensor.
    pub(crate) fn view(&self, id: Id) -> Result<TensorView<'_>> {
        let t = self.values[id].tensor().ok_or(ExecuteError::NoMemory(id))?;
        let bytes = match t.storage {
            Storage::Arena(extent) => self.arenas.bytes(used_extent(extent, &t.meta))?,
            Storage::Constant(c) => constant_bytes(&self.constants, c, &t.meta)?,
            Storage::Nowhere => return Err(ExecuteError::NoMemory(id)),
        };
        Ok(TensorView::new(&t.meta, bytes)?)
    }

    /// A copy for another instance of the method, which shares the constants.
    pub(crate) fn fork(&self) -> crate::Result<Self> {
        Ok(Self {
            values: self.values.clone(),
            arenas: self.arenas.try_clone()?,
            constants: self.constants.clone(),
        })
    }
}

/// The part of an extent that the tensor's current sizes use.
pub(crate) fn used_extent(extent: Extent, meta: &TensorMeta) -> Extent {
    Extent { len: meta.nbytes(), ..extent }
}

/// The first bytes of a constant, as many as a tensor with this meta has.
pub(crate) fn constant_bytes<'a>(
    constants: &'a [ConstantBytes],
    index: usize,
    meta: &TensorMeta,
) -> Result<&'a [u8]> {
    let bytes: &[u8] = &constants[index];
    bytes.get(..meta.nbytes()).ok_or_else(|| {
        pteron_tensor::Error::WrongByteCount { expected: meta.nbytes(), found: bytes.len() }.into()
    })
}
