//! Functions that run in program order have the same observable effects in the same order, and the same results, as
//! under the scheduler.

use pteron_host::{
    Effect, ExecutionContext, Frame, Function, FunctionBuilder, FunctionId, HostContext, Kernel,
    ModuleBuilder, Register, Value,
};
use pteron_pool::WorkQueue;
use std::sync::{Arc, Mutex};

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

/// A log of what kernels did: their observable effects, and the order in which all kernels ran.
#[derive(Default)]
struct Log {
    observable: Mutex<Vec<i64>>,
    ran: Mutex<Vec<i64>>,
}

type Logged = (Vec<i64>, Vec<i64>);

impl Log {
    fn take(&self) -> Logged {
        (std::mem::take(&mut self.observable.lock().unwrap()), std::mem::take(&mut self.ran.lock().unwrap()))
    }
}

fn number(value: &Value) -> i64 {
    if let Value::I64(v) = value { *v } else { panic!("{value:?} is no number") }
}

fn total(frame: &Frame<'_>, seed: i64) -> i64 {
    let numbers = (0..frame.arguments()).map(|i| number(frame.argument(i)));
    numbers.fold(seed, |a, b| a.wrapping_mul(31).wrapping_add(b))
}

fn set_all(frame: &mut Frame<'_>, first: i64) {
    (0..frame.results()).for_each(|i| frame.set(i, Value::I64(first.wrapping_add(i as i64))));
}

/// A kernel that has this effect.
fn kernel(effect: Effect, seed: i64, fails: bool, log: &Arc<Log>) -> Arc<dyn Kernel> {
    let log = Arc::clone(log);
    Arc::new(move |frame: &mut Frame<'_>| {
        log.ran.lock().unwrap().push(seed);
        match effect {
            Effect::None => set_all(frame, total(frame, seed)),
            Effect::Immediate => {
                let total = total(frame, seed);
                log.observable.lock().unwrap().push(total);
                if fails { frame.fail("asked to fail") } else { set_all(frame, total) }
            }
            Effect::Call => {
                let callee = frame.function(0).unwrap();
                frame.call(callee, 0);
            }
            Effect::Loop | Effect::Any => {
                let callee = frame.function(0).unwrap().to_function();
                let arguments = frame.arguments_from(0);
                callee.execute(frame.context(), &arguments);
                frame.set_all(callee.execute(frame.context(), &arguments));
            }
        }
    })
}

/// Signature of a function: its id, and its numbers of arguments and results.
type Declared = (FunctionId, usize, usize);

/// A random function that calls some of the declared functions.
fn body(random: &mut Random, own: Declared, callees: &[Declared], log: &Arc<Log>) -> FunctionBuilder {
    let (_, arguments, results) = own;
    let mut b = FunctionBuilder::new("random", arguments);
    let mut known: Vec<Register> = (0..arguments).map(|i| b.argument(i)).collect();
    let mut last = None;
    // Most functions chain their effects.
    let careful = !random.one_in(6);
    for seed in 0..2 + random.below(8) as i64 {
        let callee = (!callees.is_empty() && random.one_in(3)).then(|| callees[random.below(callees.len())]);
        let effect = match callee {
            Some(_) if random.one_in(8) => Effect::Loop,
            Some(_) => Effect::Call,
            None if random.one_in(3) => Effect::Immediate,
            None => Effect::None,
        };
        let count = callee.map_or_else(|| random.below(3), |(_, arguments, _)| arguments);
        if count > 0 && known.is_empty() {
            continue;
        }
        let mut given: Vec<Register> = (0..count).map(|_| known[random.below(known.len())]).collect();
        let observable = effect != Effect::None;
        if let (true, true, Some(last)) = (careful, observable, last) {
            match given.first_mut() {
                Some(first) => *first = last,
                None => given.push(last),
            }
        }
        let set = callee.map_or(1 + random.below(2), |(_, _, results)| results);
        let implementation = kernel(effect, seed, random.one_in(20), log);
        let (registers, id) = b.call(&implementation, &given, set);
        let edit = b.edit(id).stream(random.below(3) as u32).effect(effect);
        if let Some((callee, ..)) = callee {
            edit.functions(&[callee]);
        }
        if observable && !registers.is_empty() {
            last = Some(registers[random.below(registers.len())]);
        }
        known.extend(registers);
    }
    if known.is_empty() {
        known.push(b.kernel(&kernel(Effect::None, 99, false, log), &[]));
    }
    let returned: Vec<Register> = (0..results)
        .map(|_| match last {
            Some(last) if careful => last,
            _ => known[random.below(known.len())],
        })
        .collect();
    b.returns(&returned);
    b
}

/// A module whose first function calls others, without recursion.
fn module(random: &mut Random, log: &Arc<Log>) -> Function {
    let mut module = ModuleBuilder::new();
    let declared: Vec<Declared> = (0..1 + random.below(4))
        .map(|i| {
            let arguments = if i == 0 { 0 } else { random.below(3) };
            let results = if i == 0 { random.below(3) } else { 1 + random.below(2) };
            (module.declare("random", arguments, results), arguments, results)
        })
        .collect();
    for (i, &own) in declared.iter().enumerate() {
        module.define(own.0, body(random, own, &declared[i + 1..], log)).unwrap();
    }
    module.build().unwrap().functions().next().unwrap()
}

/// The results, and the log of the run.
fn outcome(
    host: &HostContext,
    log: &Log,
    run: impl FnOnce(&ExecutionContext) -> Vec<Value>,
) -> (Vec<Option<i64>>, Logged) {
    let context = ExecutionContext::new(host);
    let results = run(&context);
    host.wait(&results);
    host.quiesce();
    let results = results.into_iter().map(Value::settle);
    (results.map(|v| (!v.is_error()).then(|| number(&v))).collect(), log.take())
}

#[test]
fn effects_and_results_in_program_order_equal_those_of_the_scheduler() {
    let count: usize = std::env::var("PTERON_STRESS").ok().and_then(|n| n.parse().ok()).unwrap_or(2000);
    let host = HostContext::builder(WorkQueue::single_threaded()).build();
    let log = Arc::new(Log::default());
    let mut random = Random(3);
    let (mut reordered, mut effects) = (0, 0);
    for round in 0..count {
        let function = module(&mut random, &log);
        let (scheduled, (observable, ran)) = outcome(&host, &log, |c| function.execute(c, &[]).into_vec());
        let (alone, (observed_alone, ran_alone)) =
            outcome(&host, &log, |c| function.execute_alone(c, &[]).into_vec());
        assert_eq!(alone, scheduled, "module {round}");
        assert_eq!(observed_alone, observable, "module {round}");
        reordered += usize::from(ran != ran_alone);
        effects += usize::from(ran != ran_alone && observable.len() > 1);
    }
    assert!(reordered > count / 10, "only {reordered} of {count} modules ran in another order");
    assert!(effects > count / 50, "only {effects} of {count} had several effects");
}

/// Two effects without a dependence between them: their order is that of the scheduler, as in the reference.
#[test]
fn effects_without_a_dependence_keep_the_order_of_the_scheduler() {
    let host = HostContext::builder(WorkQueue::single_threaded()).build();
    let log = Arc::new(Log::default());
    let mut b = FunctionBuilder::new("f", 0);
    let first = b.call(&kernel(Effect::Immediate, 1, false, &log), &[], 1);
    let second = b.call(&kernel(Effect::Immediate, 2, false, &log), &[], 1);
    b.edit(first.1).stream(1).effect(Effect::Immediate);
    b.edit(second.1).stream(2).effect(Effect::Immediate);
    b.returns(&[first.0[0], second.0[0]]);
    let function = b.build().unwrap();
    let (_, (scheduled, _)) = outcome(&host, &log, |c| function.execute(c, &[]).into_vec());
    let (_, (alone, _)) = outcome(&host, &log, |c| function.execute_alone(c, &[]).into_vec());
    assert_eq!(scheduled, [2, 1]);
    assert_eq!(alone, scheduled);
}

/// A function without results that calls itself: what follows the call does not wait for the effects of the callee.
#[test]
fn a_recursive_function_without_results_keeps_the_order_of_the_scheduler() {
    let host = HostContext::builder(WorkQueue::single_threaded()).build();
    let log = Arc::new(Log::default());
    let minus_one: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let rest = number(frame.argument(0)) - 1;
        frame.set(0, Value::I64(rest));
    });
    let recurse: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        if number(frame.argument(0)) > 0 {
            let callee = frame.function(0).unwrap();
            frame.call(callee, 1);
        }
    });
    let effect = |seed| kernel(Effect::Immediate, seed, false, &log);
    let mut module = ModuleBuilder::new();
    let own = module.declare("f", 1, 0);
    let mut b = FunctionBuilder::new("f", 1);
    let n = b.argument(0);
    let (rest, id) = b.call(&minus_one, &[n], 1);
    b.edit(id).effect(Effect::None);
    let (_, first) = b.call(&effect(10), &[n], 1);
    b.edit(first).stream(1).effect(Effect::Immediate);
    let (_, call) = b.call(&recurse, &[n, rest[0]], 0);
    b.edit(call).after(first).effect(Effect::Call).functions(&[own]);
    let (_, id) = b.call(&effect(20), &[n], 1);
    b.edit(id).after(call).effect(Effect::Immediate);
    b.returns(&[]);
    module.define(own, b).unwrap();
    let function = module.build().unwrap().functions().next().unwrap();
    let start = [Value::I64(2)];
    let (_, (scheduled, _)) = outcome(&host, &log, |c| function.execute(c, &start).into_vec());
    let (_, (alone, _)) = outcome(&host, &log, |c| function.execute_alone(c, &start).into_vec());
    assert_eq!(scheduled, [312, 622, 311, 621, 310, 620]);
    assert_eq!(alone, scheduled);
}
