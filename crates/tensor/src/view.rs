use crate::{AlignedBuffer, DimOrder, Element, Error, Result, ScalarType, Shape, TensorMeta, memory};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

fn expect_type<T: Element>(dtype: ScalarType) -> Result<()> {
    if dtype == T::DTYPE { Ok(()) } else { Err(Error::WrongType { expected: T::DTYPE, found: dtype }) }
}

macro_rules! meta_accessors {
    () => {
        /// Type, sizes and layout.
        pub fn meta(&self) -> &TensorMeta {
            &self.meta
        }
        /// The type of the elements.
        pub fn dtype(&self) -> ScalarType {
            self.meta.dtype()
        }
        /// The sizes, dimension 0 first, whatever the layout.
        pub fn sizes(&self) -> &Shape {
            self.meta.sizes()
        }
        /// The strides in elements.
        pub fn strides(&self) -> &Shape {
            self.meta.strides()
        }
        /// The dim order: the order of the dimensions in memory.
        pub fn dim_order(&self) -> &DimOrder {
            self.meta.dim_order()
        }
        /// The number of dimensions.
        pub fn rank(&self) -> usize {
            self.meta.rank()
        }
        /// The number of elements.
        pub fn numel(&self) -> usize {
            self.meta.numel()
        }
        /// The number of bytes.
        pub fn nbytes(&self) -> usize {
            self.meta.nbytes()
        }
    };
}

/// A read-only view of a tensor: its type, shape and bytes.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    meta: &'a TensorMeta,
    data: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// A view of `data`, whose length must be exactly the tensor's byte count.
    pub fn new(meta: &'a TensorMeta, data: &'a [u8]) -> Result<Self> {
        if data.len() != meta.nbytes() {
            return Err(Error::WrongByteCount { expected: meta.nbytes(), found: data.len() });
        }
        Ok(Self { meta, data })
    }

    meta_accessors!();

    /// The bytes, in storage order.
    pub fn bytes(&self) -> &'a [u8] {
        self.data
    }

    /// The elements in storage order: the first dimension of [`Self::dim_order`] is outermost.
    pub fn storage<T: Element>(&self) -> Result<&'a [T]> {
        expect_type::<T>(self.dtype())?;
        bytemuck::try_cast_slice(self.data).map_err(|_| Error::Misaligned { dtype: T::DTYPE })
    }

    /// The elements in row-major order of [`Self::sizes`]. Fails for any other layout: [`Self::to_vec`] copies the
    /// elements into row-major order, [`Self::storage`] gives them in storage order.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        self.meta.require_row_major()?;
        self.storage()
    }

    /// A copy of the elements in row-major order of [`Self::sizes`], whatever the layout.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        if self.meta.is_row_major() {
            return memory::copied(self.storage::<T>()?);
        }
        memory::copied(self.to_tensor()?.to_dim_order(DimOrder::contiguous(self.rank()))?.storage::<T>()?)
    }

    /// An owned copy.
    pub fn to_tensor(&self) -> Result<Tensor> {
        Ok(Tensor { meta: self.meta.clone(), data: AlignedBuffer::from_slice(self.data)? })
    }
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorView({})", self.meta)
    }
}

/// A writable view of a tensor: its type, shape and bytes. The sizes may change within the capacity of the
/// bytes; bytes beyond the current sizes are not visible as elements.
pub struct TensorViewMut<'a> {
    meta: &'a mut TensorMeta,
    data: &'a mut [u8],
    /// The flag that [`Self::resize`] and [`Self::reshape`] set; `None` if the caller does not need it.
    resized: Option<&'a AtomicBool>,
}

impl<'a> TensorViewMut<'a> {
    /// A view of `data`, which must hold at least the tensor's byte count; the rest is spare capacity.
    pub fn new(meta: &'a mut TensorMeta, data: &'a mut [u8]) -> Result<Self> {
        if data.len() < meta.nbytes() {
            return Err(Error::WrongByteCount { expected: meta.nbytes(), found: data.len() });
        }
        Ok(Self { meta, data, resized: None })
    }

    /// Sets `resized` whenever this view or one borrowed from it is resized, even if its sizes stay the same.
    #[must_use]
    pub fn with_resize_flag(self, resized: &'a AtomicBool) -> Self {
        Self { resized: Some(resized), ..self }
    }

    meta_accessors!();

    /// The number of bytes that the tensor may grow to.
    pub fn capacity(&self) -> usize {
        self.data.len()
    }

    /// All bytes, including the spare capacity.
    pub fn all_bytes(&self) -> &[u8] {
        self.data
    }

    /// Changes the sizes. The rank must stay the same; the dynamism and the capacity must allow the new sizes.
    pub fn resize(&mut self, sizes: &[usize]) -> Result<()> {
        if **self.sizes() == *sizes {
            self.mark_resized();
            return Ok(());
        }
        let mut new = self.meta.clone();
        new.resize(sizes)?;
        self.set_meta(new)
    }

    /// Like [`Self::resize`], but ignores the dynamism.
    pub fn reshape(&mut self, sizes: &[usize]) -> Result<()> {
        let mut new = self.meta.clone();
        new.reshape(sizes)?;
        self.set_meta(new)
    }

    fn set_meta(&mut self, new: TensorMeta) -> Result<()> {
        if new.nbytes() > self.data.len() {
            return Err(self.meta.resize_error(new.sizes(), "the memory planned for it is too small"));
        }
        *self.meta = new;
        self.mark_resized();
        Ok(())
    }

    fn mark_resized(&self) {
        if let Some(resized) = self.resized {
            resized.store(true, Ordering::Relaxed);
        }
    }

    /// A read-only view of the same tensor.
    pub fn as_view(&self) -> TensorView<'_> {
        TensorView { meta: self.meta, data: &self.data[..self.meta.nbytes()] }
    }

    /// A view of the same tensor with a shorter lifetime.
    pub fn reborrow(&mut self) -> TensorViewMut<'_> {
        TensorViewMut { meta: self.meta, data: self.data, resized: self.resized }
    }

    /// The bytes, in storage order.
    pub fn bytes(&self) -> &[u8] {
        &self.data[..self.meta.nbytes()]
    }

    /// The mutable bytes, in storage order.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        let n = self.meta.nbytes();
        &mut self.data[..n]
    }

    /// The elements in row-major order of [`Self::sizes`]. Fails for any other layout.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.meta.require_row_major()?;
        self.storage()
    }

    /// The mutable elements in row-major order of [`Self::sizes`]. Fails for any other layout.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.meta.require_row_major()?;
        self.storage_mut()
    }

    /// The elements in storage order: the first dimension of [`Self::dim_order`] is outermost.
    pub fn storage<T: Element>(&self) -> Result<&[T]> {
        self.as_view().storage()
    }

    /// The mutable elements in storage order.
    pub fn storage_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        expect_type::<T>(self.dtype())?;
        bytemuck::try_cast_slice_mut(self.bytes_mut()).map_err(|_| Error::Misaligned { dtype: T::DTYPE })
    }

    /// The meta together with the mutable elements in storage order.
    pub fn split_mut<T: Element>(&mut self) -> Result<(&TensorMeta, &mut [T])> {
        expect_type::<T>(self.dtype())?;
        let n = self.meta.nbytes();
        let data = bytemuck::try_cast_slice_mut(&mut self.data[..n])
            .map_err(|_| Error::Misaligned { dtype: T::DTYPE })?;
        Ok((self.meta, data))
    }
}

impl fmt::Debug for TensorViewMut<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorViewMut({})", self.meta)
    }
}

/// A tensor that owns its bytes.
#[derive(Clone)]
pub struct Tensor {
    meta: TensorMeta,
    data: AlignedBuffer,
}

impl Tensor {
    /// A tensor whose bytes are all zero.
    pub fn zeros(meta: TensorMeta) -> Result<Self> {
        let data = AlignedBuffer::zeroed(meta.nbytes())?;
        Ok(Self { meta, data })
    }

    /// A tensor with a copy of `bytes`, which must be in the storage order of `meta`.
    pub fn from_bytes(meta: TensorMeta, bytes: &[u8]) -> Result<Self> {
        TensorView::new(&meta, bytes)?.to_tensor()
    }

    /// A row-major tensor with a copy of `elements`.
    pub fn from_slice<T: Element>(sizes: &[usize], elements: &[T]) -> Result<Self> {
        Self::from_bytes(TensorMeta::contiguous(T::DTYPE, sizes)?, bytemuck::cast_slice(elements))
    }

    /// A zero-dim tensor.
    pub fn scalar<T: Element>(value: T) -> Result<Self> {
        Self::from_slice(&[], &[value])
    }

    meta_accessors!();

    /// The tensor's type, sizes and layout, and its buffer, which may be larger than they require.
    pub fn into_parts(self) -> (TensorMeta, AlignedBuffer) {
        (self.meta, self.data)
    }

    /// The bytes, in storage order.
    pub fn bytes(&self) -> &[u8] {
        &self.data[..self.meta.nbytes()]
    }

    /// The elements in row-major order of [`Self::sizes`]. Fails for any other layout: [`Self::to_vec`] copies the
    /// elements into row-major order, [`Self::storage`] gives them in storage order.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.meta.require_row_major()?;
        self.storage()
    }

    /// The mutable elements in row-major order of [`Self::sizes`]. Fails for any other layout, as [`Self::as_slice`]
    /// does.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.meta.require_row_major()?;
        self.storage_mut()
    }

    /// A copy of the elements in row-major order of [`Self::sizes`], whatever the layout.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        self.view().to_vec()
    }

    /// The elements in storage order: the first dimension of [`Self::dim_order`] is outermost.
    pub fn storage<T: Element>(&self) -> Result<&[T]> {
        self.view().storage()
    }

    /// The mutable elements in storage order.
    pub fn storage_mut<T: Element>(&mut self) -> Result<&mut [T]> {
        expect_type::<T>(self.meta.dtype())?;
        bytemuck::try_cast_slice_mut(&mut self.data[..self.meta.nbytes()])
            .map_err(|_| Error::Misaligned { dtype: T::DTYPE })
    }

    /// A read-only view.
    pub fn view(&self) -> TensorView<'_> {
        TensorView { meta: &self.meta, data: self.bytes() }
    }

    /// A writable view. It may grow to the capacity of the tensor's buffer.
    pub fn view_mut(&mut self) -> TensorViewMut<'_> {
        TensorViewMut { meta: &mut self.meta, data: &mut self.data, resized: None }
    }

    /// A copy of the tensor in another dim order; its sizes are static.
    pub fn to_dim_order(&self, order: DimOrder) -> Result<Tensor> {
        let meta = TensorMeta::new(self.dtype(), self.sizes(), order)?;
        let mut new = Tensor::zeros(meta)?;
        self.view().relayout(&mut new.view_mut())?;
        Ok(new)
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({})", self.meta)
    }
}

impl TensorView<'_> {
    /// Copies the elements into `out`, which must have the same type and sizes; the layouts may differ.
    pub fn relayout(&self, out: &mut TensorViewMut<'_>) -> Result<()> {
        if self.dtype() != out.dtype() {
            return Err(Error::WrongType { expected: out.dtype(), found: self.dtype() });
        }
        if self.sizes() != out.sizes() {
            return Err(out.meta.resize_error(self.sizes(), "a copy needs tensors of the same sizes"));
        }
        let size = self.dtype().size();
        let (src, dst) = (self.data, &mut out.data[..self.meta.nbytes()]);
        if self.dim_order().same_layout(out.meta.dim_order(), self.sizes()) {
            dst.copy_from_slice(src);
            return Ok(());
        }
        let sizes = *self.sizes();
        let (from, to) = (*self.strides(), *out.meta.strides());
        let mut index = [0usize; crate::MAX_RANK];
        let (mut a, mut b) = (0usize, 0usize);
        for _ in 0..self.numel() {
            dst[b * size..][..size].copy_from_slice(&src[a * size..][..size]);
            for d in (0..sizes.rank()).rev() {
                index[d] += 1;
                a += from[d];
                b += to[d];
                if index[d] < sizes[d] {
                    break;
                }
                a -= from[d] * sizes[d];
                b -= to[d] * sizes[d];
                index[d] = 0;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ShapeDynamism;

    #[test]
    fn typed_access_checks_the_type() {
        let t = Tensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
        assert_eq!(t.as_slice::<f32>().unwrap(), &[1.0, 2.0]);
        assert_eq!(
            t.as_slice::<i32>(),
            Err(Error::WrongType { expected: ScalarType::Int, found: ScalarType::Float })
        );
    }

    #[test]
    fn relayout_to_channels_last_and_back() {
        let data: Vec<i32> = (0..24).collect();
        let t = Tensor::from_slice(&[1, 2, 3, 4], &data).unwrap();
        let cl = t.to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert_eq!(&cl.storage::<i32>().unwrap()[..4], &[0, 12, 1, 13]);
        let back = cl.to_dim_order(DimOrder::contiguous(4)).unwrap();
        assert_eq!(back.as_slice::<i32>().unwrap(), data);
    }

    #[test]
    fn slices_are_row_major_or_refused() {
        let data: Vec<i32> = (0..24).collect();
        let t = Tensor::from_slice(&[1, 2, 3, 4], &data).unwrap();
        let mut cl = t.to_dim_order(DimOrder::channels_last(4)).unwrap();
        let refused = cl.as_slice::<i32>().unwrap_err();
        assert_eq!(cl.as_mut_slice::<i32>().unwrap_err(), refused);
        assert_eq!(
            refused.to_string(),
            "the elements of int32[1, 2, 3, 4] in dim order [0, 2, 3, 1] are not in row-major order: `to_vec` \
             copies them in that order, `to_dim_order` converts, `storage` gives them in storage order"
        );
        assert_eq!(cl.to_vec::<i32>().unwrap(), data);
        assert_eq!(t.to_vec::<i32>().unwrap(), data);
        assert!(cl.to_vec::<f32>().is_err());
        // If all sizes but one are 1, every dim order is row-major.
        let line = Tensor::from_slice(&[1, 3, 1, 1], &[1, 2, 3]).unwrap();
        let line = line.to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert_eq!(line.as_slice::<i32>().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn resize_stays_within_capacity_and_dynamism() {
        let mut buf = AlignedBuffer::zeroed(32).unwrap();
        let mut meta = TensorMeta::contiguous(ScalarType::Float, &[2, 4]).unwrap();
        let mut v = TensorViewMut::new(&mut meta, &mut buf).unwrap();
        assert!(v.resize(&[1, 4]).is_err());
        let mut meta = TensorMeta::contiguous(ScalarType::Float, &[2, 4])
            .unwrap()
            .with_dynamism(ShapeDynamism::DynamicBound);
        let mut v = TensorViewMut::new(&mut meta, &mut buf).unwrap();
        v.resize(&[1, 4]).unwrap();
        assert_eq!(v.bytes().len(), 16);
        v.resize(&[2, 4]).unwrap();
        assert!(v.resize(&[3, 4]).is_err());
        assert!(v.resize(&[8]).is_err());
        assert_eq!(&**v.sizes(), &[2, 4]);
    }
}
