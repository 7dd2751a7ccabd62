use crate::kernels::{RegistryExt, Text, out, text_value};
use pteron_host::{Chain, Fault, Frame, KernelRegistry};

/// Maximum size in bytes of a file that a kernel reads.
const MAX_FILE: u64 = 1 << 30;

fn read_file(path: &str) -> Result<String, Fault> {
    let failed = || Fault::from(format!("failed to read from file {path}"));
    let size = std::fs::metadata(path).map_err(|_| failed())?.len();
    if size > MAX_FILE {
        return Err(format!("{path} has {size} bytes: at most {MAX_FILE} are read").into());
    }
    let bytes = std::fs::read(path).map_err(|_| failed())?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Replaces `%d`, `%i` or `%u`, with optional zero padding and width, by a number.
fn format(pattern: &str, number: i32) -> String {
    let mut out = String::new();
    let mut rest = pattern;
    while let Some(at) = rest.find('%') {
        out.push_str(&rest[..at]);
        let spec = &rest[at + 1..];
        let end = spec.find(|c: char| !c.is_ascii_digit()).unwrap_or(spec.len());
        let width: usize = spec[..end].parse().unwrap_or(0).min(64);
        let conversion = spec[end..].chars().next();
        match conversion {
            Some('d' | 'i' | 'u') if spec.starts_with('0') => out += &format!("{number:0width$}"),
            Some('d' | 'i' | 'u') => out += &format!("{number:width$}"),
            Some('%') => out.push('%'),
            _ => out += &rest[at..at + 1 + end],
        }
        let skip = if matches!(conversion, Some('d' | 'i' | 'u' | '%')) { 1 } else { 0 };
        rest = &spec[end + skip..];
    }
    out + rest
}

pub(super) fn register(registry: &mut KernelRegistry) {
    for name in ["tfrt_test.get_string", "tfrt_test.get_string_sync"] {
        registry.add_immediate(name, |frame: &mut Frame<'_>| text_value(frame, &[frame.attribute(0)?]));
    }
    registry.add_immediate("tfrt_test.print_string", |frame: &mut Frame<'_>| {
        out!(frame, "string = {}\n", frame.object::<Text>(0)?);
        Ok(Chain)
    });
    registry.add_immediate("tfrt_test.append_string", |frame: &mut Frame<'_>| {
        text_value(frame, &[frame.object::<Text>(0)?, frame.object::<Text>(1)?])
    });
    registry.add_immediate("tfrt_test.string_equal", |frame: &mut Frame<'_>| {
        Ok(**frame.object::<Text>(0)? == **frame.object::<Text>(1)?)
    });
    registry.add_immediate("tfrt_test.read_string_from_file", |frame: &mut Frame<'_>| {
        text_value(frame, &[&read_file(frame.object::<Text>(0)?)?])
    });
    registry.add_immediate("tfrt_test.format_string", |frame: &mut Frame<'_>| {
        text_value(frame, &[&format(frame.object::<Text>(0)?, frame.get::<i32>(1)?)])
    });
    registry.add_immediate("tfrt_test.get_static_tensor_type", |frame: &mut Frame<'_>| {
        text_value(frame, &[frame.attribute(0)?])
    });
    registry.add_immediate("tfrt_test.print_tensor_type", |frame: &mut Frame<'_>| {
        out!(frame, "tensor_type = {}\n", frame.object::<Text>(0)?);
        Ok(Chain)
    });
}

#[cfg(test)]
mod tests {
    #[test]
    fn patterns_are_replaced_by_numbers() {
        assert_eq!(super::format("a%d/b%03d%%é%s", 7), "a7/b007%é%s");
        assert_eq!(super::format("%", 7), "%");
    }
}
