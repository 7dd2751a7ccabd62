//! The textual notation of inputs.
//!
//! | text | input |
//! | --- | --- |
//! | `2x2xf32=1,2,3,4` | a tensor with these elements in row-major order; a single element fills it |
//! | `2x2xf32` | a tensor of zeros |
//! | `f32=1.2` | a zero-dim tensor, or a scalar where the program takes one |
//! | `4xf32=@raw.bin` | a tensor with the little-endian bytes of a file |
//! | `x.npy`, `@x` | a NumPy array; with `@` in a file of any name |
//! | `digit.png` | an image, for image inputs (module `picture`) |
//! | `5`, `0.5`, `true` | a scalar where the program takes one |
//! | `none` | no value |
//! | `NAME=x.npy`, `NAME=2x2xf32=1,2,3,4` | any of these, for the input of this name |

use crate::picture::{self, Preparation};
use crate::{Error, Result, npy, stream};
use pteron_operator::{EValue, Tag};
use pteron_runtime::{InputSizes, ValueMeta};
use pteron_tensor::{Bool, Element, Scalar, ScalarType, Tensor, TensorMeta, bf16, f16};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

/// One parsed input.
#[derive(Debug, Clone, PartialEq)]
pub enum InputSpec {
    /// A tensor by type, sizes and elements: `2x2xf32=…`
    Tensor {
        /// The type of the elements.
        dtype: ScalarType,
        sizes: Vec<usize>,
        elements: Elements,
    },
    /// A NumPy array in a file: `x.npy`, `@x`
    Npy(PathBuf),
    /// An image in a file: `digit.png`
    Image(PathBuf),
    /// A number or boolean: `5`, `0.5`, `true`
    Number(Scalar),
    /// No value: `none`
    None,
    /// A program in place of an input, with which another program is compared: `model.pte`
    Program(PathBuf),
}

/// An input of a call: by position, or by name.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenInput {
    /// The name of the method's input; without a name, the next input in order.
    pub name: Option<String>,
    /// The value of the input.
    pub value: InputSpec,
}

impl From<InputSpec> for GivenInput {
    fn from(value: InputSpec) -> Self {
        Self { name: None, value }
    }
}

impl FromStr for GivenInput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=').filter(|(name, _)| is_name(name)) {
            Some((name, value)) => Ok(Self { name: Some(name.to_owned()), value: value.parse()? }),
            None => text.parse().map(|value: InputSpec| value.into()),
        }
    }
}

/// Whether a text before `=` is the name of an input: identifiers and indices with dots between them. The type of a tensor
/// is none.
fn is_name(text: &str) -> bool {
    let is_start = text.starts_with(|c: char| c.is_alphabetic() || c == '_');
    is_start && text.chars().all(|c| c.is_alphanumeric() || "_.".contains(c)) && parse_type(text).is_none()
}

/// The elements of an input.
#[derive(Debug, Clone, PartialEq)]
pub enum Elements {
    /// All elements are zero, because none were given.
    Zeros,
    /// The elements as text; a single one fills the tensor.
    Values(Vec<String>),
    /// The path of a file that holds the elements as raw bytes.
    Raw(PathBuf),
}

/// The declaration of a method's input. A tensor is checked against it before it is read or allocated, so that
/// one that the method would refuse costs nothing.
#[derive(Debug, Clone)]
pub struct DeclaredInput {
    /// The method's name.
    pub method: String,
    /// The index of the input.
    pub index: usize,
    /// The kind of value that the method expects.
    pub tag: Tag,
    /// The declared type, sizes (upper bounds if dynamic), dynamism and dim order of a tensor.
    pub meta: Option<TensorMeta>,
    /// The constraints on the sizes of the method's inputs, if the export records more than upper bounds.
    pub allowed: Option<Arc<InputSizes>>,
}

impl FromStr for InputSpec {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        if let Some(path) = text.strip_prefix('@') {
            return Ok(Self::Npy(path.into()));
        }
        if let Some(number) = parse_number(text) {
            return Ok(Self::Number(number));
        }
        let (shaped, elements_text) = match text.split_once('=') {
            Some((t, e)) => (t, Some(e)),
            None => (text, None),
        };
        let Some((dtype, sizes)) = parse_type(shaped) else {
            return Self::of_file(text.as_ref()).ok_or_else(|| {
                format!(
                    "`{text}` is no input: write `2x2xf32=1,2,3,4`, `4xf32=@raw.bin`, a number, or the name of a \
                     .npy file or of an image (.png, .jpg, .webp, .bmp); `@FILE` is a NumPy array in a file of any other name"
                )
            });
        };
        let elements = match elements_text {
            None => Elements::Zeros,
            Some(e) => match e.strip_prefix('@') {
                Some(path) => Elements::Raw(path.into()),
                None => Elements::Values(
                    e.split(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']'))
                        .filter(|v| !v.is_empty())
                        .map(str::to_owned)
                        .collect(),
                ),
            },
        };
        Ok(Self::Tensor { dtype, sizes, elements })
    }
}

/// Parses a type and sizes such as `2x3xf32`.
fn parse_type(text: &str) -> Option<(ScalarType, Vec<usize>)> {
    let (sizes, name) = text.rsplit_once('x').map_or((None, text), |(s, n)| (Some(s), n));
    let dtype = if name == "bool" { ScalarType::Bool } else { ScalarType::parse(name)? };
    let sizes = sizes.map_or(Some(Vec::new()), |s| s.split('x').map(|d| d.parse().ok()).collect())?;
    Some((dtype, sizes))
}

fn parse_number(text: &str) -> Option<Scalar> {
    match text {
        "true" => return Some(Scalar::Bool(true)),
        "false" => return Some(Scalar::Bool(false)),
        _ => {}
    }
    text.parse().map(Scalar::Int).or_else(|_| text.parse().map(Scalar::Double)).ok()
}

impl InputSpec {
    /// The input in a file, by its extension: an array (`.npy`), an image or a program; `None` for other extensions.
    pub fn of_file(path: &Path) -> Option<Self> {
        let ending = path.extension().and_then(|e| e.to_str()).unwrap_or("").to_ascii_lowercase();
        match ending.as_str() {
            "npy" => Some(Self::Npy(path.to_owned())),
            "png" | "jpg" | "jpeg" | "webp" | "bmp" => Some(Self::Image(path.to_owned())),
            "pte" | "bpte" | "pt2" => Some(Self::Program(path.to_owned())),
            _ => None,
        }
    }

    /// The path of the file that [`resolve`](Self::resolve) reads, if it reads one.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Npy(path)
            | Self::Image(path)
            | Self::Program(path)
            | Self::Tensor { elements: Elements::Raw(path), .. } => Some(path),
            _ => None,
        }
    }

    /// Makes the value that the method declares, reading the file if the input names one. Images are preprocessed with
    /// `pictures`.
    ///
    /// # Errors
    /// If the input does not match the declaration, or its file cannot be read.
    pub fn resolve(&self, declared: &DeclaredInput, pictures: &Preparation) -> Result<EValue> {
        let number = matches!(declared.tag, Tag::Int | Tag::Double | Tag::Bool);
        if let Self::Program(path) = self {
            return Err(Error::input(format!(
                "{} is a program, not an input; `pteron compare A B` compares two programs",
                path.display()
            )));
        }
        Ok(match self {
            Self::None | Self::Program(_) => EValue::None,
            Self::Npy(path) => {
                let array = npy::open(path)?;
                declared.check(array.meta().dtype(), array.meta().sizes())?;
                array.read().map_err(|problem| Error::bad_file(path, problem))?.into()
            }
            Self::Image(path) => match &declared.meta {
                Some(meta) => picture::read(path, meta, pictures)?.into(),
                None => return Err(self.misfit_error(declared)),
            },
            Self::Number(n) if number => {
                scalar_to_value(*n, declared.tag).ok_or_else(|| self.misfit_error(declared))?
            }
            Self::Number(_) => return Err(self.misfit_error(declared)),
            Self::Tensor { dtype, sizes, elements } if number && sizes.is_empty() => {
                let n = single_element(&elements.to_tensor(*dtype, sizes)?);
                n.and_then(|n| scalar_to_value(n, declared.tag)).ok_or_else(|| self.misfit_error(declared))?
            }
            Self::Tensor { dtype, sizes, elements } => {
                declared.check(*dtype, sizes)?;
                elements.to_tensor(*dtype, sizes)?.into()
            }
        })
    }

    fn misfit_error(&self, declared: &DeclaredInput) -> Error {
        let wanted = match (&declared.meta, declared.tag) {
            (Some(meta), _) => format!(
                "the program takes a {meta} there: write `{}=…`, or `x.npy`",
                type_text(meta.dtype(), meta.sizes())
            ),
            (None, tag) => format!("the program takes a value of kind {tag} there"),
        };
        Error::input(wanted)
    }
}

impl DeclaredInput {
    pub(crate) fn new(
        method: &str,
        index: usize,
        declared: &ValueMeta,
        allowed: Option<Arc<InputSizes>>,
    ) -> Self {
        let meta = declared.tensor.as_ref().map(|tensor| tensor.meta.clone());
        Self { method: method.to_owned(), index, tag: declared.tag, meta, allowed }
    }

    /// Fails as the method would, if a tensor of this type and sizes cannot be the input.
    pub(crate) fn check(&self, dtype: ScalarType, sizes: &[usize]) -> Result<()> {
        let problem = match (&self.meta, self.tag) {
            (Some(meta), _) => {
                pteron_runtime::check_tensor(self.index, meta, self.allowed.as_deref(), dtype, sizes).err()
            }
            (None, Tag::Tensor) => None,
            (None, tag) => Some(pteron_runtime::InputProblem::Kind {
                index: self.index,
                expected: tag,
                found: Tag::Tensor,
            }),
        };
        match problem {
            None => Ok(()),
            Some(problem) => {
                Err(pteron_runtime::Error::Input { method: self.method.clone(), problem }.into())
            }
        }
    }
}

/// The notation of a type and sizes: `2x2xf32`.
pub fn type_text(dtype: ScalarType, sizes: &[usize]) -> String {
    let mut text: String = sizes.iter().map(|d| format!("{d}x")).collect();
    text.push_str(if dtype == ScalarType::Bool { "bool" } else { dtype.short_name() });
    text
}

/// Converts a scalar to a value of this kind; `None` if that would lose information.
fn scalar_to_value(n: Scalar, tag: Tag) -> Option<EValue> {
    match (tag, n) {
        (Tag::Double, Scalar::Int(v)) => Some(EValue::Double(v as f64)),
        (Tag::Double, Scalar::Double(v)) => Some(EValue::Double(v)),
        (Tag::Int, Scalar::Int(v)) => Some(EValue::Int(v)),
        (Tag::Bool, Scalar::Bool(v)) => Some(EValue::Bool(v)),
        (Tag::Bool, Scalar::Int(v @ (0 | 1))) => Some(EValue::Bool(v == 1)),
        _ => None,
    }
}

/// The element of a one-element tensor as a scalar; `None` for other tensors and types without a scalar.
fn single_element(tensor: &Tensor) -> Option<Scalar> {
    if tensor.numel() != 1 {
        return None;
    }
    Some(match tensor.dtype() {
        ScalarType::Bool => Scalar::Bool(tensor.as_slice::<Bool>().ok()?[0].get()),
        ScalarType::Long => Scalar::Int(tensor.as_slice::<i64>().ok()?[0]),
        ScalarType::Int => Scalar::Int(tensor.as_slice::<i32>().ok()?[0].into()),
        ScalarType::Float => Scalar::Double(tensor.as_slice::<f32>().ok()?[0].into()),
        ScalarType::Double => Scalar::Double(tensor.as_slice::<f64>().ok()?[0]),
        _ => return None,
    })
}

impl Elements {
    fn to_tensor(&self, dtype: ScalarType, sizes: &[usize]) -> Result<Tensor> {
        let meta = TensorMeta::contiguous(dtype, sizes)?;
        match self {
            Self::Zeros => Ok(Tensor::zeros(meta)?),
            Self::Raw(path) => read_raw(path, meta),
            Self::Values(values) => parse_elements(&meta, values),
        }
    }
}

fn parse_elements(meta: &TensorMeta, values: &[String]) -> Result<Tensor> {
    macro_rules! parse_as {
        ($type:ty, $parse:expr) => {
            tensor_of_values::<$type>(meta, values, $parse)
        };
    }
    fn parse_trimmed<T: FromStr>(v: &str) -> Option<T> {
        v.parse().ok()
    }
    match meta.dtype() {
        ScalarType::Byte => parse_as!(u8, parse_trimmed),
        ScalarType::Char => parse_as!(i8, parse_trimmed),
        ScalarType::Short => parse_as!(i16, parse_trimmed),
        ScalarType::Int => parse_as!(i32, parse_trimmed),
        ScalarType::Long => parse_as!(i64, parse_trimmed),
        ScalarType::UInt16 => parse_as!(u16, parse_trimmed),
        ScalarType::UInt32 => parse_as!(u32, parse_trimmed),
        ScalarType::UInt64 => parse_as!(u64, parse_trimmed),
        ScalarType::Float => parse_as!(f32, parse_trimmed),
        ScalarType::Double => parse_as!(f64, parse_trimmed),
        ScalarType::Half => parse_as!(f16, |v| parse_trimmed(v).map(f16::from_f64)),
        ScalarType::BFloat16 => parse_as!(bf16, |v| parse_trimmed(v).map(bf16::from_f64)),
        ScalarType::Bool => parse_as!(Bool, |v| match v {
            "true" | "1" => Some(Bool::from(true)),
            "false" | "0" => Some(Bool::from(false)),
            _ => None,
        }),
        other => Err(Error::input(format!(
            "{other} elements cannot be written out; give the tensor as a .npy file or as raw bytes \
             (`{}=@raw.bin`)",
            type_text(other, meta.sizes())
        ))),
    }
}

fn tensor_of_values<T: Element>(
    meta: &TensorMeta,
    values: &[String],
    parse: fn(&str) -> Option<T>,
) -> Result<Tensor> {
    if values.len() != 1 && values.len() != meta.numel() {
        return Err(Error::input(format!(
            "{} elements where {} needs {} (or 1, to fill it)",
            values.len(),
            type_text(meta.dtype(), meta.sizes()),
            meta.numel()
        )));
    }
    let wrong = |v: &str| Error::input(format!("`{v}` is not a value of type {}", meta.dtype()));
    let mut tensor = Tensor::zeros(meta.clone())?;
    let elements = tensor.as_mut_slice::<T>()?;
    match values {
        [one] => elements.fill(parse(one).ok_or_else(|| wrong(one))?),
        values => {
            for (element, v) in elements.iter_mut().zip(values) {
                *element = parse(v).ok_or_else(|| wrong(v))?;
            }
        }
    }
    Ok(tensor)
}

/// Reads a tensor from a file of little-endian elements. Fails if the file's size is not that of the tensor.
fn read_raw(path: &Path, meta: TensorMeta) -> Result<Tensor> {
    let wrong =
        |size: &str| Error::bad_file(path, format!("{size} bytes where {meta} needs {}", meta.nbytes()));
    if let Ok(file) = std::fs::metadata(path)
        && file.is_file()
        && file.len() != meta.nbytes() as u64
    {
        return Err(wrong(&file.len().to_string()));
    }
    let mut file = stream::reader(path)?;
    let mut tensor = Tensor::zeros(meta.clone())?;
    let mut view = tensor.view_mut();
    let read = stream::read_full(&mut file, view.bytes_mut()).map_err(Error::read(path))?;
    if read < meta.nbytes() {
        return Err(wrong(&read.to_string()));
    }
    if stream::read_full(&mut file, &mut [0]).map_err(Error::read(path))? > 0 {
        return Err(wrong("more"));
    }
    npy::swap_on_big_endian(meta.dtype(), view.bytes_mut());
    Ok(tensor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn declared(tag: Tag) -> DeclaredInput {
        DeclaredInput { method: "forward".to_owned(), index: 0, tag, meta: None, allowed: None }
    }

    fn tensor(text: &str) -> Tensor {
        let declared = declared(Tag::Tensor);
        match text.parse::<InputSpec>().unwrap().resolve(&declared, &Preparation::default()).unwrap() {
            EValue::Tensor(t) => t,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn tensors_are_read() {
        let t = tensor("2x2xf32=1,2.5,-3e-1,inf");
        assert_eq!(&**t.sizes(), [2, 2]);
        assert_eq!(t.as_slice::<f32>().unwrap(), [1.0, 2.5, -0.3, f32::INFINITY]);
        assert_eq!(tensor("3xi8=-7").as_slice::<i8>().unwrap(), [-7; 3]);
        assert_eq!(tensor("2xbool=true, 0").as_slice::<Bool>().unwrap(), [true.into(), false.into()]);
        assert_eq!(tensor("2x2xi64=[[1 2] [3 4]]").as_slice::<i64>().unwrap(), [1, 2, 3, 4]);
        assert_eq!(tensor("0x4xf64=").numel(), 0);
        assert_eq!(tensor("2xf16").as_slice::<f16>().unwrap(), [f16::ZERO; 2]);
    }

    #[test]
    fn files_are_recognized_by_their_names() {
        let npy = |path: &str| InputSpec::Npy(path.into());
        let cases = [
            ("x.npy", npy("x.npy")),
            ("a=b/2x2xf32.NPY", npy("a=b/2x2xf32.NPY")),
            ("@x.npy", npy("x.npy")),
            ("@array", npy("array")),
            ("a.jpeg", InputSpec::Image("a.jpeg".into())),
            ("a.webp", InputSpec::Image("a.webp".into())),
            ("a.BMP", InputSpec::Image("a.BMP".into())),
        ];
        for (text, expected) in cases {
            assert_eq!(text.parse::<InputSpec>().unwrap(), expected, "{text}");
        }
        assert!("x.npz".parse::<InputSpec>().is_err());
    }

    #[test]
    fn scalars_convert_to_the_declared_kind() {
        let as_kind = |text: &str, tag| {
            let spec = text.parse::<InputSpec>().unwrap();
            spec.resolve(&declared(tag), &Preparation::default()).ok()
        };
        assert!(matches!(as_kind("5", Tag::Int), Some(EValue::Int(5))));
        assert!(matches!(as_kind("5", Tag::Double), Some(EValue::Double(5.0))));
        assert!(matches!(as_kind("f32=0.5", Tag::Double), Some(EValue::Double(0.5))));
        assert!(matches!(as_kind("true", Tag::Bool), Some(EValue::Bool(true))));
        assert!(as_kind("0.5", Tag::Int).is_none());
        assert!(as_kind("5", Tag::Tensor).is_none());
    }

    #[test]
    fn mistakes_are_explained() {
        let e = "hello".parse::<InputSpec>().unwrap_err();
        assert!(e.contains("2x2xf32=1,2,3,4"), "{e}");
        assert!(e.contains(".npy"), "{e}");
        let declared = declared(Tag::Tensor);
        for (text, problem) in [
            ("2xi8=1,2,3", "3 elements where 2xi8 needs 2"),
            ("2xi8=1,300", "`300` is not a value of type int8"),
            ("2xc64=1,2", "as a .npy file"),
            ("99999999999x1000xf32=1", "could not allocate 399999999996000 bytes"),
            ("99999999999x99999999999xf32=1", "overflows"),
            ("99999999999xf32=1,2", "2 elements where"),
        ] {
            let e = text
                .parse::<InputSpec>()
                .unwrap()
                .resolve(&declared, &Preparation::default())
                .unwrap_err()
                .to_string();
            assert!(e.contains(problem), "{e}");
        }
    }

    #[test]
    fn refused_inputs_are_neither_read_nor_allocated() {
        use pteron_tensor::ShapeDynamism::{DynamicBound, Static};
        let resolve = |text: &str, dynamism| {
            let meta = TensorMeta::contiguous(ScalarType::Float, &[4, 2]).unwrap().with_dynamism(dynamism);
            let declared = DeclaredInput { meta: Some(meta), ..declared(Tag::Tensor) };
            let spec = text.parse::<InputSpec>().unwrap();
            spec.resolve(&declared, &Preparation::default()).map_err(|e| e.to_string())
        };
        assert!(resolve("4x2xf32=1", Static).is_ok() && resolve("3x2xf32=1", DynamicBound).is_ok());
        // More than any machine has: if the tensor were allocated, the error would not be about the shape.
        let huge = "99999999999x1000xf32";
        for text in [format!("{huge}=1"), format!("{huge}=@no-such-file"), huge.to_owned()] {
            for dynamism in [Static, DynamicBound] {
                let e = resolve(&text, dynamism).unwrap_err();
                assert!(e.contains("input 0 has shape"), "{text}: {e}");
            }
        }
        assert!(resolve("4x2xi64=1", Static).unwrap_err().contains("one of int64 was given"));
    }
}
