//! Calls every operator with random, mostly invalid arguments: a call must return or fail, and never
//! panic, hang or allocate without bound.

use crate::support::call::perform;
use pteron_operator::{Arg, ArgType, Error, Generator, Out, Outs, Schema};
use pteron_tensor::{DimOrder, ScalarType, ShapeDynamism, Tensor, TensorMeta};

/// Random choices.
struct Dice(Generator);

impl Dice {
    fn below(&self, n: usize) -> usize {
        self.0.below(n as u64) as usize
    }

    fn one<T: Copy>(&self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    fn int(&self) -> i64 {
        match self.below(12) {
            0 => self.one(&[i64::MIN, i64::MAX, -1 << 31, 1 << 31, 1 << 40, 255, 65, -65]),
            1..4 => -(self.below(5) as i64),
            _ => self.below(6) as i64,
        }
    }

    fn dtype(&self) -> ScalarType {
        match self.below(4) {
            0 => self.one(ScalarType::ALL),
            1 => self.one(&[ScalarType::Long, ScalarType::Int, ScalarType::Bool]),
            _ => ScalarType::Float,
        }
    }

    /// A small tensor of arbitrary bytes. In some calls most tensors are `like` one type and shape; without that,
    /// few operators would get past their checks.
    fn tensor(&self, like: &Option<TensorMeta>) -> Tensor {
        let meta = match like {
            Some(meta) if self.below(6) > 0 => meta.clone(),
            _ => {
                let rank = self.below(6);
                let sizes: Vec<usize> = (0..rank).map(|_| self.one(&[0, 1, 1, 2, 2, 3, 4, 5])).collect();
                let mut order: Vec<u8> = (0..rank as u8).collect();
                if self.below(2) == 0 {
                    (1..rank).for_each(|i| order.swap(i, self.below(i + 1)));
                }
                TensorMeta::new(self.dtype(), &sizes, DimOrder::new(&order).unwrap()).unwrap()
            }
        };
        let mut t = Tensor::zeros(meta).unwrap();
        let small = self.below(4) > 0;
        match t.storage_mut::<i64>() {
            Ok(all) if small => all.iter_mut().for_each(|v| *v = self.below(4) as i64),
            _ => {
                let bytes: Vec<u8> = (0..t.nbytes()).map(|_| self.0.next_u64() as u8).collect();
                t = Tensor::from_bytes(t.meta().clone(), &bytes).unwrap();
            }
        }
        t
    }

    /// A tensor for an out, which can be resized.
    fn out(&self, like: &Option<TensorMeta>) -> Tensor {
        let t = self.tensor(like);
        let sizes: Vec<usize> = t.sizes().iter().map(|s| s + self.below(8)).collect();
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

fn attempt(dice: &Dice, schema: &'static Schema) {
    let like = (dice.below(3) > 0).then(|| dice.tensor(&None).meta().clone());
    let mut pool =
        Pool { doubles: vec![0.5, -1.0, f64::NAN], bools: vec![true, false, true], ..Pool::default() };
    for arg in &schema.args {
        let n = if arg.list { dice.below(4) } else { 1 };
        let make = |_| if arg.written { dice.out(&like) } else { dice.tensor(&like) };
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
        if arg.optional && dice.below(3) == 0 {
            list.push(Arg::None);
            continue;
        }
        list.push(match (arg.ty, arg.list) {
            (ArgType::Tensor, false) => Arg::Tensor(tensors[0].view()),
            (ArgType::Tensor, true) if arg.optional => {
                Arg::OptionalTensors(tensors.iter().map(|t| (dice.below(3) > 0).then(|| t.view())).collect())
            }
            (ArgType::Tensor, true) => Arg::Tensors(tensors.iter().map(|t| t.view()).collect()),
            (ArgType::Float, true) => Arg::Doubles(&pool.doubles[..dice.below(4)]),
            (ArgType::Bool, true) => Arg::Bools(&pool.bools[..dice.below(4)]),
            (_, true) => Arg::Ints((0..dice.below(5)).map(|_| dice.int()).collect()),
            (ArgType::Float, _) => Arg::Double(dice.one(&[0.0, 0.5, -1.0, 2.0, f64::NAN, f64::INFINITY])),
            (ArgType::Bool, _) => Arg::Bool(dice.below(2) == 0),
            (ArgType::Str, _) => Arg::Str(dice.one(&["none", "tanh", "floor", "trunc", "mean", "sum", "x"])),
            (ArgType::Scalar, _) if dice.below(3) == 0 => {
                Arg::Double(dice.one(&[0.0, -0.5, 3.0, f64::NAN, f64::INFINITY, 1e300]))
            }
            _ => Arg::Int(dice.int()),
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
        let fails =
            |seed: &u64| std::panic::catch_unwind(|| attempt(&Dice(Generator::new(*seed)), schema)).is_err();
        failures.extend((0..rounds).find(fails).map(|seed| (op.name(), seed)));
    }
    assert!(failures.is_empty(), "operators that panicked, with the seed of their arguments: {failures:?}");
}
