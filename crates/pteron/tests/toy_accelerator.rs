//! The `toy_accelerator` example gives the results of the kernels.

#[path = "../examples/toy_accelerator.rs"]
#[allow(dead_code)]
mod toy;

#[test]
fn a_program_delegated_to_the_accelerator_gives_equal_results() {
    let archive = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testdata/archives/arithmetic/model.pt2");
    let archive = std::fs::read(archive).unwrap();
    let without = toy::compiled(archive.clone(), false).unwrap();
    let with = toy::compiled(archive, true).unwrap();
    assert!(with.windows(14).any(|bytes| bytes == b"ToyAccelerator"));
    let (expected, actual) = (toy::outputs(without).unwrap(), toy::outputs(with).unwrap());
    assert!(expected.len() > 10 && expected.len() == actual.len());
    for (expected, actual) in expected.iter().zip(&actual) {
        assert_eq!((expected.dtype(), expected.sizes()), (actual.dtype(), actual.sizes()));
        assert!(expected.bytes().iter().eq(actual.bytes()), "{expected:?} and {actual:?}");
    }
}
