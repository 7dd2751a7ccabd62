//! Convolutions.

use crate::compute::{self, ConvEpilogue, ConvFrame, ConvParams, Layout as Images};
use crate::support::convert::{all_values, values_as_stored, write_stored};
use crate::support::dims::{to_positive, to_size};
use crate::support::dtype::expect_dtype;
use crate::support::map::expect_out;
use crate::support::meaning::optional_tensor_position;
use pteron_operator::facts::{self, Dims};
use pteron_operator::{
    Args, DtypeSet, Error, KernelContext, Meaning, Operator, Outs, Result, Rounding, ensure,
};
use pteron_tensor::{DimOrder, ScalarType, Shape, TensorView};

pub(crate) const OPERATORS: &[Operator] = &[Operator::new(
    "aten::convolution.out(Tensor input, Tensor weight, Tensor? bias, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, *, Tensor(a!) out) -> Tensor(a!)",
    DtypeSet::FLOATING,
    convolution,
).rounding(Rounding::Once).means(conv_meaning)];

fn conv_meaning(args: &Args<'_>) -> Option<Meaning> {
    let sizes = |arg: &'static str| -> Option<Dims> {
        args.ints(arg).ok()?.iter().map(|&n| usize::try_from(n).ok()).collect()
    };
    Some(Meaning::Convolution(facts::Convolution {
        bias: optional_tensor_position(args, "bias")?,
        stride: sizes("stride")?,
        padding: sizes("padding")?,
        dilation: sizes("dilation")?,
        transposed: args.bool("transposed").ok()?,
        output_padding: sizes("output_padding")?,
        groups: usize::try_from(args.int("groups").ok()?).ok()?,
    }))
}

/// An argument's values for the spatial dimensions, padded to three with `fill` in front.
fn spatial_values(args: &Args<'_>, name: &'static str, dims: usize, fill: usize) -> Result<[usize; 3]> {
    let list = args.ints(name)?;
    ensure!(list.len() == 1 || list.len() == dims, "{name}: {list:?} for {dims} spatial dimensions");
    let mut all = [fill; 3];
    for (d, slot) in all[3 - dims..].iter_mut().enumerate() {
        let value = list[if list.len() == 1 { 0 } else { d }];
        *slot = if fill == 1 { to_positive(name, value)? } else { to_size(name, value)? };
        ensure!(*slot <= 1 << 30, "{name}: {value} is more than 2^30");
    }
    Ok(all)
}

/// The checked arguments of a convolution call.
struct Call {
    params: ConvParams,
    frame: ConvFrame,
    /// Whether the input has a batch dimension.
    batched: bool,
    dims: usize,
}

impl Call {
    fn read(args: &Args<'_>) -> Result<Self> {
        let (x, w) = (args.meta("input")?, args.meta("weight")?);
        let dims = w.rank().saturating_sub(2);
        ensure!((1..=3).contains(&dims), "weight: expected 3 to 5 dimensions, found the shape {}", w.sizes());
        let batched = x.rank() == dims + 2;
        ensure!(
            batched || x.rank() == dims + 1,
            "input: the shape {} does not suit a weight of shape {}",
            x.sizes(),
            w.sizes()
        );
        let (transposed, groups) = (args.bool("transposed")?, to_positive("groups", args.int("groups")?)?);
        let channels = x.sizes()[x.rank() - dims - 1];
        let (first, second) = (w.sizes()[0], w.sizes()[1]);
        let wide = second.checked_mul(groups).ok_or_else(|| Error::invalid("groups: too many"))?;
        let (in_channels, out_channels) = if transposed { (first, wide) } else { (wide, first) };
        ensure!(
            in_channels == channels && out_channels % groups == 0 && in_channels % groups == 0,
            "weight: the shape {} in {groups} groups does not suit an input of {channels} channels",
            w.sizes()
        );
        let space = |sizes: &Shape| {
            let mut all = [1; 3];
            all[3 - dims..].copy_from_slice(&sizes[sizes.rank() - dims..]);
            all
        };
        let params = ConvParams {
            in_channels,
            out_channels,
            groups,
            kernel: space(w.sizes()),
            stride: spatial_values(args, "stride", dims, 1)?,
            padding: spatial_values(args, "padding", dims, 0)?,
            dilation: spatial_values(args, "dilation", dims, 1)?,
            transposed,
        };
        ensure!(
            params.kernel.iter().all(|k| (1..=1 << 30).contains(k)),
            "weight: an empty kernel {}",
            w.sizes()
        );
        let extra = if transposed { spatial_values(args, "output_padding", dims, 0)? } else { [0; 3] };
        let beyond = (0..3).any(|d| extra[d] >= params.stride[d].max(params.dilation[d]));
        ensure!(
            !transposed || !beyond,
            "output_padding: {extra:?} is not less than the stride or the dilation"
        );
        let input = space(x.sizes());
        let output = params.output_size(input, extra).ok_or_else(|| {
            Error::invalid(format!(
                "input: the shape {} is too small for the kernel {}",
                x.sizes(),
                w.sizes()
            ))
        })?;
        let batch = if batched { x.sizes()[0] } else { 1 };
        Ok(Self { params, frame: ConvFrame { batch, input, output }, batched, dims })
    }

    fn result_sizes(&self) -> Result<Shape> {
        let mut sizes = Shape::new(&[self.frame.batch, self.params.out_channels])?;
        for &s in &self.frame.output[3 - self.dims..] {
            sizes.push(s)?;
        }
        if !self.batched {
            sizes.remove(0);
        }
        Ok(sizes)
    }
}

/// The layout of an image; `None` unless it is one of the two that the compute core supports.
fn image_layout(order: &DimOrder, sizes: &[usize], batched: bool) -> Option<Images> {
    let rank = order.len();
    let mut last: Vec<u8> = (0..rank as u8).collect();
    last[batched as usize..].rotate_left(1);
    let is = |o: DimOrder| order.same_layout(&o, sizes);
    if is(DimOrder::contiguous(rank)) {
        Some(Images::ChannelsFirst)
    } else {
        DimOrder::new(&last).ok().filter(|o| is(*o)).map(|_| Images::ChannelsLast)
    }
}

/// A convolution or transposed convolution over one to three dimensions, with or without a batch dimension.
fn convolution(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let call = Call::read(args)?;
    let (x, w, bias) = (args.tensor("input")?, args.tensor("weight")?, args.optional_tensor("bias")?);
    expect_dtype("input", x.dtype(), DtypeSet::FLOATING)?;
    ensure!(x.dtype() == w.dtype(), "weight: expected {}, as the input is, found {}", x.dtype(), w.dtype());
    if let Some(bias) = &bias {
        let n = call.params.out_channels;
        ensure!(**bias.sizes() == [n], "bias: expected the shape [{n}], found {}", bias.sizes());
    }
    let out = outs.tensor(0)?;
    expect_out(x.dtype(), out.dtype())?;
    out.resize(&call.result_sizes()?)?;
    if out.numel() == 0 {
        return Ok(());
    }
    if x.dtype() == ScalarType::Double {
        return convolve_f64(ctx, &call, &x, &w, bias.as_ref(), out);
    }
    let order = |m: &pteron_tensor::TensorMeta| image_layout(m.dim_order(), m.sizes(), call.batched);
    // Images in any other layout are copied to channels-first.
    let input = order(x.meta()).unwrap_or(Images::ChannelsFirst);
    let image = match order(x.meta()) {
        Some(_) => values_as_stored::<f32>(ctx, &x, x.meta())?,
        None => all_values::<f32>(ctx, &x)?,
    };
    let weights = all_values::<f32>(ctx, &w)?;
    let bias = match &bias {
        Some(b) => Some(all_values::<f32>(ctx, b)?),
        None => None,
    };
    let epilogue = ConvEpilogue { bias: bias.as_deref(), ..ConvEpilogue::default() };
    let (pool, isa) = (ctx.pool(), crate::support::isa(ctx));
    let run = |out: &mut [f32], output: Images| {
        compute::conv(
            pool,
            isa,
            call.params,
            &call.frame,
            (&image, input),
            &weights,
            (out, output),
            &epilogue,
        )
        .map_err(Error::from)
    };
    match order(out.meta()) {
        Some(output) => write_stored::<f32>(ctx, out, |out| run(out, output)),
        None => {
            crate::support::convert::write_row_major::<f32>(ctx, out, |out| run(out, Images::ChannelsFirst))
        }
    }
}

/// Direct convolution by the definition, for float64.
fn convolve_f64(
    ctx: &KernelContext<'_>,
    call: &Call,
    x: &TensorView<'_>,
    w: &TensorView<'_>,
    bias: Option<&TensorView<'_>>,
    out: &mut pteron_tensor::TensorViewMut<'_>,
) -> Result<()> {
    let (p, frame) = (&call.params, &call.frame);
    let (x, w) = (all_values::<f64>(ctx, x)?, all_values::<f64>(ctx, w)?);
    let bias = match bias {
        Some(b) => Some(all_values::<f64>(ctx, b)?),
        None => None,
    };
    let (x, w, bias) = (&*x, &*w, bias.as_deref());
    let pixels = |s: &[usize; 3]| s.iter().product::<usize>();
    let (from, taps) = (pixels(&frame.input), p.tap_count());
    let (ci, co) = (p.in_channels / p.groups, p.out_channels / p.groups);
    crate::support::convert::write_row_major::<f64>(ctx, out, |out| {
        ctx.pool().parallel_chunks_mut(out, pixels(&frame.output), 1, &|plane, out| {
            let (n, o) = (plane / p.out_channels, plane % p.out_channels);
            let group = o / co;
            pteron_pool::progress(out.len().saturating_mul(taps).saturating_mul(ci));
            out.fill(bias.map_or(0.0, |b| b[o]));
            for (at, out) in out.iter_mut().enumerate() {
                for tap in 0..taps {
                    let Some(pixel) = source_pixel(p, frame, at, tap) else { continue };
                    for c in 0..ci {
                        let channel = group * ci + c;
                        let weight = if p.transposed { channel * co + o % co } else { o * ci + c };
                        *out += w[weight * taps + tap] * x[(n * p.in_channels + channel) * from + pixel];
                    }
                }
            }
        });
        Ok(())
    })
}

/// The input pixel that a tap reads for output pixel `at`; `None` in the padding, and between the strides of a
/// transposed convolution.
fn source_pixel(p: &ConvParams, frame: &ConvFrame, mut at: usize, mut tap: usize) -> Option<usize> {
    let (mut pixel, mut step) = (0, 1);
    for d in (0..3).rev() {
        let (o, k) = (at % frame.output[d], tap % p.kernel[d]);
        at /= frame.output[d];
        tap /= p.kernel[d];
        let i = if p.transposed {
            let i = (o + p.padding[d]).checked_sub(k * p.dilation[d])?;
            if i % p.stride[d] != 0 {
                return None;
            }
            i / p.stride[d]
        } else {
            (o * p.stride[d] + k * p.dilation[d]).checked_sub(p.padding[d])?
        };
        if i >= frame.input[d] {
            return None;
        }
        pixel += i * step;
        step *= frame.input[d];
    }
    Some(pixel)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, ints, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::{Double, Float, Half};
    use pteron_tensor::{DimOrder, ScalarType, Tensor};

    fn numbered(sizes: &[usize], seed: usize) -> Tensor {
        let n = sizes.iter().product::<usize>();
        t(sizes, &(0..n).map(|i| ((i * 7 + seed) % 11) as f32 - 5.0).collect::<Vec<_>>())
    }

    fn cast(t: &Tensor, dtype: ScalarType) -> Tensor {
        call("aten::_to_copy.out", &[a(t)], out(dtype, t.sizes())).unwrap()
    }

    struct Case {
        x: Tensor,
        w: Tensor,
        b: Option<Tensor>,
        geometry: [[i64; 2]; 4],
        transposed: bool,
        groups: i64,
    }

    impl Case {
        fn run(&self, dtype: ScalarType, x: &Tensor, out: Tensor) -> Result<Tensor> {
            let (x, w) = (cast_in_place(x, dtype), cast(&self.w, dtype));
            let b = self.b.as_ref().map(|b| cast(b, dtype));
            let [s, p, d, o] = self.geometry;
            let n = w.rank() - 2;
            let args = [
                a(&x),
                a(&w),
                b.as_ref().map_or(Arg::None, a),
                ints(&s[..n]),
                ints(&p[..n]),
                ints(&d[..n]),
                Arg::Bool(self.transposed),
                ints(&o[..n]),
                Arg::Int(self.groups),
            ];
            call("aten::convolution.out", &args, out)
        }
    }

    /// Casts, keeping the layout.
    fn cast_in_place(t: &Tensor, dtype: ScalarType) -> Tensor {
        let into = out(dtype, t.sizes()).to_dim_order(*t.dim_order()).unwrap();
        call("aten::_to_copy.out", &[a(t)], into).unwrap()
    }

    #[test]
    fn every_type_and_layout_agrees_with_the_definition() {
        let cases = [
            Case {
                x: numbered(&[2, 4, 9, 8], 1),
                w: numbered(&[6, 2, 3, 2], 2),
                b: Some(numbered(&[6], 3)),
                geometry: [[2, 1], [1, 2], [1, 2], [0, 0]],
                transposed: false,
                groups: 2,
            },
            Case {
                x: numbered(&[1, 4, 5, 5], 1),
                w: numbered(&[4, 3, 3, 3], 2),
                b: None,
                geometry: [[2, 2], [1, 0], [1, 1], [1, 0]],
                transposed: true,
                groups: 2,
            },
            Case {
                x: numbered(&[3, 10], 1),
                w: numbered(&[3, 1, 3], 2),
                b: Some(numbered(&[3], 1)),
                geometry: [[1, 1], [1, 1], [1, 1], [0, 0]],
                transposed: false,
                groups: 3,
            },
        ];
        for case in &cases {
            let call = |dtype, x: &Tensor, o: Tensor| case.run(dtype, x, o).unwrap();
            // The float64 kernel is the reference.
            let sizes: Vec<usize> = match case.x.rank() {
                2 => vec![3, 10],
                _ if case.transposed => vec![1, 6, 10, 11],
                _ => vec![2, 6, 5, 10],
            };
            let want = call(Double, &case.x, out(Double, &sizes));
            let want: Vec<f64> = want.as_slice().unwrap().to_vec();
            let rank = sizes.len();
            let orders: Vec<DimOrder> = match rank {
                4 => [[0, 1, 2, 3], [0, 2, 3, 1], [1, 0, 3, 2]]
                    .iter()
                    .map(|o| DimOrder::new(o).unwrap())
                    .collect(),
                _ => vec![DimOrder::contiguous(rank)],
            };
            for from in &orders {
                for to in &orders {
                    for (dtype, tolerance) in [(Float, 1e-5), (Half, 0.51)] {
                        let into = out(dtype, &sizes).to_dim_order(*to).unwrap();
                        let r = call(dtype, &case.x.to_dim_order(*from).unwrap(), into);
                        let r = cast(&r, Double);
                        for (g, w) in r.storage::<f64>().unwrap().iter().zip(&want) {
                            assert!((g - w).abs() <= tolerance, "{g} {w} {dtype} {from} {to}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn inconsistent_arguments_are_errors() {
        let case = |geometry, groups, transposed| Case {
            x: numbered(&[1, 4, 5, 5], 1),
            w: numbered(&[4, 4, 3, 3], 2),
            b: None,
            geometry,
            groups,
            transposed,
        };
        let fine = [[1, 1], [1, 1], [1, 1], [0, 0]];
        let x = numbered(&[1, 4, 5, 5], 1);
        assert!(case(fine, 1, false).run(Float, &x, out(Float, &[1, 4, 5, 5])).is_ok());
        for bad in [
            case([[0, 1], [1, 1], [1, 1], [0, 0]], 1, false),
            case([[1, 1], [-1, 1], [1, 1], [0, 0]], 1, false),
            case([[1, 1], [1, 1], [i64::MAX, 1], [0, 0]], 1, false),
            case([[1, 1], [0, 0], [5, 1], [0, 0]], 1, false),
            case([[1, 1], [1, 1], [1, 1], [1, 1]], 1, true),
            case(fine, 2, false),
            case(fine, 0, false),
            case(fine, i64::MAX, false),
        ] {
            assert!(bad.run(Float, &x, out(Float, &[1, 4, 5, 5])).is_err());
        }
    }
}
