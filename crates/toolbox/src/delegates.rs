//! What the delegates of a program were given: as their backends show it, or what it looks like.

use crate::Result;
use crate::inspect::sniff_payload;
use crate::show::bytes;
use format::pte::DataLocation;
use runtime::{BackendRegistry, Program, Purpose};
use std::fmt::Write;

/// Bytes of a payload by which it is recognised.
const HEAD: usize = 64;

/// The payloads of a program, one after another: the listing of the backend, if that is registered and has one;
/// otherwise size and magic. Payloads are read for that. Empty if nothing is delegated.
pub fn listing(program: &Program, backends: &BackendRegistry) -> Result<String> {
    let tables = program.tables();
    let mut out = String::new();
    for plan in &tables.execution_plan {
        for (index, delegate) in plan.delegates.iter().enumerate() {
            let range = tables.delegate_data(delegate);
            let size = range.end - range.start;
            let payload = program.loader().load(range.start, size, Purpose::Backend(&delegate.id))?;
            let place = match delegate.processed.location {
                DataLocation::Inline => "inline",
                DataLocation::Segment => "segment",
            };
            let magic =
                sniff_payload(&payload[..payload.len().min(HEAD)]).unwrap_or("payload of unknown kind");
            let _ = writeln!(
                out,
                "delegate {index} of {}: {}, {place} {}, {}, {magic}",
                plan.name,
                delegate.id,
                delegate.processed.index,
                bytes(size)
            );
            match backends.get(&delegate.id).and_then(|backend| backend.listing(&payload)) {
                Some(Ok(text)) => text.lines().for_each(|line| {
                    let _ = writeln!(out, "  {line}");
                }),
                Some(Err(error)) => {
                    let _ = writeln!(out, "  {error}");
                }
                None => out.push_str("  nothing here shows payloads of this backend\n"),
            }
        }
    }
    Ok(out)
}
