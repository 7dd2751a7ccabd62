use crate::{Error, Result};
use pteron_tensor::{Element, Scalar, Tensor};
use std::fmt;

/// The kind of an [`EValue`], with the numbers of ExecuTorch's `Tag`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Tag {
    /// No value.
    None = 0,
    /// A tensor.
    Tensor = 1,
    /// A string.
    String = 2,
    /// A floating-point number.
    Double = 3,
    /// An integer.
    Int = 4,
    /// A boolean.
    Bool = 5,
    /// A list of booleans.
    ListBool = 6,
    /// A list of floating-point numbers.
    ListDouble = 7,
    /// A list of integers.
    ListInt = 8,
    /// A list of tensors.
    ListTensor = 9,
    /// A list of tensors, some of which may be absent.
    ListOptionalTensor = 11,
}

impl fmt::Display for Tag {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The value of a method's input or output.
#[derive(Debug, Clone, Default)]
#[expect(clippy::large_enum_variant, reason = "most values are tensors, and they are few")]
pub enum EValue {
    /// No value.
    #[default]
    None,
    /// A tensor with its bytes.
    Tensor(Tensor),
    /// A string.
    String(String),
    /// A floating-point number.
    Double(f64),
    /// An integer.
    Int(i64),
    /// A boolean.
    Bool(bool),
    /// A list of booleans.
    ListBool(Vec<bool>),
    /// A list of floating-point numbers.
    ListDouble(Vec<f64>),
    /// A list of integers.
    ListInt(Vec<i64>),
    /// A list of tensors.
    ListTensor(Vec<Tensor>),
    /// A list of tensors, some of which may be absent.
    ListOptionalTensor(Vec<Option<Tensor>>),
}

impl EValue {
    /// A copy. Unlike `clone`, it fails instead of panicking if memory for its tensors cannot be allocated.
    ///
    /// # Errors
    /// If an allocation fails.
    pub fn try_clone(&self) -> pteron_tensor::Result<Self> {
        let copy = |t: &Tensor| t.view().to_tensor();
        Ok(match self {
            Self::Tensor(t) => Self::Tensor(copy(t)?),
            Self::ListTensor(all) => Self::ListTensor(all.iter().map(copy).collect::<Result<_, _>>()?),
            Self::ListOptionalTensor(all) => {
                let all = all.iter().map(|t| t.as_ref().map(copy).transpose());
                Self::ListOptionalTensor(all.collect::<Result<_, _>>()?)
            }
            other => other.clone(),
        })
    }

    /// The kind of this value.
    pub fn tag(&self) -> Tag {
        match self {
            Self::None => Tag::None,
            Self::Tensor(_) => Tag::Tensor,
            Self::String(_) => Tag::String,
            Self::Double(_) => Tag::Double,
            Self::Int(_) => Tag::Int,
            Self::Bool(_) => Tag::Bool,
            Self::ListBool(_) => Tag::ListBool,
            Self::ListDouble(_) => Tag::ListDouble,
            Self::ListInt(_) => Tag::ListInt,
            Self::ListTensor(_) => Tag::ListTensor,
            Self::ListOptionalTensor(_) => Tag::ListOptionalTensor,
        }
    }

    /// The value as a tensor, or an error that says what kind of value it is.
    pub fn as_tensor(&self) -> Result<&Tensor> {
        if let Self::Tensor(t) = self { Ok(t) } else { Err(self.kind_error("a tensor")) }
    }

    /// Unwraps a tensor, or returns an error that says what kind of value it is.
    pub fn into_tensor(self) -> Result<Tensor> {
        self.try_into()
    }

    /// The elements of a tensor in row-major order, whatever its layout.
    pub fn to_vec<T: Element>(&self) -> Result<Vec<T>> {
        Ok(self.as_tensor()?.to_vec()?)
    }

    /// The element of a tensor with exactly one element.
    pub fn item<T: Element>(&self) -> Result<T> {
        let tensor = self.as_tensor()?;
        match tensor.storage::<T>()? {
            [element] => Ok(*element),
            _ => Err(self.kind_error("a tensor of one element")),
        }
    }

    #[cold]
    fn kind_error(&self, expected: &'static str) -> Error {
        let actual = match self {
            Self::None => "no value".to_owned(),
            Self::Tensor(t) => format!("a tensor {}", t.meta()),
            Self::String(v) => format!("the string {v:?}"),
            Self::Double(v) => format!("the number {v}"),
            Self::Int(v) => format!("the integer {v}"),
            Self::Bool(v) => format!("the boolean {v}"),
            Self::ListBool(_) => "a list of booleans".to_owned(),
            Self::ListDouble(_) => "a list of numbers".to_owned(),
            Self::ListInt(_) => "a list of integers".to_owned(),
            Self::ListTensor(_) | Self::ListOptionalTensor(_) => "a list of tensors".to_owned(),
        };
        Error::ValueKind { expected, found: actual }
    }

    /// The scalar, if the value is an integer, a floating-point number or a boolean.
    pub fn as_scalar(&self) -> Option<Scalar> {
        match *self {
            Self::Int(v) => Some(Scalar::Int(v)),
            Self::Double(v) => Some(Scalar::Double(v)),
            Self::Bool(v) => Some(Scalar::Bool(v)),
            _ => None,
        }
    }
}

/// Implements the conversions to and from an [`EValue`]. A row gives a Rust type, its variant, and what errors call
/// the variant.
macro_rules! conversions {
    ($($type:ty = $variant:ident, $what:literal;)*) => { $(
        impl From<$type> for EValue {
            fn from(value: $type) -> Self {
                Self::$variant(value)
            }
        }

        impl TryFrom<EValue> for $type {
            type Error = Error;

            fn try_from(value: EValue) -> Result<Self> {
                if let EValue::$variant(v) = value { Ok(v) } else { Err(value.kind_error($what)) }
            }
        }

        impl<'a> TryFrom<&'a EValue> for &'a $type {
            type Error = Error;

            fn try_from(value: &'a EValue) -> Result<Self> {
                if let EValue::$variant(v) = value { Ok(v) } else { Err(value.kind_error($what)) }
            }
        }
    )* };
}

conversions! {
    Tensor = Tensor, "a tensor";
    String = String, "a string";
    f64 = Double, "a number";
    i64 = Int, "an integer";
    bool = Bool, "a boolean";
    Vec<bool> = ListBool, "a list of booleans";
    Vec<f64> = ListDouble, "a list of numbers";
    Vec<i64> = ListInt, "a list of integers";
    Vec<Tensor> = ListTensor, "a list of tensors";
    Vec<Option<Tensor>> = ListOptionalTensor, "a list of tensors, some absent";
}

impl From<&str> for EValue {
    fn from(value: &str) -> Self {
        Self::String(value.to_owned())
    }
}

impl From<Scalar> for EValue {
    fn from(s: Scalar) -> Self {
        match s {
            Scalar::Int(v) => Self::Int(v),
            Scalar::Double(v) => Self::Double(v),
            Scalar::Bool(v) => Self::Bool(v),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::DimOrder;

    #[test]
    fn conversions_round_trip() {
        let t = Tensor::from_slice(&[2], &[1.0f32, 2.0]).unwrap();
        let value = EValue::from(t.clone());
        assert_eq!(value.as_tensor().unwrap().bytes(), t.bytes());
        assert_eq!(value.to_vec::<f32>().unwrap(), [1.0, 2.0]);
        assert_eq!(value.into_tensor().unwrap().bytes(), t.bytes());
        assert_eq!(i64::try_from(EValue::from(7)), Ok(7));
        assert_eq!(<&i64>::try_from(&EValue::Int(7)), Ok(&7));
        assert_eq!(f64::try_from(EValue::from(0.5)), Ok(0.5));
        assert_eq!(bool::try_from(EValue::from(true)), Ok(true));
        assert_eq!(String::try_from(EValue::from("a")).as_deref(), Ok("a"));
        assert_eq!(Vec::<i64>::try_from(EValue::from(vec![1, 2])), Ok(vec![1, 2]));
        assert_eq!(Vec::<Tensor>::try_from(EValue::from(vec![t])).unwrap().len(), 1);
    }

    #[test]
    fn errors_name_the_actual_kind() {
        let message = |e: Error| e.to_string();
        assert_eq!(
            message(EValue::Int(3).as_tensor().unwrap_err()),
            "the value is the integer 3, not a tensor"
        );
        let t = EValue::from(Tensor::from_slice(&[2], &[1i32, 2]).unwrap());
        assert_eq!(
            message(i64::try_from(t.clone()).unwrap_err()),
            "the value is a tensor int32[2], not an integer"
        );
        assert_eq!(
            message(t.item::<i32>().unwrap_err()),
            "the value is a tensor int32[2], not a tensor of one element"
        );
        assert!(message(t.item::<f32>().unwrap_err()).contains("expected a tensor of float32, found int32"));
        assert_eq!(EValue::from(Tensor::scalar(5i32).unwrap()).item::<i32>(), Ok(5));
    }

    #[test]
    fn elements_are_in_row_major_order() {
        let t = Tensor::from_slice(&[1, 2, 1, 2], &[1i32, 2, 3, 4]).unwrap();
        let last = t.to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert_eq!(EValue::from(last).to_vec::<i32>().unwrap(), [1, 2, 3, 4]);
    }
}
