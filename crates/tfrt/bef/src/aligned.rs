//! BEF files embedded in an executable.

/// Bytes at an address that is a multiple of 8, so that aligned file offsets are aligned addresses.
///
/// This crate reads files at any address; runtimes that hand out pointers to attributes need the alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(8))]
pub struct Aligned<T: ?Sized> {
    /// The aligned bytes.
    pub bytes: T,
}

/// Embeds a BEF file like [`include_bytes!`], at an address that is a multiple of 8, as a `&'static [u8]`.
///
/// ```
/// static PROGRAM: &[u8] = pteron_bef::include_bef!("../tests/data/fib_recursive.bef");
/// assert_eq!(PROGRAM.as_ptr().addr() % 8, 0);
/// assert!(pteron_bef::File::open(PROGRAM).is_ok());
/// ```
#[macro_export]
macro_rules! include_bef {
    ($path:expr $(,)?) => {{
        static ALIGNED: &$crate::Aligned<[u8]> = &$crate::Aligned { bytes: *::core::include_bytes!($path) };
        &ALIGNED.bytes
    }};
}
