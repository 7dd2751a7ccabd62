//! Tests of a backend: a model runs delegated and as written, on seeded inputs of several sizes, and the results are
//! compared.
//!
//! ```no_run
//! # fn test(
//! #     my_backend: impl pteron::Backend + 'static,
//! #     my_delegation: pteron::compile::Delegation,
//! # ) -> Result<(), Box<dyn std::error::Error>> {
//! use pteron::testing::Check;
//! use pteron::{FileLoader, Registries};
//! use std::sync::Arc;
//!
//! let check = Check::new(Registries::default().backend(my_backend), vec![my_delegation]);
//! let report = check.run(Arc::new(FileLoader::open("model.pt2")?))?;
//! assert!(report.delegates > 0, "the backend took no node");
//! # Ok(()) }
//! ```
//!
//! Before each call of an opaque delegate, its outputs are filled with a pattern: elements that still have it afterwards
//! were not written. Sizes of dynamic inputs are the largest, the smallest, and some between, so that a delegate that
//! assumes a size, or forgets to resize an output, fails.

use crate::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate, Out,
};
use crate::compile::exported::{Bounds, CompileBudget, ExportedProgram, Ranges, VarType};
use crate::compile::{self, Delegation, OperatorTable, Options};
use crate::tools::verify::{Tolerance, compare};
use crate::{BackendRegistry, DataLoader, EValue, FreeableBuffer, Limits, LoadOptions, Method, Program};
use crate::{Registries, ScalarType, Tensor, TensorMeta, TensorViewMut, ValueMeta};
use std::fmt;
use std::sync::Arc;

/// The largest size of a symbol without an upper bound, or with one above 2^20, is its minimum plus this number.
const UNBOUNDED: i64 = 16;

/// The settings of a test of backends.
#[derive(Debug, Clone)]
pub struct Check {
    /// The operators, and the run-time halves of the backends.
    pub registries: Registries,
    /// The ahead-of-time halves of the backends, in the order in which they take nodes.
    pub delegation: Vec<Delegation>,
    /// The number of sets of inputs for each method. The first set has the largest sizes, the second the smallest.
    pub cases: usize,
    /// The seed of inputs and sizes.
    pub seed: u64,
    /// The allowed differences between outputs.
    pub tolerance: Tolerance,
}

/// What a successful test of backends has compared.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// The names of the methods.
    pub methods: Vec<String>,
    /// The number of delegates: the parts that backends have taken.
    pub delegates: usize,
    /// The number of comparisons of outputs. All were equal within the tolerance.
    pub compared: usize,
}

/// Why a test of backends failed: outputs differ or were not written, or a program cannot be compiled, loaded or run.
#[derive(Debug)]
pub struct Mismatch {
    /// What was tested: the archive, a model, or a method with its case and the sizes of the inputs.
    pub place: String,
    /// What is wrong.
    pub problem: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.place, self.problem)
    }
}

impl std::error::Error for Mismatch {}

impl Check {
    /// A test of eight cases, with the default tolerance of each element type.
    pub fn new(registries: Registries, delegation: Vec<Delegation>) -> Self {
        Self { registries, delegation, cases: 8, seed: 0, tolerance: Tolerance::default() }
    }

    /// Compiles a torch.export archive with and without the backends, runs both, and compares all outputs.
    ///
    /// # Errors
    /// The archive cannot be compiled, the delegated program cannot be loaded or fails, an output differs, or a delegate
    /// has not written or resized one.
    pub fn run(&self, archive: Arc<dyn DataLoader>) -> Result<Report, Mismatch> {
        let at = |place: &str| {
            let place = place.to_owned();
            move |e: crate::Error| Mismatch { place, problem: crate::tools::one_line(&e) }
        };
        let plain = self.compile_program(&archive, Vec::new()).map_err(at("the model as written"))?;
        let delegated =
            self.compile_program(&archive, self.delegation.clone()).map_err(at("the delegated model"))?;
        let models =
            models(&archive).map_err(|problem| Mismatch { place: "the archive".to_owned(), problem })?;
        let mut report = Report::default();
        for model in &models {
            let name = &model.name;
            let unable = |what: &str| at(&format!("method `{name}`, {what}"));
            let meta = delegated.method_meta(name).map_err(unable("delegated"))?;
            report.delegates += meta.backends().iter().map(|used| used.delegates).sum::<usize>();
            report.methods.push(name.clone());
            let expected = plain.load_method(name, self.registries.load_options());
            let mut expected = expected.map_err(unable("as written"))?;
            let mut delegated_methods = Vec::new();
            for no_prepare in [false, true] {
                let how = if no_prepare { "delegated, not prepared" } else { "delegated" };
                let options = LoadOptions { no_prepare, ..self.poisoning_options() };
                delegated_methods.push((how, delegated.load_method(name, options).map_err(unable(how))?));
            }
            for case in 0..self.cases {
                report.compared += self.run_case(model, case, &mut expected, &mut delegated_methods)?;
            }
        }
        Ok(report)
    }

    /// Runs one case, and returns the number of outputs that were compared.
    fn run_case(
        &self,
        model: &ExportedProgram,
        case: usize,
        expected: &mut Method,
        delegated: &mut [(&str, Method)],
    ) -> Result<usize, Mismatch> {
        let mut random = Random::new(self.seed, case);
        let inputs = random_inputs(model, expected, case, &mut random);
        let inputs =
            inputs.map_err(|problem| Mismatch { place: format!("method `{}`", model.name), problem })?;
        let sizes = inputs.iter().filter_map(|input| input.as_tensor().ok().map(|t| t.meta().to_string()));
        let sizes = sizes.collect::<Vec<_>>().join(", ");
        let place = |how: &str| format!("method `{}`, case {case} ({sizes}), {how}", model.name);
        let failed = |how: &str, problem: String| Mismatch { place: place(how), problem };
        let error = |how: &str, e: crate::Error| failed(how, crate::tools::one_line(&e));
        let right = expected.execute(&inputs).map_err(|e| error("as written", e))?;
        for (how, method) in delegated.iter_mut() {
            let outputs = method.execute(&inputs).map_err(|e| error(how, e))?;
            for (index, (output, right)) in outputs.iter().zip(&right).enumerate() {
                compare(output, right, &self.tolerance)
                    .map_err(|difference| failed(how, format!("output {index}: {difference}")))?;
            }
        }
        Ok(delegated.len() * right.len())
    }

    fn compile_program(
        &self,
        archive: &Arc<dyn DataLoader>,
        delegation: Vec<Delegation>,
    ) -> crate::Result<Program> {
        let table = OperatorTable::all(self.registries.kernels());
        let options = Options { delegation, source_frames: true, ..Options::default() };
        let compiled = compile::from_loader(archive, &table, &options, &mut |_, _, _| {})?;
        Program::load(compile::in_memory(Arc::clone(archive), &compiled), &Limits::default())
    }

    /// Load options whose backends get outputs filled with the poison pattern.
    fn poisoning_options(&self) -> LoadOptions {
        let ids = self.registries.backends().ids();
        let backends = ids.filter_map(|id| self.registries.backends().get(id));
        let poisoned =
            backends.fold(BackendRegistry::new(), |all, backend| all.with(Poisoning(Arc::clone(backend))));
        self.registries.load_options().backends(poisoned)
    }
}

/// The models of an archive, in the order of their names.
fn models(archive: &Arc<dyn DataLoader>) -> Result<Vec<ExportedProgram>, String> {
    let file = compile::archive_of(archive);
    let models = compile::pt2::read(&*file, &CompileBudget::new(u64::MAX));
    let mut models = models.map_err(|e| e.to_string())?;
    models.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(models)
}

/// Inputs of a case: tensors of seeded elements, in sizes that the export allows.
fn random_inputs(
    model: &ExportedProgram,
    method: &Method,
    case: usize,
    random: &mut Random,
) -> Result<Vec<EValue>, String> {
    let ranges = choose_sizes(&model.ranges, case, random);
    let declared: Vec<ValueMeta> = method.meta().inputs();
    let mut inputs = Vec::new();
    for (var, declared) in model.user_inputs().zip(declared) {
        inputs.push(match (&model.var(var).ty, declared.tensor, declared.traced) {
            (VarType::Tensor(spec), Some(info), _) => {
                let sizes =
                    spec.sizes.iter().map(|size| usize::try_from(size.bounds(&ranges).max).unwrap_or(0));
                let sizes: Vec<usize> = sizes.collect();
                let meta = TensorMeta::new(info.meta.dtype(), &sizes, *info.meta.dim_order());
                EValue::Tensor(random.tensor(meta.map_err(|e| e.to_string())?)?)
            }
            (_, _, Some(fixed)) => fixed,
            _ => EValue::None,
        });
    }
    Ok(inputs)
}

/// Chooses a value for each symbol: the largest in the first case, the smallest in the second, then a random one.
fn choose_sizes(ranges: &Ranges, case: usize, random: &mut Random) -> Ranges {
    let choose = |bounds: &Bounds| {
        let min = bounds.min.max(1);
        let max = if bounds.max > 1 << 20 { min + UNBOUNDED } else { bounds.max.max(min) };
        match case {
            0 => max,
            1 => min,
            _ => min + (random.next_u64() % ((max - min) as u64 + 1)) as i64,
        }
    };
    let mut choose = choose;
    ranges.iter().map(|(name, bounds)| (Arc::clone(name), Bounds::exactly(choose(bounds)))).collect()
}

/// A xorshift64 generator.
struct Random(u64);

impl Random {
    fn new(seed: u64, case: usize) -> Self {
        Self((seed ^ 0x9e37_79b9_7f4a_7c15).wrapping_mul(2 * case as u64 + 1) | 1)
    }

    fn next_u64(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 >> 16
    }

    /// A tensor of random elements: floats from -1 to 1; integers 0 or 1, which are valid indices.
    fn tensor(&mut self, meta: TensorMeta) -> Result<Tensor, String> {
        let mut tensor = Tensor::zeros(meta).map_err(|e| e.to_string())?;
        let mut float = || (self.next_u64() % 2049) as f32 / 1024.0 - 1.0;
        let filled = match tensor.dtype() {
            ScalarType::Float => tensor.storage_mut::<f32>().map(|e| e.fill_with(float)),
            ScalarType::Double => tensor.storage_mut::<f64>().map(|e| e.fill_with(|| f64::from(float()))),
            ScalarType::Half => {
                tensor.storage_mut::<crate::f16>().map(|e| e.fill_with(|| crate::f16::from_f32(float())))
            }
            ScalarType::BFloat16 => {
                tensor.storage_mut::<crate::bf16>().map(|e| e.fill_with(|| crate::bf16::from_f32(float())))
            }
            other => {
                let width = other.to_real().size();
                let mut view = tensor.view_mut();
                let lowest = if cfg!(target_endian = "big") { width - 1 } else { 0 };
                let elements = view.bytes_mut().chunks_exact_mut(width);
                elements.for_each(|element| element[lowest] = (self.next_u64() & 1) as u8);
                Ok(())
            }
        };
        filled.map(|()| tensor).map_err(|e| e.to_string())
    }
}

/// A backend whose opaque delegates get poisoned outputs.
struct Poisoning(Arc<dyn Backend>);

impl Backend for Poisoning {
    fn id(&self) -> &str {
        self.0.id()
    }

    fn is_available(&self) -> bool {
        self.0.is_available()
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        compile_specs: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let delegate = self.0.init(ctx, processed, compile_specs)?;
        // A delegate that gives a graph is not called: the runtime itself runs the nodes of the graph.
        Ok(if delegate.graph().is_some() { delegate } else { Box::new(Poisoned { delegate, calls: 0 }) })
    }
}

struct Poisoned {
    delegate: Box<dyn Delegate>,
    calls: u64,
}

impl Delegate for Poisoned {
    fn num_inputs(&self) -> usize {
        self.delegate.num_inputs()
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        self.calls += 1;
        let seed = self.calls;
        for (index, out) in outputs.iter_mut().enumerate() {
            for_each_tensor(out, &mut |view| poison(view, seed + index as u64));
        }
        self.delegate.execute(ctx, inputs, outputs)?;
        for (index, out) in outputs.iter_mut().enumerate() {
            let mut unwritten = None;
            for_each_tensor(out, &mut |view| {
                unwritten = unwritten.or(count_poisoned(view, seed + index as u64))
            });
            if let Some((count, first)) = unwritten {
                return Err(BackendError::new(format!(
                    "output {index}: the delegate has not written {count} elements, the first at {first} in memory"
                )));
            }
        }
        Ok(())
    }
}

fn for_each_tensor(out: &mut Out<'_>, visit: &mut dyn FnMut(&mut TensorViewMut<'_>)) {
    match out {
        Out::Tensor(view) => visit(view),
        Out::Tensors(views) => views.iter_mut().for_each(visit),
        _ => {}
    }
}

/// Writes the poison pattern of an element. It differs from element to element, so a delegate is unlikely to write it.
fn poison_pattern(seed: u64, element: usize, bytes: &mut [u8]) {
    let mut random = Random((seed << 32 | element as u64 | 1 << 31).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for chunk in bytes.chunks_mut(4) {
        let word = random.next_u64().to_le_bytes();
        chunk.copy_from_slice(&word[..chunk.len()]);
    }
}

fn poison(view: &mut TensorViewMut<'_>, seed: u64) {
    // A byte that is no boolean would not be a valid element.
    if view.dtype() != ScalarType::Bool {
        let width = view.dtype().to_real().size();
        let elements = view.bytes_mut().chunks_exact_mut(width).enumerate();
        elements.for_each(|(element, bytes)| poison_pattern(seed, element, bytes));
    }
}

/// The number of elements that have the poison pattern, and the index of the first. `None` if chance explains them.
fn count_poisoned(view: &mut TensorViewMut<'_>, seed: u64) -> Option<(usize, usize)> {
    if view.dtype() == ScalarType::Bool {
        return None;
    }
    let width = view.dtype().to_real().size();
    let mut expected = vec![0; width];
    let (mut count, mut first, mut all) = (0, None, 0);
    for (element, bytes) in view.bytes().chunks_exact(width).enumerate() {
        poison_pattern(seed, element, &mut expected);
        all += 1;
        if bytes == expected {
            count += 1;
            first = first.or(Some(element));
        }
    }
    let by_chance = match width {
        1 => all / 32 + 3,
        2 => all / 4096 + 2,
        _ => 0,
    };
    first.filter(|_| count > by_chance || count == all && all >= 4).map(|first| (count, first))
}
