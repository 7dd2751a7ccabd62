//! Bundled programs and ETDumps of the corpus are read, have the expected contents, and survive a round trip.

mod support;

use pteron_format::bpte::{self, BundledMethodTestCase, BundledMethodTestSuite, Tensor, Value};
use pteron_format::etdump::{self, DebugEvent, ETDump, Event, ProfileEvent, RunData, ValueKind};
use pteron_format::{FileKind, Limits, sniff};
use serde_json::Value as Json;

#[test]
fn bundled_programs_hold_their_program_and_test_cases() {
    for path in support::corpus("bpte") {
        let file = std::fs::read(&path).unwrap();
        assert_eq!(sniff(&file[..64]), Some(FileKind::Bpte));
        let bundle = bpte::read(&file, &Limits::default()).unwrap();
        let program = &file[bundle.program.start as usize..bundle.program.end as usize];
        assert_eq!(program, std::fs::read(path.with_file_name("model.pte")).unwrap());

        let case: Json =
            serde_json::from_slice(&std::fs::read(path.with_file_name("case.json")).unwrap()).unwrap();
        let recorded = std::fs::read(path.with_file_name("io.bin")).unwrap();
        let suite = bundle.suite("forward").unwrap();
        let runs = case["runs"].as_array().unwrap();
        assert_eq!(suite.test_cases.len(), runs.len());
        for (test, run) in suite.test_cases.iter().zip(runs) {
            for (value, fact) in test.inputs.iter().zip(run["inputs"].as_array().unwrap()) {
                match value {
                    Value::Tensor(tensor) => {
                        let start = fact["offset"].as_u64().unwrap() as usize;
                        assert_eq!(tensor.data, &recorded[start..start + tensor.data.len()]);
                        assert_eq!(tensor.dtype().unwrap().name(), fact["dtype"]);
                    }
                    Value::Int(value) => assert_eq!(*value, fact["value"].as_i64().unwrap()),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(test.expected_outputs.len(), run["outputs"].as_array().unwrap().len());
        }

        let mut written = Vec::new();
        bpte::write(&bundle.method_test_suites, program, &mut written).unwrap();
        let again = bpte::read(&written, &Limits::default()).unwrap();
        assert_eq!(again.method_test_suites, bundle.method_test_suites);
        assert!(again.program.start.is_multiple_of(32));
        assert_eq!(&written[again.program.start as usize..again.program.end as usize], program);
    }
}

#[test]
fn every_kind_of_bundled_value_survives_a_round_trip() {
    let tensor = Tensor { scalar_type: 3, sizes: vec![2, 1], data: vec![1; 8], dim_order: vec![1, 0] };
    let values = vec![Value::Tensor(tensor), Value::Int(-5), Value::Bool(true), Value::Double(-0.0)];
    let case = BundledMethodTestCase { inputs: values.clone(), expected_outputs: values };
    let suites = vec![BundledMethodTestSuite { method_name: "forward".to_owned(), test_cases: vec![case] }];
    let mut written = Vec::new();
    bpte::write(&suites, b"not looked into", &mut written).unwrap();
    let read = bpte::read(&written, &Limits::default()).unwrap();
    assert_eq!(read.method_test_suites, suites);
    assert!(
        matches!(read.method_test_suites[0].test_cases[0].inputs[3], Value::Double(z) if z.is_sign_negative())
    );

    let mut short = suites.clone();
    let Value::Tensor(tensor) = &mut short[0].test_cases[0].inputs[0] else { unreachable!() };
    tensor.data.pop();
    let error = bpte::write(&short, b"", &mut Vec::new()).unwrap_err().to_string();
    assert!(
        error.contains("test_cases[0].inputs[0].data: expected 8 bytes, as type and sizes say, found 7"),
        "{error}"
    );
    let twice = [suites.clone(), suites].concat();
    assert!(bpte::write(&twice, b"", &mut Vec::new()).unwrap_err().to_string().contains("`forward`"));
}

#[test]
fn recordings_survive_a_round_trip() {
    let files = support::corpus("etdp");
    assert!(!files.is_empty());
    for path in files {
        let file = std::fs::read(&path).unwrap();
        assert_eq!(sniff(&file[..64]), Some(FileKind::Etdump));
        let dump = etdump::read(&file, &Limits::default()).unwrap();
        let events = || dump.run_data.iter().flat_map(|run| &run.events);
        let names: Vec<_> = events().filter_map(|e| e.profile_event.as_ref()?.name.as_deref()).collect();
        assert!(names.contains(&"Method::execute"), "{names:?}");
        assert!(events().filter_map(|e| e.profile_event.as_ref()).all(|e| e.end_time >= e.start_time));
        let debug_len = std::fs::metadata(path.with_file_name("debug_buffer.bin")).unwrap().len();
        for event in events().filter_map(|e| e.debug_event.as_ref()) {
            if let Some(ValueKind::Tensor(tensor)) = event.debug_entry.as_ref().map(|entry| &entry.kind) {
                assert!(tensor.data_range(debug_len).is_some());
            }
        }
        let mut written = Vec::new();
        etdump::write(&dump, &mut written).unwrap();
        assert_eq!(etdump::read(&written, &Limits::default()).unwrap(), dump);
        written.extend([0; 100]);
        assert_eq!(etdump::read(&written, &Limits::default()).unwrap(), dump);
    }
}

#[test]
fn every_kind_of_recorded_value_survives_a_round_trip() {
    let tensor = etdump::Tensor { scalar_type: 6, sizes: vec![2, 3], strides: vec![3, 1], offset: 64 };
    let kinds = [
        ValueKind::Null,
        ValueKind::Int(-1),
        ValueKind::Bool(true),
        ValueKind::Float(-0.0),
        ValueKind::Double(1e300),
        ValueKind::Tensor(tensor.clone()),
        ValueKind::TensorList(vec![tensor; 2]),
        ValueKind::String,
    ];
    let debug = |kind: &ValueKind| Event {
        debug_event: Some(DebugEvent {
            debug_entry: Some(etdump::Value { kind: kind.clone(), output: Some(true) }),
            name: Some("native_call_add.out".to_owned()),
            ..DebugEvent::default()
        }),
        ..Event::default()
    };
    let profile = Event {
        profile_event: Some(ProfileEvent { start_time: 1, end_time: u64::MAX, ..ProfileEvent::default() }),
        ..Event::default()
    };
    let events = kinds.iter().map(debug).chain([profile]).collect();
    let dump = ETDump { version: 0, run_data: vec![RunData { events, ..RunData::default() }] };
    let mut written = Vec::new();
    etdump::write(&dump, &mut written).unwrap();
    assert_eq!(etdump::read(&written, &Limits::default()).unwrap(), dump);
}
