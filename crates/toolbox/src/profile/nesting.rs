//! Spans within spans.

use super::Span;
use std::collections::HashMap;

/// Of each span, the nanoseconds that were not spent in others within it on the same thread. The spans stand
/// in the order in which they ended: those of a thread lie within each other or apart.
pub(super) fn self_times(spans: &[&Span]) -> Vec<u64> {
    // Of each thread, spans that are within none so far.
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

/// The nanoseconds in which there is a span, of whichever thread.
pub(super) fn covered(spans: &[&Span]) -> u64 {
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
    use trace::{Place, SpanKind};

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

    fn of(times: &[(usize, u64, u64)]) -> (Vec<u64>, u64) {
        let spans = spans(times);
        let spans: Vec<&Span> = spans.iter().collect();
        (self_times(&spans), covered(&spans))
    }

    #[test]
    fn inner_spans_are_taken_off_once() {
        // 0..100 holds 10..60, which holds 20..30 and 40..50; then 70..80.
        let nested = [(1, 20, 30), (1, 40, 50), (1, 10, 60), (1, 70, 80), (1, 0, 100)];
        assert_eq!(of(&nested), (vec![10, 10, 30, 10, 40], 100));
    }

    #[test]
    fn spans_apart_and_of_other_threads_stay_whole() {
        let apart = [(1, 0, 10), (2, 5, 25), (1, 10, 20), (3, 6, 26), (1, 30, 40)];
        assert_eq!(of(&apart), (vec![10, 20, 10, 20, 10], 36));
    }

    #[test]
    fn spans_without_length_take_nothing() {
        assert_eq!(of(&[(1, 5, 5), (1, 5, 5), (1, 5, 9), (1, 9, 9), (1, 5, 9)]), (vec![0, 0, 4, 0, 0], 4));
        assert_eq!(of(&[]), (vec![], 0));
    }
}
