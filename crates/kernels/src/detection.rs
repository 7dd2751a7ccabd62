//! torchvision's operators on boxes and regions of interest. Torchvision declares no out variants; the operators here
//! have its schemas with an out added.

use crate::support::convert::{all_values, write_row_major};
use crate::support::dims::to_positive;
use crate::support::dtype::{Cast, Compute, compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, Results, ensure};
use pteron_tensor::{ScalarType, Shape};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "torchvision::nms.out(Tensor dets, Tensor scores, float iou_threshold, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        nms,
    )
    .results(Results::DataDependentShape),
    Operator::new(
        "torchvision::roi_align.out(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, bool aligned, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        roi_align,
    ),
    Operator::new(
        "torchvision::roi_pool.out(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        roi_pool,
    ),
    Operator::new(
        "torchvision::ps_roi_align.out(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, int sampling_ratio, *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        ps_roi_align,
    ),
    Operator::new(
        "torchvision::ps_roi_pool.out(Tensor input, Tensor rois, float spatial_scale, SymInt pooled_height, SymInt pooled_width, *, Tensor(a!) out0, Tensor(b!) out1) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::FLOATING,
        ps_roi_pool,
    ),
];

/// The largest `sampling_ratio`: the number of samples of a bin along one dimension.
const MAX_SAMPLES: i64 = 1 << 10;

/// The largest number of samples of a region along one dimension.
const MAX_TAPS: usize = 1 << 20;

/// The indices of the boxes that remain, best first: each box that overlaps a better one that remains by more than the threshold
/// is suppressed. A box is `x1, y1, x2, y2`.
fn nms(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (boxes, scores, threshold) =
        (args.tensor("dets")?, args.tensor("scores")?, args.double("iou_threshold")?);
    ensure!(
        boxes.rank() == 2
            && boxes.sizes()[1] == 4
            && scores.rank() == 1
            && scores.sizes()[0] == boxes.sizes()[0],
        "dets, scores: expected [N, 4] and [N], found {} and {}",
        boxes.sizes(),
        scores.sizes()
    );
    expect_type("scores", boxes.dtype(), scores.dtype())?;
    let out = outs.tensor(0)?;
    expect_type("out", ScalarType::Long, out.dtype())?;
    let mut order = ctx.scratch::<i64>(scores.numel())?;
    order.iter_mut().enumerate().for_each(|(i, o)| *o = i as i64);
    let remaining = dispatch!("dets", compute_type(boxes.dtype()), COMPUTE_FLOAT, C => {
        let (boxes, scores) = (all_values::<C>(ctx, &boxes)?, all_values::<C>(ctx, &scores)?);
        // Descending and stable; NaN counts as the greatest.
        order.sort_by(|&a, &b| {
            pteron_pool::progress(1);
            let (a, b) = (scores[a as usize], scores[b as usize]);
            b.is_nan().cmp(&a.is_nan()).then(b.partial_cmp(&a).unwrap_or(std::cmp::Ordering::Equal))
        });
        suppress(&boxes, &mut order, threshold)
    });
    out.resize(&[remaining])?;
    write_row_major::<i64>(ctx, out, |out| {
        out.copy_from_slice(&order[..remaining]);
        Ok(())
    })
}

/// Moves the boxes that non-maximum suppression keeps to the front of `order`, and returns their number.
fn suppress<C: Compute + Float>(boxes: &[C], order: &mut [i64], threshold: f64) -> usize {
    let corners = |i: i64| -> [C; 4] { std::array::from_fn(|k| boxes[i as usize * 4 + k]) };
    let area = |[x1, y1, x2, y2]: [C; 4]| (x2 - x1) * (y2 - y1);
    let mut remaining = 0;
    for at in 0..order.len() {
        let b = corners(order[at]);
        pteron_pool::progress(remaining + 1);
        let overlaps = order[..remaining].iter().any(|&better| {
            let a = corners(better);
            let side = |low: usize, high: usize| (a[high].min(b[high]) - a[low].max(b[low])).max(C::zero());
            let common = side(0, 2) * side(1, 3);
            (common / (area(a) + area(b) - common)).to_f64() > threshold
        });
        if !overlaps {
            order[remaining] = order[at];
            remaining += 1;
        }
    }
    remaining
}

/// The sizes of a call on regions of interest.
struct Regions {
    batch: usize,
    channels: usize,
    height: usize,
    width: usize,
    count: usize,
    pooled: [usize; 2],
}

impl Regions {
    /// Reads the sizes of `input` and `rois`, and the numbers of bins.
    fn from_args(args: &Args<'_>) -> Result<Self> {
        let (x, rois) = (args.meta("input")?, args.meta("rois")?);
        ensure!(
            x.rank() == 4 && rois.rank() == 2 && rois.sizes()[1] == 5,
            "input, rois: expected [N, C, H, W] and [K, 5], found {} and {}",
            x.sizes(),
            rois.sizes()
        );
        expect_type("rois", x.dtype(), rois.dtype())?;
        let size = |arg: &'static str| to_positive(arg, args.int(arg)?);
        let pooled = [size("pooled_height")?, size("pooled_width")?];
        let [batch, channels, height, width] = [0, 1, 2, 3].map(|d| x.sizes()[d]);
        Ok(Self { batch, channels, height, width, count: rois.sizes()[0], pooled })
    }

    fn bin_count(&self) -> usize {
        self.pooled[0].saturating_mul(self.pooled[1])
    }

    /// The number of output channels of a position-sensitive operator.
    fn channels_per_bin(&self) -> Result<usize> {
        let bins = self.bin_count();
        ensure!(
            self.channels.is_multiple_of(bins),
            "input: {} channels are no multiple of the {bins} bins",
            self.channels
        );
        Ok(self.channels / bins)
    }

    fn result_shape(&self, channels: usize) -> Result<Shape> {
        let shape = Shape::new(&[self.count, channels, self.pooled[0], self.pooled[1]])?;
        shape.numel()?;
        Ok(shape)
    }

    /// The index of the image that a region lies in: the region's first element.
    fn image_index<C: Compute>(&self, region: &[C]) -> Result<usize> {
        let image = region[0].to_f64();
        ensure!(
            image >= 0.0 && image < self.batch as f64,
            "rois: image {image} is out of range for a batch of {}",
            self.batch
        );
        Ok(image as usize)
    }
}

/// The samples of the bins along one dimension: for each bin, pairs of neighbouring elements with their weights.
struct Samples<C> {
    taps: Vec<[(usize, C); 2]>,
    /// The end of each bin's samples in `taps`.
    ends: Vec<usize>,
    /// The number of samples of a bin, including those outside of the image, which are zero.
    grid: f64,
}

impl<C: Compute + Float> Samples<C> {
    /// Samples of `bins` bins of size `bin` from `start` on, in a dimension of `size` elements.
    fn new(start: C, bin: C, bins: usize, size: usize, ratio: i64) -> Result<Self> {
        let grid = if ratio > 0 { ratio as f64 } else { bin.to_f64().ceil() };
        let mut samples = Self { taps: Vec::new(), ends: Vec::with_capacity(bins), grid };
        let step = bin.to_f64() / grid;
        for at in 0..bins {
            let origin = start + C::from_f64(at as f64) * bin;
            // Only samples within -1..=size read the image; their distance is at least half an element.
            let inside = |edge: f64| ((edge - origin.to_f64()) / step).clamp(0.0, grid.max(0.0));
            let range = match ratio > 0 {
                true => 0..ratio as u64,
                false => (inside(-1.0) - 1.0) as u64..(inside(size as f64) + 1.0).min(grid.max(0.0)) as u64,
            };
            for i in range {
                pteron_pool::progress(1);
                let half = C::from_f64(0.5);
                let place = origin + (C::from_f64(i as f64) + half) * bin / C::from_f64(grid);
                samples.taps.extend(linear_taps(place, size));
            }
            ensure!(samples.taps.len() <= MAX_TAPS, "rois: more than {MAX_TAPS} samples along one dimension");
            samples.ends.push(samples.taps.len());
        }
        Ok(samples)
    }

    fn taps_of_bin(&self, bin: usize) -> &[[(usize, C); 2]] {
        let start = if bin == 0 { 0 } else { self.ends[bin - 1] };
        &self.taps[start..self.ends[bin]]
    }
}

/// The two elements next to a position, with their weights; `None` if the position is outside of `-1..=size`.
fn linear_taps<C: Compute + Float>(place: C, size: usize) -> Option<[(usize, C); 2]> {
    let inside = place >= C::from_f64(-1.0) && place <= C::from_f64(size as f64) && size > 0;
    if !inside {
        return None;
    }
    let place = place.max(C::zero());
    let low = (place.to_f64() as usize).min(size - 1);
    let (high, place) = if low + 1 >= size { (low, C::from_f64(low as f64)) } else { (low + 1, place) };
    let part = place - C::from_f64(low as f64);
    Some([(low, C::one() - part), (high, part)])
}

/// The sum of the samples of a bin of one channel.
fn sum_samples<C: Compute + Float>(
    x: &[C],
    width: usize,
    rows: &[[(usize, C); 2]],
    columns: &[[(usize, C); 2]],
) -> C {
    let mut sum = C::zero();
    for row in rows {
        for column in columns {
            for &(y, wy) in row {
                for &(x_at, wx) in column {
                    sum = sum + x[y * width + x_at] * wy * wx;
                }
            }
        }
    }
    sum
}

/// The start and the size of a region along one dimension, scaled; `k` is 0 for the rows and 1 for the columns.
fn region_extent<C: Compute + Float>(region: &[C], k: usize, scale: C, offset: C) -> (C, C) {
    let start = region[2 - k] * scale - offset;
    (start, region[4 - k] * scale - offset - start)
}

fn sampling_ratio(args: &Args<'_>) -> Result<i64> {
    let ratio = args.int("sampling_ratio")?;
    ensure!(ratio <= MAX_SAMPLES, "sampling_ratio: {ratio} is above {MAX_SAMPLES}");
    Ok(ratio)
}

/// The mean of bilinear samples in each bin of each region of interest.
fn roi_align(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (regions, ratio, aligned) = (Regions::from_args(args)?, sampling_ratio(args)?, args.bool("aligned")?);
    let (x, rois, scale) = (args.tensor("input")?, args.tensor("rois")?, args.double("spatial_scale")?);
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&regions.result_shape(regions.channels)?)?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (x, rois) = (all_values::<C>(ctx, &x)?, all_values::<C>(ctx, &rois)?);
        let offset = C::from_f64(if aligned { 0.5 } else { 0.0 });
        let plane = regions.height * regions.width;
        write_values::<C>(ctx, out, |out| {
            let each = regions.channels * regions.bin_count();
            for (region, out) in rois.chunks_exact(5).zip(out.chunks_exact_mut(each.max(1))) {
                let image = regions.image_index(region)?;
                let [rows, columns] = [0, 1].map(|k| {
                    let (start, mut size) = region_extent(region, k, C::from_f64(scale), offset);
                    if !aligned {
                        size = size.max(C::from_f64(1.0));
                    }
                    let bins = regions.pooled[k];
                    let bin = size / C::from_f64(bins as f64);
                    Samples::new(start, bin, bins, [regions.height, regions.width][k], ratio)
                });
                let (rows, columns) = (rows?, columns?);
                let count = C::from_f64((rows.grid * columns.grid).max(1.0));
                let x = &x[image * regions.channels * plane..][..regions.channels * plane];
                for (i, out) in out.iter_mut().enumerate() {
                    let (channel, bin) = (i / regions.bin_count(), i % regions.bin_count());
                    let (h, w) = (rows.taps_of_bin(bin / regions.pooled[1]), columns.taps_of_bin(bin % regions.pooled[1]));
                    pteron_pool::progress(h.len() * w.len());
                    *out = sum_samples(&x[channel * plane..][..plane], regions.width, h, w) / count;
                }
            }
            Ok(())
        })
    })
}

/// The mean of bilinear samples in each bin of each region; out 1 is the index of the channel that each bin reads.
fn ps_roi_align(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (regions, ratio) = (Regions::from_args(args)?, sampling_ratio(args)?);
    let (x, rois, scale) = (args.tensor("input")?, args.tensor("rois")?, args.double("spatial_scale")?);
    let channels = regions.channels_per_bin()?;
    write_channels(ctx, &regions, channels, outs)?;
    let out = outs.tensor(0)?;
    expect_type("out0", x.dtype(), out.dtype())?;
    out.resize(&regions.result_shape(channels)?)?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (x, rois) = (all_values::<C>(ctx, &x)?, all_values::<C>(ctx, &rois)?);
        let (plane, bins) = (regions.height * regions.width, regions.bin_count());
        write_values::<C>(ctx, out, |out| {
            for (region, out) in rois.chunks_exact(5).zip(out.chunks_exact_mut((channels * bins).max(1))) {
                let image = regions.image_index(region)?;
                let [rows, columns] = [0, 1].map(|k| {
                    let (start, size) = region_extent(region, k, C::from_f64(scale), C::from_f64(0.5));
                    let bins = regions.pooled[k];
                    let bin = size / C::from_f64(bins as f64);
                    Samples::new(start, bin, bins, [regions.height, regions.width][k], ratio)
                });
                let (rows, columns) = (rows?, columns?);
                let count = C::from_f64(rows.grid * columns.grid);
                for (i, out) in out.iter_mut().enumerate() {
                    let bin = i % bins;
                    let (h, w) = (rows.taps_of_bin(bin / regions.pooled[1]), columns.taps_of_bin(bin % regions.pooled[1]));
                    let x = &x[(image * regions.channels + i) * plane..][..plane];
                    pteron_pool::progress(h.len() * w.len());
                    *out = sum_samples(x, regions.width, h, w) / count;
                }
            }
            Ok(())
        })
    })
}

/// The channel that each element of a position-sensitive operator's result was computed from, as out 1.
fn write_channels(
    ctx: &KernelContext<'_>,
    regions: &Regions,
    channels: usize,
    outs: &mut Outs<'_>,
) -> Result<()> {
    let out = outs.tensor(1)?;
    expect_type("out1", ScalarType::Int, out.dtype())?;
    out.resize(&regions.result_shape(channels)?)?;
    let each = channels * regions.bin_count();
    write_row_major::<i64>(ctx, out, |out| {
        out.iter_mut().enumerate().for_each(|(i, o)| *o = (i % each.max(1)) as i64);
        Ok(())
    })
}

/// The range of rows or columns that a bin covers, within `size` elements.
fn bin_range(start: f64, end: f64, size: usize) -> std::ops::Range<usize> {
    let within = |v: f64| v.clamp(0.0, size as f64) as usize;
    within(start)..within(end)
}

/// The greatest element of each bin of each region, and its index in the image; 0 and -1 for empty bins.
fn roi_pool(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let regions = Regions::from_args(args)?;
    let (x, rois, scale) = (args.tensor("input")?, args.tensor("rois")?, args.double("spatial_scale")?);
    let shape = regions.result_shape(regions.channels)?;
    let [out, places] = outs.tensors([0, 1])?;
    expect_type("out0", x.dtype(), out.dtype())?;
    expect_type("out1", ScalarType::Int, places.dtype())?;
    out.resize(&shape)?;
    places.resize(&shape)?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (x, rois) = (all_values::<C>(ctx, &x)?, all_values::<C>(ctx, &rois)?);
        let (plane, bins) = (regions.height * regions.width, regions.bin_count());
        let mut positions = ctx.scratch::<i64>(out.numel())?;
        write_values::<C>(ctx, out, |out| {
            let each = (regions.channels * bins).max(1);
            for ((region, out), positions) in
                rois.chunks_exact(5).zip(out.chunks_exact_mut(each)).zip(positions.chunks_exact_mut(each))
            {
                let image = regions.image_index(region)?;
                let axes = [0, 1].map(|k| {
                    let [start, end] = [2 - k, 4 - k].map(|i| (region[i] * C::from_f64(scale)).round());
                    let size = (end - start + C::from_f64(1.0)).max(C::from_f64(1.0));
                    (start.to_f64(), size / C::from_f64(regions.pooled[k] as f64))
                });
                let range = |k: usize, bin: usize, size: usize| {
                    let (start, each) = axes[k];
                    let edge = |n: usize| C::from_f64(n as f64) * each;
                    bin_range(edge(bin).floor().to_f64() + start, edge(bin + 1).ceil().to_f64() + start, size)
                };
                for (i, (out, positions)) in out.iter_mut().zip(positions).enumerate() {
                    let (channel, bin) = (i / bins, i % bins);
                    let rows = range(0, bin / regions.pooled[1], regions.height);
                    let columns = range(1, bin % regions.pooled[1], regions.width);
                    let x = &x[(image * regions.channels + channel) * plane..][..plane];
                    (*out, *positions) = greatest_element(x, regions.width, rows, columns);
                }
            }
            Ok(())
        })?;
        write_row_major::<i64>(ctx, places, |places| {
            places.copy_from_slice(&positions);
            Ok(())
        })
    })
}

fn greatest_element<C: Compute + Float>(
    x: &[C],
    width: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> (C, i64) {
    pteron_pool::progress(rows.len() * columns.len() + 1);
    if rows.is_empty() || columns.is_empty() {
        return (C::zero(), -1);
    }
    let (mut value, mut place) = (C::min_value(), -1);
    for at in rows.flat_map(|y| columns.clone().map(move |column| y * width + column)) {
        if x[at] > value {
            (value, place) = (x[at], at as i64);
        }
    }
    (value, place)
}

/// The mean of each bin of each region; out 1 is the index of the channel that each bin reads.
fn ps_roi_pool(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let regions = Regions::from_args(args)?;
    let (x, rois, scale) = (args.tensor("input")?, args.tensor("rois")?, args.double("spatial_scale")?);
    let channels = regions.channels_per_bin()?;
    write_channels(ctx, &regions, channels, outs)?;
    let out = outs.tensor(0)?;
    expect_type("out0", x.dtype(), out.dtype())?;
    out.resize(&regions.result_shape(channels)?)?;
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (x, rois) = (all_values::<C>(ctx, &x)?, all_values::<C>(ctx, &rois)?);
        let (plane, bins) = (regions.height * regions.width, regions.bin_count());
        write_values::<C>(ctx, out, |out| {
            for (region, out) in rois.chunks_exact(5).zip(out.chunks_exact_mut((channels * bins).max(1))) {
                let image = regions.image_index(region)?;
                let axes = [0, 1].map(|k| {
                    let [start, end] = [2 - k, 4 - k].map(|i| (region[i] * C::from_f64(scale)).round());
                    (start, (end - start).max(C::from_f64(1.0)) / C::from_f64(regions.pooled[k] as f64))
                });
                let range = |k: usize, bin: usize, size: usize| {
                    let (start, each) = axes[k];
                    let edge = |n: usize| C::from_f64(n as f64) * each + start;
                    // Torchvision's kernel leaves the last row and the last column out.
                    bin_range(edge(bin).floor().to_f64(), edge(bin + 1).ceil().to_f64(), size.saturating_sub(1))
                };
                for (i, out) in out.iter_mut().enumerate() {
                    let bin = i % bins;
                    let rows = range(0, bin / regions.pooled[1], regions.height);
                    let columns = range(1, bin % regions.pooled[1], regions.width);
                    let x = &x[(image * regions.channels + i) * plane..][..plane];
                    *out = mean_of_rectangle(x, regions.width, rows, columns);
                }
            }
            Ok(())
        })
    })
}

fn mean_of_rectangle<C: Compute + Float>(
    x: &[C],
    width: usize,
    rows: std::ops::Range<usize>,
    columns: std::ops::Range<usize>,
) -> C {
    let count = rows.len() * columns.len();
    pteron_pool::progress(count + 1);
    if count == 0 {
        return C::zero();
    }
    let places = rows.flat_map(|y| columns.clone().map(move |column| y * width + column));
    places.fold(C::zero(), |sum, at| sum + x[at]) / C::from_f64(count as f64)
}
