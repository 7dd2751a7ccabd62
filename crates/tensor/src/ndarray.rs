//! Conversions between tensors and arrays of the `ndarray` crate.
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use ndarray::{array, ArrayViewD};
//! use pteron_tensor::Tensor;
//!
//! let tensor = Tensor::try_from(array![[1.0f32, 2.0], [3.0, 4.0]].view())?;
//! let view = ArrayViewD::<f32>::try_from(&tensor)?;
//! assert_eq!(view[[1, 0]], 3.0);
//! # Ok(()) }
//! ```

use crate::{Element, Error, Result, Tensor, TensorMeta, TensorView};
use ::ndarray::{ArrayD, ArrayView, ArrayViewD, Dimension, IxDyn, ShapeBuilder};

impl<T: Element, D: Dimension> TryFrom<ArrayView<'_, T, D>> for Tensor {
    type Error = Error;

    /// A row-major copy of the elements.
    fn try_from(array: ArrayView<'_, T, D>) -> Result<Self> {
        let mut tensor = Tensor::zeros(TensorMeta::contiguous(T::DTYPE, array.shape())?)?;
        tensor.as_mut_slice::<T>()?.iter_mut().zip(array.iter()).for_each(|(to, from)| *to = *from);
        Ok(tensor)
    }
}

impl<'a, T: Element> TryFrom<TensorView<'a>> for ArrayViewD<'a, T> {
    type Error = Error;

    /// A view of the elements without copying, for any layout.
    fn try_from(tensor: TensorView<'a>) -> Result<Self> {
        let refused = || Error::SizeOverflow { shape: tensor.sizes().to_string() };
        let elements = tensor.storage::<T>()?;
        let shape = IxDyn(tensor.sizes()).strides(IxDyn(tensor.strides()));
        // An empty tensor may have strides that `ndarray` does not accept.
        if elements.is_empty() {
            return ArrayView::from_shape(IxDyn(tensor.sizes()), elements).map_err(|_| refused());
        }
        ArrayView::from_shape(shape, elements).map_err(|_| refused())
    }
}

impl<'a, T: Element> TryFrom<&'a Tensor> for ArrayViewD<'a, T> {
    type Error = Error;

    /// A view of the elements without copying, for any layout.
    fn try_from(tensor: &'a Tensor) -> Result<Self> {
        tensor.view().try_into()
    }
}

impl<T: Element> TryFrom<&Tensor> for ArrayD<T> {
    type Error = Error;

    /// A copy of the elements.
    fn try_from(tensor: &Tensor) -> Result<Self> {
        Ok(ArrayViewD::try_from(tensor)?.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DimOrder;
    use ::ndarray::{Array, Ix3};

    #[test]
    fn conversions_keep_the_elements_in_any_layout() {
        let array = Array::from_shape_fn(Ix3(2, 3, 4), |(i, j, k)| (100 * i + 10 * j + k) as i32);
        let t = Tensor::try_from(array.view()).unwrap();
        assert_eq!(t.to_vec::<i32>().unwrap(), array.iter().copied().collect::<Vec<_>>());
        assert_eq!(ArrayD::<i32>::try_from(&t).unwrap(), array.clone().into_dyn());
        let turned = Tensor::try_from(array.t()).unwrap();
        assert_eq!(**turned.sizes(), [4, 3, 2]);
        assert_eq!(turned.as_slice::<i32>().unwrap()[1], 100);
        let other = t.to_dim_order(DimOrder::new(&[2, 0, 1]).unwrap()).unwrap();
        assert_eq!(ArrayViewD::<i32>::try_from(&other).unwrap(), array.into_dyn());
    }

    #[test]
    fn empty_and_zero_dim_tensors_and_wrong_types() {
        let empty = Tensor::from_slice::<f32>(&[2, 0, 3], &[]).unwrap();
        assert_eq!(ArrayViewD::<f32>::try_from(&empty).unwrap().shape(), [2, 0, 3]);
        let scalar = Tensor::scalar(2.5f32).unwrap();
        assert_eq!(ArrayViewD::<f32>::try_from(&scalar).unwrap().first(), Some(&2.5));
        assert!(ArrayViewD::<f64>::try_from(&scalar).is_err());
    }
}
