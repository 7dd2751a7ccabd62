//! Sizes of operators that read windows of images or signals, and of padding.

use super::NodeArgs;
use ir::exported::{Argument, Size, SymOp};

/// The sizes of the first result of the operator `name`.
pub(super) fn sizes(given: &NodeArgs<'_>, name: &str) -> Option<Vec<Size>> {
    match name {
        "convolution" => convolved(given),
        "avg_pool2d" | "max_pool2d_with_indices" => pooled(given),
        _ => padded(given),
    }
}

/// How many windows fit into a dimension.
struct Windows {
    kernel: Vec<Size>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
}

impl Windows {
    fn count(&self, size: &Size, dim: usize) -> Option<Size> {
        let of = |list: &[i64]| list.get(dim).or(list.last()).copied();
        let (stride, padding, dilation) = (of(&self.stride)?, of(&self.padding)?, of(&self.dilation)?);
        let kernel = self.kernel.get(dim).or(self.kernel.last())?.known()?;
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?;
        let room = size.add(&Size::Int(padding.checked_mul(2)?.checked_sub(reach)?.checked_sub(1)?));
        Some(room.combine(SymOp::FloorDiv, &Size::Int(stride)).add(&Size::Int(1)))
    }
}

fn is_true(given: &NodeArgs<'_>, name: &str) -> bool {
    matches!(given.node.arg(name), Some(Argument::Bool(true) | Argument::Int(1)))
}

fn convolved(given: &NodeArgs<'_>) -> Option<Vec<Size>> {
    let (mut x, weight) = (given.own()?, given.tensor("weight")?);
    if is_true(given, "transposed") || x.len() != weight.len() {
        return None;
    }
    let windows = Windows {
        kernel: weight.get(2..)?.to_vec(),
        stride: given.known_ints("stride")?,
        padding: given.known_ints("padding")?,
        dilation: given.known_ints("dilation")?,
    };
    x[1] = weight[0].clone();
    for (dim, size) in x[2..].iter_mut().enumerate() {
        *size = windows.count(size, dim)?;
    }
    Some(x)
}

fn pooled(given: &NodeArgs<'_>) -> Option<Vec<Size>> {
    let mut x = given.own()?;
    if is_true(given, "ceil_mode") {
        return None;
    }
    let kernel = given.known_ints("kernel_size")?;
    let list = |name, default: &[i64]| match given.known_ints(name) {
        Some(list) if !list.is_empty() => list,
        _ => default.to_vec(),
    };
    let windows = Windows {
        stride: list("stride", &kernel),
        padding: list("padding", &[0]),
        dilation: list("dilation", &[1]),
        kernel: kernel.into_iter().map(Size::Int).collect(),
    };
    let first = x.len().checked_sub(2)?;
    for (dim, size) in x[first..].iter_mut().enumerate() {
        *size = windows.count(size, dim)?;
    }
    Some(x)
}

fn padded(given: &NodeArgs<'_>) -> Option<Vec<Size>> {
    let mut x = given.own()?;
    let pads = given.known_ints("pad").or_else(|| given.known_ints("padding"))?;
    for (size, pair) in x.iter_mut().rev().zip(pads.chunks_exact(2)) {
        *size = size.add(&Size::Int(pair[0].checked_add(pair[1])?));
    }
    Some(x)
}
