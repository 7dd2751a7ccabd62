//! Multi-head attention that reads its operands through strided views.

use super::{Step, Writes, only};
use crate::operands::{Operands, refuse};
use crate::operation::{Lowered, Lowering, Operation};
use crate::strided::View;
use pteron_kernels::compute::{
    Activation, Epilogue, Isa, MatMut, MatRef, PackedB, Rhs, attention_rows, gemm, softmax_in_place,
    unary_in_place,
};
use pteron_operator::{Error, KernelContext, Result, Unary};
use pteron_pool::Pool;
use pteron_tensor::{ScalarType, TensorMeta, TensorView};
use std::fmt;

/// The maximum number of queries in a block, small enough that several threads can share the work. Blocking does not
/// depend on the number of threads, so that results do not either.
const QUERIES: usize = 70;
/// The number of multiplications below which attention runs on one thread.
const SPLIT_WORK: usize = 1 << 18;

/// `softmax(q k + mask) v` of several heads. Each operand is a view of an input: `q`, `k`, `v` and optionally the mask.
/// The output is `[items, queries, heads, values]`. A pass recognizes it, or it is built from [`AttentionParts`].
#[derive(Debug, Clone, PartialEq)]
pub struct Attention {
    /// `[items * heads, queries, width]`, `[items * heads, width, keys]`, `[items * heads, keys, values]`.
    pub(crate) views: [View; 3],
    /// `[items * heads, queries, keys]`.
    pub(crate) mask: Option<View>,
    /// The factor of the product of queries and keys, applied before the mask.
    pub(crate) factor: f32,
    /// Whether a query whose scores are all negative infinity yields zeros instead of NaN.
    pub(crate) safe: bool,
    /// The rounding of every intermediate result, if the program computes in half precision.
    pub(crate) rounding: Option<Unary>,
    pub(crate) items: usize,
    pub(crate) heads: usize,
}

/// The serializable parameters of an [`Attention`].
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionParts {
    /// The views of queries, keys, values, and optionally the mask.
    pub views: Vec<ViewParts>,
    /// The factor of the product of queries and keys, applied before the mask.
    pub factor: f32,
    /// Whether a query whose scores are all negative infinity yields zeros instead of NaN.
    pub safe: bool,
    /// The rounding of every intermediate result, if any.
    pub rounding: Option<Unary>,
    /// The number of items in the batch.
    pub items: usize,
    /// The number of heads of an item.
    pub heads: usize,
}

/// A strided view of an input.
#[derive(Debug, Clone, PartialEq)]
pub struct ViewParts {
    /// The offset of the first element.
    pub offset: usize,
    /// A factor of every element.
    pub factor: f32,
    /// The size and stride of each run of elements, for each of the three dimensions, slowest-varying first.
    pub dims: Vec<Vec<(usize, usize)>>,
}

impl Attention {
    /// The serializable parameters.
    pub fn parts(&self) -> AttentionParts {
        let parts = |view: &View| ViewParts { offset: view.offset, factor: view.factor, dims: view.dims() };
        AttentionParts {
            views: self.views.iter().chain(&self.mask).map(parts).collect(),
            factor: self.factor,
            safe: self.safe,
            rounding: self.rounding,
            items: self.items,
            heads: self.heads,
        }
    }

    /// The attention with these parameters, all of which are below 2^31. `None` unless there are three or four views of
    /// three dimensions each.
    pub fn from_parts(parts: &AttentionParts) -> Option<Self> {
        let view = |parts: &ViewParts| View::stored(parts.offset, parts.factor, &parts.dims);
        let mut views = parts.views.iter().map(view);
        let (q, k, v, mask) = (views.next()?, views.next()?, views.next()?, views.next());
        let is_whole = views.next().is_none() && parts.views.iter().all(|view| view.dims.len() == 3);
        is_whole.then_some(Self {
            views: [q, k, v],
            mask,
            factor: parts.factor,
            safe: parts.safe,
            rounding: parts.rounding,
            items: parts.items,
            heads: parts.heads,
        })
    }

    /// Whether a node with these operands can run: the views are in bounds of f32 inputs and match each other and the
    /// output.
    pub fn fits(&self, inputs: &[&TensorMeta], output: &TensorMeta) -> bool {
        let views: Vec<&View> = self.views.iter().chain(&self.mask).collect();
        // Bounds the number of heads by that of elements before anything is allocated for each head.
        let heads = self.items.checked_mul(self.heads).filter(|heads| *heads <= output.numel());
        let within = |(view, meta): (&&View, &&TensorMeta)| {
            let is_plain = meta.dtype() == ScalarType::Float && meta.dim_order().is_contiguous();
            is_plain && view.is_within(meta.numel()) && heads == Some(view.sizes()[0])
        };
        let elements = |step: AttentionStep| {
            let sizes = [self.items, self.heads, step.q.rows, step.v.cols];
            sizes.iter().try_fold(1usize, |n, &m| n.checked_mul(m))
        };
        views.len() == inputs.len()
            && output.dtype() == ScalarType::Float
            && output.numel() > 0
            && views.iter().zip(inputs).all(within)
            && AttentionStep::new(self, Isa::default()).and_then(elements) == Some(output.numel())
    }
}

impl Operation for Attention {
    fn name(&self) -> &str {
        "attention"
    }

    fn attributes(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "items: {}, heads: {}, factor: {}", self.items, self.heads, self.factor)
    }

    fn check(&self, operands: &Operands<'_>) -> Result<()> {
        let inputs = operands.inputs();
        operands.count(inputs.len(), 1)?;
        match self.fits(&inputs, operands.output(0)?) {
            true => Ok(()),
            false => refuse("the views of attention do not match their operands, each other or the result"),
        }
    }

    fn lower(&self, node: &mut Lowering<'_>) -> Result<Lowered> {
        let step = AttentionStep::new(self, node.isa())
            .ok_or_else(|| Error::invalid("the views of attention do not match each other"))?;
        Ok(Lowered::step(step, 0..node.inputs()))
    }
}

/// Matrices in memory, one for each head of each item of the batch.
#[derive(Debug)]
struct Operand {
    /// Which input of the node holds it.
    input: usize,
    starts: Vec<usize>,
    rows: usize,
    cols: usize,
    strides: (usize, usize),
}

impl Operand {
    /// A view of three dimensions as matrices. `None` if rows or columns have no single stride.
    fn new(input: usize, view: &View) -> Option<Self> {
        let ((rows, rs), (cols, cs)) = (view.single(1)?, view.single(2)?);
        Some(Self { input, starts: view.starts(0), rows, cols, strides: (rs, cs) })
    }

    /// `rows` rows of the `i`th matrix, from `first` on.
    fn matrix<'a>(&self, reads: &[&'a [f32]], i: usize, first: usize, rows: usize) -> MatRef<'a> {
        let (rs, cs) = self.strides;
        MatRef::strided(&reads[self.input][self.starts[i] + first * rs..], rows, self.cols, rs, cs)
    }
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
    /// The factor of `v`.
    beta: f32,
    isa: Isa,
}

impl AttentionStep {
    /// The views are `[heads, queries, width]`, `[heads, width, keys]`, `[heads, keys, values]` and
    /// `[heads, queries, keys]`. `None` if their sizes do not match, or rows or columns have no single stride.
    pub(crate) fn new(spec: &Attention, isa: Isa) -> Option<Self> {
        let [q, k, v] = &spec.views;
        let operand = |i: usize, view: &View| Operand::new(i, view);
        let mask = match &spec.mask {
            Some(view) => Some(operand(3, view)?),
            None => None,
        };
        let step = Self {
            q: operand(0, q)?,
            k: operand(1, k)?,
            v: operand(2, v)?,
            mask,
            alpha: q.factor * k.factor * if spec.rounding.is_some() { 1.0 } else { spec.factor },
            beta: v.factor,
            spec: spec.clone(),
            isa,
        };
        let heads = step.spec.items * step.spec.heads;
        let all = [Some(&step.q), Some(&step.k), Some(&step.v), step.mask.as_ref()];
        let fits = all.iter().flatten().all(|o| o.starts.len() == heads)
            && step.q.cols == step.k.rows
            && step.k.cols == step.v.rows
            && step.mask.as_ref().is_none_or(|m| {
                (m.rows, m.cols) == (step.q.rows, step.k.cols)
                    && spec.mask.as_ref().is_some_and(|v| v.factor == 1.0)
            });
        fits.then_some(step)
    }

    /// Packs the keys and values of an item's heads, if there are enough queries to reuse them. A head for which there
    /// is no memory is read unpacked.
    fn packed(&self, pool: &Pool, reads: &[&[f32]], item: usize, at_once: usize) -> Vec<Option<Packed>> {
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

    /// Computes an item, in blocks of `at_once` queries.
    fn item(&self, pool: &Pool, reads: &[&[f32]], item: usize, at_once: usize, out: &mut [f32]) {
        let packed = self.packed(pool, reads, item, at_once);
        let block = at_once * self.spec.heads * self.v.cols;
        let scores = || {
            let len = at_once * self.k.cols;
            pteron_tensor::memory::filled(len, 0.0)
                .unwrap_or_else(|_| pteron_pool::out_of_memory(len.saturating_mul(size_of::<f32>())))
        };
        if pool.threads() == 1 {
            let mut scores = scores();
            for (i, out) in out.chunks_mut(block).enumerate() {
                self.rows(reads, &packed, (item, i * at_once), out, &mut scores);
            }
            return;
        }
        pool.parallel_chunks_mut(out, block, 1, &|i, out| {
            self.rows(reads, &packed, (item, i * at_once), out, &mut scores());
        });
    }

    /// Computes the rows of `out` for all heads: the queries of an item from `first` on.
    fn rows(
        &self,
        reads: &[&[f32]],
        packed: &[Option<Packed>],
        (item, first): (usize, usize),
        out: &mut [f32],
        scores: &mut [f32],
    ) {
        let (heads, keys, values) = (self.spec.heads, self.k.cols, self.v.cols);
        let row = heads * values;
        let rows = out.len() / row;
        let serial = Pool::alone();
        let scores = &mut scores[..rows * keys];
        let rounded = self.spec.rounding.map_or(Activation::Identity, Activation::Unary);
        for head in 0..heads {
            let i = item * heads + head;
            let mask = self.mask.as_ref().map(|m| m.matrix(reads, i, first, rows));
            let residual = mask.filter(|_| self.spec.rounding.is_none()).map(|mask| (1.0, mask));
            let epilogue = Epilogue { alpha: self.alpha, residual, activation: rounded, ..Epilogue::NONE };
            let (k, v): (Rhs<'_>, Rhs<'_>) = match &packed[head] {
                Some((k, v)) => (k.into(), v.into()),
                None => {
                    (self.k.matrix(reads, i, 0, self.k.rows).into(), self.v.matrix(reads, i, 0, keys).into())
                }
            };
            let q = self.q.matrix(reads, i, first, rows);
            gemm(serial, self.isa, q, k, MatMut::new(scores, rows, keys), &epilogue);
            self.finish_rounded(mask, keys, scores);
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
            let c = MatMut::strided(&mut out[head * values..], rows, values, row, 1);
            let epilogue = Epilogue { alpha: self.beta, activation: rounded, ..Epilogue::NONE };
            gemm(serial, self.isa, MatRef::new(scores, rows, keys), v, c, &epilogue);
        }
    }

    /// Rounds elements if the program computes in half precision.
    fn round(&self, x: &mut [f32]) {
        if let Some(to) = self.spec.rounding {
            unary_in_place(Pool::alone(), self.isa, to, x);
        }
    }

    /// In half precision, applies factor and mask to the scores, with a rounding after each.
    fn finish_rounded(&self, mask: Option<MatRef<'_>>, keys: usize, scores: &mut [f32]) {
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
        let out = only(&mut writes)?.storage_mut::<f32>()?;
        let (items, heads) = (self.spec.items, self.spec.heads);
        let (queries, keys, values) = (self.q.rows, self.k.cols, self.v.cols);
        let row = heads * values;
        if out.len() != items * queries * row {
            return Err(Error::invalid("the output of attention has other sizes than its operands imply"));
        }
        let work = items * heads * queries * keys * (self.q.cols + values);
        let pool = if work < SPLIT_WORK { Pool::alone() } else { ctx.pool() };
        let at_once = attention_rows(queries, keys, QUERIES);
        if items >= pool.threads() {
            let grain = (SPLIT_WORK * items / work.max(1)).max(1);
            pool.parallel_chunks_mut(out, queries * row, grain, &|item, out| {
                self.item(Pool::alone(), &reads, item, at_once, out);
            });
        } else {
            let each = out.chunks_exact_mut(queries * row).enumerate();
            each.for_each(|(item, out)| self.item(pool, &reads, item, at_once, out));
        }
        Ok(())
    }
}
