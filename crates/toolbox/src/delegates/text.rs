use super::DelegatePayload;
use crate::show::{bytes, line, name};
use std::fmt::Write;

/// Payloads as text: MLIR for BEF programs, otherwise nodes and tensors, or the reason why there are none; always with size
/// and magic.
pub fn text(payloads: &[DelegatePayload]) -> String {
    let mut out = String::new();
    for payload in payloads {
        let magic = payload.magic.as_deref().unwrap_or("payload of unknown kind");
        let _ = writeln!(
            out,
            "delegate {} of {}: {}, {} {}, {}, {magic}",
            payload.index,
            name(&payload.method),
            name(&payload.backend),
            payload.location.to_ascii_lowercase(),
            payload.number,
            bytes(payload.bytes)
        );
        let contents = payload.contents.as_ref().map(|contents| contents.read.to_string());
        let shown = payload.mlir.clone().or(contents).or_else(|| payload.problem.clone()).unwrap_or_default();
        for shown in shown.lines() {
            // The spaces that align columns are kept; the text between them is made safe to show.
            let pieces: Vec<String> = shown.split("  ").map(|piece| line(piece).to_string()).collect();
            let _ = writeln!(out, "  {}", pieces.join("  "));
        }
    }
    out
}
