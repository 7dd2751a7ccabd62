//! Partition and sort, with the algorithms of the reference implementation's C++ library. Neither is stable, and the
//! resulting order of equal elements decides the order in which kernels run; so the algorithms must be the same.

/// Moves the elements that satisfy `keep` to the front and returns their number.
pub(super) fn partition<T>(items: &mut [T], keep: impl Fn(&T) -> bool) -> usize {
    let (mut first, mut last) = (0, items.len());
    loop {
        while first != last && keep(&items[first]) {
            first += 1;
        }
        if first == last {
            return first;
        }
        last -= 1;
        while first != last && !keep(&items[last]) {
            last -= 1;
        }
        if first == last {
            return first;
        }
        items.swap(first, last);
        first += 1;
    }
}

/// Quicksort leaves ranges up to this length to insertion sort.
const SMALL: usize = 16;

/// Introsort: median-of-three quicksort down to small ranges, heapsort beyond the recursion limit, and a final
/// insertion sort over everything.
pub(super) fn sort<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) {
    if items.len() < 2 || sort_monotonic_run(items, less) {
        return;
    }
    quicksort(items, 2 * items.len().ilog2(), less);
    if items.len() <= SMALL {
        return insertion_sort(items, less);
    }
    insertion_sort(&mut items[..SMALL], less);
    for i in SMALL..items.len() {
        insert(items, i, less);
    }
}

/// Fast path for elements that, apart from the first, are strictly ascending or strictly descending. If the first
/// element equals none of the others, the sorted order is unique, so any algorithm gives it. Returns false and changes
/// nothing otherwise.
fn sort_monotonic_run<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) -> bool {
    let first = items[0];
    let rest = &mut items[1..];
    let falls = match rest {
        [a, b, ..] => less(b, a),
        _ => false,
    };
    if !rest.is_sorted_by(|a, b| if falls { less(b, a) } else { less(a, b) }) {
        return false;
    }
    let below = |item: &T| less(item, &first);
    let place = match falls {
        false => rest.partition_point(below),
        true => rest.len() - rest.partition_point(|item| !below(item)),
    };
    let neighbour = if falls { rest.len().checked_sub(place + 1) } else { Some(place) };
    if neighbour.and_then(|i| rest.get(i)).is_some_and(|item| !less(&first, item)) {
        return false;
    }
    if falls {
        rest.reverse();
    }
    items[..=place].rotate_left(1);
    true
}

fn quicksort<T: Copy>(mut items: &mut [T], mut depth: u32, less: impl Fn(&T, &T) -> bool + Copy) {
    while items.len() > SMALL {
        if depth == 0 {
            return heapsort(items, less);
        }
        depth -= 1;
        let middle = items.len() / 2;
        median_to_first(items, 1, middle, items.len() - 1, less);
        let cut = partition_around_first(items, less);
        let (left, right) = items.split_at_mut(cut);
        quicksort(right, depth, less);
        items = left;
    }
}

/// Swaps the median of three elements with the first.
fn median_to_first<T: Copy>(items: &mut [T], a: usize, b: usize, c: usize, less: impl Fn(&T, &T) -> bool) {
    let lt = |x: usize, y: usize| less(&items[x], &items[y]);
    let median = match (lt(a, b), lt(b, c), lt(a, c)) {
        (true, true, _) => b,
        (true, false, true) => c,
        (true, false, false) => a,
        (false, _, true) => a,
        (false, true, false) => c,
        (false, false, false) => b,
    };
    items.swap(0, median);
}

/// Partitions the elements after the first around the first, and returns where the right part begins.
fn partition_around_first<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool) -> usize {
    let pivot = items[0];
    let (mut first, mut last) = (1, items.len());
    loop {
        while less(&items[first], &pivot) {
            first += 1;
        }
        last -= 1;
        while less(&pivot, &items[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        items.swap(first, last);
        first += 1;
    }
}

fn insertion_sort<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) {
    for i in 1..items.len() {
        insert(items, i, less);
    }
}

/// Inserts element `i` into the sorted elements before it, after equal elements.
fn insert<T: Copy>(items: &mut [T], i: usize, less: impl Fn(&T, &T) -> bool) {
    let value = items[i];
    let mut to = i;
    while to > 0 && less(&value, &items[to - 1]) {
        items[to] = items[to - 1];
        to -= 1;
    }
    items[to] = value;
}

fn heapsort<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) {
    for hole in (0..items.len() / 2).rev() {
        sift(items, hole, items[hole], less);
    }
    for end in (1..items.len()).rev() {
        let value = items[end];
        items[end] = items[0];
        sift(&mut items[..end], 0, value, less);
    }
}

/// Moves the hole at `top` down to a leaf along the larger children, then sifts `value` up from there.
fn sift<T: Copy>(items: &mut [T], top: usize, value: T, less: impl Fn(&T, &T) -> bool) {
    let len = items.len();
    let mut hole = top;
    let mut child = top;
    while child < (len - 1) / 2 {
        child = 2 * (child + 1);
        if less(&items[child], &items[child - 1]) {
            child -= 1;
        }
        items[hole] = items[child];
        hole = child;
    }
    if len.is_multiple_of(2) && child == (len - 2) / 2 {
        child = 2 * (child + 1);
        items[hole] = items[child - 1];
        hole = child - 1;
    }
    while hole > top && less(&items[(hole - 1) / 2], &value) {
        items[hole] = items[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    items[hole] = value;
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn partition_swaps_from_both_ends() {
        let mut items = [1, 2, 3, 4, 5, 6, 7];
        assert_eq!(partition(&mut items, |i| i % 2 == 0), 3);
        assert_eq!(items, [6, 2, 4, 3, 5, 1, 7]);
    }

    #[test]
    fn short_ranges_are_sorted_stably() {
        let mut items = [(2, 'a'), (1, 'b'), (2, 'c'), (1, 'd')];
        sort(&mut items, |a, b| a.0 < b.0);
        assert_eq!(items, [(1, 'b'), (1, 'd'), (2, 'a'), (2, 'c')]);
    }

    /// Sorts as [`sort`] does, but without its fast path for monotonic runs.
    fn sort_as_any<T: Copy>(items: &mut [T], less: impl Fn(&T, &T) -> bool + Copy) {
        quicksort(items, 2 * items.len().max(2).ilog2(), less);
        (1..items.len()).for_each(|i| insert(items, i, less));
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "many cases of safe code")]
        fn the_fast_path_for_runs_gives_the_same_order_as_the_full_sort(
            first in 0u32..60,
            rest in prop::collection::btree_set(0u32..60, 1..40),
            falls: bool,
            last in prop::option::of(0u32..60),
        ) {
            let mut rest: Vec<u32> = rest.into_iter().collect();
            if falls {
                rest.reverse();
            }
            let keys = std::iter::once(first).chain(rest).chain(last);
            let mut items: Vec<(u32, usize)> = keys.enumerate().map(|(i, key)| (key, i)).collect();
            let mut expected = items.clone();
            sort_as_any(&mut expected, |a, b| a.0 < b.0);
            sort(&mut items, |a, b| a.0 < b.0);
            prop_assert_eq!(items, expected);
        }

        #[test]
        #[cfg_attr(miri, ignore = "many cases of safe code")]
        fn sorts(mut items in prop::collection::vec(0u32..50, 0..300)) {
            let mut expected = items.clone();
            expected.sort_unstable();
            let mut heap = items.clone();
            sort(&mut items, |a, b| a < b);
            prop_assert_eq!(&items, &expected);
            if heap.len() > 1 {
                heapsort(&mut heap, |a, b| a < b);
            }
            prop_assert_eq!(&heap, &expected);
        }
    }
}
