//! Runs bytes through everything that takes an archive, and measures what that allocates.

use pteron::compile::{self, Delegation, OperatorTable, Options};
use pteron::tools::report::Measured;
use pteron::tools::{inspect, random, report, validate};
use pteron::{BytesLoader, DataLoader, KernelRegistry, Limits, LoadOptions, Program};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// The most memory that an archive may take under strict limits, beside its own bytes: what the compiler may hold, what
/// the loaded program may hold, and the texts and tables of both, which are counted by estimate.
const MOST_MEMORY: usize = 768 << 20;
/// Allocations fail beyond this, so that a runaway allocation ends the test and not the machine.
const ALL_MEMORY: usize = 3 << 30;
/// The time limit for one archive.
const LONGEST: Duration = Duration::from_secs(60);

struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

fn reserve(bytes: usize) -> bool {
    let in_use = HELD.fetch_add(bytes, Ordering::Relaxed) + bytes;
    PEAK.fetch_max(in_use, Ordering::Relaxed);
    if in_use <= ALL_MEMORY {
        return true;
    }
    HELD.fetch_sub(bytes, Ordering::Relaxed);
    false
}

// SAFETY: every call is forwarded to the system allocator unchanged, or fails as an allocator may.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if !reserve(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: the caller upholds the contract of `GlobalAlloc::alloc`, which is that of `System`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if !reserve(layout.size()) {
            return std::ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if !reserve(size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as in `alloc`.
        let new = unsafe { System.realloc(pointer, layout, size) };
        HELD.fetch_sub(if new.is_null() { size } else { layout.size() }, Ordering::Relaxed);
        new
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// Where the last panic of this thread began, and its message.
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// What was wrong with archives: how often, and the first of them.
#[derive(Default)]
pub(crate) struct Failures(BTreeMap<String, (usize, String)>);

impl Failures {
    pub(crate) fn assert_none(&self) {
        let text: Vec<String> =
            self.0.iter().map(|(what, (n, first))| format!("{n} times {what}\n    first: {first}")).collect();
        assert!(text.is_empty(), "{} kinds of failures:\n{}", text.len(), text.join("\n"));
    }

    fn add(&mut self, what: String, case: &str) {
        let (times, _) = self.0.entry(what.clone()).or_insert_with(|| (0, case.to_owned()));
        *times += 1;
        if *times == 1 {
            eprintln!("{case}: {what}");
        }
    }
}

/// The ways in which archives are compiled, and how often each gave a program, a run gave outputs, and so on.
pub(crate) struct Exercise {
    kernels: Arc<KernelRegistry>,
    ways: Vec<(&'static str, OperatorTable, Options)>,
    pub(crate) failures: Failures,
    pub(crate) counts: BTreeMap<&'static str, usize>,
}

impl Exercise {
    pub(crate) fn new() -> Self {
        std::panic::set_hook(Box::new(|info| {
            let place = info.location().map_or_else(String::new, |at| format!("{}:{}", at.file(), at.line()));
            let message = info.payload_as_str().unwrap_or("a panic");
            let message: String = message.chars().take(160).collect();
            PANIC.with(|last| *last.borrow_mut() = format!("panics at {place}: {message}"));
        }));
        let kernels = Arc::new(pteron::kernel_registry());
        let options = |delegation: Option<Delegation>| Options {
            delegation: delegation.into_iter().collect(),
            memory: Limits::strict().memory,
            ..Options::default()
        };
        let (portable, all) = (|| OperatorTable::portable(&kernels), || OperatorTable::all(&kernels));
        let ways = vec![
            ("portable", portable(), options(None)),
            ("all", all(), options(None)),
            ("bef", portable(), options(Some(compile::to_bef(&kernels, None)))),
            ("xnnpack", portable(), options(Some(compile::to_xnnpack()))),
        ];
        Self { kernels, ways, failures: Failures::default(), counts: BTreeMap::new() }
    }

    /// Compiles an archive in every way. Validates, inspects, reports and runs the program of one of the ways, which take turns from
    /// archive to archive. `case` names the archive.
    pub(crate) fn archive(&mut self, bytes: &Arc<Vec<u8>>, case: &str) {
        let count = self.counts.entry("archives").or_default();
        *count += 1;
        let ways = std::mem::take(&mut self.ways);
        let chosen = *count % ways.len();
        for (i, (name, table, options)) in ways.iter().enumerate() {
            let (in_use, start) = (HELD.load(Ordering::Relaxed), Instant::now());
            PEAK.store(in_use, Ordering::Relaxed);
            let outcome = std::panic::catch_unwind(AssertUnwindSafe(|| {
                if let Some(program) = self.compiled(name, bytes, (table, options)).filter(|_| i == chosen) {
                    self.program(program);
                }
            }));
            if outcome.is_err() {
                let what = PANIC.with(|last| last.borrow().clone());
                self.failures.add(what, &format!("{case}, {name}"));
            }
            let peak = PEAK.load(Ordering::Relaxed).saturating_sub(in_use);
            if peak > MOST_MEMORY {
                self.failures
                    .add("takes too much memory".to_owned(), &format!("{case}, {name}: {peak} bytes"));
            }
            if start.elapsed() > LONGEST {
                self.failures
                    .add("takes too long".to_owned(), &format!("{case}, {name}: {:?}", start.elapsed()));
            }
        }
        self.ways = ways;
    }

    /// The program that an archive is compiled to, unless it exceeds the limit on memory.
    fn compiled(
        &mut self,
        way: &'static str,
        bytes: &Arc<Vec<u8>>,
        (table, options): (&OperatorTable, &Options),
    ) -> Option<Arc<dyn DataLoader>> {
        let file: compile::pt2::SharedBytes = Arc::clone(bytes) as _;
        let compiled = compile::compile(&file, table, options, &mut |_, _, _| {}).ok()?;
        *self.counts.entry(way).or_default() += 1;
        if compiled.program.header().file_len > Limits::strict().memory {
            return None;
        }
        Some(compile::in_memory(Arc::new(BytesLoader::new(Vec::new())), &compiled))
    }

    /// Validates, inspects, reports and runs a program.
    fn program(&mut self, loader: Arc<dyn DataLoader>) {
        let backends = pteron::backend_registry();
        let limits = Limits::strict();
        let options = LoadOptions { limits: limits.clone(), ..pteron::load_options() };
        let _ = validate::validate(&loader, &self.kernels, &backends, &limits);
        if let Ok(report) = inspect::inspect(&loader, &self.kernels, &backends, &limits) {
            assert!(!inspect::text(&report, true).is_empty());
        }
        let _ = report::gather(&loader, &options, &Measured::default());
        let Ok(program) = Program::load(loader, &limits) else { return };
        for name in program.method_names().map(str::to_owned).collect::<Vec<_>>() {
            let Ok(mut method) = program.load_method(&name, options.clone()) else { continue };
            let Ok(inputs) = random::random_inputs(&program, &name, 0) else { continue };
            if method.execute(&inputs).is_ok() {
                *self.counts.entry("ran").or_default() += 1;
            }
        }
    }
}
