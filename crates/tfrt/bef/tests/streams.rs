//! Compares the streams of a program with costs to those that the reference converter wrote.

use pteron_bef::stream_analysis::{Options, assign_streams};
use pteron_bef::{File, Module};

/// `tests/data/stream_costs.bef`: the module has `tfrt.cost_threshold = 6`; the costs are copied from its source.
const PROGRAM: &[u8] = include_bytes!("data/stream_costs.bef");

fn check(module: &Module<'_>, name: &str, options: Options, costs: &[i64]) {
    let id = module.find_function(name).unwrap();
    let expected = module.functions[id.index()].body.as_ref().unwrap();
    let mut body = expected.clone();
    for kernel in &mut body.kernels {
        kernel.stream = 77;
    }
    assign_streams(&mut body, &options, |kernel| costs.get(kernel).copied(), |_| false);
    assert_eq!(&body, expected, "{name}");
}

#[test]
fn streams_of_a_program_with_costs() {
    let module = File::open(PROGRAM).unwrap().verify().unwrap().to_module().unwrap();
    let options = Options { cost_threshold: 6, ..Options::default() };
    check(&module, "cheap_ones", options, &[2, 2, 2, 9]);
    let heavy = Options { cost_threshold: 100, upper_cost_threshold: 150, ..options };
    check(&module, "heavy_pair", heavy, &[120, 130, 40, 5]);
    let merged = Options { merge_inter_dependent_streams: true, ..options };
    check(&module, "merged", merged, &[7, 7, 1]);
    check(&module, "drive", options, &[]);
}
