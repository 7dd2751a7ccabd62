//! Operations that change sizes or layout, and channel shuffle.

use super::Stored;
use crate::error::Result;
use crate::payload::{Fields, Record};
use pteron_engine::{ChannelShuffle, Permute, Relayout, Reshape};

impl Stored for Reshape {
    const KERNEL: &'static str = "pteron.reshape";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
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
}

impl Stored for ChannelShuffle {
    const KERNEL: &'static str = "pteron.channel_shuffle";

    fn write(&self, record: &mut Record) {
        record.size("groups", self.groups);
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self { groups: fields.size("groups")? })
    }
}

impl Stored for Relayout {
    const KERNEL: &'static str = "pteron.relayout";

    fn write(&self, _: &mut Record) {}

    fn read(_: &Fields<'_>) -> Result<Self> {
        Ok(Self)
    }
}
