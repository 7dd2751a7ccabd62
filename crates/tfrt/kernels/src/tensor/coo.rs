use super::{Dense, Element, Tensor, TensorShape, comma_separated, dtype_name, format_element};
use crate::kernels::{RegistryExt, object_value};
use pteron_bef::DType;
use pteron_host::{Chain, Fault, Frame, KernelRegistry, Value};
use std::fmt;

/// A sparse tensor in coordinate (COO) format: the indices and the values of the nonzero elements.
#[derive(Clone)]
pub(crate) struct Coo {
    shape: TensorShape,
    /// The indices of the nonzero elements: one row for each, with an index for each dimension of the tensor.
    indices: Dense,
    values: Dense,
}

impl Coo {
    pub(crate) fn shape(&self) -> &TensorShape {
        &self.shape
    }

    pub(crate) fn dtype(&self) -> DType {
        self.values.dtype
    }

    /// Converts the tensor to a scalar tensor; fails if it has several elements and one of them is nonzero.
    pub(crate) fn to_scalar(&self) -> Result<Tensor, Fault> {
        let size = self.dtype().element_size().unwrap_or(1) as usize;
        let value = match self.shape.element_count() {
            1 => self.values.buffer.bytes().get(..size).map(<[u8]>::to_vec),
            _ if self.values.shape.element_count() > 0 => {
                return Err("failed to convert coo tensor to scalar host tensor".into());
            }
            _ => None,
        };
        Ok(Tensor::Scalar(self.dtype(), self.shape.clone(), value.unwrap_or_else(|| vec![0; size])))
    }

    /// Converts the tensor to a dense one.
    pub(crate) fn to_dense(&self, frame: &Frame<'_>) -> Result<Dense, Fault> {
        match self.dtype() {
            DType::F32 => scatter_to_dense::<f32>(frame, self),
            _ => scatter_to_dense::<i32>(frame, self),
        }
    }
}

impl fmt::Display for Coo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dtype = self.values.dtype;
        let size = dtype.element_size().unwrap_or(1) as usize;
        let indices: Vec<i64> =
            self.indices.elements().map_or_else(|_| Vec::new(), |all| all.iter().collect());
        let bytes = self.values.buffer.bytes();
        let values = bytes.chunks_exact(size).map(|b| format_element(dtype, b));
        writeln!(
            f,
            "CooHostTensor dtype = {}, shape = {}, indices = [{}], values = [{}]",
            dtype_name(dtype),
            self.shape,
            comma_separated(indices),
            comma_separated(values)
        )
    }
}

fn coo_argument<'f>(frame: &'f Frame<'_>, index: usize) -> Result<&'f Coo, Fault> {
    match frame.object(index)? {
        Tensor::Coo(tensor) => Ok(tensor),
        _ => Err(Fault::invalid(format!("argument {index} is no sparse tensor"))),
    }
}

/// Collects the nonzero elements. Their indices are computed like in the reference, which divides by the outermost size
/// first; so they are wrong unless all sizes are equal.
fn from_dense<T: Element>(frame: &Frame<'_>, tensor: &Dense, rank: usize) -> Result<Value, Fault> {
    let dims = tensor.shape.dims();
    if dims.len() != rank {
        return Err(Fault::invalid(format!("a tensor of shape {}, expected rank {rank}", tensor.shape)));
    }
    let elements = tensor.elements::<T>()?;
    // What the lists below take until the tensors are made.
    let count = elements.iter().filter(|v| !v.is_zero()).count();
    let bytes = count.saturating_mul(T::SIZE.saturating_add(dims.len().saturating_mul(size_of::<i64>())));
    let _charge = frame.context().charge(bytes as u64)?;
    let (mut indices, mut values) = (Vec::new(), Vec::new());
    for (i, value) in elements.iter().enumerate().filter(|(_, v)| !v.is_zero()) {
        let mut rest = i as i64;
        let start = indices.len();
        for &dim in dims {
            indices.push(rest % dim);
            rest /= dim;
        }
        indices[start..].reverse();
        values.push(value);
    }
    let count = values.len() as i64;
    let indices = Dense::from_elements(frame, TensorShape::new(vec![count, rank as i64])?, indices)?;
    let values = Dense::from_elements(frame, TensorShape::new(vec![count])?, values)?;
    Ok(object_value(Tensor::Coo(Coo { shape: tensor.shape.clone(), indices, values })))
}

/// Stores the values at their indices; values out of bounds are skipped.
fn scatter_to_dense<T: Element>(frame: &Frame<'_>, tensor: &Coo) -> Result<Dense, Fault> {
    let dense = Dense::zeros::<T>(frame, tensor.shape.clone())?;
    let (dims, indices) = (tensor.shape.dims(), tensor.indices.elements::<i64>()?);
    let values = tensor.values.elements::<T>()?;
    dense.buffer.write(frame, |bytes| {
        for (i, value) in values.iter().enumerate() {
            let row = (0..dims.len()).map(|d| indices.at(i * dims.len() + d));
            let offset = row
                .zip(dims)
                .fold(0i64, |offset, (index, &dim)| offset.wrapping_mul(dim).wrapping_add(index));
            let place = usize::try_from(offset).ok().and_then(|o| bytes.chunks_exact_mut(T::SIZE).nth(o));
            if let Some(place) = place {
                value.write(place);
            }
        }
    })?;
    Ok(dense)
}

fn register_kernels<T: Element>(registry: &mut KernelRegistry, name: &str) {
    for rank in 0..=3 {
        registry.add_fallible(
            &format!("coo.convert_dht_to_coo.{name}.{rank}"),
            move |frame: &mut Frame<'_>| {
                Ok((from_dense::<T>(frame, super::dense::dense_argument(frame, 0)?, rank)?, Chain))
            },
        );
        registry.add_fallible(&format!("coo.convert_coo_to_dht.{name}.{rank}"), |frame: &mut Frame<'_>| {
            Ok((super::dense::dense_value(scatter_to_dense::<T>(frame, coo_argument(frame, 0)?)?), Chain))
        });
        registry.add_fallible(&format!("coo.tensor_equal.{name}.{rank}"), |frame: &mut Frame<'_>| {
            let (a, b) = (coo_argument(frame, 0)?, coo_argument(frame, 1)?);
            let equal = a.values.equals::<T>(&b.values, |x, y| x.is_close(y, 2))?
                && a.indices.equals::<i64>(&b.indices, |x, y| x == y)?;
            Ok((equal, Chain))
        });
    }
}

pub(super) fn register(registry: &mut KernelRegistry) {
    register_kernels::<f32>(registry, "f32");
    register_kernels::<i32>(registry, "i32");
}
