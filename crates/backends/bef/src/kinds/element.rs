//! Elementwise operations.

use super::words::{expression, expression_texts};
use super::{Operands, Stored};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use graph::{Affine, Cast, Dequantize, Lookup, Pointwise, Quantization, Quantize};
use std::sync::Arc;
use tensor::{ScalarType, TensorMeta};

impl Stored for Pointwise {
    const KERNEL: &'static str = "pteron.pointwise";

    fn write(&self, record: &mut Record) {
        record.texts("expression", expression_texts(&self.0));
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self(expression(&fields.texts("expression")?)?))
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = operands.inputs().len();
        operands.count(inputs, 1)?;
        if self.0.inputs() > inputs || operands.is_not_float(operands.output(0)?) {
            return fail(format!(
                "an expression of {} inputs has {inputs} operands, or its result is not float32",
                self.0.inputs()
            ));
        }
        (0..inputs).try_for_each(|i| operands.broadcasts(i))
    }
}

impl Stored for Cast {
    const KERNEL: &'static str = "pteron.cast";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        same_sizes(operands)?;
        let is_real = |meta: &TensorMeta| {
            matches!(meta.dtype(), ScalarType::Float | ScalarType::Half | ScalarType::BFloat16)
        };
        match is_real(operands.input(0)?) && is_real(operands.output(0)?) {
            true => Ok(()),
            false => fail("a cast supports only float32, float16 and bfloat16"),
        }
    }
}

/// The attribute names of scale and zero point.
const AFFINE: [&str; 2] = ["scale", "zero"];

pub(super) fn write_affine(record: &mut Record, names: [&'static str; 2], affine: &Affine) {
    record.float(names[0], affine.scale).int(names[1], affine.zero.into());
}

pub(super) fn affine(fields: &Fields<'_>, [scale, zero]: [&str; 2]) -> Result<Affine> {
    Ok(Affine { scale: fields.float(scale)?, zero: int(fields, zero)? })
}

pub(super) fn write_quantization(record: &mut Record, quantization: &Quantization) {
    let Quantization { affine, low, high } = quantization;
    write_affine(record, AFFINE, affine);
    record.int("low", (*low).into()).int("high", (*high).into());
}

pub(super) fn quantization(fields: &Fields<'_>) -> Result<Quantization> {
    Ok(Quantization { affine: affine(fields, AFFINE)?, low: int(fields, "low")?, high: int(fields, "high")? })
}

pub(super) fn int(fields: &Fields<'_>, name: &str) -> Result<i32> {
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
        quantization(fields).map(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        same_sizes(operands)?;
        let to = operands.output(0)?.dtype();
        let is_byte = matches!(to, ScalarType::Char | ScalarType::Byte);
        let is_sound = is_byte && self.0.is_sound(to == ScalarType::Char);
        match is_sound && operands.input(0)?.dtype() == ScalarType::Float {
            true => Ok(()),
            false => fail(format!("{to} does not support the quantization {:?}", self.0)),
        }
    }
}

impl Stored for Dequantize {
    const KERNEL: &'static str = "pteron.dequantize";

    fn write(&self, record: &mut Record) {
        write_affine(record, AFFINE, &self.0);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        affine(fields, AFFINE).map(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        same_sizes(operands)?;
        let from = operands.input(0)?.dtype();
        let is_byte = matches!(from, ScalarType::Char | ScalarType::Byte);
        match is_byte
            && operands.output(0)?.dtype() == ScalarType::Float
            && self.0.zero.unsigned_abs() < 1 << 16
        {
            true => Ok(()),
            false => fail(format!("{from} cannot be dequantized by {:?}", self.0)),
        }
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

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        same_sizes(operands)?;
        let metas = [operands.input(0)?, operands.output(0)?];
        match metas.iter().all(|meta| matches!(meta.dtype(), ScalarType::Char | ScalarType::Byte)) {
            true => Ok(()),
            false => {
                fail(format!("a table lookup from {} to {}, expected 8-bit integers", metas[0], metas[1]))
            }
        }
    }
}

fn same_sizes(operands: &Operands<'_>) -> Result<()> {
    let (from, to) = (operands.input(0)?, operands.output(0)?);
    match from.sizes() == to.sizes() {
        true => Ok(()),
        false => fail(format!("the operand is {from}, the result {to}, expected equal sizes")),
    }
}
