use crate::format::Exponent;
use crate::kernels::{RegistryExt, object_value, out};
use crate::tensor::{comma_separated, string};
use pteron_bef::{Array, Attribute, Complex, DType, ElementType, Shape};
use pteron_host::{Chain, Charge, Fault, Frame, KernelRegistry};
use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex};

/// Maximum number of elements of an array attribute, or characters of a string attribute, that are printed.
const MAX_PRINTED: usize = 5;

/// The attributes of an operator, keyed by name.
#[derive(Clone, Default)]
pub(crate) struct OpAttrs<'a>(BTreeMap<Cow<'a, str>, StoredAttribute<'a>>);

/// An attribute in the program's file, or a copy that is charged to the request.
#[derive(Clone)]
enum StoredAttribute<'a> {
    Borrowed(&'a Attribute<'a>),
    Copied(Arc<(Attribute<'static>, Charge)>),
}

impl StoredAttribute<'_> {
    fn get(&self) -> &Attribute<'_> {
        match self {
            Self::Borrowed(value) => value,
            Self::Copied(value) => &value.0,
        }
    }
}

/// Bytes that a copy of an attribute takes.
fn copied_bytes(value: &Attribute<'_>) -> u64 {
    let inside = match value {
        Attribute::String(bytes) | Attribute::Func(bytes) => bytes.len() as u64,
        Attribute::Array(array) => array.bytes().len() as u64,
        Attribute::Dense(dense) => dense.bytes().len() as u64,
        Attribute::Aggregate(elements) => elements.iter().map(copied_bytes).sum(),
        _ => 0,
    };
    size_of::<Attribute<'_>>() as u64 + inside
}

impl<'a> OpAttrs<'a> {
    /// Converts attributes from the form of `corert.executeop`: an aggregate of pairs of name and value.
    pub(crate) fn from_pairs(pairs: &'a [Attribute<'a>]) -> Result<Self, Fault> {
        let mut attrs = Self::default();
        for pair in pairs {
            let Attribute::Aggregate(pair) = pair else { return Err(not_a_pair_fault()) };
            let [Attribute::String(name), value] = pair.as_slice() else { return Err(not_a_pair_fault()) };
            attrs.set(String::from_utf8_lossy(name), StoredAttribute::Borrowed(value));
        }
        Ok(attrs)
    }

    /// Adds an attribute, unless one of this name exists.
    fn set(&mut self, name: Cow<'a, str>, value: StoredAttribute<'a>) {
        self.0.entry(name).or_insert(value);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn get(&self, name: &str) -> Result<&Attribute<'_>, Fault> {
        self.0
            .get(name)
            .map(StoredAttribute::get)
            .ok_or_else(|| Fault::from(format!("missing attribute '{name}'")))
    }

    /// The value of an `i32` or `i64` attribute.
    pub(crate) fn int(&self, name: &str) -> Result<i64, Fault> {
        match self.get(name)? {
            Attribute::I32(v) => Ok((*v).into()),
            Attribute::I64(v) => Ok(*v),
            other => Err(wrong_attribute_type(name, other)),
        }
    }

    /// The value of a bool attribute; false if no bool attribute has this name.
    pub(crate) fn flag(&self, name: &str) -> bool {
        matches!(self.get(name), Ok(Attribute::I1(true)))
    }

    /// The value of a string attribute.
    pub(crate) fn text(&self, name: &str) -> Result<String, Fault> {
        match self.get(name)? {
            Attribute::String(bytes) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            other => Err(wrong_attribute_type(name, other)),
        }
    }

    /// The value of an attribute that is a list of sizes (an array of `i32` or `i64`).
    pub(crate) fn dims(&self, name: &str) -> Result<Vec<i64>, Fault> {
        match self.get(name)? {
            Attribute::Array(a) if a.is_empty() => Ok(Vec::new()),
            Attribute::Array(a) => {
                let small = a.i32s().map(|v| v.map(i64::from).collect());
                small
                    .or_else(|| Some(a.i64s()?.collect()))
                    .ok_or_else(|| wrong_attribute_type(name, &Attribute::Array(a.clone())))
            }
            other => Err(wrong_attribute_type(name, other)),
        }
    }
}

fn not_a_pair_fault() -> Fault {
    Fault::invalid("operator attributes are not pairs of name and value")
}

fn wrong_attribute_type(name: &str, value: &Attribute<'_>) -> Fault {
    Fault::invalid(format!("attribute '{name}' is {:?}", value.attribute_type()))
}

/// The type and the value of an attribute, as text.
fn describe(value: &Attribute<'_>) -> (String, String) {
    let kind = |name: &str| name.to_owned();
    let complex = |re: f64, im: f64| format!("({},{})", Exponent(re), Exponent(im));
    match value {
        Attribute::UI8(v) => (kind("UI8"), v.to_string()),
        Attribute::UI16(v) => (kind("UI16"), v.to_string()),
        Attribute::UI32(v) => (kind("UI32"), v.to_string()),
        Attribute::UI64(v) => (kind("UI64"), v.to_string()),
        Attribute::I1(v) => (kind("BOOL"), u8::from(*v).to_string()),
        Attribute::I8(v) => (kind("I8"), v.to_string()),
        Attribute::I16(v) => (kind("I16"), v.to_string()),
        Attribute::I32(v) => (kind("I32"), v.to_string()),
        Attribute::I64(v) => (kind("I64"), v.to_string()),
        Attribute::F16(v) => (kind("F16"), v.to_string()),
        Attribute::BF16(v) => (kind("BF16"), v.to_string()),
        Attribute::F32(v) => (kind("F32"), Exponent(f32::from_bits(*v).into()).to_string()),
        Attribute::F64(v) => (kind("F64"), Exponent(f64::from_bits(*v)).to_string()),
        Attribute::Complex64(Complex { re, im }) => {
            (kind("COMPLEX64"), complex(f32::from_bits(*re).into(), f32::from_bits(*im).into()))
        }
        Attribute::Complex128(Complex { re, im }) => {
            (kind("COMPLEX128"), complex(f64::from_bits(*re), f64::from_bits(*im)))
        }
        Attribute::Type(DType::String) => (kind("DTYPE"), kind("CHAR")),
        Attribute::Type(dtype) => (kind("DTYPE"), dtype.to_string().to_uppercase()),
        Attribute::String(text) => (kind("CHAR"), list_text(text.iter().map(|&b| char::from(b)))),
        Attribute::Func(name) => {
            (kind("FUNC"), format!("FUNC function_name: {}", String::from_utf8_lossy(name)))
        }
        Attribute::Shape(shape) => (kind("SHAPE"), shape_text(shape)),
        Attribute::Dense(dense) => {
            let (dtype, rank, count) = (dense.dtype(), dense.dims().len(), dense.element_count());
            (kind("DENSE"), format!("dtype={dtype}, rank={rank}, elt_count={count}"))
        }
        Attribute::Array(array) => array_text(array),
        Attribute::Aggregate(elements) => {
            let inner = elements.iter().map(|e| match e {
                Attribute::Dense(_) | Attribute::Aggregate(_) => format!("{{{}}}", describe(e).1),
                _ => "{unknown}".to_owned(),
            });
            (kind("AGGREGATE"), format!("elt_count={} [{}]", elements.len(), comma_separated(inner)))
        }
        Attribute::SymbolRef(_) => (kind("SYMBOL_REF"), String::new()),
    }
}

fn shape_text(shape: &Shape) -> String {
    match shape {
        Shape::Unranked => "<*>".to_owned(),
        Shape::Ranked(dims) => {
            let dims: Vec<String> = dims.iter().map(i64::to_string).collect();
            format!("<{}>", dims.join("x"))
        }
    }
}

fn list_text<T: fmt::Display>(items: impl Iterator<Item = T>) -> String {
    let mut items = items.peekable();
    let shown = comma_separated(items.by_ref().take(MAX_PRINTED));
    let more = if items.peek().is_some() { "..." } else { "" };
    format!("[{shown}{more}]")
}

fn array_text(array: &Array<'_>) -> (String, String) {
    let kind = match array.element_type() {
        ElementType::Data(dtype) => dtype.to_string(),
        ElementType::Type => "DTYPE".to_owned(),
    };
    let size = array.element_type().size() as usize;
    let text = match array.element_type() {
        ElementType::Data(dtype) => {
            list_text(array.bytes().chunks_exact(size).map(|b| crate::tensor::format_element(dtype, b)))
        }
        ElementType::Type => array.types().map_or_else(String::new, list_text),
    };
    (kind, text)
}

impl fmt::Display for OpAttrs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return writeln!(f, "OpAttrs is empty");
        }
        writeln!(f, "OpAttrs contains {} entries:", self.0.len())?;
        for (name, value) in &self.0 {
            let (kind, value) = describe(value.get());
            writeln!(f, "  '{name}' type={kind} value={value}")?;
        }
        writeln!(f)
    }
}

/// A set of operator attributes to which kernels add one at a time.
type OpAttrsBuilder = Mutex<OpAttrs<'static>>;

fn lock_attributes<'f>(frame: &'f Frame<'_>) -> Result<std::sync::MutexGuard<'f, OpAttrs<'static>>, Fault> {
    Ok(frame.object::<OpAttrsBuilder>(0)?.lock().unwrap_or_else(|e| e.into_inner()))
}

/// Registers a kernel that copies an attribute to a set. The kernel's attributes are the key and the value.
fn register_set_attribute(
    registry: &mut KernelRegistry,
    name: &str,
    value: for<'a> fn(&Frame<'a>) -> Result<Attribute<'a>, Fault>,
) {
    registry.add_fallible(name, move |frame: &mut Frame<'_>| {
        let key: &str = frame.attribute(0)?;
        let value = value(frame)?;
        let charge = frame.context().charge(key.len() as u64 + copied_bytes(&value))?;
        let copy = StoredAttribute::Copied(Arc::new((value.into_owned(), charge)));
        lock_attributes(frame)?.set(Cow::Owned(key.to_owned()), copy);
        Ok(Chain)
    });
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_typed("corert.create_op_attrs", || object_value(OpAttrsBuilder::default()));
    register_set_attribute(registry, "corert.op_attrs_set.bool", |f| Ok(Attribute::I1(f.attribute(1)?)));
    register_set_attribute(registry, "corert.op_attrs_set.i32", |f| Ok(Attribute::I32(f.attribute(1)?)));
    register_set_attribute(registry, "corert.op_attrs_set.i64", |f| Ok(Attribute::I64(f.attribute(1)?)));
    register_set_attribute(registry, "corert.op_attrs_set.f32", |f| {
        Ok(Attribute::F32(f.attribute::<f32>(1)?.to_bits()))
    });
    register_set_attribute(registry, "corert.op_attrs_set.dtype", |f| Ok(Attribute::Type(f.attribute(1)?)));
    register_set_attribute(registry, "corert.op_attrs_set.dense", |f| {
        Ok(Attribute::Dense(f.attribute::<&pteron_bef::Dense<'_>>(1)?.clone()))
    });
    register_set_attribute(registry, "corert.op_attrs_set.aggregate", |f| {
        Ok(Attribute::Aggregate(string::aggregate_attribute(f, 1)?.to_vec()))
    });
    register_set_attribute(registry, "corert.op_attrs_set.shape", |f| {
        Ok(Attribute::Shape(f.attribute::<&Shape>(1)?.clone()))
    });
    register_set_attribute(registry, "corert.op_attrs_set.str", |f| {
        Ok(Attribute::String(f.attribute::<&[u8]>(1)?.into()))
    });
    register_set_attribute(registry, "corert.op_attrs_set_array.i32", |f| {
        Ok(Attribute::Array(Array::from_i32s(&f.attribute::<Vec<i32>>(1)?)))
    });
    register_set_attribute(registry, "corert.op_attrs_set_array.i64", |f| {
        Ok(Attribute::Array(Array::from_i64s(&f.attribute::<Vec<i64>>(1)?)))
    });
    register_set_attribute(registry, "corert.op_attrs_set_array.f32", |f| {
        Ok(Attribute::Array(Array::from_f32s(&f.attribute::<Vec<f32>>(1)?)))
    });
    registry.add_fallible("tfrt_test.corert.op_attrs_print", |frame: &mut Frame<'_>| {
        let attrs = lock_attributes(frame)?.clone();
        out!(frame, "{attrs}");
        Ok(Chain)
    });
    registry.add_fallible("tfrt_test.corert.op_attrs_freeze", |frame: &mut Frame<'_>| {
        let attrs = lock_attributes(frame)?.clone();
        Ok((object_value(attrs), Chain))
    });
    registry.add_fallible("tfrt_test.corert.op_attrs_ref_print", |frame: &mut Frame<'_>| {
        out!(frame, "{}", frame.object::<OpAttrs<'static>>(0)?);
        Ok(Chain)
    });
}
