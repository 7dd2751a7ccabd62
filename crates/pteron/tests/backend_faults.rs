//! Backends that are slow, panic, or break their contract: each is an error that names method and delegate.

use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, CompileSpec, Delegate, Out,
};
use pteron::compile::delegate::{
    CompileSpec as AotSpec, DelegationError, DelegationSpec, NamedBytes, PartitionResult, Partitioner,
    Preprocess, PreprocessResult, tag_supported,
};
use pteron::compile::exported::ExportedProgram;
use pteron::compile::{Compiled, Delegation, OperatorTable, Options, from_loader};
use pteron::testing::Check;
use pteron::tools::{delegates::NodeKinds, one_line, profile, run};
use pteron::trace::{Place, SpanKind};
use pteron::{BytesLoader, DataLoader, FileLoader, FreeableBuffer, Interrupt, Limits, LoadOptions, Module};
use pteron::{Program, Registries, Tensor};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// The id of the backend.
const ID: &str = "Faulty";

/// Takes every node whose operator contains the text.
struct Takes(&'static str);

impl Partitioner for Takes {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let mut program = program.clone();
        let tags = tag_supported(&mut program, "part", &|_, node| node.target.contains(self.0));
        let spec = DelegationSpec { backend_id: ID.into(), compile_specs: Vec::new() };
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons: BTreeMap::new() })
    }
}

type Payload = fn(&ExportedProgram) -> Result<PreprocessResult, DelegationError>;

struct Makes(Payload);

impl Preprocess for Makes {
    fn backend_id(&self) -> &str {
        ID
    }

    fn preprocess(&self, part: &ExportedProgram, _: &[AotSpec]) -> Result<PreprocessResult, DelegationError> {
        (self.0)(part)
    }
}

fn one_byte(part: &ExportedProgram) -> Result<PreprocessResult, DelegationError> {
    Ok(PreprocessResult {
        processed_bytes: vec![part.graph.inputs.len() as u8],
        ..PreprocessResult::default()
    })
}

type Init = fn(&BackendInitContext<'_>) -> Result<(), BackendError>;
type Execute = fn(&BackendExecutionContext<'_>, &[Arg<'_>], &mut [Out<'_>]) -> Result<(), BackendError>;

/// A backend and its delegates. The payload's first byte is the number of inputs, unless `inputs` says otherwise.
#[derive(Clone, Copy)]
struct Faulty {
    init: Init,
    execute: Execute,
    inputs: Option<usize>,
}

impl Default for Faulty {
    fn default() -> Self {
        Self { init: |_| Ok(()), execute: |_, _, _| Ok(()), inputs: None }
    }
}

impl Backend for Faulty {
    fn id(&self) -> &str {
        ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        payload: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        (self.init)(ctx)?;
        let declared = payload.first().map_or(1, |&count| usize::from(count));
        Ok(Box::new(Self { inputs: self.inputs.or(Some(declared)), ..*self }))
    }
}

impl Delegate for Faulty {
    fn num_inputs(&self) -> usize {
        self.inputs.unwrap_or(0)
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        (self.execute)(ctx, inputs, outputs)
    }
}

fn archive(name: &str) -> Arc<dyn DataLoader> {
    let path = format!("{}/../../testdata/archives/{name}/model.pt2", env!("CARGO_MANIFEST_DIR"));
    Arc::new(FileLoader::open(path).unwrap())
}

fn compiled(
    name: &str,
    takes: &'static str,
    makes: Payload,
    external_data: bool,
) -> Result<Compiled, String> {
    let delegation =
        vec![Delegation { partitioner: Arc::new(Takes(takes)), backend: Arc::new(Makes(makes)) }];
    let table = OperatorTable::all(&pteron::kernel_registry());
    let options = Options { delegation, external_data, source_frames: true, ..Options::default() };
    from_loader(&archive(name), &table, &options, &mut |_, _, _| {}).map_err(|e| one_line(&e))
}

fn bytes(compiled: &Compiled) -> Vec<u8> {
    let mut bytes = Vec::new();
    compiled.program.write_to(&mut bytes).unwrap();
    bytes
}

/// The program of the archive `two_models`, whose method `decode` calls one delegate for its `tanh`.
fn program() -> Vec<u8> {
    bytes(&compiled("two_models", "tanh", one_byte, false).unwrap())
}

fn options(backend: Faulty) -> LoadOptions {
    Registries::default().backend(backend).load_options()
}

/// The method that calls a delegate.
fn method_of(module: &Module) -> String {
    let names = module.method_names();
    let calls = |name: &&str| !module.method_meta(name).unwrap().backends().is_empty();
    names.iter().map(|name| &**name).find(|name| calls(name)).expect("a method with a delegate").to_owned()
}

fn zeros(module: &Module, method: &str) -> Vec<pteron::EValue> {
    let inputs = module.method_meta(method).unwrap().inputs();
    inputs.into_iter().map(|i| Tensor::zeros(i.tensor.unwrap().meta).unwrap().into()).collect()
}

/// Loads the method and runs it `times` times.
fn ran(program: &[u8], options: LoadOptions, times: usize) -> Result<(), String> {
    let loader = Arc::new(BytesLoader::new(program.to_vec()));
    let mut module = Module::load(loader, options).map_err(|e| one_line(&e))?;
    let method = method_of(&module);
    let inputs = zeros(&module, &method);
    let mut last = Ok(());
    for _ in 0..times {
        last = module.execute(&method, &inputs).map(drop).map_err(|e| one_line(&e));
    }
    last
}

fn cancelled_soon() -> Interrupt {
    let interrupt = Interrupt::new();
    let handle = interrupt.clone();
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(30));
        handle.cancel();
    });
    interrupt
}

const SLEEP: Duration = Duration::from_millis(150);

#[test]
fn the_delegate_that_takes_the_time_is_named() {
    let slow = Faulty {
        execute: |_, _, _| {
            std::thread::sleep(SLEEP);
            Ok(())
        },
        ..Faulty::default()
    };
    let limits = Limits { time: Some(Duration::from_millis(30)), ..Limits::default() };
    for no_prepare in [false, true] {
        for options in [options(slow).limits(limits.clone()), options(slow).interrupt(cancelled_soon())] {
            let problem = ran(&program(), LoadOptions { no_prepare, ..options }, 1).unwrap_err();
            assert!(problem.contains("delegate 0 of `Faulty`"), "{problem}");
        }
    }
}

#[test]
fn a_load_that_is_cancelled_during_an_init_fails() {
    let slow = Faulty {
        init: |_| {
            std::thread::sleep(SLEEP);
            Ok(())
        },
        ..Faulty::default()
    };
    let problem = ran(&program(), options(slow).interrupt(cancelled_soon()), 1).unwrap_err();
    assert!(problem.contains("interrupted in delegate 0 of `Faulty`"), "{problem}");
}

#[test]
fn delegates_can_look_at_the_deadline_and_stop() {
    let waits = Faulty {
        execute: |ctx, _, _| {
            assert!(ctx.deadline().is_some());
            while ctx.interrupted().is_none() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Err(ctx.interrupted().expect("it is interrupted").into())
        },
        ..Faulty::default()
    };
    let limits = Limits { time: Some(Duration::from_millis(30)), ..Limits::default() };
    let loader = Arc::new(BytesLoader::new(program()));
    let mut module = Module::load(loader, options(waits).limits(limits)).unwrap();
    let method = method_of(&module);
    let inputs = zeros(&module, &method);
    match module.execute(&method, &inputs).unwrap_err() {
        pteron::Error::Execute { source, .. } => {
            assert!(matches!(
                *source,
                pteron::ExecuteError::Interrupted(pteron::Interrupted::DeadlinePassed)
            ));
        }
        other => panic!("{other}"),
    }
}

#[test]
fn panics_are_errors_and_the_module_stays_usable() {
    let loop_panics: Execute = |ctx, _, _| {
        ctx.pool().parallel_for(100, 1, &|range| assert!(!range.contains(&50), "in a loop"));
        Ok(())
    };
    for (execute, init) in [
        ((|_, _, _| panic!("in execute")) as Execute, (|_| Ok(())) as Init),
        (loop_panics, |_| Ok(())),
        (|_, _, _| Ok(()), |_| panic!("in init")),
    ] {
        for no_prepare in [false, true] {
            let options = LoadOptions { no_prepare, ..options(Faulty { execute, init, inputs: None }) };
            let problem = ran(&program(), options, 2).unwrap_err();
            assert!(problem.contains("`Faulty`") && problem.contains("it panicked: in "), "{problem}");
            assert!(problem.contains("method `"), "{problem}");
        }
    }
}

/// A delegate that panics when it is dropped.
struct Loud;

struct MakesLoud;

impl Backend for MakesLoud {
    fn id(&self) -> &str {
        ID
    }

    fn init(
        &self,
        _: &BackendInitContext<'_>,
        _: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        Ok(Box::new(Loud))
    }
}

impl Delegate for Loud {
    fn num_inputs(&self) -> usize {
        1
    }

    fn execute(
        &mut self,
        _: &BackendExecutionContext<'_>,
        _: &[Arg<'_>],
        _: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        Ok(())
    }
}

impl Drop for Loud {
    fn drop(&mut self) {
        panic!("at drop");
    }
}

#[test]
fn a_delegate_that_panics_when_it_is_dropped_ends_nothing() {
    let options = Registries::default().backend(MakesLoud).load_options();
    let load = || {
        let mut module = Module::load(Arc::new(BytesLoader::new(program())), options.clone()).unwrap();
        module.load_method(&method_of(&module)).unwrap();
        module
    };
    drop(load());
    // A panic while another unwinds would abort the process.
    let unwound = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _module = load();
        panic!("first");
    }));
    assert!(unwound.is_err());
}

#[test]
fn the_number_of_inputs_is_checked_when_a_delegate_is_loaded() {
    for inputs in [0, 2, 99] {
        let backend = Faulty { inputs: Some(inputs), ..Faulty::default() };
        let loader = Arc::new(BytesLoader::new(program()));
        let mut module = Module::load(loader, options(backend)).unwrap();
        let method = method_of(&module);
        let problem = one_line(&module.load_method(&method).unwrap_err());
        assert!(problem.contains(&format!("the delegate takes {inputs} ")), "{problem}");
        assert!(problem.contains(".py:"), "{problem}");
    }
}

#[test]
fn the_arguments_of_the_call_are_known_when_a_delegate_is_loaded() {
    let backend = Faulty {
        init: |ctx| {
            let arguments = ctx.arguments();
            assert_eq!((arguments.len(), ctx.num_inputs()), (2, Some(1)));
            let metas: Vec<_> = arguments.iter().map(|a| a.tensor().unwrap().sizes().to_vec()).collect();
            assert_eq!(metas[0], metas[1]);
            Ok(())
        },
        ..Faulty::default()
    };
    ran(&program(), options(backend), 1).unwrap();
}

#[test]
fn an_output_of_dynamic_sizes_must_be_resized() {
    let program = bytes(&compiled("related_sizes", "softmax", one_byte, false).unwrap());
    let mut module = Module::load(Arc::new(BytesLoader::new(program)), options(Faulty::default())).unwrap();
    let delegation =
        Delegation { partitioner: Arc::new(Takes("softmax")), backend: Arc::new(Makes(one_byte)) };
    assert_eq!(method_of(&module), "forward");
    module.load_method("forward").unwrap();
    let check = Check::new(Registries::default().backend(Faulty::default()), vec![delegation]);
    let problem = check.run(archive("related_sizes")).unwrap_err().to_string();
    assert!(problem.contains("has not written") || problem.contains("`resize`"), "{problem}");
    let fills = Faulty {
        execute: |_, _, outputs| {
            for out in outputs {
                if let Out::Tensor(view) = out {
                    view.storage_mut::<f32>()?.fill(0.5);
                }
            }
            Ok(())
        },
        ..Faulty::default()
    };
    let check = Check {
        cases: 2,
        tolerance: loose(),
        ..Check { registries: Registries::default().backend(fills), ..check }
    };
    let problem = check.run(archive("related_sizes")).unwrap_err().to_string();
    assert!(problem.contains("`resize`") && problem.contains("case 1"), "{problem}");
}

fn loose() -> pteron::tools::verify::Tolerance {
    pteron::tools::verify::Tolerance { explicit: Some((1e9, 1e9)), ..Default::default() }
}

/// `tanh`, of the elements in a range.
fn tanh(inputs: &[Arg<'_>], outputs: &mut [Out<'_>], skip: usize, factor: f32) -> Result<(), BackendError> {
    let ([Arg::Tensor(x)], [Out::Tensor(out)]) = (inputs, outputs) else {
        return Err(BackendError::new("one input and one output"));
    };
    out.resize(x.sizes())?;
    for (out, x) in out.storage_mut::<f32>()?.iter_mut().zip(x.storage::<f32>()?).skip(skip) {
        *out = factor * x.tanh();
    }
    Ok(())
}

#[test]
fn checks_find_what_differs_and_what_is_not_written() {
    let delegation = Delegation { partitioner: Arc::new(Takes("tanh")), backend: Arc::new(Makes(one_byte)) };
    let check = |execute: Execute| {
        let backend = Faulty { execute, ..Faulty::default() };
        let check = Check::new(Registries::default().backend(backend), vec![delegation.clone()]);
        check.run(archive("two_models")).map_err(|failed| failed.to_string())
    };
    let report = check(|_, inputs, outputs| tanh(inputs, outputs, 0, 1.0)).unwrap();
    assert_eq!((report.delegates, report.methods.len()), (1, 2));
    assert!(report.compared >= 32, "{report:?}");
    let problem = check(|_, inputs, outputs| tanh(inputs, outputs, 0, 1.01)).unwrap_err();
    assert!(problem.contains("elements differ") && problem.contains("case 0"), "{problem}");
    let problem = check(|_, inputs, outputs| tanh(inputs, outputs, 1, 1.0)).unwrap_err();
    assert!(problem.contains("has not written 1 elements, the first at 0"), "{problem}");
}

#[test]
fn a_key_names_the_same_bytes_in_the_whole_file() {
    let own: Payload = |part| {
        let (key, bytes) = ("k".to_owned(), Arc::new(part.name.clone().into_bytes()));
        let named_data = vec![NamedBytes { key, bytes, alignment: 16 }];
        Ok(PreprocessResult { named_data, ..one_byte(part)? })
    };
    for external_data in [false, true] {
        let problem = compiled("two_models", "aten", own, external_data).err().unwrap();
        assert!(problem.contains("`encode`") && problem.contains("`decode`"), "{problem}");
        assert!(problem.contains("key `k`"), "{problem}");
    }
    let reserved: Payload = |part| {
        let (key, bytes) = ("pteron.input_sizes.forward".to_owned(), Arc::new(vec![1u8]));
        let named_data = vec![NamedBytes { key, bytes, alignment: 1 }];
        Ok(PreprocessResult { named_data, ..one_byte(part)? })
    };
    let problem = compiled("two_models", "tanh", reserved, false).err().unwrap();
    assert!(problem.contains("pteron.input_sizes.forward"), "{problem}");
}

#[test]
fn empty_payloads_load() {
    let empty: Payload = |_| Ok(PreprocessResult::default());
    for external_data in [false, true] {
        let program = bytes(&compiled("two_models", "tanh", empty, external_data).unwrap());
        let module = Module::load(Arc::new(BytesLoader::new(program)), options(Faulty::default())).unwrap();
        let meta = module.method_meta(&method_of(&module)).unwrap();
        assert_eq!(meta.backends()[0].payload_bytes, 0);
    }
    let program = bytes(&compiled("two_models", "tanh", empty, false).unwrap());
    ran(&program, options(Faulty::default()), 1).unwrap();
}

#[test]
fn errors_of_all_phases_have_source_lines() {
    let fails =
        |_: &BackendExecutionContext<'_>, _: &[Arg<'_>], _: &mut [Out<'_>]| Err(BackendError::new("no"));
    let init = Faulty { init: |_| Err(BackendError::new("no")), ..Faulty::default() };
    for backend in [Faulty { execute: fails, ..Faulty::default() }, init] {
        let problem = ran(&program(), options(backend), 1).unwrap_err();
        assert!(problem.contains(".py:"), "{problem}");
    }
    let named: Payload = |part| {
        let node = &part.graph.nodes[0];
        Err(DelegationError::Preprocess {
            backend_id: ID.into(),
            node: part.node_name(node),
            target: node.target.to_string(),
            problem: "too large".into(),
        })
    };
    let unnamed: Payload =
        |_| Err(DelegationError::Payload { backend_id: ID.into(), problem: "too large".into() });
    let panics: Payload = |_| panic!("too large");
    for makes in [named, unnamed, panics] {
        let problem = compiled("two_models", "tanh", makes, false).err().unwrap();
        assert!(problem.contains("too large") && problem.contains(".py:"), "{problem}");
    }
}

#[test]
fn steps_of_opaque_delegates_are_below_their_call() {
    let steps = Faulty {
        execute: |ctx, _, _| {
            for (node, name) in ["First", "Second"].into_iter().enumerate() {
                let start = ctx.tracer().start();
                ctx.tracer().end(start, SpanKind::DelegateStep, name, Place::node(node as u32));
            }
            Ok(())
        },
        ..Faulty::default()
    };
    let program = Program::load(Arc::new(BytesLoader::new(program())), &Limits::default()).unwrap();
    let options = options(steps);
    let (kernels, backends) = (Arc::clone(&options.kernels), options.backends.clone());
    let module = Module::load(Arc::clone(program.loader()), options.clone()).unwrap();
    let method = Some(method_of(&module));
    let request = run::Request { method, repeat: 3, ..run::Request::default() };
    let profiled = profile::profile(&program, &request, false, options).unwrap();
    let nodes = NodeKinds::read(&program, &profiled.method, &backends).unwrap();
    let report = profiled.report(&program, &kernels, &nodes);
    let names: Vec<_> = report.steps.iter().map(|step| (&*step.name, step.in_delegate)).collect();
    let call = names.iter().position(|step| *step == (ID, false)).expect("the call");
    assert_eq!(names[call + 1..call + 3], [("First", true), ("Second", true)]);
    assert!((report.steps[call + 1].calls - 1.0).abs() < 1e-9);
    let mut trace = Vec::new();
    profile::chrome::trace(&profiled.recording, &mut trace).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    assert!(trace.contains("\"name\":\"Second\"") && trace.contains("\"node\":1"), "{trace}");
}
