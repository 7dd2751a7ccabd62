use pteron_tensor::ScalarType;
use std::fmt;

/// A set of scalar types, such as those that an operator supports.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct DtypeSet(u32);

impl DtypeSet {
    /// The empty set, for operators whose tensors can have any type or that have no tensor.
    pub const NONE: Self = Self(0);
    /// bool.
    pub const BOOL: Self = Self::of(&[ScalarType::Bool]);
    /// uint8, int8, int16, int32, int64.
    pub const INTEGRAL: Self =
        Self::of(&[ScalarType::Byte, ScalarType::Char, ScalarType::Short, ScalarType::Int, ScalarType::Long]);
    /// float16, bfloat16, float32, float64.
    pub const FLOATING: Self =
        Self::of(&[ScalarType::Half, ScalarType::BFloat16, ScalarType::Float, ScalarType::Double]);
    /// complex64 and complex128.
    pub const COMPLEX: Self = Self::of(&[ScalarType::ComplexFloat, ScalarType::ComplexDouble]);
    /// The types of `INTEGRAL` and `FLOATING`.
    pub const REAL: Self = Self::INTEGRAL.union(Self::FLOATING);
    /// The types of `INTEGRAL` and `FLOATING`, and bool.
    pub const REAL_BOOL: Self = Self::REAL.union(Self::BOOL);
    /// The types of `INTEGRAL` and `FLOATING`, bool, complex64 and complex128.
    pub const REAL_BOOL_COMPLEX: Self = Self::REAL_BOOL.union(Self::COMPLEX);
    /// Every type that has a Rust element type.
    pub const ALL: Self = Self::REAL_BOOL.union(Self::COMPLEX).union(Self::of(&[
        ScalarType::ComplexHalf,
        ScalarType::UInt16,
        ScalarType::UInt32,
        ScalarType::UInt64,
    ]));

    /// A set of these types.
    pub const fn of(types: &[ScalarType]) -> Self {
        let mut bits = 0;
        let mut i = 0;
        while i < types.len() {
            bits |= 1 << types[i] as u32;
            i += 1;
        }
        Self(bits)
    }

    /// The union of both sets.
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Whether a type is in the set.
    pub const fn contains(self, dtype: ScalarType) -> bool {
        self.0 & (1 << dtype as u32) != 0
    }

    /// The types, in numeric order.
    pub fn iter(self) -> impl Iterator<Item = ScalarType> {
        ScalarType::ALL.iter().copied().filter(move |&t| self.contains(t))
    }
}

impl fmt::Display for DtypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, t) in self.iter().enumerate() {
            if i > 0 {
                f.write_str(", ")?;
            }
            f.write_str(t.name())?;
        }
        Ok(())
    }
}

impl fmt::Debug for DtypeSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{{{self}}}")
    }
}
