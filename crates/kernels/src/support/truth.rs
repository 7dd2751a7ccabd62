//! Reductions of the truth of elements.

use crate::support::dims::DimSet;
use crate::support::dtype::{Compute, compute_type, dispatch, expect_dtype};
use crate::support::reduce::{Reducer, reduce};
use pteron_operator::{Args, DtypeSet, KernelContext, Outs, Result};

/// A reduction to whether any element is nonzero, whether all are, or how many are.
pub(crate) enum BoolReduce {
    Any,
    All,
    Count,
}

impl<C: Compute> Reducer<C> for BoolReduce {
    type Acc = usize;
    type Out = i64;
    fn start(&self) -> usize {
        0
    }
    #[inline]
    fn step(&self, acc: usize, x: C, _: usize) -> usize {
        acc + x.is_true() as usize
    }
    fn merge(&self, a: usize, b: usize) -> usize {
        a + b
    }
    fn finish(&self, acc: usize, count: usize) -> i64 {
        match self {
            Self::Any => (acc > 0) as i64,
            Self::All => (acc == count) as i64,
            Self::Count => acc as i64,
        }
    }
}

/// Sets the first out to a reduction of argument 0 over `dims`.
pub(crate) fn reduce_bool(
    ctx: &KernelContext<'_>,
    args: &Args<'_>,
    outs: &mut Outs<'_>,
    dims: DimSet,
    keepdim: bool,
    what: BoolReduce,
) -> Result<()> {
    let (x, out) = (args.tensor("self")?, outs.tensor(0)?);
    expect_dtype("self", x.dtype(), DtypeSet::ALL)?;
    dispatch!("self", compute_type(x.dtype()), COMPUTE, C => reduce::<C, _>(ctx, &x, dims, keepdim, out, &what))
}
