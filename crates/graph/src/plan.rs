//! Where in the workspace each value lies: values that live at the same time lie apart.

/// Alignment of a value in the workspace, in bytes.
const ALIGNMENT: usize = 64;

/// A value that needs a place, from the step that writes it to the last that reads it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Lifetime {
    /// Bytes it takes.
    pub(crate) bytes: usize,
    /// The step that writes it.
    pub(crate) first: usize,
    /// The last step that reads it.
    pub(crate) last: usize,
}

/// Places for all of them, and the size of the workspace. The largest is placed first, each at the
/// lowest offset at which it meets nothing that lives at the same time.
pub(crate) fn place(lifetimes: &[Lifetime]) -> (Vec<usize>, usize) {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&i| (std::cmp::Reverse(lifetimes[i].bytes), lifetimes[i].first));
    let mut offsets = vec![0; lifetimes.len()];
    let mut placed: Vec<usize> = Vec::new();
    let mut end = 0;
    for i in order {
        let life = lifetimes[i];
        let size = life.bytes.next_multiple_of(ALIGNMENT);
        let mut taken: Vec<(usize, usize)> = placed
            .iter()
            .map(|&j| (j, lifetimes[j]))
            .filter(|(_, other)| other.first <= life.last && life.first <= other.last)
            .map(|(j, other)| (offsets[j], offsets[j] + other.bytes.next_multiple_of(ALIGNMENT)))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, stop) in taken {
            if at + size <= start {
                break;
            }
            at = at.max(stop);
        }
        offsets[i] = at;
        end = end.max(at + size);
        placed.push(i);
    }
    (offsets, end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(bytes: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { bytes, first, last }
    }

    #[test]
    fn values_of_a_chain_share_two_places() {
        let chain: Vec<_> = (0..10).map(|i| life(1000, i, i + 1)).collect();
        let (offsets, size) = place(&chain);
        assert_eq!(size, 2048);
        for w in offsets.windows(2) {
            assert_ne!(w[0], w[1]);
        }
    }

    #[test]
    fn what_lives_together_lies_apart() {
        let lives = [life(64, 0, 9), life(640, 1, 2), life(100, 2, 5), life(64, 3, 3), life(600, 4, 9)];
        let (offsets, size) = place(&lives);
        for (i, a) in lives.iter().enumerate() {
            for (j, b) in lives.iter().enumerate().skip(i + 1) {
                let together = a.first <= b.last && b.first <= a.last;
                let apart = offsets[i] + a.bytes <= offsets[j] || offsets[j] + b.bytes <= offsets[i];
                assert!(!together || apart, "{i} and {j}");
            }
            assert!(offsets[i] + a.bytes <= size);
        }
    }
}
