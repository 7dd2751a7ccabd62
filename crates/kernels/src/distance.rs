//! Distances between the rows of matrices.

use crate::support::convert::values;
use crate::support::dims::broadcast;
use crate::support::dtype::{compute_type, dispatch};
use crate::support::layout::Layout;
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::Shape;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::_cdist_forward.out(Tensor x1, Tensor x2, float p, int? compute_mode, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        cdist,
    ),
    Operator::new(
        "aten::_pdist_forward.out(Tensor self, float p=2, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        pdist,
    ),
];

/// The `p`-norm of the difference of two rows, accumulated in double precision. NaN if any difference is NaN.
fn distance<C: Copy + Into<f64>>(a: &[C], b: &[C], p: f64) -> f64 {
    let differences = a.iter().zip(b).map(|(&a, &b)| (a.into() - b.into()).abs());
    if p == 0.0 {
        differences.map(|d| d.ceil().clamp(0.0, 1.0)).sum()
    } else if p == 1.0 {
        differences.sum()
    } else if p == 2.0 {
        differences.map(|d| d * d).sum::<f64>().sqrt()
    } else if p.is_infinite() {
        differences.fold(0.0, |max, d| if d > max || d.is_nan() { d } else { max })
    } else {
        differences.map(|d| d.powf(p)).sum::<f64>().powf(1.0 / p)
    }
}

fn norm_order(args: &Args<'_>, arg: &'static str) -> Result<f64> {
    let p = args.double(arg)?;
    ensure!(p >= 0.0, "p: {p} is not a valid order of a norm, which is at least 0");
    Ok(p)
}

/// The distance from each row of `x1` to each row of `x2`; the dimensions before the last two are broadcast.
fn cdist(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (a, b, p) = (args.tensor("x1")?, args.tensor("x2")?, norm_order(args, "p")?);
    let (&[.., n, m], &[.., r, m2]) = (&**a.sizes(), &**b.sizes()) else {
        return Err(pteron_operator::Error::invalid("x1, x2: expected at least two dimensions"));
    };
    ensure!(m == m2, "x2: rows of {m2} elements, those of x1 have {m}");
    ensure!(a.dtype() == b.dtype(), "x2: expected a tensor of {}, found one of {}", a.dtype(), b.dtype());
    if let Some(mode) = args.optional_int("compute_mode")? {
        ensure!((0..=2).contains(&mode), "compute_mode: {mode} is not one of 0, 1, 2");
    }
    let lead = |s: &Shape| Shape::new(&s[..s.rank() - 2]);
    let batch = broadcast(&lead(a.sizes())?, &lead(b.sizes())?)?;
    let with = |rows: usize, columns: usize| -> Result<Shape> {
        let mut sizes = batch;
        sizes.push(rows)?;
        sizes.push(columns)?;
        Ok(sizes)
    };
    let out = outs.tensor(0)?;
    expect_type("out", a.dtype(), out.dtype())?;
    out.resize(&with(n, r)?)?;
    if out.numel() == 0 {
        return Ok(());
    }
    dispatch!("x1", compute_type(a.dtype()), COMPUTE_FLOAT, C => {
        let a = values::<C>(ctx, &a, &Layout::of_tensor(a.meta()).expand(&with(n, m)?)?)?;
        let b = values::<C>(ctx, &b, &Layout::of_tensor(b.meta()).expand(&with(r, m)?)?)?;
        let (a, b): (&[C], &[C]) = (&a, &b);
        write_values::<C>(ctx, out, |out| {
            let grain = (1 << 12) / (r * m).clamp(1, 1 << 12);
            ctx.pool().parallel_chunks_mut(out, r, grain, &|row, out| {
                let first = &a[row * m..][..m];
                let others = &b[row / n * r * m..][..r * m];
                for (j, out) in out.iter_mut().enumerate() {
                    *out = distance(first, &others[j * m..][..m], p) as C;
                }
            });
            Ok(())
        })
    })
}

/// The distance between each pair of rows of a matrix, in the order (0, 1), (0, 2), ..., (1, 2), ...
fn pdist(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, p) = (args.tensor("self")?, norm_order(args, "p")?);
    let &[n, m] = &**x.sizes() else {
        return Err(pteron_operator::Error::invalid(format!("self: expected a matrix, found {}", x.meta())));
    };
    let out = outs.tensor(0)?;
    expect_type("out", x.dtype(), out.dtype())?;
    let count = (n as u128 * (n as u128).saturating_sub(1) / 2).try_into();
    out.resize(&[
        count.map_err(|_| pteron_operator::Error::invalid(format!("self: {n} rows are too many")))?
    ])?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE_FLOAT, C => {
        let x = values::<C>(ctx, &x, &Layout::of_tensor(x.meta()))?;
        let row = |i: usize| &x[i * m..][..m];
        write_values::<C>(ctx, out, |out| {
            let pairs = (0..n).flat_map(|i| (i + 1..n).map(move |j| (i, j)));
            out.iter_mut().zip(pairs).for_each(|(out, (i, j))| *out = distance(row(i), row(j), p) as C);
            Ok(())
        })
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, out, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::Float;

    #[test]
    fn distances_in_every_norm() {
        let (x, y) = (t(&[2, 2], &[0f32, 0.0, 3.0, 4.0]), t(&[1, 2], &[0f32, 0.0]));
        let to = |p: f64| {
            let r = call(
                "aten::_cdist_forward.out",
                &[a(&x), a(&y), Arg::Double(p), Arg::None],
                out(Float, &[2, 1]),
            );
            r.map(|r| r.storage::<f32>().unwrap()[1])
        };
        for (p, want) in [(0.0, 2.0), (1.0, 7.0), (2.0, 5.0), (f64::INFINITY, 4.0)] {
            assert_eq!(to(p).unwrap(), want);
        }
        assert!(to(-1.0).is_err() && to(f64::NAN).is_err());
        let (nan, number) = (t(&[1, 2], &[f32::NAN, 1.0]), t(&[1, 2], &[0f32, 1.0]));
        for p in [0.0, 0.5, 1.0, 2.0, f64::INFINITY] {
            let args = [a(&nan), a(&number), Arg::Double(p), Arg::None];
            let r = call("aten::_cdist_forward.out", &args, out(Float, &[1, 1])).unwrap();
            assert!(r.storage::<f32>().unwrap()[0].is_nan(), "p = {p}");
        }
        let r = call("aten::_pdist_forward.out", &[a(&x)], out(Float, &[1])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[5.0]);
    }

    #[test]
    fn batches_are_broadcast_and_rows_may_be_empty() {
        let (x, y) = (t(&[2, 1, 1], &[1f32, 2.0]), t(&[2, 1], &[0f32, 5.0]));
        let r = call(
            "aten::_cdist_forward.out",
            &[a(&x), a(&y), Arg::Double(1.0), Arg::None],
            out(Float, &[2, 1, 2]),
        );
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[1.0, 4.0, 2.0, 3.0]);
        let (x, y) = (t::<f32>(&[2, 0], &[]), t::<f32>(&[1, 0], &[]));
        let r = call(
            "aten::_cdist_forward.out",
            &[a(&x), a(&y), Arg::Double(2.0), Arg::None],
            out(Float, &[2, 1]),
        );
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[0.0, 0.0]);
    }
}
