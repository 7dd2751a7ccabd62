use crate::{Array, ArrowColumn, Bitmap};
use pteron_tensor::ScalarType;
use pteron_toolbox::batch::Column;

fn array<'a>(format: &'a str, length: usize, buffers: &[&'a [u8]], children: Vec<Array<'a>>) -> Array<'a> {
    Array {
        format: format.into(),
        length,
        offset: 0,
        validity: None,
        buffers: buffers.to_vec(),
        children,
        dictionary: None,
    }
}

fn bytes<const N: usize, T: Copy>(values: &[T], to_bytes: fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| to_bytes(value)).collect()
}

/// The bytes and sizes of a row, or why it has none.
fn row(array: &Array<'_>, index: usize) -> Result<(Vec<u8>, Vec<usize>), String> {
    let column = ArrowColumn::new("x", array)?;
    let found = column.row(index).map_err(|fault| fault.reason)?;
    Ok((found.bytes.to_vec(), found.sizes.to_vec()))
}

#[test]
fn nested_lists_are_rows_with_sizes() {
    let elements: Vec<u8> = (0..8).collect();
    let offsets = bytes(&[0i32, 2, 4, 6, 8], i32::to_ne_bytes);
    let lists = bytes(&[0i64, 2, 4], i64::to_ne_bytes);
    let items = array("C", 8, &[&elements], Vec::new());
    let inner = array("+l", 4, &[&offsets], vec![items.clone()]);
    let outer = array("+L", 2, &[&lists], vec![inner]);
    assert_eq!(row(&outer, 1), Ok((vec![4, 5, 6, 7], vec![2, 2])));
    let fixed = array("+w:4", 2, &[], vec![items]);
    assert_eq!(row(&fixed, 1), Ok((vec![4, 5, 6, 7], vec![4])));
    let sliced = Array { offset: 1, length: 1, ..fixed };
    assert_eq!(row(&sliced, 0), Ok((vec![4, 5, 6, 7], vec![4])));
    assert_eq!(row(&sliced, 1), Err("its lists end behind their elements".to_owned()));
}

#[test]
fn nulls_of_rows_and_of_elements_are_told_apart() {
    let elements: Vec<u8> = (0..6).collect();
    let validity = Bitmap { bits: &[0b1110_1111], offset: 0 };
    let items = Array { validity: Some(validity), ..array("C", 6, &[&elements], Vec::new()) };
    let rows = Bitmap { bits: &[0b1010], offset: 1 };
    let lists = Array { validity: Some(rows), ..array("+w:2", 3, &[], vec![items]) };
    assert_eq!(row(&lists, 0), Ok((vec![0, 1], vec![2])));
    assert_eq!(row(&lists, 1), Err("it is null".to_owned()));
    assert_eq!(row(&lists, 2), Err("its element 0 is null".to_owned()));
}

#[test]
fn encoded_elements_are_numbers() {
    let bits = array("b", 3, &[&[0b101]], Vec::new());
    assert_eq!((row(&bits, 0), row(&bits, 1)), (Ok((vec![1], vec![])), Ok((vec![0], vec![]))));
    let decimals = bytes(&[-250i128, 125], i128::to_ne_bytes);
    let decimals = array("d:10,2", 2, &[&decimals], Vec::new());
    assert_eq!(ArrowColumn::new("x", &decimals).unwrap().dtype(), ScalarType::Double);
    assert_eq!(row(&decimals, 0), Ok(((-2.5f64).to_ne_bytes().to_vec(), vec![])));
    let values = array("s", 2, &[&[1, 0, 2, 0]], Vec::new());
    let words = Array { dictionary: Some(Box::new(values)), ..array("c", 3, &[&[1, 0, 7]], Vec::new()) };
    assert_eq!(row(&words, 0), Ok((vec![2, 0], vec![])));
    assert_eq!(row(&words, 2), Err("its lists end behind their elements".to_owned()));
    let mut view = [0; 16];
    view[..4].copy_from_slice(&3i32.to_ne_bytes());
    view[4..7].copy_from_slice(b"abc");
    assert_eq!(row(&array("vz", 1, &[&view], Vec::new()), 0), Ok((b"abc".to_vec(), vec![3])));
    let offsets = bytes(&[0i32, 1, 3], i32::to_ne_bytes);
    assert_eq!(row(&array("z", 2, &[&offsets, b"abc"], Vec::new()), 1), Ok((b"bc".to_vec(), vec![2])));
}

#[test]
fn arrays_that_are_not_valid_are_errors() {
    let short = array("f", 2, &[&[0; 4]], Vec::new());
    assert_eq!(row(&short, 0), Err("an Arrow array lacks a buffer".to_owned()));
    let wrapping = Array { offset: usize::MAX, ..array("f", 2, &[&[0; 8]], Vec::new()) };
    assert_eq!(row(&wrapping, 0), Err("an Arrow array is too long".to_owned()));
    let items = array("C", 2, &[&[1, 2]], Vec::new());
    for offsets in [[0i32, -1], [2, 1], [0, 3], [i32::MAX, i32::MAX]] {
        let offsets = bytes(&offsets, i32::to_ne_bytes);
        assert!(row(&array("+l", 1, &[&offsets], vec![items.clone()]), 0).is_err(), "{offsets:?}");
        assert!(row(&array("z", 1, &[&offsets, b"ab"], Vec::new()), 0).is_err(), "{offsets:?}");
    }
    let huge = array("+w:9223372036854775807", 1, &[], vec![items]);
    assert!(row(&huge, 0).is_err());
    for format in ["u", "tdD", "+s", "+l", ""] {
        let buffer = [0; 8];
        assert!(
            row(&array(format, 1, &[&buffer], Vec::new()), 0).unwrap_err().contains("is of the Arrow type"),
            "{format}"
        );
    }
    let view = [255; 16];
    assert_eq!(row(&array("vz", 1, &[&view], Vec::new()), 0), Err("its view is not valid".to_owned()));
}
