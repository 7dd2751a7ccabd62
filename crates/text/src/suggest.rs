//! Suggestions for misspelt names, by edit distance.

use crate::text;

/// The length, in bytes, above which names are only compared for equality.
const MAX_COMPARED_BYTES: usize = 100;
/// The largest number of suggestions.
const MAX_SUGGESTIONS: usize = 3;

/// The names at the smallest edit distance from `name`, in alphabetical order: at most three, all at the same distance.
/// Empty if `name` is itself in `among`, or if no name is close.
pub fn closest<'n>(name: &str, among: impl IntoIterator<Item = &'n str>) -> Vec<&'n str> {
    let mut close = Vec::new();
    for other in among {
        match edit_distance(name, other) {
            Some(0) => return Vec::new(),
            Some(steps) if !close.contains(&(steps, other)) => close.push((steps, other)),
            _ => {}
        }
    }
    close.sort_unstable();
    let least = close.first().map(|(steps, _)| *steps);
    let most_alike = close.into_iter().filter(|(steps, _)| Some(*steps) == least);
    most_alike.map(|(_, other)| other).take(MAX_SUGGESTIONS).collect()
}

/// ``; did you mean `add`?`` for the names that [`closest`] finds; empty if it finds none.
pub fn did_you_mean<'n>(name: &str, among: impl IntoIterator<Item = &'n str>) -> String {
    match closest(name, among).as_slice() {
        [] => String::new(),
        names => {
            let names: Vec<String> = names.iter().map(|name| format!("`{}`", text(name))).collect();
            format!("; did you mean {}?", names.join(" or "))
        }
    }
}

/// The edit distance between two names, ignoring case: insertions, deletions, substitutions and swaps of adjacent
/// letters. `None` if it is more than a third of the longer name's length (at least one edit is allowed).
fn edit_distance(a: &str, b: &str) -> Option<usize> {
    let letters = |s: &str| s.to_lowercase().into_bytes();
    if a.len().max(b.len()) > MAX_COMPARED_BYTES {
        return (a == b).then_some(0);
    }
    if a == b {
        return Some(0);
    }
    let (a, b) = (letters(a), letters(b));
    let most = (a.len().max(b.len()) / 3).max(1);
    if a.len().abs_diff(b.len()) > most {
        return None;
    }
    let mut above: Vec<usize> = Vec::new();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut next = vec![i + 1];
        for j in 0..b.len() {
            let changed = row[j] + usize::from(a[i] != b[j]);
            let mut steps = changed.min(row[j + 1] + 1).min(next[j] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                steps = steps.min(above[j - 1] + 1);
            }
            next.push(steps);
        }
        above = std::mem::replace(&mut row, next);
    }
    // Names that differ only in case are not equal: their distance is 1.
    row.last().map(|&steps| steps.max(1)).filter(|&steps| steps <= most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_a_few_edits_away_are_suggested() {
        let names = ["forward", "backward", "init", "decode_one", "decode_two"];
        assert_eq!(closest("foward", names), ["forward"]);
        assert_eq!(closest("Forward", names), ["forward"]);
        assert_eq!(closest("inti", names), ["init"]);
        assert_eq!(closest("decode_on", names), ["decode_one"]);
        assert_eq!(closest("decode_o", ["decode_a", "decode_b", "decode_c", "decode_d"]).len(), 3);
        assert!(closest("forward", names).is_empty());
        assert!(closest("something else", names).is_empty());
        assert!(closest(&"x".repeat(1 << 20), ["y"]).is_empty());
        assert_eq!(did_you_mean("encode_two", names), "; did you mean `decode_two`?");
        assert_eq!(did_you_mean("x", names), "");
    }
}
