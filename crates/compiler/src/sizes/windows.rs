//! Sizes of operators that read windows of images or signals, and of padding.

use super::NodeArgs;
use pteron_exported::{Argument, Size, SymOp};

/// The sizes of the first result of the operator `name`, a convolution, pooling or the like.
pub(super) fn windowed_sizes(args: &NodeArgs<'_>, name: &str) -> Option<Vec<Size>> {
    match name {
        "convolution" => convolved_sizes(args, is_true(args, "transposed")),
        name if name.starts_with("conv") => convolved_sizes(args, name.contains("transpose")),
        name if name.contains("_pool") => pooled_sizes(args, name),
        _ => padded_sizes(args),
    }
}

/// The sliding windows of a convolution or pooling.
struct Windows {
    kernel: Vec<Size>,
    stride: Vec<i64>,
    padding: Vec<i64>,
    dilation: Vec<i64>,
    /// Whether the last window may be cut off.
    ceil: bool,
}

impl Windows {
    fn window_count(&self, size: &Size, dim: usize) -> Option<Size> {
        let of = |list: &[i64]| list.get(dim).or(list.last()).copied();
        let (stride, padding, dilation) = (of(&self.stride)?, of(&self.padding)?, of(&self.dilation)?);
        let kernel = self.kernel.get(dim).or(self.kernel.last())?.known()?;
        let reach = dilation.checked_mul(kernel.checked_sub(1)?)?;
        let room = padding.checked_mul(2)?.checked_sub(reach)?.checked_sub(1)?;
        if stride < 1 {
            return None;
        }
        if !self.ceil {
            let room = size.add(&Size::Int(room));
            return Some(room.combine(SymOp::FloorDiv, &Size::Int(stride)).add(&Size::Int(1)));
        }
        let size = size.known()?;
        let count = size.checked_add(room)?.checked_add(stride - 1)?.div_euclid(stride).checked_add(1)?;
        // A window that is cut off begins in the image or in the padding before it.
        let is_past = count.checked_sub(1)?.checked_mul(stride)? >= size.checked_add(padding)?;
        Some(Size::Int(count - i64::from(is_past)))
    }
}

fn is_true(args: &NodeArgs<'_>, name: &str) -> bool {
    matches!(args.node.arg(name), Some(Argument::Bool(true) | Argument::Int(1)))
}

/// A list of integers; `default` if it is absent or empty.
fn int_list(args: &NodeArgs<'_>, name: &str, default: &[i64]) -> Option<Vec<i64>> {
    match args.node.arg(name) {
        None | Some(Argument::None) => Some(default.to_vec()),
        Some(Argument::Int(number)) => Some(vec![*number]),
        Some(_) => args.known_ints(name).map(|list| if list.is_empty() { default.to_vec() } else { list }),
    }
}

fn convolved_sizes(args: &NodeArgs<'_>, transposed: bool) -> Option<Vec<Size>> {
    let (mut x, weight) = (args.operand_sizes()?, args.tensor_sizes("weight")?);
    if x.len() != weight.len() || x.len() < 3 {
        return None;
    }
    let same = match args.node.arg("padding") {
        Some(Argument::Str(padding)) => padding == "same",
        _ => false,
    };
    let padding = match args.node.arg("padding") {
        Some(Argument::Str(_)) => vec![0],
        _ => int_list(args, "padding", &[0])?,
    };
    let (stride, dilation) = (int_list(args, "stride", &[1])?, int_list(args, "dilation", &[1])?);
    let windows = Windows { kernel: weight[2..].to_vec(), stride, padding, dilation, ceil: false };
    if transposed {
        let added = int_list(args, "output_padding", &[0])?;
        x[1] = weight[1].mul(&Size::Int(args.int_argument("groups").unwrap_or(1)));
        for (dim, size) in x[2..].iter_mut().enumerate() {
            *size = windows.transposed_size(size, dim, added.get(dim).or(added.last()).copied()?)?;
        }
        return Some(x);
    }
    x[1] = weight[0].clone();
    for (dim, size) in x[2..].iter_mut().enumerate().filter(|_| !same) {
        *size = windows.window_count(size, dim)?;
    }
    Some(x)
}

impl Windows {
    /// The output size of dimension `dim` of a transposed convolution of `size` inputs; `added` is the output padding.
    fn transposed_size(&self, size: &Size, dim: usize, added: i64) -> Option<Size> {
        let of = |list: &[i64]| list.get(dim).or(list.last()).copied();
        let (stride, padding, dilation) = (of(&self.stride)?, of(&self.padding)?, of(&self.dilation)?);
        let reach = dilation.checked_mul(self.kernel.get(dim)?.known()?.checked_sub(1)?)?;
        let rest = reach.checked_sub(padding.checked_mul(2)?)?.checked_add(added)?.checked_add(1)?;
        Some(size.add(&Size::Int(-1)).mul(&Size::Int(stride)).add(&Size::Int(rest)))
    }
}

fn pooled_sizes(args: &NodeArgs<'_>, name: &str) -> Option<Vec<Size>> {
    let mut x = args.operand_sizes()?;
    let space = ["1d", "2d", "3d"].iter().position(|space| name.contains(space))? + 1;
    let kernel = int_list(args, "kernel_size", &[])?;
    let windows = Windows {
        stride: int_list(args, "stride", &kernel)?,
        padding: int_list(args, "padding", &[0])?,
        dilation: int_list(args, "dilation", &[1])?,
        kernel: kernel.into_iter().map(Size::Int).collect(),
        ceil: is_true(args, "ceil_mode"),
    };
    let first = x.len().checked_sub(space)?;
    for (dim, size) in x[first..].iter_mut().enumerate() {
        *size = windows.window_count(size, dim)?;
    }
    Some(x)
}

fn padded_sizes(args: &NodeArgs<'_>) -> Option<Vec<Size>> {
    let mut x = args.operand_sizes()?;
    let pads = args.known_ints("pad").or_else(|| args.known_ints("padding"))?;
    for (size, pair) in x.iter_mut().rev().zip(pads.chunks_exact(2)) {
        *size = size.add(&Size::Int(pair[0].checked_add(pair[1])?));
    }
    Some(x)
}
