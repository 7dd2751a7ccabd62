//! Diagonals: embedding, replacement, traces, and the indices of triangles.

use crate::support::convert::{fill, values};
use crate::support::copy::{copy_into, copy_to};
use crate::support::dims::{to_size, wrap_dim};
use crate::support::dtype::{C64, Compute, compute_type};
use crate::support::layout::Layout;
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::ScalarType;

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::diag_embed.out(Tensor self, int offset=0, int dim1=-2, int dim2=-1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        diag_embed,
    ),
    Operator::new(
        "aten::diagonal_scatter.out(Tensor self, Tensor src, int offset=0, int dim1=0, int dim2=1, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        diagonal_scatter,
    ),
    Operator::new("aten::trace.out(Tensor self, *, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, trace),
    Operator::new(
        "aten::tril_indices.out(int row, int col, int offset=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        tril_indices,
    ),
    Operator::new(
        "aten::triu_indices.out(int row, int col, int offset=0, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::ALL,
        triu_indices,
    ),
];

/// The view in which a diagonal of dimensions `a` and `b` is the last dimension; it is `offset` above the main
/// diagonal, or below it if negative.
pub(crate) fn diagonal_of(x: Layout, offset: i64, (a, b): (usize, usize)) -> Result<Layout> {
    ensure!(a != b, "dim1 and dim2 are the same dimension {a}");
    let skip = usize::try_from(offset.unsigned_abs()).unwrap_or(usize::MAX);
    let (down, right) = if offset < 0 { (skip, 0) } else { (0, skip) };
    let len = x.sizes[a].saturating_sub(down).min(x.sizes[b].saturating_sub(right));
    let start = |n| if len == 0 { 0 } else { n };
    let stride = x.strides()[a] + x.strides()[b];
    let x = x.slice(a, start(down), 1.min(len), 1).slice(b, start(right), 1.min(len), 1);
    let (first, second) = (a.max(b), a.min(b));
    let x = x.remove(first).remove(second);
    x.insert(x.rank(), len, stride)
}

/// Zeros, with the last dimension of the input on a diagonal of two new dimensions.
fn diag_embed(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, offset) = (args.tensor("self")?, args.int("offset")?);
    ensure!(x.rank() > 0, "self: a zero-dim tensor has no dimension to put on a diagonal");
    let (a, b) = (
        wrap_dim("dim1", args.int("dim1")?, x.rank() + 1)?,
        wrap_dim("dim2", args.int("dim2")?, x.rank() + 1)?,
    );
    ensure!(a != b, "dim1 and dim2 are the same dimension {a}");
    let mut sizes = *x.sizes();
    let len = sizes.remove(x.rank() - 1);
    let side = usize::try_from(offset.unsigned_abs()).ok().and_then(|n| n.checked_add(len));
    let side =
        side.ok_or_else(|| pteron_operator::Error::invalid(format!("offset: {offset} is too large")))?;
    sizes.insert(a.min(b), side)?;
    sizes.insert(a.max(b), side)?;
    sizes.numel()?;
    let out = outs.tensor(0)?;
    out.resize(&sizes)?;
    out.bytes_mut().fill(0);
    let into = diagonal_of(Layout::of_tensor(out.meta()), offset, (a, b))?;
    copy_into(&x, &Layout::of_tensor(x.meta()), out, &into)
}

/// The input with a diagonal replaced by `src`.
fn diagonal_scatter(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (x, src, out) = (args.tensor("self")?, args.tensor("src")?, outs.tensor(0)?);
    copy_to(&x, &Layout::of_tensor(x.meta()), out)?;
    let dims =
        (wrap_dim("dim1", args.int("dim1")?, x.rank())?, wrap_dim("dim2", args.int("dim2")?, x.rank())?);
    ensure!(x.rank() > 1, "self: {} has no diagonal", x.meta());
    let into = diagonal_of(Layout::of_tensor(out.meta()), args.int("offset")?, dims)?;
    ensure!(
        *src.sizes() == into.sizes,
        "src: expected the shape {} of the diagonal, found {}",
        into.sizes,
        src.sizes()
    );
    expect_type("src", x.dtype(), src.dtype())?;
    copy_into(&src, &Layout::of_tensor(src.meta()), out, &into)
}

/// The sum of the diagonal of a matrix.
fn trace(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    match compute_type(args.meta("self")?.dtype()) {
        ScalarType::Float | ScalarType::Double => trace_as::<f64>(ctx, args, outs, |a, b| a + b),
        ScalarType::Long => trace_as::<i64>(ctx, args, outs, i64::wrapping_add),
        _ => trace_as::<C64>(ctx, args, outs, |a, b| a + b),
    }
}

fn trace_as<C: Compute>(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    add: impl Fn(C, C) -> C,
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    ensure!(x.rank() == 2, "self: expected a matrix, found {}", x.meta());
    out.resize(&[])?;
    let all = values::<C>(ctx, &x, &diagonal_of(Layout::of_tensor(x.meta()), 0, (0, 1))?)?;
    fill(out, all.iter().fold(C::default(), |sum, &x| add(sum, x)))
}

fn tril_indices(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    triangle_indices(ctx, args, outs, true)
}

fn triu_indices(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    triangle_indices(ctx, args, outs, false)
}

/// The row and column indices, row by row, of the elements on and below a diagonal (`lower`), or on and above it.
fn triangle_indices(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    lower: bool,
) -> Result<()> {
    let (rows, columns) = (to_size("row", args.int("row")?)?, to_size("col", args.int("col")?)?);
    let offset = args.int("offset")?;
    let out = outs.tensor(0)?;
    // The first column of row `i` that is above the diagonal (`lower`) or on it.
    let cut = |i: usize| {
        let at = (i as i64).saturating_add(offset).saturating_add(lower as i64);
        at.clamp(0, columns.min(i64::MAX as usize) as i64) as usize
    };
    let part = |i: usize| if lower { 0..cut(i) } else { cut(i)..columns };
    // Rejects sizes that the out cannot hold before counting, so that the loop is bounded.
    let most = out.capacity() / out.dtype().size().max(1);
    ensure!(rows <= most.max(1 << 20), "row: {rows} rows are more than the out can hold");
    let count = (0..rows).try_fold(0usize, |sum, i| sum.checked_add(part(i).len())).unwrap_or(usize::MAX / 2);
    out.resize(&[2, count])?;
    write_values::<i64>(ctx, out, |out| {
        let (first, second) = out.split_at_mut(count);
        let places = (0..rows).flat_map(|i| part(i).map(move |j| (i, j)));
        for ((a, b), (i, j)) in first.iter_mut().zip(second).zip(places) {
            (*a, *b) = (i as i64, j as i64);
        }
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, int, out, t};
    use pteron_tensor::ScalarType::{Float, Int, Long};

    #[test]
    fn diagonals_and_triangle_indices() {
        let x = t(&[2], &[1f32, 2.0]);
        let r = call("aten::diag_embed.out", &[a(&x), int(1)], out(Float, &[3, 3])).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 1.0, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0, 0.0]);
        let m = t(&[2, 3], &[1i32, 2, 3, 4, 5, 6]);
        let r =
            call("aten::diagonal_scatter.out", &[a(&m), a(&t(&[1], &[9i32])), int(-1)], out(Int, &[2, 3]))
                .unwrap();
        assert_eq!(r.storage::<i32>().unwrap(), &[1, 2, 3, 9, 5, 6]);
        let r = call("aten::trace.out", &[a(&m)], out(Long, &[])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[6]);
        let r = call("aten::tril_indices.out", &[int(2), int(3), int(0)], out(Long, &[2, 6])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[0, 1, 1, 0, 0, 1]);
        let r = call("aten::triu_indices.out", &[int(2), int(3), int(1)], out(Long, &[2, 6])).unwrap();
        assert_eq!(r.storage::<i64>().unwrap(), &[0, 0, 1, 1, 2, 2]);
        assert!(call("aten::diag_embed.out", &[a(&x), int(i64::MIN)], out(Float, &[3, 3])).is_err());
        assert!(
            call("aten::triu_indices.out", &[int(i64::MAX), int(3), int(0)], out(Long, &[2, 6])).is_err()
        );
    }
}
