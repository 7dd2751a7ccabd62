//! Interrupted executions end in the middle of long kernels, whether or not these run on the thread pool.

use crate::support::call::{a, int, ints, out, run};
use pteron_operator::{Arg, Out};
use pteron_pool::{Interrupt, Interrupted, interruptible};
use pteron_tensor::{ScalarType, Tensor};
use smallvec::SmallVec;

/// Runs a call under a cancelled interrupt, and checks that the call ends early.
fn expect_interrupted(name: &str, args: &[Arg<'_>], outs: &mut [Tensor]) {
    let interrupt = Interrupt::new();
    interrupt.cancel();
    let _armed = interrupt.arm();
    let outs: SmallVec<[Out<'_>; 3]> = outs.iter_mut().map(|o| Out::Tensor(o.view_mut())).collect();
    let ended = interruptible(|| run(name, args, outs).map(drop));
    assert_eq!(ended, Err(Interrupted::Cancelled), "{name}");
}

fn random_tensor(sizes: &[usize]) -> Tensor {
    let mut state = 1u32;
    let mut tensor =
        Tensor::zeros(pteron_tensor::TensorMeta::contiguous(ScalarType::Float, sizes).unwrap()).unwrap();
    for x in tensor.as_mut_slice::<f32>().unwrap() {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        *x = (state >> 8) as f32;
    }
    tensor
}

/// Single-threaded calls of kernels that only move, fill or compare elements.
#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "an interrupted call unwinds")]
fn moves_fills_and_comparisons_are_interrupted() {
    use ScalarType::Float;
    let side = 1 << 10;
    let sizes = [side, side];
    let (x, y) = (random_tensor(&sizes), random_tensor(&sizes));
    let like = || [out(Float, &sizes)];
    let n = side as i64;
    expect_interrupted("aten::clone.out", &[a(&x), Arg::None], &mut like());
    expect_interrupted("aten::t_copy.out", &[a(&x)], &mut like());
    expect_interrupted("aten::transpose_copy.int_out", &[a(&x), int(0), int(1)], &mut like());
    expect_interrupted("aten::view_copy.out", &[a(&x), ints(&[n * n])], &mut [out(Float, &[side * side])]);
    expect_interrupted("aten::full.out", &[ints(&[n, n]), int(3)], &mut like());
    expect_interrupted("aten::zeros.out", &[ints(&[n, n])], &mut like());
    expect_interrupted("aten::eye.m_out", &[int(n), int(n)], &mut like());
    expect_interrupted("aten::roll.out", &[a(&x), ints(&[3]), ints(&[1])], &mut like());
    let close = [a(&x), a(&y), Arg::Double(1.0), Arg::Double(1e30), Arg::Bool(false)];
    expect_interrupted("aten::allclose.out", &close, &mut [out(ScalarType::Bool, &[])]);
}

#[test]
#[cfg_attr(not(panic = "unwind"), ignore = "an interrupted call unwinds")]
fn long_kernels_are_interrupted() {
    use ScalarType::{ComplexFloat, Float, Long};
    let n = 1 << 18;
    let long = random_tensor(&[n]);
    expect_interrupted("aten::sort.values", &[a(&long)], &mut [out(Float, &[n]), out(Long, &[n])]);
    expect_interrupted(
        "aten::_fft_r2c.out",
        &[a(&long), ints(&[0]), int(0), Arg::Bool(true)],
        &mut [out(ComplexFloat, &[n / 2 + 1])],
    );
    let image = random_tensor(&[1, 1, 1024, 1024]);
    let resize_args = [a(&image), ints(&[512, 512])];
    expect_interrupted(
        "aten::adaptive_max_pool2d.out",
        &resize_args,
        &mut [out(Float, &[1, 1, 512, 512]), out(Long, &[1, 1, 512, 512])],
    );
    let square = random_tensor(&[1024, 1024]);
    expect_interrupted("aten::mm.out", &[a(&square), a(&square)], &mut [out(Float, &[1024, 1024])]);
    expect_interrupted("aten::sum.IntList_out", &[a(&square), ints(&[0])], &mut [out(Float, &[1024])]);
    let filters = random_tensor(&[8, 1, 15, 15]);
    let conv = [
        a(&image),
        a(&filters),
        Arg::None,
        ints(&[1, 1]),
        ints(&[7, 7]),
        ints(&[1, 1]),
        Arg::Bool(false),
        ints(&[0, 0]),
        int(1),
    ];
    expect_interrupted("aten::convolution.out", &conv, &mut [out(Float, &[1, 8, 1024, 1024])]);
}
