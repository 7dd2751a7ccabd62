//! Values as JSON, in the form of the conformance cases: NaN and infinities are strings, the elements of a tensor are in
//! row-major order. Elements are serialized one by one, without an intermediate text or tree in memory.

use pteron_operator::EValue;
use pteron_tensor::{Bool, Complex, DimOrder, ScalarType, Tensor, f16};
use serde::ser::{Error as _, Serialize, SerializeStruct, Serializer};

/// A value, which serializes to JSON.
#[derive(Debug, Clone, Copy)]
pub struct Json<'a>(pub &'a EValue);

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            EValue::None => serialize_value(to, "none", None::<()>),
            EValue::Tensor(t) => TensorJson(t).serialize(to),
            EValue::String(v) => serialize_value(to, "string", Some(v)),
            EValue::Double(v) => serialize_value(to, "double", Some(Number(*v))),
            EValue::Int(v) => serialize_value(to, "int", Some(v)),
            EValue::Bool(v) => serialize_value(to, "bool", Some(v)),
            EValue::ListBool(v) => serialize_list(to, v.iter()),
            EValue::ListInt(v) => serialize_list(to, v.iter()),
            EValue::ListDouble(v) => serialize_list(to, v.iter().map(|&v| Number(v))),
            EValue::ListTensor(v) => serialize_list(to, v.iter().map(TensorJson)),
            EValue::ListOptionalTensor(v) => serialize_list(to, v.iter().map(|t| t.as_ref().map(TensorJson))),
        }
    }
}

fn serialize_value<S: Serializer>(
    to: S,
    kind: &'static str,
    value: Option<impl Serialize>,
) -> Result<S::Ok, S::Error> {
    let mut fields = to.serialize_struct("value", 1 + usize::from(value.is_some()))?;
    fields.serialize_field("kind", kind)?;
    if let Some(value) = value {
        fields.serialize_field("value", &value)?;
    }
    fields.end()
}

fn serialize_list<S: Serializer>(
    to: S,
    values: impl Iterator<Item = impl Serialize> + Clone,
) -> Result<S::Ok, S::Error> {
    let mut fields = to.serialize_struct("list", 2)?;
    fields.serialize_field("kind", "list")?;
    fields.serialize_field("values", &Sequence(values))?;
    fields.end()
}

/// Serializes the items of an iterator, which are computed on the fly.
struct Sequence<I>(I);

impl<I: Iterator<Item: Serialize> + Clone> Serialize for Sequence<I> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_seq(self.0.clone())
    }
}

struct Number(f64);

impl Serialize for Number {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        match self.0 {
            v if v.is_nan() => to.serialize_str("nan"),
            v if v.is_infinite() => to.serialize_str(if v > 0.0 { "inf" } else { "-inf" }),
            v => to.serialize_f64(v),
        }
    }
}

struct TensorJson<'a>(&'a Tensor);

impl Serialize for TensorJson<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let tensor = self.0;
        let row_major = tensor.to_dim_order(DimOrder::contiguous(tensor.rank())).map_err(S::Error::custom)?;
        let mut fields = to.serialize_struct("tensor", 5)?;
        fields.serialize_field("dim_order", &tensor.dim_order()[..])?;
        fields.serialize_field("dtype", tensor.dtype().name())?;
        fields.serialize_field("kind", "tensor")?;
        fields.serialize_field("shape", &tensor.sizes()[..])?;
        fields.serialize_field("values", &Elements(&row_major))?;
        fields.end()
    }
}

/// Serializes the elements of a row-major tensor; null for types whose elements cannot be shown as numbers.
struct Elements<'a>(&'a Tensor);

impl Serialize for Elements<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let t = self.0;
        let complex = |re: f64, im: f64| [Number(re), Number(im)];
        macro_rules! each {
            ($type:ty, $convert:expr) => {
                match t.as_slice::<$type>() {
                    Ok(all) => to.collect_seq(all.iter().map($convert)),
                    Err(e) => Err(S::Error::custom(e)),
                }
            };
        }
        match t.dtype() {
            ScalarType::Bool => each!(Bool, |v| v.get()),
            ScalarType::Long => each!(i64, |v| *v),
            ScalarType::UInt64 => each!(u64, |v| *v),
            ScalarType::ComplexHalf => each!(Complex<f16>, |v| complex(v.re.to_f64(), v.im.to_f64())),
            ScalarType::ComplexFloat => each!(Complex<f32>, |v| complex(v.re.into(), v.im.into())),
            ScalarType::ComplexDouble => each!(Complex<f64>, |v| complex(v.re, v.im)),
            dtype => match crate::show::numbers(t) {
                Some(number) if dtype.is_integral() => {
                    to.collect_seq((0..t.numel()).map(|i| number(i) as i64))
                }
                Some(number) => to.collect_seq((0..t.numel()).map(|i| Number(number(i)))),
                None => to.serialize_none(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_serialize_like_conformance_cases() {
        let json = |value: EValue| serde_json::to_string(&Json(&value)).unwrap();
        let t = Tensor::from_slice(&[1, 2, 1, 2], &[1.5f32, f32::NAN, f32::NEG_INFINITY, 2.0]).unwrap();
        assert_eq!(
            json(EValue::Tensor(t.to_dim_order(DimOrder::channels_last(4)).unwrap())),
            r#"{"dim_order":[0,2,3,1],"dtype":"float32","kind":"tensor","shape":[1,2,1,2],"values":[1.5,"nan","-inf",2.0]}"#
        );
        let small = Tensor::from_slice(&[2], &[-1i8, 7]).unwrap();
        assert!(json(EValue::Tensor(small)).ends_with(r#""values":[-1,7]}"#));
        assert_eq!(json(EValue::None), r#"{"kind":"none"}"#);
        assert_eq!(json(EValue::Double(f64::INFINITY)), r#"{"kind":"double","value":"inf"}"#);
        assert_eq!(json(EValue::ListInt(vec![1, 2])), r#"{"kind":"list","values":[1,2]}"#);
    }
}
