//! Sequence alignment of two lists by their longest common subsequence.

/// Maximum number of cells of the longest-common-subsequence table.
const MAX_CELLS: usize = 16 << 20;

/// A pair of items, or an unpaired item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Pair {
    /// Both lists have the item, at these indices.
    Both(usize, usize),
    /// Only the first list has the item, at this index.
    OnlyA(usize),
    /// Only the second list has the item, at this index.
    OnlyB(usize),
}

/// Aligns two lists so that as many equal items as possible are paired. If the lists without their common prefix and
/// suffix are too long for the table, the middle is paired by position.
pub(super) fn align<T: PartialEq>(a: &[T], b: &[T]) -> Vec<Pair> {
    let prefix = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    let suffix = a[prefix..].iter().rev().zip(b[prefix..].iter().rev()).take_while(|(a, b)| a == b).count();
    let (mid_a, mid_b) = (&a[prefix..a.len() - suffix], &b[prefix..b.len() - suffix]);
    let mut pairs: Vec<Pair> = (0..prefix).map(|i| Pair::Both(i, i)).collect();
    match mid_a.len().checked_mul(mid_b.len()) {
        Some(cells) if cells <= MAX_CELLS && align_middle(mid_a, mid_b, prefix, &mut pairs).is_ok() => {}
        _ => {
            for i in 0..mid_a.len().max(mid_b.len()) {
                match (mid_a.get(i), mid_b.get(i)) {
                    (Some(x), Some(y)) if x == y => pairs.push(Pair::Both(prefix + i, prefix + i)),
                    (x, y) => {
                        pairs.extend(x.map(|_| Pair::OnlyA(prefix + i)));
                        pairs.extend(y.map(|_| Pair::OnlyB(prefix + i)));
                    }
                }
            }
        }
    }
    pairs.extend((0..suffix).map(|i| Pair::Both(a.len() - suffix + i, b.len() - suffix + i)));
    pairs
}

/// The longest common subsequence by dynamic programming over all suffixes. Fails if there is no memory for the table;
/// no pairs are added then.
fn align_middle<T: PartialEq>(
    a: &[T],
    b: &[T],
    base: usize,
    pairs: &mut Vec<Pair>,
) -> pteron_tensor::Result<()> {
    let width = b.len() + 1;
    let mut longest = pteron_tensor::memory::filled((a.len() + 1) * width, 0u32)?;
    for i in (0..a.len()).rev() {
        for j in (0..b.len()).rev() {
            longest[i * width + j] = match a[i] == b[j] {
                true => longest[(i + 1) * width + j + 1] + 1,
                false => longest[(i + 1) * width + j].max(longest[i * width + j + 1]),
            };
        }
    }
    let (mut i, mut j) = (0, 0);
    while i < a.len() || j < b.len() {
        if i < a.len() && j < b.len() && a[i] == b[j] {
            pairs.push(Pair::Both(base + i, base + j));
            (i, j) = (i + 1, j + 1);
        } else if j == b.len() || i < a.len() && longest[(i + 1) * width + j] >= longest[i * width + j + 1] {
            pairs.push(Pair::OnlyA(base + i));
            i += 1;
        } else {
            pairs.push(Pair::OnlyB(base + j));
            j += 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn text(a: &str, b: &str) -> String {
        let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
        let show = |pair: Pair| match pair {
            Pair::Both(i, j) => {
                assert_eq!(a[i], b[j]);
                format!("{}", a[i])
            }
            Pair::OnlyA(i) => format!("-{}", a[i]),
            Pair::OnlyB(j) => format!("+{}", b[j]),
        };
        align(&a, &b).into_iter().map(show).collect()
    }

    #[test]
    fn equal_items_are_paired() {
        assert_eq!(text("abcd", "abcd"), "abcd");
        assert_eq!(text("abcd", "acbd"), "a-bc+bd");
        assert_eq!(text("", "x"), "+x");
        assert_eq!(text("xay", "a"), "-xa-y");
    }

    proptest! {
        #[test]
        fn every_item_appears_once_and_in_order(a in "[abc]{0,12}", b in "[abc]{0,12}") {
            let (x, y): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
            let pairs = align(&x, &y);
            let of_a = pairs.iter().filter_map(|p| match *p { Pair::Both(i, _) | Pair::OnlyA(i) => Some(i), _ => None });
            let of_b = pairs.iter().filter_map(|p| match *p { Pair::Both(_, j) | Pair::OnlyB(j) => Some(j), _ => None });
            prop_assert_eq!(of_a.collect::<Vec<_>>(), (0..x.len()).collect::<Vec<_>>());
            prop_assert_eq!(of_b.collect::<Vec<_>>(), (0..y.len()).collect::<Vec<_>>());
        }
    }
}
