//! A newtype for each kind of index in the format, so that they cannot be mixed up.

use std::fmt;

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The index as a position in a slice.
            pub fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

ids! {
    /// Position of a kernel's name in the Kernels section; the format calls it the kernel code.
    KernelCode;
    /// Position of a type's name in the Types section.
    TypeId;
    /// Position of a function in the FunctionIndex section.
    FunctionId;
    /// Position of an attribute in a [`Module`](crate::Module). Files refer to attributes by byte offset instead.
    AttributeId;
    /// A register of one function: arguments come first, then the results of kernels.
    Register;
}
