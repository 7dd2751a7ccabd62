//! Speed of opening and verifying a file. Throughput is in bytes of the file.

use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use pteron_bef::{Attribute, DType, Dense, File, FunctionBuilder, Location, Module};

const FIB: &[u8] = include_bytes!("../tests/data/fib_recursive.bef");

/// `functions` functions of `kernels` additions each; every addition has an attribute and a location.
fn program(functions: usize, kernels: usize) -> Vec<u8> {
    let mut module = Module::new(true);
    for number in 0..functions {
        let mut function = FunctionBuilder::new(&mut module, format!("function{number}"), &["i32"]);
        let mut last = function.argument(0);
        for line in 0..kernels {
            last = function
                .kernel("tfrt.add.i32")
                .arguments(&[last, function_argument(line, last)])
                .attribute("value", Attribute::I32(line as i32))
                .location(Location::file("program.mlir", line as u64, 3))
                .result("i32");
        }
        function.finish(&[last]).unwrap();
    }
    module.to_bytes().unwrap()
}

/// The second operand: the argument for every third kernel; the others double their operand.
fn function_argument(line: usize, last: pteron_bef::Register) -> pteron_bef::Register {
    if line.is_multiple_of(3) { pteron_bef::Register(0) } else { last }
}

fn constants(bytes: usize) -> Vec<u8> {
    let mut module = Module::new(true);
    let data = Dense::new(DType::F32, vec![bytes as i64 / 4], vec![1; bytes]).unwrap();
    module.push_attribute(Attribute::Dense(data));
    module.to_bytes().unwrap()
}

fn open(c: &mut Criterion) {
    c.bench_function("open/fib", |b| b.iter(|| File::open(std::hint::black_box(FIB)).unwrap()));
    c.bench_function("open/fib with its tables", |b| {
        b.iter(|| {
            let file = File::open(std::hint::black_box(FIB)).unwrap();
            (file.kernel_names().unwrap(), file.type_names().unwrap(), file.function_index().unwrap())
        });
    });
}

fn verify(c: &mut Criterion) {
    let mut group = c.benchmark_group("verify");
    let files = [
        ("fib", FIB.to_vec()),
        ("1 function of 10000 kernels", program(1, 10_000)),
        ("1000 functions of 10 kernels", program(1000, 10)),
        ("16 MiB of constants", constants(16 << 20)),
    ];
    for (name, bytes) in &files {
        group.throughput(Throughput::Bytes(bytes.len() as u64));
        group.bench_with_input(BenchmarkId::from_parameter(name), bytes, |b, bytes| {
            b.iter(|| File::open(bytes).unwrap().verify().unwrap());
        });
    }
    group.finish();
}

fn model(c: &mut Criterion) {
    let bytes = program(1, 1000);
    let mut group = c.benchmark_group("model of 1000 kernels");
    group.bench_function("build and write", |b| b.iter(|| program(1, 1000)));
    group.bench_function("read", |b| {
        b.iter(|| File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap());
    });
    let module = File::open(&bytes).unwrap().verify().unwrap().to_module().unwrap();
    group.bench_function("write", |b| b.iter(|| module.to_bytes().unwrap()));
    group.finish();
}

criterion_group!(benches, open, verify, model);
criterion_main!(benches);
