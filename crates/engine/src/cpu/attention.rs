//! Multi-head attention that reads its operands through strided views.

use super::lowering::{Lower, Lowered, Lowering};
use super::step::{Step, Writes, only_output};
use crate::ops::attention::Attention;
use crate::strided::View;
use pteron_kernels::compute::{
    Activation, Epilogue, Isa, MatMut, MatRef, PackedB, Rhs, gemm, queries_at_once, softmax_in_place,
    unary_in_place,
};
use pteron_operator::{Error, KernelContext, Result};
use pteron_pool::Pool;
use pteron_tensor::TensorView;

/// The maximum number of queries in a block, small enough that several threads can share the work. Blocking does not
/// depend on the number of threads, so that results do not either.
const QUERIES: usize = 70;

/// The number of multiplications below which attention runs on one thread.
const SPLIT_WORK: usize = 1 << 18;

impl Lower for Attention {
    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let step = AttentionStep::new(self, node.isa())
            .ok_or_else(|| Error::invalid("the views of attention do not match each other"))?;
        Ok(Lowered::step(step, 0..node.num_inputs()))
    }
}

/// Matrices in memory, one for each head of each item of the batch.
#[derive(Debug)]
struct Operand {
    /// The index of the node's input that contains the matrices.
    input: usize,
    starts: Vec<usize>,
    rows: usize,
    cols: usize,
    strides: (usize, usize),
}

impl Operand {
    /// A view of three dimensions as matrices. `None` if rows or columns have no single stride.
    fn new(input: usize, view: &View) -> Option<Self> {
        let ((rows, rs), (cols, cs)) = (view.single_part(1)?, view.single_part(2)?);
        Some(Self { input, starts: view.offsets_along(0), rows, cols, strides: (rs, cs) })
    }

    /// The `rows` rows of the `i`th matrix that begin with row `first`.
    fn matrix<'a>(&self, reads: &[&'a [f32]], i: usize, first: usize, rows: usize) -> MatRef<'a> {
        let (rs, cs) = self.strides;
        MatRef::strided(&reads[self.input][self.starts[i] + first * rs..], rows, self.cols, rs, cs)
    }
}

/// `len` zeros.
///
/// # Panics
/// Unwinds if there is no memory for them: see [`pteron_pool::out_of_memory`].
fn filled(len: usize) -> Vec<f32> {
    pteron_tensor::memory::filled(len, 0.0)
        .unwrap_or_else(|_| pteron_pool::out_of_memory(len.saturating_mul(size_of::<f32>())))
}

/// The packed keys (transposed) and values of a head.
type Packed = (PackedB, PackedB);

/// Attention of known shapes: `softmax(alpha q k + mask) beta v` for each head.
#[derive(Debug)]
pub(crate) struct AttentionStep {
    spec: Attention,
    q: Operand,
    k: Operand,
    v: Operand,
    mask: Option<Operand>,
    alpha: f32,
    /// The factor by which the values `v` are multiplied.
    beta: f32,
    isa: Isa,
}

impl AttentionStep {
    /// The views are `[heads, queries, width]`, `[heads, width, keys]`, `[heads, keys, values]` and
    /// `[heads, queries, keys]`. `None` if their sizes do not match, or rows or columns have no single stride.
    pub(crate) fn new(spec: &Attention, isa: Isa) -> Option<Self> {
        spec.head_sizes()?;
        let [q, k, v] = &spec.views;
        let operand = |i: usize, view: &View| Operand::new(i, view);
        let mask = match &spec.mask {
            Some(view) => Some(operand(3, view)?),
            None => None,
        };
        Some(Self {
            q: operand(0, q)?,
            k: operand(1, k)?,
            v: operand(2, v)?,
            mask,
            alpha: q.factor * k.factor * if spec.rounding.is_some() { 1.0 } else { spec.factor },
            beta: v.factor,
            spec: spec.clone(),
            isa,
        })
    }

    /// Packs the keys and values of an item's heads, if there are enough queries to reuse them. A head for which there
    /// is no memory is read unpacked.
    fn pack_heads(&self, pool: &Pool, reads: &[&[f32]], item: usize, at_once: usize) -> Vec<Option<Packed>> {
        let mut packed: Vec<Option<Packed>> = (0..self.spec.heads).map(|_| None).collect();
        if self.q.rows >= 2 * at_once {
            pool.parallel_chunks_mut(&mut packed, 1, 1, &|head, packed| {
                let i = item * self.spec.heads + head;
                let (k, v) =
                    (self.k.matrix(reads, i, 0, self.k.rows), self.v.matrix(reads, i, 0, self.k.cols));
                packed[0] = PackedB::new(self.isa, k).ok().zip(PackedB::new(self.isa, v).ok());
            });
        }
        packed
    }

    /// Computes the attention of item `item` of the batch, in blocks of `at_once` queries.
    fn compute_item(&self, pool: &Pool, reads: &[&[f32]], item: usize, at_once: usize, out: &mut [f32]) {
        if out.is_empty() {
            return;
        }
        let packed = self.pack_heads(pool, reads, item, at_once);
        let block = at_once * self.spec.heads * self.v.cols;
        let scores = || filled(at_once * self.k.cols);
        if pool.threads() == 1 {
            let mut scores = scores();
            for (i, out) in out.chunks_mut(block).enumerate() {
                self.compute_rows(reads, &packed, (item, i * at_once), out, &mut scores);
            }
            return;
        }
        if out.len().div_ceil(block) < pool.threads() && self.spec.heads > 1 {
            return self.compute_heads(pool, reads, &packed, item, at_once, out);
        }
        pool.parallel_chunks_mut(out, block, 1, &|i, out| {
            self.compute_rows(reads, &packed, (item, i * at_once), out, &mut scores());
        });
    }

    /// Like [`Self::compute_item`], for fewer blocks of queries than threads: divides the heads, too. Each head of a
    /// block is computed apart from the others, whose results alternate with its own in `out`.
    fn compute_heads(
        &self,
        pool: &Pool,
        reads: &[&[f32]],
        packed: &[Option<Packed>],
        item: usize,
        at_once: usize,
        out: &mut [f32],
    ) {
        let (heads, keys, values) = (self.spec.heads, self.k.cols, self.v.cols);
        let row = heads * values;
        let blocks = out.len().div_ceil(at_once * row);
        let rows_of = |block: usize| at_once.min(self.q.rows - block * at_once);
        let mut apart = filled(blocks * at_once * row);
        pool.parallel_chunks_mut(&mut apart, at_once * values, 1, &|i, results| {
            let (block, head) = (i / heads, i % heads);
            let rows = rows_of(block);
            let c = MatMut::new(results, rows, values);
            self.compute_head(reads, packed, (item, block * at_once), head, c, &mut filled(rows * keys));
        });
        for (i, results) in apart.chunks_exact(at_once * values).enumerate() {
            let (block, head) = (i / heads, i % heads);
            let out = out[block * at_once * row..].chunks_exact_mut(row).take(rows_of(block));
            for (out, results) in out.zip(results.chunks_exact(values)) {
                out[head * values..][..values].copy_from_slice(results);
            }
        }
    }

    /// Computes a block of queries of an item, from query `first` on, for all heads; `out` has a row for each query.
    fn compute_rows(
        &self,
        reads: &[&[f32]],
        packed: &[Option<Packed>],
        (item, first): (usize, usize),
        out: &mut [f32],
        scores: &mut [f32],
    ) {
        let (heads, values) = (self.spec.heads, self.v.cols);
        let row = heads * values;
        let rows = out.len() / row;
        let scores = &mut scores[..rows * self.k.cols];
        for head in 0..heads {
            let c = MatMut::strided(&mut out[head * values..], rows, values, row, 1);
            self.compute_head(reads, packed, (item, first), head, c, scores);
        }
    }

    /// Computes the rows of `c`, the results of an item's head for as many queries from query `first` on. `scores` has as
    /// many elements as their scores.
    fn compute_head(
        &self,
        reads: &[&[f32]],
        packed: &[Option<Packed>],
        (item, first): (usize, usize),
        head: usize,
        c: MatMut<'_>,
        scores: &mut [f32],
    ) {
        let (rows, keys) = (c.rows(), self.k.cols);
        let serial = Pool::alone();
        let rounded = self.spec.rounding.map_or(Activation::Identity, Activation::Unary);
        let i = item * self.spec.heads + head;
        let mask = self.mask.as_ref().map(|m| m.matrix(reads, i, first, rows));
        let residual = mask.filter(|_| self.spec.rounding.is_none()).map(|mask| (1.0, mask));
        let epilogue = Epilogue { alpha: self.alpha, residual, activation: rounded, ..Epilogue::NONE };
        let (k, v): (Rhs<'_>, Rhs<'_>) = match &packed[head] {
            Some((k, v)) => (k.into(), v.into()),
            None => (self.k.matrix(reads, i, 0, self.k.rows).into(), self.v.matrix(reads, i, 0, keys).into()),
        };
        let q = self.q.matrix(reads, i, first, rows);
        gemm(serial, self.isa, q, k, MatMut::new(scores, rows, keys), &epilogue);
        self.scale_and_mask_rounded(mask, keys, scores);
        if self.spec.safe {
            for row in scores.chunks_exact_mut(keys) {
                // A fully masked query yields zeros.
                let none = row.iter().all(|&s| s == f32::NEG_INFINITY);
                softmax_in_place(serial, self.isa, false, keys, row);
                if none {
                    row.fill(0.0);
                }
            }
        } else {
            softmax_in_place(serial, self.isa, false, keys, scores);
        }
        self.round(scores);
        let epilogue = Epilogue { alpha: self.beta, activation: rounded, ..Epilogue::NONE };
        gemm(serial, self.isa, MatRef::new(scores, rows, keys), v, c, &epilogue);
    }

    /// Rounds elements if the program computes in half precision.
    fn round(&self, x: &mut [f32]) {
        if let Some(to) = self.spec.rounding {
            unary_in_place(Pool::alone(), self.isa, to, x);
        }
    }

    /// Applies the scaling factor, then the mask, to the scores of a half-precision attention, and rounds after each.
    fn scale_and_mask_rounded(&self, mask: Option<MatRef<'_>>, keys: usize, scores: &mut [f32]) {
        if self.spec.rounding.is_none() {
            return;
        }
        if self.spec.factor != 1.0 {
            scores.iter_mut().for_each(|s| *s *= self.spec.factor);
            self.round(scores);
        }
        if let Some(mask) = mask {
            for (r, row) in scores.chunks_exact_mut(keys).enumerate() {
                row.iter_mut().enumerate().for_each(|(c, s)| *s += mask.at(r, c));
            }
            self.round(scores);
        }
    }
}

impl Step for AttentionStep {
    fn run<'a>(
        &'a self,
        ctx: &KernelContext<'_>,
        reads: &[TensorView<'a>],
        mut writes: Writes<'a>,
    ) -> Result<()> {
        let reads = reads.iter().map(|r| r.storage::<f32>()).collect::<Result<Vec<_>, _>>()?;
        let out = only_output(&mut writes)?.storage_mut::<f32>()?;
        let (items, heads) = (self.spec.items, self.spec.heads);
        let (queries, keys, values) = (self.q.rows, self.k.cols, self.v.cols);
        let row = heads * values;
        if out.len() != items * queries * row {
            return Err(Error::invalid("the output of attention has other sizes than its operands imply"));
        }
        let work = items * heads * queries * keys * (self.q.cols + values);
        let pool = if work < SPLIT_WORK { Pool::alone() } else { ctx.pool() };
        let at_once = queries_at_once(queries, keys, QUERIES);
        if items >= pool.threads() {
            let grain = (SPLIT_WORK * items / work.max(1)).max(1);
            pool.parallel_chunks_mut(out, queries * row, grain, &|item, out| {
                self.compute_item(Pool::alone(), &reads, item, at_once, out);
            });
        } else {
            let each = out.chunks_exact_mut(queries * row).enumerate();
            each.for_each(|(item, out)| self.compute_item(pool, &reads, item, at_once, out));
        }
        Ok(())
    }
}
