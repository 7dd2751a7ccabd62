//! What the compiler asks of partitioners and backends, and what it keeps of what they say.
#![cfg(feature = "compile")]

use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, Delegate, Out,
};
use pteron::compile::delegate::*;
use pteron::compile::exported::*;
use pteron::compile::{Compiled, Delegation, OperatorTable, Options, compile, compile_exported, pt2};
use pteron::{BytesLoader, FreeableBuffer, LoadOptions, Module};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

const ID: &str = "Other";

/// Takes the nodes whose operators contain a text, and says of all others that they do not.
struct Takes(&'static str);

impl Partitioner for Takes {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let mut program = program.clone();
        let tags = tag_supported(&mut program, "t", &|_, node| node.target.contains(self.0));
        let mut reasons = BTreeMap::new();
        program.graph.for_each_node(&mut |node| {
            if !node.target.contains(self.0) {
                reasons.insert(node.outputs[0], format!("it is no {}", self.0));
            }
        });
        let spec = DelegationSpec { backend_id: ID.into(), compile_specs: Vec::new() };
        let partition_tags = tags.into_iter().map(|tag| (tag, spec.clone())).collect();
        Ok(PartitionResult { tagged_exported_program: program, partition_tags, reasons })
    }
}

/// Makes payloads that ask for an alignment, and so does their data.
struct Aligned {
    payload: u64,
    data: u64,
}

impl Preprocess for Aligned {
    fn backend_id(&self) -> &str {
        ID
    }

    fn preprocess(
        &self,
        _: &ExportedProgram,
        _: &[CompileSpec],
    ) -> Result<PreprocessResult, DelegationError> {
        let named = NamedBytes { key: "k".into(), bytes: Arc::new(vec![1u8; 999]), alignment: self.data };
        Ok(PreprocessResult {
            processed_bytes: vec![1; 1001],
            named_data: vec![named],
            payload_alignment: self.payload,
            ..PreprocessResult::default()
        })
    }
}

fn archive(name: &str) -> pt2::SharedBytes {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives").join(name);
    Arc::new(std::fs::read(path.join("model.pt2")).unwrap())
}

fn compiled(delegation: Vec<Delegation>) -> Result<Compiled, String> {
    let table = OperatorTable::portable(&pteron::kernel_registry());
    let options = Options { delegation, ..Options::default() };
    compile(archive("channels_last_rows"), &table, &options, &mut |_, _, _| {}).map_err(|e| e.to_string())
}

fn delegation(operator: &'static str, payload: u64, data: u64) -> Delegation {
    Delegation { partitioner: Arc::new(Takes(operator)), backend: Arc::new(Aligned { payload, data }) }
}

/// Keeps payloads and data, and the greatest distances of their addresses from multiples of 4096.
#[derive(Default)]
struct Addresses {
    payload: AtomicUsize,
    data: AtomicUsize,
    buffers: Mutex<Vec<FreeableBuffer>>,
}

struct Other(Arc<Addresses>);

impl Backend for Other {
    fn id(&self) -> &str {
        ID
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[pteron::backend::CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        let data = ctx.named_data().unwrap().data("k").unwrap();
        assert_eq!((&processed[..], &data[..]), (&[1; 1001][..], &[1; 999][..]));
        let behind = |bytes: &FreeableBuffer| bytes.as_ptr().addr() % 4096;
        self.0.payload.fetch_max(behind(&processed), Ordering::SeqCst);
        self.0.data.fetch_max(behind(&data), Ordering::SeqCst);
        self.0.buffers.lock().unwrap().extend([processed, data]);
        Ok(Box::new(Nothing))
    }
}

struct Nothing;

impl Delegate for Nothing {
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

#[test]
fn payloads_and_data_lie_in_memory_as_asked() {
    let program = compiled(vec![delegation("aten.cat", 4096, 4096)]).unwrap();
    let mut bytes = Vec::new();
    program.program.write_to(&mut bytes).unwrap();
    let path = std::env::temp_dir().join(format!("pteron-alignment-{}.pte", std::process::id()));
    std::fs::write(&path, &bytes).unwrap();
    for shift in [0, 8, 24, 40] {
        let addresses = Arc::new(Addresses::default());
        let options = || {
            let backends = pteron::backend_registry().with(Other(Arc::clone(&addresses)));
            LoadOptions::new(pteron::kernel_registry()).backends(backends)
        };
        struct Shifted(Vec<u8>, usize);
        impl AsRef<[u8]> for Shifted {
            fn as_ref(&self) -> &[u8] {
                &self.0[self.1..]
            }
        }
        let shifted = Shifted([vec![0; shift], bytes.clone()].concat(), shift);
        let mut in_memory = Module::load(Arc::new(BytesLoader::new(shifted)), options()).unwrap();
        let mut opened = Module::open(&path, options()).unwrap();
        in_memory.load_method("forward").unwrap();
        opened.load_method("forward").unwrap();
        let behind = [&addresses.payload, &addresses.data].map(|behind| behind.load(Ordering::SeqCst));
        assert_eq!(behind, [0, 0], "shifted by {shift}");
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn alignments_that_cannot_be_given_are_refused() {
    for (payload, data, what) in
        [(0, 3, "data `k`"), (0, 1 << 40, "data `k`"), (0, 0, "data `k`"), (12, 1, "payload")]
    {
        let refused = compiled(vec![delegation("aten.cat", payload, data)]).map(|_| ()).unwrap_err();
        assert!(refused.contains(what) && refused.contains("power of two"), "{refused}");
    }
    compiled(vec![delegation("aten.cat", 0, 1)]).unwrap();
}

#[test]
fn the_reasons_of_every_backend_are_kept_with_node_and_line() {
    let takes = |operator| delegation(operator, 0, 16);
    let program = compiled(vec![takes("aten.cat"), takes("no such operator")]).unwrap();
    let left = &program.methods[0].left;
    let reasons = |reason: &str| -> Vec<_> {
        left.iter().filter(|left| left.reason == reason).flat_map(|left| &left.nodes).collect()
    };
    let (first, second) = (reasons("it is no aten.cat"), reasons("it is no no such operator"));
    assert!(!first.is_empty() && first.len() == second.len(), "{left:?}");
    assert!(
        first.iter().all(|node| node.line.as_ref().is_some_and(|line| line.contains(".py:"))),
        "{first:?}"
    );
    assert!(left.iter().all(|left| left.backend_id == ID && left.count == left.nodes.len()));
}

#[test]
fn norms_are_folded_before_partitioning() {
    let norm = "aten._native_batch_norm_legit_no_training.default";
    let convolutions = compiled(vec![delegation("aten.convolution", 0, 1)]).unwrap();
    let left = convolutions.methods[0].left.iter().find(|left| left.target == norm).unwrap();
    // The third one does not follow a convolution.
    assert_eq!(left.count, 1);
}

#[test]
fn programs_are_compiled_without_an_archive() {
    let table = OperatorTable::portable(&pteron::kernel_registry());
    let programs = pt2::read(&archive("channels_last_rows"), &CompileBudget::default()).unwrap();
    let bytes = |compiled: &Compiled| {
        let mut bytes = Vec::new();
        compiled.program.write_to(&mut bytes).unwrap();
        bytes
    };
    let twice = [programs.clone(), programs.clone()].concat();
    let own = compile_exported(programs, &table, &Options::default(), &mut |_, _, _| {}).unwrap();
    assert!(bytes(&own) == bytes(&compiled(Vec::new()).unwrap()));
    let refused =
        compile_exported(twice, &table, &Options::default(), &mut |_, _, _| {}).map(|_| ()).unwrap_err();
    assert!(refused.to_string().contains("two programs have the name `forward`"), "{refused}");
}

#[test]
fn operators_are_left_whole_for_backends_that_take_them() {
    let lstm = "aten.lstm.input";
    let compiled = |keeping: &[&str], delegation: Vec<Delegation>| {
        let table =
            OperatorTable::portable(&pteron::kernel_registry()).with_kept_operators(keeping.iter().copied());
        let options = Options { delegation, ..Options::default() };
        compile(archive("recurrent"), &table, &options, &mut |_, _, _| {}).unwrap()
    };
    let bytes = |compiled: &Compiled| {
        let mut bytes = Vec::new();
        compiled.program.write_to(&mut bytes).unwrap();
        bytes
    };
    let takes = || vec![delegation("aten.lstm", 0, 1)];
    let num_delegated = |compiled: &Compiled| {
        compiled.methods[0]
            .delegates
            .iter()
            .map(|part| part.operators.get(lstm).copied().unwrap_or(0))
            .sum::<usize>()
    };
    assert!(num_delegated(&compiled(&[lstm], takes())) > 0);
    assert_eq!(num_delegated(&compiled(&[], takes())), 0);
    // Nothing takes them: they are decomposed as ever.
    assert!(bytes(&compiled(&[lstm], Vec::new())) == bytes(&compiled(&[], Vec::new())));
}

/// Prefers channels-last images and takes nothing; keeps the layouts of the convolutions' inputs and of the outputs.
#[derive(Default)]
struct ChannelsLast(Mutex<[Vec<bool>; 2]>);

impl Partitioner for ChannelsLast {
    fn partition(&self, program: &ExportedProgram) -> Result<PartitionResult, DelegationError> {
        let is_plain = |var: VarId| program.spec(var).unwrap().dim_order.is_contiguous();
        let mut images = Vec::new();
        program.graph.for_each_node(&mut |node| {
            if *node.target == *"aten.convolution.default" {
                images.push(is_plain(node.arg("input").and_then(Argument::var).unwrap()));
            }
        });
        let outputs = program.graph.outputs.iter().filter_map(Argument::var).map(is_plain).collect();
        *self.0.lock().unwrap() = [images, outputs];
        let (partition_tags, reasons) = (BTreeMap::new(), BTreeMap::new());
        Ok(PartitionResult { tagged_exported_program: program.clone(), partition_tags, reasons })
    }

    fn prefers_channels_last(&self) -> bool {
        true
    }
}

#[test]
fn a_backend_gets_channels_last_images_if_it_prefers_them() {
    let seen = Arc::new(ChannelsLast::default());
    let partitioner = Arc::clone(&seen) as Arc<dyn Partitioner + Send + Sync>;
    let backend = Arc::new(Aligned { payload: 0, data: 1 });
    let preferring = compiled(vec![Delegation { partitioner, backend }]).unwrap();
    let [images, outputs] = &*seen.0.lock().unwrap();
    assert!(images.len() == 4 && images.iter().all(|plain| !plain), "{images:?}");
    assert!(outputs.len() == 2 && outputs.iter().all(|plain| *plain), "{outputs:?}");
    let run = |compiled: &Compiled| -> Vec<f32> {
        let mut bytes = Vec::new();
        compiled.program.write_to(&mut bytes).unwrap();
        let options = LoadOptions::new(pteron::kernel_registry());
        let mut module = Module::load(Arc::new(BytesLoader::new(bytes)), options).unwrap();
        let elements: Vec<f32> = (0..3 * 16 * 12).map(|i| (i % 13) as f32 * 0.3 - 1.5).collect();
        let image = pteron::Tensor::from_slice(&[1, 3, 16, 12], &elements).unwrap();
        let outputs = module.forward(&[image.into()]).unwrap();
        outputs
            .iter()
            .flat_map(|output| output.as_tensor().unwrap().as_slice::<f32>().unwrap().to_vec())
            .collect()
    };
    let (expected, actual) = (run(&compiled(Vec::new()).unwrap()), run(&preferring));
    assert_eq!(expected.len(), actual.len());
    assert!(expected.iter().zip(&actual).all(|(a, b)| (a - b).abs() <= 1e-4 * (1.0 + a.abs())));
}
