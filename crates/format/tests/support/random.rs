//! Reproducible random damage to files. Crates that depend on this one include this module by its path.

/// A small random number generator (splitmix64); a run can be reproduced from its seed.
pub struct Random(pub u64);

impl Random {
    /// The next random number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A random number less than `n`.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % n as u64) as usize
    }

    /// Changes one to eight places: flips a bit, or writes a random byte or an integer that tends to overflow.
    pub fn mutate(&mut self, bytes: &mut [u8]) {
        for _ in 0..=self.below(8) {
            let at = self.below(bytes.len());
            match self.below(4) {
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.draw() as u8,
                _ => {
                    const NUMBERS: [u32; 8] =
                        [0, 1, 4, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 0xffff, 0x0100_0000];
                    let number = NUMBERS[self.below(NUMBERS.len())].to_le_bytes();
                    let at = at & !3;
                    let end = bytes.len().min(at + 4);
                    bytes[at..end].copy_from_slice(&number[..end - at]);
                }
            }
        }
    }
}
