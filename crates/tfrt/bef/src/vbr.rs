//! Variable-length integers: base 128, **most significant group first**, bit 7 set on every byte but the last.
//!
//! This is not LEB128: 300 is `82 2C`. Writers emit the shortest form; readers accept leading `80` bytes.

/// Why a VBR integer could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VbrError {
    /// The bytes end before a byte with bit 7 clear.
    Truncated,
    /// The value needs more than 64 bits.
    Overflow,
}

/// Decodes a VBR integer at the start of `bytes`: its value and its length in bytes.
///
/// # Errors
/// [`VbrError`] if the bytes end too early or the value does not fit 64 bits.
#[inline]
pub fn decode(bytes: &[u8]) -> Result<(u64, usize), VbrError> {
    match *bytes {
        [byte, ..] if byte < 0x80 => Ok((u64::from(byte), 1)),
        [high, low, ..] if low < 0x80 => Ok((u64::from(high & 0x7F) << 7 | u64::from(low), 2)),
        _ => decode_long(bytes),
    }
}

fn decode_long(bytes: &[u8]) -> Result<(u64, usize), VbrError> {
    let mut value = 0u64;
    for (index, &byte) in bytes.iter().enumerate() {
        if value >> 57 != 0 {
            return Err(VbrError::Overflow);
        }
        value = value << 7 | u64::from(byte & 0x7F);
        if byte < 0x80 {
            return Ok((value, index + 1));
        }
    }
    Err(VbrError::Truncated)
}

/// The number of bytes that [`encode`] writes for `value`: 1 to 10.
pub fn len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Appends the shortest form of `value`.
pub fn encode(value: u64, out: &mut Vec<u8>) {
    for group in (1..len(value)).rev() {
        out.push((value >> (7 * group)) as u8 | 0x80);
    }
    out.push(value as u8 & 0x7F);
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn encoded(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        encode(value, &mut out);
        out
    }

    #[test]
    fn most_significant_group_comes_first() {
        assert_eq!(encoded(0), [0x00]);
        assert_eq!(encoded(127), [0x7F]);
        assert_eq!(encoded(128), [0x81, 0x00]);
        assert_eq!(encoded(300), [0x82, 0x2C]);
        assert_eq!(encoded(0xFFFF_FFFE), [0x8F, 0xFF, 0xFF, 0xFF, 0x7E]);
        assert_eq!(encoded(u64::MAX).len(), 10);
    }

    #[test]
    fn leading_zero_groups_are_accepted_and_overflow_is_not() {
        assert_eq!(decode(&[0x80, 0x80, 0x80, 0x05, 0xFF]), Ok((5, 4)));
        let mut padded = vec![0x80; 100];
        padded.extend(encoded(u64::MAX));
        assert_eq!(decode(&padded), Ok((u64::MAX, 110)));
        // 2^64 needs 65 bits.
        let mut too_large = vec![0x82];
        too_large.extend([0x80; 8]);
        too_large.push(0x00);
        assert_eq!(decode(&too_large), Err(VbrError::Overflow));
        assert_eq!(decode(&[0xFF; 11]), Err(VbrError::Overflow));
        assert_eq!(decode(&[0x80; 5]), Err(VbrError::Truncated));
        assert_eq!(decode(&[]), Err(VbrError::Truncated));
    }

    proptest! {
        #[test]
        fn round_trip(value: u64, shift in 0u32..64, tail: Vec<u8>) {
            let value = value >> shift;
            let mut bytes = encoded(value);
            let length = bytes.len();
            prop_assert_eq!(length, len(value));
            bytes.extend(tail);
            prop_assert_eq!(decode(&bytes), Ok((value, length)));
        }

        #[test]
        fn decoding_never_reads_past_the_end(bytes: Vec<u8>) {
            if let Ok((_, length)) = decode(&bytes) {
                prop_assert!(length <= bytes.len());
            }
        }
    }
}
