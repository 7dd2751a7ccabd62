//! Matches the sizes of a column's row to the sizes of an input's row.

use super::Spec;
use super::{Column, Fault, Row, RowRules, convert};
use pteron_tensor::Shape;

/// The sizes that a row takes as part of an input, or why it does not fit.
///
/// A flat list fits any sizes of the same number of elements. Nested lists must have the sizes of the input, except for
/// dimensions of size 1. If rows need not be exact, a dynamic input takes any sizes of the same rank within its bounds.
pub(super) fn fit_sizes(spec: &Spec, sizes: &Shape, exact: bool) -> Result<Shape, String> {
    let shape = |list: &[usize]| Shape::new(list).map_err(|e| e.to_string());
    let wanted = shape(&spec.row)?;
    let (count, elements) = (num_elements(&spec.row), num_elements(sizes));
    if sizes.rank() <= 1 && elements == count {
        return Ok(wanted);
    }
    if sizes.rank() > 1 && elements == count && sizes_without_ones(sizes).eq(sizes_without_ones(&wanted)) {
        return Ok(wanted);
    }
    let within =
        sizes.rank() == wanted.rank() && sizes.iter().zip(wanted.iter()).all(|(size, bound)| size <= bound);
    let is_flexible = spec.is_dynamic && !exact;
    if is_flexible && within {
        return Ok(*sizes);
    }
    let mut problem = match (is_flexible, sizes.rank()) {
        (false, 0 | 1) => {
            format!("it has {elements} elements, a row of {} takes {count}", sizes_text(&wanted))
        }
        (false, _) => format!("it has the sizes {}, a row takes {}", sizes_text(sizes), sizes_text(&wanted)),
        (true, _) => {
            format!("it has the sizes {}, a row takes at most {}", sizes_text(sizes), sizes_text(&wanted))
        }
    };
    if within && spec.is_dynamic {
        problem += ", and smaller rows only if rows need not be exact";
    }
    Err(problem)
}

fn num_elements(sizes: &[usize]) -> usize {
    sizes.iter().fold(1, |product, &size| product.saturating_mul(size))
}

fn sizes_without_ones(sizes: &Shape) -> impl Iterator<Item = &usize> {
    sizes.iter().filter(|&&size| size != 1)
}

fn sizes_text(sizes: &Shape) -> String {
    let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
    format!("[{}]", sizes.join(", "))
}

/// The sizes that a row of a column takes as part of an input; also checks that its elements convert, and are finite if they
/// must be.
pub(super) fn check_row(
    spec: &Spec,
    column: &dyn Column,
    row: usize,
    rules: RowRules,
) -> Result<Shape, Fault> {
    let Row { bytes, sizes } = column.row(row)?;
    let fitting = fit_sizes(spec, &sizes, rules.exact)?;
    if rules.finite
        && let Some((element, value)) = convert::first_nonfinite(column.dtype(), bytes)
    {
        return Err(nonfinite_fault(column, &sizes, element, value));
    }
    match convert::conversion_problem(column.dtype(), bytes, spec.dtype) {
        None => Ok(fitting),
        Some(problem) => Err(problem.into()),
    }
}

fn nonfinite_fault(column: &dyn Column, sizes: &Shape, element: usize, value: f64) -> Fault {
    let part = column.part(element).map(str::to_owned);
    let subject = match part.is_some() || sizes.is_empty() {
        true => "it".to_owned(),
        false => format!("its element {element}"),
    };
    let reason = match value.is_nan() {
        true => format!("{subject} is NaN, or was null, and must be finite"),
        false => format!("{subject} is {value}, and must be finite"),
    };
    Fault { part, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_tensor::ScalarType;

    fn fits(row: &[usize], is_dynamic: bool, sizes: &[usize]) -> Option<Vec<usize>> {
        fits_if(row, is_dynamic, sizes, false)
    }

    fn fits_if(row: &[usize], is_dynamic: bool, sizes: &[usize], exact: bool) -> Option<Vec<usize>> {
        let spec = Spec { index: 0, name: None, dtype: ScalarType::Float, row: row.to_vec(), is_dynamic };
        fit_sizes(&spec, &Shape::new(sizes).unwrap(), exact).ok().map(|shape| shape.to_vec())
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

    #[test]
    fn exact_rows_have_all_elements_of_a_dynamic_input() {
        assert_eq!(fits_if(&[32], true, &[31], true), None);
        assert_eq!(fits_if(&[32], true, &[32], true), Some(vec![32]));
        assert_eq!(fits_if(&[28, 28], true, &[14, 28], true), None);
        assert_eq!(fits_if(&[28, 28], true, &[784], true), Some(vec![28, 28]));
    }
}
