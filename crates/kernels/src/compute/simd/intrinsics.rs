//! Tables of the methods of [`Simd`](super::Simd) that are little more than one intrinsic: an instruction set lists
//! them in a line each, and writes out only the others.

/// Methods whose only condition is that the machine has the instructions, which `self` proves.
macro_rules! intrinsics {
    ($($method:ident($($arg:ident: $type:ty),*) -> $out:ty = $intrinsic:expr;)*) => {
        $(
            #[inline(always)]
            fn $method(self, $($arg: $type),*) -> $out {
                // SAFETY: `self` proves that the machine has the instructions.
                unsafe { $intrinsic }
            }
        )*
    };
}

/// Methods that read or write memory, on the terms of [`Simd`](super::Simd).
macro_rules! memory_intrinsics {
    ($($method:ident($($arg:ident: $type:ty),*) -> $out:ty = $intrinsic:expr;)*) => {
        $(
            #[inline(always)]
            unsafe fn $method(self, $($arg: $type),*) -> $out {
                // SAFETY: `self` proves that the machine has the instructions; the caller promises that the memory can
                // be read or written.
                unsafe { $intrinsic }
            }
        )*
    };
}

pub(super) use {intrinsics, memory_intrinsics};
