use crate::{Error, Result, ScalarType};

impl ScalarType {
    /// The scalar type with this number in a file.
    pub fn from_i8(value: i8) -> Result<Self> {
        let dtype = Self::ALL.iter().find(|dtype| **dtype as i8 == value);
        dtype.copied().ok_or(Error::UnknownScalarType(value))
    }
}
