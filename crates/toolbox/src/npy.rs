//! NumPy arrays: `.npy` files of format version 1.0 to 3.0.
//!
//! A file is `\x93NUMPY`, two version bytes, the header's length, the header (a Python dictionary
//! with `descr`, `fortran_order` and `shape`), and the elements.

use crate::{Error, Result, stream};
use pteron_tensor::{DimOrder, ScalarType, Tensor, TensorMeta};
use std::io::{self, Read, Write};
use std::path::Path;

const MAGIC: &[u8] = b"\x93NUMPY";

/// The element types that both NumPy and Pteron support. NumPy has no bfloat16 of its own: the
/// `ml_dtypes` package writes it as `V2`, which is ambiguous (any 2-byte type), so it is not read.
const TYPES: &[(&str, ScalarType)] = &[
    ("b1", ScalarType::Bool),
    ("u1", ScalarType::Byte),
    ("i1", ScalarType::Char),
    ("i2", ScalarType::Short),
    ("i4", ScalarType::Int),
    ("i8", ScalarType::Long),
    ("u2", ScalarType::UInt16),
    ("u4", ScalarType::UInt32),
    ("u8", ScalarType::UInt64),
    ("f2", ScalarType::Half),
    ("f4", ScalarType::Float),
    ("f8", ScalarType::Double),
    ("c8", ScalarType::ComplexFloat),
    ("c16", ScalarType::ComplexDouble),
];

/// Whether elements of this type, which NumPy lacks, are written as raw bytes (`u1`).
pub(crate) fn is_written_raw(dtype: ScalarType) -> bool {
    dtype != ScalarType::BFloat16 && TYPES.iter().all(|(_, known)| *known != dtype)
}

/// Converts elements between little-endian and native byte order.
pub(crate) fn swap_on_big_endian(dtype: ScalarType, bytes: &mut [u8]) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
}

/// The maximum header size in bytes. Headers that NumPy writes take about a hundred.
const MAX_HEADER: usize = 1 << 16;

/// A `.npy` file whose header has been read: the type and sizes are known before memory is allocated for the elements.
pub struct Array<R> {
    meta: TensorMeta,
    /// Whether the elements are big-endian.
    big: bool,
    elements: R,
}

impl<R: Read> Array<R> {
    /// Reads the header. An array in Fortran order becomes a tensor with reversed dim order.
    pub fn open(mut file: R) -> Result<Self, String> {
        let mut magic = [0; 6];
        let read = read_full(&mut file, &mut magic)?;
        if magic[..read] != *MAGIC {
            return Err("not a .npy file: it does not start with \\x93NUMPY".to_owned());
        }
        let mut take = |n: usize| -> Result<Vec<u8>, String> {
            let mut bytes = vec![0; n];
            match read_full(&mut file, &mut bytes)? {
                read if read == n => Ok(bytes),
                _ => Err("the header is cut off".to_owned()),
            }
        };
        let length = match take(2)?[0] {
            1 => take(2)?,
            2 | 3 => take(4)?,
            major => return Err(format!("format version {major} is not known (1 to 3 are)")),
        };
        let length = length.iter().rev().fold(0, |n, &b| n << 8 | usize::from(b));
        if length > MAX_HEADER {
            return Err(format!("a header of {length} bytes (at most {MAX_HEADER} are read)"));
        }
        let header = take(length)?;
        let header = std::str::from_utf8(&header).map_err(|_| "the header is not text")?;

        let descr = header_field(header, "descr").and_then(unquote).ok_or("the header has no `descr`")?;
        let (dtype, big) = parse_descr(descr)?;
        let fortran = header_field(header, "fortran_order").is_some_and(|v| v.starts_with("True"));
        let sizes = header_field(header, "shape").and_then(parse_shape).ok_or("the header has no `shape`")?;
        let rank = sizes.len();
        let order = if fortran {
            DimOrder::new(&(0..rank.min(255) as u8).rev().collect::<Vec<_>>())
        } else {
            Ok(DimOrder::contiguous(rank))
        };
        let meta = order.and_then(|o| TensorMeta::new(dtype, &sizes, o)).map_err(|e| e.to_string())?;
        Ok(Self { meta, big, elements: file })
    }

    /// The type, sizes and dim order of the array.
    pub fn meta(&self) -> &TensorMeta {
        &self.meta
    }

    /// Reads the elements of the array.
    pub fn read(mut self) -> Result<Tensor, String> {
        let (nbytes, size) = (self.meta.nbytes(), self.meta.dtype().to_real().size());
        let mut tensor = Tensor::zeros(self.meta).map_err(|e| e.to_string())?;
        let mut view = tensor.view_mut();
        let bytes = view.bytes_mut();
        let read = read_full(&mut self.elements, bytes)?;
        if self.big != cfg!(target_endian = "big") {
            bytes.chunks_exact_mut(size).for_each(<[u8]>::reverse);
        }
        if read < nbytes {
            return Err(format!("{read} bytes of elements where {} needs {nbytes}", tensor.meta()));
        }
        Ok(tensor)
    }
}

/// Calls [`stream::read_full`], and converts its error to text.
fn read_full(file: &mut impl Read, buffer: &mut [u8]) -> Result<usize, String> {
    stream::read_full(file, buffer).map_err(|e| e.to_string())
}

/// Opens a `.npy` file and reads its header.
pub fn open(path: &Path) -> Result<Array<Box<dyn Read>>> {
    let file = stream::reader(path)?;
    Array::open(file).map_err(|problem| Error::bad_file(path, problem))
}

/// Reads the bytes of a `.npy` file.
pub fn parse(bytes: &[u8]) -> Result<Tensor, String> {
    Array::open(bytes)?.read()
}

/// A `.npy` file of a tensor in row-major order, ready to be written.
///
/// bfloat16 is widened to float32, which is exact. Other types that NumPy lacks (quantized, bits, float8) are written as
/// raw bytes: uint8, with an additional last dimension if an element has several bytes.
pub struct File {
    header: Vec<u8>,
    tensor: Tensor,
}

/// Number of elements that are converted at a time.
const CHUNK: usize = 4096;

impl File {
    /// A `.npy` file of a tensor, whose elements are copied to row-major order.
    pub fn new(tensor: &Tensor) -> Result<Self> {
        let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
        let mut sizes = tensor.sizes().to_vec();
        let descr = match TYPES.iter().find(|(_, t)| *t == tensor.dtype()) {
            Some((descr, _)) => *descr,
            None if tensor.dtype() == ScalarType::BFloat16 => "f4",
            None => "u1",
        };
        if descr == "u1" && tensor.dtype().size() > 1 {
            sizes.push(tensor.dtype().size());
        }
        Ok(Self { header: header(descr, &sizes), tensor })
    }

    /// The size of the file in bytes.
    pub fn bytes(&self) -> u64 {
        let wide = if self.tensor.dtype() == ScalarType::BFloat16 { 2 } else { 1 };
        self.header.len() as u64 + wide * self.tensor.nbytes() as u64
    }

    /// Writes the file.
    pub fn write_to(&self, out: &mut dyn Write) -> io::Result<()> {
        out.write_all(&self.header)?;
        let Ok(halves) = self.tensor.as_slice::<pteron_tensor::bf16>() else {
            return out.write_all(self.tensor.bytes());
        };
        let mut wide = [0f32; CHUNK];
        for piece in halves.chunks(CHUNK) {
            let wide = &mut wide[..piece.len()];
            wide.iter_mut().zip(piece).for_each(|(wide, half)| *wide = half.to_f32());
            out.write_all(bytemuck::cast_slice(wide))?;
        }
        Ok(())
    }
}

/// Magic, version, length and header, padded so that the elements are aligned to 64 bytes.
fn header(descr: &str, sizes: &[usize]) -> Vec<u8> {
    let order = match (descr.ends_with('1'), cfg!(target_endian = "big")) {
        (true, _) => '|',
        (false, false) => '<',
        (false, true) => '>',
    };
    let shape = sizes.iter().map(|d| format!("{d},")).collect::<Vec<_>>().join(" ");
    let mut text = format!("{{'descr': '{order}{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let unpadded = MAGIC.len() + 4 + text.len() + 1;
    text.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    text.push('\n');
    [MAGIC, &[1, 0], &(text.len() as u16).to_le_bytes(), text.as_bytes()].concat()
}

/// Writes a tensor as a `.npy` file.
pub fn write(path: &Path, tensor: &Tensor) -> Result<()> {
    let file = File::new(tensor)?;
    pteron_runtime::replace_file(path, |out| file.write_to(out).map_err(Error::write(path)))
}

/// The text after `'name':` in the header; `None` if the header has no field of this name.
fn header_field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))? + name.len() + 2;
    Some(header[at..].trim_start().strip_prefix(':')?.trim_start())
}

fn unquote(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split(quote).next()
}

fn parse_shape(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.split(')').next()?;
    inner.split(',').map(str::trim).filter(|d| !d.is_empty()).map(|d| d.parse().ok()).collect()
}

/// Parses a type description: the scalar type, and whether the bytes are big-endian.
fn parse_descr(descr: &str) -> Result<(ScalarType, bool), String> {
    let (big, name) = match descr.as_bytes().first() {
        Some(b'>') => (true, &descr[1..]),
        Some(b'<' | b'|' | b'=') => (false, &descr[1..]),
        _ => (false, descr),
    };
    let known = TYPES.iter().find(|(n, _)| *n == name);
    known.map(|&(_, t)| (t, big)).ok_or_else(|| {
        let names: Vec<&str> = TYPES.iter().map(|(n, _)| *n).collect();
        format!("elements of type `{descr}` are not supported (these are: {})", names.join(", "))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use pteron_tensor::{bf16, f16};

    fn to_bytes(tensor: &Tensor) -> Vec<u8> {
        let (file, mut bytes) = (File::new(tensor).unwrap(), Vec::new());
        file.write_to(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, file.bytes());
        bytes
    }

    #[test]
    fn reads_what_numpy_writes() {
        // numpy.save of numpy.array([[1, 2, 3]], dtype='<i4')
        let mut file =
            b"\x93NUMPY\x01\0v\0{'descr': '<i4', 'fortran_order': False, 'shape': (1, 3), }".to_vec();
        file.resize(127, b' ');
        file.push(b'\n');
        file.extend([1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]);
        let t = parse(&file).unwrap();
        assert_eq!((t.dtype(), &**t.sizes()), (ScalarType::Int, &[1, 3][..]));
        assert_eq!(t.as_slice::<i32>().unwrap(), [1, 2, 3]);
    }

    #[test]
    fn fortran_order_and_big_endian_are_understood() {
        let head = "{'descr': '>i2', 'fortran_order': True, 'shape': (2, 2), }\n";
        let mut file = [MAGIC, &[1, 0], &(head.len() as u16).to_le_bytes(), head.as_bytes()].concat();
        file.extend([0, 1, 0, 2, 0, 3, 0, 4]);
        let t = parse(&file).unwrap().to_dim_order(DimOrder::contiguous(2)).unwrap();
        assert_eq!(t.as_slice::<i16>().unwrap(), [1, 3, 2, 4]);
    }

    #[test]
    fn malformed_files_are_refused() {
        for (bytes, problem) in [
            (&b"nothing"[..], "not a .npy file"),
            (b"\x93NUMPY\x01\0\xff\xff{", "cut off"),
            (b"\x93NUMPY\x09\0\0\0", "version 9"),
            (b"\x93NUMPY\x01\0\x02\0{}", "no `descr`"),
        ] {
            let e = parse(bytes).unwrap_err();
            assert!(e.contains(problem), "{e}");
        }
        let head = "{'descr': '<U4', 'fortran_order': False, 'shape': (2,), }";
        let file = [MAGIC, &[1, 0], &(head.len() as u16).to_le_bytes(), head.as_bytes()].concat();
        assert!(parse(&file).unwrap_err().contains("`<U4`"));
    }

    #[test]
    fn bfloat16_is_widened() {
        let t = Tensor::from_slice(&[2], &[bf16::from_f32(1.5), bf16::from_f32(-2.0)]).unwrap();
        let back = parse(&to_bytes(&t)).unwrap();
        assert_eq!(back.as_slice::<f32>().unwrap(), [1.5, -2.0]);
    }

    proptest! {
        #[test]
        fn arrays_round_trip(sizes in prop::collection::vec(0usize..5, 0..4), seed in any::<u32>()) {
            let n: usize = sizes.iter().product();
            let halves: Vec<f16> = (0..n).map(|i| f16::from_bits((seed as usize + i) as u16 & 0x7bff)).collect();
            let t = Tensor::from_slice(&sizes, &halves).unwrap();
            let file = to_bytes(&t);
            prop_assert_eq!(file.len() % 64, (n * 2) % 64);
            let back = parse(&file).unwrap();
            prop_assert_eq!(&**back.sizes(), &sizes[..]);
            prop_assert_eq!(back.as_slice::<f16>().unwrap(), &halves[..]);
        }

        #[test]
        fn arbitrary_bytes_do_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse(&[MAGIC, &[1, 0, 100, 0], &bytes].concat());
        }
    }
}
