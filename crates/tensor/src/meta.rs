use crate::{DimOrder, Error, Result, ScalarType, Shape};
use std::fmt;

/// Whether a tensor's sizes may change at run time, and within which bounds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ShapeDynamism {
    /// The sizes are fixed.
    #[default]
    Static,
    /// The sizes may change; the sizes at load time are the upper bounds.
    DynamicBound,
}

/// Everything about a tensor except its bytes: type, sizes, layout.
///
/// Tensors are dense: the sizes and the dim order determine the strides.
#[derive(Clone, PartialEq, Eq)]
pub struct TensorMeta {
    dtype: ScalarType,
    dynamism: ShapeDynamism,
    dim_order: DimOrder,
    sizes: Shape,
    strides: Shape,
    numel: usize,
}

impl TensorMeta {
    /// The meta of a static tensor. The byte count must not overflow; the dim order must have the rank of the sizes.
    pub fn new(dtype: ScalarType, sizes: &[usize], dim_order: DimOrder) -> Result<Self> {
        let sizes = Shape::new(sizes)?;
        if dim_order.len() != sizes.rank() {
            return Err(Error::BadDimOrder { order: dim_order.to_vec(), rank: sizes.rank() });
        }
        let numel = checked_numel(dtype, &sizes)?;
        let strides = dim_order.strides(&sizes);
        Ok(Self { dtype, dynamism: ShapeDynamism::Static, dim_order, sizes, strides, numel })
    }

    /// The meta of a row-major tensor with a static shape.
    pub fn contiguous(dtype: ScalarType, sizes: &[usize]) -> Result<Self> {
        Self::new(dtype, sizes, DimOrder::contiguous(sizes.len()))
    }

    /// This meta with another dynamism.
    pub fn with_dynamism(mut self, dynamism: ShapeDynamism) -> Self {
        self.dynamism = dynamism;
        self
    }

    /// The type of the elements.
    pub fn dtype(&self) -> ScalarType {
        self.dtype
    }

    /// Whether the sizes may change.
    pub fn dynamism(&self) -> ShapeDynamism {
        self.dynamism
    }

    /// The sizes, dimension 0 first, whatever the layout.
    pub fn sizes(&self) -> &Shape {
        &self.sizes
    }

    /// The strides in elements.
    pub fn strides(&self) -> &Shape {
        &self.strides
    }

    /// The dim order: the order of the dimensions in memory.
    pub fn dim_order(&self) -> &DimOrder {
        &self.dim_order
    }

    /// The number of dimensions.
    pub fn rank(&self) -> usize {
        self.sizes.rank()
    }

    /// The number of elements.
    pub fn numel(&self) -> usize {
        self.numel
    }

    /// The number of bytes.
    pub fn nbytes(&self) -> usize {
        self.numel * self.dtype.size()
    }

    /// Whether the elements are stored in row-major order; the position of dimensions of size one does not matter.
    pub fn is_row_major(&self) -> bool {
        self.dim_order.is_contiguous()
            || self.dim_order.same_layout(&DimOrder::contiguous(self.rank()), &self.sizes)
    }

    pub(crate) fn require_row_major(&self) -> Result<()> {
        if self.is_row_major() {
            return Ok(());
        }
        Err(Error::NotRowMajor { tensor: self.to_string() })
    }

    /// Changes the sizes. The rank must stay the same and the dynamism must allow it.
    pub fn resize(&mut self, sizes: &[usize]) -> Result<()> {
        if *self.sizes == *sizes {
            return Ok(());
        }
        if self.dynamism == ShapeDynamism::Static {
            return Err(self.resize_error(sizes, "its shape is static"));
        }
        self.reshape(sizes)
    }

    /// Changes the sizes, ignoring the dynamism. The rank must stay the same.
    pub fn reshape(&mut self, sizes: &[usize]) -> Result<()> {
        if sizes.len() != self.rank() {
            return Err(self.resize_error(sizes, "the rank of a tensor cannot change"));
        }
        let sizes = Shape::new(sizes)?;
        self.numel = checked_numel(self.dtype, &sizes)?;
        self.strides = self.dim_order.strides(&sizes);
        self.sizes = sizes;
        Ok(())
    }

    pub(crate) fn resize_error(&self, sizes: &[usize], reason: &'static str) -> Error {
        Error::Resize { from: self.sizes.to_string(), to: format!("{sizes:?}"), reason }
    }
}

impl Default for TensorMeta {
    /// The meta of an empty, one-dimensional tensor of bytes.
    fn default() -> Self {
        Self {
            dtype: ScalarType::Byte,
            dynamism: ShapeDynamism::Static,
            dim_order: DimOrder::contiguous(1),
            sizes: Shape::new(&[0]).unwrap_or_default(),
            strides: Shape::new(&[1]).unwrap_or_default(),
            numel: 0,
        }
    }
}

impl fmt::Display for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.dtype, self.sizes)?;
        if !self.dim_order.is_contiguous() {
            write!(f, " in dim order {}", self.dim_order)?;
        }
        Ok(())
    }
}

impl fmt::Debug for TensorMeta {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The number of elements. Fails if the byte count does not fit `isize`, the limit of an allocation. As in PyTorch,
/// sizes of zero count as one in this check, so that neither strides nor the product of any of the sizes can overflow.
fn checked_numel(dtype: ScalarType, sizes: &Shape) -> Result<usize> {
    let stepped = sizes.iter().try_fold(dtype.size(), |bytes, &size| bytes.checked_mul(size.max(1)));
    match stepped {
        Some(bytes) if bytes <= isize::MAX as usize => sizes.numel(),
        _ => Err(Error::SizeOverflow { shape: sizes.to_string() }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_sizes_are_checked_for_empty_tensors_too() {
        let of = |sizes: &[usize]| TensorMeta::contiguous(ScalarType::Float, sizes);
        assert_eq!(of(&[0, 1 << 30, 1 << 30]).unwrap().numel(), 0);
        for sizes in [[0, 1 << 31, 1 << 31], [1 << 40, 0, 1 << 40], [usize::MAX, 1, 0]] {
            assert!(matches!(of(&sizes), Err(Error::SizeOverflow { .. })), "{sizes:?}");
        }
        let mut meta = of(&[0, 2, 2]).unwrap();
        assert!(meta.reshape(&[0, usize::MAX, 2]).is_err());
        assert_eq!(meta.sizes()[..], [0, 2, 2]);
    }
}
