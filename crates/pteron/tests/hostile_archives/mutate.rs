//! Structure-aware mutations of torch.export archives: values, lists, keys and names of the JSON; sizes, strides and
//! paths of weights; records of the zip file, and its own bytes.

use serde_json::{Map, Value, json};
use std::io::{Cursor, Read, Write};
use zip::write::SimpleFileOptions;
use zip::{CompressionMethod, ZipArchive, ZipWriter};

/// The records of an archive, in order.
#[derive(Clone)]
pub(crate) struct Records(pub(crate) Vec<(String, Vec<u8>)>);

/// A generator of pseudorandom numbers (SplitMix64).
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Integers at which readers go wrong.
pub(crate) const EXTREMES: &[i64] = &[
    0,
    1,
    -1,
    2,
    3,
    -2,
    5,
    8,
    17,
    255,
    1 << 16,
    1 << 20,
    1 << 31,
    1 << 40,
    i32::MAX as i64,
    i32::MIN as i64,
    i64::MAX,
    i64::MAX - 1,
    i64::MIN,
];

impl Records {
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let mut zip = ZipArchive::new(Cursor::new(bytes)).expect("a zip file");
        let mut records = Vec::with_capacity(zip.len());
        for i in 0..zip.len() {
            let mut entry = zip.by_index(i).expect("a record");
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).expect("its bytes");
            records.push((entry.name().to_owned(), bytes));
        }
        Self(records)
    }

    pub(crate) fn write(&self, method: CompressionMethod) -> Vec<u8> {
        let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
        for (name, bytes) in &self.0 {
            let options = SimpleFileOptions::default().compression_method(method);
            // A second record of the same name is refused by the writer.
            if writer.start_file(name.as_str(), options).is_ok() {
                writer.write_all(bytes).expect("a vector takes all bytes");
            }
        }
        writer.finish().expect("a zip file").into_inner()
    }

    /// The JSON of the records that have one, parsed.
    pub(crate) fn models(&self) -> impl Iterator<Item = (usize, Value)> {
        let is_model = |name: &str| name.contains("/models/") && name.ends_with(".json");
        let models = self.0.iter().enumerate().filter(move |(_, (name, _))| is_model(name));
        models.filter_map(|(i, (_, bytes))| Some((i, serde_json::from_slice(bytes).ok()?)))
    }
}

/// An archive with one to four mutations.
pub(crate) fn mutated(from: &Records, random: &mut Random) -> Vec<u8> {
    let mut records = from.clone();
    for _ in 0..1 + random.below(4) {
        match random.below(20) {
            0 => mutate_records(&mut records, random),
            kind => mutate_json(&mut records, random, kind < 5),
        }
    }
    let method = if random.one_in(10) { CompressionMethod::Deflated } else { CompressionMethod::Stored };
    let mut bytes = records.write(method);
    if random.one_in(12) {
        mutate_bytes(&mut bytes, random);
    }
    bytes
}

fn mutate_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..1 + random.below(8) {
        // The directory of a zip file is at its end.
        let len = bytes.len();
        let at = if random.one_in(2) { random.below(len) } else { len - 1 - random.below(len.min(200)) };
        bytes[at] = if random.one_in(2) { random.next() as u8 } else { *random.of(&[0, 1, 0x7f, 0xff]) };
    }
    if random.one_in(6) {
        bytes.truncate(random.below(bytes.len()));
    }
}

fn mutate_records(records: &mut Records, random: &mut Random) {
    let (i, j) = (random.below(records.0.len()), random.below(records.0.len()));
    match random.below(7) {
        0 => drop(records.0.remove(i)),
        1 => {
            let len = random.below(records.0[i].1.len());
            records.0[i].1.truncate(len);
        }
        2 => records.0[i].1 = records.0[j].1.clone(),
        3 => records.0[i].0 = format!("{}x", records.0[j].0),
        4 => records.0[i].1.extend(std::iter::repeat_n(0u8, 1 << random.below(21))),
        5 => records.0[i].1.clear(),
        _ => {
            let len = records.0[i].1.len();
            if len > 0 {
                records.0[i].1[random.below(len)] = random.next() as u8;
            }
        }
    }
    if records.0.is_empty() {
        records.0.push(("m/models/model.json".to_owned(), Vec::new()));
    }
}

/// Mutates the JSON of a model, or of the configuration of its weights.
fn mutate_json(records: &mut Records, random: &mut Random, weights: bool) {
    let is_of_weights = |name: &str| name.ends_with("_config.json");
    let is_wanted = |name: &str| {
        name.ends_with(".json")
            && (name.contains("/models/") || is_of_weights(name))
            && is_of_weights(name) == weights
    };
    let wanted: Vec<usize> = (0..records.0.len()).filter(|&i| is_wanted(&records.0[i].0)).collect();
    if wanted.is_empty() {
        return;
    }
    let record = &mut records.0[*random.of(&wanted)].1;
    let Ok(mut value) = serde_json::from_slice::<Value>(record) else { return };
    forget_sources(&mut value);
    mutate_value(&mut value, random);
    *record = value.to_string().into_bytes();
}

/// Empties the metadata of nodes, which would be most of the JSON.
pub(crate) fn forget_sources(value: &mut Value) {
    match value {
        Value::Object(map) => {
            if let Some(metadata) = map.get_mut("metadata") {
                *metadata = json!({});
            }
            map.values_mut().for_each(forget_sources);
        }
        Value::Array(list) => list.iter_mut().for_each(forget_sources),
        _ => {}
    }
}

/// The paths of all values of a document, as JSON pointers.
fn pointers(value: &Value, at: &mut String, all: &mut Vec<String>) {
    all.push(at.clone());
    let len = at.len();
    let mut inner = |key: &str, value: &Value, at: &mut String| {
        at.push('/');
        at.push_str(&key.replace('~', "~0").replace('/', "~1"));
        pointers(value, at, all);
        at.truncate(len);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| inner(key, value, at)),
        Value::Array(list) => list.iter().enumerate().for_each(|(i, v)| inner(&i.to_string(), v, at)),
        _ => {}
    }
}

/// Mutates one value of a document.
pub(crate) fn mutate_value(document: &mut Value, random: &mut Random) {
    let mut all = Vec::new();
    pointers(document, &mut String::new(), &mut all);
    let at = random.of(&all).clone();
    // Another value with the same key: what belongs here, but not this one.
    let key = at.rsplit('/').next().unwrap_or_default();
    let alike: Vec<&String> = all.iter().filter(|p| p.rsplit('/').next() == Some(key)).collect();
    let other: String = alike[random.below(alike.len())].clone();
    let other = document.pointer(&other).cloned().unwrap_or(Value::Null);
    let Some(value) = document.pointer_mut(&at) else { return };
    if random.one_in(3) {
        *value = other;
        return;
    }
    match value {
        Value::Number(n) if n.is_i64() && !random.one_in(5) => *value = json!(random.of(EXTREMES)),
        Value::Number(_) => {
            *value = random.of(&[json!(0.5), json!(-1e300), json!("NaN"), json!("1")]).clone()
        }
        Value::String(text) => mutate_text(text, random),
        Value::Bool(b) => *b = !*b,
        Value::Null => *value = json!({}),
        Value::Array(list) => mutate_list(list, random),
        Value::Object(map) => mutate_object(map, random),
    }
}

fn mutate_text(text: &mut String, random: &mut Random) {
    match random.below(6) {
        0 => text.clear(),
        1 => text.push('x'),
        2 => *text = vec!["s0"; 1 << random.below(12)].join(*random.of(&[" + ", "*", "//", "**", ", "])),
        3 => *text = "(".repeat(1 << random.below(10)),
        4 => *text = "9".repeat(1 + random.below(40)),
        _ => *text = text.chars().rev().collect(),
    }
}

fn mutate_list(list: &mut Vec<Value>, random: &mut Random) {
    let len = list.len();
    match random.below(7) {
        0 => list.clear(),
        1 if len > 0 => drop(list.remove(random.below(len))),
        2 if len > 0 => {
            let again = random.of(list).clone();
            list.insert(random.below(len + 1), again);
        }
        3 if len > 0 => {
            let again = random.of(list).clone();
            let doublings = if random.one_in(20) { 15 } else { 5 };
            list.extend(std::iter::repeat_n(again, 1 << random.below(doublings)));
        }
        4 if len > 0 => list.swap(random.below(len), random.below(len)),
        5 => list.truncate(random.below(len + 1)),
        _ => list.push(json!({"as_int": random.of(EXTREMES)})),
    }
}

fn mutate_object(map: &mut Map<String, Value>, random: &mut Random) {
    let keys: Vec<String> = map.keys().cloned().collect();
    if keys.is_empty() {
        return;
    }
    let key = random.of(&keys);
    if keys.len() > 1 || random.one_in(4) {
        map.remove(key);
        return;
    }
    *map = random.of(&arguments("x")).as_object().cloned().unwrap_or_default();
}

/// Arguments of every kind; `tensor` is the name of a tensor.
pub(crate) fn arguments(tensor: &str) -> Vec<Value> {
    let name = json!({"name": tensor});
    let mut all = vec![
        json!({"as_none": true}),
        json!({"as_bool": true}),
        json!({"as_float": 0.5}),
        json!({"as_float": "NaN"}),
        json!({"as_float": 1e300}),
        json!({"as_string": "zeros"}),
        json!({"as_strings": []}),
        json!({"as_ints": []}),
        json!({"as_floats": []}),
        json!({"as_floats": [1e300, -0.0]}),
        json!({"as_bools": [true, false]}),
        json!({"as_tensor": name}),
        json!({"as_tensors": []}),
        json!({"as_tensors": [name, name, name]}),
        json!({"as_optional_tensors": []}),
        json!({"as_optional_tensors": [{"as_none": true}, {"as_tensor": name}, {"as_none": true}]}),
        json!({"as_optional_tensor": {"as_none": true}}),
        json!({"as_scalar_type": 1}),
        json!({"as_scalar_type": 10}),
        json!({"as_memory_format": 2}),
        json!({"as_device": {"type": "cpu", "index": null}}),
        json!({"as_complex": {"real": 1.0, "imag": 2.0}}),
        json!({"as_sym_ints": [{"as_int": 1}, {"as_int": -1}]}),
        json!({"as_ints": [1, 2, 3, 4, 5, 6, 7, 8, 9]}),
        json!({"as_ints": [i64::MAX, i64::MIN]}),
    ];
    all.extend(EXTREMES.iter().map(|n| json!({"as_int": n})));
    for n in [0, 1, -1, 2, 7, i64::MAX, i64::MIN] {
        all.extend([1, 2, 3, 4].map(|len| json!({"as_ints": vec![n; len]})));
    }
    all
}
