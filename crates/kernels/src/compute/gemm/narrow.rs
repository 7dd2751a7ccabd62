//! Weights that are packed in fewer bits than f32. Products widen them as they read them, so a product equals, bit for
//! bit, that with the widened weights.

use half::slice::HalfFloatSliceExt;
use half::{bf16, f16};

/// The type in which packed weights are stored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WeightType {
    /// 32-bit floating point.
    #[default]
    F32,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of 32-bit floating point.
    Bf16,
    /// Signed bytes, each multiplied by the scale of its column.
    Int8,
}

impl WeightType {
    /// The size of an element in bytes.
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// The type's name, in names of layouts.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// How weights are to be stored when they are packed. Weights that the type does not represent exactly are packed as
/// f32.
#[derive(Clone, Copy, Debug, Default)]
pub enum WeightStorage<'a> {
    /// As they are.
    #[default]
    F32,
    /// As float16.
    F16,
    /// As bfloat16.
    Bf16,
    /// As signed bytes, each the weight divided by its column's scale.
    Int8 {
        /// The scale of each column of the matrix: of each output.
        scales: &'a [f32],
    },
}

impl WeightStorage<'_> {
    /// The type of the packed weights.
    pub fn weight_type(&self) -> WeightType {
        match self {
            Self::F32 => WeightType::F32,
            Self::F16 => WeightType::F16,
            Self::Bf16 => WeightType::Bf16,
            Self::Int8 { .. } => WeightType::Int8,
        }
    }

    /// The storage of the columns from `first` on.
    pub(crate) fn columns_from(self, first: usize) -> Self {
        match self {
            Self::Int8 { scales } => Self::Int8 { scales: scales.get(first..).unwrap_or_default() },
            other => other,
        }
    }
}

/// Elements of packed panels, as they are stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Elements<'a> {
    F32(&'a [f32]),
    F16(&'a [u16]),
    Bf16(&'a [u16]),
    /// With the scales of their columns.
    Int8(&'a [i8], &'a [f32]),
}

impl<'a> Elements<'a> {
    /// The elements of a type that are stored in `bytes`, with the scales of their columns. Bytes of another length, or that are
    /// not aligned, give no elements.
    pub(super) fn of(ty: WeightType, bytes: &'a [u8], scales: &'a [f32]) -> Self {
        let halves = || bytemuck::try_cast_slice(bytes).unwrap_or_default();
        match ty {
            WeightType::F32 => Self::F32(bytemuck::try_cast_slice(bytes).unwrap_or_default()),
            WeightType::F16 => Self::F16(halves()),
            WeightType::Bf16 => Self::Bf16(halves()),
            WeightType::Int8 => Self::Int8(bytemuck::cast_slice(bytes), scales),
        }
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::F32(all) => all.len(),
            Self::F16(all) | Self::Bf16(all) => all.len(),
            Self::Int8(all, _) => all.len(),
        }
    }

    /// The elements from the `first` on, which is in the column `column`.
    pub(super) fn from(self, first: usize, column: usize) -> Self {
        match self {
            Self::F32(all) => Self::F32(&all[first..]),
            Self::F16(all) => Self::F16(&all[first..]),
            Self::Bf16(all) => Self::Bf16(&all[first..]),
            Self::Int8(all, scales) => Self::Int8(&all[first..], &scales[column..]),
        }
    }

    /// The address of the first element.
    pub(super) fn as_ptr(&self) -> *const u8 {
        match self {
            Self::F32(all) => all.as_ptr().cast(),
            Self::F16(all) | Self::Bf16(all) => all.as_ptr().cast(),
            Self::Int8(all, _) => all.as_ptr().cast(),
        }
    }

    /// The size of an element in bytes.
    pub(super) fn size(&self) -> usize {
        self.weight_type().size()
    }

    pub(super) fn weight_type(&self) -> WeightType {
        match self {
            Self::F32(_) => WeightType::F32,
            Self::F16(_) => WeightType::F16,
            Self::Bf16(_) => WeightType::Bf16,
            Self::Int8(..) => WeightType::Int8,
        }
    }

    /// The scales of the columns; empty if there are none.
    pub(super) fn scales(&self) -> &'a [f32] {
        if let Self::Int8(_, scales) = self { scales } else { &[] }
    }

    pub(super) fn is_f32(&self) -> bool {
        matches!(self, Self::F32(_))
    }
}

/// Stores `values`, which are rows of `width` columns whose first one is `column`, in `out`. Returns whether all of them
/// are finite and represented exactly.
pub(super) fn store_exactly(
    storage: WeightStorage<'_>,
    values: &[f32],
    (width, column): (usize, usize),
    out: &mut [u8],
) -> bool {
    /// Values that are stored and checked at a time.
    const PART: usize = 1024;
    let mut back = [0f32; PART];
    let mut is_exact = true;
    match storage {
        WeightStorage::F32 => out.copy_from_slice(bytemuck::cast_slice(values)),
        WeightStorage::F16 => {
            let mut halves = [f16::ZERO; PART];
            for (values, out) in values.chunks(PART).zip(out.chunks_mut(2 * PART)) {
                let (halves, back) = (&mut halves[..values.len()], &mut back[..values.len()]);
                halves.convert_from_f32_slice(values);
                halves.convert_to_f32_slice(back);
                is_exact &= are_same(values, back);
                out.copy_from_slice(bytemuck::cast_slice(halves));
            }
        }
        WeightStorage::Bf16 => {
            for (&value, out) in values.iter().zip(out.as_chunks_mut::<2>().0) {
                is_exact &= value.is_finite() && value.to_bits() & 0xffff == 0;
                *out = bf16::from_bits((value.to_bits() >> 16) as u16).to_ne_bytes();
            }
        }
        WeightStorage::Int8 { scales } => {
            for (values, out) in values.chunks(width).zip(out.chunks_mut(width)) {
                for (j, (&value, out)) in values.iter().zip(out).enumerate() {
                    let scale = scales.get(column + j).copied().unwrap_or(1.0);
                    let number = (value / scale).round_ties_even() as i8;
                    is_exact &= (f32::from(number) * scale).to_bits() == value.to_bits();
                    *out = number as u8;
                }
            }
        }
    }
    is_exact
}

fn are_same(values: &[f32], back: &[f32]) -> bool {
    values.iter().zip(back).fold(true, |same, (a, b)| same & (a.to_bits() == b.to_bits()) & a.is_finite())
}
