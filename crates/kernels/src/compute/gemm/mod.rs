//! Matrix products in f32.
//!
//! `C = activation(alpha * A B + bias + beta * residual)`, for any strides; either operand may be packed ahead of
//! time. The inner dimension is summed in an order that depends on the shapes, on which operands are packed and on
//! the instruction set, never on the number of threads. No multiplication is skipped: NaN and infinity propagate as
//! in IEEE 754.

mod args;
mod array_tile;
mod dot;
pub(crate) mod driver;
mod element;
mod epilogue;
mod narrow;
mod operand;
pub(crate) mod pack;
pub(crate) mod row_table;
pub(crate) mod sweep;
pub(crate) mod tile;

pub use epilogue::{Activation, Bias, Epilogue};
pub(crate) use narrow::Elements;
pub use narrow::{WeightStorage, WeightType};
pub use operand::{Lhs, Rhs};
pub use pack::{PackedA, PackedB};

use super::isa::Isa;
use super::mat::{MatMut, MatRef};
use super::split;
use driver::Job;
use pteron_pool::Pool;

/// `c = epilogue(a b)`: `a` is `m x k`, `b` is `k x n`, `c` is `m x n`; any of them may be zero. Runs in parallel on
/// `pool` if the product is large enough.
///
/// # Panics
/// If the shapes do not match, or a packed operand was packed for another instruction set.
pub fn gemm<'a>(
    pool: &Pool,
    isa: Isa,
    a: impl Into<Lhs<'a>>,
    b: impl Into<Rhs<'a>>,
    c: MatMut<'_>,
    epilogue: &Epilogue<'a>,
) {
    if let Some((job, c)) = checked_job(isa, a.into(), b.into(), c, epilogue) {
        job.run(pool, c);
    }
}

/// `c[i] = epilogue(i)(a(i) b(i))` for `i` in `0..count`, where `c[i]` starts at `i * c_step` of `c` and is `m x n`,
/// row-major and dense. `a`, `b` and `epilogue` map an index to an operand, so that callers can broadcast batches in
/// any way. The work is divided among the threads of `pool` by results, and by rows and columns too if there are
/// fewer results than threads.
///
/// # Panics
/// As [`gemm`]; also if results overlap (`c_step < m * n`) or exceed `c`.
pub fn bmm<'a>(
    pool: &Pool,
    isa: Isa,
    count: usize,
    a: &(dyn Fn(usize) -> Lhs<'a> + Sync),
    b: &(dyn Fn(usize) -> Rhs<'a> + Sync),
    (c, c_step, m, n): (&mut [f32], usize, usize, usize),
    epilogue: &(dyn Fn(usize) -> Epilogue<'a> + Sync),
) {
    let each = m.checked_mul(n).expect("a result has at most usize::MAX elements");
    if count == 0 || each == 0 {
        return;
    }
    let end = (count - 1).checked_mul(c_step).and_then(|s| s.checked_add(each));
    assert!(count == 1 || c_step >= each, "results of {each} elements overlap at steps of {c_step}");
    assert!(end.is_some_and(|e| e <= c.len()), "{count} results exceed a slice of {} elements", c.len());
    if count < pool.threads() {
        for i in 0..count {
            gemm(pool, isa, a(i), b(i), MatMut::new(&mut c[i * c_step..][..each], m, n), &epilogue(i));
        }
        return;
    }
    let k = a(0).shape().1;
    let grain = (split::PRODUCTS / each.saturating_mul(k).max(1)).max(1);
    let serial = Pool::alone();
    pool.parallel_chunks_mut(&mut c[..end.unwrap_or(0)], c_step, grain, &|i, c| {
        gemm(serial, isa, a(i), b(i), MatMut::new(&mut c[..each], m, n), &epilogue(i));
    });
}

/// Checks the operands of a product and transposes it where that pays; `None` if the result is empty.
fn checked_job<'a, 'c>(
    isa: Isa,
    a: Lhs<'a>,
    b: Rhs<'a>,
    c: MatMut<'c>,
    epilogue: &Epilogue<'a>,
) -> Option<(Job<'a>, MatMut<'c>)> {
    let ((m, k), (bk, n)) = (a.shape(), b.shape());
    assert_eq!(k, bk, "inner dimensions of a {m}x{k} by {bk}x{n} product");
    assert_eq!((c.rows(), c.cols()), (m, n), "result of a {m}x{k} by {k}x{n} product");
    epilogue.check(m, n);
    if let Lhs::Packed(a) = a {
        assert_eq!(a.vector_isa(), isa.into(), "left operand packed for another instruction set");
    }
    if let Rhs::Packed(b) = b {
        assert_eq!(b.vector_isa(), isa.into(), "right operand packed for another instruction set");
    }
    if m == 0 || n == 0 {
        return None;
    }
    Some(match (a, b) {
        (Lhs::Plain(a), Rhs::Plain(b)) if transposing_pays(&c, a, b) => {
            let (a, b) = (Lhs::Plain(b.t()), Rhs::Plain(a.t()));
            (Job { isa, m: n, n: m, k, a, b, epilogue: epilogue.t() }, c.t())
        }
        _ => (Job { isa, m, n, k, a, b, epilogue: *epilogue }, c),
    })
}

/// Whether computing `C' = B' A'` is faster: C is contiguous along columns, or has so few columns that dot products of
/// contiguous operands are.
fn transposing_pays(c: &MatMut<'_>, a: MatRef<'_>, b: MatRef<'_>) -> bool {
    let (m, n) = (c.rows(), c.cols());
    let down = c.col_stride() != 1 && c.row_stride() == 1 && n > 1;
    let narrow = n <= dot::MAX_ROWS && m > n && a.col_stride() == 1 && b.row_stride() == 1;
    down || narrow
}

#[cfg(test)]
mod tests;
