//! Conversion of weights between formats, compared with the results of the reference tools.

use pteron_runtime::{BytesLoader, DataLoader, FileLoader, Limits, NamedDataMap, PtdDataMap};
use pteron_toolbox::convert::{Format, Options, convert};
use pteron_toolbox::file::Progress;
use std::path::Path;
use std::sync::Arc;

fn converted(loader: &Arc<dyn DataLoader>, to: Format) -> Arc<dyn DataLoader> {
    let output = convert(loader, to, Options::default(), &Limits::default(), &Progress::default());
    Arc::new(BytesLoader::new(output.expect("it is read").file.to_vec().expect("it is written")))
}

fn small() -> Arc<dyn DataLoader> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../cli/tests/cli/convert/small.gguf");
    Arc::new(FileLoader::open(path).expect("small.gguf"))
}

#[test]
fn dequantized_values_match_the_reference_package() {
    // By way of each format.
    for way in [&[Format::Ptd][..], &[Format::Npz, Format::Ptd], &[Format::Safetensors, Format::Ptd]] {
        let data = way.iter().fold(small(), |loader, &to| converted(&loader, to));
        let data = PtdDataMap::load(data, &Limits::default()).expect("named data");
        // Elements 0, 17, 64 and 127, as dequantized by the Python package gguf 0.19.0.
        for (key, expected) in [
            ("q8_0.weight", [-0.804_840_1f32, -1.159_515_4, 1.345_275_9, 0.434_097_3]),
            ("q4_0.weight", [-0.866_210_94, -1.082_763_7, 1.377_685_5, 0.475_341_8]),
        ] {
            let bytes = data.data(key).expect("the tensor");
            let values: Vec<f32> =
                bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            assert_eq!(values.len(), 128);
            assert_eq!([0, 17, 64, 127].map(|i| values[i]), expected, "{key} by way of {way:?}");
        }
    }
}

#[test]
fn safetensors_keep_the_metadata_and_are_deterministic() {
    let bytes = |loader: &Arc<dyn DataLoader>| {
        loader.load(0, loader.size(), pteron_runtime::Purpose::Named).expect("bytes").to_vec()
    };
    let first = converted(&small(), Format::Safetensors);
    let text = String::from_utf8_lossy(&bytes(&first)).into_owned();
    let expected = r#""__metadata__":{"general.architecture":"llama","general.name":"tiny","llama.block_count":"2","llama.rope.scale":"0.5","tied":"true"}"#;
    assert!(text.contains(expected), "{}", &text[..400]);
    assert_eq!(bytes(&first), bytes(&converted(&small(), Format::Safetensors)));
    assert_eq!(bytes(&first), bytes(&converted(&first, Format::Safetensors)));
}
