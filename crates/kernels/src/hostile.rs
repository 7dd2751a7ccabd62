//! Calls every operator with random, mostly invalid arguments: a call must return or fail, and never
//! panic, hang or allocate without bound.

use crate::support::call::perform;
use pteron_operator::{Arg, ArgType, Error, Generator, Out, Outs, Schema};
use pteron_tensor::{DimOrder, ScalarType, ShapeDynamism, Tensor, TensorMeta};

/// A source of random choices for the arguments of a call, whose tensors are small, or have huge sizes and no elements.
struct Dice(Generator, Tensors);

#[derive(Clone, Copy, PartialEq)]
enum Tensors {
    Small,
    HugeAndEmpty,
}

impl Dice {
    fn random_below(&self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn pick<T: Copy>(&self, of: &[T]) -> T {
        of[self.random_below(of.len())]
    }

    fn random_int(&self) -> i64 {
        match self.random_below(12) {
            0 => self.pick(&[i64::MIN, i64::MAX, -1 << 31, 1 << 31, 1 << 40, 255, 65, -65]),
            1..4 => -(self.random_below(5) as i64),
            _ => self.random_below(6) as i64,
        }
    }

    fn random_dtype(&self) -> ScalarType {
        match self.random_below(4) {
            0 => self.pick(ScalarType::ALL),
            1 => self.pick(&[ScalarType::Long, ScalarType::Int, ScalarType::Bool]),
            _ => ScalarType::Float,
        }
    }

    /// A small tensor of arbitrary bytes. In some calls most tensors are `like` one type and shape; without that,
    /// few operators would get past their checks.
    fn random_tensor(&self, like: &Option<TensorMeta>) -> Tensor {
        let meta = match like {
            Some(meta) if self.random_below(6) > 0 => meta.clone(),
            _ => {
                let rank = self.random_below(6);
                let mut sizes: Vec<usize> = (0..rank).map(|_| self.pick(&[0, 1, 1, 2, 2, 3, 4, 5])).collect();
                if self.1 == Tensors::HugeAndEmpty && rank > 1 {
                    let empty = self.random_below(rank);
                    (sizes[empty], sizes[(empty + 1 + self.random_below(rank - 1)) % rank]) =
                        (0, 1 << (usize::BITS / 8 * 5));
                }
                let mut order: Vec<u8> = (0..rank as u8).collect();
                if self.random_below(2) == 0 {
                    (1..rank).for_each(|i| order.swap(i, self.random_below(i + 1)));
                }
                TensorMeta::new(self.random_dtype(), &sizes, DimOrder::new(&order).unwrap()).unwrap()
            }
        };
        let mut t = Tensor::zeros(meta).unwrap();
        let small = self.random_below(4) > 0;
        match t.storage_mut::<i64>() {
            Ok(all) if small => all.iter_mut().for_each(|v| *v = self.random_below(4) as i64),
            _ => {
                let bytes: Vec<u8> = (0..t.nbytes()).map(|_| self.0.next_u64() as u8).collect();
                t = Tensor::from_bytes(t.meta().clone(), &bytes).unwrap();
            }
        }
        t
    }

    /// A random tensor for an out, with spare room to be resized.
    fn random_out(&self, like: &Option<TensorMeta>) -> Tensor {
        let t = self.random_tensor(like);
        let room = |size: &usize| {
            if t.numel() == 0 && self.1 == Tensors::HugeAndEmpty {
                *size
            } else {
                size + self.random_below(8)
            }
        };
        let sizes: Vec<usize> = t.sizes().iter().map(room).collect();
        let meta = TensorMeta::new(t.dtype(), &sizes, *t.dim_order()).unwrap();
        Tensor::zeros(meta.with_dynamism(ShapeDynamism::DynamicBound)).unwrap()
    }
}

/// The storage that the arguments of a call borrow from.
#[derive(Default)]
struct Pool {
    tensors: Vec<Vec<Tensor>>,
    doubles: Vec<f64>,
    bools: Vec<bool>,
}

fn call_with_random_args(dice: &Dice, schema: &'static Schema) {
    let like = (dice.random_below(3) > 0).then(|| dice.random_tensor(&None).meta().clone());
    let mut pool =
        Pool { doubles: vec![0.5, -1.0, f64::NAN], bools: vec![true, false, true], ..Pool::default() };
    for arg in &schema.args {
        let n = if arg.list { dice.random_below(4) } else { 1 };
        let make = |_| if arg.written { dice.random_out(&like) } else { dice.random_tensor(&like) };
        pool.tensors.push((0..n).map(make).collect());
    }
    let mut written: Vec<Vec<Tensor>> = Vec::new();
    let mut list: smallvec::SmallVec<[Arg<'_>; 12]> = smallvec::SmallVec::new();
    for (arg, tensors) in schema.args.iter().zip(&pool.tensors) {
        if arg.written {
            list.push(Arg::Out(written.len()));
            written.push(tensors.clone());
            continue;
        }
        if arg.optional && dice.random_below(3) == 0 {
            list.push(Arg::None);
            continue;
        }
        list.push(match (arg.ty, arg.list) {
            (ArgType::Tensor, false) => Arg::Tensor(tensors[0].view()),
            (ArgType::Tensor, true) if arg.optional => Arg::OptionalTensors(
                tensors.iter().map(|t| (dice.random_below(3) > 0).then(|| t.view())).collect(),
            ),
            (ArgType::Tensor, true) => Arg::Tensors(tensors.iter().map(|t| t.view()).collect()),
            (ArgType::Float, true) => Arg::Doubles(&pool.doubles[..dice.random_below(4)]),
            (ArgType::Bool, true) => Arg::Bools(&pool.bools[..dice.random_below(4)]),
            (_, true) => Arg::Ints((0..dice.random_below(5)).map(|_| dice.random_int()).collect()),
            (ArgType::Float, _) => Arg::Double(dice.pick(&[0.0, 0.5, -1.0, 2.0, f64::NAN, f64::INFINITY])),
            (ArgType::Bool, _) => Arg::Bool(dice.random_below(2) == 0),
            (ArgType::Str, _) => Arg::Str(dice.pick(&["none", "tanh", "floor", "trunc", "mean", "sum", "x"])),
            (ArgType::Scalar, _) if dice.random_below(3) == 0 => {
                Arg::Double(dice.pick(&[0.0, -0.5, 3.0, f64::NAN, f64::INFINITY, 1e300]))
            }
            _ => Arg::Int(dice.random_int()),
        });
    }
    let fresh = schema.fresh_result().map(|result| match result.alias {
        Some(_) => Out::View(None),
        None => Out::Scalar(None),
    });
    let lists: Vec<bool> = schema.args.iter().filter(|a| a.written).map(|a| a.list).collect();
    let outs = written.iter_mut().zip(lists).map(|(tensors, list)| match list {
        true => Out::Tensors(tensors.iter_mut().map(|t| t.view_mut()).collect()),
        false => Out::Tensor(tensors[0].view_mut()),
    });
    // Both success and failure are fine, but for a kernel that reads an argument by a name that its schema does not have.
    let outcome = perform(&schema.name, list, &mut Outs::new(outs.chain(fresh).collect()));
    if let Err(Error::ArgumentKind { index, name, .. }) = outcome {
        assert!(index < schema.args.len(), "{}: the schema has no argument `{name}`", schema.name);
    }
}

#[test]
fn no_argument_list_panics() {
    let rounds = std::env::var("PTERON_HOSTILE_ROUNDS").ok().and_then(|v| v.parse().ok()).unwrap_or(300);
    let mut failures = Vec::new();
    for op in crate::operators() {
        let schema: &'static Schema = Box::leak(Box::new(Schema::parse(op.schema()).unwrap()));
        let fails = |seed: &u64| {
            std::panic::catch_unwind(|| {
                call_with_random_args(&Dice(Generator::new(*seed), Tensors::Small), schema)
            })
            .is_err()
        };
        failures.extend((0..rounds).find(fails).map(|seed| (op.name(), seed)));
    }
    assert!(failures.is_empty(), "operators that panicked, with the seed of their arguments: {failures:?}");
}

/// Loops over the rows of a tensor without elements would take days.
#[test]
#[cfg_attr(target_family = "wasm", ignore = "needs threads")]
fn no_call_hangs_on_huge_sizes_without_elements() {
    let mut failures = Vec::new();
    for op in crate::operators() {
        let schema: &'static Schema = Box::leak(Box::new(Schema::parse(op.schema()).unwrap()));
        let (done, outcome) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            for seed in 0..100 {
                let dice = Dice(Generator::new(seed), Tensors::HugeAndEmpty);
                call_with_random_args(&dice, schema);
                let _ = done.send(seed); // the receiver may have given up
            }
        });
        let last =
            std::iter::from_fn(|| outcome.recv_timeout(std::time::Duration::from_secs(20)).ok()).last();
        if last != Some(99) {
            failures.push((op.name(), last.map_or(0, |seed| seed + 1)));
        }
    }
    assert!(
        failures.is_empty(),
        "operators that hang or panic, with the seed of their arguments: {failures:?}"
    );
}
