//! Formats values, and text of files, for people.

use pteron_operator::EValue;
use pteron_tensor::{Bool, Complex, DimOrder, ScalarType, Tensor, bf16, f16};
use std::fmt::{self, Write};

pub use pteron_text::{Escapes, Screen, bytes as byte_text, line, message, quoted, text as name};

/// Tensors with more elements than this are elided.
const WHOLE: usize = 200;
/// Number of entries shown at each end of an elided dimension.
const EDGE: usize = 3;

/// A value as text: type and sizes, then the elements in nested brackets.
pub fn value(value: &EValue) -> String {
    match value {
        EValue::None => "none".to_owned(),
        EValue::Tensor(t) => tensor(t),
        EValue::String(s) => quoted(s).to_string(),
        EValue::Double(v) => format!("double {}", number(*v)),
        EValue::Int(v) => format!("int {v}"),
        EValue::Bool(v) => format!("bool {v}"),
        EValue::ListBool(v) => format!("bool[] {}", items(v.iter().map(bool::to_string))),
        EValue::ListDouble(v) => format!("double[] {}", items(v.iter().map(|v| format!("{v:?}")))),
        EValue::ListInt(v) => format!("int[] {}", items(v.iter().map(i64::to_string))),
        EValue::ListTensor(v) => list(v.iter().map(tensor)),
        EValue::ListOptionalTensor(v) => {
            list(v.iter().map(|t| t.as_ref().map_or_else(|| "none".to_owned(), tensor)))
        }
    }
}

fn list(items: impl Iterator<Item = String>) -> String {
    let items: Vec<String> = items.collect();
    format!("[{}]", items.join(",\n "))
}

/// A tensor as text: `float32[2] [1, 2]`. If there are several rows, the elements start on a new line.
pub fn tensor(tensor: &Tensor) -> String {
    let mut text = tensor.meta().to_string();
    let row_major = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()));
    match row_major.as_ref().map(elements) {
        Ok(Some(element)) => {
            let rows: usize = tensor.sizes().split_last().map_or(1, |(_, outer)| outer.iter().product());
            text.push(if rows > 1 { '\n' } else { ' ' });
            // The brackets of an empty tensor: there may be any number of them without an element.
            let brackets = tensor.sizes().iter().take_while(|&&size| size > 0);
            if tensor.numel() == 0 && brackets.fold(1, |n: usize, &size| n.saturating_mul(size)) > WHOLE {
                text.push_str("[…]");
                return text;
            }
            let elide = tensor.numel() > WHOLE;
            nested_brackets(&mut text, tensor.sizes(), 0, 1, elide, &*element);
        }
        _ => {
            let _ = write!(text, " ({} bytes)", tensor.nbytes());
        }
    }
    text
}

/// A function from the index of an element of a row-major tensor to its text. `None` for types whose elements have no
/// textual form.
pub fn elements(tensor: &Tensor) -> Option<Box<dyn Fn(usize) -> String + '_>> {
    macro_rules! each {
        ($type:ty, $show:expr) => {{
            let all = tensor.as_slice::<$type>().ok()?;
            let show: fn($type) -> String = $show;
            Box::new(move |i: usize| all.get(i).map_or_else(String::new, |v| show(*v)))
        }};
    }
    Some(match tensor.dtype() {
        ScalarType::Byte => each!(u8, |v| v.to_string()),
        ScalarType::Char => each!(i8, |v| v.to_string()),
        ScalarType::Short => each!(i16, |v| v.to_string()),
        ScalarType::Int => each!(i32, |v| v.to_string()),
        ScalarType::Long => each!(i64, |v| v.to_string()),
        ScalarType::UInt16 => each!(u16, |v| v.to_string()),
        ScalarType::UInt32 => each!(u32, |v| v.to_string()),
        ScalarType::UInt64 => each!(u64, |v| v.to_string()),
        ScalarType::Half => each!(f16, |v| number(v.to_f64())),
        ScalarType::BFloat16 => each!(bf16, |v| number(v.to_f64())),
        ScalarType::Float => each!(f32, |v| number(v.into())),
        ScalarType::Double => each!(f64, number),
        ScalarType::Bool => each!(Bool, |v| v.get().to_string()),
        ScalarType::ComplexFloat => each!(Complex<f32>, |v| complex(v.re.into(), v.im.into())),
        ScalarType::ComplexDouble => each!(Complex<f64>, |v| complex(v.re, v.im)),
        ScalarType::ComplexHalf => each!(Complex<f16>, |v| complex(v.re.to_f64(), v.im.to_f64())),
        _ => return None,
    })
}

/// A function from the index of an element of a row-major tensor to its value as `f64`. `None` for types other than
/// floats, integers and booleans.
pub fn numbers(tensor: &Tensor) -> Option<Box<dyn Fn(usize) -> f64 + '_>> {
    macro_rules! each {
        ($type:ty, $convert:expr) => {{
            let all = tensor.as_slice::<$type>().ok()?;
            let convert: fn($type) -> f64 = $convert;
            Box::new(move |i: usize| all.get(i).map_or(f64::NAN, |v| convert(*v)))
        }};
    }
    Some(match tensor.dtype() {
        ScalarType::Byte => each!(u8, f64::from),
        ScalarType::Char => each!(i8, f64::from),
        ScalarType::Short => each!(i16, f64::from),
        ScalarType::Int => each!(i32, f64::from),
        ScalarType::Long => each!(i64, |v| v as f64),
        ScalarType::UInt16 => each!(u16, f64::from),
        ScalarType::UInt32 => each!(u32, f64::from),
        ScalarType::UInt64 => each!(u64, |v| v as f64),
        ScalarType::Half => each!(f16, f16::to_f64),
        ScalarType::BFloat16 => each!(bf16, bf16::to_f64),
        ScalarType::Float => each!(f32, f64::from),
        ScalarType::Double => each!(f64, f64::from),
        ScalarType::Bool => each!(Bool, |v| f64::from(u8::from(v.get()))),
        _ => return None,
    })
}

fn nested_brackets(
    out: &mut String,
    sizes: &[usize],
    first: usize,
    depth: usize,
    elide: bool,
    element: &dyn Fn(usize) -> String,
) {
    let Some((&n, inner)) = sizes.split_first() else {
        out.push_str(&element(first));
        return;
    };
    let step: usize = inner.iter().product();
    let separator = match inner.len() {
        0 => ", ".to_owned(),
        _ => format!(",\n{}", " ".repeat(depth)),
    };
    out.push('[');
    let mut i = 0;
    while i < n {
        if i > 0 {
            out.push_str(&separator);
        }
        if elide && n > 2 * EDGE && i == EDGE {
            out.push('…');
            i = n - EDGE;
            continue;
        }
        nested_brackets(out, inner, first + i * step, depth + 1, elide, element);
        i += 1;
    }
    out.push(']');
}

/// A number with six significant digits: `0.959504`, `1e-05`, `12`.
pub fn number(v: f64) -> String {
    if !v.is_finite() || v == 0.0 {
        return v.to_string();
    }
    let scientific = format!("{v:.5e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |s: &str| match s.contains('.') {
        true => s.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => s.to_owned(),
    };
    if (-5..6).contains(&exponent) {
        trim(&format!("{v:.*}", (5 - exponent).max(0) as usize))
    } else {
        format!("{}e{exponent}", trim(digits))
    }
}

fn complex(re: f64, im: f64) -> String {
    let sign = if im.is_sign_negative() { "" } else { "+" };
    format!("{}{sign}{}j", number(re), number(im))
}

/// A number of bytes with a suitable unit: `44.1 kB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 4] = ["kB", "MB", "GB", "TB"];
    if n < 1000 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1000.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1000.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// A tensor's type, sizes and, if it is not row-major, dim order: `float32[2, 3]`.
pub fn layout(layout: &pteron_format::ptd::TensorLayout) -> String {
    layout_of_fields(layout.scalar_type, &layout.sizes, &layout.dim_order)
}

/// Formats the scalar type, sizes and dim order stored in a file, as [`layout`] formats a layout.
pub fn layout_of_fields(scalar_type: i8, sizes: &[i32], dim_order: &[u8]) -> String {
    let dtype = ScalarType::from_i8(scalar_type);
    let mut text = dtype.map_or_else(|_| format!("type {scalar_type}"), |t| t.name().to_owned());
    let _ = write!(text, "{sizes:?}");
    if dim_order.iter().enumerate().any(|(i, &d)| i != usize::from(d)) {
        let _ = write!(text, " in dim order {dim_order:?}");
    }
    text
}

/// A count with its noun: `1 call`, `2 calls`.
pub fn count(n: usize, thing: &str) -> String {
    if n == 1 { format!("1 {thing}") } else { format!("{n} {thing}s") }
}

/// Maximum number of items of a list that are shown by [`items`].
const ITEMS: usize = 100;

/// The items of a list in brackets: all of up to a hundred, otherwise the first hundred and the number of the others.
pub fn items(all: impl ExactSizeIterator<Item: fmt::Display>) -> String {
    let more = all.len().saturating_sub(ITEMS);
    let mut out = String::from("[");
    for (i, item) in all.take(ITEMS).enumerate() {
        let _ = write!(out, "{}{item}", if i > 0 { ", " } else { "" });
    }
    if more > 0 {
        let _ = write!(out, ", … {more} more");
    }
    out.push(']');
    out
}

/// Maximum width of a table's cell, in columns; longer text is shortened.
const CELL: usize = 400;
/// Maximum width to which cells are padded, in columns.
const PADDED: usize = 100;
/// The number of rows whose columns are aligned together.
const ROWS: usize = 4096;

/// Formats rows as aligned columns, each line indented; see [`write_table`].
pub fn table(rows: Vec<Vec<String>>, align: &str, indent: usize) -> String {
    let mut out = String::new();
    let written = write_table(&mut out, rows.into_iter(), align, indent);
    debug_assert!(written.is_ok(), "a String takes all text");
    out
}

/// Writes rows as aligned columns, each line indented. `align` has a `<` or `>` for each column. Cells may contain any text of a
/// file: each is shown on one line, and shortened if it is long. Only some thousand rows are in memory at a time.
pub fn write_table(
    out: &mut dyn Write,
    mut rows: impl Iterator<Item = Vec<String>>,
    align: &str,
    indent: usize,
) -> fmt::Result {
    loop {
        let cells = |row: Vec<String>| -> Vec<String> {
            row.iter().map(|cell| pteron_text::text_within(cell, CELL).to_string()).collect()
        };
        let block: Vec<Vec<String>> = rows.by_ref().take(ROWS).map(cells).collect();
        if block.is_empty() {
            return Ok(());
        }
        write_rows(out, &block, align, indent)?;
    }
}

fn write_rows(out: &mut dyn Write, rows: &[Vec<String>], align: &str, indent: usize) -> fmt::Result {
    let columns = |cell: &str| cell.chars().count();
    let width = |c: usize| rows.iter().filter_map(|r| r.get(c)).map(|s| columns(s).min(PADDED)).max();
    let widths: Vec<usize> = (0..align.len()).map(|c| width(c).unwrap_or(0)).collect();
    for row in rows {
        let mut line = " ".repeat(indent);
        for ((cell, &width), side) in row.iter().zip(&widths).zip(align.chars()) {
            let gap = width.saturating_sub(columns(cell));
            let (left, right) = if side == '>' { (gap, 0) } else { (0, gap) };
            let _ = write!(line, "{:left$}{cell}{:right$}  ", "", "");
        }
        writeln!(out, "{}", line.trim_end())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_six_significant_digits() {
        for (v, text) in [
            (0.95950412, "0.959504"),
            (1e-5, "0.00001"),
            (1e-6, "1e-6"),
            (12.0, "12"),
            (1234567.0, "1.23457e6"),
            (999999.0, "999999"),
            (-0.5, "-0.5"),
            (f64::NAN, "NaN"),
            (f64::NEG_INFINITY, "-inf"),
            (0.0, "0"),
        ] {
            assert_eq!(number(v), text);
        }
    }

    #[test]
    fn tensors_are_nested_and_elided() {
        let t = Tensor::from_slice(&[2, 2], &[1i64, 2, 3, 4]).unwrap();
        assert_eq!(tensor(&t), "int64[2, 2]\n[[1, 2],\n [3, 4]]");
        let long = Tensor::from_slice(&[300], &[0u8; 300]).unwrap();
        assert_eq!(tensor(&long), "uint8[300] [0, 0, 0, …, 0, 0, 0]");
        assert_eq!(tensor(&Tensor::scalar(Bool::from(true)).unwrap()), "bool[] true");
        let empty = Tensor::from_slice::<f32>(&[2, 0], &[]).unwrap();
        assert_eq!(tensor(&empty), "float32[2, 0]\n[[],\n []]");
        let huge = Tensor::from_slice::<f32>(&[1 << 40, 7, 0], &[]).unwrap();
        assert_eq!(tensor(&huge), "float32[1099511627776, 7, 0]\n[…]");
    }

    #[test]
    fn channels_last_reads_in_logical_order() {
        let t = Tensor::from_slice(&[1, 2, 1, 2], &[1i32, 2, 3, 4]).unwrap();
        let t = t.to_dim_order(DimOrder::channels_last(4)).unwrap();
        assert!(tensor(&t).ends_with("[[[[1, 2]],\n  [[3, 4]]]]"), "{}", tensor(&t));
    }

    #[test]
    fn cells_are_shown_on_one_line_and_shortened() {
        let row = |cells: [&str; 2]| cells.map(str::to_owned).to_vec();
        let rows = vec![row(["a\nFAKE\x1b[2J", "1"]), row([&"x".repeat(70_000), "2"]), row(["b", "3"])];
        let text = table(rows, "<>", 2);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0].trim_end_matches(" 1").trim_end(), "  a\\nFAKE\\u{1b}[2J");
        assert!(lines[1].len() < CELL + 40 && lines[1].contains("… (70000 bytes)") || lines[1].contains('…'));
        assert_eq!((lines.len(), lines[2].len()), (3, 2 + PADDED + 2 + 1));
    }

    #[test]
    fn long_lists_are_shortened() {
        assert_eq!(items([1, 2].iter()), "[1, 2]");
        assert!(items(0..40_000).ends_with("98, 99, … 39900 more]"));
        let list = value(&EValue::ListInt(vec![7; 1 << 20]));
        assert!(list.len() < 1000, "{}", list.len());
    }

    #[test]
    fn byte_counts_have_units() {
        assert_eq!(bytes(999), "999 B");
        assert_eq!(bytes(44_072), "44.1 kB");
        assert_eq!(bytes(1 << 30), "1.1 GB");
    }
}
