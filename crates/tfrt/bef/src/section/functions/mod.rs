//! Section 5, Functions: one record for each function that has a body.
//!
//! ```text
//! VBR location
//! VBR nregs    VBR uses[nregs]
//! VBR nkernels (VBR kernel_offset, VBR num_operands, VBR stream_id)[nkernels]
//! VBR result_register[nresults]            nresults comes from the FunctionIndex
//! CC* up to a multiple of 4
//! kernels                                  kernel_offset counts from here
//! ```
//!
//! A kernel is little-endian 32-bit words:
//!
//! ```text
//! code  location  nargs  nattrs  nfuncs  nresults
//! num_used_bys[nresults]
//! args[nargs]  attrs[nattrs]  funcs[nfuncs]  results[nresults]  used_bys, result after result
//! ```
//!
//! Kernel 0 is the pseudo kernel. Its results are a virtual register (number `nregs`), whose users are the kernels
//! without operands, and then the function's arguments.

use super::function_index::FunctionEntry;
use crate::error::{Error, ErrorKind, InField, Result};
use crate::ids::Register;
use crate::limits::Limits;
use crate::region::{Cursor, Region};

mod write;

pub(crate) use write::write;

/// The code of kernel 0, the pseudo kernel with which every function starts.
pub const PSEUDO_KERNEL_CODE: u32 = 0xABAB_ABAB;

/// The location of kernel 0, the pseudo kernel with which every function starts.
pub const PSEUDO_KERNEL_LOCATION: u32 = 0xCDCD_CDCD;

/// Alignment in bytes of kernels, and therefore of the Functions section.
pub const KERNEL_ALIGNMENT: u64 = 4;

/// An entry of a function's kernel table: the kernel's offset, its number of operands, and its stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelEntry {
    /// Offset of the kernel, relative to the first kernel.
    pub offset: u64,
    /// Number of operands that must be available before the kernel runs.
    pub num_operands: u32,
    /// The kernel's stream: kernels of one stream run one after another on one thread.
    pub stream_id: u64,
}

/// Fails if a stream id, which is at file offset `at` unless a model is being written, does not fit the executor's 32
/// bits.
pub(crate) fn check_stream(stream: u64, at: Option<u64>) -> Result<()> {
    if u32::try_from(stream).is_ok() {
        return Ok(());
    }
    let (actual, expected) = (format!("stream {stream}"), format!("at most {}", u32::MAX));
    Err(match at {
        Some(at) => Error::new(ErrorKind::OutOfRange, at, actual, expected),
        None => Error::without_offset(ErrorKind::OutOfRange, actual, expected),
    })
}

/// A function's decoded tables; its kernels are decoded on demand.
#[derive(Clone, Debug, Default)]
pub struct FunctionRecord<'a> {
    start: u64,
    location: u64,
    register_uses: Vec<u32>,
    kernels: Vec<KernelEntry>,
    results: Vec<Register>,
    /// The bytes from the function's first kernel to the end of the section.
    kernel_list: Region<'a>,
}

impl<'a> FunctionRecord<'a> {
    /// An empty record with capacity for `count` registers and kernels, to be [read into](Self::read_into).
    pub(crate) fn with_capacity(count: usize) -> Self {
        FunctionRecord {
            register_uses: Vec::with_capacity(count),
            kernels: Vec::with_capacity(count),
            ..Self::default()
        }
    }

    /// Reads the record of `entry`, a function with a body, from the Functions section.
    pub(crate) fn read(section: Region<'a>, entry: &FunctionEntry<'_>, limits: &Limits) -> Result<Self> {
        let mut record = Self::default();
        record.read_into(section, entry, limits)?;
        Ok(record)
    }

    /// As [`Self::read`], reusing this record's memory. After an error the contents are unspecified.
    pub(crate) fn read_into(
        &mut self,
        section: Region<'a>,
        entry: &FunctionEntry<'_>,
        limits: &Limits,
    ) -> Result<()> {
        let mut cursor = section.slice_from(entry.offset).in_field(|| "offset")?.cursor();
        self.start = cursor.offset();
        self.location = cursor.vbr().in_field(|| "location")?;
        read_register_table(&mut cursor, &mut self.register_uses).in_field(|| "registers")?;
        read_kernel_table(&mut cursor, limits, &mut self.kernels).in_field(|| "kernels")?;
        self.results.clear();
        self.results.reserve(entry.results.len());
        for index in 0..entry.results.len() {
            let register = cursor.vbr32("register").in_field(|| format!("results[{index}]"))?;
            self.results.push(Register(register));
        }
        cursor.align(KERNEL_ALIGNMENT).in_field(|| "kernels")?;
        self.kernel_list = cursor.take(cursor.remaining())?;
        Ok(())
    }

    /// Absolute file offset of the record.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Absolute file offset of the first kernel.
    pub fn kernels_start(&self) -> u64 {
        self.kernel_list.start()
    }

    /// Offset of the function's location in the Locations section.
    pub fn location(&self) -> u64 {
        self.location
    }

    /// Number of uses of each register, by kernels and by the function's results.
    pub fn register_uses(&self) -> &[u32] {
        &self.register_uses
    }

    /// The kernel table; entry 0 is the pseudo kernel.
    pub fn kernel_table(&self) -> &[KernelEntry] {
        &self.kernels
    }

    /// The registers that the function returns.
    pub fn results(&self) -> &[Register] {
        &self.results
    }

    /// Kernel number `index`; 0 is the pseudo kernel.
    ///
    /// # Errors
    /// When there is no such kernel, or it runs past the section.
    #[inline(always)]
    pub fn kernel(&self, index: usize) -> Result<KernelRecord<'a>> {
        let Some(entry) = self.kernels.get(index) else { return Err(self.missing_kernel(index)) };
        match KernelRecord::read(self.kernel_list, entry.offset) {
            Ok(kernel) => Ok(kernel),
            Err(error) => Err(error.in_field(format_args!("kernels[{index}]"))),
        }
    }

    #[cold]
    fn missing_kernel(&self, index: usize) -> Error {
        let expected = format!("one below {}", self.kernels.len());
        Error::new(ErrorKind::OutOfRange, self.start, format!("kernel {index}"), expected)
    }

    /// The function's kernels in file order, the pseudo kernel first.
    #[inline]
    pub fn kernels(&self) -> impl ExactSizeIterator<Item = Result<KernelRecord<'a>>> + '_ {
        (0..self.kernels.len()).map(|index| self.kernel(index))
    }

    /// The kernels' bytes, from the first kernel to the end of the section.
    pub(crate) fn kernel_list(&self) -> Region<'a> {
        self.kernel_list
    }
}

fn read_register_table(cursor: &mut Cursor<'_>, uses: &mut Vec<u32>) -> Result<()> {
    let count = cursor.count("registers", 1)?;
    uses.clear();
    uses.reserve(count as usize);
    for index in 0..count {
        uses.push(cursor.vbr32("use count").in_field(|| format!("[{index}]"))?);
    }
    Ok(())
}

fn read_kernel_table(cursor: &mut Cursor<'_>, limits: &Limits, kernels: &mut Vec<KernelEntry>) -> Result<()> {
    let at = cursor.offset();
    let count = cursor.count("kernels", 3)?;
    if count > limits.max_kernels {
        return Err(Error::new(
            ErrorKind::Limit,
            at,
            format!("{count} kernels"),
            format!("at most {} (Limits::max_kernels)", limits.max_kernels),
        ));
    }
    kernels.clear();
    kernels.reserve(count as usize);
    for index in 0..count {
        kernels.push(read_kernel_entry(cursor).in_field(|| format!("[{index}]"))?);
    }
    Ok(())
}

#[inline]
fn read_kernel_entry(cursor: &mut Cursor<'_>) -> Result<KernelEntry> {
    let at = cursor.offset();
    let offset = cursor.vbr().in_field(|| "offset")?;
    if !offset.is_multiple_of(KERNEL_ALIGNMENT) {
        return Err(misaligned_kernel(offset, at));
    }
    let num_operands = cursor.vbr32("operand count").in_field(|| "num_operands")?;
    let stream_id = cursor.vbr().in_field(|| "stream_id")?;
    Ok(KernelEntry { offset, num_operands, stream_id })
}

#[cold]
fn misaligned_kernel(offset: u64, at: u64) -> Error {
    Error::new(ErrorKind::Misaligned, at, format!("offset {offset}"), "a multiple of 4")
}

/// Little-endian 32-bit words in the file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words<'a>(&'a [[u8; 4]]);

impl<'a> Words<'a> {
    /// Number of words.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are no words.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Word number `index`.
    #[inline]
    pub fn get(&self, index: usize) -> Option<u32> {
        self.0.get(index).map(|&word| u32::from_le_bytes(word))
    }

    /// The words in order.
    #[inline]
    pub fn iter(&self) -> impl ExactSizeIterator<Item = u32> + DoubleEndedIterator + Clone + use<'a> {
        self.0.iter().map(|&word| u32::from_le_bytes(word))
    }

    #[inline]
    fn split_front(&mut self, count: usize) -> Words<'a> {
        let (front, back) = self.0.split_at(count);
        self.0 = back;
        Words(front)
    }
}

/// The error for a kernel whose `part`, of `words` words at `offset`, extends past the end of `list`.
#[cold]
fn past_end_error(list: Region<'_>, offset: u64, words: u64, part: &str) -> Error {
    list.past_end_error(offset, words.saturating_mul(4)).in_field(part)
}

/// One kernel, whose lists are read in place. Every list is known to be inside the section; only
/// [verification](crate::File::verify) checks the indices in it.
#[derive(Clone, Copy, Debug)]
pub struct KernelRecord<'a> {
    start: u64,
    code: u32,
    location: u32,
    arguments: Words<'a>,
    attributes: Words<'a>,
    functions: Words<'a>,
    results: Words<'a>,
    num_used_bys: Words<'a>,
    used_bys: Words<'a>,
}

const HEADER_WORDS: usize = 6;

impl<'a> KernelRecord<'a> {
    /// The kernel at `offset`, a multiple of 4.
    // Inlined, because returning the lists through memory costs more than finding them.
    #[inline(always)]
    fn read(list: Region<'a>, offset: u64) -> Result<Self> {
        let words = list.bytes().as_chunks::<4>().0;
        let rest = usize::try_from(offset / 4).ok().and_then(|start| words.get(start..));
        let Some((header, rest)) = rest.and_then(|words| words.split_first_chunk::<HEADER_WORDS>()) else {
            return Err(past_end_error(list, offset, HEADER_WORDS as u64, "header"));
        };
        let [code, location, lists @ ..] = header.map(u32::from_le_bytes);
        let [arguments, attributes, functions, results] = lists.map(|count| count as usize);
        let Some((num_used_bys, rest)) = rest.split_at_checked(results) else {
            let at = offset + 4 * HEADER_WORDS as u64;
            return Err(past_end_error(list, at, results as u64, "num_used_bys"));
        };
        let num_used_bys = Words(num_used_bys);
        let counts = lists.into_iter().chain(num_used_bys.iter());
        let body_words = counts.fold(0u64, |sum, count| sum.saturating_add(count.into()));
        if body_words > rest.len() as u64 {
            let at = offset + 4 * (HEADER_WORDS + results) as u64;
            return Err(past_end_error(list, at, body_words, "body"));
        }
        let mut body = Words(rest.split_at(body_words as usize).0);
        let [arguments, attributes, functions, results] =
            [arguments, attributes, functions, results].map(|count| body.split_front(count));
        Ok(KernelRecord {
            start: list.start() + offset,
            code,
            location,
            arguments,
            attributes,
            functions,
            results,
            num_used_bys,
            used_bys: body,
        })
    }

    /// Absolute file offset of the kernel.
    pub fn start(&self) -> u64 {
        self.start
    }

    /// Position of the kernel's name in the Kernels section, or [`PSEUDO_KERNEL_CODE`].
    pub fn code(&self) -> u32 {
        self.code
    }

    /// Offset of the kernel's location in the Locations section.
    pub fn location(&self) -> u32 {
        self.location
    }

    /// Registers that the kernel reads.
    pub fn arguments(&self) -> Words<'a> {
        self.arguments
    }

    /// Offsets of the kernel's attributes in the Attributes section.
    pub fn attributes(&self) -> Words<'a> {
        self.attributes
    }

    /// Indices of the functions that the kernel can call: those of its symbol attributes, then its regions.
    pub fn functions(&self) -> Words<'a> {
        self.functions
    }

    /// Registers that the kernel defines.
    pub fn results(&self) -> Words<'a> {
        self.results
    }

    /// For each result, the kernels that use it; a kernel is listed once for each use.
    #[inline]
    pub fn used_bys(&self) -> impl ExactSizeIterator<Item = Words<'a>> + use<'a> {
        let mut rest = self.used_bys;
        self.num_used_bys.iter().map(move |count| rest.split_front(count as usize))
    }

    /// Size of the kernel in bytes.
    pub fn size(&self) -> u64 {
        let words = self.arguments.len() + self.attributes.len() + self.functions.len() + self.used_bys.len();
        4 * (HEADER_WORDS + words + 2 * self.results.len()) as u64
    }
}
