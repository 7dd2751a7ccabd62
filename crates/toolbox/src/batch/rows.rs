//! Matches the sizes of a column's row to the sizes of an input's row.

use super::Spec;
use super::{Column, Row, convert};
use pteron_tensor::Shape;

/// The sizes that a row takes as part of an input, or why it does not fit.
///
/// A flat list fits any sizes of the same number of elements. Nested lists must have the sizes of the input, except for
/// dimensions of size 1. A dynamic input takes any sizes of the same rank within its bounds.
pub(super) fn fit_sizes(spec: &Spec, sizes: &Shape) -> Result<Shape, String> {
    let shape = |list: &[usize]| Shape::new(list).map_err(|e| e.to_string());
    let wanted = shape(&spec.row)?;
    let (count, elements) = (num_elements(&spec.row), num_elements(sizes));
    if sizes.rank() <= 1 && elements == count {
        return Ok(wanted);
    }
    if sizes.rank() > 1 && elements == count && without_ones(sizes).eq(without_ones(&wanted)) {
        return Ok(wanted);
    }
    let within =
        sizes.rank() == wanted.rank() && sizes.iter().zip(wanted.iter()).all(|(size, bound)| size <= bound);
    if spec.is_dynamic && within {
        return Ok(*sizes);
    }
    Err(match (spec.is_dynamic, sizes.rank()) {
        (false, 0 | 1) => {
            format!("it has {elements} elements, a row of {} takes {count}", sizes_text(&wanted))
        }
        (false, _) => format!("it has the sizes {}, a row takes {}", sizes_text(sizes), sizes_text(&wanted)),
        (true, _) => {
            format!("it has the sizes {}, a row takes at most {}", sizes_text(sizes), sizes_text(&wanted))
        }
    })
}

fn num_elements(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

fn without_ones(sizes: &Shape) -> impl Iterator<Item = &usize> {
    sizes.iter().filter(|&&size| size != 1)
}

fn sizes_text(sizes: &Shape) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// Checks that a row of a column fits an input and that its elements convert; returns its sizes in the input.
pub(super) fn check_row(spec: &Spec, column: &dyn Column, row: usize) -> Result<Shape, String> {
    let Row { bytes, sizes } = column.row(row)?;
    let fitting = fit_sizes(spec, &sizes)?;
    match convert::conversion_problem(column.dtype(), bytes, spec.dtype) {
        None => Ok(fitting),
        Some(problem) => Err(problem),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    fn fits(row: &[usize], is_dynamic: bool, sizes: &[usize]) -> Option<Vec<usize>> {
        let spec = Spec { index: 0, name: None, dtype: ScalarType::Float, row: row.to_vec(), is_dynamic };
        fit_sizes(&spec, &Shape::new(sizes).unwrap()).ok().map(|shape| shape.to_vec())
    }

    #[test]
    fn flat_rows_take_the_sizes_of_the_input() {
        assert_eq!(fits(&[1, 8, 8], false, &[64]), Some(vec![1, 8, 8]));
        assert_eq!(fits(&[1, 8, 8], false, &[8, 8]), Some(vec![1, 8, 8]));
        assert_eq!(fits(&[1, 8, 8], false, &[4, 16]), None);
        assert_eq!(fits(&[1, 8, 8], false, &[63]), None);
        assert_eq!(fits(&[], false, &[]), Some(vec![]));
        assert_eq!(fits(&[1], false, &[]), Some(vec![1]));
        assert_eq!(fits(&[2], false, &[]), None);
    }

    #[test]
    fn dynamic_sizes_are_within_their_bounds() {
        assert_eq!(fits(&[16], true, &[5]), Some(vec![5]));
        assert_eq!(fits(&[16], true, &[17]), None);
        assert_eq!(fits(&[16, 4], true, &[3, 4]), Some(vec![3, 4]));
        assert_eq!(fits(&[16, 4], true, &[12]), None);
        assert_eq!(fits(&[16, 4], true, &[64]), Some(vec![16, 4]));
    }
}
