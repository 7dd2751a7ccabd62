//! Layer norm and RMS norm.

use super::{Operands, Stored};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use graph::RowNorm;

impl Stored for RowNorm {
    const KERNEL: &'static str = "pteron.row_norm";

    fn write(&self, record: &mut Record) {
        record.size("elements", self.elements).float("eps", self.eps).flag("centred", self.centred);
        record.flag("weight", self.weight).flag("bias", self.bias);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            elements: fields.size("elements")?,
            eps: fields.float("eps")?,
            centred: fields.flag("centred")?,
            weight: fields.flag("weight")?,
            bias: fields.flag("bias")?,
        })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let factors = usize::from(self.weight) + usize::from(self.bias);
        operands.count(1 + factors, 1)?;
        operands.all_floats()?;
        operands.same_as_output(0)?;
        let x = operands.input(0)?;
        let mut trailing = x.sizes().iter().rev().scan(1usize, |rows, &size| {
            *rows = rows.checked_mul(size)?;
            Some(*rows)
        });
        if self.elements == 0 || !trailing.any(|elements| elements == self.elements) {
            return fail(format!("{} elements are not the last dimensions of {x}", self.elements));
        }
        if self.bias && !self.centred {
            return fail("an RMS norm has no bias");
        }
        for i in 1..=factors {
            let factor = operands.input(i)?;
            if factor.numel() != self.elements {
                return fail(format!("operand {i} is {factor}, expected {} elements", self.elements));
            }
        }
        Ok(())
    }
}
