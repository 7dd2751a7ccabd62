//! Elementwise operations.

use super::Stored;
use super::text::{expression_texts, parse_expression};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use pteron_engine::{Affine, Cast, Dequantize, Lookup, Pointwise, Quantization, Quantize};
use std::sync::Arc;

impl Stored for Pointwise {
    const KERNEL: &'static str = "pteron.pointwise";

    fn write(&self, record: &mut Record) {
        record.texts("expression", expression_texts(&self.0));
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self(parse_expression(&fields.texts("expression")?)?))
    }
}

impl Stored for Cast {
    const KERNEL: &'static str = "pteron.cast";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }
}

/// The attribute names of scale and zero point.
const AFFINE: [&str; 2] = ["scale", "zero"];

pub(super) fn write_affine(record: &mut Record, names: [&'static str; 2], affine: &Affine) {
    record.float(names[0], affine.scale).int(names[1], affine.zero.into());
}

pub(super) fn read_affine(fields: &Fields<'_>, [scale, zero]: [&str; 2]) -> Result<Affine> {
    Ok(Affine { scale: fields.float(scale)?, zero: read_i32(fields, zero)? })
}

pub(super) fn write_quantization(record: &mut Record, quantization: &Quantization) {
    let Quantization { affine, low, high } = quantization;
    write_affine(record, AFFINE, affine);
    record.int("low", (*low).into()).int("high", (*high).into());
}

pub(super) fn read_quantization(fields: &Fields<'_>) -> Result<Quantization> {
    Ok(Quantization {
        affine: read_affine(fields, AFFINE)?,
        low: read_i32(fields, "low")?,
        high: read_i32(fields, "high")?,
    })
}

pub(super) fn read_i32(fields: &Fields<'_>, name: &str) -> Result<i32> {
    let value = fields.int(name)?;
    match i32::try_from(value) {
        Ok(value) => Ok(value),
        Err(_) => fail(format!("attribute `{name}` is {value}, expected an i32")),
    }
}

impl Stored for Quantize {
    const KERNEL: &'static str = "pteron.quantize";

    fn write(&self, record: &mut Record) {
        write_quantization(record, &self.0);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        read_quantization(fields).map(Self)
    }
}

impl Stored for Dequantize {
    const KERNEL: &'static str = "pteron.dequantize";

    fn write(&self, record: &mut Record) {
        write_affine(record, AFFINE, &self.0);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        read_affine(fields, AFFINE).map(Self)
    }
}

impl Stored for Lookup {
    const KERNEL: &'static str = "pteron.lookup";

    fn write(&self, record: &mut Record) {
        let entries: Vec<i64> = self.0.iter().map(|&entry| entry.into()).collect();
        record.ints("table", &entries);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let entries: Option<Vec<u8>> = fields.ints("table")?.iter().map(|&n| u8::try_from(n).ok()).collect();
        match entries.and_then(|entries| entries.try_into().ok()) {
            Some(table) => Ok(Self(Arc::new(table))),
            None => fail("the table is not 256 integers in 0..=255"),
        }
    }
}
