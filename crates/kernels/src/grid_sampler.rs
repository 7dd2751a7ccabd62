//! Sampling of images and volumes at a grid of normalized coordinates from -1 to 1.

use crate::support::convert::all_values;
use crate::support::dtype::{Compute, compute_type, dispatch};
use crate::support::rows::{expect_type, write_values};
use num_traits::Float;
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::grid_sampler_2d.out(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        grid_sampler::<2>,
    ),
    Operator::new(
        "aten::grid_sampler_3d.out(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        grid_sampler::<3>,
    ),
];

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    Linear,
    Nearest,
    Cubic,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Outside {
    Zeros,
    Border,
    Reflection,
}

/// How coordinates are converted to positions along one dimension of the image.
#[derive(Clone, Copy)]
struct Axis {
    size: usize,
    align: bool,
    outside: Outside,
}

impl Axis {
    /// Maps -1..1 to the range of pixel centers, `0..size - 1` (`align`), or to the outer edges of the pixels.
    fn unnormalize<C: Compute + Float>(&self, x: C) -> C {
        let (n, one, two) = (C::from_f64(self.size as f64), C::one(), C::from_f64(2.0));
        if self.align { (x + one) / two * (n - one) } else { ((x + one) * n - one) / two }
    }

    /// Moves a position into the image according to the padding mode.
    fn apply_padding<C: Compute + Float>(&self, x: C) -> C {
        let last = C::from_f64(self.size as f64 - 1.0);
        let clip = |x: C| x.max(C::zero()).min(last);
        let x = match self.outside {
            Outside::Zeros => x,
            Outside::Border => clip(x),
            Outside::Reflection => clip(self.reflect(x)),
        };
        // A position that no index can represent counts as out of bounds.
        if x.abs() < C::from_f64(2147483647.0) { x } else { C::from_f64(-100.0) }
    }

    fn reflect<C: Compute + Float>(&self, x: C) -> C {
        let half = C::from_f64(0.5);
        let (low, span) = match self.align {
            true => (C::zero(), C::from_f64(self.size as f64 - 1.0)),
            false => (-half, C::from_f64(self.size as f64)),
        };
        if span <= C::zero() {
            return C::zero();
        }
        let x = (x - low).abs();
        let extra = x % span;
        let even = (x / span).floor() % C::from_f64(2.0) == C::zero();
        if even { extra + low } else { span - extra + low }
    }

    /// The index of a position that is an integer; `None` if it is out of bounds.
    fn index_in_bounds<C: Compute + Float>(&self, x: C) -> Option<usize> {
        let x = x.to_f64();
        (x >= 0.0 && x < self.size as f64).then_some(x as usize)
    }

    /// The taps for a coordinate, up to four, with their weights; the index of an out-of-bounds tap is `None`.
    fn taps<C: Compute + Float>(&self, x: C, mode: Mode) -> ([(Option<usize>, C); 4], usize) {
        let mut taps = [(None, C::zero()); 4];
        let place = self.unnormalize(x);
        let count = match mode {
            Mode::Nearest => {
                taps[0] = (self.index_in_bounds(round_half_even(self.apply_padding(place))), C::one());
                1
            }
            Mode::Linear => {
                let place = self.apply_padding(place);
                let floor = place.floor();
                let t = place - floor;
                taps[0] = (self.index_in_bounds(floor), C::one() - t);
                taps[1] = (self.index_in_bounds(floor + C::one()), t);
                2
            }
            Mode::Cubic => {
                let floor = place.floor();
                let t = place - floor;
                for (j, tap) in taps.iter_mut().enumerate() {
                    let step = C::from_f64(j as f64 - 1.0);
                    *tap = (
                        self.index_in_bounds(self.apply_padding(floor + step)),
                        crate::resample::cubic(t - step, -0.75),
                    );
                }
                4
            }
        };
        (taps, count)
    }
}

fn round_half_even<C: Compute + Float>(x: C) -> C {
    C::from_f64(x.to_f64().round_ties_even())
}

/// Samples `input`, with `N` spatial dimensions, at the positions of `grid`, whose last dimension holds a position's
/// coordinates; the coordinate of the innermost dimension comes first.
fn grid_sampler<const N: usize>(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, grid) = (args.tensor("input")?, args.tensor("grid")?);
    let unknown = |i: usize, v: i64| Error::invalid(format!("{}: {v} is not a supported mode", args.name(i)));
    let mode = match args.int("interpolation_mode")? {
        0 => Mode::Linear,
        1 => Mode::Nearest,
        2 if N == 2 => Mode::Cubic,
        other => return Err(unknown(2, other)),
    };
    let outside = match args.int("padding_mode")? {
        0 => Outside::Zeros,
        1 => Outside::Border,
        2 => Outside::Reflection,
        other => return Err(unknown(3, other)),
    };
    let align = args.bool("align_corners")?;
    ensure!(
        x.rank() == N + 2
            && grid.rank() == N + 2
            && x.sizes()[0] == grid.sizes()[0]
            && grid.sizes()[N + 1] == N,
        "grid: the shape {} does not go with the input's, {}",
        grid.sizes(),
        x.sizes()
    );
    ensure!(!x.sizes()[2..].contains(&0), "input: the shape {} has nothing to sample", x.sizes());
    expect_type("grid", x.dtype(), grid.dtype())?;
    let mut sizes = *grid.sizes();
    sizes.insert(1, x.sizes()[1])?;
    sizes.remove(N + 2);
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    out.resize(&sizes)?;
    if out.numel() == 0 {
        return Ok(());
    }
    let axes: [Axis; N] = std::array::from_fn(|d| Axis { size: x.sizes()[2 + d], align, outside });
    let (channels, plane) = (sizes[1], sizes[2..].iter().product::<usize>());
    let image: usize = x.sizes()[2..].iter().product();
    dispatch!("input", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let (x, grid) = (all_values::<C>(ctx, &x)?, all_values::<C>(ctx, &grid)?);
        write_values::<C>(ctx, out, |to| {
            for (n, to) in to.chunks_exact_mut(channels * plane).enumerate() {
                let x = &x[n * channels * image..][..channels * image];
                for (p, place) in grid[n * plane * N..][..plane * N].chunks_exact(N).enumerate() {
                    let (taps, count) = weighted_elements::<C, N>(&axes, place, mode);
                    pteron_pool::progress(channels * count);
                    for c in 0..channels {
                        let x = &x[c * image..][..image];
                        let mut terms = taps[..count].iter().map(|&(at, w)| x[at] * w);
                        to[c * plane + p] = match mode {
                            // The element itself: adding a negative zero to zero would lose its sign.
                            Mode::Nearest => terms.next_back().unwrap_or_default(),
                            _ => terms.fold(C::default(), |sum, term| sum + term),
                        };
                    }
                }
            }
            Ok(())
        })
    })
}

/// The elements of an image that contribute to the sample at a position, with their weights.
fn weighted_elements<C: Compute + Float, const N: usize>(
    axes: &[Axis; N],
    place: &[C],
    mode: Mode,
) -> ([(usize, C); 16], usize) {
    let mut all = [(0, C::zero()); 16];
    all[0] = (0, C::one());
    let mut count = 1;
    for (d, axis) in axes.iter().enumerate() {
        let (taps, n) = axis.taps(place[N - 1 - d], mode);
        let before = all;
        let mut next = 0;
        for &(at, weight) in &before[..count] {
            for &(tap, w) in &taps[..n] {
                if let Some(tap) = tap {
                    all[next] = (at * axis.size + tap, weight * w);
                    next += 1;
                }
            }
        }
        count = next;
    }
    (all, count)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::Float;

    fn sample(grid: &[f32], mode: i64, outside: i64, align: bool) -> Vec<f32> {
        let x = t(&[1, 1, 2, 2], &[1f32, 2.0, 3.0, 4.0]);
        let grid = t(&[1, 1, grid.len() / 2, 2], grid);
        let args = [a(&x), a(&grid), int(mode), int(outside), Arg::Bool(align)];
        let r = call("aten::grid_sampler_2d.out", &args, out(Float, &[1, 1, 1, grid.numel() / 2])).unwrap();
        r.storage::<f32>().unwrap().to_vec()
    }

    #[test]
    fn samples_in_bounds_and_out_of_bounds() {
        assert_eq!(sample(&[-1.0, -1.0, 0.0, 0.0, 1.0, -1.0], 0, 0, true), [1.0, 2.5, 2.0]);
        assert_eq!(sample(&[-1.0, -1.0], 0, 0, false), [0.25]);
        assert_eq!(sample(&[-9.0, 9.0], 0, 1, false), [3.0]);
        assert_eq!(sample(&[1.6, -1.0], 1, 2, true), [2.0]);
        assert_eq!(sample(&[0.0, 0.0], 2, 1, true), [2.5]);
    }

    #[test]
    fn the_nearest_element_keeps_its_sign() {
        let (x, grid) =
            (t(&[1, 1, 1, 1, 1], &[-0.0f32]), t(&[1, 1, 1, 2, 3], &[0f32, 0.0, 0.0, 9.0, 0.0, 0.0]));
        let args = [a(&x), a(&grid), int(1), int(0), Arg::Bool(false)];
        let r = call("aten::grid_sampler_3d.out", &args, out(Float, &[1, 1, 1, 1, 2])).unwrap();
        let signs = r.storage::<f32>().unwrap().iter().map(|y| y.is_sign_negative());
        assert!(signs.eq([true, false]), "{r:?}");
    }

    #[test]
    fn nan_infinite_and_huge_coordinates() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX] {
            for mode in 0..3 {
                for outside in 0..3 {
                    assert_eq!(sample(&[bad, bad], mode, outside, false).len(), 1);
                }
            }
        }
        assert_eq!(sample(&[f32::NAN, 0.0], 1, 0, true), [0.0]);
        assert_eq!(sample(&[f32::NAN, -1.0], 1, 1, true), [1.0]);
    }
}
