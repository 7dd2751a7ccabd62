//! Statistics of groups of channels.

use super::super::conv::Layout;
use super::super::isa::Isa;
use super::super::scratch;
use super::super::simd::{Op, Simd, dispatch};
use super::norm::mean_rstd;
use super::reduce::{COLUMNS, column_sums_of};
use pteron_pool::Pool;

/// The number of elements in a block of a channels-last image: they stay in a near cache.
const BLOCK: usize = 1 << 14;
/// The maximum number of pixels of a block.
const PIXELS: usize = 512;

/// The factors of group normalisation: for each image and channel the `scale` and `shift` that normalise it as
/// `x * scale + shift`. `x` holds images of `channels` by `pixels` in `layout`; `weight` and `bias` have `channels`
/// elements, `scale` and `shift` as many for each image. The variance is the population variance. Runs in parallel on
/// `pool` if there are many elements.
///
/// # Panics
/// If lengths contradict each other, or the groups do not divide the channels.
pub fn group_norm_factors(
    pool: &Pool,
    isa: Isa,
    eps: f32,
    (channels, pixels, groups): (usize, usize, usize),
    layout: Layout,
    x: &[f32],
    (weight, bias): (Option<&[f32]>, Option<&[f32]>),
    (scale, shift): (&mut [f32], &mut [f32]),
) {
    assert!(groups > 0 && channels.is_multiple_of(groups), "{groups} groups of {channels} channels");
    assert!([weight, bias].iter().flatten().all(|v| v.len() == channels), "factors of {channels} channels");
    assert_eq!(scale.len(), shift.len(), "factors of group normalisation");
    let image = channels * pixels;
    if image == 0 {
        return;
    }
    assert_eq!(x.len() / image * channels, scale.len(), "factors of images of {channels} channels");
    let each = channels / groups;
    let images =
        x.chunks_exact(image).zip(scale.chunks_exact_mut(channels).zip(shift.chunks_exact_mut(channels)));
    for (x, (scale, shift)) in images {
        let mut statistics = scratch::filled_vec(groups, (0.0, 0.0));
        match layout {
            Layout::ChannelsFirst => {
                let grain = (BLOCK / (each * pixels)).max(1);
                pool.parallel_chunks_mut(&mut statistics, 1, grain, &|g, pair| {
                    pair[0] = mean_rstd(isa, &x[g * each * pixels..][..each * pixels], eps);
                });
            }
            Layout::ChannelsLast => channels_last_statistics(pool, isa, eps, channels, x, &mut statistics),
        }
        for (c, (scale, shift)) in scale.iter_mut().zip(shift).enumerate() {
            let (mean, rstd) = statistics[c / each];
            *scale = rstd * weight.map_or(1.0, |w| w[c]);
            *shift = bias.map_or(0.0, |b| b[c]) - mean * *scale;
        }
    }
}

/// Mean and reciprocal standard deviation of each group of a channels-last image.
fn channels_last_statistics(
    pool: &Pool,
    isa: Isa,
    eps: f32,
    channels: usize,
    x: &[f32],
    statistics: &mut [(f32, f32)],
) {
    let pixels = x.len() / channels;
    let block = (BLOCK / channels).clamp(1, PIXELS);
    let each = channels / statistics.len();
    // For each block of pixels: the mean of each channel, then each channel's sum of squared deviations from it.
    let mut moments = scratch::filled_vec(pixels.div_ceil(block) * 2 * channels, 0.0f32);
    pool.parallel_chunks_mut(&mut moments, 2 * channels, 1, &|b, moments| {
        let first = b * block * channels;
        let x = &x[first..x.len().min(first + block * channels)];
        let (means, squares) = moments.split_at_mut(channels);
        dispatch(isa, Moments { x, means, squares });
    });
    let count = |b: usize| block.min(pixels - b * block) as f64;
    for (g, pair) in statistics.iter_mut().enumerate() {
        let of = |start: usize| {
            let blocks = moments.chunks_exact(2 * channels).enumerate();
            blocks
                .flat_map(move |(b, m)| m[start + g * each..][..each].iter().map(move |&v| (b, f64::from(v))))
        };
        let n = (pixels * each) as f64;
        let mean = of(0).map(|(b, m)| m * count(b)).sum::<f64>() / n;
        let between = of(0).map(|(b, m)| (m - mean) * (m - mean) * count(b)).sum::<f64>();
        let within = of(channels).map(|(_, s)| s).sum::<f64>();
        *pair = (mean as f32, (1.0 / ((between + within) / n + f64::from(eps)).sqrt()) as f32);
    }
}

struct Moments<'a> {
    x: &'a [f32],
    means: &'a mut [f32],
    squares: &'a mut [f32],
}

impl Op for Moments<'_> {
    type Out = ();

    #[inline(always)]
    fn run<S: Simd>(self, _: S) {
        let Moments { x, means, squares } = self;
        let channels = means.len();
        let pixels = (x.len() / channels) as f64;
        for (i, (means, squares)) in means.chunks_mut(COLUMNS).zip(squares.chunks_mut(COLUMNS)).enumerate() {
            let columns = i * COLUMNS..i * COLUMNS + means.len();
            let sums = column_sums_of(x, channels, columns.clone(), |_, x| x);
            let mut centers = [0.0; COLUMNS];
            centers.iter_mut().zip(sums).for_each(|(m, sum)| *m = (sum / pixels) as f32);
            let sums = column_sums_of(x, channels, columns, |c, x| (x - centers[c]) * (x - centers[c]));
            means.copy_from_slice(&centers[..means.len()]);
            squares.iter_mut().zip(sums).for_each(|(square, sum)| *square = sum as f32);
        }
    }
}
