//! Recurrent networks, unrolled over sequences of static length.

use super::Table;
use super::When::Always;
use super::product::emit_linear;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter};
use pteron_exported::{ExportedNode, Size, VarId};

pub(super) const RULES: Table = &[
    ("aten.lstm", Always, lstm),
    ("aten.gru", Always, gru),
    ("aten.rnn_tanh", Always, rnn_tanh),
    ("aten.rnn_relu", Always, rnn_relu),
    ("aten.lstm_cell", Always, lstm_cell),
    ("aten.gru_cell", Always, gru_cell),
];

/// The weights of one layer in one direction.
struct Weights {
    input: VarId,
    hidden: VarId,
    input_bias: Option<VarId>,
    hidden_bias: Option<VarId>,
    /// The matrix that projects an LSTM's hidden state, if it has one.
    projection: Option<VarId>,
}

/// The state between steps: the hidden state, and for an LSTM the cell state.
type State = (VarId, Option<VarId>);

/// One step: computes the next state from the input's contribution to the gates and the previous state.
type Cell = fn(&mut Rewriter<'_>, &ExportedNode, VarId, State, &Weights) -> Result<State>;

fn lstm(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let states = cx.tensors(node, "hx")?;
    match states[..] {
        [h, c] => unroll_layers(cx, node, h, Some(c), lstm_step),
        _ => cx.fail(node, "an LSTM has two states"),
    }
}

fn gru(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let h = cx.tensor(node, "hx")?;
    unroll_layers(cx, node, h, None, gru_step)
}

fn rnn_tanh(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let h = cx.tensor(node, "hx")?;
    unroll_layers(cx, node, h, None, |cx, node, x, s, w| rnn_step(cx, node, x, s, w, "aten.tanh.default"))
}

fn rnn_relu(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let h = cx.tensor(node, "hx")?;
    unroll_layers(cx, node, h, None, |cx, node, x, s, w| rnn_step(cx, node, x, s, w, "aten.relu.default"))
}

fn unroll_layers(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    h: VarId,
    c: Option<VarId>,
    cell: Cell,
) -> Result<Outcome> {
    if !node.target.ends_with(".input") {
        return cx.fail(node, "a packed sequence");
    }
    if cx.bool(node, "train", false)? && cx.float(node, "dropout", 0.0)? > 0.0 {
        return cx.fail(node, "a dropout of training: export the model after `model.eval()`");
    }
    let params = cx.tensors(node, "params")?;
    let biases = cx.bool(node, "has_biases", true)?;
    let layers = cx.int(node, "num_layers", 1)?.max(0) as usize;
    let directions = if cx.bool(node, "bidirectional", false)? { 2 } else { 1 };
    let batch_first = cx.bool(node, "batch_first", false)?;
    let plain = if biases { 4 } else { 2 };
    let cells = layers.saturating_mul(directions);
    let projects = c.is_some() && params.len() == cells.saturating_mul(plain + 1);
    let each = if projects { plain + 1 } else { plain };
    if params.len() != cells.saturating_mul(each) {
        return cx.fail(node, format!("{} weights for {cells} cells", params.len()));
    }
    let mut x = cx.tensor(node, "input")?;
    let rank = cx.spec(node, x)?.rank();
    if !(2..=3).contains(&rank) || [Some(h), c].into_iter().flatten().any(|v| cx.spec_of(v).rank() != rank) {
        return cx.fail(node, "its sequences and states are not all matrices, or all batches of them");
    }
    let single = rank == 2;
    let mut states = (h, c);
    if single {
        x = cx.unsqueeze(node, x, 1)?;
        states = (cx.unsqueeze(node, h, 1)?, c.map(|c| cx.unsqueeze(node, c, 1)).transpose()?);
    } else if batch_first {
        x = cx.permute(x, &[1, 0, 2]);
    }
    let Some(steps) = cx.spec_of(x).sizes[0].known() else {
        return cx.fail(node, "the length of its sequence is not known: export it with a fixed one");
    };
    cx.check_unrolled_size(node, steps, 20 * params.len().max(1))?;
    let (mut last_h, mut last_c) = (Vec::new(), Vec::new());
    for layer in 0..layers {
        let mut ways = Vec::new();
        for direction in 0..directions {
            let index = layer * directions + direction;
            let own = &params[index * each..(index + 1) * each];
            let weights = Weights {
                input: own[0],
                hidden: own[1],
                input_bias: biases.then(|| own[2]),
                hidden_bias: biases.then(|| own[3]),
                projection: projects.then(|| own[plain]),
            };
            let pick = |cx: &mut Rewriter<'_>, v: VarId| cx.select(v, 0, index as i64);
            let start = (pick(cx, states.0), states.1.map(|c| pick(cx, c)));
            let gates = emit_linear(cx, x, weights.input, weights.input_bias);
            let (way, end) = unroll_steps(cx, node, gates, start, &weights, (steps, direction == 1, cell))?;
            ways.push(way);
            last_h.push(cx.unsqueeze(node, end.0, 0)?);
            if let Some(c) = end.1 {
                last_c.push(cx.unsqueeze(node, c, 0)?);
            }
        }
        x = cx.cat(&ways, 2);
    }
    let mut outputs = vec![x, cx.cat(&last_h, 0)];
    if !last_c.is_empty() {
        outputs.push(cx.cat(&last_c, 0));
    }
    if single {
        for v in &mut outputs {
            *v = cx.squeeze(node, *v, 1)?;
        }
    } else if batch_first {
        outputs[0] = cx.permute(outputs[0], &[1, 0, 2]);
    }
    for (&old, new) in node.outputs.iter().zip(outputs) {
        cx.replace(old, new);
    }
    Ok(Outcome::Replaced)
}

fn unroll_steps(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    gates: VarId,
    start: State,
    weights: &Weights,
    (steps, backwards, cell): (i64, bool, Cell),
) -> Result<(VarId, State)> {
    let mut state = start;
    let mut outputs = vec![state.0; steps.max(0) as usize];
    for i in 0..steps {
        let at = if backwards { steps - 1 - i } else { i };
        let of_input = cx.select(gates, 0, at);
        state = cell(cx, node, of_input, state, weights)?;
        outputs[at as usize] = state.0;
    }
    let rows: Vec<VarId> = outputs.into_iter().map(|h| cx.unsqueeze(node, h, 0)).collect::<Result<_>>()?;
    Ok((cx.cat(&rows, 0), state))
}

/// Splits the last dimension into equal parts.
fn split_equally(cx: &mut Rewriter<'_>, node: &ExportedNode, x: VarId, count: i64) -> Result<Vec<VarId>> {
    let Some(dim) = cx.spec_of(x).rank().checked_sub(1) else {
        return cx.fail(node, "its gates have no dimensions");
    };
    let Some(width) = cx.size_of(node, x, dim)?.known() else {
        return cx.fail(node, "the width of its gates is not known");
    };
    let width = width / count;
    (0..count)
        .map(|i| {
            cx.slice(
                node,
                x,
                dim,
                (&Size::Int(i.saturating_mul(width)), &Size::Int((i + 1).saturating_mul(width))),
            )
        })
        .collect()
}

fn lstm_step(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    state: State,
    w: &Weights,
) -> Result<State> {
    let (h, Some(c)) = state else { return cx.fail(node, "an LSTM without a cell") };
    let recurrent = emit_linear(cx, h, w.hidden, w.hidden_bias);
    let gates = cx.binary("aten.add.Tensor", recurrent, x);
    let [i, f, g, o] = split_equally(cx, node, gates, 4)?[..] else {
        return cx.fail(node, "it has no four gates");
    };
    let i = cx.unary("aten.sigmoid.default", i);
    let f = cx.unary("aten.sigmoid.default", f);
    let g = cx.unary("aten.tanh.default", g);
    let o = cx.unary("aten.sigmoid.default", o);
    let remembered = cx.binary("aten.mul.Tensor", f, c);
    let added = cx.binary("aten.mul.Tensor", i, g);
    let c = cx.binary("aten.add.Tensor", remembered, added);
    let shown = cx.unary("aten.tanh.default", c);
    let h = cx.binary("aten.mul.Tensor", o, shown);
    Ok((w.projection.map_or(h, |projection| emit_linear(cx, h, projection, None)), Some(c)))
}

fn gru_step(
    cx: &mut Rewriter<'_>,
    node: &ExportedNode,
    x: VarId,
    state: State,
    w: &Weights,
) -> Result<State> {
    let h = state.0;
    let recurrent = emit_linear(cx, h, w.hidden, w.hidden_bias);
    let [xr, xz, xn] = split_equally(cx, node, x, 3)?[..] else {
        return cx.fail(node, "it has no three gates");
    };
    let [hr, hz, hn] = split_equally(cx, node, recurrent, 3)?[..] else {
        return cx.fail(node, "it has no three gates");
    };
    let r = cx.binary("aten.add.Tensor", xr, hr);
    let r = cx.unary("aten.sigmoid.default", r);
    let z = cx.binary("aten.add.Tensor", xz, hz);
    let z = cx.unary("aten.sigmoid.default", z);
    let reset = cx.binary("aten.mul.Tensor", r, hn);
    let n = cx.binary("aten.add.Tensor", xn, reset);
    let n = cx.unary("aten.tanh.default", n);
    let way = cx.binary("aten.sub.Tensor", h, n);
    let part = cx.binary("aten.mul.Tensor", way, z);
    Ok((cx.binary("aten.add.Tensor", part, n), None))
}

fn rnn_step(
    cx: &mut Rewriter<'_>,
    _: &ExportedNode,
    x: VarId,
    state: State,
    w: &Weights,
    activation: &'static str,
) -> Result<State> {
    let recurrent = emit_linear(cx, state.0, w.hidden, w.hidden_bias);
    let sum = cx.binary("aten.add.Tensor", recurrent, x);
    Ok((cx.unary(activation, sum), None))
}

fn cell_weights(cx: &Rewriter<'_>, node: &ExportedNode) -> Result<Weights> {
    Ok(Weights {
        input: cx.tensor(node, "w_ih")?,
        hidden: cx.tensor(node, "w_hh")?,
        input_bias: cx.optional_tensor(node, "b_ih"),
        hidden_bias: cx.optional_tensor(node, "b_hh"),
        projection: None,
    })
}

fn lstm_cell(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let weights = cell_weights(cx, node)?;
    let x = cx.tensor(node, "input")?;
    let [h, c] = cx.tensors(node, "hx")?[..] else { return cx.fail(node, "an LSTM has two states") };
    let gates = emit_linear(cx, x, weights.input, weights.input_bias);
    let (h, c) = lstm_step(cx, node, gates, (h, Some(c)), &weights)?;
    for (&old, new) in node.outputs.iter().zip([Some(h), c].into_iter().flatten()) {
        cx.replace(old, new);
    }
    Ok(Outcome::Replaced)
}

fn gru_cell(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let weights = cell_weights(cx, node)?;
    let (x, h) = (cx.tensor(node, "input")?, cx.tensor(node, "hx")?);
    let gates = emit_linear(cx, x, weights.input, weights.input_bias);
    let (h, _) = gru_step(cx, node, gates, (h, None), &weights)?;
    cx.replace_node(node, h)
}
