/// Recognises the format of a delegate's payload by its first bytes; 64 are enough.
///
/// The magics are those that the reference's backends write: XNNPACK and Vulkan have a 30-byte header with the
/// magic at byte 4, followed by a flatbuffer; MPS and Samsung's ENN have a flatbuffer or a header of their
/// own.
pub fn sniff_payload(head: &[u8]) -> Option<&'static str> {
    const AT_FOUR: &[(&[u8], &str)] = &[
        (b"XH00", "XNNPACK, header XH00"),
        (b"XN00", "XNNPACK, flatbuffer XN00"),
        (b"XN01", "XNNPACK, flatbuffer XN01"),
        (b"VH00", "Vulkan, header VH00"),
        (b"VK00", "Vulkan, flatbuffer VK00"),
        (b"MP00", "MPS, flatbuffer MP00"),
        (b"TOSA", "TOSA, flatbuffer TOSA"),
    ];
    const AT_ZERO: &[(&[u8], &str)] = &[
        (b"MLX0", "MLX, MLX0"),
        (b"EETO", "Samsung ENN, EETO"),
        (b"PK\x03\x04", "a zip archive"),
        (&[0x0b, 0xef], "BEF"),
        (b"\x7fELF", "an ELF object"),
        (b"vela", "Vela"),
    ];
    let at_four = head.get(4..).unwrap_or(&[]);
    if let Some((_, name)) = AT_FOUR.iter().find(|(magic, _)| at_four.starts_with(magic)) {
        return Some(name);
    }
    if let Some((_, name)) = AT_ZERO.iter().find(|(magic, _)| head.starts_with(magic)) {
        return Some(name);
    }
    let printable = |b: &u8| b.is_ascii_graphic() || matches!(b, b' ' | b'\n' | b'\r' | b'\t');
    (!head.is_empty() && head.iter().all(printable)).then_some("text")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payloads_are_recognised_by_their_magic() {
        assert_eq!(sniff_payload(b"\0\0\0\0XH00\x1e\0"), Some("XNNPACK, header XH00"));
        assert_eq!(sniff_payload(b"\x10\0\0\0XN01"), Some("XNNPACK, flatbuffer XN01"));
        assert_eq!(sniff_payload(b"\0\0\0\0VH00"), Some("Vulkan, header VH00"));
        assert_eq!(sniff_payload(b"1version:0#op:demo"), Some("text"));
        assert_eq!(sniff_payload(b"\x01\x02"), None);
        assert_eq!(sniff_payload(b""), None);
    }
}
