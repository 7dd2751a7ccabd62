/// The largest alignment, in bytes, that is inferred from a position alone, without padding as evidence: 64 KiB, the largest page size in
/// common use.
const MOST_INFERRED: u64 = 64 << 10;

/// Alignments inferred from the byte offsets of segments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Alignments {
    /// The alignment that all offsets have in common, in bytes.
    pub(crate) common: u64,
    /// The alignment of each offset, in bytes: a multiple of `common`.
    pub(crate) each: Vec<u64>,
}

/// Infers the alignments of things that a writer placed one after the other. Each comes with the padding before it and
/// its position.
///
/// A writer with alignment A pads by less than A, to a multiple of A. So padding shows that an alignment is larger, and
/// a position that it is not; a position that is a multiple of a page by accident shows nothing. Where both allow the
/// default of the format, that was used.
pub(crate) fn infer_alignments(places: &[(u64, u64)], default: u64) -> Alignments {
    let at_least =
        |padding: u64| padding.checked_add(1).and_then(u64::checked_next_power_of_two).unwrap_or(1 << 63);
    let at_most = |position: u64| 1 << position.trailing_zeros().min(63);
    let least = places.iter().map(|&(padding, _)| at_least(padding)).max().unwrap_or(1);
    let most = places.iter().map(|&(_, position)| at_most(position)).min().unwrap_or(1 << 63);
    let limited = |most: u64, least: u64| most.min(least.max(MOST_INFERRED));
    let common = match () {
        () if (least..=most).contains(&default) => default,
        () if least <= most => limited(most, least),
        () => most.min(default),
    };
    let each = places.iter().map(|&(padding, position)| match at_least(padding) {
        least if least <= common => common,
        least => limited(at_most(position), least).max(common),
    });
    Alignments { common, each: each.collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The padding before each item, and its offset, if items of these sizes and alignments are laid out from `start` on.
    fn laid_out(start: u64, sizes: &[u64], alignments: &[u64]) -> Vec<(u64, u64)> {
        let mut end = start;
        let place = |(&size, &alignment): (&u64, &u64)| {
            let at = end.next_multiple_of(alignment);
            let padding = at - end;
            end = at + size;
            (padding, at)
        };
        sizes.iter().zip(alignments).map(place).collect()
    }

    #[test]
    fn an_alignment_is_what_padding_and_positions_allow() {
        for alignment in [16, 64, 128, 4096, 16384, 65536] {
            let places = laid_out(900, &[100, 3000, 5, 70_001], &[alignment; 4]);
            assert_eq!(infer_alignments(&places, 128).common, alignment.max(16), "{alignment}: {places:?}");
        }
    }

    #[test]
    fn a_position_that_happens_to_be_a_page_is_no_page() {
        assert_eq!(infer_alignments(&[(96, 4096)], 128).common, 128);
        assert_eq!(infer_alignments(&[(0, 16384), (28, 20480)], 128).common, 128);
        assert_eq!(infer_alignments(&[(0, 1 << 40)], 128).common, 128);
        assert_eq!(infer_alignments(&[], 128).common, 128);
    }

    #[test]
    fn things_may_have_alignments_of_their_own() {
        let places = laid_out(900, &[10, 10, 10], &[16384, 128, 4096]);
        let inferred = infer_alignments(&places, 128);
        assert_eq!((inferred.common, inferred.each), (128, vec![16384, 128, 4096]));
    }
}
