//! The report as text.

use super::{ComparedValue, Divergence};
use crate::show;

/// The name of a value: `instruction 3 (aten::add.out), output 0`.
pub(super) fn name(place: Option<(u32, u32)>, what: &str, iteration: usize, output: usize) -> String {
    let Some((chain, instruction)) = place else {
        return format!("output {output} of the method");
    };
    let chain = if chain == 0 { String::new() } else { format!("{chain}:") };
    let mut text = format!("instruction {chain}{instruction} ({what})");
    if iteration > 0 {
        text += &format!(", run for the {} time", ordinal(iteration + 1));
    }
    text + &format!(", output {output}")
}

fn ordinal(n: usize) -> String {
    let suffix = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{suffix}")
}

impl Divergence {
    /// The report as text; with `all`, it lists every value.
    pub fn text(&self, all: bool) -> String {
        let number = |d: Option<f64>| d.map_or_else(|| "-".to_owned(), |d| format!("{d:.3e}"));
        let mut out = format!(
            "{}: {} of {} values compared",
            show::name(&self.method),
            self.values.len(),
            self.recorded
        );
        if !self.fused.is_empty() {
            out += &format!(", {} fused into others", self.fused.len());
        }
        out += "\n";
        if all {
            let compared = self.values.iter().map(|v| {
                let mark = if v.difference.is_some() { "differs" } else { "" };
                (v.place, vec![number(v.largest), v.name(), mark.to_owned()])
            });
            let fused =
                self.fused.iter().map(|v| (v.place, vec!["-".to_owned(), v.name(), "fused".to_owned()]));
            let mut rows: Vec<_> = compared.chain(fused).collect();
            rows.sort_by_key(|(place, _)| place.unwrap_or((u32::MAX, 0)));
            let rows = rows.into_iter().map(|(_, row)| row);
            out += &show::table(rows.collect(), "><<", 2);
        }
        match self.first.and_then(|i| self.values.get(i)) {
            Some(v) => {
                let difference = v.difference.as_deref().unwrap_or_default();
                out += &format!("the runs part at {}\n  {}\n", show::line(&v.name()), show::line(difference));
                for operand in &self.operands {
                    out += &format!("  it reads {}\n", show::line(&operand.to_string()));
                }
            }
            None => {
                let size = |v: &&ComparedValue| v.largest.unwrap_or(0.0);
                let largest = self.values.iter().max_by(|a, b| size(a).total_cmp(&size(b)));
                out += "the runs agree";
                if let Some(v) = largest.filter(|v| size(v) > 0.0) {
                    out += &format!(
                        "; the largest difference is {} at {}",
                        number(v.largest),
                        show::line(&v.name())
                    );
                }
                out += "\n";
            }
        }
        out
    }
}
