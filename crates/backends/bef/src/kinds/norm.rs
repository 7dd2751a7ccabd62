//! Layer norm and RMS norm.

use super::Stored;
use crate::error::Result;
use crate::payload::{Fields, Record};
use pteron_engine::RowNorm;

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
}
