//! Pairwise distances, and sampling grids.

use super::Table;
use super::When::{Always, NoKernel};
use super::reduce::vector_norm;
use super::windows::static_size;
use crate::Result;
use crate::rewrite::{Outcome, Rewriter, broadcast_sizes};
use pteron_exported::{Argument, ExportedNode, Size};
use pteron_tensor::Scalar;

pub(super) const RULES: Table = &[
    ("aten.pairwise_distance", Always, pairwise_distance),
    ("aten.cdist", NoKernel, cdist),
    ("aten._cdist_forward", NoKernel, cdist),
    ("aten._euclidean_dist", NoKernel, cdist),
    ("aten.pdist", NoKernel, pdist),
    ("aten.grid_sampler", Always, grid_sampler),
    ("aten.affine_grid_generator", Always, affine_grid),
];

fn pairwise_distance(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "x1")?, cx.tensor(node, "x2")?);
    let kind = (cx.float(node, "p", 2.0)?, cx.float(node, "eps", 1e-6)?, cx.bool(node, "keepdim", false)?);
    let new = super::loss::distance(cx, a, b, kind);
    cx.replace_node(node, new)
}

/// The distance from every row of `x1` to every row of `x2`.
fn cdist(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (a, b) = (cx.tensor(node, "x1")?, cx.tensor(node, "x2")?);
    let p = cx.float(node, "p", 2.0)?;
    let (x, y) = (cx.spec(node, a)?, cx.spec(node, b)?);
    if x.rank() < 2 || y.rank() < 2 {
        return cx.fail(node, "it takes matrices");
    }
    // The kernel requires both operands to have the same batch sizes.
    let same_batch = x.sizes[..x.rank() - 2] == y.sizes[..y.rank() - 2];
    if same_batch && node.target.starts_with("aten.cdist") {
        let args = vec![
            ("x1", Argument::Var(a)),
            ("x2", Argument::Var(b)),
            ("p", Argument::Float(p)),
            ("compute_mode", node.arg("compute_mode").cloned().unwrap_or(Argument::None)),
        ];
        return Ok(cx.retarget(node, "aten._cdist_forward.default", args));
    }
    let (down, across) = (cx.unsqueeze(node, a, x.rank() - 1)?, cx.unsqueeze(node, b, y.rank() - 2)?);
    let way = cx.sub(down, across);
    let mut sizes = broadcast_sizes(&x.sizes[..x.rank() - 2], &y.sizes[..y.rank() - 2]);
    sizes.extend([x.sizes[x.rank() - 2].clone(), y.sizes[y.rank() - 2].clone()]);
    let new = vector_norm(cx, way, p, &[sizes.len()], false);
    cx.replace_node(node, new)
}

/// The distances between all pairs of rows `i < j`.
fn pdist(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (x, p) = (cx.tensor(node, "self")?, cx.float(node, "p", 2.0)?);
    let rows = static_size(cx, node, cx.spec(node, x)?.sizes.first())?;
    if rows > 4096 {
        return cx.fail(node, "it compares more than 4096 rows");
    }
    let pairs: Vec<(usize, usize)> = (0..rows).flat_map(|i| (i + 1..rows).map(move |j| (i, j))).collect();
    let first = cx.index_constant(pairs.iter().map(|p| p.0), &[pairs.len()])?;
    let second = cx.index_constant(pairs.iter().map(|p| p.1), &[pairs.len()])?;
    let (a, b) = (cx.index_select(x, 0, first), cx.index_select(x, 0, second));
    let way = cx.sub(a, b);
    let new = vector_norm(cx, way, p, &[1], false);
    cx.replace_node(node, new)
}

/// Dispatches to the 2-d or the 3-d kernel by rank.
fn grid_sampler(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let x = cx.tensor(node, "input")?;
    let mut same = node.clone();
    same.target = match cx.spec(node, x)?.rank() {
        4 => "aten.grid_sampler_2d.default".into(),
        _ => "aten.grid_sampler_3d.default".into(),
    };
    cx.push_node(same);
    Ok(Outcome::Replaced)
}

/// The points of a regular grid over -1 to 1, transformed by one affine matrix for each image.
fn affine_grid(cx: &mut Rewriter<'_>, node: &ExportedNode) -> Result<Outcome> {
    let (theta, want) = (cx.tensor(node, "theta")?, cx.result_spec(node)?);
    let Some(space) = want.rank().checked_sub(2).filter(|s| matches!(s, 2 | 3)) else {
        return cx.fail(node, "it makes no grid of points");
    };
    let corners = cx.bool(node, "align_corners", false)?;
    let sizes: Vec<usize> =
        want.sizes[1..=space].iter().map(|s| static_size(cx, node, Some(s))).collect::<Result<_>>()?;
    cx.check_table_size(node, &sizes)?;
    let count: usize = sizes.iter().product();
    let place = |i: usize, size: usize| {
        let ends = if size > 1 { -1.0 + 2.0 * i as f64 / (size - 1) as f64 } else { 0.0 };
        if corners { ends } else { ends * (size as f64 - 1.0) / size as f64 }
    };
    let mut points = Vec::with_capacity(count * (space + 1));
    for i in 0..count {
        // Coordinates are listed from the fastest-varying dimension to the slowest.
        let mut rest = i;
        for &size in sizes.iter().rev() {
            points.push(Scalar::Double(place(rest % size, size)));
            rest /= size;
        }
        points.push(Scalar::Double(1.0));
    }
    let base = cx.constant(&points, want.dtype, &[1, count, space + 1])?;
    let batch = want.sizes[0].clone();
    let base = cx.expand(node, base, vec![batch, Size::Int(count as i64), Size::Int(space as i64 + 1)])?;
    let theta = cx.transpose(theta);
    let grid = cx.matmul(base, theta);
    let new = cx.view(node, grid, want.sizes)?;
    cx.replace_node(node, new)
}
