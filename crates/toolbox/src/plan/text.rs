use super::{Block, MethodPlan, PlanReport};
use crate::show::{bytes, count, line, name, table};
use std::fmt::{self, Write};

/// Maximum width of a chart of lifetimes, in characters.
const COLUMNS: usize = 48;
/// Maximum number of blocks of an arena that are shown by default.
const FEW: usize = 24;

/// The plans as text: for each arena its size, its peak, and a chart with one row per block and one column per
/// instruction or group of instructions, from before the first to after the last.
pub fn text(report: &PlanReport, all: bool) -> String {
    let mut out = String::new();
    let written = write(&mut out, report, all);
    debug_assert!(written.is_ok(), "a String takes all text");
    out
}

fn write(out: &mut String, report: &PlanReport, all: bool) -> fmt::Result {
    for (index, method) in report.methods.iter().enumerate() {
        if index > 0 {
            writeln!(out)?;
        }
        writeln!(out, "method {}, {}", name(&method.name), count(method.instructions, "instruction"))?;
        if method.arenas.is_empty() {
            writeln!(out, "  plans no memory")?;
        }
        for arena in &method.arenas {
            write!(out, "  arena {}: {}", arena.memory_id, bytes(arena.bytes))?;
            match &arena.peak_at {
                Some(at) => {
                    writeln!(out, ", of which at most {} needed at a time ({})", bytes(arena.peak), name(at))?
                }
                None => writeln!(out, ", none of it used")?,
            }
            let hidden = if all { 0 } else { arena.blocks.len().saturating_sub(FEW) };
            let rows = arena.blocks.iter().take(arena.blocks.len() - hidden).map(|block| {
                vec![
                    format!("{}..{}", block.bytes.start, block.bytes.end),
                    lifetime_bar(block, method.instructions),
                    value_ids(block),
                    block.layout.clone(),
                    block.role.to_owned(),
                ]
            });
            out.push_str(&table(rows.collect(), ">><<<", 4));
            if hidden > 0 {
                writeln!(out, "    … and {hidden} more (--all shows them)")?;
            }
        }
        for delegate in &method.delegates {
            let (index, backend) = (delegate.index, name(&delegate.backend));
            write!(
                out,
                "  delegate {index} ({backend}): {}, {} of constants, {} of intermediate tensors",
                count(delegate.nodes, "node"),
                bytes(delegate.constants),
                bytes(delegate.intermediates)
            )?;
            match &delegate.peak_at {
                Some(at) => writeln!(
                    out,
                    ", of which at most {} needed at a time ({})",
                    bytes(delegate.peak),
                    name(at)
                )?,
                None => writeln!(out)?,
            }
        }
        if !method.unknown_operators.is_empty() {
            let names = method.unknown_operators.join(", ");
            writeln!(
                out,
                "  taken to write their last argument only, as no kernel is known: {}",
                line(&names)
            )?;
        }
        write_overlaps(out, method)?;
    }
    Ok(())
}

/// The overlaps of blocks as text, one per line; empty if there are none.
pub fn overlaps_text(report: &PlanReport) -> String {
    let mut out = String::new();
    for method in report.methods.iter().filter(|method| !method.overlaps.is_empty()) {
        let written =
            writeln!(out, "method {}", name(&method.name)).and_then(|()| write_overlaps(&mut out, method));
        debug_assert!(written.is_ok(), "a String takes all text");
    }
    out
}

fn write_overlaps(out: &mut String, method: &MethodPlan) -> fmt::Result {
    for overlap in &method.overlaps {
        writeln!(
            out,
            "  OVERLAP in arena {}: {} ({}, bytes {}..{}) and {} ({}, bytes {}..{}) are both needed {}",
            overlap.memory_id,
            value_ids(&overlap.one),
            overlap.one.layout,
            overlap.one.bytes.start,
            overlap.one.bytes.end,
            value_ids(&overlap.other),
            overlap.other.layout,
            overlap.other.bytes.start,
            overlap.other.bytes.end,
            instruction_text(overlap.at)
        )?;
    }
    Ok(())
}

fn instruction_text(at: i64) -> String {
    if at < 0 {
        "when inputs are set".to_owned()
    } else {
        format!("at instruction {at}, which writes one of them")
    }
}

fn value_ids(block: &Block) -> String {
    let ids: Vec<String> = block.values.iter().take(4).map(|id| format!("%{id}")).collect();
    match block.values.len() {
        0..=4 => ids.join(" "),
        n => format!("{} and {} more", ids.join(" "), n - 4),
    }
}

/// A bar over the columns in which a block is live.
fn lifetime_bar(block: &Block, instructions: usize) -> String {
    // One more moment each before the first and after the last instruction.
    let moments = instructions as i64 + 2;
    let columns = moments.min(COLUMNS as i64);
    let column = |at: i64| (at + 1) * columns / moments;
    let ranges: Vec<(i64, i64)> = block.life.iter().map(|&(a, b)| (column(a), column(b))).collect();
    let lives = |c: i64| ranges.iter().any(|&(first, last)| (first..=last).contains(&c));
    (0..columns).map(|c| if lives(c) { '#' } else { '.' }).collect()
}
