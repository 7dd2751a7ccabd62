//! Any bytes are read as a `.gguf` or refused; tensors of an accepted file are in bounds and dequantize to the declared
//! number of elements.
#![no_main]

use pteron_format::Limits;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let Ok(read) = pteron_format::gguf::read(file, file.len() as u64, &Limits::default()) else { return };
    let mut values = Vec::new();
    for tensor in &read.tensors {
        let data = &file[tensor.data.start as usize..tensor.data.end as usize];
        let elements: u64 = tensor.sizes.iter().product();
        values.clear();
        if tensor.kind.dequantize(data, &mut values) {
            assert_eq!(values.len() as u64, elements);
        }
    }
});
