//! Generates the page: data, style and script in one HTML file.

use super::ReportData;
use pteron_text::is_plain;
use pteron_toolbox::{Error, Result};
use std::fmt::Write;

const HEAD: &str = include_str!("page.html");
const STYLE: &str = include_str!("page.css");
/// The files of the script, in dependency order.
const SCRIPT: &[&str] = &[
    include_str!("js/state.js"),
    include_str!("js/canvas.js"),
    include_str!("js/panel.js"),
    include_str!("js/tables.js"),
    include_str!("js/print.js"),
    include_str!("js/main.js"),
];

/// Generates the page of this data. It refers to nothing outside itself; its content security policy forbids external
/// resources and all scripts but its own. The data is embedded as JSON with `<`, `>` and `&` escaped.
pub fn page(data: &ReportData) -> Result<String> {
    let json = serde_json::to_string(data)
        .map_err(|e| Error::Context { context: "cannot write the report".to_owned(), source: Box::new(e) })?;
    let script = format!("\"use strict\";\n(() => {{\n{}}})();\n", SCRIPT.concat());
    let families = serde_json::to_string(&super::FAMILIES)
        .map_err(|e| Error::Context { context: "cannot write the report".to_owned(), source: Box::new(e) })?;
    let policy = format!(
        "default-src 'none'; img-src data: blob:; script-src 'sha256-{}'; style-src 'sha256-{}'; base-uri 'none'; form-action 'none'",
        sha256_base64(&script),
        sha256_base64(STYLE)
    );
    let mut out = String::with_capacity(json.len() + script.len() + STYLE.len() + HEAD.len());
    let mut rest = HEAD;
    // Substitute from front to back, and never scan inserted text, so that `{{` in the data is not taken for a placeholder.
    while let Some((before, after)) = rest.split_once("{{") {
        out.push_str(before);
        let (name, after) = after.split_once("}}").unwrap_or((after, ""));
        match name {
            "title" => out.push_str(&escape_text(&data.file)),
            "policy" => out.push_str(&policy),
            "style" => out.push_str(STYLE),
            "script" => out.push_str(&script),
            "families" => out.push_str(&escape_json(&families)),
            "data" => out.push_str(&escape_json(&json)),
            other => debug_assert!(false, "the template has no place {other}"),
        }
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

/// Escapes JSON for a script element: characters that could end the element or begin markup. They occur only within
/// strings, where escapes are valid. Characters without a visible form, and those that reorder text, are shown as their escapes,
/// whether the JSON has them as they are or escaped.
fn escape_json(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    let mut chars = json.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '<' | '>' | '&' => _ = write!(out, "\\u{:04x}", c as u32),
            '\\' => match chars.next().map(|(_, escaped)| escaped) {
                Some('u') => {
                    let number = json.get(at + 2..at + 6).and_then(|hex| u32::from_str_radix(hex, 16).ok());
                    chars.nth(3);
                    // Serde escapes control characters only.
                    _ = write!(out, "\\\\u{{{:x}}}", number.unwrap_or_default());
                }
                Some(escaped @ ('b' | 'f' | 'r')) => _ = write!(out, "\\\\{escaped}"),
                Some(escaped) => out.extend(['\\', escaped]),
                None => {}
            },
            '\n' => out.push(c),
            c if !is_plain(c) => _ = write!(out, "\\{}", c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// Escapes text for HTML.
fn escape_text(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '&' => out.push_str("&amp;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if !is_plain(c) => _ = write!(out, "{}", c.escape_unicode()),
            c => out.push(c),
        }
    }
    out
}

/// The SHA-256 of a text in base64, as content security policies identify scripts.
fn sha256_base64(text: &str) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let hexadecimal = pteron_format::Digest::hex_digest(text.as_bytes());
    let pairs = hexadecimal.as_bytes().as_chunks::<2>().0.iter();
    let digit = |c: u8| char::from(c).to_digit(16).unwrap_or(0) as u8;
    let bytes: Vec<u8> = pairs.map(|&[high, low]| digit(high) << 4 | digit(low)).collect();
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let word =
            three.iter().fold(0u32, |word, &byte| word << 8 | u32::from(byte)) << (8 * (3 - three.len()));
        for digit in 0..4 {
            let value = (word >> (18 - 6 * digit)) & 63;
            out.push(if digit > three.len() { '=' } else { char::from(DIGITS[value as usize]) });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_base64_of_sha256() {
        // `printf 'alert(1)' | openssl dgst -sha256 -binary | base64`
        assert_eq!(sha256_base64("alert(1)"), "bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI=");
    }

    #[test]
    fn json_cannot_end_the_script_element() {
        assert_eq!(escape_json(r#"["</script><!--&"]"#), r#"["\u003c/script\u003e\u003c!--\u0026"]"#);
        let json = serde_json::to_string("\x1b[2J\u{202e}\r\n\"\\u").expect("it is text");
        assert_eq!(escape_json(&json), r#""\\u{1b}[2J\\u{202e}\\r\n\"\\u""#);
        assert_eq!(escape_text("a\u{202e}\x1b"), r"a\u{202e}\u{1b}");
        assert_eq!(escape_text("<a b='\"&'>"), "&lt;a b=&#39;&quot;&amp;&#39;&gt;");
    }
}
