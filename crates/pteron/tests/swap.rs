//! Swapping weights while a program runs: no execution waits, fails, or sees a mixture of old and new weights.

use pteron::data::PackStore;
use pteron::format::container::Blob;
use pteron::format::ptd::{Builder, TensorLayout};
use pteron::{
    BytesLoader, EValue, FreeableBuffer, Limits, LoadOptions, Module, NamedDataMap, Program, PtdDataMap,
    Tensor, TensorMeta,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

/// Promises that the mapped files do not change.
fn unchanged() -> pteron::Unchanged {
    // SAFETY: these tests only read the files of the corpus, and nothing else writes to them.
    unsafe { pteron::Unchanged::promise() }
}

fn corpus(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/corpus").join(path)
}

const MODEL: &str = "tiny/ModuleLinear_extconst/model.pte";
const DATA: &str = "tiny/ModuleLinear_extconst/_default_external_constant.ptd";

fn original() -> PtdDataMap {
    PtdDataMap::map(corpus(DATA), unchanged()).unwrap()
}

/// The data file of the corpus with every element multiplied by `factor`, then modified by `change`.
fn data(factor: f32, change: impl Fn(&mut Builder<'static>)) -> Arc<PtdDataMap> {
    let map = original();
    let mut builder = Builder::new();
    for entry in &map.tables().named_data {
        let bytes = map.data(&entry.key).unwrap();
        let floats = bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) * factor);
        let bytes: Vec<u8> = floats.flat_map(f32::to_le_bytes).collect();
        builder.tensor(&entry.key, entry.tensor_layout.clone().unwrap(), Blob::bytes(bytes));
    }
    change(&mut builder);
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    let loader = BytesLoader::named(format!("weights-{factor}.ptd"), file);
    Arc::new(PtdDataMap::load(Arc::new(loader), &Limits::default()).unwrap())
}

fn scaled(factor: f32) -> Arc<PtdDataMap> {
    data(factor, |_| ())
}

fn module(no_prepare: bool) -> Module {
    let options = LoadOptions { no_prepare, ..pteron::load_options().data(Arc::new(original())) };
    Module::open(corpus(MODEL), options).unwrap()
}

fn inputs(module: &Module) -> Vec<EValue> {
    let inputs = module.method_meta("forward").unwrap().inputs();
    let input = |v: pteron::ValueMeta| {
        let meta = v.tensor.unwrap().meta;
        let elements: Vec<f32> = (0..meta.numel()).map(|i| (i as f32 * 0.7).sin()).collect();
        Tensor::from_slice(meta.sizes(), &elements).unwrap().into()
    };
    inputs.into_iter().map(input).collect()
}

fn output(module: &mut Module, inputs: &[EValue]) -> Vec<f32> {
    module.forward(inputs).unwrap()[0].as_tensor().unwrap().to_vec().unwrap()
}

#[test]
fn swapped_weights_are_used_prepared_or_not() {
    for no_prepare in [false, true] {
        let mut swapped = module(no_prepare);
        let x = inputs(&swapped);
        let before = output(&mut swapped, &x);
        let loaded = swapped.program().loader().bytes_loaded();
        swapped.swap_data(scaled(2.0)).unwrap();
        let after = output(&mut swapped, &x);
        assert_eq!(swapped.program().loader().bytes_loaded(), loaded, "the program was read again");
        let twice: Vec<f32> = before.iter().map(|v| v * 2.0).collect();
        assert_eq!(after, twice, "weights and bias are twice what they were");
        assert!(!swapped.apply_swapped_data().unwrap());
        swapped.swap_data(scaled(1.0)).unwrap();
        assert!(swapped.apply_swapped_data().unwrap());
        assert_eq!(output(&mut swapped, &x), before);
    }
}

/// The weights of `xnn_mlp_weights_ptd`, which only its delegate reads, with every element multiplied by `factor` and each
/// entry truncated to `bytes` bytes.
#[cfg(feature = "xnnpack")]
fn named_data(factor: f32, bytes: usize) -> Arc<PtdDataMap> {
    let path = corpus("tiny/xnn_mlp_weights_ptd/xnn_weights.ptd");
    let map = PtdDataMap::map(path, unchanged()).unwrap();
    let mut builder = Builder::new();
    for entry in &map.tables().named_data {
        let data = map.data(&entry.key).unwrap();
        let floats = data.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) * factor);
        let data: Vec<u8> = floats.flat_map(f32::to_le_bytes).take(bytes).collect();
        let layout = TensorLayout { scalar_type: 0, sizes: Vec::new(), dim_order: Vec::new() };
        builder.tensor(&entry.key, layout, Blob::bytes(data));
        builder.entries.iter_mut().for_each(|entry| entry.layout = None);
    }
    let mut file = Vec::new();
    builder.write(&mut file).unwrap();
    let loader = BytesLoader::named(format!("weights-{factor}.ptd"), file);
    Arc::new(PtdDataMap::load(Arc::new(loader), &Limits::default()).unwrap())
}

#[test]
#[cfg(feature = "xnnpack")]
fn delegates_use_swapped_named_data() {
    let path = corpus("tiny/xnn_mlp_weights_ptd/model.pte");
    let new = |factor: f32, no_prepare| {
        let data = named_data(factor, usize::MAX);
        Module::open(&path, LoadOptions { no_prepare, ..pteron::load_options().data(data) }).unwrap()
    };
    for no_prepare in [false, true] {
        let mut module = new(1.0, no_prepare);
        let mut shared = module.share();
        let x = inputs(&module);
        let before = output(&mut module, &x);
        let expected = output(&mut new(-0.5, no_prepare), &x);
        assert_ne!(before, expected);
        // A module that has not loaded the method refuses unusable data for the delegate, too.
        for refusing in [&module, &shared] {
            let error = refusing.swap_data(named_data(2.0, 8)).unwrap_err();
            let cause = std::error::Error::source(&error).map_or_else(String::new, ToString::to_string);
            assert!(
                error.to_string().contains("delegate 0") && cause.contains("bytes of constant"),
                "{error}: {cause}"
            );
        }
        assert_eq!(output(&mut module, &x), before);
        shared.swap_data(named_data(-0.5, usize::MAX)).unwrap();
        assert_eq!(output(&mut module, &x), expected);
        assert_eq!(output(&mut shared, &x), expected);
    }
}

#[test]
fn data_that_does_not_fit_is_refused_and_the_old_data_stays() {
    let mut module = module(false);
    let x = inputs(&module);
    let before = output(&mut module, &x);
    let refused = |change: fn(&mut Builder<'static>)| {
        let e = module.swap_data(data(3.0, change)).unwrap_err().to_string();
        assert!(e.contains("method `forward`") && e.contains("weights-3.ptd"), "{e}");
        e
    };
    let e = refused(|b| _ = b.entries.remove(0));
    assert!(
        e.contains("1 tensor(s) are stored outside the program") && e.contains("does not hold them"),
        "{e}"
    );
    let e = refused(|b| b.entries[0].layout.as_mut().unwrap().scalar_type = 3);
    assert!(e.contains("in the program and int32") && e.contains("value "), "{e}");
    let e = refused(|b| {
        for layout in b.entries.iter_mut().filter_map(|e| e.layout.as_mut()) {
            (layout.sizes, layout.dim_order) = (vec![layout.sizes.iter().product()], vec![0]);
        }
    });
    assert!(e.contains("do not belong together"), "{e}");
    let e = refused(|b| {
        b.entries[0].layout = None;
        b.entries[0].blob = Blob::bytes(vec![0; 3]);
    });
    assert!(e.contains("and 3 in weights-3.ptd"), "{e}");
    assert_eq!(output(&mut module, &x), before);
}

#[test]
fn executions_never_fail_nor_see_a_mixture_while_weights_are_swapped() {
    const SWAPS: usize = 300;
    let main = module(false);
    let x = inputs(&main);
    let versions: Vec<_> = (0..4).map(|i| scaled(1.0 + i as f32)).collect();
    let expected: Vec<Vec<f32>> = versions
        .iter()
        .map(|v| {
            let mut module = module(false);
            module.swap_data(v.clone()).unwrap();
            output(&mut module, &x)
        })
        .collect();
    assert!((1..4).all(|i| expected[i] != expected[0]));
    main.swap_data(versions[0].clone()).unwrap();
    // The numbers of swaps that have begun and that have returned.
    let (begun, returned, stop) = (AtomicUsize::new(0), AtomicUsize::new(0), AtomicBool::new(false));
    let executions = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let mut module = main.share();
            let (x, expected) = (&x, &expected);
            let (begun, returned, stop, executions) = (&begun, &returned, &stop, &executions);
            scope.spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    let first = returned.load(Ordering::SeqCst);
                    let actual = output(&mut module, x);
                    let last = begun.load(Ordering::SeqCst);
                    let fits = (first..=last).any(|n| actual == expected[n % 4]);
                    assert!(fits, "an execution between swaps {first} and {last} gave {actual:?}");
                    executions.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        for n in 1..=SWAPS {
            begun.store(n, Ordering::SeqCst);
            main.swap_data(versions[n % 4].clone()).unwrap();
            returned.store(n, Ordering::SeqCst);
            // Data that does not fit changes nothing while executions run, either.
            assert!(main.swap_data(data(9.0, |b| _ = b.entries.pop())).is_err());
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        stop.store(true, Ordering::Relaxed);
    });
    let executions = executions.into_inner();
    println!("{executions} executions on 4 threads during {SWAPS} swaps");
    assert!(executions > SWAPS / 10);
}

#[test]
fn a_swap_resets_the_state_that_the_data_initializes() {
    let folder = corpus("wild/train_xor_extweights");
    let map = Arc::new(PtdDataMap::map(folder.join("_default_external_constant.ptd"), unchanged()).unwrap());
    let mut module =
        Module::open(folder.join("model.pte"), pteron::load_options().data(map.clone())).unwrap();
    let state = |module: &mut Module| -> Vec<Vec<u8>> {
        module.method("forward").unwrap().state().map(|(_, v)| v.bytes().to_vec()).collect()
    };
    let fresh = state(&mut module);
    let method = module.method("forward").unwrap();
    let (name, zeros) = {
        let (name, view) = method.attributes().next().unwrap();
        (name.to_owned(), Tensor::zeros(view.meta().clone()).unwrap())
    };
    method.set_attribute(&name, zeros.view()).unwrap();
    assert_ne!(state(&mut module), fresh);
    module.swap_data(map).unwrap();
    assert_eq!(state(&mut module), fresh);
}

/// Data that is swapped for another while a method is loaded on it.
struct Superseded {
    data: Arc<PtdDataMap>,
    next: Mutex<Option<(Module, Arc<PtdDataMap>)>>,
}

impl NamedDataMap for Superseded {
    fn tensor_layout(&self, key: &str) -> pteron::Result<Option<TensorMeta>> {
        self.data.tensor_layout(key)
    }

    fn data(&self, key: &str) -> pteron::Result<FreeableBuffer> {
        if let Some((module, next)) = self.next.lock().unwrap().take() {
            module.swap_data(next)?;
        }
        self.data.data(key)
    }

    fn contains(&self, key: &str) -> bool {
        self.data.contains(key)
    }

    fn keys(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        self.data.keys()
    }

    fn name(&self) -> &str {
        "superseded"
    }
}

#[test]
fn methods_that_share_their_memory_take_data_that_is_swapped_meanwhile() {
    let folder = corpus("wild/train_xor_extweights");
    let map = Arc::new(PtdDataMap::map(folder.join("_default_external_constant.ptd"), unchanged()).unwrap());
    let mut module =
        Module::open(folder.join("model.pte"), pteron::load_options().data(map.clone())).unwrap();
    module.share_memory_arenas().unwrap();
    let metas = module.method_meta("forward").unwrap().inputs();
    let x: Vec<EValue> =
        metas.into_iter().map(|v| Tensor::zeros(v.tensor.unwrap().meta).unwrap().into()).collect();
    let run = |module: &mut Module| module.forward(&x).map(|outputs| format!("{outputs:?}"));
    let before = run(&mut module).unwrap();
    let superseded = Arc::new(Superseded { data: map.clone(), next: Mutex::default() });
    module.swap_data(superseded.clone()).unwrap();
    *superseded.next.lock().unwrap() = Some((module.share(), map));
    assert_eq!(run(&mut module).unwrap(), before, "it runs on the data that it was loaded on");
    assert!(module.apply_swapped_data().unwrap(), "data was swapped meanwhile");
    assert_eq!(run(&mut module).unwrap(), before);
}

#[test]
fn programs_share_the_pages_of_one_mapped_file() {
    let map: Arc<PtdDataMap> = Arc::new(original());
    let method = || {
        let program = Program::open(corpus(MODEL)).unwrap();
        let options = LoadOptions { no_prepare: true, ..pteron::load_options().data(map.clone()) };
        program.load_method("forward", options).unwrap()
    };
    let (a, b) = (method(), method());
    let places = |m: &pteron::Method| -> Vec<_> {
        m.attributes().map(|(name, view)| (name.to_owned(), view.bytes().as_ptr())).collect()
    };
    assert!(!places(&a).is_empty());
    assert_eq!(places(&a), places(&b), "both look at the same pages");
}

#[test]
#[cfg(feature = "xnnpack")]
fn programs_that_share_a_pack_store_pack_common_data_once() {
    let path = corpus("tiny/xnn_mlp_weights_ptd/model.pte");
    let file = corpus("tiny/xnn_mlp_weights_ptd/xnn_weights.ptd");
    let store = PackStore::new();
    let load = |data: Arc<dyn NamedDataMap>| {
        let mut module =
            Module::open(&path, pteron::load_options().packed(store.clone()).data(data)).unwrap();
        let x = inputs(&module);
        output(&mut module, &x);
        module
    };
    let mapped = || Arc::new(PtdDataMap::map(&file, unchanged()).unwrap());
    let first = load(mapped());
    let bytes = store.bytes();
    assert!(bytes > 0);
    // Another program with another map of the same file, and one that reads the file.
    let second = load(mapped());
    let third = load(Arc::new(PtdDataMap::open(&file).unwrap()));
    assert_eq!(store.bytes(), bytes);
    // Other data is packed separately, and packed weights are freed once no method uses them.
    let mut fourth = load(mapped());
    let x = inputs(&fourth);
    let before = output(&mut fourth, &x);
    fourth.swap_data(named_data(-0.5, usize::MAX)).unwrap();
    let after = output(&mut fourth, &x);
    assert_ne!(after, before);
    assert_eq!(store.bytes(), 2 * bytes);
    drop((first, second, third));
    assert_eq!(store.bytes(), bytes);
    fourth.swap_data(mapped()).unwrap();
    assert_eq!(output(&mut fourth, &x), before);
    assert_eq!(store.bytes(), bytes);
    drop(fourth);
    assert_eq!(store.bytes(), 0);
}
