//! Translates attributes to and from BEF.

use pteron_bef::attribute::{Array, Dense, ElementType, Shape, SymbolRef};
use pteron_bef::{Attribute as Bef, DType};

use crate::ir::{Attribute, DenseData, DenseElements, FloatKind, Signedness, Text, Type, canonical_int};

/// The BEF data type of an MLIR type; absent if BEF has none for it.
pub(super) fn dtype(ty: &Type) -> Option<DType> {
    Some(match ty {
        Type::Integer { width, signedness } => match (width, signedness) {
            (8, Signedness::Unsigned) => DType::UI8,
            (16, Signedness::Unsigned) => DType::UI16,
            (32, Signedness::Unsigned) => DType::UI32,
            (64, Signedness::Unsigned) => DType::UI64,
            (_, Signedness::Unsigned) => return None,
            (1, _) => DType::I1,
            (8, _) => DType::I8,
            (16, _) => DType::I16,
            (32, _) => DType::I32,
            (64, _) => DType::I64,
            _ => return None,
        },
        Type::Float(FloatKind::F16) => DType::F16,
        Type::Float(FloatKind::BF16) => DType::BF16,
        Type::Float(FloatKind::F32) => DType::F32,
        Type::Float(FloatKind::F64) => DType::F64,
        Type::Complex(element) => match **element {
            Type::Float(FloatKind::F32) => DType::Complex64,
            Type::Float(FloatKind::F64) => DType::Complex128,
            _ => return None,
        },
        Type::Dialect(symbol) if symbol.dialect == "corert" => {
            let row = CORERT_TYPES.iter().find(|(name, _)| *name == symbol.body)?;
            row.1
        }
        _ => return None,
    })
}

const CORERT_TYPES: [(&str, DType); 8] = [
    ("string", DType::String),
    ("resource", DType::Resource),
    ("variant", DType::Variant),
    ("quint8", DType::QUI8),
    ("quint16", DType::QUI16),
    ("qint8", DType::QI8),
    ("qint16", DType::QI16),
    ("qint32", DType::QI32),
];

/// The MLIR type of a BEF data type.
fn type_of(dtype: DType) -> Type {
    match dtype {
        DType::UI8 => Type::uint(8),
        DType::UI16 => Type::uint(16),
        DType::UI32 => Type::uint(32),
        DType::UI64 => Type::uint(64),
        DType::I1 => Type::int(1),
        DType::I8 => Type::int(8),
        DType::I16 => Type::int(16),
        DType::I32 => Type::int(32),
        DType::I64 => Type::int(64),
        DType::F16 => Type::Float(FloatKind::F16),
        DType::BF16 => Type::Float(FloatKind::BF16),
        DType::F32 => Type::Float(FloatKind::F32),
        DType::F64 => Type::Float(FloatKind::F64),
        DType::Complex64 => Type::complex(Type::Float(FloatKind::F32)),
        DType::Complex128 => Type::complex(Type::Float(FloatKind::F64)),
        other => {
            let row = CORERT_TYPES.iter().find(|(_, dtype)| *dtype == other);
            Type::dialect("corert", row.map_or("string", |row| row.0))
        }
    }
}

/// Size in bytes of the dense attributes in `attribute` when written to BEF, with splats expanded.
pub(super) fn dense_bytes(attribute: &Attribute) -> u64 {
    match attribute {
        Attribute::Dense(dense) => {
            dense.num_elements().saturating_mul(dense.element_size().unwrap_or(1) as u64)
        }
        Attribute::Array(elements) => {
            elements.iter().fold(0, |sum: u64, element| sum.saturating_add(dense_bytes(element)))
        }
        _ => 0,
    }
}

/// Translates an attribute to BEF; absent if BEF cannot represent it. Symbols are translated elsewhere.
pub(super) fn to_bef(attribute: &Attribute) -> Option<Bef<'static>> {
    Some(match attribute {
        Attribute::Integer { ty, value } => {
            let value = *value;
            match dtype(ty)? {
                DType::UI8 => Bef::UI8(value as u8),
                DType::UI16 => Bef::UI16(value as u16),
                DType::UI32 => Bef::UI32(value as u32),
                DType::UI64 => Bef::UI64(value as u64),
                DType::I1 => Bef::I1(value != 0),
                DType::I8 => Bef::I8(value as i8),
                DType::I16 => Bef::I16(value as i16),
                DType::I32 => Bef::I32(value as i32),
                DType::I64 => Bef::I64(value as i64),
                _ => return None,
            }
        }
        Attribute::Float { kind, bits } => match kind {
            FloatKind::F16 => Bef::F16(*bits as u16),
            FloatKind::BF16 => Bef::BF16(*bits as u16),
            FloatKind::F32 => Bef::F32(*bits as u32),
            FloatKind::F64 => Bef::F64(*bits as u64),
            _ => return None,
        },
        Attribute::String(text, _) => Bef::String(text.as_bytes().to_vec().into()),
        Attribute::Type(ty) => Bef::Type(dtype(ty)?),
        Attribute::Shape(None) => Bef::Shape(Shape::Unranked),
        Attribute::Shape(Some(dims)) => Bef::Shape(Shape::Ranked(dims.to_vec())),
        Attribute::Dense(dense) => Bef::Dense(dense_to_bef(dense)?),
        Attribute::Array(elements) => array_to_bef(elements)?,
        _ => return None,
    })
}

fn dense_to_bef(dense: &DenseElements) -> Option<Dense<'static>> {
    let shaped = dense.shaped_type()?;
    let element = dtype(&shaped.element)?;
    let DenseData::Bytes(bytes) = &dense.data else { return None };
    let bytes = if dense.is_splat() {
        bytes.repeat(usize::try_from(dense.num_elements()).ok()?)
    } else {
        bytes.clone()
    };
    Dense::new(element, shaped.shape.clone()?, bytes).ok()
}

/// Translates a list: elements that are scalars of one type, or types, become an array; others an aggregate.
fn array_to_bef(elements: &[Attribute]) -> Option<Bef<'static>> {
    let elements: Vec<Bef<'static>> = elements.iter().map(to_bef).collect::<Option<_>>()?;
    let Some(first) = elements.first() else { return Some(Bef::Array(Array::empty())) };
    let uniform = elements.iter().all(|element| element.attribute_type() == first.attribute_type());
    let element_type = match first.attribute_type() {
        pteron_bef::AttributeType::Scalar(dtype) => ElementType::Data(dtype),
        pteron_bef::AttributeType::Type => ElementType::Type,
        _ => return Some(Bef::Aggregate(elements)),
    };
    if !uniform {
        return Some(Bef::Aggregate(elements));
    }
    let mut bytes = Vec::new();
    for element in &elements {
        match element {
            Bef::UI8(v) => bytes.push(*v),
            Bef::I1(v) => bytes.push(u8::from(*v)),
            Bef::Type(v) => bytes.push(v.number()),
            Bef::I8(v) => bytes.extend(v.to_le_bytes()),
            Bef::UI16(v) | Bef::F16(v) | Bef::BF16(v) => bytes.extend(v.to_le_bytes()),
            Bef::I16(v) => bytes.extend(v.to_le_bytes()),
            Bef::UI32(v) | Bef::F32(v) => bytes.extend(v.to_le_bytes()),
            Bef::I32(v) => bytes.extend(v.to_le_bytes()),
            Bef::UI64(v) | Bef::F64(v) => bytes.extend(v.to_le_bytes()),
            Bef::I64(v) => bytes.extend(v.to_le_bytes()),
            _ => return None,
        }
    }
    Array::from_bytes(element_type, bytes).ok().map(Bef::Array)
}

fn integer_attribute(ty: Type, value: i128) -> Attribute {
    let value = canonical_int(&ty, value);
    Attribute::Integer { ty, value }
}

fn float_attribute(kind: FloatKind, bits: impl Into<u128>) -> Attribute {
    Attribute::Float { kind, bits: bits.into() }
}

/// Translates an attribute from BEF; absent if MLIR text cannot represent it (function names, and complex numbers
/// outside of tensors).
pub(super) fn from_bef(attribute: &Bef<'_>) -> Option<Attribute> {
    Some(match attribute {
        Bef::UI8(v) => integer_attribute(Type::uint(8), (*v).into()),
        Bef::UI16(v) => integer_attribute(Type::uint(16), (*v).into()),
        Bef::UI32(v) => integer_attribute(Type::uint(32), (*v).into()),
        Bef::UI64(v) => integer_attribute(Type::uint(64), (*v).into()),
        Bef::I1(v) => Attribute::bool(*v),
        Bef::I8(v) => integer_attribute(Type::int(8), (*v).into()),
        Bef::I16(v) => integer_attribute(Type::int(16), (*v).into()),
        Bef::I32(v) => integer_attribute(Type::int(32), (*v).into()),
        Bef::I64(v) => integer_attribute(Type::int(64), (*v).into()),
        Bef::F16(v) => float_attribute(FloatKind::F16, *v),
        Bef::BF16(v) => float_attribute(FloatKind::BF16, *v),
        Bef::F32(v) => float_attribute(FloatKind::F32, *v),
        Bef::F64(v) => float_attribute(FloatKind::F64, *v),
        Bef::Complex64(_) | Bef::Complex128(_) | Bef::Func(_) => return None,
        Bef::String(bytes) => Attribute::string(Text::from(&bytes[..])),
        Bef::Type(dtype) => Attribute::Type(type_of(*dtype)),
        Bef::Shape(shape) => Attribute::Shape(shape.dims().map(Into::into)),
        Bef::Dense(dense) => {
            let ty = Type::tensor(dense.dims().to_vec(), type_of(dense.dtype()));
            Attribute::Dense(DenseElements::from_bytes(ty, dense.bytes().to_vec()).into())
        }
        Bef::Array(array) => Attribute::array(array_elements(array)?),
        Bef::Aggregate(elements) => Attribute::array(elements.iter().map(from_bef).collect::<Option<_>>()?),
        Bef::SymbolRef(symbol) => symbol_from_bef(symbol),
    })
}

fn symbol_from_bef(symbol: &SymbolRef<'_>) -> Attribute {
    let nested = symbol.nested.iter().map(|name| Text::from(&**name)).collect();
    Attribute::SymbolRef { root: Text::from(&*symbol.root), nested }
}

fn array_elements(array: &Array<'_>) -> Option<Vec<Attribute>> {
    let dtype = match array.element_type() {
        ElementType::Type => {
            return Some(array.types()?.map(|dtype| Attribute::Type(type_of(dtype))).collect());
        }
        ElementType::Data(dtype) => dtype,
    };
    let size = usize::try_from(dtype.element_size()?).ok()?;
    let element = |bytes: &[u8]| match type_of(dtype) {
        Type::Float(kind) => Some(float_attribute(kind, crate::ir::read_bits(bytes))),
        ty @ Type::Integer { .. } => {
            let value = crate::ir::read_int(&ty, bytes);
            Some(Attribute::Integer { ty, value })
        }
        _ => None,
    };
    array.bytes().chunks_exact(size).map(element).collect()
}
