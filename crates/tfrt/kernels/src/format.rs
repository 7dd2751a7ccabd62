//! Formats numbers like the reference.

use std::fmt;

/// Formats a number like C's `%e`, with infinities as the reference's stream writes them.
pub(crate) struct Exponent(pub f64);

impl fmt::Display for Exponent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        if v.is_nan() {
            return f.write_str("nan");
        }
        if v.is_infinite() {
            return f.write_str(if v < 0.0 { "-INF" } else { "INF" });
        }
        let text = format!("{v:.6e}");
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let (sign, digits) = exponent.strip_prefix('-').map_or(('+', exponent), |d| ('-', d));
        write!(f, "{mantissa}e{sign}{digits:0>2}")
    }
}

/// Formats a number like C's `%f`.
pub(crate) struct Fixed(pub f64);

impl fmt::Display for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        let sign = if v.is_sign_negative() { "-" } else { "" };
        if v.is_nan() {
            return write!(f, "{sign}nan");
        }
        if v.is_infinite() {
            return write!(f, "{sign}inf");
        }
        write!(f, "{v:.6}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_as_in_c() {
        for (value, e, f) in [
            (1.5, "1.500000e+00", "1.500000"),
            (-22.5e9, "-2.250000e+10", "-22500000000.000000"),
            (5e-324, "4.940656e-324", "0.000000"),
            (-0.0, "-0.000000e+00", "-0.000000"),
            (f64::NEG_INFINITY, "-INF", "-inf"),
            (1e100, "1.000000e+100", &Fixed(1e100).to_string()),
        ] {
            assert_eq!(Exponent(value).to_string(), e);
            assert_eq!(Fixed(value).to_string(), f);
        }
    }
}
