//! Writes and reads the attributes of a kernel by name.

use crate::error::{Error, Result};
use pteron_bef::{Array, Attribute};
use std::fmt::Display;

/// The attributes of a kernel that is being written.
#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(super) list: Vec<(&'static str, Attribute<'static>)>,
}

impl Record {
    fn push(&mut self, name: &'static str, value: Attribute<'static>) -> &mut Self {
        self.list.push((name, value));
        self
    }

    pub(crate) fn int(&mut self, name: &'static str, value: i64) -> &mut Self {
        self.push(name, Attribute::I64(value))
    }

    pub(crate) fn size(&mut self, name: &'static str, value: usize) -> &mut Self {
        self.int(name, i64::try_from(value).unwrap_or(i64::MAX))
    }

    pub(crate) fn float(&mut self, name: &'static str, value: f32) -> &mut Self {
        self.push(name, Attribute::f32(value))
    }

    pub(crate) fn flag(&mut self, name: &'static str, value: bool) -> &mut Self {
        self.push(name, Attribute::I1(value))
    }

    pub(crate) fn text(&mut self, name: &'static str, value: impl Display) -> &mut Self {
        self.push(name, Attribute::string(value.to_string()))
    }

    pub(crate) fn ints(&mut self, name: &'static str, values: &[i64]) -> &mut Self {
        self.push(name, array_of_ints(values))
    }

    pub(crate) fn sizes(&mut self, name: &'static str, values: &[usize]) -> &mut Self {
        let values: Vec<i64> = values.iter().map(|&n| i64::try_from(n).unwrap_or(i64::MAX)).collect();
        self.ints(name, &values)
    }

    pub(crate) fn texts(&mut self, name: &'static str, values: impl Iterator<Item = String>) -> &mut Self {
        self.list(name, values.map(Attribute::string).collect())
    }

    pub(crate) fn list(&mut self, name: &'static str, values: Vec<Attribute<'static>>) -> &mut Self {
        let value =
            if values.is_empty() { Attribute::Array(Array::empty()) } else { Attribute::Aggregate(values) };
        self.push(name, value)
    }
}

pub(super) fn array_of_ints(values: &[i64]) -> Attribute<'static> {
    Attribute::Array(if values.is_empty() { Array::empty() } else { Array::from_i64s(values) })
}

/// The attributes of a kernel that is being read.
#[derive(Debug)]
pub(crate) struct Fields<'f> {
    pub(super) list: Vec<(&'f str, &'f Attribute<'f>)>,
}

impl<'f> Fields<'f> {
    pub(super) fn get(&self, name: &str) -> Result<&'f Attribute<'f>> {
        let field = self.list.iter().find(|(other, _)| *other == name);
        field.map(|(_, value)| *value).ok_or_else(|| Error::new(format!("it has no attribute `{name}`")))
    }

    pub(crate) fn has(&self, name: &str) -> bool {
        self.list.iter().any(|(other, _)| *other == name)
    }

    fn get_as<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'f Attribute<'f>) -> Option<T>,
    ) -> Result<T> {
        let value = self.get(name)?;
        read(value).ok_or_else(|| {
            let actual_type = value.attribute_type();
            Error::new(format!("attribute `{name}` is of type {actual_type}, expected {expected}"))
        })
    }

    pub(crate) fn int(&self, name: &str) -> Result<i64> {
        self.get_as(name, "an i64", |value| if let Attribute::I64(v) = value { Some(*v) } else { None })
    }

    pub(crate) fn size(&self, name: &str) -> Result<usize> {
        let value = self.int(name)?;
        checked_size(value)
            .ok_or_else(|| Error::new(format!("attribute `{name}` is {value}, expected a size below 2^31")))
    }

    pub(crate) fn float(&self, name: &str) -> Result<f32> {
        self.get_as(name, "an f32", |value| {
            if let Attribute::F32(bits) = value { Some(f32::from_bits(*bits)) } else { None }
        })
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool> {
        self.get_as(name, "an i1", |value| if let Attribute::I1(v) = value { Some(*v) } else { None })
    }

    pub(crate) fn text(&self, name: &str) -> Result<&'f str> {
        self.get_as(name, "a UTF-8 string", string_value)
    }

    pub(crate) fn ints(&self, name: &str) -> Result<Vec<i64>> {
        self.get_as(name, "an array of i64", |value| match value {
            Attribute::Array(array) if array.is_empty() => Some(Vec::new()),
            Attribute::Array(array) => Some(array.i64s()?.collect()),
            _ => None,
        })
    }

    pub(crate) fn list_of_sizes(&self, name: &str) -> Result<Vec<usize>> {
        let values = self.ints(name)?;
        let sizes: Option<Vec<usize>> = values.iter().map(|&v| checked_size(v)).collect();
        sizes
            .ok_or_else(|| Error::new(format!("attribute `{name}` is {values:?}, expected sizes below 2^31")))
    }

    /// The attribute `name` as a list of exactly `N` sizes.
    pub(crate) fn sizes<const N: usize>(&self, name: &str) -> Result<[usize; N]> {
        let sizes = self.list_of_sizes(name)?;
        let actual = sizes.len();
        sizes
            .try_into()
            .map_err(|_| Error::new(format!("attribute `{name}` has {actual} sizes, expected {N}")))
    }

    pub(super) fn list(&self, name: &str) -> Result<&'f [Attribute<'f>]> {
        self.get_as(name, "a list", |value| match value {
            Attribute::Array(array) if array.is_empty() => Some(&[][..]),
            Attribute::Aggregate(list) => Some(&list[..]),
            _ => None,
        })
    }

    pub(crate) fn texts(&self, name: &str) -> Result<Vec<&'f str>> {
        let list = self.list(name)?;
        let texts: Option<Vec<&str>> = list.iter().map(string_value).collect();
        texts.ok_or_else(|| Error::new(format!("attribute `{name}`: expected UTF-8 strings")))
    }
}

/// A size from a file: 0 to 2^31 - 1, so that the product of two does not overflow 64 bits; otherwise `None`.
fn checked_size(value: i64) -> Option<usize> {
    usize::try_from(value).ok().filter(|size| *size < 1 << 31)
}

pub(super) fn string_value<'f>(value: &'f Attribute<'_>) -> Option<&'f str> {
    if let Attribute::String(bytes) = value { std::str::from_utf8(bytes).ok() } else { None }
}
