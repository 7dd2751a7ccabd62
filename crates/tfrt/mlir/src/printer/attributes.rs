//! Prints attributes and types.

use crate::ir::{
    Attribute, DenseData, DenseElements, Location, NamedAttribute, ShapedKind, ShapedType, Signedness, Type,
    format_float, read_bits, read_int,
};
use crate::lexer::is_bare_identifier;
use std::fmt;

/// Dense attributes with more elements than this, unless splats, are printed as a hexadecimal string.
const MAX_DENSE_LISTED: u64 = 100;

impl fmt::Display for Attribute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_attribute(&mut out, self);
        f.write_str(&out)
    }
}

impl fmt::Display for Type {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut out = String::new();
        write_type(&mut out, self);
        f.write_str(&out)
    }
}

/// Prints a quoted string with escapes.
pub(super) fn write_string(out: &mut String, bytes: &[u8]) {
    out.push('"');
    for &byte in bytes {
        match byte {
            b'\\' => out.push_str("\\\\"),
            b' '..=b'~' if byte != b'"' => out.push(char::from(byte)),
            _ => out.push_str(&format!("\\{byte:02X}")),
        }
    }
    out.push('"');
}

/// Prints `@name`.
pub(super) fn write_symbol(out: &mut String, name: &[u8]) {
    out.push('@');
    if is_bare_identifier(name) {
        out.push_str(&String::from_utf8_lossy(name));
    } else {
        write_string(out, name);
    }
}

/// Prints `name = value`, or only the name of a unit attribute.
pub(super) fn write_named(out: &mut String, (name, value): &NamedAttribute) {
    if is_bare_identifier(name) {
        out.push_str(&name.to_string_lossy());
    } else {
        write_string(out, name);
    }
    if *value != Attribute::Unit {
        out.push_str(" = ");
        write_attribute(out, value);
    }
}

fn write_separated<T>(out: &mut String, items: &[T], mut each: impl FnMut(&mut String, &T)) {
    for (at, item) in items.iter().enumerate() {
        if at > 0 {
            out.push_str(", ");
        }
        each(out, item);
    }
}

/// Prints an attribute with its type.
pub(crate) fn write_attribute(out: &mut String, attribute: &Attribute) {
    match attribute {
        Attribute::Integer { ty, .. } if *ty != Type::int(1) => {
            write_without_type(out, attribute);
            out.push_str(" : ");
            write_type(out, ty);
        }
        Attribute::Float { kind, .. } => {
            write_without_type(out, attribute);
            out.push_str(" : ");
            out.push_str(kind.keyword());
        }
        other => write_without_type(out, other),
    }
}

/// Prints an array's element; `i64` and `f64` literals lose their types where these are the default when parsed back.
fn write_element(out: &mut String, attribute: &Attribute) {
    let elided = match attribute {
        Attribute::Integer { ty, .. } => *ty == Type::int(64),
        Attribute::Float { kind, bits } => {
            kind.keyword() == "f64" && !format_float(*kind, *bits).starts_with("0x")
        }
        _ => false,
    };
    if elided { write_without_type(out, attribute) } else { write_attribute(out, attribute) }
}

/// Prints a numeric attribute without its type, and any other attribute in full.
pub(super) fn write_without_type(out: &mut String, attribute: &Attribute) {
    match attribute {
        Attribute::Unit => out.push_str("unit"),
        Attribute::Integer { ty, value } if *ty == Type::int(1) => {
            out.push_str(if *value == 0 { "false" } else { "true" });
        }
        Attribute::Integer { value, .. } => out.push_str(&value.to_string()),
        Attribute::Float { kind, bits } => out.push_str(&format_float(*kind, *bits)),
        Attribute::String(text, ty) => {
            write_string(out, text);
            if let Some(ty) = ty {
                out.push_str(" : ");
                write_type(out, ty);
            }
        }
        Attribute::Type(ty) => write_type(out, ty),
        Attribute::Array(elements) => {
            out.push('[');
            write_separated(out, elements, write_element);
            out.push(']');
        }
        Attribute::Dictionary(entries) => {
            out.push('{');
            write_separated(out, entries, write_named);
            out.push('}');
        }
        Attribute::SymbolRef { root, nested } => {
            write_symbol(out, root);
            for name in nested.iter() {
                out.push_str("::");
                write_symbol(out, name);
            }
        }
        Attribute::Dense(dense) => write_dense(out, dense),
        Attribute::DenseArray(ty, elements) => {
            out.push_str("array<");
            write_type(out, ty);
            if !elements.is_empty() {
                out.push_str(": ");
                write_separated(out, elements, write_without_type);
            }
            out.push('>');
        }
        Attribute::Shape(dims) => {
            out.push_str("#corert.shape<");
            match dims {
                None => out.push('*'),
                Some(dims) => {
                    let shown = |d: &i64| if *d == -1 { "?".to_string() } else { d.to_string() };
                    out.push_str(&dims.iter().map(shown).collect::<Vec<_>>().join("x"));
                }
            }
            out.push('>');
        }
        Attribute::Location(location) => {
            out.push_str("loc(");
            write_location(out, location);
            out.push(')');
        }
        Attribute::Dialect(symbol) => {
            out.push('#');
            symbol.write(out);
        }
        Attribute::Verbatim(text) => out.push_str(text),
    }
}

fn write_location(out: &mut String, location: &Location) {
    match location {
        Location::Unknown => out.push_str("unknown"),
        Location::FileLineCol { file, line, column } => {
            write_string(out, file);
            out.push_str(&format!(":{line}:{column}"));
        }
        Location::Name { name, child } => {
            write_string(out, name);
            if **child != Location::Unknown {
                out.push('(');
                write_location(out, child);
                out.push(')');
            }
        }
        Location::CallSite { callee, caller } => {
            out.push_str("callsite(");
            write_location(out, callee);
            out.push_str(" at ");
            write_location(out, caller);
            out.push(')');
        }
        Location::Fused { locations, metadata } => {
            out.push_str("fused");
            if let Some(metadata) = metadata {
                out.push('<');
                write_attribute(out, metadata);
                out.push('>');
            }
            out.push('[');
            write_separated(out, locations, write_location);
            out.push(']');
        }
    }
}

fn write_dense(out: &mut String, dense: &DenseElements) {
    out.push_str("dense<");
    if let Some(shaped) = dense.shaped_type() {
        let count = dense.num_elements();
        match &dense.data {
            DenseData::Bytes(bytes) if !dense.is_splat() && count > MAX_DENSE_LISTED => {
                write_hex(out, &shaped.element, bytes);
            }
            DenseData::Bytes(bytes) => {
                let size = dense.element_size().unwrap_or(1);
                let element = |out: &mut String, at: usize| {
                    if let Some(bytes) = bytes.get(at * size..(at + 1) * size) {
                        write_dense_element(out, &shaped.element, bytes);
                    }
                };
                write_nested(out, shaped, count, dense.is_splat(), element);
            }
            DenseData::Strings(strings) => {
                let element = |out: &mut String, at: usize| {
                    if let Some(text) = strings.get(at) {
                        write_string(out, text);
                    }
                };
                write_nested(out, shaped, count, dense.is_splat(), element);
            }
        }
    }
    out.push_str("> : ");
    write_type(out, &dense.ty);
}

/// Prints elements in nested brackets, one level per dimension.
fn write_nested(
    out: &mut String,
    shaped: &ShapedType,
    count: u64,
    splat: bool,
    mut element: impl FnMut(&mut String, usize),
) {
    let shape = shaped.shape.as_deref().unwrap_or(&[]);
    if count == 0 {
        return;
    }
    if splat || shape.is_empty() {
        return element(out, 0);
    }
    // `at` counts elements; brackets open and close at multiples of the number of elements of inner dimensions.
    let inner: Vec<u64> = (0..shape.len()).map(|d| shape[d..].iter().map(|&n| n as u64).product()).collect();
    for at in 0..count {
        if at > 0 {
            out.push_str(", ");
        }
        inner.iter().filter(|n| at % **n == 0).for_each(|_| out.push('['));
        element(out, at as usize);
        inner.iter().filter(|n| (at + 1) % **n == 0).for_each(|_| out.push(']'));
    }
}

fn write_dense_element(out: &mut String, ty: &Type, bytes: &[u8]) {
    match ty {
        Type::Float(kind) => out.push_str(&format_float(*kind, read_bits(bytes))),
        Type::Complex(element) => {
            let (re, im) = bytes.split_at(bytes.len() / 2);
            out.push('(');
            write_dense_element(out, element, re);
            out.push(',');
            write_dense_element(out, element, im);
            out.push(')');
        }
        _ => write_without_type(out, &Attribute::Integer { ty: ty.clone(), value: read_int(ty, bytes) }),
    }
}

/// Prints elements as hexadecimal digits of their bytes; `i1` elements are packed eight to a byte.
fn write_hex(out: &mut String, element: &Type, bytes: &[u8]) {
    out.push_str("\"0x");
    let mut byte = |b: u8| out.push_str(&format!("{b:02X}"));
    if *element == Type::int(1) {
        bytes.chunks(8).for_each(|bits| {
            byte(bits.iter().enumerate().fold(0, |packed, (at, bit)| packed | (bit & 1) << at));
        });
    } else {
        bytes.iter().for_each(|b| byte(*b));
    }
    out.push('"');
}

/// Prints a type.
pub(crate) fn write_type(out: &mut String, ty: &Type) {
    match ty {
        Type::Integer { width, signedness } => {
            out.push_str(match signedness {
                Signedness::Signless => "i",
                Signedness::Signed => "si",
                Signedness::Unsigned => "ui",
            });
            out.push_str(&width.to_string());
        }
        Type::Index => out.push_str("index"),
        Type::Float(kind) => out.push_str(kind.keyword()),
        Type::None => out.push_str("none"),
        Type::Complex(element) => {
            out.push_str("complex<");
            write_type(out, element);
            out.push('>');
        }
        Type::Function(function) => {
            out.push('(');
            write_separated(out, &function.inputs, write_type);
            out.push_str(") -> ");
            match function.results.as_slice() {
                [only] if !matches!(only, Type::Function(_)) => write_type(out, only),
                results => {
                    out.push('(');
                    write_separated(out, results, write_type);
                    out.push(')');
                }
            }
        }
        Type::Tuple(types) => {
            out.push_str("tuple<");
            write_separated(out, types, write_type);
            out.push('>');
        }
        Type::Shaped(shaped) => write_shaped(out, shaped),
        Type::Dialect(symbol) => {
            out.push('!');
            symbol.write(out);
        }
    }
}

fn write_shaped(out: &mut String, shaped: &ShapedType) {
    out.push_str(match shaped.kind {
        ShapedKind::Tensor => "tensor<",
        ShapedKind::Vector => "vector<",
        ShapedKind::MemRef => "memref<",
    });
    match &shaped.shape {
        None => out.push_str("*x"),
        Some(dims) => {
            for (at, dim) in dims.iter().enumerate() {
                let shown = if *dim < 0 { "?".to_string() } else { dim.to_string() };
                if shaped.scalable.get(at) == Some(&true) {
                    out.push_str(&format!("[{shown}]x"));
                } else {
                    out.push_str(&format!("{shown}x"));
                }
            }
        }
    }
    write_type(out, &shaped.element);
    for extra in &shaped.extra {
        out.push_str(", ");
        write_attribute(out, extra);
    }
    out.push('>');
}
