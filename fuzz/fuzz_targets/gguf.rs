//! Any bytes are read as a `.gguf` or refused; what is read lies within the file, and its blocks are numbers.
#![no_main]

use format::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(read) = format::gguf::read(file, file.len() as u64, &Limits::default()) else { return };
    let mut numbers = Vec::new();
    for tensor in &read.tensors {
        let data = &file[tensor.data.start as usize..tensor.data.end as usize];
        let elements: u64 = tensor.sizes.iter().product();
        numbers.clear();
        if tensor.kind.dequantize(data, &mut numbers) {
            assert_eq!(numbers.len() as u64, elements);
        }
    }
});
