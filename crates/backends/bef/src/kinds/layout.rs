//! Nodes that move elements, or none.

use super::{Operands, Stored};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use graph::{Permute, Relayout, Reshape};

impl Stored for Reshape {
    const KERNEL: &'static str = "pteron.reshape";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)
    }
}

impl Stored for Permute {
    const KERNEL: &'static str = "pteron.permute";

    fn write(&self, record: &mut Record) {
        record.sizes("dims", &self.dims);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { dims: fields.list_of_sizes("dims")?.into() })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        let (from, to) = (operands.input(0)?, operands.output(0)?);
        if Self::keeps_bytes(&self.dims, from, to) {
            return Ok(());
        }
        fail(format!("the dimensions {:?} of {from} are not those of {to}", self.dims))
    }
}

impl Stored for Relayout {
    const KERNEL: &'static str = "pteron.relayout";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        let (from, to) = (operands.input(0)?, operands.output(0)?);
        if from.dtype() == to.dtype() && from.sizes() == to.sizes() {
            return Ok(());
        }
        fail(format!("a change of layout from {from} to {to}"))
    }
}
