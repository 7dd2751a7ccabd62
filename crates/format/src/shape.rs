use crate::flatbuffer::Path;
use crate::{Error, ErrorKind};
use pteron_tensor::{DimOrder, MAX_RANK, ScalarType};

/// Number of elements; `None` if a size is negative or the product overflows.
pub(crate) fn numel(sizes: &[i32]) -> Option<u64> {
    sizes.iter().try_fold(1u64, |n, &size| n.checked_mul(u64::try_from(size).ok()?))
}

/// Number of bytes; `None` if it overflows, a size is negative or the element type is unknown.
pub(crate) fn nbytes(scalar_type: i8, sizes: &[i32]) -> Option<u64> {
    numel(sizes)?.checked_mul(ScalarType::from_i8(scalar_type).ok()?.size() as u64)
}

/// Type, sizes and dim order, as both `.pte` and `.ptd` store them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shape<'s> {
    pub(crate) scalar_type: i8,
    pub(crate) sizes: &'s [i32],
    pub(crate) dim_order: &'s [u8],
}

impl Shape<'_> {
    /// Checks type, sizes and dim order; returns the type and the number of bytes if all are valid.
    pub(crate) fn check(
        &self,
        most_bytes: u64,
        path: Path<'_>,
        mut report: impl FnMut(Error),
    ) -> Option<(ScalarType, u64)> {
        let mut sound = true;
        let mut fail = |kind, path: Path<'_>, expected: String, actual: &dyn std::fmt::Display| {
            sound = false;
            report(Error::new(kind, path.to_string(), expected, actual));
        };
        let dtype = ScalarType::from_i8(self.scalar_type).ok();
        if dtype.is_none() {
            let expected = "a scalar type known to this reader".to_owned();
            fail(ErrorKind::Newer, path.field("scalar_type"), expected, &self.scalar_type);
        }
        let sizes = path.field("sizes");
        if self.sizes.len() > MAX_RANK {
            fail(ErrorKind::Unsupported, sizes, format!("at most {MAX_RANK} dimensions"), &self.sizes.len());
            return None;
        }
        let negative = self.sizes.iter().position(|&size| size < 0);
        if let Some(i) = negative {
            fail(ErrorKind::Invalid, sizes.index(i), "a size of 0 or more".to_owned(), &self.sizes[i]);
        }
        if self.dim_order.len() != self.sizes.len() {
            let expected = format!("an order of the {} dimensions", self.sizes.len());
            let actual = format!("{} entries", self.dim_order.len());
            fail(ErrorKind::Invalid, path.field("dim_order"), expected, &actual);
        } else if DimOrder::new(self.dim_order).is_err() {
            let expected = format!("each of the dimensions 0 to {} once", self.sizes.len().saturating_sub(1));
            let actual = format!("{:?}", self.dim_order);
            fail(ErrorKind::Invalid, path.field("dim_order"), expected, &actual);
        }
        let nbytes = nbytes(self.scalar_type, self.sizes);
        if negative.is_none() && dtype.is_some() && nbytes.is_none() {
            let actual = format!("{:?}", self.sizes);
            fail(ErrorKind::Invalid, sizes, "sizes whose product does not overflow".to_owned(), &actual);
        }
        if let Some(nbytes) = nbytes.filter(|&nbytes| nbytes > most_bytes) {
            fail(ErrorKind::Limit, sizes, format!("at most {most_bytes} bytes in a tensor"), &nbytes);
        }
        if sound { dtype.zip(nbytes) } else { None }
    }
}
