//! The distribution of a value's elements, and the int8 range with the least quantization error.

/// Bins on each side of zero.
const BINS: usize = 1024;
/// The number of quantization steps in the int8 range.
const STEPS: f64 = 255.0;
/// Maximum rounds of the search, which ends as soon as no bound moves.
const MAX_ROUNDS: usize = 16;

/// Counts of the elements of a value, in bins of equal width on both sides of zero.
///
/// The width is a power of two. When an element is beyond the last bin, the width doubles and pairs of bins are merged,
/// so counts do not depend on the order of elements. Zeros are not counted: int8 represents them exactly.
#[derive(Debug, Clone)]
pub struct Histogram {
    /// Counts of elements in bins of size `width`, from `-BINS * width` to `BINS * width`.
    counts: Vec<u64>,
    width: f64,
    least: f32,
    greatest: f32,
}

impl Default for Histogram {
    fn default() -> Self {
        let width = f64::from(f32::MIN_POSITIVE);
        Self { counts: vec![0; 2 * BINS], width, least: f32::INFINITY, greatest: f32::NEG_INFINITY }
    }
}

impl Histogram {
    /// Adds the elements of one more tensor to the counts, ignoring NaN. Once an element was infinite, nothing is
    /// counted any more.
    pub fn add(&mut self, elements: &[f32]) {
        let (mut least, mut greatest) = (self.least, self.greatest);
        for &x in elements {
            (least, greatest) = (least.min(x), greatest.max(x));
        }
        (self.least, self.greatest) = (least, greatest);
        if !(least.is_finite() && greatest.is_finite()) {
            return;
        }
        self.widen(f64::from(least.abs().max(greatest.abs())));
        let per_width = self.width.recip();
        for &x in elements.iter().filter(|x| **x != 0.0 && !x.is_nan()) {
            let bin = (f64::from(x) * per_width).floor() as i64 + BINS as i64;
            self.counts[bin.clamp(0, 2 * BINS as i64 - 1) as usize] += 1;
        }
    }

    /// Doubles the width until `largest` is within the bins.
    fn widen(&mut self, largest: f64) {
        let is_empty = self.counts.iter().all(|&count| count == 0);
        while largest >= self.width * BINS as f64 {
            self.width *= 2.0;
            if !is_empty {
                let mut halved = vec![0; 2 * BINS];
                for (bin, &count) in self.counts.iter().enumerate() {
                    halved[BINS / 2 + bin / 2] += count;
                }
                self.counts = halved;
            }
        }
    }

    /// The smallest and the largest element; infinite if there are no elements, or if some are infinite.
    pub fn extent(&self) -> (f32, f32) {
        (self.least, self.greatest)
    }

    /// The bounds with the least total squared error over all elements: rounding errors within the bounds and clamping
    /// errors beyond. They include zero. The extent if it is infinite, or if only zeros were added.
    pub fn range(&self) -> (f32, f32) {
        let (least, greatest) = (self.least.min(0.0), self.greatest.max(0.0));
        if !(least.is_finite() && greatest.is_finite()) || self.counts.iter().all(|&count| count == 0) {
            return self.extent();
        }
        let sums = Sums::from_counts(&self.counts, self.width);
        let (first, last) = (sums.edge_below(least), sums.edge_above(greatest));
        let bound = |edge: usize| sums.edge_position(edge).clamp(f64::from(least), f64::from(greatest));
        let loss = |low: usize, high: usize| sums.loss(low, high, bound(low), bound(high));
        let (mut low, mut high) = (first, last);
        for _ in 0..MAX_ROUNDS {
            let before = (low, high);
            high = argmin(BINS..=last, |high| loss(low, high));
            low = argmin(first..=BINS, |low| loss(low, high));
            if (low, high) == before {
                break;
            }
        }
        (bound(low) as f32, bound(high) as f32)
    }
}

/// The index with the least loss; the first one on ties.
fn argmin(of: std::ops::RangeInclusive<usize>, loss: impl Fn(usize) -> f64) -> usize {
    let start = *of.start();
    of.map(|i| (i, loss(i))).reduce(|a, b| if b.1 < a.1 { b } else { a }).map_or(start, |(i, _)| i)
}

/// Prefix sums over the bins up to each edge: of counts, of elements, and of their squares.
struct Sums {
    below: Vec<[f64; 3]>,
    width: f64,
}

impl Sums {
    fn from_counts(counts: &[u64], width: f64) -> Self {
        let mut below = vec![[0.0; 3]];
        let mut sum = [0.0; 3];
        for (bin, &count) in counts.iter().enumerate() {
            let (x, count) = ((bin as f64 + 0.5 - BINS as f64) * width, count as f64);
            sum = [sum[0] + count, sum[1] + count * x, sum[2] + count * x * x];
            below.push(sum);
        }
        Self { below, width }
    }

    fn edge_position(&self, edge: usize) -> f64 {
        (edge as f64 - BINS as f64) * self.width
    }

    fn edge_below(&self, x: f32) -> usize {
        ((f64::from(x) / self.width).floor() as i64 + BINS as i64).clamp(0, BINS as i64) as usize
    }

    fn edge_above(&self, x: f32) -> usize {
        ((f64::from(x) / self.width).ceil() as i64 + BINS as i64).clamp(BINS as i64, 2 * BINS as i64) as usize
    }

    /// The total squared error of the range `from..=to`, whose bounds are near the edges `low` and `high`.
    fn loss(&self, low: usize, high: usize, from: f64, to: f64) -> f64 {
        let last = self.below[2 * BINS];
        let clamped =
            |[n, sum, squares]: [f64; 3], bound: f64| squares - 2.0 * bound * sum + bound * bound * n;
        let above = [0, 1, 2].map(|i| last[i] - self.below[high][i]);
        let step = (to - from) / STEPS;
        let within = self.below[high][0] - self.below[low][0];
        let beyond = clamped(self.below[low], from).max(0.0) + clamped(above, to).max(0.0);
        within * step * step / 12.0 + beyond
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(parts: &[&[f32]]) -> Histogram {
        let mut histogram = Histogram::default();
        parts.iter().for_each(|part| histogram.add(part));
        histogram
    }

    /// The sum of squared errors of quantizing `elements` to a range, measured element by element.
    fn measured(elements: &[f32], (low, high): (f32, f32)) -> f64 {
        let scale = (high - low) / 255.0;
        let zero = -128.0 - (low / scale).round();
        let error =
            |x: f32| x - ((x / scale).round() + zero).clamp(-128.0, 127.0).mul_add(scale, -zero * scale);
        elements.iter().map(|&x| f64::from(error(x)).powi(2)).sum()
    }

    /// Sums of twelve uniformly distributed numbers, nearly a normal distribution.
    fn bell(count: usize) -> Vec<f32> {
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f32 / (1u32 << 24) as f32
        };
        (0..count).map(|_| (0..12).map(|_| next()).sum::<f32>() - 6.0).collect()
    }

    #[test]
    fn uniform_elements_keep_their_extent() {
        let elements: Vec<f32> = (0..=4000).map(|i| i as f32 / 1000.0 - 1.0).collect();
        let (low, high) = of(&[&elements]).range();
        let step = 4.0 / 255.0;
        assert!((low + 1.0).abs() < step && (high - 3.0).abs() < step, "{low} to {high}");
    }

    #[test]
    fn an_outlier_is_clamped_where_the_others_gain_more() {
        let mut elements = bell(20_000);
        elements.push(100.0);
        let histogram = of(&[&elements]);
        assert_eq!(histogram.extent().1, 100.0);
        let (low, high) = histogram.range();
        let (chosen, whole) = (measured(&elements, (low, high)), measured(&elements, histogram.extent()));
        assert!(chosen < whole, "{chosen} from {low} to {high}, {whole} with the whole extent");
    }

    #[test]
    fn the_tails_of_a_normal_distribution_are_clamped() {
        let elements = bell(50_000);
        let histogram = of(&[&elements]);
        let ((low, high), (least, greatest)) = (histogram.range(), histogram.extent());
        assert!(least < low && high < greatest, "{low} to {high} of {least} to {greatest}");
        assert!(measured(&elements, (low, high)) < measured(&elements, (least, greatest)));
    }

    #[test]
    fn the_order_of_elements_does_not_matter() {
        let (small, large): (Vec<f32>, Vec<f32>) =
            ((1..100).map(|i| i as f32 * 1e-6).collect(), vec![5.0, -7.5]);
        let (a, b) = (of(&[&small, &large]), of(&[&large, &small]));
        assert_eq!((a.counts, a.width), (b.counts, b.width));
    }

    #[test]
    fn values_without_a_finite_range_return_their_extent() {
        assert_eq!(of(&[]).range(), (f32::INFINITY, f32::NEG_INFINITY));
        assert_eq!(of(&[&[1.0, f32::INFINITY]]).range(), (1.0, f32::INFINITY));
        assert_eq!(of(&[&[0.0, 0.0]]).range(), (0.0, 0.0));
        assert_eq!(of(&[&[f32::NAN, 0.5, -0.25]]).extent(), (-0.25, 0.5));
        assert_eq!(of(&[&[f32::MAX, f32::MIN]]).extent(), (f32::MIN, f32::MAX));
    }
}
