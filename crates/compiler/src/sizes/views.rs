//! Sizes of views and of other operators that move elements.

use super::{NodeArgs, wrap_dim};
use pteron_exported::{Argument, IntArgument, Size, SymOp, VarType};

/// The sizes of result number `result` of the view operator `name`.
pub(super) fn view_sizes(args: &NodeArgs<'_>, name: &str, result: usize) -> Option<Vec<Size>> {
    let mut x = args.operand_sizes();
    match name {
        "permute" => {
            let (x, dims) = (x?, args.known_ints("dims")?);
            dims.iter().map(|&dim| x.get(wrap_dim(dim, x.len())?).cloned()).collect()
        }
        "t" => x.map(|x| x.into_iter().rev().collect()),
        "transpose" => {
            let x = x.as_mut()?;
            let [a, b] = ["dim0", "dim1"].map(|name| wrap_dim(args.int_argument(name)?, x.len()));
            x.swap(a?, b?);
            Some(x.clone())
        }
        "unsqueeze" => {
            let mut x = x?;
            x.insert(wrap_dim(args.int_argument("dim")?, x.len() + 1)?, Size::Int(1));
            Some(x)
        }
        "squeeze" => squeezed_sizes(args, x?),
        "slice" => sliced_sizes(args, x?),
        "select" => {
            let mut x = x?;
            x.remove(wrap_dim(args.int_argument("dim")?, x.len())?);
            Some(x)
        }
        "unbind" => {
            let mut x = x?;
            x.remove(wrap_dim(args.int_argument("dim").unwrap_or(0), x.len())?);
            Some(x)
        }
        "expand" | "broadcast_to" => {
            let (x, sizes) = (x?, args.sizes_argument("size")?);
            let new = sizes.len().checked_sub(x.len())?;
            let size =
                |(i, size): (usize, Option<Size>)| size.or_else(|| x.get(i.checked_sub(new)?).cloned());
            sizes.into_iter().enumerate().map(size).collect()
        }
        "repeat" => {
            let (x, repeats) = (x?, args.sizes_argument("repeats")?);
            let new = repeats.len().checked_sub(x.len())?;
            let one = Size::Int(1);
            let size = |(i, times): (usize, Option<Size>)| {
                Some(i.checked_sub(new).map_or(&one, |i| &x[i]).mul(&times?))
            };
            repeats.into_iter().enumerate().map(size).collect()
        }
        "stack" => {
            let Some(Argument::Vars(parts)) = args.node.arg("tensors") else { return None };
            let mut sizes = args.program.spec(*parts.first()?)?.sizes.clone();
            let dim = wrap_dim(args.int_argument("dim").unwrap_or(0), sizes.len() + 1)?;
            sizes.insert(dim, Size::Int(parts.len() as i64));
            Some(sizes)
        }
        "movedim" => {
            let mut x = x?;
            let [from, to] =
                ["source", "destination"].map(|name| wrap_dim(args.int_argument(name)?, x.len()));
            let size = x.remove(from?);
            x.insert(to?, size);
            Some(x)
        }
        "glu" => {
            let mut x = x?;
            let dim = wrap_dim(args.int_argument("dim").unwrap_or(-1), x.len())?;
            x[dim] = x[dim].combine(SymOp::FloorDiv, &Size::Int(2));
            Some(x)
        }
        "pixel_shuffle" => pixel_shuffle_sizes(x?, args.int_argument("upscale_factor")?, true),
        "pixel_unshuffle" => pixel_shuffle_sizes(x?, args.int_argument("downscale_factor")?, false),
        "unfold" => {
            let mut x = x?;
            let dim = wrap_dim(args.int_argument("dimension")?, x.len())?;
            let (size, step) =
                (args.int_argument("size")?, args.int_argument("step").filter(|&step| step > 0)?);
            let room = x[dim].add(&Size::Int(size.checked_neg()?));
            x[dim] = room.combine(SymOp::FloorDiv, &Size::Int(step)).add(&Size::Int(1));
            x.push(Size::Int(size));
            Some(x)
        }
        "view" | "reshape" => viewed_sizes(args, x?),
        "flatten" => {
            let mut x = x?;
            let end = |name, default| wrap_dim(args.int_argument(name).unwrap_or(default), x.len().max(1));
            let (first, last) = (end("start_dim", 0)?, end("end_dim", -1)?);
            if first > last {
                return None;
            }
            let range = first..(last + 1).min(x.len());
            let flat = x[range.clone()].iter().fold(Size::Int(1), |n, size| n.mul(size));
            x.splice(range, [flat]);
            Some(x)
        }
        "split" | "split_with_sizes" => split_sizes(args, x?, result),
        _ => None,
    }
}

/// The sizes of images whose channels become blocks of pixels, or the reverse.
fn pixel_shuffle_sizes(mut x: Vec<Size>, factor: i64, up: bool) -> Option<Vec<Size>> {
    let first = x.len().checked_sub(3).filter(|_| factor > 0)?;
    let block = Size::Int(factor.checked_mul(factor)?);
    let (channels, pixels) = x[first..].split_at_mut(1);
    let (grown, by, shrunk, among) = match up {
        true => (pixels, Size::Int(factor), channels, block),
        false => (channels, block, pixels, Size::Int(factor)),
    };
    grown.iter_mut().for_each(|size| *size = size.mul(&by));
    shrunk.iter_mut().for_each(|size| *size = size.combine(SymOp::FloorDiv, &among));
    Some(x)
}

fn squeezed_sizes(args: &NodeArgs<'_>, mut x: Vec<Size>) -> Option<Vec<Size>> {
    if args.node.arg("dim").is_none() {
        // A size that is not known may turn out to be 1.
        let is_known = x.iter().all(|size| size.known().is_some());
        x.retain(|size| size.known() != Some(1));
        return is_known.then_some(x);
    }
    let dims = args.known_ints("dim").or_else(|| Some(vec![args.int_argument("dim")?]))?;
    let dims = dims.into_iter().map(|dim| wrap_dim(dim, x.len())).collect::<Option<Vec<_>>>()?;
    let mut dim = 0;
    x.retain(|size| {
        dim += 1;
        !dims.contains(&(dim - 1)) || size.known() != Some(1)
    });
    Some(x)
}

fn sliced_sizes(args: &NodeArgs<'_>, mut x: Vec<Size>) -> Option<Vec<Size>> {
    let dim = wrap_dim(args.int_argument("dim").unwrap_or(0), x.len())?;
    let step = args.int_argument("step").unwrap_or(1);
    let absent = |name| matches!(args.node.arg(name), None | Some(Argument::None));
    let is_full = |name, open: i64| absent(name) || args.int_argument(name) == Some(open);
    if is_full("start", 0) && is_full("end", i64::MAX) && step == 1 {
        return Some(x);
    }
    let n = match (x[dim].known(), args.int_argument("start"), args.int_argument("end")) {
        (Some(n), ..) => n,
        // Elements of a dimension of unknown size from an offset that it may not have.
        (None, ..) => return None,
    };
    let end_of = |name, open| match absent(name) {
        true => Some(open),
        false => args.int_argument(name).map(|at| if at < 0 { at.saturating_add(n) } else { at }.clamp(0, n)),
    };
    let (start, end) = (end_of("start", 0)?, end_of("end", n)?);
    let room = end.saturating_sub(start).max(0);
    x[dim] = Size::Int(room.checked_add(step - 1)?.checked_div(step.max(1))?);
    Some(x)
}

fn viewed_sizes(args: &NodeArgs<'_>, x: Vec<Size>) -> Option<Vec<Size>> {
    let sizes = args.sizes_argument("size").or_else(|| args.sizes_argument("shape"))?;
    let one = Size::Int(1);
    let product = |sizes: &mut dyn Iterator<Item = &Size>| sizes.fold(one.clone(), |a, b| a.mul(b));
    let rest = product(&mut sizes.iter().flatten());
    if sizes.iter().filter(|size| size.is_none()).count() > 1 {
        return None;
    }
    let left = || product(&mut x.iter()).combine(SymOp::FloorDiv, &rest);
    Some(sizes.iter().map(|size| size.clone().unwrap_or_else(left)).collect())
}

/// The sizes of the part `result` that a split returns.
fn split_sizes(args: &NodeArgs<'_>, mut x: Vec<Size>, result: usize) -> Option<Vec<Size>> {
    let dim = wrap_dim(args.int_argument("dim").unwrap_or(0), x.len())?;
    let sizes = args.node.arg("split_sizes").or_else(|| args.node.arg("split_size"))?;
    x[dim] = match sizes {
        Argument::Ints(items) => match items.get(result)? {
            IntArgument::Int(size) => Size::Int(*size),
            IntArgument::Var(var) => match &args.program.var(*var).ty {
                VarType::Int(size) => size.clone(),
                _ => return None,
            },
        },
        Argument::Int(each) => {
            let before = each.checked_mul(i64::try_from(result).ok()?)?;
            Size::Int((x[dim].known()?.checked_sub(before)?).min(*each))
        }
        _ => return None,
    };
    Some(x)
}
