//! Dynamic sizes that are fixed or narrowed when compiling.

use pteron::compile::exported::Bounds;
use pteron::compile::{Delegation, Options, SizeBounds, program_with, retargeted, to_bef, to_xnnpack};
use pteron::data::BytesLoader;
use pteron::tensor::{ShapeDynamism, Tensor};
use pteron::{DataLoader, EValue, Limits, Module, Program};
use std::path::Path;
use std::sync::Arc;

type Loader = Arc<dyn DataLoader>;

fn archive(name: &str) -> Loader {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/archives");
    Arc::new(BytesLoader::new(std::fs::read(root.join(name).join("model.pt2")).expect("an archive")))
}

fn options(sizes: &[(&str, i64, i64)], delegation: Vec<Delegation>) -> Options {
    let size = |&(name, min, max): &(&str, i64, i64)| SizeBounds {
        name: name.to_owned(),
        bounds: Bounds { min, max },
    };
    Options { sizes: sizes.iter().map(size).collect(), delegation, ..Options::default() }
}

fn compiled(name: &str, sizes: &[(&str, i64, i64)]) -> pteron::Result<Loader> {
    program_with(archive(name), &pteron::kernel_registry(), &options(sizes, Vec::new()))
}

fn error(name: &str, sizes: &[(&str, i64, i64)]) -> String {
    let error = compiled(name, sizes).map(drop).expect_err("the sizes are refused");
    pteron::tools::one_line(&error)
}

/// The names of the inputs and outputs of `forward` with dynamic sizes.
fn dynamic(loader: &Loader) -> Vec<String> {
    let program = Program::load(Arc::clone(loader), &Limits::default()).expect("a program");
    let meta = program.method_meta("forward").expect("a method");
    let tensors = meta.inputs().into_iter().chain(meta.outputs()).filter_map(|value| value.tensor);
    let metas = tensors.map(|tensor| tensor.meta);
    metas.filter(|meta| meta.dynamism() != ShapeDynamism::Static).map(|meta| meta.to_string()).collect()
}

/// Bytes of the memory plan of `forward`.
fn planned(loader: &Loader) -> u64 {
    let program = Program::load(Arc::clone(loader), &Limits::default()).expect("a program");
    program.method_meta("forward").expect("a method").memory_arenas().sum()
}

fn input(sizes: &[usize]) -> EValue {
    let elements: Vec<f32> = (0..sizes.iter().product::<usize>()).map(|i| (i as f32 * 0.7).sin()).collect();
    Tensor::from_slice(sizes, &elements).expect("a tensor").into()
}

/// The elements of the outputs of `forward`; none for those that are no tensors of float32.
fn outputs(loader: &Loader, inputs: &[&[usize]]) -> Vec<(Vec<usize>, Vec<f32>)> {
    let mut module = Module::load(Arc::clone(loader), pteron::load_options()).expect("it loads");
    let inputs: Vec<EValue> = inputs.iter().map(|sizes| input(sizes)).collect();
    let outputs = module.execute("forward", &inputs).expect("it runs");
    let elements = |value: &EValue| match value.as_tensor() {
        Ok(tensor) => (tensor.sizes().to_vec(), tensor.view().to_vec::<f32>().expect("float32")),
        Err(_) => Default::default(),
    };
    outputs.iter().map(elements).collect()
}

/// Fails if outputs differ by more than what another order of sums makes.
fn assert_close(found: &[(Vec<usize>, Vec<f32>)], expected: &[(Vec<usize>, Vec<f32>)]) {
    let sizes =
        |all: &[(Vec<usize>, Vec<f32>)]| all.iter().map(|(sizes, _)| sizes.clone()).collect::<Vec<_>>();
    assert_eq!(sizes(found), sizes(expected));
    for ((_, x), (_, y)) in found.iter().zip(expected) {
        let differs = x.iter().zip(y).find(|(x, y)| (*x - *y).abs() > 1e-5 * (1.0 + y.abs()));
        assert_eq!(differs, None);
    }
}

#[test]
fn a_fixed_size_gives_the_numbers_of_the_dynamic_program() {
    let plain = compiled("dynamic", &[]).expect("it compiles");
    assert!(!dynamic(&plain).is_empty());
    for (rows, columns) in [(1, 8), (3, 2), (6, 12)] {
        let fixed =
            compiled("dynamic", &[("s33", rows, rows), ("0.1", columns, columns)]).expect("it compiles");
        assert_eq!(dynamic(&fixed), Vec::<String>::new());
        assert!((rows, columns) == (6, 12) || planned(&fixed) < planned(&plain), "{rows} {columns}");
        let sizes: &[usize] = &[rows as usize, columns as usize, 4];
        assert_close(&outputs(&fixed, &[sizes]), &outputs(&plain, &[sizes]));
    }
}

#[test]
fn a_program_is_specialized_when_it_is_recompiled() {
    let registries = pteron::Registries::default();
    let plain = compiled("related_sizes", &[]).expect("it compiles");
    let inputs: [&[usize]; 3] = [&[5, 32], &[10, 3], &[6]];
    let expected = outputs(&plain, &inputs);
    let kernels = Arc::new(pteron::kernel_registry());
    for delegation in [Vec::new(), vec![to_xnnpack()], vec![to_bef(&kernels, None)]] {
        let options = options(&[("y.0", 10, 10)], delegation);
        let fixed = retargeted(Arc::clone(&plain), None, &registries, &options).expect("it compiles");
        assert_eq!(dynamic(&fixed), Vec::<String>::new());
        assert_close(&outputs(&fixed, &inputs), &expected);
    }
}

#[test]
fn a_narrowed_size_takes_less_memory_and_refuses_others() {
    let plain = compiled("norms_of_dynamic_columns", &[]).expect("it compiles");
    let narrowed = compiled("norms_of_dynamic_columns", &[("0.1", 5, 6)]).expect("it compiles");
    assert!(planned(&narrowed) < planned(&plain));
    assert_close(&outputs(&narrowed, &[&[4, 5]]), &outputs(&plain, &[&[4, 5]]));
    let mut module = Module::load(narrowed, pteron::load_options()).expect("it loads");
    for columns in [4, 7] {
        assert!(module.execute("forward", &[input(&[4, columns])]).is_err(), "{columns}");
    }
}

#[test]
fn sizes_that_cannot_be_are_refused_by_name() {
    for (archive, sizes, problem) in [
        ("related_sizes", &[("s9", 1, 1)][..], "there is no size `s9`"),
        ("related_sizes", &[("w.0", 1, 1)], "the dynamic ones are s77, x.0, y.0, z.0"),
        ("related_sizes", &[("x.1", 31, 31)], "`x.1` is 32 in the export, and cannot be 31"),
        ("related_sizes", &[("y.0", 7, 7)], "`y.0` is `2*s77`, which cannot be 7"),
        ("related_sizes", &[("s77", 2, 2)], "the export allows `s77` to be 3..16"),
        ("related_sizes", &[("y.0", 34, 40)], "the export allows `s77` to be 3..16"),
        ("related_sizes", &[("x.0", 4, 4), ("z.0", 6, 6)], "`--size x.0=4` is given, too"),
        ("layers", &[("batch", 1, 1)], "all sizes of the inputs are fixed"),
    ] {
        let found = error(archive, sizes);
        assert!(found.contains(problem), "{sizes:?}: {found}");
    }
}
