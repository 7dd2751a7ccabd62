//! Parses integer and floating-point literals.

use super::{Parse, Parser};
use crate::ir::{FloatKind, Signedness, Type, canonical_int};
use crate::lexer::{Kind, Token};

/// The absolute value of an integer token, decimal or `0x...`; absent if it needs more than 128 bits.
pub(super) fn magnitude(spelling: &[u8]) -> Option<u128> {
    let text = std::str::from_utf8(spelling).ok()?;
    match text.strip_prefix("0x") {
        Some(hex) => u128::from_str_radix(hex, 16).ok(),
        None => text.parse().ok(),
    }
}

/// The value of a literal whose type `ty` is an integer type or `index`; absent if it is out of the type's range.
pub(super) fn integer_value(ty: &Type, negative: bool, spelling: &[u8]) -> Option<i128> {
    let magnitude = magnitude(spelling)?;
    let (width, signed) = match ty {
        Type::Integer { width, signedness } => (*width, *signedness == Signedness::Signed),
        _ => (64, true),
    };
    if width == 0 {
        return (magnitude == 0 && !negative).then_some(0);
    }
    let bits = width.min(128);
    if bits < 128 && magnitude >> bits != 0 {
        return None;
    }
    let half = 1u128 << (bits - 1);
    if negative {
        if magnitude > half || magnitude == 0 {
            return None;
        }
        return Some(canonical_int(ty, (magnitude as i128).wrapping_neg()));
    }
    if signed && magnitude >= half {
        return None;
    }
    if width >= 128 && magnitude >= half {
        return None;
    }
    Some(canonical_int(ty, magnitude as i128))
}

impl<'a> Parser<'a> {
    /// The bits, in the format `kind`, of a decimal floating-point literal or of a hexadecimal literal, which gives the
    /// bits.
    pub(super) fn float_bits(&mut self, kind: FloatKind, negative: bool, token: Token) -> Parse<u128> {
        let spelling = self.token_bytes(token);
        if token.kind == Kind::Float {
            let text = std::str::from_utf8(spelling).unwrap_or("");
            let Ok(value) = text.parse::<f64>() else {
                return self.error(token.start, "floating point value too large for attribute");
            };
            return Ok(kind.from_f64(if negative { -value } else { value }));
        }
        if !spelling.starts_with(b"0x") {
            return self.error_with_note(
                token.start,
                "unexpected decimal integer literal for a floating point value".into(),
                token.start,
                "add a trailing dot to make the literal a float".into(),
            );
        }
        if negative {
            return self.error(token.start, "hexadecimal float literal should not have a leading minus");
        }
        match magnitude(spelling) {
            Some(bits) if kind.width() >= 128 || bits >> kind.width() == 0 => Ok(bits),
            _ => self.error(token.start, "hexadecimal float constant out of range for type"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_out_of_range_are_rejected() {
        let i8s = |negative, text: &str| integer_value(&Type::int(8), negative, text.as_bytes());
        assert_eq!(i8s(false, "127"), Some(127));
        assert_eq!(i8s(false, "255"), Some(-1));
        assert_eq!(i8s(false, "256"), None);
        assert_eq!(i8s(true, "128"), Some(-128));
        assert_eq!(i8s(true, "129"), None);
        assert_eq!(i8s(false, "0xFF"), Some(-1));
        let ui64 = Type::uint(64);
        assert_eq!(integer_value(&ui64, false, b"18446744073709551615"), Some(u64::MAX.into()));
        assert_eq!(integer_value(&ui64, false, b"18446744073709551616"), None);
        let si8 = Type::Integer { width: 8, signedness: Signedness::Signed };
        assert_eq!(integer_value(&si8, false, b"128"), None);
        assert_eq!(integer_value(&Type::int(1), false, b"1"), Some(1));
        assert_eq!(integer_value(&Type::int(1), true, b"1"), Some(1));
        assert_eq!(integer_value(&Type::Index, false, b"9223372036854775808"), None);
    }
}
