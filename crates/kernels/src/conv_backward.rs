//! The gradients of convolutions, `im2col` and `col2im`.

use crate::support::convert::{Values, all_values};
use crate::support::dims::{to_positive, to_size};
use crate::support::dtype::{compute_type, dispatch};
use crate::support::rows::{by_size, expect_type, tensor_bytes, write_bytes, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{Shape, TensorMeta};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::convolution_backward.out(Tensor grad_output, Tensor input, Tensor weight, SymInt[]? bias_sizes, SymInt[] stride, SymInt[] padding, SymInt[] dilation, bool transposed, SymInt[] output_padding, SymInt groups, bool[3] output_mask, *, Tensor(a!) out0, Tensor(b!) out1, Tensor(c!) out2) -> (Tensor(a!), Tensor(b!), Tensor(c!))",
        DtypeSet::FLOATING,
        convolution_backward,
    ),
    Operator::new(
        "aten::im2col.out(Tensor self, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        im2col,
    ),
    Operator::new(
        "aten::col2im.out(Tensor self, SymInt[2] output_size, int[2] kernel_size, int[2] dilation, int[2] padding, int[2] stride, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        col2im,
    ),
];

/// A dimension of a convolution: pixel `i` of the small image and tap `k` of the filter refer to pixel
/// `i * stride + k * dilation - padding` of the big image. The big image is the input of a convolution
/// and the small one its output; for a transposed convolution it is the other way round.
#[derive(Clone, Copy)]
struct Axis {
    small: usize,
    big: usize,
    kernel: usize,
    stride: usize,
    padding: usize,
    dilation: usize,
}

impl Axis {
    const NONE: Self = Self { small: 1, big: 1, kernel: 1, stride: 1, padding: 0, dilation: 1 };

    /// The pixel of the big image that pixel `i` of the small image refers to at tap `k`; `None` if out of bounds.
    fn big_pixel(&self, i: usize, k: usize) -> Option<usize> {
        let at = (i * self.stride + k * self.dilation).checked_sub(self.padding)?;
        (at < self.big).then_some(at)
    }

    /// The pixels of the small image for which tap `k` is in bounds of the big image.
    fn small_pixels(&self, k: usize) -> std::ops::Range<usize> {
        let shift = k * self.dilation;
        let first = self.padding.saturating_sub(shift).div_ceil(self.stride);
        let end = (self.big + self.padding).saturating_sub(shift).div_ceil(self.stride).min(self.small);
        first.min(end)..end
    }

    /// The size of the small image, computed from that of the big image; `None` if the filter does not fit.
    fn expected_size(&self) -> Option<usize> {
        let reach = self.dilation.checked_mul(self.kernel.checked_sub(1)?)?.checked_add(1)?;
        Some((self.big + 2 * self.padding).checked_sub(reach)? / self.stride + 1)
    }
}

/// The axes of an image, padded to three.
#[derive(Clone, Copy)]
struct Axes([Axis; 3]);

impl Axes {
    fn product_of(&self, of: fn(&Axis) -> usize) -> usize {
        self.0.iter().map(of).product()
    }

    /// Calls `f` with each run of pixels along the innermost axis: the tap, the first pixel in the small
    /// image, the first pixel in the big image, and the number of pixels. In the big image they are `stride` apart.
    fn each_run(&self, mut f: impl FnMut(usize, usize, usize, usize)) {
        let [a, b, c] = &self.0;
        for kz in 0..a.kernel {
            for ky in 0..b.kernel {
                for kx in 0..c.kernel {
                    let kernel = (kz * b.kernel + ky) * c.kernel + kx;
                    pteron_pool::count(1);
                    let run = c.small_pixels(kx);
                    let Some(x) = c.big_pixel(run.start, kx).filter(|_| !run.is_empty()) else { continue };
                    for z in a.small_pixels(kz) {
                        for y in b.small_pixels(ky) {
                            let (Some(bz), Some(by)) = (a.big_pixel(z, kz), b.big_pixel(y, ky)) else {
                                continue;
                            };
                            let small = (z * b.small + y) * c.small + run.start;
                            pteron_pool::count(run.len());
                            f(kernel, small, (bz * b.big + by) * c.big + x, run.len());
                        }
                    }
                }
            }
        }
    }
}

/// The value of an argument for dimension `dim`; the argument has one value for all dimensions, or one for each.
fn value_of_dim(
    args: &Args<'_>,
    name: &'static str,
    dim: usize,
    dims: usize,
    check: fn(&str, i64) -> Result<usize>,
) -> Result<usize> {
    let list = args.ints(name)?;
    ensure!(list.len() == 1 || list.len() == dims, "{name}: expected 1 or {dims} numbers, found {list:?}");
    let n = check(name, if list.len() == 1 { list[0] } else { list[dim] })?;
    // The limit is beyond any real size and rules out overflow.
    ensure!(n <= 1 << 30, "{name}: {n} is too large");
    Ok(n)
}

/// A convolution between a small image of `groups * small` channels and a big image of `groups * big` channels.
struct Convolution {
    axes: Axes,
    groups: usize,
    small: usize,
    big: usize,
}

fn read_convolution(
    args: &Args<'_>,
    small: &TensorMeta,
    big: &TensorMeta,
    weight: &TensorMeta,
    transposed: bool,
) -> Result<Convolution> {
    let rank = weight.rank();
    ensure!(
        (3..=5).contains(&rank) && small.rank() == rank && big.rank() == rank,
        "weight: expected grad_output, input and weight of 3 to 5 dimensions, found {}, {} and {rank}",
        args.meta("grad_output")?.rank(),
        args.meta("input")?.rank()
    );
    let groups = to_positive("groups", args.int("groups")?)?;
    let (s, b) = (small.sizes()[1], big.sizes()[1]);
    ensure!(
        s == weight.sizes()[0]
            && s.is_multiple_of(groups)
            && weight.sizes()[1].checked_mul(groups) == Some(b)
            && small.sizes()[0] == big.sizes()[0],
        "weight: the shape {} with {groups} groups does not go with the input's, {}, and the output's, {}",
        weight.sizes(),
        args.meta("input")?.sizes(),
        args.meta("grad_output")?.sizes()
    );
    let dims = rank - 2;
    let mut axes = [Axis::NONE; 3];
    for d in 0..dims {
        let axis = Axis {
            small: small.sizes()[2 + d],
            big: big.sizes()[2 + d],
            kernel: weight.sizes()[2 + d],
            stride: value_of_dim(args, "stride", d, dims, to_positive)?,
            padding: value_of_dim(args, "padding", d, dims, to_size)?,
            dilation: value_of_dim(args, "dilation", d, dims, to_positive)?,
        };
        let extra = if transposed { value_of_dim(args, "output_padding", d, dims, to_size)? } else { 0 };
        let wanted = Axis { big: axis.big.saturating_sub(extra), ..axis };
        // The output padding of a transposed convolution is less than its stride or its dilation.
        ensure!(
            wanted.expected_size() == Some(axis.small)
                || transposed && axis.expected_size() == Some(axis.small),
            "grad_output: a size of {} in dimension {} does not follow from one of {}",
            args.meta("grad_output")?.sizes()[2 + d],
            2 + d,
            args.meta("input")?.sizes()[2 + d]
        );
        axes[3 - dims + d] = axis;
    }
    Ok(Convolution { axes: Axes(axes), groups, small: s / groups, big: b / groups })
}

/// Gradients with respect to the input, the weight and the bias; `output_mask` selects which are computed.
#[expect(clippy::unnecessary_cast, reason = "the dispatch writes it for f32 and for f64")]
fn convolution_backward(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (grad, input, weight) = (args.tensor("grad_output")?, args.tensor("input")?, args.tensor("weight")?);
    let (transposed, mask) = (args.bool("transposed")?, args.bools("output_mask")?);
    ensure!(mask.len() == 3, "output_mask: expected three booleans, found {}", mask.len());
    for other in [input, weight] {
        expect_type("grad_output", other.dtype(), grad.dtype())?;
    }
    let (small, big) = if transposed { (input, grad) } else { (grad, input) };
    let conv = read_convolution(args, small.meta(), big.meta(), weight.meta(), transposed)?;
    let axes = conv.axes;
    let (planes_s, planes_b) = (axes.product_of(|a| a.small), axes.product_of(|a| a.big));
    let (kernel, stride) = (axes.product_of(|a| a.kernel), axes.0[2].stride);
    let (images, groups, cs, cb) = (small.sizes()[0], conv.groups, conv.small, conv.big);
    dispatch!("grad_output", compute_type(grad.dtype()), COMPUTE_FLOAT, C => {
        let grads: Values<'_, C> = all_values(ctx, &grad)?;
        let inputs: Values<'_, C> = all_values(ctx, &input)?;
        let weights: Values<'_, C> = all_values(ctx, &weight)?;
        let (grads, inputs, weights): (&[C], &[C], &[C]) = (&grads, &inputs, &weights);
        let (small, big) = if transposed { (inputs, grads) } else { (grads, inputs) };
        if mask[0] {
            let out = outs.tensor(0)?;
            out.resize(input.sizes())?;
            write_values::<C>(ctx, out, |out| {
                out.fill(0.0);
                if transposed {
                    ctx.pool().parallel_chunks_mut(out, planes_s, 1, &|at, out| {
                        let (image, s) = (at / (groups * cs), at % (groups * cs));
                        for b in 0..cb {
                            let weight = &weights[(s * cb + b) * kernel..][..kernel];
                            let big = &big[((image * groups + s / cs) * cb + b) * planes_b..][..planes_b];
                            axes.each_run(|k, s, b, n| {
                                let w = weight[k];
                                let from = big[b..].iter().step_by(stride);
                                out[s..s + n].iter_mut().zip(from).for_each(|(o, &x)| *o += x * w);
                            });
                        }
                    });
                } else {
                    ctx.pool().parallel_chunks_mut(out, planes_b, 1, &|at, out| {
                        let (image, b) = (at / (groups * cb), at % (groups * cb));
                        let group = b / cb;
                        for s in group * cs..(group + 1) * cs {
                            let weight = &weights[(s * cb + b % cb) * kernel..][..kernel];
                            let small = &small[(image * groups * cs + s) * planes_s..][..planes_s];
                            axes.each_run(|k, s, b, n| {
                                let w = weight[k];
                                let to = out[b..].iter_mut().step_by(stride);
                                to.zip(&small[s..s + n]).for_each(|(o, &x)| *o += x * w);
                            });
                        }
                    });
                }
                Ok(())
            })?;
        }
        if mask[1] {
            let out = outs.tensor(1)?;
            out.resize(weight.sizes())?;
            write_values::<C>(ctx, out, |out| {
                ctx.pool().parallel_chunks_mut(out, kernel, 1, &|at, out| {
                    out.fill(0.0);
                    let (s, b) = (at / cb, at / cb / cs * cb + at % cb);
                    for image in 0..images {
                        let small = &small[(image * groups * cs + s) * planes_s..][..planes_s];
                        let big = &big[(image * groups * cb + b) * planes_b..][..planes_b];
                        axes.each_run(|k, s, b, n| {
                            let products = small[s..s + n].iter().zip(big[b..].iter().step_by(stride));
                            out[k] += products.map(|(&x, &y)| x * y).sum::<C>();
                        });
                    }
                });
                Ok(())
            })?;
        }
        if mask[2] {
            let channels = grad.sizes()[1];
            let plane: usize = grad.sizes()[2..].iter().product();
            let out = outs.tensor(2)?;
            out.resize(&[channels])?;
            write_values::<C>(ctx, out, |out| {
                for (c, out) in out.iter_mut().enumerate() {
                    let of = |image: usize| grads[(image * channels + c) * plane..][..plane].iter();
                    *out = (0..images).flat_map(of).map(|&g| g as f64).sum::<f64>() as C;
                }
                Ok(())
            })?;
        }
        Ok(())
    })
}

/// The axes along which patches of an image of `sizes` lie, read from the arguments of `im2col` and `col2im`.
fn patch_axes(args: &Args<'_>, sizes: &[usize]) -> Result<Axes> {
    let mut axes = [Axis::NONE; 3];
    for (d, &big) in sizes.iter().enumerate() {
        let axis = Axis {
            small: 0,
            big,
            kernel: value_of_dim(args, "kernel_size", d, 2, to_positive)?,
            dilation: value_of_dim(args, "dilation", d, 2, to_positive)?,
            padding: value_of_dim(args, "padding", d, 2, to_size)?,
            stride: value_of_dim(args, "stride", d, 2, to_positive)?,
        };
        let Some(small) = axis.expected_size() else {
            return Err(pteron_operator::Error::invalid(format!(
                "kernel_size: {} does not fit an image of {sizes:?} with this dilation and padding",
                axis.kernel
            )));
        };
        axes[1 + d] = Axis { small, ..axis };
    }
    Ok(Axes(axes))
}

/// Copies each patch of an image to a column; padding is zero.
fn im2col(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let rank = x.rank();
    ensure!(
        (rank == 3 || rank == 4) && !x.sizes()[rank - 3..].contains(&0),
        "self: expected images of 3 or 4 dimensions, found {}",
        x.meta()
    );
    let axes = patch_axes(args, &x.sizes()[rank - 2..])?;
    let (kernel, small, big) =
        (axes.product_of(|a| a.kernel), axes.product_of(|a| a.small), axes.product_of(|a| a.big));
    let mut sizes = *x.sizes();
    sizes.remove(rank - 1);
    sizes[rank - 2] = small;
    sizes[rank - 3] = sizes[rank - 3].saturating_mul(kernel);
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&sizes)?;
    let from = tensor_bytes(ctx, &x)?;
    let stride = axes.0[2].stride;
    write_bytes(ctx, out, |to| {
        to.fill(0);
        by_size!(x.dtype().size(), E => {
            let (from, to): (&[E], &mut [E]) = (bytemuck::cast_slice(&from), bytemuck::cast_slice_mut(to));
            for (from, to) in from.chunks_exact(big).zip(to.chunks_exact_mut(kernel * small)) {
                axes.each_run(|k, s, b, n| {
                    let to = &mut to[k * small + s..][..n];
                    to.iter_mut().zip(from[b..].iter().step_by(stride)).for_each(|(to, &x)| *to = x);
                });
            }
        });
        Ok(())
    })
}

/// Adds patches, given as columns, to their positions in an image: the transpose of [`im2col`].
fn col2im(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let x = args.tensor("self")?;
    let rank = x.rank();
    let mut image = [0; 2];
    for (d, size) in image.iter_mut().enumerate() {
        *size = value_of_dim(args, "output_size", d, 2, to_positive)?;
    }
    let axes = patch_axes(args, &image)?;
    let (kernel, small, big) =
        (axes.product_of(|a| a.kernel), axes.product_of(|a| a.small), axes.product_of(|a| a.big));
    ensure!(
        (rank == 2 || rank == 3)
            && x.sizes()[rank - 1] == small
            && x.sizes()[rank - 2].is_multiple_of(kernel)
            && !x.sizes()[rank - 2..].contains(&0),
        "self: {} does not hold {small} columns of patches of {kernel} elements",
        x.meta()
    );
    let mut sizes = Shape::new(&x.sizes()[..rank - 1])?;
    sizes[rank - 2] /= kernel;
    sizes.push(image[0])?;
    sizes.push(image[1])?;
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&sizes)?;
    let stride = axes.0[2].stride;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let from = all_values::<C>(ctx, &x)?;
        write_values::<C>(ctx, out, |to| {
            to.fill(0.0);
            for (from, to) in from.chunks_exact(kernel * small).zip(to.chunks_exact_mut(big)) {
                axes.each_run(|k, s, b, n| {
                    let from = &from[k * small + s..][..n];
                    to[b..].iter_mut().step_by(stride).zip(from).for_each(|(to, &x)| *to += x);
                });
            }
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, ints, out, t};
    use pteron_operator::{Arg, Result};
    use pteron_tensor::ScalarType::Float;
    use pteron_tensor::Tensor;

    const ALL: [bool; 3] = [true; 3];

    /// The gradients of a convolution of a line of three pixels with a filter of two taps.
    fn go(
        grad: &[f32],
        transposed: bool,
        stride: i64,
        padding: i64,
        groups: i64,
        mask: &[bool],
    ) -> Result<[Tensor; 3]> {
        let (g, x, w) =
            (t(&[1, 1, grad.len()], grad), t(&[1, 1, 3], &[1f32, 2.0, 3.0]), t(&[1, 1, 2], &[10f32, 20.0]));
        let args = [
            a(&g),
            a(&x),
            a(&w),
            ints(&[1]),
            ints(&[stride]),
            ints(&[padding]),
            ints(&[1]),
            Arg::Bool(transposed),
            ints(&[0]),
            int(groups),
            Arg::Bools(mask),
        ];
        let outs = [out(Float, &[1, 1, 3]), out(Float, &[1, 1, 2]), out(Float, &[1])];
        call_many("aten::convolution_backward.out", &args, outs)
    }

    #[test]
    fn gradients_of_convolutions_and_transposed_convolutions() {
        let of = |all: [Tensor; 3]| all.map(|x| x.storage::<f32>().unwrap().to_vec());
        let [x, w, b] = of(go(&[1.0, 2.0], false, 1, 0, 1, &ALL).unwrap());
        assert_eq!((x, w, b), (vec![10.0, 40.0, 40.0], vec![5.0, 8.0], vec![3.0]));
        let [x, w, b] = of(go(&[1.0, 2.0], false, 2, 1, 1, &ALL).unwrap());
        assert_eq!((x, w, b), (vec![20.0, 20.0, 40.0], vec![4.0, 7.0], vec![3.0]));
        let [x, w, b] = of(go(&[1.0, 2.0, 3.0, 4.0], true, 1, 0, 1, &ALL).unwrap());
        assert_eq!((x, w, b), (vec![50.0, 80.0, 110.0], vec![14.0, 20.0], vec![10.0]));
        let [x, ..] = of(go(&[1.0, 2.0], false, 1, 0, 1, &[false, true, true]).unwrap());
        assert_eq!(x, [0.0; 3]);
    }

    #[test]
    fn invalid_arguments_are_errors() {
        let most = i64::MAX;
        for (stride, padding, groups) in
            [(0, 0, 1), (1, -1, 1), (1, 1, 1), (1, 0, 2), (1, 0, 0), (most, 0, 1), (1, most, 1)]
        {
            assert!(go(&[1.0, 2.0], false, stride, padding, groups, &ALL).is_err());
        }
        assert!(go(&[1.0, 2.0], false, 1, 0, 1, &[true]).is_err());
    }

    #[test]
    fn im2col_and_col2im_are_transposes() {
        let x = t(&[1, 2, 2], &[1f32, 2.0, 3.0, 4.0]);
        let unfold = |kernel: i64, padding: i64| {
            let args = [a(&x), int(kernel), int(1), int(padding), int(1)];
            call("aten::im2col.out", &args, out(Float, &[4, 9]))
        };
        let columns = unfold(2, 1).unwrap();
        assert_eq!(columns.storage::<f32>().unwrap()[..9], [0.0, 0.0, 0.0, 0.0, 1.0, 2.0, 0.0, 3.0, 4.0]);
        let args = [a(&columns), ints(&[2, 2]), int(2), int(1), int(1), int(1)];
        let r = call("aten::col2im.out", &args, out(Float, &[1, 2, 2])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[4.0, 8.0, 12.0, 16.0]);
        assert!(unfold(3, 0).is_err() && unfold(0, 0).is_err() && unfold(i64::MAX, 0).is_err());
    }
}
