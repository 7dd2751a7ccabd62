use super::*;
use crate::{ErrorKind, Limits};

/// A file under construction.
struct Maker(Vec<u8>);

impl Maker {
    fn new(tensors: u64, entries: u64) -> Self {
        let mut maker = Self(b"GGUF".to_vec());
        maker.put(&3u32.to_le_bytes()).put(&tensors.to_le_bytes()).put(&entries.to_le_bytes());
        maker
    }

    fn put(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn string(&mut self, text: &str) -> &mut Self {
        self.put(&(text.len() as u64).to_le_bytes()).put(text.as_bytes())
    }

    fn entry(&mut self, key: &str, kind: u32, value: &[u8]) -> &mut Self {
        self.string(key).put(&kind.to_le_bytes()).put(value)
    }

    /// A tensor entry, with sizes in the file's order.
    fn tensor(&mut self, name: &str, sizes: &[u64], kind: u32, offset: u64) -> &mut Self {
        self.string(name).put(&(sizes.len() as u32).to_le_bytes());
        for size in sizes {
            self.put(&size.to_le_bytes());
        }
        self.put(&kind.to_le_bytes()).put(&offset.to_le_bytes())
    }

    fn data(&mut self, bytes: usize) -> &mut Self {
        let start = self.0.len().next_multiple_of(32);
        self.0.resize(start + bytes, 7);
        self
    }

    fn read(&self) -> crate::Result<Gguf> {
        read(&self.0[..], self.0.len() as u64, &Limits::default())
    }
}

/// A small file with a bit of everything.
fn small() -> Maker {
    let mut maker = Maker::new(2, 4);
    maker
        .entry("general.name", 8, &[&4u64.to_le_bytes()[..], b"tiny"].concat())
        .entry("blocks", 4, &5u32.to_le_bytes())
        .entry("tied", 7, &[1])
        .entry("shift", 1, &[0xff])
        .tensor("a", &[32, 2], 8, 0)
        .tensor("b", &[3], 0, 96)
        .data(96 + 12);
    maker
}

#[test]
fn metadata_and_tensors_are_read() {
    let file = small().read().unwrap();
    let entry = |i: usize| (file.metadata[i].0.as_str(), &file.metadata[i].1);
    assert_eq!(entry(0), ("general.name", &Value::String("tiny".to_owned())));
    assert_eq!(entry(1), ("blocks", &Value::Unsigned(5)));
    assert_eq!(entry(2), ("tied", &Value::Bool(true)));
    assert_eq!(entry(3), ("shift", &Value::Signed(-1)));
    let [a, b] = &file.tensors[..] else { panic!("{:?}", file.tensors) };
    assert_eq!((a.name.as_str(), &a.sizes[..], a.kind.name()), ("a", &[2, 32][..], "Q8_0"));
    assert_eq!(a.data.end - a.data.start, 68);
    assert_eq!((b.data.start - a.data.start, b.data.end - b.data.start), (96, 12));
    assert_eq!(a.data.start % file.alignment, 0);
}

#[test]
fn long_arrays_are_skipped() {
    let mut maker = Maker::new(0, 4);
    let words: Vec<u8> =
        (0..1000u32).flat_map(|i| [&3u64.to_le_bytes()[..], &[b'a' + (i % 26) as u8; 3]].concat()).collect();
    let array =
        |kind: u32, len: u64, values: &[u8]| [&kind.to_le_bytes()[..], &len.to_le_bytes(), values].concat();
    maker
        .entry("words", 9, &array(8, 1000, &words))
        .entry("scores", 9, &array(6, 20, &[0; 80]))
        .entry("nested", 9, &array(9, 17, &array(5, 1, &(-7i32).to_le_bytes()).repeat(17)))
        .entry("none", 9, &array(0, 0, &[]));
    let file = maker.read().unwrap();
    let Value::Array { len: 1000, first } = &file.metadata[0].1 else { panic!() };
    assert_eq!(first.len(), Value::KEPT);
    assert_eq!(first[1], Value::String("bbb".to_owned()));
    assert!(file.metadata[1].1.to_string().ends_with("… 20 in all]"));
    assert!(file.metadata[2].1.to_string().starts_with("[[-7], [-7]"));
    assert_eq!(file.metadata[3].1.to_string(), "[]");
}

#[test]
fn dequantized_blocks_match_the_reference_package() {
    let mut kinds = 0;
    for line in include_str!("../../tests/data/gguf_blocks.txt").lines().filter(|l| !l.starts_with('#')) {
        let mut words = line.split(' ');
        let (name, hex) = (words.next().unwrap(), words.next().unwrap());
        let kind = *KINDS.iter().find(|kind| kind.name() == name).unwrap();
        let digit = |i: usize| u8::from_str_radix(&hex[i..i + 2], 16).unwrap();
        let block: Vec<u8> = (0..hex.len()).step_by(2).map(digit).collect();
        let mut numbers = Vec::new();
        assert!(kind.dequantize(&block, &mut numbers));
        assert_eq!(numbers.len() as u64, kind.block_elements());
        for (place, expected) in words.map(|word| word.split_once(':').unwrap()) {
            let expected: f64 = expected.parse().unwrap();
            let actual: f64 = match place.parse::<usize>() {
                Ok(i) => numbers[i].into(),
                Err(_) => numbers.iter().map(|&v| f64::from(v)).sum(),
            };
            assert!((actual - expected).abs() <= 1e-6 * expected.abs().max(1.0), "{name} {place}: {actual}");
        }
        kinds += 1;
    }
    assert_eq!(kinds, 8);
    assert!(!TensorKind::from_number(16).unwrap().dequantize(&[0; 66], &mut Vec::new()));
}

#[test]
fn malformed_files_are_rejected() {
    let refused = |maker: &mut Maker| maker.read().unwrap_err();
    let tensor =
        |sizes: &[u64], kind, offset| refused(Maker::new(1, 0).tensor("a", sizes, kind, offset).data(64));
    for (error, kind, says) in [
        (refused(&mut Maker(b"GGML".repeat(9))), ErrorKind::NotThisFormat, "`GGUF`"),
        (refused(&mut Maker(b"GGUF\0\0\0\x03".to_vec())), ErrorKind::Unsupported, "little-endian"),
        (refused(&mut Maker(b"GGUF\x01\0\0\0".to_vec())), ErrorKind::Unsupported, "2 or 3"),
        (refused(&mut Maker(b"GGUF\x04\0\0\0".to_vec())), ErrorKind::Newer, "2 or 3"),
        (refused(&mut Maker::new(u64::MAX, 0)), ErrorKind::Limit, "tensor_count"),
        (refused(&mut Maker::new(0, 1 << 20)), ErrorKind::Truncated, "metadata_kv_count"),
        (tensor(&[1 << 40, 1 << 40], 0, 0), ErrorKind::Limit, "a tensor of at most"),
        (tensor(&[31], 8, 0), ErrorKind::Invalid, "whole blocks of 32"),
        (tensor(&[4], 0, 33), ErrorKind::Invalid, "a multiple of 32"),
        (tensor(&[4], 0, 64), ErrorKind::Truncated, "within the file"),
        (tensor(&[4], 0, u64::MAX - 8), ErrorKind::Truncated, "within the file"),
        (tensor(&[4], 99, 0), ErrorKind::Newer, "a type of tensor"),
        (tensor(&[1; 9], 0, 0), ErrorKind::Limit, "n_dimensions"),
        (refused(Maker::new(0, 1).entry("k", 7, &[2]).data(32)), ErrorKind::Invalid, "a truth value"),
        (refused(Maker::new(0, 1).entry("k", 13, &[2]).data(32)), ErrorKind::Newer, "from 0 to 12"),
        (refused(Maker::new(0, 2).entry("k", 0, &[2]).entry("k", 0, &[2])), ErrorKind::Invalid, "`k` again"),
        (
            refused(Maker::new(0, 1).entry("general.alignment", 4, &[0; 4]).data(32)),
            ErrorKind::Invalid,
            "general.alignment",
        ),
        (
            refused(Maker::new(0, 1).string("k").put(&9u32.to_le_bytes()).put(&nest(100))),
            ErrorKind::Limit,
            "one another",
        ),
        (
            refused(Maker::new(0, 1).entry("k", 8, &(1u64 << 60).to_le_bytes())),
            ErrorKind::Limit,
            "a text of at most",
        ),
    ] {
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Arrays of one element each, nested to this depth.
fn nest(depth: usize) -> Vec<u8> {
    [&9u32.to_le_bytes()[..], &1u64.to_le_bytes()].concat().repeat(depth)
}

#[test]
fn truncation_and_bit_flips_never_panic() {
    let file = small().0;
    for end in 0..file.len() {
        assert!(read(&file[..end], end as u64, &Limits::default()).is_err(), "{end}");
    }
    let head = file.len() - 108;
    for bit in 0..head * 8 {
        let mut file = file.clone();
        file[bit / 8] ^= 1 << (bit % 8);
        if let Ok(read) = read(&file[..], file.len() as u64, &Limits::default()) {
            assert!(read.tensors.iter().all(|t| t.data.end <= file.len() as u64));
        }
    }
}
