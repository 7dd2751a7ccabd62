//! Hostile files: truncations and random mutations of real programs are opened, verified, loaded
//! and run under strict limits. Nothing may panic, hang, or allocate more than the limits allow.
//!
//! `PTERON_MUTATIONS` sets the number of mutations (default 3,000), `PTERON_SEED` the first seed. A
//! failure names the file and the seed.

use pteron::format::container::Blob;
use pteron::format::{ptd, pte};
use pteron::{
    BytesLoader, EValue, Limits, LoadOptions, NamedDataMap, Program, PtdDataMap, Tensor, TensorMeta,
};
use pteron_pool::Pool;
use std::alloc::{GlobalAlloc, Layout, System};
use std::panic::AssertUnwindSafe;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The largest single allocation that the strict limits allow: the arenas of one method.
const LARGEST_ALLOCATION: usize = (64 << 20) + (1 << 20);
/// The maximum ratio of counted work to warranted work (see [`Work`]).
const MAX_WORK_RATIO: f64 = 50.0;
/// Work that every execution may take in addition, for tables and blocks of a fixed size.
const FREE_WORK: u64 = 1 << 16;
/// The time limit for one file. The slowest real one takes milliseconds.
const LONGEST: Duration = Duration::from_secs(20);

struct Watching;

static LARGEST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call is forwarded to the system allocator unchanged.
unsafe impl GlobalAlloc for Watching {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watching = Watching;

/// The folders of real programs in the repository.
fn cases() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let entries =
        |folder: &str| std::fs::read_dir(root.join(folder)).expect("testdata").map(|e| e.unwrap().path());
    let mut cases: Vec<PathBuf> = entries("corpus/tiny")
        .chain(entries("dynamic"))
        .chain(entries("half"))
        .chain(entries("xnnpack/nodes"))
        .collect();
    cases.retain(|c| c.join("model.pte").exists());
    cases.sort();
    assert!(cases.len() > 50, "only {} cases in {}", cases.len(), root.display());
    cases
}

fn data_file(case: &Path) -> Option<Vec<u8>> {
    let files = std::fs::read_dir(case).ok()?.flatten().map(|e| e.path());
    let ptd = files.into_iter().find(|p| p.extension().is_some_and(|e| e == "ptd"))?;
    std::fs::read(ptd).ok()
}

fn options(data: Option<Arc<dyn NamedDataMap>>) -> LoadOptions {
    let backends = pteron::backend_registry().with(pteron_demo_backend::DemoBackend);
    // A single thread: work is counted per thread.
    let options = LoadOptions { pool: Pool::serial(), data, ..pteron::load_options() };
    options.backends(backends).limits(Limits::strict())
}

/// Opens, verifies, loads and runs arbitrary bytes. Errors are fine; panics and hangs are not.
/// Returns whether every method ran.
fn exercise(program: &[u8], data: Option<&[u8]>) -> bool {
    exercised(program, data).is_some()
}

/// As [`exercise`], but returns the work of each method.
fn exercised(program: &[u8], data: Option<&[u8]>) -> Option<Vec<Work>> {
    let limits = Limits::strict();
    let data = data.and_then(|bytes| {
        let map = PtdDataMap::load(Arc::new(BytesLoader::new(bytes.to_vec())), &limits).ok()?;
        for key in map.keys().map(str::to_owned).collect::<Vec<_>>() {
            let _ = map.tensor_layout(&key);
            let _ = map.data(&key);
        }
        Some(Arc::new(map) as Arc<dyn NamedDataMap>)
    });
    let program = Program::load(Arc::new(BytesLoader::new(program.to_vec())), &limits).ok()?;
    let names: Vec<String> = program.method_names().map(str::to_owned).collect();
    let work: Vec<_> = names.iter().map(|name| run(&program, name, data.clone())).collect();
    work.into_iter().collect()
}

/// The work of an execution as the pool counted it, and the work that its tensors warrant, both roughly in elements and
/// multiply-adds.
struct Work {
    counted: u64,
    warranted: u64,
}

/// The work that the instructions of a method warrant: the bytes of their tensors, plus, for operators that sum products
/// (matrix products, convolutions), the product of the element counts of their two largest tensors. `None` for methods with
/// jumps, whose instructions may run any number of times.
fn warranted(program: &Program, name: &str) -> Option<u64> {
    const SUMS_OF_PRODUCTS: [&str; 9] =
        ["conv", "mm", "linear", "linalg", "attention", "dist", "bag", "fft", "dft"];
    let plan = program.tables().execution_plan.iter().find(|plan| plan.name == name)?;
    let numel =
        |tensor: &pte::Tensor| tensor.sizes.iter().map(|&n| u64::from(n.unsigned_abs())).product::<u64>();
    let mut sum = 0u64;
    for instruction in plan.chains.iter().flat_map(|chain| &chain.instructions) {
        let pte::Instruction::KernelCall { op_index, args } = instruction else { return None };
        let mut tensors: Vec<&pte::Tensor> = Vec::new();
        for &id in args {
            let value = |id: i32| plan.values.get(usize::try_from(id).ok()?);
            match value(id)? {
                pte::EValue::Tensor(tensor) => tensors.push(tensor),
                pte::EValue::TensorList(ids) | pte::EValue::OptionalTensorList(ids) => {
                    tensors.extend(ids.iter().filter_map(|&id| value(id)?.as_tensor()));
                }
                _ => {}
            }
        }
        sum = tensors.iter().fold(sum, |sum, t| sum.saturating_add(t.nbytes().unwrap_or(0)));
        let operator = plan.operators.get(usize::try_from(*op_index).ok()?)?.full_name();
        if SUMS_OF_PRODUCTS.iter().any(|part| operator.contains(part)) {
            let mut sizes: Vec<u64> = tensors.iter().map(|t| numel(t)).collect();
            sizes.sort_unstable();
            let products = sizes.iter().rev().take(2).fold(1u64, |product, &n| product.saturating_mul(n));
            sum = sum.saturating_add(products);
        }
    }
    Some(sum)
}

/// Runs a method; `None` if it cannot be loaded or fails.
fn run(program: &Program, name: &str, data: Option<Arc<dyn NamedDataMap>>) -> Option<Work> {
    let meta = program.method_meta(name).ok()?;
    let _ = (meta.outputs(), meta.attributes(), meta.operators(), meta.backends());
    let inputs: Option<Vec<EValue>> = meta
        .inputs()
        .into_iter()
        .map(|input| match (input.tensor, input.traced) {
            (Some(t), _) if t.meta.nbytes() <= 1 << 20 => {
                let meta = TensorMeta::new(t.meta.dtype(), t.meta.sizes(), *t.meta.dim_order()).ok()?;
                Some(EValue::Tensor(Tensor::zeros(meta).ok()?))
            }
            (Some(_), _) => None,
            (None, Some(traced)) => Some(traced),
            (None, None) => Some(EValue::None),
        })
        .collect();
    let mut method = program.load_method(name, options(data)).ok()?;
    let inputs = inputs?;
    let mut counted = 0;
    let ran = (0..2).all(|_| {
        let before = pteron_pool::counted();
        let ran = method.execute(&inputs).is_ok();
        counted = counted.max(pteron_pool::counted() - before);
        ran
    });
    // Smaller sizes, which only programs with dynamic shapes accept.
    let smaller: Option<Vec<EValue>> = inputs
        .iter()
        .map(|value| match value {
            EValue::Tensor(t) => {
                let sizes: Vec<usize> = t.sizes().iter().map(|n| n - n / 2).collect();
                let meta = TensorMeta::new(t.dtype(), &sizes, *t.dim_order()).ok()?;
                Some(EValue::Tensor(Tensor::zeros(meta).ok()?))
            }
            other => Some(other.clone()),
        })
        .collect();
    for inputs in smaller.iter().chain(&smaller).chain([&inputs]) {
        let _ = method.execute(inputs);
    }
    ran.then(|| Work { counted, warranted: warranted(program, name).unwrap_or(u64::MAX) })
}

/// Aborts the process when a file takes too long: a hang cannot be reported after the fact.
struct Watchdog(Arc<Mutex<Option<(Instant, String)>>>);

impl Watchdog {
    fn new() -> Self {
        let current: Arc<Mutex<Option<(Instant, String)>>> = Arc::default();
        let watched = Arc::downgrade(&current);
        std::thread::spawn(move || {
            while let Some(current) = watched.upgrade() {
                if let Some((since, what)) = &*current.lock().unwrap()
                    && since.elapsed() > LONGEST
                {
                    eprintln!("hang: {what}");
                    std::process::abort();
                }
                drop(current);
                std::thread::sleep(Duration::from_millis(100));
            }
        });
        Self(current)
    }

    /// Exercises one file. On a panic or an allocation over the limit the test fails with the file's name.
    fn check(&self, what: &dyn Fn() -> String, program: &[u8], data: Option<&[u8]>) -> bool {
        self.watch(what, program, data).is_some()
    }

    fn watch(&self, what: &dyn Fn() -> String, program: &[u8], data: Option<&[u8]>) -> Option<Vec<Work>> {
        *self.0.lock().unwrap() = Some((Instant::now(), what()));
        let result = std::panic::catch_unwind(AssertUnwindSafe(|| exercised(program, data)));
        *self.0.lock().unwrap() = None;
        let largest = LARGEST.swap(0, Ordering::Relaxed);
        assert!(largest <= LARGEST_ALLOCATION, "{}: an allocation of {largest} bytes", what());
        match result {
            Ok(work) => work,
            Err(_) => panic!("{} panicked", what()),
        }
    }
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Applies one to four random changes: flipped bits, odd values, copied or zeroed ranges, a truncation.
fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    const ODD: [u64; 12] =
        [0, 1, 2, 7, 16, 0x7f, 0xff, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, i64::MAX as u64, u64::MAX];
    for _ in 0..1 + random.below(4) {
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            kind @ 2..=4 => {
                let width = [2, 4, 8][kind - 2];
                let value = if random.below(2) == 0 { ODD[random.below(ODD.len())] } else { random.next() };
                let end = (at + width).min(bytes.len());
                bytes[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            5 => {
                let small = (random.below(64) as u32).to_le_bytes();
                let at = at & !3;
                let end = (at + 4).min(bytes.len());
                bytes[at..end].copy_from_slice(&small[..end - at]);
            }
            6 => {
                let (len, to) = (1 + random.below(32), random.below(bytes.len()));
                let len = len.min(bytes.len() - at).min(bytes.len() - to);
                bytes.copy_within(at..at + len, to);
            }
            _ => {
                if random.below(8) == 0 {
                    bytes.truncate(at.max(1));
                } else {
                    let end = (at + 1 + random.below(16)).min(bytes.len());
                    bytes[at..end].fill(0);
                }
            }
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(default)
}

#[test]
fn intact_files_run() {
    let watchdog = Watchdog::new();
    let cases = cases();
    let ran = cases.iter().filter(|case| {
        let program = std::fs::read(case.join("model.pte")).unwrap();
        watchdog.check(&|| case.display().to_string(), &program, data_file(case).as_deref())
    });
    let ran = ran.count();
    assert!(ran * 10 >= cases.len() * 8, "only {ran} of {} programs ran", cases.len());
}

#[test]
fn truncations_fail_cleanly() {
    let watchdog = Watchdog::new();
    for case in cases() {
        let program = std::fs::read(case.join("model.pte")).unwrap();
        let data = data_file(&case);
        // Every length below 512 bytes and near the end, and a sample of the others.
        let lengths = (0..program.len()).filter(|&n| n < 512 || n % 61 == 0 || n + 64 > program.len());
        for len in lengths {
            let what = || format!("{} cut to {len} bytes", case.display());
            watchdog.check(&what, &program[..len], data.as_deref());
        }
        for len in data.iter().flat_map(|d| 0..d.len()) {
            let what = || format!("the .ptd of {} cut to {len} bytes", case.display());
            watchdog.check(&what, &program, data.as_ref().map(|d| &d[..len]));
        }
    }
}

#[test]
fn mutations_fail_cleanly_or_run() {
    static RAN: AtomicU64 = AtomicU64::new(0);
    let watchdog = Watchdog::new();
    let cases: Vec<_> = cases()
        .into_iter()
        .map(|case| {
            let program = std::fs::read(case.join("model.pte")).unwrap();
            let data = data_file(&case);
            (case, program, data)
        })
        .collect();
    let first = setting("PTERON_SEED", 1);
    let count = setting("PTERON_MUTATIONS", 3_000);
    for seed in first..first + count {
        let mut random = Random(seed);
        let (case, program, data) = &cases[random.below(cases.len())];
        let (mut program, mut data) = (program.clone(), data.clone());
        match &mut data {
            Some(data) if random.below(3) == 0 => mutate(data, &mut random),
            _ => mutate(&mut program, &mut random),
        }
        let what = || format!("{} mutated with seed {seed}", case.display());
        if watchdog.check(&what, &program, data.as_deref()) {
            RAN.fetch_add(1, Ordering::Relaxed);
        }
    }
    let ran = RAN.load(Ordering::Relaxed);
    println!("{count} mutations, {ran} of which still ran");
    assert!(ran > 0, "no mutated program ran: the mutations are too wild to test anything past the reader");
}

/// The single-operator programs, and those of [`cases`].
fn operator_programs() -> Vec<(PathBuf, Vec<u8>)> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata");
    let folders =
        |name: &str| std::fs::read_dir(root.join(name)).expect("testdata").map(|e| e.unwrap().path());
    let folders: Vec<PathBuf> =
        folders("operators").chain(folders("corpus/ops")).filter(|p| p.is_dir()).collect();
    let files = folders.iter().flat_map(|f| std::fs::read_dir(f).unwrap().map(|e| e.unwrap().path()));
    let mut files: Vec<PathBuf> = files.filter(|p| p.extension().is_some_and(|e| e == "pte")).collect();
    files.extend(cases().into_iter().map(|case| case.join("model.pte")));
    files.sort();
    assert!(files.len() > 200, "only {} programs of operators", files.len());
    files.into_iter().map(|path| (path.clone(), std::fs::read(path).unwrap())).collect()
}

/// Replaces some integers of a program, which are operator attributes, by odd values. Tensor sizes do not change.
fn mutate_attributes(bytes: &[u8], random: &mut Random) -> Option<Vec<u8>> {
    const ODD: [i64; 16] = [
        0,
        1,
        2,
        3,
        7,
        64,
        999,
        4_096,
        40_000,
        65_535,
        1 << 20,
        1 << 24,
        1 << 30,
        i32::MAX as i64,
        1 << 40,
        i64::MAX,
    ];
    let loader = Arc::new(BytesLoader::new(bytes.to_vec()));
    let program = Program::load(loader, &Limits::strict()).ok()?;
    let source =
        |range: std::ops::Range<u64>| Blob::bytes(bytes[range.start as usize..range.end as usize].to_vec());
    let mut builder = pte::Builder::from_program(program.tables(), source);
    let plans = builder.execution_plan.iter_mut();
    let ints = plans.flat_map(|plan| &mut plan.values).filter_map(|value| match value {
        pte::EValue::Int(int) => Some(int),
        _ => None,
    });
    let mut ints: Vec<&mut i64> = ints.collect();
    if ints.is_empty() {
        return None;
    }
    for _ in 0..1 + random.below(6) {
        let at = random.below(ints.len());
        let odd = ODD[random.below(ODD.len())];
        *ints[at] = if random.below(8) == 0 { -odd } else { odd };
    }
    let mut file = Vec::new();
    builder.finish().and_then(|draft| draft.write(&mut file)).ok()?;
    Some(file)
}

#[test]
fn hostile_attributes_do_not_multiply_the_work_on_small_tensors() {
    let watchdog = Watchdog::new();
    let programs = operator_programs();
    let (first, count) = (setting("PTERON_SEED", 1), setting("PTERON_MUTATIONS", 3_000));
    // Files slower than `PTERON_SLOW` milliseconds are printed.
    let slow = Duration::from_millis(setting("PTERON_SLOW", u64::MAX));
    let (mut ran, mut most) = (0, (0.0, String::new()));
    for seed in first..first + count {
        let mut random = Random(seed);
        let (path, bytes) = &programs[random.below(programs.len())];
        let Some(file) = mutate_attributes(bytes, &mut random) else { continue };
        let (what, started) =
            (|| format!("{} with attributes of seed {seed}", path.display()), Instant::now());
        let work = watchdog.watch(&what, &file, None);
        ran += usize::from(work.is_some());
        for Work { counted, warranted } in work.into_iter().flatten() {
            let ratio = counted.saturating_sub(FREE_WORK) as f64 / warranted.max(1) as f64;
            if ratio > most.0 {
                most = (ratio, what());
            }
            assert!(ratio <= MAX_WORK_RATIO, "{}: {counted} for {warranted}", what());
        }
        if started.elapsed() > slow {
            println!("{:?}: {}", started.elapsed(), what());
        }
    }
    println!(
        "{count} programs, {ran} of which ran; the most work, {:.1} times what is warranted: {}",
        most.0, most.1
    );
    assert!(ran as u64 * 20 > count, "only {ran} programs ran");
}

#[test]
fn the_empty_file_and_noise_are_refused() {
    for bytes in [&b""[..], b"ET12", &[0; 64], &[0xff; 4096]] {
        assert!(!exercise(bytes, None));
        assert!(ptd::Header::parse(&bytes[..bytes.len().min(64)], bytes.len() as u64).is_err());
    }
}
