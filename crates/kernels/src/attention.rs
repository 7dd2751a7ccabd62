//! Scaled dot-product attention, with and without a key-value cache.
//!
//! `softmax(scale * query key^T + mask) value` for every head. With fewer key-value heads than query heads
//! (grouped-query attention), each key-value head serves a group of consecutive query heads.

use crate::compute::{Epilogue, Isa, MatMut, MatRef, PackedB, Rhs, gemm, queries_at_once, softmax_in_place};
use crate::kv_cache::write_at;
use crate::support::convert::{Values, all_values, values, write_row_major};
use crate::support::dims::{broadcast, to_size};
use crate::support::dtype::{Compute, compute_type, expect_dtype};
use crate::support::layout::Layout;
use crate::support::rows::expect_type;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_pool::Pool;
use pteron_tensor::{ScalarType, Shape, TensorView, TensorViewMut};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "aten::scaled_dot_product_attention.out(Tensor query, Tensor key, Tensor value, Tensor? attn_mask=None, float dropout_p=0.0, bool is_causal=False, *, float? scale=None, bool enable_gqa=False, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        scaled_dot_product_attention,
    ),
    Operator::new(
        "llama::sdpa_with_kv_cache.out(Tensor query, Tensor key, Tensor value, Tensor(a!) key_cache, Tensor(b!) value_cache, SymInt start_pos, SymInt seq_len, Tensor? attn_mask=None, float drpout_p=0.0, bool is_causal=False, float? scale=None, *, Tensor(c!) out) -> Tensor(c!)",
        DtypeSet::FLOATING,
        sdpa_with_kv_cache,
    ),
    Operator::new(
        "llama::custom_sdpa.out(Tensor query, Tensor key, Tensor value, SymInt start_pos, Tensor? attn_mask=None, float drpout_p=0.0, bool is_causal=False, float? scale=None, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING,
        custom_sdpa,
    ),
    Operator::new(
        "llama::custom_quantized_sdpa.out(Tensor query, Tensor key, Tensor value, SymInt start_pos, Tensor? attn_mask=None, float drpout_p=0.0, bool is_causal=False, float? scale=None, Tensor? q_zero_points=None, Tensor? q_scales=None, Tensor? k_zero_points=None, Tensor? k_scales=None, Tensor? v_zero_points=None, Tensor? v_scales=None, bool is_seq_at_dim_2=False, *, Tensor(a!) out) -> Tensor(a!)",
        DtypeSet::FLOATING.union(DtypeSet::of(&[ScalarType::Char])),
        custom_quantized_sdpa,
    ),
];

/// The maximum number of queries in a block if the results of a head are not contiguous in the out or the attention is
/// causal.
const QUERIES: usize = 70;
/// Grain size: the smallest number of multiplications worth waking a thread for.
const SPLIT_WORK: usize = 1 << 18;

/// Queries, keys, values or a mask: four dimensions, `[batch, heads, rows, columns]`, in any layout.
struct Heads<'a, C> {
    values: Values<'a, C>,
    view: Layout,
}

impl<'a, C: Compute> Heads<'a, C> {
    fn new(ctx: &KernelContext<'a>, tensor: &TensorView<'a>, view: Layout) -> Result<Self> {
        if tensor.dtype() == C::DTYPE {
            return Ok(Self { values: Values::Own(tensor.storage::<C>()?), view });
        }
        let values = values::<C>(ctx, tensor, &view)?;
        Ok(Self { values, view: Layout::contiguous(&view.sizes) })
    }

    /// A mask that is added to scores with these sizes. In a boolean mask, true means that the key is visible.
    fn from_mask(ctx: &KernelContext<'a>, mask: &TensorView<'a>, scores: &Shape) -> Result<Self> {
        let dense = Layout::contiguous(mask.sizes());
        let dtype = mask.dtype();
        expect_dtype("attn_mask", dtype, DtypeSet::FLOATING.union(DtypeSet::BOOL))?;
        let mut all = all_values::<C>(ctx, mask)?;
        if dtype == ScalarType::Bool {
            let mut numbers = ctx.scratch::<C>(all.len())?;
            for (to, &truth) in numbers.iter_mut().zip(all.iter()) {
                *to = if truth.is_true() { C::default() } else { C::from_f64(f64::NEG_INFINITY) };
            }
            all = Values::Copy(numbers);
        }
        Ok(Self { values: all, view: dense.expand(scores)? })
    }

    fn as_slices(&self) -> HeadSlices<'_, C> {
        HeadSlices {
            values: &self.values,
            offset: self.view.offset,
            sizes: std::array::from_fn(|d| self.view.sizes[d]),
            strides: std::array::from_fn(|d| self.view.strides()[d] as usize),
        }
    }
}

impl<'a> Heads<'a, f32> {
    /// Dequantizes the values `x`, whose rows have one zero point and one scale each.
    fn from_quantized(
        ctx: &KernelContext<'a>,
        name: &str,
        [x, zeros, scales]: [TensorView<'a>; 3],
        view: impl Fn(Layout) -> Layout,
    ) -> Result<Self> {
        let mut rows = *x.sizes();
        rows[3] = 1;
        ensure!(
            *zeros.sizes() == rows && *scales.sizes() == rows,
            "{name}: expected zero points and scales of the shape {rows}, found {} and {}",
            zeros.sizes(),
            scales.sizes()
        );
        let of = |t: &TensorView<'a>| values::<f32>(ctx, t, &view(Layout::of_tensor(t.meta())));
        let (numbers, zeros, scales) = (of(&x)?, of(&zeros)?, of(&scales)?);
        let mut all = ctx.scratch::<f32>(numbers.len())?;
        let width = x.sizes()[3].max(1);
        for (i, (to, from)) in all.chunks_exact_mut(width).zip(numbers.chunks_exact(width)).enumerate() {
            to.iter_mut().zip(from).for_each(|(to, &q)| *to = (q - zeros[i]) * scales[i]);
        }
        let sizes = view(Layout::of_tensor(x.meta())).sizes;
        Ok(Self { values: Values::Copy(all), view: Layout::contiguous(&sizes) })
    }
}

/// The tensor of a [`Heads`] as a plain slice, which threads can share.
#[derive(Clone, Copy)]
struct HeadSlices<'v, C> {
    values: &'v [C],
    offset: usize,
    sizes: [usize; 4],
    strides: [usize; 4],
}

impl<'v, C> HeadSlices<'v, C> {
    /// The first `columns` columns of `rows` rows of one head, from row `first` on.
    fn head_block(
        &self,
        batch: usize,
        head: usize,
        first: usize,
        rows: usize,
        columns: usize,
    ) -> MatRef<'v, C> {
        let [b, h, r, c] = self.strides;
        let empty = rows == 0 || columns == 0;
        let from = if empty { &[] } else { &self.values[self.offset + batch * b + head * h + first * r..] };
        MatRef::strided(from, rows, columns, r, c)
    }
}

/// The scale of the scores and the visible keys of each query.
#[derive(Clone, Copy)]
struct Rule {
    /// The factor of the scores.
    scale: f64,
    /// The number of keys; keys from this index on are not visible.
    keys: usize,
    /// In causal attention, the position `p` of query 0: query `i` sees no keys beyond `p + i`. `None` if not causal.
    causal: Option<usize>,
}

impl Rule {
    /// The number of keys that are visible to query `i`.
    fn visible_keys(&self, i: usize) -> usize {
        self.causal.map_or(self.keys, |start| self.keys.min(start.saturating_add(i).saturating_add(1)))
    }
}

/// Attention over these views of tensors. The out must have its final sizes; `steps` are the strides of
/// its batches, heads and rows in row-major order.
fn attend(
    ctx: &KernelContext<'_>,
    tensors: [TensorView<'_>; 3],
    views: [Layout; 3],
    mask: Option<TensorView<'_>>,
    rule: Rule,
    out: &mut TensorViewMut<'_>,
    steps: [usize; 3],
) -> Result<()> {
    let [query, key, value] = &tensors;
    for (name, t) in [("query", query), ("key", key), ("value", value)] {
        expect_dtype(name, t.dtype(), DtypeSet::FLOATING)?;
        expect_type(name, query.dtype(), t.dtype())?;
    }
    expect_type("out", query.dtype(), out.dtype())?;
    if compute_type(query.dtype()) == ScalarType::Double {
        return attend_as::<f64>(ctx, tensors, views, mask, rule, out, steps, attend_f64);
    }
    attend_as::<f32>(ctx, tensors, views, mask, rule, out, steps, attend_f32)
}

/// The signature of the attention loops for one element type.
type Loops<C> = fn(
    &KernelContext<'_>,
    [HeadSlices<'_, C>; 3],
    Option<HeadSlices<'_, C>>,
    Rule,
    &mut [C],
    [usize; 3],
) -> Result<()>;

#[expect(clippy::too_many_arguments, reason = "the arguments of its caller, attend")]
fn attend_as<C: Compute>(
    ctx: &KernelContext<'_>,
    [query, key, value]: [TensorView<'_>; 3],
    [q, k, v]: [Layout; 3],
    mask: Option<TensorView<'_>>,
    rule: Rule,
    out: &mut TensorViewMut<'_>,
    steps: [usize; 3],
    loops: Loops<C>,
) -> Result<()> {
    let heads = [Heads::new(ctx, &query, q)?, Heads::new(ctx, &key, k)?, Heads::new(ctx, &value, v)?];
    attend_heads(ctx, &heads, mask, rule, out, steps, loops)
}

fn attend_heads<C: Compute>(
    ctx: &KernelContext<'_>,
    [q, k, v]: &[Heads<'_, C>; 3],
    mask: Option<TensorView<'_>>,
    rule: Rule,
    out: &mut TensorViewMut<'_>,
    steps: [usize; 3],
    loops: Loops<C>,
) -> Result<()> {
    let (heads, shared) = (q.view.sizes[1], k.view.sizes[1]);
    ensure!(
        shared > 0 && heads.is_multiple_of(shared),
        "key: its {shared} heads do not divide the {heads} heads of the query"
    );
    let scores = Shape::new(&[q.view.sizes[0], heads, q.view.sizes[2], rule.keys])?;
    let mask = mask.map(|m| Heads::<C>::from_mask(ctx, &m, &scores)).transpose()?;
    if out.numel() == 0 {
        return Ok(());
    }
    let mask = mask.as_ref().map(Heads::as_slices);
    write_row_major::<C>(ctx, out, |out| {
        loops(ctx, [q.as_slices(), k.as_slices(), v.as_slices()], mask, rule, out, steps)
    })
}

fn attend_f32(
    ctx: &KernelContext<'_>,
    [q, k, v]: [HeadSlices<'_, f32>; 3],
    mask: Option<HeadSlices<'_, f32>>,
    rule: Rule,
    out: &mut [f32],
    steps: [usize; 3],
) -> Result<()> {
    let [batch, heads, len, depth] = q.sizes;
    let (share, width) = (heads / k.sizes[1], v.sizes[3]);
    let is_by_head = steps == [heads * len * width, len * width, width];
    // The block size is independent of the number of threads, since it may affect rounding. In causal attention,
    // smaller blocks compute fewer scores that are then masked.
    let most = if is_by_head && rule.causal.is_none() { usize::MAX } else { QUERIES };
    let at_once = queries_at_once(len, rule.keys, most);
    let isa = crate::support::isa(ctx);
    let blocks = Blocks { isa, q, k, v, mask, rule, share, at_once };
    let work = rule.keys.saturating_mul(depth + width);
    if is_by_head && batch * heads >= ctx.pool().threads() {
        let grain = (SPLIT_WORK / work.saturating_mul(len).max(1)).max(1);
        ctx.pool().parallel_chunks_mut(out, len * width, grain, &|i, out| {
            let (b, h) = (i / heads, i % heads);
            let packed = blocks.pack_head(b, h);
            for first in (0..len).step_by(at_once) {
                let rows = at_once.min(len - first);
                let to = MatMut::new(&mut out[first * width..][..rows * width], rows, width);
                blocks.run_block(Pool::alone(), (b, h, first), packed.as_ref(), to);
            }
        });
        return Ok(());
    }
    for b in 0..batch {
        let packed: Vec<_> = (0..heads).map(|h| blocks.pack_head(b, h)).collect();
        if steps == [len * heads * width, width, heads * width] {
            let row = heads * width;
            let grain = (SPLIT_WORK / work.saturating_mul(heads * at_once).max(1)).max(1);
            let out = &mut out[b * steps[0]..][..len * row];
            ctx.pool().parallel_chunks_mut(out, at_once * row, grain, &|i, out| {
                let rows = out.len() / row;
                for (h, packed) in packed.iter().enumerate() {
                    let to = MatMut::strided(&mut out[h * width..], rows, width, row, 1);
                    blocks.run_block(Pool::alone(), (b, h, i * at_once), packed.as_ref(), to);
                }
            });
            continue;
        }
        for (h, packed) in packed.iter().enumerate() {
            for first in (0..len).step_by(at_once) {
                let at = b * steps[0] + h * steps[1] + first * steps[2];
                let to = MatMut::strided(&mut out[at..], at_once.min(len - first), width, steps[2], 1);
                blocks.run_block(ctx.pool(), (b, h, first), packed.as_ref(), to);
            }
        }
    }
    Ok(())
}

/// A head's keys, transposed, and its values, packed for the matrix products.
type Packed = (PackedB, PackedB);

/// Computes attention for a block of queries of one head at a time, so that the block's scores stay in a near cache.
struct Blocks<'v> {
    isa: Isa,
    q: HeadSlices<'v, f32>,
    k: HeadSlices<'v, f32>,
    v: HeadSlices<'v, f32>,
    mask: Option<HeadSlices<'v, f32>>,
    rule: Rule,
    /// The number of query heads for each key-value head.
    share: usize,
    /// The number of queries in a block.
    at_once: usize,
}

impl Blocks<'_> {
    /// The packed keys and values of a head, if they are read several times in full. `None` also if there is no
    /// memory for packing: then they are read in place.
    fn pack_head(&self, b: usize, h: usize) -> Option<Packed> {
        let (keys, [_, _, len, depth]) = (self.rule.keys, self.q.sizes);
        if len < 2 * self.at_once || self.rule.causal.is_some() || keys == 0 {
            return None;
        }
        let keys_of = self.k.head_block(b, h / self.share, 0, keys, depth).t();
        let values_of = self.v.head_block(b, h / self.share, 0, keys, self.v.sizes[3]);
        Some((PackedB::new(self.isa, keys_of).ok()?, PackedB::new(self.isa, values_of).ok()?))
    }

    /// Computes the attention of the block of queries that starts at `first`.
    fn run_block(
        &self,
        pool: &Pool,
        (b, h, first): (usize, usize, usize),
        packed: Option<&Packed>,
        mut out: MatMut<'_>,
    ) {
        let Self { isa, rule, .. } = *self;
        let (rows, width, depth) = (out.rows(), out.cols(), self.q.sizes[3]);
        let n = rule.visible_keys(first + rows - 1);
        let len = rows.saturating_mul(n);
        let scores = pteron_tensor::memory::filled(len, 0.0);
        let mut scores =
            scores.unwrap_or_else(|_| pteron_pool::out_of_memory(len.saturating_mul(size_of::<f32>())));
        let (keys, values): (Rhs<'_>, Rhs<'_>) = match packed {
            Some((keys, values)) => (keys.into(), values.into()),
            None => (
                self.k.head_block(b, h / self.share, 0, n, depth).t().into(),
                self.v.head_block(b, h / self.share, 0, n, width).into(),
            ),
        };
        let epilogue = Epilogue {
            alpha: rule.scale as f32,
            residual: self.mask.map(|mask| (1.0, mask.head_block(b, h, first, rows, n))),
            ..Epilogue::NONE
        };
        let queries = self.q.head_block(b, h, first, rows, depth);
        gemm(pool, isa, queries, keys, MatMut::new(&mut scores, rows, n), &epilogue);
        for (row, x) in scores.chunks_exact_mut(n.max(1)).enumerate() {
            let (visible, hidden) = x.split_at_mut(rule.visible_keys(first + row));
            hidden.fill(0.0);
            // A query without visible keys gives zeros.
            if visible.iter().all(|&x| x == f32::NEG_INFINITY) {
                visible.fill(0.0);
            } else {
                softmax_in_place(pool, isa, false, visible.len(), visible);
            }
        }
        gemm(pool, isa, MatRef::new(&scores, rows, n), values, out.reborrow(), &Epilogue::NONE);
    }
}

fn attend_f64(
    ctx: &KernelContext<'_>,
    [q, k, v]: [HeadSlices<'_, f64>; 3],
    mask: Option<HeadSlices<'_, f64>>,
    rule: Rule,
    out: &mut [f64],
    steps: [usize; 3],
) -> Result<()> {
    let [batch, heads, len, depth] = q.sizes;
    let (share, width) = (heads / k.sizes[1], v.sizes[3]);
    let mut scores = ctx.scratch::<f64>(rule.keys)?;
    for (b, h, i) in (0..batch * heads * len).map(|n| (n / len / heads, n / len % heads, n % len)) {
        let n = rule.visible_keys(i);
        let (q, k) = (q.head_block(b, h, i, 1, depth), k.head_block(b, h / share, 0, n, depth));
        let scores = &mut scores[..n];
        for (j, score) in scores.iter_mut().enumerate() {
            let product: f64 = (0..depth).map(|d| q.at(0, d) * k.at(j, d)).sum();
            *score = product * rule.scale + mask.map_or(0.0, |mask| *mask.head_block(b, h, i, 1, n).at(0, j));
        }
        let greater = |max: f64, x: f64| if x > max || x.is_nan() { x } else { max };
        let max = scores.iter().copied().fold(f64::NEG_INFINITY, greater);
        if max == f64::NEG_INFINITY {
            scores.fill(0.0);
        } else {
            scores.iter_mut().for_each(|x| *x = (*x - max).exp());
            let sum: f64 = scores.iter().sum();
            scores.iter_mut().for_each(|x| *x /= sum);
        }
        let v = v.head_block(b, h / share, 0, n, width);
        let at = b * steps[0] + h * steps[1] + i * steps[2];
        for d in 0..width {
            out[at + d] = scores.iter().enumerate().map(|(j, p)| p * v.at(j, d)).sum();
        }
    }
    Ok(())
}

/// The factor of the scores: the argument `scale`, or by default one over the square root of the width.
fn score_scale(args: &Args<'_>, width: usize) -> Result<f64> {
    Ok(args.optional_double("scale")?.unwrap_or(1.0 / (width as f64).sqrt()))
}

/// Attention over the last two dimensions; the leading dimensions are batches and heads, which are broadcast. With
/// `enable_gqa`, there may be fewer key-value heads than query heads. If causal, query `i` sees
/// keys `0..=i`.
fn scaled_dot_product_attention(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let tensors = [args.tensor("query")?, args.tensor("key")?, args.tensor("value")?];
    let mask = args.optional_tensor("attn_mask")?;
    let (dropout, causal, grouped) =
        (args.double("dropout_p")?, args.bool("is_causal")?, args.bool("enable_gqa")?);
    ensure!(dropout == 0.0, "dropout_p: {dropout} is not supported, only 0 (there is no training)");
    ensure!(mask.is_none() || !causal, "attn_mask: a mask and is_causal exclude each other");
    let rank = tensors.iter().map(|t| t.rank()).max().unwrap_or(0);
    let mut views = tensors.map(|t| Layout::of_tensor(t.meta()));
    for (view, name) in views.iter_mut().zip(["query", "key", "value"]) {
        ensure!((2..=4).contains(&view.rank()), "{name}: expected 2 to 4 dimensions, found {}", view.sizes);
        while view.rank() < 4 {
            *view = view.insert(0, 1, 0)?;
        }
    }
    let [q, k, v] = views.map(|view| view.sizes);
    ensure!(
        q[3] == k[3] && k[2] == v[2] && (!grouped || k[1] == v[1]),
        "the shapes {q}, {k} and {v} of query, key and value do not go together"
    );
    let lead = |s: &Shape| Shape::new(if grouped { &s[..1] } else { &s[..2] });
    let common = broadcast(&broadcast(&lead(&q)?, &lead(&k)?)?, &lead(&v)?)?;
    for view in &mut views {
        let mut sizes = view.sizes;
        sizes[..common.rank()].copy_from_slice(&common);
        *view = view.expand(&sizes)?;
    }
    let [batch, heads, len] = [views[0].sizes[0], views[0].sizes[1], q[2]];
    let out = outs.tensor(0)?;
    out.resize(&[batch, heads, len, v[3]][4 - rank..])?;
    let rule = Rule { scale: score_scale(args, q[3])?, keys: k[2], causal: causal.then_some(0) };
    attend(ctx, tensors, views, mask, rule, out, [heads * len * v[3], len * v[3], v[3]])
}

/// The view `[batch, heads, sequence, width]` of a tensor. `second` says whether the sequence is dimension 2 of the
/// tensor; otherwise it is dimension 1.
fn heads_view(view: Layout, second: bool) -> Layout {
    if second { view } else { view.transpose(1, 2) }
}

/// The common part of the `llama` operators: the queries are at positions `start..` of the sequence of
/// the keys.
struct Sequence {
    views: [Layout; 3],
    rule: Rule,
    steps: [usize; 3],
}

impl Sequence {
    /// Checks query, key and value tensors. `second` says whether the sequence is dimension 2 of each; otherwise it
    /// is dimension 1.
    fn new(args: &Args<'_>, tensors: &[TensorView<'_>; 3], start: i64, second: bool) -> Result<Self> {
        for (name, t) in ["query", "key", "value"].iter().zip(tensors) {
            ensure!(t.rank() == 4, "{name}: expected four dimensions, found {}", t.meta());
        }
        let views = tensors.map(|t| heads_view(Layout::of_tensor(t.meta()), second));
        let [q, k, v] = views.map(|view| view.sizes);
        ensure!(
            q[0] == k[0] && q[3] == k[3] && k == v,
            "the shapes {}, {} and {} of query, key and value do not go together",
            tensors[0].sizes(),
            tensors[1].sizes(),
            tensors[2].sizes()
        );
        let start = to_size("start_pos", start)?;
        let (masked, causal) = (!args.is_none("attn_mask"), args.bool("is_causal")?);
        ensure!(!masked || !causal, "attn_mask: a mask and is_causal exclude each other");
        let end = start.saturating_add(q[2]);
        ensure!(
            masked || end <= k[2],
            "start_pos: {} queries from position {start} on exceed the {} keys",
            q[2],
            k[2]
        );
        let keys = if masked { k[2] } else { end };
        if masked {
            let sizes = args.meta("attn_mask")?.sizes();
            ensure!(
                **sizes == [q[2], keys],
                "attn_mask: expected the shape [{}, {keys}], found {sizes}",
                q[2]
            );
        }
        let scale = score_scale(args, q[3])?;
        let row = q[1].saturating_mul(q[3]);
        let batch_len = row.saturating_mul(q[2]);
        let steps =
            if second { [batch_len, q[2].saturating_mul(q[3]), q[3]] } else { [batch_len, q[3], row] };
        Ok(Self { views, rule: Rule { scale, keys, causal: causal.then_some(start) }, steps })
    }
}

/// Attention of query, key and value tensors with dimensions `[batch, sequence, heads, width]`.
fn custom_sdpa(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let tensors = [args.tensor("query")?, args.tensor("key")?, args.tensor("value")?];
    let Sequence { views, rule, steps } = Sequence::new(args, &tensors, args.int("start_pos")?, false)?;
    let out = outs.tensor(0)?;
    out.resize(tensors[0].sizes())?;
    attend(ctx, tensors, views, args.optional_tensor("attn_mask")?, rule, out, steps)
}

/// Like [`custom_sdpa`], optionally with the sequence at dimension 2. int8 tensors have a zero point and a scale
/// for each row.
fn custom_quantized_sdpa(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let tensors = [args.tensor("query")?, args.tensor("key")?, args.tensor("value")?];
    let second = args.bool("is_seq_at_dim_2")?;
    let Sequence { views, rule, steps } = Sequence::new(args, &tensors, args.int("start_pos")?, second)?;
    let out = outs.tensor(0)?;
    out.resize(tensors[0].sizes())?;
    let mask = args.optional_tensor("attn_mask")?;
    if tensors[0].dtype() != ScalarType::Char {
        return attend(ctx, tensors, views, mask, rule, out, steps);
    }
    expect_dtype("out", out.dtype(), DtypeSet::FLOATING)?;
    for (i, t) in tensors.iter().enumerate() {
        expect_type(args.name(i), ScalarType::Char, t.dtype())?;
    }
    let heads = |i: usize| {
        let parts = [tensors[i], args.tensor(8 + 2 * i)?, args.tensor(9 + 2 * i)?];
        Heads::from_quantized(ctx, args.name(i), parts, |l| heads_view(l, second))
    };
    attend_heads(ctx, &[heads(0)?, heads(1)?, heads(2)?], mask, rule, out, steps, attend_f32)
}

/// Writes key and value to the caches from `start_pos` on, and computes attention over the updated caches.
fn sdpa_with_kv_cache(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (query, start) = (args.tensor("query")?, args.int("start_pos")?);
    let [keys, values, out] = outs.tensors([0, 1, 2])?;
    write_at(keys, &args.tensor("key")?, start)?;
    write_at(values, &args.tensor("value")?, start)?;
    let tensors = [query, keys.as_view(), values.as_view()];
    let Sequence { views, rule, steps } = Sequence::new(args, &tensors, start, false)?;
    out.resize(query.sizes())?;
    attend(ctx, tensors, views, args.optional_tensor("attn_mask")?, rule, out, steps)
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call, call_many, int, out, s, t};
    use pteron_operator::Arg;
    use pteron_tensor::ScalarType::{Double, Float};
    use pteron_tensor::{Element, Tensor};

    // Batches, query heads, key-value heads, queries, keys, width.
    const B: usize = 2;
    const H: usize = 4;
    const G: usize = 2;
    const L: usize = 70;
    const S: usize = 90;
    const D: usize = 5;

    /// Pseudo-random values in `-1..1`.
    fn noise<T: Element>(sizes: &[usize], seed: usize, to: impl Fn(f64) -> T) -> Tensor {
        let one = |i: usize| to(((i + 7) * (seed * 2 + 31) * 977 % 1009) as f64 / 504.5 - 1.0);
        t(sizes, &(0..sizes.iter().product()).map(one).collect::<Vec<T>>())
    }

    /// Reference attention by the formula: `q` is `[B, H, L, D]`, `k` and `v` are `[B, G, S, D]`; `added` is the mask.
    fn formula([q, k, v]: [&Tensor; 3], added: impl Fn(usize, usize) -> f64) -> Vec<f64> {
        let [q, k, v] = [q, k, v].map(|x| x.storage::<f64>().unwrap());
        let mut all = Vec::new();
        for (b, h, i) in (0..B * H * L).map(|n| (n / L / H, n / L % H, n % L)) {
            let head = (b * G + h / (H / G)) * S * D;
            let query = &q[((b * H + h) * L + i) * D..][..D];
            let weight = |j: usize| {
                let product: f64 = query.iter().zip(&k[head + j * D..]).map(|(q, k)| q * k).sum();
                (product / (D as f64).sqrt() + added(i, j)).exp()
            };
            let sum: f64 = (0..S).map(weight).sum();
            all.extend((0..D).map(|d| match sum {
                0.0 => 0.0,
                sum => (0..S).map(|j| weight(j) / sum * v[head + j * D + d]).sum(),
            }));
        }
        all
    }

    fn close(found: &[f32], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        found.iter().zip(expected).for_each(|(&a, &b)| assert!((a as f64 - b).abs() < 1e-5, "{a} for {b}"));
    }

    #[test]
    fn attention_follows_the_formula() {
        let sizes = [[B, H, L, D], [B, G, S, D], [B, G, S, D]];
        let wide = [0, 1, 2].map(|i| noise(&sizes[i], i, |x| x));
        let narrow = [0, 1, 2].map(|i| noise(&sizes[i], i, |x| x as f32));
        let no = || Arg::Bool(false);
        let mask = noise(&[L, S], 9, |x| pteron_tensor::Bool::from(x > 0.0));
        let hidden = |i: usize, j: usize| {
            if mask.storage::<pteron_tensor::Bool>().unwrap()[i * S + j].get() {
                0.0
            } else {
                f64::NEG_INFINITY
            }
        };
        let later = |i: usize, j: usize| if j <= i { 0.0 } else { f64::NEG_INFINITY };
        let refs = |of: &'_ [Tensor; 3]| -> Vec<f64> { formula([&of[0], &of[1], &of[2]], hidden) };
        for (args, expected) in [
            ([a(&mask), Arg::Double(0.0), no()], refs(&wide)),
            ([Arg::None, Arg::Double(0.0), Arg::Bool(true)], formula([&wide[0], &wide[1], &wide[2]], later)),
            ([Arg::None, Arg::Double(0.0), no()], formula([&wide[0], &wide[1], &wide[2]], |_, _| 0.0)),
        ] {
            for dtype in [Double, Float] {
                let of = if dtype == Double { &wide } else { &narrow };
                let mut list = vec![a(&of[0]), a(&of[1]), a(&of[2])];
                list.extend(args.clone());
                list.extend([Arg::None, Arg::Bool(true)]);
                let r = call("aten::scaled_dot_product_attention.out", &list, out(dtype, &sizes[0])).unwrap();
                match dtype {
                    Double => close(
                        &r.storage::<f64>().unwrap().iter().map(|&x| x as f32).collect::<Vec<_>>(),
                        &expected,
                    ),
                    _ => close(r.as_slice().unwrap(), &expected),
                }
            }
        }
    }

    #[test]
    fn queries_without_visible_keys_give_zeros() {
        let (q, m) = (t(&[1, 2], &[1f32, 2.0]), t(&[1, 1], &[f32::NEG_INFINITY]));
        let r = call(
            "aten::scaled_dot_product_attention.out",
            &[a(&q), a(&q), a(&q), a(&m)],
            out(Float, &[1, 2]),
        );
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[0.0, 0.0]);
        let none = t::<f32>(&[0, 2], &[]);
        let r =
            call("aten::scaled_dot_product_attention.out", &[a(&q), a(&none), a(&none)], out(Float, &[1, 2]));
        assert_eq!(r.unwrap().storage::<f32>().unwrap(), &[0.0, 0.0]);
        let scalar = s(1f32);
        let bad = [a(&q), a(&scalar), a(&q)];
        assert!(call("aten::scaled_dot_product_attention.out", &bad, out(Float, &[1, 2])).is_err());
    }

    #[test]
    fn attention_stores_new_keys_and_reads_the_whole_cache() {
        let q = t(&[1, 2, 1, 1], &[0f32, 0.0]);
        let new = t(&[1, 2, 1, 1], &[4f32, 8.0]);
        let cache = || t(&[1, 4, 1, 1], &[2f32, 9.0, 9.0, 9.0]);
        let args = [a(&q), a(&new), a(&new), int(1), int(2), Arg::None, Arg::Double(0.0), Arg::Bool(true)];
        let outs = [cache(), cache(), out(Float, &[1, 2, 1, 1])];
        let [keys, _, r] = call_many("llama::sdpa_with_kv_cache.out", &args, outs).unwrap();
        assert_eq!(keys.storage::<f32>().unwrap(), &[2.0, 4.0, 8.0, 9.0]);
        close(r.as_slice().unwrap(), &[3.0, 14.0 / 3.0]);
        let late = [a(&q), a(&new), a(&new), int(3), int(2)];
        assert!(
            call_many("llama::sdpa_with_kv_cache.out", &late, [cache(), cache(), out(Float, &[1, 2, 1, 1])])
                .is_err()
        );
    }

    #[test]
    fn quantized_rows_are_dequantized_with_their_own_scale() {
        let (q, k) = (t(&[1, 1, 1, 2], &[10i8, 20]), t(&[1, 2, 1, 2], &[1i8, 2, 3, 4]));
        let (zero, one) = (t(&[1, 1, 1, 1], &[10i8]), t(&[1, 1, 1, 1], &[0.1f32]));
        let (zeros, scales) = (t(&[1, 2, 1, 1], &[1i8, 3]), t(&[1, 2, 1, 1], &[1f32, 2.0]));
        let mut args = vec![
            a(&q),
            a(&k),
            a(&k),
            int(1),
            Arg::None,
            Arg::Double(0.0),
            Arg::Bool(false),
            Arg::Double(1.0),
        ];
        args.extend([a(&zero), a(&one), a(&zeros), a(&scales), a(&zeros), a(&scales)]);
        let r = call("llama::custom_quantized_sdpa.out", &args, out(Float, &[1, 1, 1, 2])).unwrap();
        // The query is (0, 1), keys and values are (0, 1) and (0, 2).
        let p = 1.0 / (1.0 + 1f64.exp());
        close(r.as_slice().unwrap(), &[0.0, p + 2.0 * (1.0 - p)]);
        args.truncate(8);
        assert!(call("llama::custom_quantized_sdpa.out", &args, out(Float, &[1, 1, 1, 2])).is_err());
    }
}
