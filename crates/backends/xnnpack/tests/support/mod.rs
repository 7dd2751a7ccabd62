//! Payloads from files, and a builder for payloads.
#![allow(dead_code, unreachable_pub)]

use pteron_format::Limits;
use pteron_format::flatbuffer::{Field, Ref, Writer};
use pteron_format::pte::{Header, VerifiedProgram};
use std::path::Path;

#[path = "../../../../format/tests/support/files.rs"]
mod files;
#[path = "../../../../format/tests/support/random.rs"]
pub mod random;

/// The payloads in `testdata/xnnpack`, in the sample corpus and, if `PTERON_CORPUS` names it, in the full corpus.
pub fn payloads() -> Vec<(String, Vec<u8>)> {
    let testdata = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../testdata");
    let roots = files::roots(vec![testdata.join("xnnpack"), testdata.join("corpus")]);
    let mut files = files::under(&roots, &["pte", "xnn"]);
    // The operator tests are many files and have no delegates.
    files.retain(|path| path.iter().all(|part| part != "ops"));
    let mut all = Vec::new();
    for file in files {
        let (name, bytes) = (file.display().to_string(), std::fs::read(&file).unwrap());
        match file.extension().is_some_and(|e| e == "xnn") {
            true => all.push((name, bytes)),
            false => of_program(&name, &bytes, &mut all),
        }
    }
    all
}

fn of_program(name: &str, file: &[u8], all: &mut Vec<(String, Vec<u8>)>) {
    let limits = Limits::default();
    let Ok(header) = Header::parse(&file[..file.len().min(64)], file.len() as u64) else { return };
    let Ok(program) = VerifiedProgram::read(&file[..header.program_size as usize], &header, &limits) else {
        return;
    };
    for plan in &program.execution_plan {
        for (index, delegate) in plan.delegates.iter().enumerate() {
            if delegate.id == "XnnpackBackend" {
                let range = program.delegate_data(delegate);
                let bytes = file[range.start as usize..range.end as usize].to_vec();
                all.push((format!("{name}: {}.{index}", plan.name), bytes));
            }
        }
    }
}

/// A value to be written.
#[derive(Debug, Clone)]
pub struct Value {
    pub id: u32,
    pub datatype: i16,
    pub dims: Vec<u32>,
    /// The index of the value's constant; 0 for none.
    pub constant: u32,
    /// The external id and the flags.
    pub external: Option<(u32, u32)>,
    /// Scale and zero point.
    pub per_tensor: Option<(f32, i32)>,
    /// Scales and channel dimension.
    pub per_channel: Option<(Vec<f32>, i32)>,
}

impl Value {
    /// An internal fp32 value.
    pub fn new(id: u32, dims: &[u32]) -> Self {
        let dims = dims.to_vec();
        Self { id, datatype: 1, dims, constant: 0, external: None, per_tensor: None, per_channel: None }
    }

    pub fn input(id: u32, external: u32, dims: &[u32]) -> Self {
        Self { external: Some((external, 1)), ..Self::new(id, dims) }
    }

    pub fn output(id: u32, external: u32, dims: &[u32]) -> Self {
        Self { external: Some((external, 2)), ..Self::new(id, dims) }
    }

    fn write(&self, w: &mut Writer) -> Ref {
        let dims = w.scalars(&self.dims);
        let (external, flags) = self.external.unwrap_or((u32::MAX, 0));
        let tensor = w.table(&[
            Field::scalar(self.datatype, 0),
            Field::scalar(self.dims.len() as u32, 0),
            dims.into(),
            Field::scalar(self.constant, 0),
            Field::scalar(external, 0),
            Field::scalar(flags, 0),
            Field::scalar(self.id, 0),
        ]);
        let params = match (&self.per_tensor, &self.per_channel) {
            (Some((scale, zero)), _) => {
                Some((2u8, w.table(&[Field::scalar(*scale, 0.0), Field::scalar(*zero, 0)])))
            }
            (_, Some((scales, dim))) => {
                let scales = w.scalars(scales);
                Some((1, w.table(&[scales.into(), Field::scalar(*dim, 0)])))
            }
            _ => None,
        };
        let Some((kind, params)) = params else {
            return w.table(&[Field::required_scalar(1u8), tensor.into()]);
        };
        let quantized = w.table(&[tensor.into(), Field::required_scalar(kind), params.into()]);
        w.table(&[Field::required_scalar(2u8), quantized.into()])
    }
}

/// A node to be written: its kind in the union and its fields.
#[derive(Debug, Clone)]
pub struct Node {
    pub kind: u8,
    pub fields: Vec<Part>,
    pub bounds: Option<(f32, f32)>,
}

/// A field of a node.
#[derive(Debug, Clone)]
pub enum Part {
    Number(u32),
    Real(f32),
    Numbers(Vec<u32>),
}

impl Node {
    /// A node whose fields are all integers.
    pub fn new(kind: u8, fields: &[u32]) -> Self {
        Self { kind, fields: fields.iter().map(|n| Part::Number(*n)).collect(), bounds: None }
    }

    fn write(&self, w: &mut Writer) -> Ref {
        let write = |w: &mut Writer, part: &Part| match part {
            Part::Number(n) => Field::scalar(*n, 0),
            Part::Real(x) => Field::scalar(*x, 0.0),
            Part::Numbers(all) => w.scalars(all).into(),
        };
        let fields: Vec<Field> = self.fields.iter().map(|part| write(w, part)).collect();
        let table = w.table(&fields);
        let bounds = self
            .bounds
            .map(|(low, high)| w.table(&[Field::required_scalar(low), Field::required_scalar(high)]));
        w.table(&[Field::required_scalar(self.kind), table.into(), Field::Absent, bounds.into()])
    }
}

/// A payload with a header. Its constants follow the flatbuffer, each aligned to 16 bytes.
pub fn payload(values: &[Value], nodes: &[Node], constants: &[Vec<u8>]) -> Vec<u8> {
    let mut w = Writer::new();
    let xnodes = w.tables(nodes, |w, node| node.write(w));
    let xvalues = w.tables(values, |w, value| value.write(w));
    let version = w.string("0");
    let mut data = Vec::new();
    let mut entries = vec![w.table(&[])];
    for constant in constants {
        let (offset, size) = (data.len() as u64, constant.len() as u64);
        entries.push(w.table(&[Field::scalar(offset, 0), Field::scalar(size, 0)]));
        data.extend_from_slice(constant);
        data.resize(data.len().next_multiple_of(16), 0);
    }
    let entries = w.refs(&entries);
    let externs = values.iter().filter(|v| v.external.is_some()).count() as u32;
    let root = w.table(&[
        version.into(),
        xnodes.into(),
        xvalues.into(),
        Field::scalar(externs, 0),
        Field::Absent,
        Field::Absent,
        Field::Absent,
        Field::Absent,
        entries.into(),
    ]);
    let flatbuffer = w.finish(root, *b"XN01").unwrap().bytes;
    let end = (32 + flatbuffer.len()).next_multiple_of(16);
    let mut out = b"\0\0\0\0XH00\x1e\0".to_vec();
    out.extend(32u32.to_le_bytes());
    out.extend((flatbuffer.len() as u32).to_le_bytes());
    out.extend((end as u32).to_le_bytes());
    out.extend((data.len() as u64).to_le_bytes());
    out.resize(32, 0);
    out.extend(flatbuffer);
    out.resize(end, 0);
    out.extend(data);
    out
}
