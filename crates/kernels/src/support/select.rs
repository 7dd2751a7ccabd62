//! Selection and sorting that order equal elements as the C++ standard library that PyTorch is built with does:
//! that determines which of several equal elements `topk` picks. Quickselect and quicksort with a median-of-three
//! pivot, insertion sort for short ranges, and heapsort beyond a recursion limit (introsort).
//!
//! `less` must be a strict weak order.

/// Ranges up to this length are sorted by insertion sort.
const SHORT: usize = 16;

/// Moves the element that sorting would put at `nth` there. Afterwards, no element before it is greater, and none
/// after it is less.
pub(crate) fn nth_element<T: Copy>(all: &mut [T], nth: usize, less: &impl Fn(T, T) -> bool) {
    let (mut first, mut last) = (0, all.len());
    let mut depth = depth_limit(last);
    while last - first > 3 {
        if depth == 0 {
            heap_select(&mut all[first..last], nth + 1 - first, less);
            all.swap(first, nth);
            return;
        }
        depth -= 1;
        let cut = first + partition(&mut all[first..last], less);
        if cut <= nth {
            first = cut;
        } else {
            last = cut;
        }
    }
    insertion_sort(&mut all[first..last], less);
}

/// Sorts all elements; not stable.
pub(crate) fn sort<T: Copy>(all: &mut [T], less: &impl Fn(T, T) -> bool) {
    let depth = depth_limit(all.len());
    quicksort(all, depth, less);
    insertion_sort(all, less);
}

/// Moves the `count` smallest elements to the front and sorts them.
pub(crate) fn partial_sort<T: Copy>(all: &mut [T], count: usize, less: &impl Fn(T, T) -> bool) {
    if count == 0 {
        return;
    }
    heap_select(all, count, less);
    for end in (1..count).rev() {
        let value = all[end];
        all[end] = all[0];
        sift(&mut all[..end], 0, value, less);
    }
}

fn depth_limit(len: usize) -> u32 {
    2 * len.checked_ilog2().unwrap_or(0)
}

fn quicksort<T: Copy>(all: &mut [T], mut depth: u32, less: &impl Fn(T, T) -> bool) {
    let mut last = all.len();
    while last > SHORT {
        if depth == 0 {
            return partial_sort(&mut all[..last], last, less);
        }
        depth -= 1;
        let cut = partition(&mut all[..last], less);
        quicksort(&mut all[cut..last], depth, less);
        last = cut;
    }
}

/// Partitions at least four elements around the median of the second, the middle and the last one, which is moved to
/// the front. Returns the start of the greater part.
fn partition<T: Copy>(all: &mut [T], less: &impl Fn(T, T) -> bool) -> usize {
    let (a, b, c) = (1, all.len() / 2, all.len() - 1);
    let below = |i: usize, j: usize| less(all[i], all[j]);
    let median = match (below(a, b), below(b, c), below(a, c)) {
        (true, true, _) | (false, false, false) => b,
        (true, false, true) | (false, true, false) => c,
        (true, false, false) | (false, _, true) => a,
    };
    all.swap(0, median);
    let pivot = all[0];
    let (mut first, mut last) = (1, all.len());
    loop {
        while less(all[first], pivot) {
            first += 1;
        }
        last -= 1;
        while less(pivot, all[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        all.swap(first, last);
        first += 1;
    }
}

fn insertion_sort<T: Copy>(all: &mut [T], less: &impl Fn(T, T) -> bool) {
    for i in 1..all.len() {
        let value = all[i];
        let mut at = i;
        while at > 0 && less(value, all[at - 1]) {
            all[at] = all[at - 1];
            at -= 1;
        }
        all[at] = value;
    }
}

/// Makes the front a max-heap of the `count` smallest elements.
fn heap_select<T: Copy>(all: &mut [T], count: usize, less: &impl Fn(T, T) -> bool) {
    for parent in (0..count / 2).rev() {
        let value = all[parent];
        sift(&mut all[..count], parent, value, less);
    }
    for i in count..all.len() {
        let value = all[i];
        if less(value, all[0]) {
            all[i] = all[0];
            sift(&mut all[..count], 0, value, less);
        }
    }
}

/// Sifts `value` into the hole at `top` of a heap: the greater children move up until the hole is a leaf, then `value`
/// rises to its position.
fn sift<T: Copy>(heap: &mut [T], top: usize, value: T, less: &impl Fn(T, T) -> bool) {
    let mut hole = top;
    while 2 * hole + 1 < heap.len() {
        let right = 2 * hole + 2;
        let child = if right < heap.len() && !less(heap[right], heap[right - 1]) { right } else { right - 1 };
        heap[hole] = heap[child];
        hole = child;
    }
    while hole > top && less(heap[(hole - 1) / 2], value) {
        heap[hole] = heap[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap[hole] = value;
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_operator::Generator;

    #[test]
    fn sorting_and_selection_agree_with_the_standard_sort() {
        let dice = Generator::new(5);
        let less = |a: u64, b: u64| a < b;
        for len in (0..40).chain([100, 1000]) {
            for range in [1, 3, 1000] {
                let of: Vec<u64> = (0..len).map(|_| dice.below(range)).collect();
                let mut want = of.clone();
                want.sort_unstable();
                let mut all = of.clone();
                sort(&mut all, &less);
                assert_eq!(all, want);
                let some = dice.below(len.max(1)) as usize;
                let mut all = of.clone();
                partial_sort(&mut all, some, &less);
                assert_eq!(all[..some], want[..some]);
                if len > 0 {
                    let mut all = of.clone();
                    nth_element(&mut all, some, &less);
                    assert_eq!(all[some], want[some]);
                    assert!(all[..some].iter().all(|&x| x <= want[some]));
                }
            }
        }
        // Two ascending runs, with a depth limit that makes the heap take over.
        let mut rising: Vec<u64> = (0..500).chain(0..500).collect();
        quicksort(&mut rising, 1, &less);
        insertion_sort(&mut rising, &less);
        assert!(rising.is_sorted());
    }
}
