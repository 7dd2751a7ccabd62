//! Matrix multiplication with constant weights, and attention.

use super::Stored;
use super::text::{activation_text, parse_activation, unary_by_name, unary_name};
use crate::error::{Error, Result};
use crate::payload::{Fields, Record};
use pteron_engine::{Attention, AttentionParts, Linear, ViewParts};

impl Stored for Linear {
    const KERNEL: &'static str = "pteron.linear";

    fn write(&self, record: &mut Record) {
        record.flag("out_major", self.out_major).flag("bias", self.bias).flag("residual", self.residual);
        record.text("activation", activation_text(self.activation));
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        Ok(Self {
            out_major: fields.flag("out_major")?,
            bias: fields.flag("bias")?,
            residual: fields.flag("residual")?,
            activation: parse_activation(fields.text("activation")?)?,
        })
    }
}

impl Stored for Attention {
    const KERNEL: &'static str = "pteron.attention";

    fn write(&self, record: &mut Record) {
        let parts = self.parts();
        // For each view: the offset, then for each dimension the number of runs, and for each run its length and
        // stride.
        let mut views = Vec::new();
        for view in &parts.views {
            views.push(view.offset);
            for dim in &view.dims {
                views.push(dim.len());
                views.extend(dim.iter().flat_map(|&(n, stride)| [n, stride]));
            }
        }
        record.size("items", parts.items).size("heads", parts.heads).size("operands", parts.views.len());
        record.sizes("views", &views).float("factor", parts.factor).flag("safe", parts.safe);
        let names = ["factor_q", "factor_k", "factor_v", "factor_mask"];
        for (view, name) in parts.views.iter().zip(names) {
            record.float(name, view.factor);
        }
        if let Some(rounding) = parts.rounding {
            record.text("rounding", unary_name(rounding));
        }
    }

    fn read(fields: &Fields<'_>) -> Result<Self> {
        let numbers = fields.list_of_sizes("views")?;
        let mut numbers = numbers.into_iter();
        let names = ["factor_q", "factor_k", "factor_v", "factor_mask"];
        let mut views = Vec::new();
        for name in names.into_iter().take(fields.size("operands")?) {
            views.push(ViewParts { factor: fields.float(name)?, ..read_view(&mut numbers)? });
        }
        let rounding = match fields.has("rounding") {
            true => {
                let name = fields.text("rounding")?;
                Some(unary_by_name(name).ok_or_else(|| Error::new(format!("unknown function `{name}`")))?)
            }
            false => None,
        };
        let parts = AttentionParts {
            views,
            factor: fields.float("factor")?,
            safe: fields.flag("safe")?,
            rounding,
            items: fields.size("items")?,
            heads: fields.size("heads")?,
        };
        let attention = if numbers.next().is_none() { Self::from_parts(&parts) } else { None };
        attention.ok_or_else(|| Error::new("attention needs three or four views of three dimensions"))
    }
}

fn read_view(numbers: &mut impl Iterator<Item = usize>) -> Result<ViewParts> {
    let mut next = || numbers.next().ok_or_else(|| Error::new("the views of attention are truncated"));
    let offset = next()?;
    let mut dims = Vec::new();
    for _ in 0..3 {
        let runs = next()?;
        let mut dim = Vec::new();
        for _ in 0..runs {
            dim.push((next()?, next()?));
        }
        dims.push(dim);
    }
    Ok(ViewParts { offset, factor: 1.0, dims })
}
