use crate::ScalarType;
use half::{bf16, f16};
use num_complex::Complex;

/// A boolean element: one byte, true unless it is zero.
///
/// A byte from a file may have any value; Rust's own `bool` allows only 0 and 1.
#[derive(Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl Bool {
    /// The boolean as a Rust `bool`: true unless the byte is 0.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(b: bool) -> Self {
        Self(b as u8)
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}

impl std::fmt::Debug for Bool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// The Rust type of a scalar type's elements. Every bit pattern is a valid value.
pub trait Element: bytemuck::Pod + Send + Sync + PartialEq + std::fmt::Debug {
    /// The scalar type.
    const DTYPE: ScalarType;
}

macro_rules! elements {
    ($($type:ty => $dtype:ident),* $(,)?) => {
        $(impl Element for $type { const DTYPE: ScalarType = ScalarType::$dtype; })*
    };
}

elements! {
    u8 => Byte, i8 => Char, i16 => Short, i32 => Int, i64 => Long,
    f16 => Half, f32 => Float, f64 => Double, bf16 => BFloat16, Bool => Bool,
    Complex<f16> => ComplexHalf, Complex<f32> => ComplexFloat, Complex<f64> => ComplexDouble,
    u16 => UInt16, u32 => UInt32, u64 => UInt64,
}

/// The elements in an aligned buffer; trailing bytes that do not make a whole element are left out.
pub fn cast<T: Element>(buffer: &crate::AlignedBuffer) -> &[T] {
    let len = buffer.len() / size_of::<T>() * size_of::<T>();
    bytemuck::cast_slice(&buffer[..len])
}

/// Like [`cast`], but mutable.
pub fn cast_mut<T: Element>(buffer: &mut crate::AlignedBuffer) -> &mut [T] {
    let len = buffer.len() / size_of::<T>() * size_of::<T>();
    bytemuck::cast_slice_mut(&mut buffer[..len])
}
