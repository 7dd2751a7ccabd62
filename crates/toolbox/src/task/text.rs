//! Task metadata as text.

use super::{Layout, Preprocessing, TaskMetadata};
use crate::picture::Resize;
use crate::show::line;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::{self, Write};

/// The name of the field with the labels.
const LABELS: &str = "labels";

/// Maximum number of labels that are shown.
const FEW_LABELS: usize = 5;

/// The fields with their values, as text.
fn fields(task: &TaskMetadata) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let mut all = Vec::new();
    let mut add = |name: &str, value: Option<String>| all.extend(value.map(|value| (name.to_owned(), value)));
    add("task", task.task.clone());
    add("preprocessing", task.preprocessing.as_ref().map(preprocessing_text));
    add(LABELS, (!task.labels.is_empty()).then(|| labels_text(&task.labels)));
    add(
        "tokenizer",
        task.tokenizer.as_ref().map(|tokenizer| {
            let file =
                tokenizer.other.get("file").map(|file| format!("{}, ", text(file))).unwrap_or_default();
            format!("{file}SHA-256 {}", tokenizer.sha256)
        }),
    );
    add("license", task.license.clone());
    add("provenance", task.provenance.as_ref().map(text));
    task.other.iter().for_each(|(name, value)| add(name, Some(text(value))));
    all
}

/// The fields that differ, with both values as text; for lists of labels of equal length, the first label that differs.
pub(crate) fn differences(a: TaskMetadata, b: TaskMetadata) -> Vec<(String, Option<String>, Option<String>)> {
    let (texts_a, texts_b) = (fields(&a), fields(&b));
    let text = |texts: &[(String, String)], name: &str| {
        texts.iter().find(|(known, _)| known == name).map(|(_, text)| text.clone())
    };
    let mut all = Vec::new();
    if a.labels != b.labels {
        let label = |labels: &[String], at: usize| labels.get(at).map(|label| format!("{at}: {label}"));
        let at = (0..).find(|&at| a.labels.get(at) != b.labels.get(at)).unwrap_or(0);
        let (x, y) = match a.labels.len() == b.labels.len() {
            true => (label(&a.labels, at), label(&b.labels, at)),
            false => (text(&texts_a, LABELS), text(&texts_b, LABELS)),
        };
        all.push((LABELS.to_owned(), x, y));
    }
    let names: BTreeSet<&String> = texts_a.iter().chain(&texts_b).map(|(name, _)| name).collect();
    for name in names.into_iter().filter(|name| *name != LABELS) {
        let (x, y) = (text(&texts_a, name), text(&texts_b, name));
        if x != y {
            all.push((name.clone(), x, y));
        }
    }
    all
}

/// The names of the fields that are set, on one line.
pub fn summary(task: &TaskMetadata) -> String {
    let fields: Vec<String> = fields(task).into_iter().map(|(name, _)| name).collect();
    if fields.is_empty() { "nothing".to_owned() } else { fields.join(", ") }
}

/// Writes the metadata as a paragraph.
pub(crate) fn write_text(out: &mut dyn Write, task: &TaskMetadata) -> fmt::Result {
    writeln!(out, "\ntask metadata")?;
    fields(task).iter().try_for_each(|(name, value)| writeln!(out, "  {}: {}", line(name), line(value)))
}

fn labels_text(labels: &[String]) -> String {
    let first = labels.iter().take(FEW_LABELS).map(String::as_str).collect::<Vec<_>>().join(", ");
    let more = if labels.len() > FEW_LABELS { ", …" } else { "" };
    format!("{} ({first}{more})", labels.len())
}

fn preprocessing_text(of: &Preprocessing) -> String {
    let list = |values: &[f32]| values.iter().map(f32::to_string).collect::<Vec<_>>().join(",");
    let mut parts = Vec::new();
    match of.resize {
        Some(Resize::Shorter(side)) => parts.push(format!("resize {side}")),
        Some(Resize::To(height, width)) => parts.push(format!("resize {height}x{width}")),
        None if of.crop.is_none() => parts.push("stretch to the input".to_owned()),
        None => {}
    }
    parts.extend(of.crop.map(|(height, width)| format!("crop {height}x{width}")));
    parts.push(of.scale.map_or_else(|| "scale 1/255".to_owned(), |scale| format!("scale {scale}")));
    parts.extend(of.mean.as_ref().map(|mean| format!("mean {}", list(mean))));
    parts.extend(of.std.as_ref().map(|std| format!("std {}", list(std))));
    parts.extend(of.layout.map(|layout| match layout {
        Layout::ChannelsFirst => "layout NCHW".to_owned(),
        Layout::ChannelsLast => "layout NHWC".to_owned(),
    }));
    parts.extend(of.other.iter().map(|(name, value)| format!("{name} {value}")));
    parts.join(", ")
}
