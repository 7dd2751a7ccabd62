//! Arrays of NumPy: `.npy` files of format 1.0 to 3.0.
//!
//! A file is `\x93NUMPY`, two version bytes, the header's length, the header (a Python dictionary
//! with `descr`, `fortran_order` and `shape`), and the elements.

use crate::{Error, Result, stream};
use std::path::Path;
use tensor::{DimOrder, ScalarType, Tensor, TensorMeta};

const MAGIC: &[u8] = b"\x93NUMPY";

/// The types that both NumPy and Pteron have. NumPy has no bfloat16 of its own: files of the
/// `ml_dtypes` package say `V2`, which other 2-byte types could mean too, so it is not read.
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

/// Whether elements of this type are written as the bytes they are made of.
pub(crate) fn raw(dtype: ScalarType) -> bool {
    dtype != ScalarType::BFloat16 && TYPES.iter().all(|(_, known)| *known != dtype)
}

/// Turns elements from little-endian to the order of the host, or back.
pub(crate) fn swap_on_big_endian(dtype: ScalarType, bytes: &mut [u8]) {
    if cfg!(target_endian = "big") {
        bytes.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
}

/// Reads the bytes of a `.npy` file. Arrays in Fortran order become tensors whose dim order is
/// reversed.
pub fn parse(bytes: &[u8]) -> Result<Tensor, String> {
    let rest = bytes.strip_prefix(MAGIC).ok_or("not a .npy file: it does not start with \\x93NUMPY")?;
    let (&[major, _], rest) = rest.split_first_chunk::<2>().ok_or("the header is cut off")?;
    let (length, rest) = match major {
        1 => rest.split_first_chunk::<2>().map(|(n, r)| (u16::from_le_bytes(*n) as usize, r)),
        2 | 3 => rest.split_first_chunk::<4>().map(|(n, r)| (u32::from_le_bytes(*n) as usize, r)),
        _ => return Err(format!("format version {major} is not known (1 to 3 are)")),
    }
    .ok_or("the header is cut off")?;
    let (header, data) = rest.split_at_checked(length).ok_or("the header is cut off")?;
    let header = std::str::from_utf8(header).map_err(|_| "the header is not text")?;

    let descr = field(header, "descr").and_then(quoted).ok_or("the header has no `descr`")?;
    let (dtype, swap) = parse_descr(descr)?;
    let fortran = field(header, "fortran_order").is_some_and(|v| v.starts_with("True"));
    let sizes = field(header, "shape").and_then(parse_shape).ok_or("the header has no `shape`")?;

    let rank = sizes.len();
    let order = if fortran {
        DimOrder::new(&(0..rank.min(255) as u8).rev().collect::<Vec<_>>())
    } else {
        Ok(DimOrder::contiguous(rank))
    };
    let meta = order.and_then(|o| TensorMeta::new(dtype, &sizes, o)).map_err(|e| e.to_string())?;
    let nbytes = meta.nbytes();
    if data.len() < nbytes {
        return Err(format!("{} bytes of elements where {meta} needs {nbytes}", data.len()));
    }
    let mut data = data[..nbytes].to_vec();
    if swap != cfg!(target_endian = "big") {
        data.chunks_exact_mut(dtype.to_real().size()).for_each(<[u8]>::reverse);
    }
    Tensor::from_bytes(meta, &data).map_err(|e| e.to_string())
}

/// Reads a `.npy` file.
pub fn read(path: &Path) -> Result<Tensor> {
    let bytes = stream::read(path)?;
    parse(&bytes).map_err(|problem| Error::bad_file(path, problem))
}

/// Writes a tensor in row-major order as the bytes of a `.npy` file.
///
/// float16 and wider have their NumPy types. bfloat16 is widened to float32, exactly; types that
/// NumPy lacks (quantized, bits, float8) are written as the bytes they are made of.
pub fn to_bytes(tensor: &Tensor) -> Result<Vec<u8>> {
    let tensor = tensor.to_dim_order(DimOrder::contiguous(tensor.rank()))?;
    let widened;
    let (descr, mut sizes, data) = match TYPES.iter().find(|(_, t)| *t == tensor.dtype()) {
        Some((descr, _)) => (*descr, tensor.sizes().to_vec(), tensor.bytes()),
        None if tensor.dtype() == ScalarType::BFloat16 => {
            widened = tensor.as_slice::<tensor::bf16>()?.iter().map(|v| v.to_f32()).collect::<Vec<_>>();
            ("f4", tensor.sizes().to_vec(), bytemuck::cast_slice(&widened))
        }
        None => ("u1", tensor.sizes().to_vec(), tensor.bytes()),
    };
    if descr == "u1" && tensor.dtype().size() > 1 {
        sizes.push(tensor.dtype().size());
    }
    let order = match (descr.ends_with('1'), cfg!(target_endian = "big")) {
        (true, _) => '|',
        (false, false) => '<',
        (false, true) => '>',
    };
    let shape = sizes.iter().map(|d| format!("{d},")).collect::<Vec<_>>().join(" ");
    let mut header = format!("{{'descr': '{order}{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
    let unpadded = MAGIC.len() + 4 + header.len() + 1;
    header.extend(std::iter::repeat_n(' ', unpadded.next_multiple_of(64) - unpadded));
    header.push('\n');

    let mut out = Vec::with_capacity(MAGIC.len() + 4 + header.len() + data.len());
    out.extend_from_slice(MAGIC);
    out.extend_from_slice(&[1, 0]);
    out.extend_from_slice(&(header.len() as u16).to_le_bytes());
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(data);
    Ok(out)
}

/// Writes a tensor as a `.npy` file, as [`to_bytes`] does.
pub fn write(path: &Path, tensor: &Tensor) -> Result<()> {
    let bytes = to_bytes(tensor)?;
    runtime::replace_file(path, |out| out.write_all(&bytes).map_err(Error::write(path)))
}

/// What follows `'name':` in the header.
fn field<'a>(header: &'a str, name: &str) -> Option<&'a str> {
    let at = header.find(&format!("'{name}'"))? + name.len() + 2;
    Some(header[at..].trim_start().strip_prefix(':')?.trim_start())
}

fn quoted(text: &str) -> Option<&str> {
    let quote = text.chars().next().filter(|c| matches!(c, '\'' | '"'))?;
    text[1..].split(quote).next()
}

fn parse_shape(text: &str) -> Option<Vec<usize>> {
    let inner = text.strip_prefix('(')?.split(')').next()?;
    inner.split(',').map(str::trim).filter(|d| !d.is_empty()).map(|d| d.parse().ok()).collect()
}

/// The scalar type, and whether the bytes are big-endian.
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
    use tensor::{bf16, f16};

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
    fn broken_files_are_named() {
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
        let back = parse(&to_bytes(&t).unwrap()).unwrap();
        assert_eq!(back.as_slice::<f32>().unwrap(), [1.5, -2.0]);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(sizes in prop::collection::vec(0usize..5, 0..4), seed in any::<u32>()) {
            let n: usize = sizes.iter().product();
            let halves: Vec<f16> = (0..n).map(|i| f16::from_bits((seed as usize + i) as u16 & 0x7bff)).collect();
            let t = Tensor::from_slice(&sizes, &halves).unwrap();
            let file = to_bytes(&t).unwrap();
            prop_assert_eq!(file.len() % 64, (n * 2) % 64);
            let back = parse(&file).unwrap();
            prop_assert_eq!(&**back.sizes(), &sizes[..]);
            prop_assert_eq!(back.as_slice::<f16>().unwrap(), &halves[..]);
        }

        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
            let _ = parse(&[MAGIC, &[1, 0, 100, 0], &bytes].concat());
        }
    }
}
