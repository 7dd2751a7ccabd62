//! TFRT's Binary Executable Format (BEF): a reader, a verifier, an in-memory program model, and a writer.
//!
//! # A file
//!
//! ```text
//! 0B EF 00                                   magic, version 0
//! ┌────┬──────────────────────┬─────────┬────────────┐
//! │ id │ VBR(len << 1 | flag) │ align   │ data[len]  │   a section; `align` and its CC bytes
//! │ u8 │                      │ u8 CC*  │            │   are there if the flag is set
//! └────┴──────────────────────┴─────────┴────────────┘
//!   0 Strings          "tfrt.add.i32\0" ...    ◄─── names: byte offsets into here
//!   1 Attributes       values at their alignment ◄── byte offsets (32 bits in kernels)
//!   2 Kernels          name of each kernel code
//!   3 Types            name of each type index
//!   4 FunctionIndex    kind, offset, name, argument and result types of each function
//!   5 Functions        ┌ location, registers with use counts, kernel table, result registers
//!                      └ kernels: code, location, args, attrs, funcs, results, used_bys
//!   6 LocationStrings  names that locations use
//!   7 Locations        trees of five kinds of nodes
//!   8 AttributeTypes   ┐
//!   9 AttributeNames   │ optional: only translation back to text needs them
//!  10 RegisterTypes    ┘
//! ```
//!
//! Integers are VBR (base 128, most significant group first, see [`vbr`]) except in attributes and kernels, which are
//! little-endian words. A function's kernel 0 is the pseudo kernel: it defines the arguments and lists the kernels
//! without operands as its users. Each module of [`section`] describes the bytes of its section.
//!
//! # Reading
//!
//! [`File::open`] finds the sections and decodes nothing. [`File::verify`] checks an untrusted file completely, once,
//! and returns a [`Verified`], which reads functions, kernels, attributes and locations in place.
//!
//! ```
//! # fn run(bytes: &[u8]) -> pteron_bef::Result<()> {
//! let program = pteron_bef::File::open(bytes)?.verify()?;
//! let Some(main) = program.functions().find("main") else { return Ok(()) };
//! if let Some(function) = program.function(main)? {
//!     for kernel in function.kernels().skip(1) {
//!         let kernel = kernel?;
//!         println!("{}", program.kernel_name(pteron_bef::KernelCode(kernel.code())));
//!         let registers: Vec<u32> = kernel.arguments().iter().collect();
//!         let place = program.location(kernel.location())?;
//!     }
//! }
//! # Ok(())
//! # }
//! ```
//!
//! [`include_bef!`] embeds a file in the executable; for a file on disk, the caller can pass a memory map.
//! [`File::spans`] explains what each byte of a file means, for a malformed file up to its first error.
//!
//! # Writing
//!
//! A [`Module`] is a program in memory. [`FunctionBuilder`] builds one from Rust, a converter from text fills one in
//! the order in which it visits operations, and [`Verified::to_module`] reads one from a file. [`Module::to_bytes`]
//! writes the same bytes as the reference converter.
//!
//! # Trust
//!
//! The bytes may be at any address: the format aligns file offsets, not addresses. Integers are converted explicitly,
//! so that hosts of either endianness read the same values. No file makes a reader panic, overflow the stack, loop
//! for ever, or allocate more than a small multiple of the file's size.
#![forbid(unsafe_code)]

mod aligned;
pub mod attribute;
mod buffer;
mod error;
mod file;
mod framing;
mod function_kind;
mod ids;
pub mod limits;
mod location;
pub mod model;
mod region;
pub mod section;
mod spans;
pub mod stream_analysis;
pub mod vbr;
mod verify;
mod walk;

pub use aligned::Aligned;
pub use attribute::{
    Aggregate, Array, Attribute, AttributeRef, AttributeType, Complex, DType, Dense, ElementType, Shape,
    SymbolRef,
};
pub use error::{Error, ErrorKind, Fault, Result};
pub use file::File;
pub use framing::{HEADER, Section, SectionId};
pub use function_kind::FunctionKind;
pub use ids::{AttributeId, FunctionId, KernelCode, Register, TypeId};
pub use limits::Limits;
pub use location::Location;
pub use model::{
    Body, CustomSection, Function, FunctionBuilder, Kernel, KernelBuilder, Module, NamedAttribute,
};
pub use region::{PAD, Region};
pub use section::function_index::{FunctionEntry, FunctionIndex};
pub use section::functions::{FunctionRecord, KernelEntry, KernelRecord, PSEUDO_KERNEL_CODE, Words};
pub use spans::Span;
pub use verify::Verified;
pub use walk::{Summary, walk};
