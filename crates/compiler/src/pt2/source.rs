//! Parses Python stack traces and module paths from the metadata of nodes.

use pteron_exported::{Source, SourceFrame};
use std::collections::HashMap;
use std::sync::Arc;

/// The maximum number of frames kept for a node.
const MAX_FRAMES: usize = 32;

/// Interned sources: neighbouring nodes often share one.
#[derive(Default)]
pub(super) struct Sources {
    known: HashMap<(String, String), Arc<Source>>,
}

impl Sources {
    pub(super) fn intern(&mut self, metadata: &HashMap<String, String>) -> Arc<Source> {
        let text = |key: &str| metadata.get(key).cloned().unwrap_or_default();
        let key = (text("stack_trace"), text("nn_module_stack"));
        if let Some(source) = self.known.get(&key) {
            return Arc::clone(source);
        }
        let source = Arc::new(Source { frames: parse_frames(&key.0), module: innermost_module(&key.1) });
        self.known.insert(key, Arc::clone(&source));
        source
    }
}

/// Parses `File "model.py", line 3, in forward`, each followed by an indented source line.
fn parse_frames(trace: &str) -> Vec<SourceFrame> {
    let mut frames: Vec<SourceFrame> = Vec::new();
    for line in trace.lines() {
        let text = line.trim();
        match parse_frame(text) {
            Some(frame) if frames.len() < MAX_FRAMES => frames.push(frame),
            Some(_) => break,
            None => {
                if let Some(frame) = frames.last_mut().filter(|f| f.text.is_empty()) {
                    text.clone_into(&mut frame.text);
                }
            }
        }
    }
    frames
}

fn parse_frame(text: &str) -> Option<SourceFrame> {
    let rest = text.strip_prefix("File \"")?;
    let (file, rest) = rest.split_once("\", line ")?;
    let (line, function) = rest.split_once(", in ").unwrap_or((rest, ""));
    let line = line.trim().parse().ok()?;
    Some(SourceFrame { file: file.to_owned(), line, function: function.to_owned(), text: String::new() })
}

/// The path of the innermost module in `key,path,type;key,path,type`.
fn innermost_module(stack: &str) -> String {
    let innermost = stack.rsplit(';').next().unwrap_or_default();
    innermost.split(',').nth(1).unwrap_or_default().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_have_file_line_function_and_text() {
        let trace = "File \"a.py\", line 12, in forward\n    return torch.relu(\n        x)\nFile \"b.py\", line 3, in f\n    y";
        let frames = parse_frames(trace);
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[0].to_string(), "a.py:12, in forward: return torch.relu(");
        assert_eq!((frames[1].line, frames[1].text.as_str()), (3, "y"));
        assert_eq!(innermost_module("L__self__,,M;L__self__c,layers.0.c,torch.nn.Conv2d"), "layers.0.c");
    }
}
