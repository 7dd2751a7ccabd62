//! Files of more than 4 GiB. They are sparse: holes take no disk space, and their pages are never accessed.
#![cfg(all(target_os = "linux", target_pointer_width = "64"))]

#[path = "common/sparse.rs"]
mod sparse;

use std::io::{Seek, SeekFrom, Write};
use std::time::{Duration, Instant};

use memmap2::Mmap;
use pteron_bef::{Attribute, DType, Dense, ErrorKind, FunctionBuilder, Module};
use sparse::{Holes, Scratch};

const GIB: u64 = 1 << 30;

/// Enough time on any machine to map the file and read a few pages, but not to read gigabytes.
const TIME_LIMIT: Duration = Duration::from_secs(1);

fn map(scratch: &Scratch) -> Mmap {
    // SAFETY: no other process accesses the file, and it is not written while it is mapped.
    unsafe { Mmap::map(&scratch.file) }.unwrap()
}

#[test]
fn an_unknown_section_of_4_5_gib_is_skipped_quickly() {
    let length = 4 * GIB + GIB / 2;
    let mut module = Module::new(true);
    let mut function = FunctionBuilder::new(&mut module, "main", &[]);
    let one = function.kernel("tfrt.constant.i64").attribute("value", Attribute::I64(1)).result("i64");
    function.finish(&[one]).unwrap();
    let program = module.to_bytes().unwrap();

    let mut scratch = Scratch::new("unknown-section");
    let mut header = pteron_bef::HEADER.to_vec();
    header.push(200);
    pteron_bef::vbr::encode(length << 1, &mut header);
    // The program's sections keep their alignment if they are moved by a multiple of 8.
    let moved = (header.len() as u64 + length - pteron_bef::HEADER.len() as u64) % 8;
    let length = length + (8 - moved) % 8;
    header.truncate(pteron_bef::HEADER.len() + 1);
    pteron_bef::vbr::encode(length << 1, &mut header);
    scratch.file.write_all(&header).unwrap();
    scratch.file.seek(SeekFrom::Current(length as i64)).unwrap();
    scratch.file.write_all(&program[pteron_bef::HEADER.len()..]).unwrap();

    let start = Instant::now();
    let map = map(&scratch);
    let file = pteron_bef::File::open(&map).unwrap();
    let verified = file.verify().unwrap();
    assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
    println!("opened and verified {} bytes in {:?}", map.len(), start.elapsed());
    let sections: Vec<u8> = file.sections().map(|section| section.id).collect();
    assert_eq!(sections, [200, 0, 1, 2, 3, 4, 5, 8, 9, 10]);
    assert!(file.section(pteron_bef::SectionId::Strings).unwrap().start() > 4 * GIB);
    let mut read = verified.to_module().unwrap();
    let kept = read.custom_sections.pop().unwrap();
    assert!(kept.id == 200 && kept.data.len() as u64 == length && read == module);
}

#[test]
fn attributes_past_4_gib() {
    let zeros = Scratch::new("zeros");
    zeros.file.set_len(5 * GIB / 2).unwrap();
    let payload = map(&zeros);
    let tensor = || {
        let dims = vec![payload.len() as i64];
        Attribute::Dense(Dense::new(DType::UI8, dims, &payload[..]).unwrap())
    };
    let mut module = Module::new(true);
    let attributes = [tensor(), tensor()].map(|value| module.push_attribute(value));
    let mut function = FunctionBuilder::new(&mut module, "main", &[]);
    for _ in attributes {
        function.kernel("use").attribute("value", Attribute::I32(7)).no_results();
    }
    function.finish(&[]).unwrap();

    // The third attribute, which a kernel uses, starts past the 32-bit offsets of kernels.
    let mut scratch = Scratch::new("attributes");
    let error = module.write_to(&mut Holes(&mut scratch.file)).unwrap_err();
    assert_eq!((error.kind, error.offset), (ErrorKind::Unaddressable, None));
    assert_eq!(error.path, "functions[0].kernels[1].attributes[0]");

    // Two tensors fit: the second starts at 2.5 GiB.
    let body = module.functions[0].body.as_mut().unwrap();
    for (kernel, value) in body.kernels.iter_mut().zip(attributes) {
        kernel.attributes[0].value = value;
    }
    let written = module.write_to(&mut Holes(&mut scratch.file)).unwrap();
    assert!(written > 5 * GIB);

    let start = Instant::now();
    let map = map(&scratch);
    assert_eq!(map.len() as u64, written);
    let verified = pteron_bef::File::open(&map).unwrap().verify().unwrap();
    let function = verified.function(pteron_bef::FunctionId(0)).unwrap().unwrap();
    for (index, offset) in [(1, 4), (2, 4 + 5 * (GIB / 2) + 32)] {
        let kernel = function.kernel(index).unwrap();
        let attribute = kernel.attributes().get(0).unwrap();
        assert_eq!(u64::from(attribute), offset);
        let tensor = verified.attribute(attribute).dense().unwrap();
        assert_eq!(tensor.element_count(), 5 * GIB / 2);
        assert_eq!(tensor.bytes().last(), Some(&0));
    }
    assert!(start.elapsed() < TIME_LIMIT, "{:?}", start.elapsed());
    println!("opened and verified {} bytes in {:?}", map.len(), start.elapsed());
}

#[test]
fn an_attribute_larger_than_4_gib_is_rejected() {
    let zeros = Scratch::new("more-zeros");
    zeros.file.set_len(4 * GIB).unwrap();
    let payload = map(&zeros);
    let dims = vec![4 * GIB as i64];
    let mut module = Module::new(true);
    module.push_attribute(Attribute::Dense(Dense::new(DType::UI8, dims, &payload[..]).unwrap()));
    let error = module.write_to(&mut std::io::sink()).unwrap_err();
    assert_eq!((error.kind, &*error.path), (ErrorKind::Unaddressable, "attributes[0]"));
}
