use super::{Cells, OutputColumn, convert};
use crate::{Error, Result};
use pteron_tensor::{ScalarType, Shape, memory};
use std::cmp::Ordering;

/// The largest elements of each row: a column of their indices, in descending order of the elements, and a column of the elements.
/// Rows are scalars if `count` is 1. Of equal elements the first comes first; NaN is larger than any number, as in PyTorch.
///
/// # Errors
/// If a row has fewer elements, or elements that are not ordered.
pub fn top(column: OutputColumn, count: usize) -> Result<[OutputColumn; 2]> {
    let OutputColumn { spec, valid, cells } = column;
    if !convert::is_number(spec.dtype) {
        let label = spec.label("output");
        return Err(Error::Input(format!("{label} is {}, of which no element is the largest", spec.dtype)));
    }
    let width = spec.dtype.size();
    let row = if count == 1 { Vec::new() } else { vec![count] };
    let mut indices: Vec<u8> = memory::with_room(valid.len().saturating_mul(count).saturating_mul(8))?;
    let mut elements: Vec<u8> = memory::with_room(valid.len().saturating_mul(count).saturating_mul(width))?;
    let mut rest = cells.bytes();
    let mut order: Vec<usize> = Vec::new();
    for (i, &valid) in valid.iter().enumerate() {
        let sizes = match &cells {
            Cells::Equal { row, .. } => row,
            Cells::Ragged { rows, .. } => &rows[i],
        };
        let len = sizes.numel()?;
        let (own, others) = rest.split_at(len * width);
        rest = others;
        if !valid {
            indices.resize(indices.len() + count * 8, 0);
            elements.resize(elements.len() + count * width, 0);
            continue;
        }
        if len < count {
            let label = spec.label("output");
            return Err(Error::Input(format!("{label} has a row of {len} elements, and not {count}")));
        }
        select_largest(spec.dtype, own, count, &mut order);
        for &index in &order[..count] {
            indices.extend((index as i64).to_ne_bytes());
            elements.extend(&own[index * width..(index + 1) * width]);
        }
    }
    let shape = Shape::new(&row)?;
    let column = |dtype: ScalarType, bytes: Vec<u8>| OutputColumn {
        spec: super::Spec { dtype, row: row.clone(), is_dynamic: false, ..spec.clone() },
        valid: valid.clone(),
        cells: Cells::Equal { row: shape, bytes },
    };
    Ok([column(ScalarType::Long, indices), column(spec.dtype, elements)])
}

/// Puts the indices of the `count` largest elements at the front of `order`, in descending order of the elements.
fn select_largest(dtype: ScalarType, bytes: &[u8], count: usize, order: &mut Vec<usize>) {
    if convert::is_float(dtype) {
        let numbers = convert::elements_as_f64(dtype, bytes);
        let compare = |x: f64, y: f64| x.partial_cmp(&y).unwrap_or_else(|| x.is_nan().cmp(&y.is_nan()));
        select_by(count, order, numbers.len(), |a, b| compare(numbers[a], numbers[b]));
    } else {
        // 64-bit integers are not all different as f64.
        let numbers = convert::elements_as_i128(dtype, bytes);
        select_by(count, order, numbers.len(), |a, b| numbers[a].cmp(&numbers[b]));
    }
}

/// As [`select_largest`], of `len` elements that `compare` compares by their indices.
fn select_by(count: usize, order: &mut Vec<usize>, len: usize, compare: impl Fn(usize, usize) -> Ordering) {
    let larger = |&a: &usize, &b: &usize| compare(b, a).then_with(|| a.cmp(&b));
    order.clear();
    order.extend(0..len);
    if count < order.len() {
        order.select_nth_unstable_by(count, larger);
    }
    order[..count].sort_unstable_by(larger);
    debug_assert!(order[..count].windows(2).all(|pair| larger(&pair[0], &pair[1]) == Ordering::Less));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Spec;

    fn found(rows: &[[f32; 4]], count: usize) -> (Vec<i64>, Vec<f32>) {
        let bytes: Vec<u8> = rows.iter().flatten().flat_map(|x| x.to_ne_bytes()).collect();
        let spec =
            Spec { index: 0, name: None, dtype: ScalarType::Float, row: vec![2, 2], is_dynamic: false };
        let cells = Cells::Equal { row: Shape::new(&[2, 2]).unwrap(), bytes };
        let column = OutputColumn { spec, valid: vec![true; rows.len()], cells };
        let [indices, elements] = top(column, count).unwrap();
        (
            bytemuck::pod_collect_to_vec(indices.cells.bytes()),
            bytemuck::pod_collect_to_vec(elements.cells.bytes()),
        )
    }

    #[test]
    fn the_largest_elements_come_first() {
        let rows = [[0.0, 3.0, 1.0, 2.0], [5.0, 5.0, 4.0, 5.0]];
        assert_eq!(found(&rows, 1), (vec![1, 0], vec![3.0, 5.0]));
        assert_eq!(found(&rows, 3).0, [1, 3, 2, 0, 1, 3]);
        assert_eq!(found(&rows, 4).0, [1, 3, 2, 0, 0, 1, 3, 2]);
        assert_eq!(found(&[[0.0, f32::NAN, f32::INFINITY, f32::NAN]], 3).0, [1, 3, 2]);
    }

    #[test]
    fn integers_are_compared_exactly() {
        let rows = [1i64 << 53, (1 << 53) + 1, -1];
        let spec = Spec { index: 0, name: None, dtype: ScalarType::Long, row: vec![3], is_dynamic: false };
        let cells =
            Cells::Equal { row: Shape::new(&[3]).unwrap(), bytes: bytemuck::cast_slice(&rows).to_vec() };
        let [indices, _] = top(OutputColumn { spec, valid: vec![true], cells }, 1).unwrap();
        assert_eq!(bytemuck::pod_collect_to_vec::<u8, i64>(indices.cells.bytes()), [1]);
    }

    #[test]
    fn a_row_has_as_many_elements() {
        let spec = Spec { index: 0, name: None, dtype: ScalarType::Float, row: vec![1], is_dynamic: false };
        let cells = Cells::Equal { row: Shape::new(&[1]).unwrap(), bytes: vec![0; 4] };
        let error = top(OutputColumn { spec, valid: vec![true], cells }, 2).unwrap_err();
        assert_eq!(error.to_string(), "output 0 has a row of 1 elements, and not 2");
    }
}
