//! Operations that change sizes or layout, and channel shuffle.

use super::{Operands, Stored};
use crate::error::{Result, fail};
use crate::payload::{Fields, Record};
use graph::{ChannelShuffle, Permute, Relayout, Reshape};

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
        fail(format!("permuting {from} by {:?} to {to} would move elements", self.dims))
    }
}

impl Stored for ChannelShuffle {
    const KERNEL: &'static str = "pteron.channel_shuffle";

    fn write(&self, record: &mut Record) {
        record.size("groups", self.groups);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { groups: fields.size("groups")? })
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        operands.count(1, 1)?;
        operands.same_as_output(0)?;
        let image = operands.input(0)?;
        if self.takes(image) {
            return Ok(());
        }
        fail(format!("the channels of {image} cannot be shuffled in {} groups", self.groups))
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
        fail(format!("a relayout from {from} to {to} would change the type or sizes"))
    }
}
