//! Files that are part of the program that runs them.

/// Bytes at an address that is a multiple of 8, which makes file offsets and addresses agree in their alignment.
///
/// This crate reads files at any address; runtimes that hand out pointers into the attributes need this.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T: ?Sized> {
    /// The bytes.
    pub bytes: T,
}

/// Includes a BEF file like [`include_bytes!`], at an address that is a multiple of 8, as a `&'static [u8]`.
///
/// ```
/// static PROGRAM: &[u8] = bef::include_bef!("../tests/data/fib_recursive.bef");
/// assert_eq!(PROGRAM.as_ptr().addr() % 8, 0);
/// assert!(bef::File::open(PROGRAM).is_ok());
/// ```
#[macro_export]
macro_rules! include_bef {
    ($path:expr $(,)?) => {{
        static ALIGNED: &$crate::Aligned<[u8]> = &$crate::Aligned { bytes: *::core::include_bytes!($path) };
        &ALIGNED.bytes
    }};
}
