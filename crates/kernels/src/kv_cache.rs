//! Updates of the key-value caches of language models, `[batch, sequence, heads, width]`.

use crate::support::convert::indices;
use crate::support::copy::copy_into;
use crate::support::dims::to_size;
use crate::support::layout::Layout;
use pteron_operator::{Args, DtypeSet, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{TensorView, TensorViewMut};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "llama::update_cache.out(Tensor value, Tensor(a!) cache, SymInt start_pos, *, Tensor(b!) out) -> Tensor(b!)",
        DtypeSet::ALL,
        update_cache,
    ),
    Operator::new(
        "llama::update_quantized_cache.out(Tensor value, Tensor(a!) cache, SymInt start_pos, *, Tensor(b!) out) -> Tensor(b!)",
        DtypeSet::ALL,
        update_cache,
    ),
    Operator::new(
        "llama::update_cache_with_indices.out(Tensor value, Tensor(a!) cache, SymInt start_pos, Tensor indices, *, Tensor(b!) out) -> Tensor(b!)",
        DtypeSet::ALL,
        update_cache_with_indices,
    ),
];

/// Fails unless a value has the type of the cache and, except for the sequence length, the sizes of the cache.
fn check_value(cache: &TensorViewMut<'_>, value: &TensorView<'_>) -> Result<()> {
    let (c, v) = (cache.sizes(), value.sizes());
    ensure!(c.rank() == 4, "cache: expected four dimensions, found {}", cache.meta());
    ensure!(
        v.rank() == 4 && v[0] == c[0] && v[2..] == c[2..],
        "value: the shape {v} does not suit a cache of the shape {c}"
    );
    ensure!(
        value.dtype() == cache.dtype(),
        "value: expected a tensor of {}, as the cache is, found {}",
        cache.dtype(),
        value.dtype()
    );
    Ok(())
}

/// Writes `value` to a cache, from position `start` of the sequence on.
pub(crate) fn write_at(cache: &mut TensorViewMut<'_>, value: &TensorView<'_>, start: i64) -> Result<()> {
    check_value(cache, value)?;
    let (start, len, places) = (to_size("start_pos", start)?, value.sizes()[1], cache.sizes()[1]);
    ensure!(
        start.checked_add(len).is_some_and(|end| end <= places),
        "start_pos: {len} elements from position {start} on exceed a cache of {places} positions"
    );
    let into = Layout::of_tensor(cache.meta()).slice(1, start, len, 1);
    copy_into(value, &Layout::of_tensor(value.meta()), cache, &into)
}

/// Writes the value to the cache from position `start_pos` on. The argument `out` is a placeholder and is not
/// written.
fn update_cache(_: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    write_at(outs.tensor(0)?, &args.tensor("value")?, args.int("start_pos")?)
}

/// Writes each element of the value's sequence to the cache position given by `indices`, `[batch, sequence]`.
fn update_cache_with_indices(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let (value, list, cache) = (args.tensor("value")?, args.tensor("indices")?, outs.tensor(0)?);
    check_value(cache, &value)?;
    let (batch, len, places) = (value.sizes()[0], value.sizes()[1], cache.sizes()[1]);
    ensure!(
        **list.sizes() == [batch, len],
        "indices: expected the shape [{batch}, {len}], found {}",
        list.sizes()
    );
    let at = indices(ctx, "indices", &list)?;
    let bad = at.iter().find(|&&i| i < 0 || i as u64 >= places as u64);
    ensure!(bad.is_none(), "indices: {} is out of range for a cache of {places}", bad.unwrap_or(&0));
    let from = Layout::of_tensor(value.meta());
    let into = Layout::of_tensor(cache.meta());
    for (k, &place) in at.iter().enumerate() {
        let one = |l: Layout, i: usize| l.slice(0, k / len, 1, 1).slice(1, i, 1, 1);
        copy_into(&value, &one(from, k % len), cache, &one(into, place as usize))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, int, out, t};
    use pteron_operator::Result;
    use pteron_tensor::ScalarType::Float;
    use pteron_tensor::Tensor;

    fn update(value: &Tensor, cache: Tensor, start: i64, at: Option<&Tensor>) -> Result<Tensor> {
        let name = if at.is_some() { "update_cache_with_indices" } else { "update_cache" };
        let args: Vec<_> = [a(value), int(start)].into_iter().chain(at.map(a)).collect();
        let [cache, _] = call_many(&format!("llama::{name}.out"), &args, [cache, out(Float, &[1])])?;
        Ok(cache)
    }

    #[test]
    fn cache_positions_are_overwritten() {
        let value = t(&[2, 2, 1, 1], &[1f32, 2.0, 3.0, 4.0]);
        let cache = || t(&[2, 4, 1, 1], &[0f32; 8]);
        let r = update(&value, cache(), 1, None).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[0.0, 1.0, 2.0, 0.0, 0.0, 3.0, 4.0, 0.0]);
        let at = t(&[2, 2], &[3i64, 0, 1, 1]);
        let r = update(&value, cache(), 0, Some(&at)).unwrap();
        assert_eq!(r.storage::<f32>().unwrap(), &[2.0, 0.0, 0.0, 1.0, 0.0, 4.0, 0.0, 0.0]);
        for start in [3, -1, i64::MAX] {
            assert!(update(&value, cache(), start, None).is_err());
        }
        assert!(update(&value, cache(), 0, Some(&t(&[2, 2], &[0i64, 0, 0, 4]))).is_err());
        assert!(update(&t(&[1, 2, 1, 1], &[0f32; 2]), cache(), 0, None).is_err());
        assert!(update(&t(&[2, 2, 1, 1], &[0i32; 4]), cache(), 0, None).is_err());
    }
}
