//! Data survives being read, written and read again.

mod support;

use proptest::prelude::*;
use pteron_format::Limits;
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, Header, TensorLayout, VerifiedFlatTensor};
use std::io::{self, Write};
use std::ops::Range;

fn open(file: &[u8]) -> VerifiedFlatTensor {
    let header = Header::parse(&file[..file.len().min(64)], file.len() as u64).unwrap();
    let tables = &file[..usize::try_from(header.tables_size).unwrap()];
    VerifiedFlatTensor::read(tables, &header, &Limits::default()).unwrap()
}

fn slice(file: &[u8], range: Range<u64>) -> &[u8] {
    &file[usize::try_from(range.start).unwrap()..usize::try_from(range.end).unwrap()]
}

#[test]
fn rewritten_files_hold_the_same_entries() {
    for path in support::corpus("ptd") {
        let file = std::fs::read(&path).unwrap();
        let old = open(&file);
        let mut written = Vec::new();
        let builder = Builder::from_flat_tensor(&old, |range| Blob::bytes(slice(&file, range)));
        let header = builder.write(&mut written).unwrap();
        assert_eq!(header.file_len, written.len() as u64);
        let new = open(&written);
        assert_eq!(*new.header(), header);
        assert_eq!(new.named_data.len(), old.named_data.len());
        for (was, is) in old.named_data.iter().zip(&new.named_data) {
            assert_eq!((&was.key, &was.tensor_layout), (&is.key, &is.tensor_layout));
            assert_eq!(slice(&written, new.data_range(is)), slice(&file, old.data_range(was)));
        }
        let mut again = Vec::new();
        Builder::from_flat_tensor(&new, |range| Blob::bytes(slice(&written, range)))
            .write(&mut again)
            .unwrap();
        assert_eq!(again, written);
    }
}

#[test]
fn a_file_without_entries() {
    let mut written = Vec::new();
    Builder::new().write(&mut written).unwrap();
    assert!(open(&written).named_data.is_empty());
}

#[test]
fn invalid_files_are_not_written() {
    let layout = |sizes: &[i32]| TensorLayout {
        scalar_type: 6,
        sizes: sizes.to_vec(),
        dim_order: (0..sizes.len() as u8).collect(),
    };
    let refused = |make: &dyn Fn(&mut Builder<'static>)| {
        let mut builder = Builder::new();
        make(&mut builder);
        let mut out = Vec::new();
        let error = builder.write(&mut out).unwrap_err().to_string();
        assert!(out.is_empty());
        error
    };
    let blob = |len: usize| Blob::bytes(vec![1; len]);
    let twice = refused(&|b| _ = b.blob("a", blob(1)).blob("a", blob(2)));
    assert_eq!(twice, "named_data[1].key: expected a key other than that of named_data[0], found `a`");
    let short = refused(&|b| _ = b.tensor("w", layout(&[2, 3]), blob(23)));
    assert!(short.contains("a segment that holds the 24 bytes of `w`"), "{short}");
    let lying = Blob::stream(5, |out| out.write_all(b"abc"));
    // Found before anything is written, because the blob is compared with others of its length.
    let lying = refused(&|b| _ = b.blob("honest", blob(5)).blob("liar", lying.clone()));
    assert!(lying.contains("expected 5 bytes of data, as announced, found 3"), "{lying}");
    let alignment = refused(&|b| b.segment_alignment = 0);
    assert!(alignment.starts_with("segment_alignment: expected a power of two"));
}

/// Counts the bytes written, and keeps only the length of the longest piece.
struct Count {
    total: u64,
    longest: usize,
}

impl Write for Count {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.total += bytes.len() as u64;
        self.longest = self.longest.max(bytes.len());
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn large_data_is_streamed() {
    const PIECE: usize = 1 << 16;
    const LEN: u64 = 64 << 20;
    let mut builder = Builder::new();
    for name in ["a", "b"] {
        let fill = name.as_bytes()[0];
        let blob = Blob::stream(LEN, move |out| {
            let piece = vec![fill; PIECE];
            (0..LEN / PIECE as u64).try_for_each(|_| out.write_all(&piece))
        });
        builder.blob(name, blob);
    }
    let prepared = builder.prepare().unwrap();
    let mut count = Count { total: 0, longest: 0 };
    prepared.write_to(&mut count).unwrap();
    assert_eq!(count.total, prepared.header().file_len);
    assert!(count.total >= 2 * LEN && count.longest <= PIECE);
}

fn entries() -> impl Strategy<Value = Vec<(String, Option<Vec<i32>>, Vec<u8>, u32)>> {
    let entry =
        ("[a-z.]{0,12}", proptest::option::of(prop::collection::vec(0i32..5, 0..4)), any::<u8>(), 0u32..8);
    prop::collection::vec(entry, 0..12).prop_map(|entries| {
        let entry = |(i, (name, sizes, fill, align)): (usize, (String, Option<Vec<i32>>, u8, u32))| {
            let len =
                sizes.as_ref().map_or(usize::from(fill), |sizes| sizes.iter().product::<i32>() as usize);
            (format!("{name}{i}"), sizes, vec![fill; len], align)
        };
        entries.into_iter().enumerate().map(entry).collect()
    })
}

proptest! {
    #[test]
    fn arbitrary_entries_survive_a_round_trip(entries in entries(), shift in 0u32..13) {
        let mut builder = Builder { segment_alignment: 1 << shift, ..Builder::new() };
        for (key, sizes, bytes, align) in &entries {
            let layout = sizes.as_ref().map(|sizes| TensorLayout {
                scalar_type: 0,
                sizes: sizes.clone(),
                dim_order: (0..sizes.len() as u8).rev().collect(),
            });
            builder.entries.push(pteron_format::ptd::Entry {
                key: key.clone(),
                layout,
                blob: Blob::bytes(&bytes[..]),
                alignment: 1 << align,
            });
        }
        let mut written = Vec::new();
        builder.write(&mut written).unwrap();
        let read = open(&written);
        prop_assert_eq!(read.named_data.len(), entries.len());
        for (key, sizes, bytes, align) in &entries {
            let range = read.data(key).unwrap();
            prop_assert!(range.start.is_multiple_of(1 << (*align).max(shift)) || bytes.is_empty());
            prop_assert_eq!(slice(&written, range), &bytes[..]);
            let layout = read.get(key).unwrap().tensor_layout.as_ref();
            prop_assert_eq!(layout.map(|layout| &layout.sizes), sizes.as_ref());
        }
    }
}

/// All integers in a file are little-endian, on any host.
#[test]
fn integers_are_little_endian() {
    let mut builder = Builder { segment_alignment: 16, ..Builder::new() };
    let layout = TensorLayout { scalar_type: 3, sizes: vec![1], dim_order: vec![0] };
    builder.tensor("w", layout, Blob::bytes(0x0403_0201u32.to_le_bytes().to_vec()));
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    #[rustfmt::skip]
    let header = [
        0x48, 0, 0, 0, b'F', b'T', b'0', b'1', // root offset, identifier
        b'F', b'H', b'0', b'1', 40, 0, 0, 0, // magic, length
        48, 0, 0, 0, 0, 0, 0, 0, // flatbuffer offset
        144, 0, 0, 0, 0, 0, 0, 0, // flatbuffer size
        192, 0, 0, 0, 0, 0, 0, 0, // segment base
        4, 0, 0, 0, 0, 0, 0, 0, // segment data size
    ];
    assert_eq!(file[..48], header);
    assert_eq!(file[192..], [1, 2, 3, 4]);
    assert_eq!(file.len(), 196);
}
