use crate::kernels::{RegistryExt, out, text_value};
use pteron_bef::{Array, Location};
use pteron_host::{Chain, Fault, Frame, KernelRegistry, Results, Value};
use std::collections::HashMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

fn sum(frame: &mut Frame<'_>) -> Result<i32, Fault> {
    (0..frame.arguments()).try_fold(0i32, |sum, i| Ok(sum.wrapping_add(frame.get::<i32>(i)?)))
}

/// The number of the current thread; threads are numbered in the order in which they first call this function.
fn thread_id() -> i32 {
    static NEXT: AtomicI32 = AtomicI32::new(0);
    thread_local! {
        static ID: i32 = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    ID.with(|id| *id)
}

/// The name of a named location, of the callee of a call site, or of the first named part of a fused location.
fn name_of<'l>(location: &'l Location<'_>) -> Option<&'l str> {
    let name = |l: &'l Location<'_>| if let Location::Name { name, .. } = l { Some(&**name) } else { None };
    match location {
        Location::Unknown | Location::FileLineCol { .. } => None,
        Location::Name { .. } => name(location),
        Location::CallSite { callee, .. } => name(callee),
        Location::Fused(parts) => parts.iter().find_map(name),
    }
}

/// Fails if two kernels of one host have the same location but different names.
fn unique_location(frame: &mut Frame<'_>) -> Result<Chain, Fault> {
    type Locations = Mutex<HashMap<Option<u64>, String>>;
    let name: String = frame.attribute(0)?;
    let locations = frame.context().host().shared(Locations::default);
    let key = frame.location_offset();
    let mut locations = locations.lock().unwrap_or_else(|e| e.into_inner());
    if *locations.entry(key).or_insert_with(|| name.clone()) == name {
        Ok(Chain)
    } else {
        Err(format!("duplicate locations {name}").into())
    }
}

/// The wrapping sum of the first attribute, a string that is parsed as a number, and the elements of the second.
fn sum_array<T: std::str::FromStr + Into<Value>>(
    frame: &Frame<'_>,
    elements: impl Fn(&Array<'_>) -> Option<Vec<T>>,
    add: impl Fn(T, T) -> T,
) -> Result<Value, Fault> {
    let text: &str = frame.attribute(0)?;
    let start: T = text.parse().map_err(|_| format!("Cannot convert {text} to target int"))?;
    let array: &Array<'_> = frame.attribute(1)?;
    let values = elements(array).ok_or_else(|| Fault::invalid("the array has another element type"))?;
    Ok(values.into_iter().fold(start, add).into())
}

fn forward(frame: &mut Frame<'_>, from: usize) -> Result<Results, Fault> {
    Ok(frame.arguments_from(from))
}

pub(super) fn register(registry: &mut KernelRegistry) {
    registry.add_fallible("tfrt_test.identity", |frame: &mut Frame<'_>| forward(frame, 1));
    registry.add_fallible("tfrt_test.multi_arg_result", |frame: &mut Frame<'_>| forward(frame, 0));
    registry.add_fallible("tfrt_test.make_indirect", |frame: &mut Frame<'_>| forward(frame, 0));
    registry.add_fallible("tfrt_test.share_to_two", |frame: &mut Frame<'_>| {
        let value = frame.argument(0).clone();
        Ok((value.clone(), value))
    });
    registry.add_fallible("tfrt_test.get_uniqueness", |frame: &mut Frame<'_>| {
        let unique = |v: &Value| matches!(v, Value::Object(_)) && v.is_unique();
        Ok((0..frame.arguments()).map(|i| unique(frame.argument(i)).into()).collect::<Vec<Value>>())
    });
    registry.add_immediate("tfrt_test.print_hello", |frame: &mut Frame<'_>| {
        out!(frame, "hello host executor!\n");
        Ok(Chain)
    });
    registry.add_typed("tfrt_test.get_thread_id", thread_id);
    registry.add_immediate("tfrt_test.sum", sum);
    registry
        .add_pure("tfrt_test.count3.i32", |x: i32| (x.wrapping_add(1), x.wrapping_add(2), x.wrapping_add(3)));
    registry
        .add_pure("tfrt_test.count3.i64", |x: i64| (x.wrapping_add(1), x.wrapping_add(2), x.wrapping_add(3)));
    registry.add_immediate("tfrt_test.test_cost", |frame: &mut Frame<'_>| {
        out!(frame, "id: {}\n", frame.attribute::<i64>(0)?);
        Ok(0i32)
    });
    registry.add_immediate("tfrt_test.print_debug_info", |frame: &mut Frame<'_>| {
        match frame.location().as_ref().and_then(name_of) {
            Some(name) => out!(frame, "{name}\n"),
            None => out!(frame, "Kernel has no debug info\n"),
        }
        Ok(Chain)
    });
    registry.add_immediate("tfrt_test.unique_loc", unique_location);
    registry.add_immediate("tfrt_test.sum_array_attr.i32", |frame: &mut Frame<'_>| {
        sum_array::<i32>(frame, |a| Some(a.i32s()?.collect()), i32::wrapping_add)
    });
    registry.add_immediate("tfrt_test.sum_array_attr.i64", |frame: &mut Frame<'_>| {
        sum_array::<i64>(frame, |a| Some(a.i64s()?.collect()), i64::wrapping_add)
    });
    registry.add_typed("tfrt_test.get_request_context_data.i32", || 0i32);
    registry.add_fallible("tfrt_test.async_value_get", |frame: &mut Frame<'_>| {
        text_value(frame, &["base1:base2:final_class:3"])
    });
    registry.add_fallible("tfrt_test.async_value_ref", |frame: &mut Frame<'_>| {
        text_value(frame, &["available:2;unavailable;(3);available:3;unavailable;available:4"])
    });
}
