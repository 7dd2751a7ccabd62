//! The sizes of a call's first result, as far as its meaning determines them.

use crate::facts::{Convolution, Pool2d, ViewOf};
use crate::{Args, Meaning};
use pteron_tensor::Shape;

impl Meaning {
    /// The sizes of the first result of a call with these arguments; `None` if the meaning leaves them open.
    pub fn result_sizes(&self, args: &Args<'_>) -> Option<Shape> {
        let sizes = |index: usize| args.meta(index).ok().map(|meta| *meta.sizes());
        match self {
            Self::Elementwise(_) | Self::Where => {
                let mut all = (0..args.len()).filter_map(sizes);
                let first = all.next()?;
                all.try_fold(first, |a, b| broadcast(&a, &b))
            }
            Self::BatchNorm { .. }
            | Self::GroupNorm(_)
            | Self::LayerNorm { .. }
            | Self::Softmax(_)
            | Self::Not
            | Self::Equals(_)
            | Self::Quantize(_)
            | Self::Dequantize(_) => sizes(0),
            Self::Any(dim) => reduced_shape(&sizes(0)?, &[*dim], true),
            Self::Amax(dims) => reduced_shape(&sizes(0)?, dims, true),
            Self::Mean(dims) | Self::Variance(dims) => {
                let keep = args.schema().args.iter().position(|arg| arg.name == "keepdim")?;
                reduced_shape(&sizes(0)?, dims, args.bool(keep).ok()?)
            }
            Self::View(of) => of.result_sizes(&sizes(0)?),
            Self::MatMul(product) => {
                let weights = sizes(product.weights).filter(|weights| weights.rank() == 2)?;
                let mut x = sizes(product.x)?;
                *x.last_mut()? = weights[usize::from(!product.out_major)];
                Some(x)
            }
            Self::BatchMatMul => {
                let mut x = sizes(0)?;
                *x.last_mut()? = *sizes(1)?.last()?;
                Some(x)
            }
            Self::Convolution(of) => of.result_sizes(&sizes(0)?, &sizes(1)?),
            Self::Pool(of) => of.result_sizes(&sizes(0)?),
            Self::Reshape | Self::Concatenation(_) | Self::Fill(_) | Self::ChooseQParams(_) => None,
        }
    }
}

fn broadcast(a: &Shape, b: &Shape) -> Option<Shape> {
    let (mut long, short) = if a.rank() >= b.rank() { (*a, *b) } else { (*b, *a) };
    let shift = long.rank() - short.rank();
    for (d, &size) in short.iter().enumerate() {
        if long[shift + d] == 1 {
            long[shift + d] = size;
        }
    }
    Some(long)
}

fn reduced_shape(x: &Shape, dims: &[usize], keep: bool) -> Option<Shape> {
    let all = dims.is_empty();
    let sizes = x.iter().enumerate().filter_map(|(d, &size)| match all || dims.contains(&d) {
        true => keep.then_some(1),
        false => Some(size),
    });
    Shape::new(&sizes.collect::<Vec<_>>()).ok()
}

impl ViewOf {
    fn result_sizes(&self, x: &Shape) -> Option<Shape> {
        let mut sizes = *x;
        match self {
            Self::Permute(dims) => {
                for (size, &dim) in sizes.iter_mut().zip(dims) {
                    *size = *x.get(dim)?;
                }
            }
            Self::Select { dim, .. } => {
                sizes.get(*dim)?;
                sizes.remove(*dim);
            }
            Self::Slice { dim, start, end, step } => {
                *sizes.get_mut(*dim)? = end.saturating_sub(*start).div_ceil(*step);
            }
            Self::Expand => return None,
        }
        Some(sizes)
    }
}

/// The distance from the first to the last window position at stride 1; `None` if no window fits.
fn last_window_offset(padded: usize, kernel: usize, dilation: usize) -> Option<usize> {
    padded.checked_sub(dilation.checked_mul(kernel.checked_sub(1)?)?)?.checked_sub(1)
}

impl Convolution {
    fn result_sizes(&self, x: &Shape, weights: &Shape) -> Option<Shape> {
        let mut sizes = *x;
        if x.rank() != weights.rank() || x.rank() < 3 {
            return None;
        }
        sizes[1] = if self.transposed { weights[1].checked_mul(self.groups)? } else { weights[0] };
        for d in 2..x.rank() {
            let of = |list: &[usize]| list.get(d - 2).or(list.last()).copied();
            let (stride, padding, dilation) = (of(&self.stride)?, of(&self.padding)?, of(&self.dilation)?);
            let reach = dilation.checked_mul(weights[d].checked_sub(1)?)?;
            sizes[d] = if self.transposed {
                let full = x[d].checked_sub(1)?.checked_mul(stride)?.checked_add(reach)?;
                let added = of(&self.output_padding).unwrap_or(0).checked_add(1)?;
                full.checked_add(added)?.checked_sub(padding.checked_mul(2)?)?
            } else {
                let padded = x[d].checked_add(padding.checked_mul(2)?)?;
                last_window_offset(padded, weights[d], dilation)?.checked_div(stride)?.checked_add(1)?
            };
        }
        Some(sizes)
    }
}

impl Pool2d {
    fn result_sizes(&self, x: &Shape) -> Option<Shape> {
        let mut sizes = *x;
        let first = x.rank().checked_sub(2)?;
        for d in 0..2 {
            let (size, stride, padding) = (x[first + d], self.stride[d], self.padding[d]);
            let padded = size.checked_add(padding.checked_mul(2)?)?;
            let room = last_window_offset(padded, self.kernel[d], self.dilation[d])?;
            let mut count = match self.ceil {
                true => room.checked_add(stride.checked_sub(1)?)?.checked_div(stride)?,
                false => room.checked_div(stride)?,
            };
            // A last partial window starts inside the image or its padding in front.
            if self.ceil && count.checked_mul(stride)? >= size.checked_add(padding)? {
                count = count.checked_sub(1)?;
            }
            sizes[first + d] = count.checked_add(1)?;
        }
        Some(sizes)
    }
}
