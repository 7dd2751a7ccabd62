//! Loom models of the lock-free protocols: loom runs them under every thread interleaving.
//!
//! `RUSTFLAGS="--cfg loom" cargo test -p pteron-host --release --lib`

use crate::async_value::AsyncValue;
use crate::dataflow::{ModelCell, ModelReadyCount, ModelResultSlot};
use crate::error::{ErrorCode, ErrorValue};
use crate::instances::Instances;
use crate::pending::Pending;
use crate::timer::ModelTimers;
use crate::value::Value;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicUsize, Ordering};
use loom::thread;

fn object(value: i32) -> Value {
    Value::object(value)
}

fn read(value: &Value) -> i32 {
    *value.downcast_ref::<i32>().expect("an object")
}

#[test]
fn a_waiter_runs_once_whether_it_comes_before_or_after_the_value() {
    loom::model(|| {
        let (promise, value) = AsyncValue::new();
        let ran = Arc::new(AtomicUsize::new(0));
        let setter = thread::spawn(move || promise.set(object(7)));
        let (waiting, count) = (value.clone(), Arc::clone(&ran));
        let waiter = thread::spawn(move || {
            let inner = waiting.clone();
            waiting.and_then(move || {
                assert_eq!(read(inner.get().expect("available")), 7);
                count.fetch_add(1, Ordering::Relaxed);
            });
        });
        if let Some(seen) = value.get() {
            assert_eq!(read(seen), 7);
        }
        setter.join().unwrap();
        waiter.join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        assert_eq!(read(value.get().expect("available")), 7);
    });
}

#[test]
fn two_concurrent_waiters_both_run() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let (promise, value) = AsyncValue::new();
        let ran = Arc::new(AtomicUsize::new(0));
        let threads: Vec<_> = (0..2)
            .map(|_| {
                let (value, ran) = (value.clone(), Arc::clone(&ran));
                thread::spawn(move || {
                    value.and_then(move || {
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                })
            })
            .collect();
        promise.set(object(1));
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(ran.load(Ordering::Relaxed), 2);
    });
}

#[test]
fn a_forwarded_value_arrives() {
    loom::model(|| {
        let (outer, value) = AsyncValue::new();
        let (inner, source) = AsyncValue::new();
        let forward = thread::spawn(move || outer.set(Value::Async(source)));
        let set = thread::spawn(move || inner.set(object(3)));
        forward.join().unwrap();
        set.join().unwrap();
        assert_eq!(read(value.get().expect("available")), 3);
    });
}

#[test]
fn the_last_operand_to_arrive_makes_a_kernel_ready_once() {
    loom::model(|| {
        let ready = Arc::new(ModelReadyCount::new(2));
        let cells = Arc::new([ModelCell::new(Value::Empty, 1), ModelCell::new(Value::Empty, 1)]);
        let runs = Arc::new(AtomicUsize::new(0));
        let producers: Vec<_> = (0..2)
            .map(|i| {
                let (ready, cells, runs) = (Arc::clone(&ready), Arc::clone(&cells), Arc::clone(&runs));
                thread::spawn(move || {
                    // SAFETY: each register is put by one thread, before that thread calls `arrive`.
                    unsafe { cells[i].put(object(i as i32)) };
                    if ready.arrive() {
                        // SAFETY: both operands have arrived; each is used once.
                        let values = [0, 1].map(|c| unsafe { cells[c].take_use() });
                        assert_eq!(values.each_ref().map(read), [0, 1]);
                        runs.fetch_add(1, Ordering::Relaxed);
                    }
                })
            })
            .collect();
        producers.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(runs.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn the_last_user_of_a_register_takes_the_value_and_others_copy_it() {
    loom::model(|| {
        let token = std::sync::Arc::new(5i32);
        let cell = Arc::new(ModelCell::new(Value::Object(token.clone()), 2));
        let users: Vec<_> = (0..2)
            .map(|_| {
                let cell = Arc::clone(&cell);
                // SAFETY: the register is set, and is used as often as it was created for.
                thread::spawn(move || assert_eq!(read(&unsafe { cell.take_use() }), 5))
            })
            .collect();
        users.into_iter().for_each(|t| t.join().unwrap());
        // All uses are over: the register no longer holds the value.
        assert_eq!(std::sync::Arc::strong_count(&token), 1);
    });
}

#[test]
fn a_result_reaches_the_caller_whether_it_is_set_before_or_after_the_request() {
    loom::model(|| {
        let slot = Arc::new(ModelResultSlot::new(false));
        let cell = Arc::new(ModelCell::new(Value::Empty, 1));
        let (s, c) = (Arc::clone(&slot), Arc::clone(&cell));
        let producer = thread::spawn(move || {
            // SAFETY: put once, before `mark_set` notifies the caller.
            unsafe { c.put(object(9)) };
            // SAFETY: the register was put just now.
            if let Some(promise) = unsafe { s.mark_set() } {
                // SAFETY: the register is set, and this is its only use.
                promise.set(unsafe { c.take_use() });
            }
        });
        let (promise, value) = AsyncValue::new();
        // SAFETY: called once.
        let set = unsafe { slot.is_set_or_store(|| promise) };
        if set {
            // SAFETY: the slot reports that the register is set, and this is its only use.
            assert_eq!(read(&unsafe { cell.take_use() }), 9);
        }
        producer.join().unwrap();
        if !set {
            assert_eq!(read(value.get().expect("available")), 9);
        }
    });
}

#[test]
fn a_register_can_hold_the_asynchronous_value_that_it_waits_for() {
    loom::model(|| {
        let (promise, value) = AsyncValue::new();
        let cell = Arc::new(ModelCell::new(Value::Empty, 1));
        let ran = Arc::new(AtomicUsize::new(0));
        let setter = thread::spawn(move || promise.set(object(4)));
        // SAFETY: no other thread has access to the register yet.
        unsafe { cell.put(Value::Async(value.clone())) };
        let count = Arc::clone(&ran);
        value.and_then(move || {
            // SAFETY: the register was put, and only this waiter was notified.
            let available = unsafe { cell.take_back() }.settle();
            // SAFETY: nobody else accesses the register.
            unsafe { cell.put(available) };
            // SAFETY: the register is set, and this is its only use.
            assert_eq!(read(&unsafe { cell.take_use() }), 4);
            count.fetch_add(1, Ordering::Relaxed);
        });
        setter.join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
    });
}

/// Checks that a waiter runs once if `end` resolves the value while another thread cancels the request.
fn check_waiter_runs_once(end: fn(crate::async_value::Promise)) {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(move || {
        let pending = Arc::new(Pending::default());
        let (promise, source) = AsyncValue::new();
        let resolve = thread::spawn(move || end(promise));
        let all = Arc::clone(&pending);
        let cancel = thread::spawn(move || all.cancel(&ErrorValue::new(ErrorCode::Cancelled, "")));
        let value = pending.relay(AsyncValue::new(), source);
        let ran = Arc::new(AtomicUsize::new(0));
        if let Value::Async(value) = &value {
            let count = Arc::clone(&ran);
            value.and_then(move || {
                count.fetch_add(1, Ordering::Relaxed);
            });
        } else {
            ran.fetch_add(1, Ordering::Relaxed);
        }
        resolve.join().unwrap();
        cancel.join().unwrap();
        assert_eq!(ran.load(Ordering::Relaxed), 1);
        assert!(value.is_available());
    });
}

#[test]
fn a_waiter_is_woken_once_by_the_value_or_by_the_cancellation() {
    check_waiter_runs_once(|promise| promise.set(object(7)));
}

#[test]
fn a_waiter_is_woken_once_if_the_task_ends_without_a_value() {
    // As a panic does: it drops what the task holds.
    check_waiter_runs_once(drop);
}

#[test]
fn a_value_that_comes_after_the_cancellation_is_the_error() {
    loom::model(|| {
        let pending = Arc::new(Pending::default());
        let all = Arc::clone(&pending);
        let cancel = thread::spawn(move || all.cancel(&ErrorValue::new(ErrorCode::Cancelled, "")));
        let (_promise, source) = AsyncValue::new();
        let value = pending.relay(AsyncValue::new(), source);
        cancel.join().unwrap();
        assert!(value.settle().is_error());
    });
}

#[test]
fn a_timer_fires_or_is_removed() {
    loom::model(|| {
        let timers = Arc::new(ModelTimers::new());
        let fired = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&fired);
        let timer = timers.add_due(move || {
            count.fetch_add(1, Ordering::Relaxed);
        });
        let all = Arc::clone(&timers);
        let thread = thread::spawn(move || all.run_due());
        let removed = timers.remove(timer);
        thread.join().unwrap();
        assert_eq!(fired.load(Ordering::Relaxed) + usize::from(removed), 1);
    });
}

#[test]
fn a_timer_that_is_added_wakes_the_thread() {
    loom::model(|| {
        let timers = Arc::new(ModelTimers::new());
        let fired = Arc::new(AtomicUsize::new(0));
        let all = Arc::clone(&timers);
        let thread = thread::spawn(move || all.run_until_stopped());
        let (count, all) = (Arc::clone(&fired), Arc::clone(&timers));
        timers.add_due(move || {
            count.fetch_add(1, Ordering::Relaxed);
            all.stop();
        });
        thread.join().unwrap();
        assert_eq!(fired.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn an_object_is_created_once_and_its_constructor_may_ask_for_others() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let all = Arc::new(Instances::<u8>::default());
        let constructed = Arc::new(AtomicUsize::new(0));
        let ask = |all: Arc<Instances<u8>>, constructed: Arc<AtomicUsize>| {
            move || {
                let nested = || all.get(&1, || std::sync::Arc::new(1u8)).is_ok();
                let object = all.get(&0, || {
                    constructed.fetch_add(1, Ordering::Relaxed);
                    std::sync::Arc::new(nested())
                });
                assert_eq!(object.unwrap().downcast_ref(), Some(&true));
            }
        };
        let other = thread::spawn(ask(Arc::clone(&all), Arc::clone(&constructed)));
        ask(Arc::clone(&all), Arc::clone(&constructed))();
        other.join().unwrap();
        assert_eq!(constructed.load(Ordering::Relaxed), 1);
    });
}

#[test]
fn of_two_constructors_that_need_each_other_at_most_both_are_refused_and_none_waits_for_ever() {
    let mut bounded = loom::model::Builder::new();
    bounded.preemption_bound = Some(3);
    bounded.check(|| {
        let all = Arc::new(Instances::<u8>::default());
        let ask = |all: Arc<Instances<u8>>, own: u8| {
            move || {
                let make = || std::sync::Arc::new(all.get(&(1 - own), || std::sync::Arc::new(())).is_ok());
                assert!(all.get(&own, || make()).is_ok());
            }
        };
        let other = thread::spawn(ask(Arc::clone(&all), 1));
        ask(all, 0)();
        other.join().unwrap();
    });
}
