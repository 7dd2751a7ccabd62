//! The gated delta rule of linear attention (Yang et al., 2024: <https://arxiv.org/abs/2412.06464>).

use crate::support::convert::all_values;
use crate::support::rows::{expect_type, write_values};
use pteron_operator::{Args, DtypeSet, Error, KernelContext, Operator, Outs, Result, ensure};
use pteron_tensor::{ScalarType, Shape};

pub(crate) const OPERATORS: &[Operator] = &[
    Operator::new(
        "llama::gated_delta_rule.out(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor initial_state, *, Tensor(a!) out, Tensor(b!) final_state_out) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::of(&[ScalarType::Float]),
        gated_delta_rule,
    ),
    // The former name of the operator above.
    Operator::new(
        "llama::channelwise_gated_delta_rule.out(Tensor query, Tensor key, Tensor value, Tensor decay, Tensor beta, Tensor initial_state, *, Tensor(a!) out, Tensor(b!) final_state_out) -> (Tensor(a!), Tensor(b!))",
        DtypeSet::of(&[ScalarType::Float]),
        gated_delta_rule,
    ),
];

/// The sizes of a call. `query` is `[batch, heads * queries, steps, keys]`, `key` `[batch, heads, steps, keys]`, `value`
/// `[batch, heads, steps, values]`, the state `[batch, heads, keys, values]`.
struct Sizes {
    batch: usize,
    heads: usize,
    /// The number of query heads that share a key and value head.
    queries: usize,
    steps: usize,
    keys: usize,
    values: usize,
    /// The number of decay factors in a step: one, or one for each key element.
    decays: usize,
}

impl Sizes {
    fn from_args(args: &Args<'_>) -> Result<Self> {
        for index in 0..6 {
            expect_type(args.name(index), ScalarType::Float, args.meta(index)?.dtype())?;
        }
        let shape = |index: usize| -> Result<&Shape> { Ok(args.meta(index)?.sizes()) };
        let (&[_, all, ..], &[batch, heads, steps, keys], &[.., values]) =
            (&**shape(0)?, &**shape(1)?, &**shape(2)?)
        else {
            let (query, key, value) = (shape(0)?, shape(1)?, shape(2)?);
            let message =
                format!("query, key, value: expected four dimensions, found {query}, {key} and {value}");
            return Err(Error::invalid(message));
        };
        ensure!(
            heads > 0 && all.is_multiple_of(heads),
            "query: {all} heads cannot be divided among {heads} heads of keys"
        );
        let decays = if shape(3)?.rank() == 3 { 1 } else { keys };
        let with = |last: usize| [batch, heads, steps, last];
        let of_decay = if decays == 1 && shape(3)?.rank() == 3 { &with(0)[..3] } else { &with(keys)[..] };
        let expected: [&[usize]; 6] = [
            &[batch, all, steps, keys],
            &with(keys),
            &with(values),
            of_decay,
            &with(0)[..3],
            &[batch, heads, keys, values],
        ];
        for (index, expected) in expected.into_iter().enumerate() {
            let (name, actual) = (args.name(index), shape(index)?);
            ensure!(**actual == *expected, "{name}: expected the shape {expected:?}, found {actual}");
        }
        Ok(Self { batch, heads, queries: all / heads, steps, keys, values, decays })
    }
}

/// For each step, the state `S` of a head, a matrix of keys and values, decays (as a whole, or each key by a factor of its
/// own), and the value that it has for the step's key moves towards the step's value by `beta`:
/// `S' = D S + key (beta (value - (D S)^T key))^T`. The result is `S'^T query`.
fn gated_delta_rule(ctx: &KernelContext<'_>, args: &Args<'_>, outs: &mut Outs<'_>) -> Result<()> {
    let n = Sizes::from_args(args)?;
    let [out, state] = outs.tensors([0, 1])?;
    expect_type("out", ScalarType::Float, out.dtype())?;
    expect_type("final_state_out", ScalarType::Float, state.dtype())?;
    out.resize(&[n.batch, n.heads * n.queries, n.steps, n.values])?;
    state.resize(&[n.batch, n.heads, n.keys, n.values])?;
    let mut inputs = Vec::with_capacity(6);
    for index in 0..6 {
        inputs.push(all_values::<f32>(ctx, &args.tensor(index)?)?);
    }
    let inputs: Vec<&[f32]> = inputs.iter().map(|values| &**values).collect();
    // Heads are independent. The workspace of each holds its state, the row that the state moves by, and its results.
    let (of_state, of_out) = (n.keys * n.values, n.queries * n.steps * n.values);
    let part = of_state + n.values + of_out;
    let mut work = ctx.scratch::<f32>((n.batch * n.heads).saturating_mul(part))?;
    if part > 0 {
        ctx.pool().parallel_chunks_mut(&mut work, part, 1, &|head, work| {
            let (state, rest) = work.split_at_mut(of_state);
            let (delta, out) = rest.split_at_mut(n.values);
            let of = |index: usize, len: usize| &inputs[index][head * len..][..len];
            state.copy_from_slice(of(5, of_state));
            out.fill(0.0);
            let queries = of(0, n.queries * n.steps * n.keys);
            let (keys, values) = (of(1, n.steps * n.keys), of(2, n.steps * n.values));
            let (decays, betas) = (of(3, n.steps * n.decays), of(4, n.steps));
            for step in 0..n.steps {
                let key = &keys[step * n.keys..][..n.keys];
                let decay = &decays[step * n.decays..][..n.decays];
                advance(state, delta, key, &values[step * n.values..][..n.values], decay, betas[step]);
                for q in 0..n.queries {
                    let at = q * n.steps + step;
                    let to = &mut out[at * n.values..][..n.values];
                    for (row, &q) in state.chunks_exact(n.values.max(1)).zip(&queries[at * n.keys..]) {
                        to.iter_mut().zip(row).for_each(|(to, s)| *to += q * s);
                    }
                }
                pteron_pool::progress(of_state);
            }
        });
    }
    let heads = || work.chunks_exact(part.max(1));
    write_values::<f32>(ctx, state, |to| {
        let states = to.chunks_exact_mut(of_state.max(1)).zip(heads());
        states.for_each(|(to, head)| to.copy_from_slice(&head[..of_state]));
        Ok(())
    })?;
    write_values::<f32>(ctx, out, |to| {
        let results = to.chunks_exact_mut(of_out.max(1)).zip(heads());
        results.for_each(|(to, head)| to.copy_from_slice(&head[part - of_out..]));
        Ok(())
    })
}

/// Advances a head's state by one step. `delta` is workspace for a row of values.
fn advance(state: &mut [f32], delta: &mut [f32], key: &[f32], value: &[f32], decay: &[f32], beta: f32) {
    let width = value.len().max(1);
    let factor = |k: usize| decay[if decay.len() == 1 { 0 } else { k }];
    delta.fill(0.0);
    for (k, row) in state.chunks_exact_mut(width).enumerate() {
        let factor = factor(k);
        for (s, d) in row.iter_mut().zip(&mut *delta) {
            *s *= factor;
            *d += key[k] * *s;
        }
    }
    delta.iter_mut().zip(value).for_each(|(d, v)| *d = beta * (v - *d));
    for (row, key) in state.chunks_exact_mut(width).zip(key) {
        row.iter_mut().zip(&*delta).for_each(|(s, d)| *s += key * d);
    }
}

#[cfg(test)]
mod tests {
    use crate::support::call::{a, call_many, out, t};
    use pteron_tensor::ScalarType::Float;

    /// Two query heads share one head, with two steps of two keys and one value; expected values are computed by hand.
    #[test]
    fn states_move_towards_values() {
        let query = t(&[1, 2, 2, 2], &[1f32, 0.0, 1.0, 1.0, 0.0, 1.0, 2.0, 0.0]);
        let key = t(&[1, 1, 2, 2], &[1f32, 0.0, 0.0, 2.0]);
        let (value, beta) = (t(&[1, 1, 2, 1], &[3f32, 5.0]), t(&[1, 1, 2], &[1f32, 0.5]));
        let state = t(&[1, 1, 2, 1], &[8f32, 4.0]);
        let run = |decay: &pteron_tensor::Tensor, state: &pteron_tensor::Tensor| {
            let args = [a(&query), a(&key), a(&value), a(decay), a(&beta), a(state)];
            let outs = [out(Float, &[1, 2, 2, 1]), out(Float, &[1, 1, 2, 1])];
            call_many("llama::gated_delta_rule.out", &args, outs)
        };
        // The state is [3, 2] after the first step, and [1.5, 1 + 2 * 0.5 * (5 - 2)] after the second.
        let [result, last] = run(&t(&[1, 1, 2], &[0.5f32, 0.5]), &state).unwrap();
        assert_eq!(last.storage::<f32>().unwrap(), &[1.5, 4.0]);
        assert_eq!(result.storage::<f32>().unwrap(), &[3.0, 5.5, 2.0, 3.0]);
        // Each key decays by a factor of its own: [3, 4], then [3, 0 + 2 * 0.5 * 5].
        let [result, last] = run(&t(&[1, 1, 2, 2], &[0.5f32, 1.0, 1.0, 0.0]), &state).unwrap();
        assert_eq!(last.storage::<f32>().unwrap(), &[3.0, 5.0]);
        assert_eq!(result.storage::<f32>().unwrap(), &[3.0, 8.0, 4.0, 6.0]);
        assert!(run(&t(&[1, 1, 2, 1], &[0.5f32, 0.5]), &state).is_err());
        assert!(run(&t(&[1, 1, 2], &[0.5f32, 0.5]), &t(&[1, 1, 1, 2], &[8f32, 4.0])).is_err());
    }
}
