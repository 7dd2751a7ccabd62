//! Dimension, index and size arguments: checked, wrapped and inferred.

use pteron_operator::{Error, Result, ensure};
use pteron_tensor::{MAX_RANK, Shape};
use smallvec::SmallVec;

/// Wraps a dimension of a tensor of `rank` dimensions: a negative one counts from the end. Fails if it is out of range.
/// A zero-dim tensor counts as having one.
pub(crate) fn wrap_dim(name: &str, dim: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    ensure!(
        (-n..n).contains(&dim),
        "{name}: dimension {dim} is out of range, a tensor of rank {rank} has dimensions {} to {}",
        -n,
        n - 1
    );
    Ok(if dim < 0 { dim + n } else { dim } as usize)
}

/// A set of dimensions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct DimSet(u32);

impl DimSet {
    /// Every dimension of a tensor of this rank.
    pub(crate) fn all(rank: usize) -> Self {
        Self(((1u64 << rank.min(MAX_RANK)) - 1) as u32)
    }

    /// The set of one dimension.
    pub(crate) fn single(dim: usize) -> Self {
        Self(1 << dim)
    }

    /// The listed dimensions; fails if one appears twice.
    pub(crate) fn from_list(name: &str, dims: &[i64], rank: usize) -> Result<Self> {
        let mut set = 0;
        for &d in dims {
            let bit = 1 << wrap_dim(name, d, rank)?;
            ensure!(set & bit == 0, "{name}: dimension {d} appears twice in {dims:?}");
            set |= bit;
        }
        Ok(Self(set))
    }

    /// The dimensions to reduce over: the listed ones, or all if the list is absent or empty.
    pub(crate) fn for_reduction(name: &str, dims: Option<&[i64]>, rank: usize) -> Result<Self> {
        match dims {
            None | Some([]) => Ok(Self::all(rank)),
            Some(dims) => Self::from_list(name, dims, rank),
        }
    }

    pub(crate) fn contains(self, dim: usize) -> bool {
        self.0 & (1 << dim) != 0
    }

    /// Whether one of these dimensions has size zero in a tensor of these sizes: each reduction then has no elements.
    pub(crate) fn has_zero_size(self, sizes: &Shape) -> bool {
        (0..sizes.rank()).any(|d| self.contains(d) && sizes[d] == 0)
    }

    /// The sizes of a tensor after reducing these dimensions, which get size one if `keepdim` and are removed otherwise.
    pub(crate) fn reduced_sizes(self, sizes: &Shape, keepdim: bool) -> Shape {
        let mut out = *sizes;
        for d in (0..sizes.rank()).rev().filter(|&d| self.contains(d)) {
            if keepdim {
                out[d] = 1;
            } else {
                out.remove(d);
            }
        }
        out
    }
}

/// Converts an index into `size` elements to `usize`; a negative index counts from the end. Fails if out of range.
pub(crate) fn wrap_index(name: &str, index: i64, size: usize) -> Result<usize> {
    let n = size as i64;
    ensure!((-n..n).contains(&index), "{name}: index {index} is out of range for a dimension of size {size}");
    Ok(if index < 0 { index + n } else { index } as usize)
}

/// Converts a size to `usize`; fails if it is negative.
pub(crate) fn to_size(name: &str, size: i64) -> Result<usize> {
    let wrong = if size < 0 { "negative" } else { "too large" };
    usize::try_from(size).map_err(|_| Error::invalid(format!("{name}: {size} is {wrong}")))
}

/// Converts a size to `usize`; fails unless it is at least one.
pub(crate) fn to_positive(name: &str, size: i64) -> Result<usize> {
    ensure!(size > 0, "{name}: {size} is not positive");
    usize::try_from(size).map_err(|_| Error::invalid(format!("{name}: {size} is too large")))
}

/// Converts a list of sizes to a shape. No size may be negative, and the product must not overflow.
pub(crate) fn to_shape(name: &str, sizes: &[i64]) -> Result<Shape> {
    let list: SmallVec<[usize; 8]> = sizes.iter().map(|&s| to_size(name, s)).collect::<Result<_>>()?;
    let shape = Shape::new(&list)?;
    shape.numel()?;
    Ok(shape)
}

/// Converts a list of sizes to a shape of `numel` elements. One size may be -1, and is inferred.
pub(crate) fn infer_shape(name: &str, sizes: &[i64], numel: usize) -> Result<Shape> {
    let unknown = sizes.iter().position(|&s| s == -1);
    let mut known: SmallVec<[i64; 8]> = sizes.into();
    if let Some(d) = unknown {
        known[d] = 1;
    }
    let mut shape = to_shape(name, &known)?;
    let product = shape.numel()?;
    let fits = match unknown {
        None => product == numel,
        Some(d) => {
            let fits = product != 0 && numel.is_multiple_of(product);
            if fits {
                shape[d] = numel / product;
            }
            fits
        }
    };
    ensure!(fits, "{name}: {sizes:?} does not fit a tensor of {numel} elements");
    Ok(shape)
}

/// The broadcast shape of two operands: missing dimensions are added in front, those of size one are repeated.
pub(crate) fn broadcast(a: &Shape, b: &Shape) -> Result<Shape> {
    let (mut long, short) = if a.rank() >= b.rank() { (*a, b) } else { (*b, a) };
    let front = long.rank() - short.rank();
    for (l, &s) in long[front..].iter_mut().zip(short.iter()) {
        match (*l, s) {
            (x, y) if x == y => {}
            (1, y) => *l = y,
            (_, 1) => {}
            _ => return Err(Error::invalid(format!("the shapes {a} and {b} cannot be broadcast together"))),
        }
    }
    Ok(long)
}

/// The start and the length of the Python slice `start:end:step` of a dimension: the bounds may be absent, negative or
/// out of range.
pub(crate) fn slice_range(
    start: Option<i64>,
    end: Option<i64>,
    step: i64,
    size: usize,
) -> Result<(usize, usize)> {
    ensure!(step > 0, "step: {step} is not positive");
    let n = size as i64;
    let wrap = |at: i64| if at < 0 { at.saturating_add(n) } else { at }.clamp(0, n);
    let start = wrap(start.unwrap_or(0));
    let end = wrap(end.unwrap_or(n)).max(start);
    let len = (end - start).unsigned_abs().div_ceil(step as u64);
    // The start of an empty slice does not matter.
    Ok((if len == 0 { 0 } else { start as usize }, len as usize))
}

/// The values of an `int[N]` argument; a list with a single value applies to all dimensions.
pub(crate) fn per_dim<const N: usize>(name: &str, list: &[i64]) -> Result<[i64; N]> {
    match list {
        [one] => Ok([*one; N]),
        many => many
            .try_into()
            .map_err(|_| Error::invalid(format!("{name}: expected 1 or {N} numbers, found {}", many.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dims_and_indices_wrap() {
        assert_eq!(wrap_dim("dim", -1, 3).unwrap(), 2);
        assert_eq!(wrap_dim("dim", -1, 0).unwrap(), 0);
        assert!(wrap_dim("dim", 3, 3).unwrap_err().to_string().contains("-3 to 2"));
        assert!(wrap_dim("dim", i64::MIN, 3).is_err());
        assert!(wrap_index("index", 0, 0).is_err());
        assert_eq!(wrap_index("index", -2, 5).unwrap(), 3);
        assert!(DimSet::from_list("dim", &[0, -3], 3).is_err());
        let set = DimSet::from_list("dim", &[0, -1], 3).unwrap();
        let s = Shape::new(&[2, 3, 4]).unwrap();
        assert_eq!(&*set.reduced_sizes(&s, true), &[1, 3, 1]);
        assert_eq!(&*set.reduced_sizes(&s, false), &[3]);
    }

    #[test]
    fn shapes_are_inferred() {
        assert_eq!(&*infer_shape("size", &[2, -1], 6).unwrap(), &[2, 3]);
        assert!(infer_shape("size", &[4, -1], 6).is_err());
        assert!(infer_shape("size", &[-1, -1], 6).is_err());
        assert!(infer_shape("size", &[0, -1], 0).is_err());
        assert!(to_shape("size", &[i64::MAX, i64::MAX]).is_err());
        let s = |d: &[usize]| Shape::new(d).unwrap();
        assert_eq!(&*broadcast(&s(&[3, 1]), &s(&[2, 1, 4])).unwrap(), &[2, 3, 4]);
        assert_eq!(&*broadcast(&s(&[0]), &s(&[1])).unwrap(), &[0]);
        assert!(broadcast(&s(&[2]), &s(&[3])).is_err());
    }

    #[test]
    fn slices_behave_as_in_python() {
        assert_eq!(slice_range(Some(-3), None, 1, 5).unwrap(), (2, 3));
        assert_eq!(slice_range(Some(1), Some(i64::MAX), 2, 6).unwrap(), (1, 3));
        assert_eq!(slice_range(Some(4), Some(2), 1, 5).unwrap(), (0, 0));
        assert_eq!(slice_range(Some(i64::MIN), Some(i64::MIN), i64::MAX, 5).unwrap(), (0, 0));
        assert!(slice_range(None, None, 0, 5).is_err());
    }
}
