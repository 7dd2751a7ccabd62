//! Floating-point formats: conversion from `f64` with a single rounding, and printing in decimal as MLIR does.

/// A floating-point format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FloatKind {
    /// `f8E5M2`.
    F8E5M2,
    /// `f8E4M3FN`: no infinities, one NaN pattern per sign.
    F8E4M3FN,
    /// `bf16`.
    BF16,
    /// `f16`.
    F16,
    /// `f32`.
    F32,
    /// `f64`.
    F64,
    /// `f80`, the x87 format with its explicit integer bit.
    F80,
    /// `f128`.
    F128,
}

const KINDS: [(FloatKind, &str, u32, u32); 8] = [
    (FloatKind::F8E5M2, "f8E5M2", 5, 2),
    (FloatKind::F8E4M3FN, "f8E4M3FN", 4, 3),
    (FloatKind::BF16, "bf16", 8, 7),
    (FloatKind::F16, "f16", 5, 10),
    (FloatKind::F32, "f32", 8, 23),
    (FloatKind::F64, "f64", 11, 52),
    (FloatKind::F80, "f80", 15, 63),
    (FloatKind::F128, "f128", 15, 112),
];

impl FloatKind {
    fn parameters(self) -> (&'static str, u32, u32) {
        let row = &KINDS[self as usize];
        (row.1, row.2, row.3)
    }

    /// The format's keyword in MLIR text, such as `bf16`.
    pub fn keyword(self) -> &'static str {
        self.parameters().0
    }

    /// The format with this keyword.
    pub fn from_keyword(keyword: &str) -> Option<FloatKind> {
        KINDS.iter().find(|row| row.1 == keyword).map(|row| row.0)
    }

    /// Width of a number in bits; for `f80` the explicit integer bit counts.
    pub fn width(self) -> u32 {
        let (_, exponent, fraction) = self.parameters();
        1 + exponent + fraction + u32::from(self == FloatKind::F80)
    }

    /// Significand precision in bits, the integer bit included.
    fn precision(self) -> u32 {
        self.parameters().2 + 1
    }

    /// The bits of `value` in this format, rounded to nearest with ties to even.
    pub fn from_f64(self, value: f64) -> u128 {
        match self {
            FloatKind::F64 => return u128::from(value.to_bits()),
            FloatKind::F32 => return u128::from((value as f32).to_bits()),
            _ => {}
        }
        let (_, exponent_bits, fraction_bits) = self.parameters();
        let sign = u128::from(value.is_sign_negative());
        let max_exponent = (1u32 << exponent_bits) - 1;
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let pack = |exponent: u32, fraction: u128| {
            let integer_bit = u128::from(self == FloatKind::F80 && exponent != 0);
            if self == FloatKind::F80 {
                (sign << 79) | (u128::from(exponent) << 64) | (integer_bit << 63) | fraction
            } else {
                (sign << (exponent_bits + fraction_bits)) | (u128::from(exponent) << fraction_bits) | fraction
            }
        };
        let nan_only = self == FloatKind::F8E4M3FN;
        let overflow = if nan_only { pack(max_exponent, 7) } else { pack(max_exponent, 0) };
        if value.is_nan() {
            return if nan_only { overflow } else { pack(max_exponent, 1 << (fraction_bits - 1)) };
        }
        if value.is_infinite() {
            return overflow;
        }
        if value == 0.0 {
            return pack(0, 0);
        }
        let bits = value.abs().to_bits();
        let (mut significand, mut exponent) =
            (u128::from(bits & ((1 << 52) - 1)), (bits >> 52) as i32 - 1023);
        if exponent == -1023 {
            exponent = -1022;
            while significand < 1 << 52 {
                significand <<= 1;
                exponent -= 1;
            }
        } else {
            significand |= 1 << 52;
        }
        // `significand` has 53 bits; its leading bit has weight 2^exponent.
        let biased = exponent + bias;
        if fraction_bits >= 52 && biased > 0 {
            return pack(biased as u32, (significand - (1 << 52)) << (fraction_bits - 52));
        }
        let denormal_shift = if biased <= 0 { 1 - biased } else { 0 };
        let shift = 52 - fraction_bits as i32 + denormal_shift;
        if shift > 60 {
            return pack(0, 0);
        }
        let rounded = if shift <= 0 {
            significand << -shift
        } else {
            let (quotient, half) = (significand >> shift, 1u128 << (shift - 1));
            let lost = significand & ((1 << shift) - 1);
            quotient + u128::from(lost > half || (lost == half && quotient & 1 == 1))
        };
        // The integer bit of a normal number, and a carry out of the fraction, increment the exponent field.
        let base = if biased <= 0 { 0 } else { (biased - 1) as u128 };
        let total = (base << fraction_bits) + rounded;
        let (field, fraction) = ((total >> fraction_bits) as u32, total & ((1 << fraction_bits) - 1));
        let too_large = if nan_only {
            field > max_exponent || (field == max_exponent && fraction == 7)
        } else {
            field >= max_exponent
        };
        if too_large { overflow } else { pack(field, fraction) }
    }

    /// The number as `f64`; absent if it is not finite, or if `f64` cannot represent an `f80` or `f128` exactly.
    fn to_f64(self, bits: u128) -> Option<f64> {
        match self {
            FloatKind::F64 => return Some(f64::from_bits(bits as u64)).filter(|v| v.is_finite()),
            FloatKind::F32 => return Some(f64::from(f32::from_bits(bits as u32))).filter(|v| v.is_finite()),
            FloatKind::F80 | FloatKind::F128 => {
                return self.wide_to_f64(bits).filter(|&v| self.from_f64(v) == bits);
            }
            _ => {}
        }
        let (_, exponent_bits, fraction_bits) = self.parameters();
        let fraction = bits & ((1 << fraction_bits) - 1);
        let field = (bits >> fraction_bits) as u32 & ((1 << exponent_bits) - 1);
        let max_exponent = (1u32 << exponent_bits) - 1;
        let special = if self == FloatKind::F8E4M3FN {
            field == max_exponent && fraction == 7
        } else {
            field == max_exponent
        };
        if special {
            return None;
        }
        let bias = (1i32 << (exponent_bits - 1)) - 1;
        let significand = if field == 0 { fraction } else { fraction | (1 << fraction_bits) };
        let exponent = if field == 0 { 1 - bias } else { field as i32 - bias } - fraction_bits as i32;
        let value = significand as f64 * 2f64.powi(exponent);
        Some(if bits >> (self.width() - 1) & 1 == 1 { -value } else { value })
    }

    fn wide_to_f64(self, bits: u128) -> Option<f64> {
        let fraction_bits = self.parameters().2;
        let exponent_at = if self == FloatKind::F80 { 64 } else { 112 };
        let field = (bits >> exponent_at) as i32 & 0x7fff;
        if field == 0x7fff || !(0x3fff - 1000..=0x3fff + 1000).contains(&field) {
            return (bits << 1 == 0).then_some(0.0);
        }
        let fraction = (bits & ((1 << fraction_bits) - 1)) >> (fraction_bits - 52);
        let value = (1.0 + fraction as f64 / 2f64.powi(52)) * 2f64.powi(field - 0x3fff);
        Some(if bits >> (self.width() - 1) & 1 == 1 { -value } else { value })
    }
}

/// Prints a number as MLIR does: with six digits if they read back as the same number, otherwise with as many digits as
/// its format needs, otherwise (and for numbers that are not finite) its bits in hexadecimal.
pub(crate) fn format_float(kind: FloatKind, bits: u128) -> String {
    if let Some(value) = kind.to_f64(bits) {
        let same = |text: &str| text.parse::<f64>().is_ok_and(|v| kind.from_f64(v) == bits);
        let short = format_scientific(value, 6, false);
        if same(&short) {
            return short;
        }
        let long = format_general(value, 2 + kind.precision() * 59 / 196);
        if long.contains('.') && same(&long) {
            return long;
        }
    }
    format!("0x{bits:X}")
}

/// Decimal digits (most significant first, no trailing zeros) and the exponent of the last one, for a positive number.
///
/// Follows LLVM's `APFloat::toString`: digits far beyond `precision` are truncated before the last one is rounded half
/// up, so that 7.98999977 at six digits is 7.98999, not 7.99.
fn decimal_digits(value: f64, precision: u32) -> (Vec<u8>, i32) {
    let bits = value.to_bits();
    let (fraction, field) = (bits & ((1 << 52) - 1), (bits >> 52) as i32 & 0x7ff);
    let (significand, mut exponent) = match field {
        0 => (fraction, -1074),
        _ => (fraction | 1 << 52, field - 1075),
    };
    let zeros = significand.trailing_zeros();
    exponent += zeros as i32;
    let mut number = Natural::new(significand >> zeros);
    if exponent >= 0 {
        number.multiply_by_power(2, exponent as u32);
        exponent = 0;
    } else {
        number.multiply_by_power(5, exponent.unsigned_abs());
    }
    let (have, wanted) = (number.bit_length(), (precision * 196).div_ceil(59));
    let removable = have.saturating_sub(wanted) * 59 / 196;
    for _ in 0..removable {
        number.divide_by_ten();
    }
    exponent += removable as i32;
    // Least significant first, without trailing zeros.
    let mut buffer: Vec<u8> = Vec::new();
    while !number.is_zero() {
        match number.divide_by_ten() {
            0 if buffer.is_empty() => exponent += 1,
            digit => buffer.push(digit),
        }
    }
    let count = buffer.len();
    if count > precision as usize {
        let mut first = count - precision as usize;
        if buffer[first - 1] < 5 {
            while first < count && buffer[first] == 0 {
                first += 1;
            }
        } else {
            while first < count && buffer[first] == 9 {
                first += 1;
            }
            match buffer.get_mut(first) {
                Some(digit) => *digit += 1,
                None => buffer.push(1),
            }
        }
        exponent += first as i32;
        buffer.drain(..first);
    }
    buffer.reverse();
    (buffer, exponent)
}

/// An arbitrary-precision natural number, least significant limb first.
struct Natural(Vec<u32>);

impl Natural {
    fn new(value: u64) -> Natural {
        Natural(vec![value as u32, (value >> 32) as u32])
    }

    fn is_zero(&self) -> bool {
        self.0.iter().all(|limb| *limb == 0)
    }

    fn bit_length(&self) -> u32 {
        let top = self.0.iter().rposition(|limb| *limb != 0);
        top.map_or(0, |at| at as u32 * 32 + 32 - self.0[at].leading_zeros())
    }

    /// Multiplies by `base` raised to `power`.
    fn multiply_by_power(&mut self, base: u32, power: u32) {
        for _ in 0..power {
            let mut carry = 0;
            for limb in &mut self.0 {
                let product = u64::from(*limb) * u64::from(base) + carry;
                *limb = product as u32;
                carry = product >> 32;
            }
            if carry != 0 {
                self.0.push(carry as u32);
            }
        }
    }

    /// Divides by ten and returns the remainder.
    fn divide_by_ten(&mut self) -> u8 {
        let mut rest = 0u64;
        for limb in self.0.iter_mut().rev() {
            let part = rest << 32 | u64::from(*limb);
            *limb = (part / 10) as u32;
            rest = part % 10;
        }
        while self.0.len() > 1 && self.0.last() == Some(&0) {
            self.0.pop();
        }
        rest as u8
    }
}

/// Formats as `d.dddddde+XX`; with `truncate` as `d.dddE+X`, without trailing zeros.
fn format_scientific(value: f64, precision: u32, truncate: bool) -> String {
    let mut out = String::new();
    if value.is_sign_negative() {
        out.push('-');
    }
    if value == 0.0 {
        out.push_str(if truncate { "0.0E+0" } else { "0.0" });
        if !truncate {
            out.extend(std::iter::repeat_n('0', precision as usize - 1));
            out.push_str("e+00");
        }
        return out;
    }
    let (all, last) = decimal_digits(value.abs(), precision);
    let exponent = last + all.len() as i32 - 1;
    out.push(char::from(b'0' + all[0]));
    out.push('.');
    if all.len() == 1 && truncate {
        out.push('0');
    }
    out.extend(all[1..].iter().map(|&d| char::from(b'0' + d)));
    if !truncate {
        out.extend(std::iter::repeat_n('0', precision as usize + 1 - all.len()));
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    let magnitude = exponent.unsigned_abs();
    if truncate {
        out.push_str(&format!("E{sign}{magnitude}"));
    } else {
        out.push_str(&format!("e{sign}{magnitude:02}"));
    }
    out
}

/// Formats with up to `precision` significant digits, in positional notation if that adds at most three zeros.
fn format_general(value: f64, precision: u32) -> String {
    if value == 0.0 {
        return String::from(if value.is_sign_negative() { "-0.0E+0" } else { "0.0E+0" });
    }
    const MAX_PADDING: i32 = 3;
    let (all, last) = decimal_digits(value.abs(), precision);
    let count = all.len() as i32;
    let lead = last + count - 1;
    let use_scientific = if last >= 0 {
        last > MAX_PADDING || count + last > precision as i32
    } else {
        lead < 0 && -lead > MAX_PADDING
    };
    if use_scientific {
        return format_scientific(value, precision, true);
    }
    let mut out = String::new();
    if value.is_sign_negative() {
        out.push('-');
    }
    let digit = |d: &u8| char::from(b'0' + *d);
    if last >= 0 {
        out.extend(all.iter().map(digit));
        out.extend(std::iter::repeat_n('0', last as usize));
    } else if lead >= 0 {
        let integer_digits = (lead + 1) as usize;
        out.extend(all[..integer_digits].iter().map(digit));
        out.push('.');
        out.extend(all[integer_digits..].iter().map(digit));
    } else {
        out.push_str("0.");
        out.extend(std::iter::repeat_n('0', (-lead - 1) as usize));
        out.extend(all.iter().map(digit));
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spell(kind: FloatKind, value: f64) -> String {
        format_float(kind, kind.from_f64(value))
    }

    #[test]
    fn numbers_print_as_in_mlir() {
        assert_eq!(spell(FloatKind::F32, 0.0), "0.000000e+00");
        assert_eq!(spell(FloatKind::F32, -0.0), "-0.000000e+00");
        assert_eq!(spell(FloatKind::F32, 0.1), "1.000000e-01");
        assert_eq!(spell(FloatKind::F64, -1.0e-300), "-1.000000e-300");
        assert_eq!(spell(FloatKind::BF16, 3.140625), "3.140630e+00");
        assert_eq!(spell(FloatKind::F16, 65504.0), "6.550400e+04");
        assert_eq!(spell(FloatKind::F32, 1.0 / 3.0), "0.333333343");
        assert_eq!(spell(FloatKind::F32, -7.99), "-7.98999977");
        assert_eq!(spell(FloatKind::F32, 1.0e-20), "9.99999968E-21");
        assert_eq!(spell(FloatKind::F64, 1.0 / 3.0), "0.33333333333333331");
        assert_eq!(spell(FloatKind::F32, 16_777_217.0), "0x4B800000");
        assert_eq!(spell(FloatKind::F32, 1.234_567_9e20), "1.2345679E+20");
        assert_eq!(spell(FloatKind::F64, 123_456_789.125), "123456789.125");
        assert_eq!(spell(FloatKind::F32, f64::INFINITY), "0x7F800000");
        assert_eq!(spell(FloatKind::F16, f64::NEG_INFINITY), "0xFC00");
    }

    #[test]
    fn narrow_formats_round_to_nearest_even() {
        assert_eq!(FloatKind::F16.from_f64(1.0), 0x3c00);
        assert_eq!(FloatKind::F16.from_f64(65519.0), 0x7bff);
        assert_eq!(FloatKind::F16.from_f64(65520.0), 0x7c00);
        assert_eq!(FloatKind::F16.from_f64(5.960_464_477_539_063e-8), 1);
        assert_eq!(FloatKind::F16.from_f64(2.980_232_238_769_531_3e-8), 0);
        assert_eq!(FloatKind::BF16.from_f64(1.0), 0x3f80);
        assert_eq!(FloatKind::BF16.from_f64(f64::from(f32::from_bits(0x3f80_8000))), 0x3f80);
        assert_eq!(FloatKind::BF16.from_f64(f64::from(f32::from_bits(0x3f81_8000))), 0x3f82);
        assert_eq!(FloatKind::F8E4M3FN.from_f64(448.0), 0x7e);
        assert_eq!(FloatKind::F8E5M2.from_f64(57344.0), 0x7b);
        assert_eq!(FloatKind::F128.from_f64(1.0), 0x3fff << 112);
        assert_eq!(FloatKind::F80.from_f64(1.0), (0x3fff << 64) | (1 << 63));
    }

    #[test]
    fn every_f16_reads_back() {
        for bits in 0..=0xffffu128 {
            let text = format_float(FloatKind::F16, bits);
            match text.strip_prefix("0x") {
                Some(hex) => assert_eq!(u128::from_str_radix(hex, 16).ok(), Some(bits)),
                None => assert_eq!(text.parse().ok().map(|v| FloatKind::F16.from_f64(v)), Some(bits)),
            }
        }
    }
}
