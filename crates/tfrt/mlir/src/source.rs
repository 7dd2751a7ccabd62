//! The source text and its line table.

use crate::limits::MAX_QUOTED_LINE;

/// A source text with its line offsets.
pub(crate) struct Source<'a> {
    /// Name of the source file in locations and messages.
    pub(crate) name: &'a str,
    /// The whole text.
    pub(crate) text: &'a [u8],
    starts: Vec<u32>,
}

impl<'a> Source<'a> {
    pub(crate) fn new(name: &'a str, text: &'a [u8]) -> Source<'a> {
        let newlines = text.iter().enumerate().filter(|(_, b)| **b == b'\n').map(|(at, _)| at as u32 + 1);
        let starts = std::iter::once(0).chain(newlines).collect();
        Source { name, text, starts }
    }

    /// Line and column of a byte offset, both from 1; columns count bytes.
    pub(crate) fn line_col(&self, offset: u32) -> (u32, u32) {
        let line = self.starts.partition_point(|&start| start <= offset);
        (line as u32, offset - self.starts[line - 1] + 1)
    }

    /// The text of a line (from 1), without its line end, truncated to [`MAX_QUOTED_LINE`].
    pub(crate) fn line(&self, line: u32) -> Option<String> {
        let at = (line as usize).checked_sub(1)?;
        let start = *self.starts.get(at)? as usize;
        let end = self.starts.get(at + 1).map_or(self.text.len(), |&next| next as usize - 1);
        let text = &self.text[start..end.min(start + MAX_QUOTED_LINE)];
        Some(String::from_utf8_lossy(text.strip_suffix(b"\r").unwrap_or(text)).into_owned())
    }
}
