//! torchvision's deformable convolution: each tap of the filter reads the image at its place plus an offset, bilinearly.

use crate::support::convert::{Values, all_values};
use crate::support::dims::{to_positive, to_size};
use crate::support::dtype::{Compute, compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::Shape;

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "torchvision::deform_conv2d.out(Tensor input, Tensor weight, Tensor offset, Tensor mask, Tensor bias, SymInt stride_h, SymInt stride_w, SymInt pad_h, SymInt pad_w, SymInt dilation_h, SymInt dilation_w, SymInt groups, SymInt offset_groups, bool use_mask, *, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::FLOATING,
    deform_conv2d,
)];

/// The sizes and parameters of a call.
struct Geometry {
    batch: usize,
    channels: usize,
    image: [usize; 2],
    filters: usize,
    kernel: [usize; 2],
    result: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    dilation: [usize; 2],
    groups: usize,
    offset_groups: usize,
    masked: bool,
}

impl Geometry {
    fn from_args(args: &Args<'_>) -> Result<Self> {
        let (x, weight, offset) = (args.meta("input")?, args.meta("weight")?, args.meta("offset")?);
        let (mask, bias) = (args.meta("mask")?, args.meta("bias")?);
        ensure!(
            x.rank() == 4 && weight.rank() == 4 && offset.rank() == 4,
            "input, weight, offset: expected 4 dimensions each, found {}, {} and {}",
            x.sizes(),
            weight.sizes(),
            offset.sizes()
        );
        let pair = |args_of: [&'static str; 2], f: fn(&str, i64) -> Result<usize>| -> Result<[usize; 2]> {
            let [height, width] = args_of;
            Ok([f(height, args.int(height)?)?, f(width, args.int(width)?)?])
        };
        let groups = to_positive("groups", args.int("groups")?)?;
        let offset_groups = to_positive("offset_groups", args.int("offset_groups")?)?;
        let mut geometry = Self {
            batch: x.sizes()[0],
            channels: x.sizes()[1],
            image: [x.sizes()[2], x.sizes()[3]],
            filters: weight.sizes()[0],
            kernel: [weight.sizes()[2], weight.sizes()[3]],
            result: [0; 2],
            stride: pair(["stride_h", "stride_w"], to_positive)?,
            padding: pair(["pad_h", "pad_w"], to_size)?,
            dilation: pair(["dilation_h", "dilation_w"], to_positive)?,
            groups,
            offset_groups,
            masked: args.bool("use_mask")?,
        };
        for k in 0..2 {
            let reach =
                geometry.dilation[k].saturating_mul(geometry.kernel[k].saturating_sub(1)).saturating_add(1);
            let padded = geometry.padding[k].saturating_mul(2).saturating_add(geometry.image[k]);
            ensure!(reach <= padded, "weight: a filter of {reach} does not fit an image of {padded}");
            geometry.result[k] = (padded - reach) / geometry.stride[k] + 1;
        }
        let Self { batch, channels, filters, kernel: [kh, kw], result: [h, w], masked, .. } = geometry;
        let taps = kh.saturating_mul(kw).saturating_mul(offset_groups);
        let fits = channels.is_multiple_of(groups)
            && channels.is_multiple_of(offset_groups)
            && filters.is_multiple_of(groups)
            && weight.sizes()[1] == channels / groups
            && **offset.sizes() == [batch, taps.saturating_mul(2), h, w]
            && (!masked || **mask.sizes() == [batch, taps, h, w])
            && **bias.sizes() == [filters];
        ensure!(
            fits,
            "weight, offset, mask, bias: {}, {}, {} and {} do not go with the input's {}, {groups} groups, \
             {offset_groups} offset groups and the result's {h} x {w}",
            weight.sizes(),
            offset.sizes(),
            mask.sizes(),
            bias.sizes(),
            x.sizes()
        );
        Ok(geometry)
    }

    fn tap_count(&self) -> usize {
        self.kernel[0] * self.kernel[1]
    }

    fn pixel_count(&self) -> usize {
        self.result[0] * self.result[1]
    }
}

fn deform_conv2d(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let geometry = Geometry::from_args(args)?;
    let dtype = args.meta("input")?.dtype();
    for i in [1, 2, 4] {
        expect_type(args.name(i), dtype, args.meta(i)?.dtype())?;
    }
    let out = outs.tensor(0)?;
    expect_type("out", dtype, out.dtype())?;
    let sizes = Shape::new(&[geometry.batch, geometry.filters, geometry.result[0], geometry.result[1]])?;
    sizes.numel()?;
    out.resize(&sizes)?;
    dispatch!("input", compute_type(dtype), COMPUTE_FLOAT, C => {
        let all = |i: usize| -> Result<Values<'_, C>> { all_values::<C>(ctx, &args.tensor(i)?) };
        let operands = Operands { x: all(0)?, weight: all(1)?, offset: all(2)?, mask: all(3)?, bias: all(4)? };
        let per_group = geometry.channels / geometry.groups * geometry.tap_count();
        let size = per_group.checked_mul(geometry.pixel_count());
        let mut columns = ctx.scratch::<C>(size.unwrap_or(usize::MAX))?;
        write_values::<C>(ctx, out, |out| {
            let per_image = geometry.filters / geometry.groups * geometry.pixel_count();
            if per_image == 0 {
                return Ok(());
            }
            for (i, out) in out.chunks_exact_mut(per_image).enumerate() {
                let (image, group) = (i / geometry.groups, i % geometry.groups);
                operands.sample(&geometry, image, group, &mut columns);
                operands.multiply(&geometry, group, &columns, out);
            }
            Ok(())
        })
    })
}

struct Operands<'a, C> {
    x: Values<'a, C>,
    weight: Values<'a, C>,
    offset: Values<'a, C>,
    mask: Values<'a, C>,
    bias: Values<'a, C>,
}

impl<C: Compute + Float> Operands<'_, C> {
    /// Sets `columns` to the samples that each tap of each channel of a group reads, for every pixel of the result.
    fn sample(&self, g: &Geometry, image: usize, group: usize, columns: &mut [C]) {
        let [height, width] = g.image;
        let (pixels, taps, channels) = (g.pixel_count(), g.tap_count(), g.channels / g.groups);
        if pixels == 0 {
            return;
        }
        for (row, column) in columns.chunks_exact_mut(pixels).enumerate() {
            let (channel, tap) = (group * channels + row / taps, row % taps);
            let offsets = channel / (g.channels / g.offset_groups);
            let x = &self.x[(image * g.channels + channel) * height * width..][..height * width];
            // The shifts of the rows, then those of the columns, each for all pixels.
            let at = (image * g.offset_groups + offsets) * taps + tap;
            let shift = &self.offset[at * 2 * pixels..][..2 * pixels];
            let mask = if g.masked { &self.mask[at * pixels..][..pixels] } else { &[] };
            pteron_pool::progress(pixels);
            for (p, value) in column.iter_mut().enumerate() {
                let place = |k: usize, pixel: usize, tap: usize| {
                    let start = (pixel * g.stride[k] + tap * g.dilation[k]) as f64 - g.padding[k] as f64;
                    C::from_f64(start) + shift[k * pixels + p]
                };
                let y = place(0, p / g.result[1], tap / g.kernel[1]);
                let sampled = bilinear(x, g.image, y, place(1, p % g.result[1], tap % g.kernel[1]));
                *value = mask.get(p).map_or(sampled, |&m| m * sampled);
            }
        }
    }

    /// Multiplies a group's filters by `columns` and adds the bias.
    fn multiply(&self, g: &Geometry, group: usize, columns: &[C], out: &mut [C]) {
        let (pixels, filters) = (g.pixel_count(), g.filters / g.groups);
        let length = g.channels / g.groups * g.tap_count();
        for (f, out) in out.chunks_exact_mut(pixels).enumerate() {
            let filter = group * filters + f;
            out.fill(self.bias[filter]);
            pteron_pool::progress(columns.len());
            let weights = &self.weight[filter * length..][..length];
            for (&weight, column) in weights.iter().zip(columns.chunks_exact(pixels)) {
                out.iter_mut().zip(column).for_each(|(o, &c)| *o = *o + weight * c);
            }
        }
    }
}

/// The image at a position, interpolated bilinearly; pixels outside the image are zero.
fn bilinear<C: Compute + Float>(x: &[C], [height, width]: [usize; 2], y: C, column: C) -> C {
    let outside = |v: C, size: usize| !(v > C::from_f64(-1.0) && v < C::from_f64(size as f64));
    if outside(y, height) || outside(column, width) {
        return C::zero();
    }
    let (top, left) = (y.floor(), column.floor());
    let (down, right) = (y - top, column - left);
    let at = |dy: i64, dx: i64| {
        let (row, column) = (top.to_f64() as i64 + dy, left.to_f64() as i64 + dx);
        let inside = (0..height as i64).contains(&row) && (0..width as i64).contains(&column);
        if inside { x[row as usize * width + column as usize] } else { C::zero() }
    };
    let (up, back) = (C::one() - down, C::one() - right);
    at(0, 0) * up * back + at(0, 1) * up * right + at(1, 0) * down * back + at(1, 1) * down * right
}
