use super::buffer::Bytes;
use super::{Buffer, Element, Tensor, TensorShape, comma_separated, dtype_name, format_element};
use crate::kernels::{RegistryExt, object_value, out};
use half::{bf16, f16};
use num_complex::Complex;
use pteron_bef::{DType, Dense as DenseAttribute};
use pteron_host::{Bf16Bits, Chain, F16Bits, Fault, Frame, FromValue, KernelRegistry, Value};
use std::fmt;
use std::marker::PhantomData;

/// Maximum number of elements of a dense tensor that are printed.
const MAX_PRINTED: usize = 16;

/// A dense row-major tensor. Its memory may be shared with other tensors.
#[derive(Clone)]
pub(crate) struct Dense {
    pub(crate) dtype: DType,
    pub(crate) shape: TensorShape,
    pub(crate) buffer: Buffer,
}

impl Dense {
    /// A tensor of zeros.
    pub(crate) fn zeros<T: Element>(frame: &Frame<'_>, shape: TensorShape) -> Result<Self, Fault> {
        Self::zeros_of(frame, T::DTYPE, T::SIZE, shape)
    }

    fn zeros_of(frame: &Frame<'_>, dtype: DType, size: usize, shape: TensorShape) -> Result<Self, Fault> {
        let bytes = shape.element_count().saturating_mul(size as u64);
        Ok(Self { dtype, buffer: Buffer::new(frame, bytes)?, shape })
    }

    /// A tensor of these elements, in row-major order; their number must be the shape's.
    pub(crate) fn from_elements<T: Element>(
        frame: &Frame<'_>,
        shape: TensorShape,
        elements: impl IntoIterator<Item = T>,
    ) -> Result<Self, Fault> {
        let mut elements = elements.into_iter();
        Self::from_bytes_by(frame, T::DTYPE, T::SIZE, shape, &mut |bytes| {
            let places = bytes.chunks_exact_mut(T::SIZE);
            // `zip` asks for the place first, so that no element is taken for which there is no place.
            let count = places.zip(elements.by_ref()).map(|(place, element)| element.write(place)).count();
            [count, elements.by_ref().count()]
        })
    }

    /// A tensor of elements of `size` bytes that `write` writes; it returns how many it wrote, and how many are left.
    fn from_bytes_by(
        frame: &Frame<'_>,
        dtype: DType,
        size: usize,
        shape: TensorShape,
        write: &mut dyn FnMut(&mut [u8]) -> [usize; 2],
    ) -> Result<Self, Fault> {
        let tensor = Self::zeros_of(frame, dtype, size, shape)?;
        let [mut count, mut left] = [0; 2];
        tensor.buffer.write(frame, |bytes| [count, left] = write(bytes))?;
        if (count as u64, left) != (tensor.shape.element_count(), 0) {
            let (count, shape) = (count + left, tensor.shape);
            return Err(Fault::invalid(format!("{count} elements for a tensor of shape {shape}")));
        }
        Ok(tensor)
    }

    /// The tensor that an attribute holds.
    pub(crate) fn from_attribute(frame: &Frame<'_>, attribute: &DenseAttribute<'_>) -> Result<Self, Fault> {
        let shape = TensorShape::new(attribute.dims().to_vec())?;
        let buffer = Buffer::from_attribute_bytes(frame, attribute.bytes())?;
        Ok(Self { dtype: attribute.dtype(), shape, buffer })
    }

    fn check_dtype<T: Element>(&self) -> Result<(), Fault> {
        self.check_dtype_of(T::DTYPE, T::SIZE)
    }

    fn check_dtype_of(&self, dtype: DType, size: usize) -> Result<(), Fault> {
        let expected = self.shape.element_count().saturating_mul(size as u64);
        if self.dtype == dtype && self.buffer.len() as u64 == expected {
            return Ok(());
        }
        let (actual, expected) = (dtype_name(self.dtype), dtype_name(dtype));
        Err(Fault::invalid(format!("a tensor of {actual}, expected {expected}")))
    }

    /// The current elements.
    pub(crate) fn elements<T: Element>(&self) -> Result<Elements<T>, Fault> {
        self.check_dtype::<T>()?;
        Ok(Elements { bytes: self.buffer.bytes(), element: PhantomData })
    }

    /// Sets the elements to `values`, in row-major order; elements beyond the number of values are unchanged.
    pub(crate) fn fill<T: Element>(
        &self,
        frame: &Frame<'_>,
        values: impl IntoIterator<Item = T>,
    ) -> Result<(), Fault> {
        self.check_dtype::<T>()?;
        self.buffer.write(frame, |bytes| {
            bytes.chunks_exact_mut(T::SIZE).zip(values).for_each(|(b, v)| v.write(b));
        })
    }

    /// Whether two tensors have the same type and shape, and `same` holds for every pair of elements.
    pub(crate) fn equals<T: Element>(
        &self,
        other: &Dense,
        same: impl Fn(T, T) -> bool,
    ) -> Result<bool, Fault> {
        if self.dtype != other.dtype || self.shape != other.shape {
            return Ok(false);
        }
        let (a, b) = (self.elements::<T>()?, other.elements::<T>()?);
        Ok(a.iter().zip(b.iter()).all(|(x, y)| same(x, y)))
    }
}

/// The elements of a tensor, read without copying.
pub(crate) struct Elements<T> {
    bytes: Bytes,
    element: PhantomData<T>,
}

impl<T: Element> Elements<T> {
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() / T::SIZE
    }

    /// The element at an index that is less than [`Self::len`].
    pub(crate) fn at(&self, index: usize) -> T {
        T::read(&self.bytes[index * T::SIZE..][..T::SIZE])
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = T> {
        self.bytes.chunks_exact(T::SIZE).map(T::read)
    }
}

impl fmt::Display for Dense {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.dtype.element_size().unwrap_or(1) as usize;
        let bytes = self.buffer.bytes();
        let values = bytes.chunks_exact(size).take(MAX_PRINTED).map(|b| format_element(self.dtype, b));
        let more = if self.shape.element_count() > MAX_PRINTED as u64 { ", ... " } else { "" };
        let (name, shape) = (dtype_name(self.dtype), &self.shape);
        write!(
            f,
            "DenseHostTensor dtype = {name}, shape = {shape}, values = [{}{more}]",
            comma_separated(values)
        )
    }
}

/// An argument that is a dense tensor.
pub(crate) fn dense_argument<'f>(frame: &'f Frame<'_>, index: usize) -> Result<&'f Dense, Fault> {
    match frame.object(index)? {
        Tensor::Dense(tensor) => Ok(tensor),
        _ => Err(Fault::invalid(format!("argument {index} is no dense tensor"))),
    }
}

/// A dense tensor as a result value.
pub(crate) fn dense_value(tensor: Dense) -> Value {
    object_value(Tensor::Dense(tensor))
}

/// An element type that can be decoded from a kernel's attributes.
trait Attributes: Element {
    fn scalar_attribute(frame: &Frame<'_>, index: usize) -> Result<Self, Fault>;
    fn array_attribute(frame: &Frame<'_>, index: usize) -> Result<Vec<Self>, Fault>;
}

macro_rules! attributes {
    ($($ty:ty, $attribute:ty, $from:expr;)*) => {$(
        impl Attributes for $ty {
            fn scalar_attribute(frame: &Frame<'_>, index: usize) -> Result<Self, Fault> {
                frame.attribute::<$attribute>(index).map($from)
            }
            fn array_attribute(frame: &Frame<'_>, index: usize) -> Result<Vec<Self>, Fault> {
                Ok(frame.attribute::<Vec<$attribute>>(index)?.into_iter().map($from).collect())
            }
        }
    )*};
}

attributes! {
    u8, u8, |v| v; u32, u32, |v| v; u64, u64, |v| v;
    i8, i8, |v| v; i32, i32, |v| v; i64, i64, |v| v;
    f32, f32, |v| v; f64, f64, |v| v; bool, bool, |v| v;
    f16, F16Bits, |v: F16Bits| f16::from_bits(v.0);
    bf16, Bf16Bits, |v: Bf16Bits| bf16::from_bits(v.0);
}

macro_rules! complex_attributes {
    ($ty:ty) => {
        impl Attributes for Complex<$ty> {
            /// A complex number: an array of its real and its imaginary part.
            fn scalar_attribute(frame: &Frame<'_>, index: usize) -> Result<Self, Fault> {
                match Self::array_attribute(frame, index)?.as_slice() {
                    [one] => Ok(*one),
                    other => Err(Fault::invalid(format!("{} complex numbers, expected one", other.len()))),
                }
            }

            /// Complex numbers: an array of alternating real and imaginary parts.
            fn array_attribute(frame: &Frame<'_>, index: usize) -> Result<Vec<Self>, Fault> {
                let parts: Vec<$ty> = frame.attribute(index)?;
                Ok(parts.as_chunks::<2>().0.iter().map(|&[re, im]| Complex::new(re, im)).collect())
            }
        }
    };
}

complex_attributes!(f32);
complex_attributes!(f64);

fn set_constants<T: Attributes>(frame: &Frame<'_>) -> Result<(), Fault> {
    let tensor = dense_argument(frame, 0)?;
    let values = T::array_attribute(frame, 0)?;
    let expected = tensor.shape.element_count();
    if values.len() as u64 != expected {
        let count = values.len();
        return Err(
            format!("Incorrect number of values for the tensor: {count}, but expected {expected}").into()
        );
    }
    tensor.fill(frame, values)
}

fn from_buffer<T: Element>(frame: &Frame<'_>, kernel: &str) -> Result<Value, Fault> {
    let (buffer, shape) = (frame.object::<Buffer>(0)?, frame.object::<TensorShape>(1)?);
    if buffer.len() as u64 != shape.element_count().saturating_mul(T::SIZE as u64) {
        return Err(Fault::from(format!(
            "{kernel} failed: buffer_size ({}) is not equal to the number of elements in shape ({shape}) \
             times element size ({})",
            buffer.len(),
            T::SIZE
        )));
    }
    Ok(dense_value(Dense { dtype: T::DTYPE, shape: shape.clone(), buffer: buffer.clone() }))
}

fn create<T: Attributes>(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let shape = TensorShape::new(frame.attribute(0)?)?;
    let values = T::array_attribute(frame, 1)?;
    if let [one] = values[..] {
        let tensor = Dense::zeros::<T>(frame, shape)?;
        tensor.fill(frame, std::iter::repeat(one))?;
        return Ok(dense_value(tensor));
    }
    Ok(dense_value(Dense::from_elements(frame, shape, values)?))
}

fn register_creation<T: Attributes>(registry: &mut KernelRegistry, name: &str) {
    for dialect in ["tfrt_dht", "tfrt_dht_sync"] {
        for rank in 0..=5 {
            let kernel = format!("{dialect}.create_uninitialized_tensor.{name}.{rank}");
            registry.add_fallible(&kernel, move |frame: &mut Frame<'_>| {
                let shape = TensorShape::new(frame.attribute(0)?)?;
                if shape.rank() != rank {
                    return Err(Fault::invalid(format!("the shape {shape} is not of rank {rank}")));
                }
                Ok(dense_value(Dense::zeros::<T>(frame, shape)?))
            });
        }
    }
    registry.add_fallible(&format!("tfrt_dht_sync.create_dense_tensor.{name}"), create::<T>);
    registry.add_fallible(&format!("tfrt_dht_sync.create_from_scalar.{name}"), |frame: &mut Frame<'_>| {
        let shape = TensorShape::new(frame.attribute(0)?)?;
        let mut bytes = vec![0; T::SIZE];
        T::scalar_attribute(frame, 1)?.write(&mut bytes);
        Ok(object_value(Tensor::Scalar(T::DTYPE, shape, bytes)))
    });
    registry.add_fallible(&format!("tfrt_dht.fill_tensor_with_constant.{name}"), |frame: &mut Frame<'_>| {
        dense_argument(frame, 0)?.fill(frame, std::iter::repeat(T::scalar_attribute(frame, 0)?))?;
        Ok(Chain)
    });
    registry.add_fallible(
        &format!("tfrt_dht.set_tensor_with_constant_values.{name}"),
        |frame: &mut Frame<'_>| set_constants::<T>(frame).map(|()| Chain),
    );
    let sync = format!("tfrt_dht_sync.set_tensor_with_constant_values.{name}");
    registry.add_fallible(&sync, |frame: &mut Frame<'_>| set_constants::<T>(frame));
    registry.add_fallible(&format!("tfrt_dht.make_tensor.{name}"), |frame: &mut Frame<'_>| {
        Ok((from_buffer::<T>(frame, "dht.make_tensor")?, Chain))
    });
    registry.add_fallible(&format!("tfrt_dht_sync.make_tensor.{name}"), |frame: &mut Frame<'_>| {
        from_buffer::<T>(frame, "tfrt_dht_sync.make_tensor")
    });
}

/// Registers a kernel that takes `(tensor, chain, values...)` and sets the tensor's elements to the values.
fn register_set_values<T: Element + FromValue>(registry: &mut KernelRegistry, name: &str) {
    registry.add_fallible(&format!("tfrt_dht.set_tensor_with_values.{name}"), |frame: &mut Frame<'_>| {
        let tensor = dense_argument(frame, 0)?;
        let (count, expected) = (frame.arguments().saturating_sub(2), tensor.shape.element_count());
        if count as u64 != expected {
            let message =
                format!("Incorrect number of values for the tensor: {count}, but expected {expected}");
            return Err(message.into());
        }
        let values = (2..frame.arguments()).map(|i| frame.get::<T>(i)).collect::<Result<Vec<T>, _>>()?;
        tensor.fill(frame, values)?;
        Ok(Chain)
    });
}

fn register_comparison<T: Element>(registry: &mut KernelRegistry, name: &str) {
    registry.add_fallible(&format!("tfrt_dht.tensor_equal.{name}"), |frame: &mut Frame<'_>| {
        Ok((dense_argument(frame, 0)?.equals::<T>(dense_argument(frame, 1)?, |a, b| a == b)?, Chain))
    });
    for (infix, ulp) in
        [("", 2), ("3ulp.", 3), ("1000ulp.", 1000), ("2000ulp.", 2000), ("100000ulp.", 100_000)]
    {
        registry.add_fallible(
            &format!("tfrt_dht.tensor_allclose.{infix}{name}"),
            move |frame: &mut Frame<'_>| {
                Ok((
                    dense_argument(frame, 0)?
                        .equals::<T>(dense_argument(frame, 1)?, |a, b| a.is_close(b, ulp))?,
                    Chain,
                ))
            },
        );
    }
}

/// Takes `(input, begin, chain, output)`: copies the slice of the input that starts at `begin` and has the output's
/// shape.
fn slice_in_place<T: Element>(frame: &mut Frame<'_>) -> Result<Chain, Fault> {
    let (input, begin, output) = (
        dense_argument(frame, 0)?,
        dense_argument(frame, 1)?.elements::<i64>()?.iter().collect::<Vec<_>>(),
        dense_argument(frame, 3)?,
    );
    let (from, to) = (input.shape.dims(), output.shape.dims());
    if begin.len() != from.len() || to.len() != from.len() {
        return Err("the size of 'begin_index' should match the input tensor rank".into());
    }
    let fits = |d: usize| begin[d] >= 0 && begin[d].checked_add(to[d]).is_some_and(|end| end <= from[d]);
    if !(0..from.len()).all(fits) {
        return Err(Fault::invalid("the slice reaches beyond the input"));
    }
    let elements = input.elements::<T>()?;
    let place = |mut i: usize| {
        let (mut offset, mut stride) = (0, 1);
        for d in (0..from.len()).rev() {
            let size = to[d] as usize;
            offset += (begin[d] as usize + i % size) * stride;
            i /= size;
            stride *= from[d] as usize;
        }
        elements.at(offset)
    };
    output.fill(frame, (0..output.shape.element_count() as usize).map(place))?;
    Ok(Chain)
}

fn allocate(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let (size, alignment) = (frame.get::<i64>(0)?, frame.get::<i64>(1)?);
    if size < 0 || alignment <= 0 || !(alignment as u64).is_power_of_two() {
        return Err(Fault::invalid(format!("a buffer of {size} bytes aligned to {alignment}")));
    }
    Ok(object_value(Buffer::new(frame, size as u64)?))
}

fn slice(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let (buffer, offset, size) = (frame.object::<Buffer>(0)?, frame.get::<i64>(1)?, frame.get::<i64>(2)?);
    let slice = buffer.slice(offset, size);
    let refuse = || Fault::invalid(format!("{size} bytes from {offset} on of a buffer of {}", buffer.len()));
    slice.map(object_value).ok_or_else(refuse)
}

fn print(frame: &mut Frame<'_>) -> Result<Chain, Fault> {
    out!(frame, "{}\n", frame.object::<Tensor>(0)?);
    Ok(Chain)
}

fn const_dense(frame: &mut Frame<'_>) -> Result<Value, Fault> {
    let attribute: &DenseAttribute<'_> = frame.attribute(0)?;
    Ok(dense_value(Dense::from_attribute(frame, attribute)?))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    macro_rules! types {
        ($($ty:ty, $name:literal;)*) => {$(
            register_creation::<$ty>(registry, $name);
            register_comparison::<$ty>(registry, $name);
        )*};
    }
    types! {
        u8, "ui8"; u32, "ui32"; u64, "ui64"; f32, "f32"; f64, "f64"; i8, "i8"; i32, "i32"; i64, "i64";
        bool, "bool"; Complex<f32>, "complex64"; Complex<f64>, "complex128"; f16, "f16"; bf16, "bf16";
    }
    register_set_values::<u8>(registry, "ui8");
    register_set_values::<u32>(registry, "ui32");
    register_set_values::<u64>(registry, "ui64");
    register_set_values::<f32>(registry, "f32");
    register_set_values::<f64>(registry, "f64");
    register_set_values::<i8>(registry, "i8");
    register_set_values::<i32>(registry, "i32");
    register_set_values::<i64>(registry, "i64");
    register_set_values::<bool>(registry, "bool");
    for dialect in ["tfrt_dht", "tfrt_dht_sync"] {
        registry.add_fallible(&format!("{dialect}.allocate_buffer"), allocate);
        registry.add_fallible(&format!("{dialect}.get_buffer_slice"), slice);
        registry.add_fallible(&format!("{dialect}.get_tensor_shape"), |frame: &mut Frame<'_>| {
            Ok(object_value(dense_argument(frame, 0)?.shape.clone()))
        });
    }
    registry.add_fallible("tfrt_dht.print_tensor", print);
    registry.add_fallible("tfrt_dht_sync.print_tensor", |frame: &mut Frame<'_>| print(frame).map(drop));
    registry.add_fallible("tfrt_dht.print_tensor_shape", |frame: &mut Frame<'_>| {
        out!(frame, "{}\n", dense_argument(frame, 0)?.shape);
        Ok(Chain)
    });
    registry
        .add_fallible("tfrt_dht.no_op_ht", |frame: &mut Frame<'_>| dense_argument(frame, 0).map(|_| Chain));
    registry.add_fallible("tfrt_dht.get_buffer", |frame: &mut Frame<'_>| {
        Ok((object_value(dense_argument(frame, 0)?.buffer.clone()), Chain))
    });
    registry.add_fallible("tfrt_dht.print_buffer", |frame: &mut Frame<'_>| {
        out!(frame, "{}\n", frame.object::<Buffer>(0)?);
        Ok(Chain)
    });
    registry.add_fallible("tfrt_test.slice_inplace.f32.3", slice_in_place::<f32>);
    registry.add_fallible("tfrt_test.slice_inplace.i32.3", slice_in_place::<i32>);
    registry.add_fallible("tfrt_test.const_dense_attr", const_dense);
    registry.add_fallible("tfrt_test.sync.const_dense_attr", const_dense);
}
