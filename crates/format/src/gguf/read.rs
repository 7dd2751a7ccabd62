use super::{Gguf, Tensor, TensorKind, Value};
use crate::container::align_up;
use crate::{Error, ErrorKind, Limits, Result};
use std::collections::HashSet;
use std::io::Read;

/// The default alignment of tensor data, in bytes.
const ALIGNMENT: u64 = 32;
/// The metadata key that sets the alignment of tensor data.
const ALIGNMENT_KEY: &str = "general.alignment";
/// The maximum number of dimensions of a tensor; the format allows four.
const DIMS: u32 = 8;
/// The minimum size of a tensor's entry in the header, in bytes.
const TENSOR_BYTES: u64 = 24;
/// The minimum size of a metadata entry, in bytes.
const ENTRY_BYTES: u64 = 13;

/// Reads the header of a file of `file_len` bytes from its start, and nothing beyond the header. The reads are small, so `head` should be
/// buffered.
pub fn read(head: impl Read, file_len: u64, limits: &Limits) -> Result<Gguf> {
    let mut head = Head { inner: head, at: 0, len: file_len, limits };
    let magic: [u8; 4] = head.read_bytes("magic")?;
    if &magic != b"GGUF" {
        let actual = format!("{magic:02x?}");
        return Err(Error::new(ErrorKind::NotThisFormat, "", "`GGUF`", actual).at(0));
    }
    let version = head.u32("version")?;
    match version {
        2 | 3 => {}
        v if v.swap_bytes() <= 3 => {
            let expected = "a little-endian file";
            return Err(Error::new(ErrorKind::Unsupported, "", expected, "a big-endian one").at(4));
        }
        1 => {
            let e = Error::new(ErrorKind::Unsupported, "version", "2 or 3", 1).at(4);
            return Err(e.hint("write the file again with a tool of 2023 or later"));
        }
        v => return Err(Error::new(ErrorKind::Newer, "version", "2 or 3", v).at(4)),
    }
    let tensors = head.count("tensor_count", TENSOR_BYTES)?;
    let entries = head.count("metadata_kv_count", ENTRY_BYTES)?;

    let mut metadata = Vec::new();
    let mut keys = HashSet::new();
    for i in 0..entries {
        let (key, value) = head.entry(i)?;
        check_unique(&mut keys, &key, || format!("metadata[{i}].key"))?;
        metadata.push((key, value));
    }
    let alignment = match metadata.iter().find(|(key, _)| key == ALIGNMENT_KEY) {
        None => ALIGNMENT,
        Some((_, Value::Unsigned(n))) if (1..=1 << 30).contains(n) => *n,
        Some((_, value)) => {
            return Err(Error::new(ErrorKind::Invalid, ALIGNMENT_KEY, "1 to 2^30 bytes", value));
        }
    };

    let mut names = HashSet::new();
    let mut all = Vec::new();
    for i in 0..tensors {
        let tensor = head.tensor().map_err(|e| e.within(&format!("tensors[{i}]")))?;
        check_unique(&mut names, &tensor.name, || format!("tensors[{i}].name"))?;
        all.push(tensor);
    }
    let data = align_up(head.at, alignment).unwrap_or(u64::MAX);
    for (i, tensor) in all.iter_mut().enumerate() {
        let range = &mut tensor.data;
        let (start, end) = (data.checked_add(range.start), data.checked_add(range.end));
        let fault =
            |kind, expected, actual| Err(Error::new(kind, format!("tensors[{i}].offset"), expected, actual));
        match start.zip(end).filter(|(_, end)| *end <= file_len) {
            Some(_) if range.start % alignment != 0 => {
                let expected = format!("a multiple of {alignment}");
                return fault(ErrorKind::Invalid, expected, range.start.to_string());
            }
            Some((start, end)) => *range = start..end,
            None => {
                let expected = format!("data within the file of {file_len} bytes");
                let actual = format!("{} bytes from {} on", range.end - range.start, range.start);
                return fault(ErrorKind::Truncated, expected, actual);
            }
        }
    }
    Ok(Gguf { version, alignment, metadata, tensors: all })
}

/// Rejects duplicate names.
fn check_unique(seen: &mut HashSet<String>, name: &str, path: impl FnOnce() -> String) -> Result<()> {
    match seen.insert(name.to_owned()) {
        true => Ok(()),
        false => {
            let actual = format!("`{name}` again");
            Err(Error::new(ErrorKind::Invalid, path(), "a name of its own", actual))
        }
    }
}

/// The header of the file, read from front to back.
struct Head<'l, R> {
    inner: R,
    at: u64,
    /// The length of the file in bytes.
    len: u64,
    limits: &'l Limits,
}

impl<R: Read> Head<'_, R> {
    fn check_remaining(&self, bytes: u64, path: &str) -> Result<()> {
        match bytes <= self.len.saturating_sub(self.at) {
            true => Ok(()),
            false => {
                let actual = format!("the end of the file after {}", self.len.saturating_sub(self.at));
                Err(Error::new(ErrorKind::Truncated, path, format!("{bytes} bytes"), actual).at(self.at))
            }
        }
    }

    fn read_bytes<const N: usize>(&mut self, path: &str) -> Result<[u8; N]> {
        self.check_remaining(N as u64, path)?;
        let mut bytes = [0; N];
        self.inner.read_exact(&mut bytes)?;
        self.at += N as u64;
        Ok(bytes)
    }

    fn u32(&mut self, path: &str) -> Result<u32> {
        self.read_bytes(path).map(u32::from_le_bytes)
    }

    fn u64(&mut self, path: &str) -> Result<u64> {
        self.read_bytes(path).map(u64::from_le_bytes)
    }

    /// Reads a count of items. Fails if it exceeds the limits, or if the rest of the file has no room for as many items of
    /// `each` bytes.
    fn count(&mut self, path: &str, each: u64) -> Result<u64> {
        let place = self.at;
        let count = self.u64(path)?;
        let most = self.limits.vector_len;
        if count > most {
            let expected = format!("at most {most}");
            return Err(Error::new(ErrorKind::Limit, path, expected, count).at(place));
        }
        self.check_remaining(count.saturating_mul(each), path)?;
        Ok(count)
    }

    fn string(&mut self, path: &str) -> Result<String> {
        let place = self.at;
        let len = self.string_len(path)?;
        let mut bytes = Vec::new();
        self.inner.by_ref().take(len).read_to_end(&mut bytes)?;
        if bytes.len() as u64 != len {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.at += len;
        String::from_utf8(bytes)
            .map_err(|_| Error::new(ErrorKind::Invalid, path, "text in UTF-8", "other bytes").at(place))
    }

    fn string_len(&mut self, path: &str) -> Result<u64> {
        let place = self.at;
        let len = self.u64(path)?;
        let most = self.limits.string_bytes;
        if len > most {
            let expected = format!("a text of at most {most} bytes");
            return Err(Error::new(ErrorKind::Limit, path, expected, format!("{len} bytes")).at(place));
        }
        self.check_remaining(len, path)?;
        Ok(len)
    }

    fn skip(&mut self, bytes: u64, path: &str) -> Result<()> {
        self.check_remaining(bytes, path)?;
        let skipped = std::io::copy(&mut self.inner.by_ref().take(bytes), &mut std::io::sink())?;
        if skipped != bytes {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        self.at += bytes;
        Ok(())
    }

    fn entry(&mut self, i: u64) -> Result<(String, Value)> {
        let key = self.string(&format!("metadata[{i}].key"))?;
        let path = format!("metadata.{key}");
        let kind = self.u32(&path)?;
        let value = self.value(kind, &path, 0)?;
        Ok((key, value))
    }

    /// Reads a value of this kind. Arrays may be nested as deep as the limits allow.
    fn value(&mut self, kind: u32, path: &str, depth: u32) -> Result<Value> {
        Ok(match kind {
            0 => Value::Unsigned(self.read_bytes::<1>(path)?[0].into()),
            1 => Value::Signed(i8::from_le_bytes(self.read_bytes(path)?).into()),
            2 => Value::Unsigned(u16::from_le_bytes(self.read_bytes(path)?).into()),
            3 => Value::Signed(i16::from_le_bytes(self.read_bytes(path)?).into()),
            4 => Value::Unsigned(self.u32(path)?.into()),
            5 => Value::Signed(i32::from_le_bytes(self.read_bytes(path)?).into()),
            6 => Value::Float(f32::from_le_bytes(self.read_bytes(path)?).into()),
            7 => match self.read_bytes::<1>(path)? {
                [byte @ (0 | 1)] => Value::Bool(byte == 1),
                [byte] => {
                    let e = Error::new(ErrorKind::Invalid, path, "0 or 1, a truth value", byte);
                    return Err(e.at(self.at - 1));
                }
            },
            8 => Value::String(self.string(path)?),
            9 => self.values(path, depth)?,
            10 => Value::Unsigned(self.u64(path)?),
            11 => Value::Signed(i64::from_le_bytes(self.read_bytes(path)?)),
            12 => Value::Float(f64::from_le_bytes(self.read_bytes(path)?)),
            kind => {
                let expected = "a type of value from 0 to 12";
                return Err(Error::new(ErrorKind::Newer, path, expected, kind).at(self.at - 4));
            }
        })
    }

    fn values(&mut self, path: &str, depth: u32) -> Result<Value> {
        if depth >= self.limits.nesting {
            let expected = format!("at most {} arrays in one another", self.limits.nesting);
            return Err(Error::new(ErrorKind::Limit, path, expected, "more").at(self.at));
        }
        let kind = self.u32(path)?;
        let width = value_size(kind);
        let len = self.count(path, width.unwrap_or(8))?;
        let stored = len.min(Value::KEPT as u64);
        let first = (0..stored).map(|_| self.value(kind, path, depth + 1)).collect::<Result<Vec<_>>>()?;
        match width {
            Some(width) => self.skip((len - stored).saturating_mul(width), path)?,
            None if kind == 8 => {
                for _ in stored..len {
                    let len = self.string_len(path)?;
                    self.skip(len, path)?;
                }
            }
            None => {
                for _ in stored..len {
                    self.value(kind, path, depth + 1)?;
                }
            }
        }
        Ok(Value::Array { len, first })
    }

    /// Reads a tensor's entry; its data range is relative to the start of the data.
    fn tensor(&mut self) -> Result<Tensor> {
        let name = self.string("name")?;
        let place = self.at;
        let rank = self.u32("n_dimensions")?;
        if rank > DIMS {
            let expected = format!("at most {DIMS}");
            return Err(Error::new(ErrorKind::Limit, "n_dimensions", expected, rank).at(place));
        }
        let mut sizes = (0..rank).map(|_| self.u64("dimensions")).collect::<Result<Vec<_>>>()?;
        sizes.reverse();
        let place = self.at;
        let number = self.u32("type")?;
        let Some(kind) = TensorKind::from_number(number) else {
            let e = Error::new(ErrorKind::Newer, "type", "a type of tensor that is known", number);
            return Err(e.at(place));
        };
        let row = sizes.last().copied().unwrap_or(1);
        if row % kind.elements != 0 {
            let expected = format!("rows of whole blocks of {} elements", kind.elements);
            return Err(Error::new(ErrorKind::Invalid, "dimensions", expected, row).at(place));
        }
        let bytes = sizes
            .iter()
            .try_fold(1u64, |n, &size| n.checked_mul(size))
            .and_then(|elements| (elements / kind.elements).checked_mul(kind.bytes))
            .filter(|&bytes| bytes <= self.limits.tensor_bytes);
        let Some(bytes) = bytes else {
            let expected = format!("a tensor of at most {} bytes", self.limits.tensor_bytes);
            let actual = format!("sizes {sizes:?}");
            return Err(Error::new(ErrorKind::Limit, "dimensions", expected, actual).at(place));
        };
        let offset = self.u64("offset")?;
        Ok(Tensor { name, sizes, kind, data: offset..offset.saturating_add(bytes) })
    }
}

/// The size of a value of this kind in bytes, if it is fixed.
fn value_size(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}
