//! Self times of nested spans.

use super::Span;
use std::collections::HashMap;

/// The self time of each span in nanoseconds: its duration without spans nested in it on the same thread. The spans
/// are in the order in which they ended; spans of one thread are nested or disjoint.
pub(super) fn self_times(spans: &[&Span]) -> Vec<u64> {
    // For each thread, the spans so far that are not nested in another.
    let mut outermost: HashMap<usize, Vec<(u64, u64)>> = HashMap::new();
    spans
        .iter()
        .map(|span| {
            let ended = outermost.entry(span.thread).or_default();
            let mut inner = 0;
            while let Some((_, nanoseconds)) = ended.pop_if(|(start, _)| *start >= span.start) {
                inner += nanoseconds;
            }
            ended.push((span.start, span.nanoseconds()));
            span.nanoseconds().saturating_sub(inner)
        })
        .collect()
}

/// The length of the union of the time spans of all threads, in nanoseconds.
pub(super) fn union_length(spans: &[&Span]) -> u64 {
    let mut parts: Vec<(u64, u64)> = spans.iter().map(|s| (s.start, s.end)).collect();
    parts.sort_unstable();
    let (mut sum, mut reached) = (0, 0);
    for (start, end) in parts {
        sum += end.saturating_sub(start.max(reached));
        reached = reached.max(end);
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_trace::{Place, SpanKind};

    fn spans(times: &[(usize, u64, u64)]) -> Vec<Span> {
        let span = |&(thread, start, end)| Span {
            kind: SpanKind::Kernel,
            name: "k".into(),
            place: Place::default(),
            start,
            end,
            thread,
        };
        times.iter().map(span).collect()
    }

    fn self_times_and_union(times: &[(usize, u64, u64)]) -> (Vec<u64>, u64) {
        let spans = spans(times);
        let spans: Vec<&Span> = spans.iter().collect();
        (self_times(&spans), union_length(&spans))
    }

    #[test]
    fn nested_spans_are_subtracted_once() {
        // 0..100 holds 10..60, which holds 20..30 and 40..50; then 70..80.
        let nested = [(1, 20, 30), (1, 40, 50), (1, 10, 60), (1, 70, 80), (1, 0, 100)];
        assert_eq!(self_times_and_union(&nested), (vec![10, 10, 30, 10, 40], 100));
    }

    #[test]
    fn disjoint_spans_and_other_threads_are_not_subtracted() {
        let disjoint = [(1, 0, 10), (2, 5, 25), (1, 10, 20), (3, 6, 26), (1, 30, 40)];
        assert_eq!(self_times_and_union(&disjoint), (vec![10, 20, 10, 20, 10], 36));
    }

    #[test]
    fn empty_spans_take_no_time() {
        assert_eq!(
            self_times_and_union(&[(1, 5, 5), (1, 5, 5), (1, 5, 9), (1, 9, 9), (1, 5, 9)]),
            (vec![0, 0, 4, 0, 0], 4)
        );
        assert_eq!(self_times_and_union(&[]), (vec![], 0));
    }
}
