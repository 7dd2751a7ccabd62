//! Damaged files: every reader terminates in bounded memory, and a file that verifies is read without errors.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;
use pteron_bef::{Limits, walk};

/// An allocator that counts each thread's allocated bytes, current and peak.
struct Counting;

thread_local! {
    static NOW: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

fn count(change: isize) {
    let _ = NOW.try_with(|now| {
        now.set(now.get() + change);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(now.get())));
    });
}

// SAFETY: every call is forwarded unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: the caller's obligations are those of `System`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Maximum memory that reading may take for each byte of a file. The worst case is a fused location of unknown
/// locations: one byte each in the file, a few words in memory.
const BYTES_PER_BYTE: usize = 200;

/// Reads everything and returns the peak memory use.
fn read(bytes: &[u8]) -> usize {
    let before = NOW.get();
    PEAK.set(before);
    let outcome = walk(bytes, Limits::default());
    if let Err(error) = &outcome {
        assert!(!error.to_string().is_empty());
        assert!(error.offset.is_none_or(|offset| offset <= bytes.len() as u64), "{error}");
    }
    (PEAK.get() - before) as usize
}

/// Explains as much of the file as is readable, and returns the number of bytes explained.
fn explain(bytes: &[u8]) -> u64 {
    let mut end = 0;
    if let Ok(file) = pteron_bef::File::open(bytes) {
        let outcome = file.spans(&mut |span| {
            assert_eq!(span.start, end, "{span:?}");
            end += span.len;
        });
        assert!(outcome.is_err() || end == bytes.len() as u64);
    }
    end
}

fn check(bytes: &[u8]) {
    assert!(explain(bytes) <= bytes.len() as u64);
    let peak = read(bytes);
    let allowed = BYTES_PER_BYTE * bytes.len() + 4096;
    assert!(peak <= allowed, "{peak} bytes of memory for a file of {}", bytes.len());
}

static SAMPLE: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut paths: Vec<_> = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).unwrap()).collect()
});

/// Random bytes, with boundary values of fields more likely.
fn byte() -> impl Strategy<Value = u8> {
    prop_oneof![
        any::<u8>(),
        prop::sample::select(&[0u8, 1, 2, 3, 4, 5, 0x7F, 0x80, 0x81, 0xCC, 0xFE, 0xFF][..])
    ]
}

proptest! {
    #[test]
    fn overwritten_bytes(file: Index, changes in vec((any::<Index>(), byte()), 1..6)) {
        let mut bytes = file.get(&SAMPLE).clone();
        for (place, byte) in changes {
            *place.get_mut(&mut bytes) = byte;
        }
        check(&bytes);
    }

    #[test]
    fn cuts_and_insertions(file: Index, from: Index, to: Index, inserted in vec(byte(), 0..12)) {
        let mut bytes = file.get(&SAMPLE).clone();
        let (from, to) = (from.index(bytes.len()), to.index(bytes.len()));
        bytes.splice(from.min(to)..from.max(to), inserted);
        check(&bytes);
    }

    #[test]
    fn overwritten_words(file: Index, place: Index, word: u32) {
        let mut bytes = file.get(&SAMPLE).clone();
        let place = place.index(bytes.len() / 4) * 4;
        bytes[place..place + 4].copy_from_slice(&(word >> (word % 32)).to_le_bytes());
        check(&bytes);
    }

    #[test]
    fn noise(bytes in vec(byte(), 0..300)) {
        check(&[&pteron_bef::HEADER[..], &bytes].concat());
    }
}

#[test]
fn offsets_near_the_maximum_are_out_of_range() {
    let bytes = &SAMPLE[0];
    let file = pteron_bef::File::open(bytes).unwrap();
    for offset in [u64::MAX, u64::MAX - 8, u64::MAX - 16, 1 << 63, bytes.len() as u64] {
        let attribute = file.attributes().at(offset);
        for kind in (0..=255).filter_map(pteron_bef::AttributeType::new) {
            assert_eq!(attribute.decode(kind).unwrap_err().kind, pteron_bef::ErrorKind::Truncated, "{kind}");
        }
        assert!(file.strings().get(offset).is_err());
        assert_eq!(file.locations().get(offset), Ok(None));
    }
}

#[test]
fn every_prefix() {
    for bytes in SAMPLE.iter().filter(|bytes| bytes.len() < 2000) {
        (0..bytes.len()).for_each(|len| check(&bytes[..len]));
    }
}

#[test]
fn deep_nesting_is_rejected_before_it_overflows_the_stack() {
    use pteron_bef::{Attribute, FunctionBuilder, Location, Module};
    let mut location = Location::Unknown;
    for _ in 0..900 {
        location = Location::CallSite { callee: Box::new(location), caller: Box::new(Location::Unknown) };
    }
    let mut value = Attribute::Aggregate(vec![Attribute::string("")]);
    for _ in 0..100 {
        value = Attribute::Aggregate(vec![value]);
    }
    let mut module = Module::new(true);
    FunctionBuilder::new(&mut module, "deep", &[]).location(location).finish(&[]).unwrap();
    let high = Limits { location_nesting: u32::MAX, attribute_nesting: u32::MAX, ..Limits::default() };
    let shallow = module.to_bytes_with(&high).unwrap();
    module.push_attribute(value);
    let deep = module.to_bytes_with(&high).unwrap();

    for (bytes, path) in [(&shallow, "locations[0]"), (&deep, "attributes[0]")] {
        let error = pteron_bef::File::open(bytes).unwrap().verify().unwrap_err();
        assert_eq!(error.kind, pteron_bef::ErrorKind::Limit);
        assert!(error.path.starts_with(path), "{error}");
        pteron_bef::File::open_with(bytes, high).unwrap().verify().unwrap().to_module().unwrap();
    }
}

/// A file with many references to one large name or location must not take memory for each reference.
mod sharing {
    use super::*;
    use pteron_bef::{ErrorKind, File, FunctionBuilder, Location, Module, SectionId};

    fn refused(bytes: &[u8]) -> pteron_bef::Error {
        check(bytes);
        let error = File::open(bytes).unwrap().verify().unwrap_err();
        assert_eq!(error.kind, ErrorKind::Limit, "{error}");
        let generous = Limits { expansion: u64::MAX, ..Limits::default() };
        File::open_with(bytes, generous).unwrap().verify().unwrap();
        error
    }

    /// 2000 kernels without locations, in a function with this location.
    fn kernels(location: Location<'static>) -> Vec<u8> {
        let mut module = Module::new(true);
        let mut function = FunctionBuilder::new(&mut module, "main", &[]).location(location);
        (0..2000).for_each(|_| function.kernel("idle").no_results());
        function.finish(&[]).unwrap();
        module.to_bytes().unwrap()
    }

    /// The same file, with the location of every kernel set to the one at offset 0.
    fn share(mut bytes: Vec<u8>) -> Vec<u8> {
        let places: Vec<usize> = {
            let verified = File::open(&bytes).unwrap().verify().unwrap();
            let function = verified.function(pteron_bef::FunctionId(0)).unwrap().unwrap();
            function.kernels().skip(1).map(|kernel| kernel.unwrap().start() as usize + 4).collect()
        };
        places.into_iter().for_each(|place| bytes[place..place + 4].fill(0));
        bytes
    }

    #[test]
    fn a_small_location_may_be_shared_and_a_large_one_may_not() {
        let bytes = share(kernels(Location::file("program.mlir", 7, 1)));
        File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
        let error = refused(&share(kernels(Location::Fused(vec![Location::Unknown; 20_000]))));
        assert!(error.path.ends_with("].location"), "{error}");
        let error = refused(&share(kernels(Location::file("long".repeat(5000), 7, 1))));
        assert!(error.path.ends_with("].location"), "{error}");
    }

    #[test]
    fn a_long_name_may_not_be_shared_by_many_kernels() {
        let mut module = Module::new(false);
        module.intern_kernel("long".repeat(5000));
        let bytes = module.to_bytes().unwrap();
        let strings = File::open(&bytes).unwrap().section(SectionId::Strings).unwrap().bytes().to_vec();
        let mut bytes = pteron_bef::HEADER.to_vec();
        let mut names = Vec::new();
        pteron_bef::vbr::encode(20_000, &mut names);
        names.resize(names.len() + 20_000, 0);
        for (id, data) in [(0, strings), (2, names), (3, vec![0]), (4, vec![0])] {
            bytes.push(id);
            pteron_bef::vbr::encode((data.len() as u64) << 1, &mut bytes);
            bytes.extend(data);
        }
        assert!(refused(&bytes).path.starts_with("kernels["));
    }
}

#[test]
fn a_file_of_a_million_empty_functions_is_refused_before_memory_is_spent() {
    // The FunctionIndex has a count of 2^32 functions, followed by one byte.
    let mut bytes = pteron_bef::HEADER.to_vec();
    bytes.extend([2, 2, 0, 3, 2, 0, 4, 12, 0x90, 0x80, 0x80, 0x80, 0x00, 0]);
    check(&bytes);
    assert!(read(&bytes) < 4096);
}
