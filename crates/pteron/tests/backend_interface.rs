//! The backend interface while a method is loaded and runs: options, runtime specs, memory accounting, errors that say
//! where they occurred, and forks of a method.

mod support;

use pteron::backend::{
    Arg, Backend, BackendError, BackendExecutionContext, BackendInitContext, BackendRegistry, CompileSpec,
    Delegate, OptionValue, Out,
};
use pteron::format::pte::{EValue as Value, ExtraTensorInfo, Instruction};
use pteron::{BytesLoader, FreeableBuffer, Limits, LoadOptions, Method, Program};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use support::{Plan, Random};

/// Adds the option `offset`, plus the runtime spec `step` times the number of previous calls, to each element.
#[derive(Default)]
struct Offset {
    offset: Arc<Mutex<i64>>,
    available: bool,
}

/// A payload whose delegate cannot be forked.
const ALONE: &[u8] = b"alone";
/// A payload whose delegate requests more memory than is left, when it is loaded.
const LARGE: &[u8] = b"large";
/// A payload whose delegate requests more memory than is left, when it runs.
const LARGE_RUN: &[u8] = b"large run";

impl Backend for Offset {
    fn id(&self) -> &str {
        "Offset"
    }

    fn is_available(&self) -> bool {
        self.available
    }

    fn init(
        &self,
        ctx: &BackendInitContext<'_>,
        processed: FreeableBuffer,
        _: &[CompileSpec<'_>],
    ) -> Result<Box<dyn Delegate>, BackendError> {
        if *processed == *LARGE {
            ctx.allocate(ctx.bytes_left() / 2 + 1)?;
            ctx.allocate(ctx.bytes_left() + 1)?;
        }
        let step = match ctx.runtime_spec("step") {
            None => 0,
            Some(OptionValue::Int(step)) => *step,
            Some(other) => return Err(BackendError::new(format!("`step` is {other:?}, expected a number"))),
        };
        Ok(Box::new(Sum { offset: Arc::clone(&self.offset), payload: processed.to_vec(), step, calls: 0 }))
    }

    fn set_option(&self, key: &str, value: &OptionValue) -> Result<(), BackendError> {
        match (key, value) {
            ("offset", OptionValue::Int(value)) => *self.offset.lock().unwrap() = *value,
            _ => return Err(BackendError::new(format!("no option `{key}` of {value:?}; there is `offset`"))),
        }
        Ok(())
    }

    fn get_option(&self, key: &str) -> Result<OptionValue, BackendError> {
        match key {
            "offset" => Ok(OptionValue::Int(*self.offset.lock().unwrap())),
            _ => Err(BackendError::new(format!("no option `{key}`; there is `offset`"))),
        }
    }
}

struct Sum {
    offset: Arc<Mutex<i64>>,
    payload: Vec<u8>,
    step: i64,
    calls: i64,
}

impl Delegate for Sum {
    fn fork(&self) -> Option<Box<dyn Delegate>> {
        let same = Self {
            offset: Arc::clone(&self.offset),
            payload: self.payload.clone(),
            step: self.step,
            calls: 0,
        };
        (self.payload != ALONE).then(|| Box::new(same) as _)
    }

    fn num_inputs(&self) -> usize {
        1
    }

    fn execute(
        &mut self,
        ctx: &BackendExecutionContext<'_>,
        inputs: &[Arg<'_>],
        outputs: &mut [Out<'_>],
    ) -> Result<(), BackendError> {
        assert_eq!(ctx.method_name(), "forward");
        if self.payload == LARGE_RUN {
            ctx.allocate(ctx.bytes_left() + 1)?;
        }
        let ([Arg::Tensor(a)], [Out::Tensor(out)]) = (inputs, outputs) else {
            return Err(BackendError::new("a call has an input and an output"));
        };
        let sum = (*self.offset.lock().unwrap() + self.step * self.calls) as f32;
        for (out, a) in out.storage_mut::<f32>()?.iter_mut().zip(a.to_vec::<f32>()?) {
            *out = a + sum;
        }
        self.calls += 1;
        Ok(())
    }
}

/// A program whose second instruction calls the delegate, from the tensor `before` to the tensor `after`.
fn program(payload: &'static [u8]) -> Program {
    let mut plan = Plan::default();
    let (x, y, z) = (plan.tensor(2, 0), plan.tensor(2, 16), plan.tensor(2, 32));
    for (id, name) in [(x, "before"), (z, "after")] {
        if let Value::Tensor(tensor) = &mut plan.values[id as usize] {
            let fully_qualified_name = Some(name.to_owned());
            tensor.extra_tensor_info =
                Some(ExtraTensorInfo { fully_qualified_name, ..ExtraTensorInfo::default() });
        }
    }
    plan.call(1, &[x, y, y]);
    plan.delegates.push(("Offset", payload));
    plan.instructions.push(Instruction::DelegateCall { delegate_index: 0, args: vec![y, z] });
    let file = plan.file(&[x], &[z]);
    Program::load(Arc::new(BytesLoader::new(file)), &Limits::default()).unwrap()
}

fn registry() -> BackendRegistry {
    BackendRegistry::new().with(Offset { available: true, ..Offset::default() })
}

fn options(backends: &BackendRegistry) -> LoadOptions {
    pteron::load_options().backends(backends.clone())
}

/// Runs the method and returns what the delegate added; its input is the negated input of the method.
fn run(method: &mut Method) -> f32 {
    let input = Random(1).tensor(2);
    let result = method.execute(std::slice::from_ref(&input)).unwrap()[0].to_vec::<f32>().unwrap();
    result[0] + input.to_vec::<f32>().unwrap()[0]
}

#[test]
fn options_are_set_and_read_before_and_after_loading() {
    let backends = registry();
    let backend = backends.get("Offset").unwrap();
    assert_eq!(backend.get_option("offset"), Ok(OptionValue::Int(0)));
    backend.set_option("offset", &OptionValue::Int(5)).unwrap();
    let mut method = program(b"sum").load_method("forward", options(&backends)).unwrap();
    assert_eq!(run(&mut method), 5.0);
    backend.set_option("offset", &OptionValue::Int(10)).unwrap();
    assert_eq!(backend.get_option("offset"), Ok(OptionValue::Int(10)));
    assert_eq!(run(&mut method), 10.0);
    let error = backend.set_option("offsets", &OptionValue::Int(1)).unwrap_err().to_string();
    assert!(error.contains("there is `offset`"), "{error}");
    assert!(backend.get_option("offsets").is_err());
}

#[test]
fn runtime_specs_apply_to_one_load_only() {
    let backends = registry();
    let with = |value: OptionValue| {
        let specs = BTreeMap::from([("step".to_owned(), value)]);
        let mut options = options(&backends);
        options.backend_options.insert("Offset".to_owned(), specs);
        program(b"sum").load_method("forward", options)
    };
    let mut stepping = with(OptionValue::Int(3)).unwrap();
    let mut plain = program(b"sum").load_method("forward", options(&backends)).unwrap();
    assert_eq!([run(&mut stepping), run(&mut stepping), run(&mut stepping)], [0.0, 3.0, 6.0]);
    assert_eq!([run(&mut plain), run(&mut plain)], [0.0, 0.0]);
    let error = with(OptionValue::Bool(true)).unwrap_err();
    let cause = std::error::Error::source(&error).map_or_else(String::new, ToString::to_string);
    let text = format!("{error}: {cause}");
    for part in ["forward", "Offset", "delegate 0", "expected a number"] {
        assert!(text.contains(part), "{text}");
    }
}

#[test]
fn errors_name_backends_that_are_unavailable_or_not_registered() {
    let backends = BackendRegistry::new().with(Offset::default());
    let error = program(b"sum").load_method("forward", options(&backends)).unwrap_err().to_string();
    assert!(
        error.contains("`Offset` is not available on this machine (1 delegate, 3 bytes of payload)"),
        "{error}"
    );
    let error =
        program(b"sum").load_method("forward", options(&BackendRegistry::new())).unwrap_err().to_string();
    assert!(error.contains("`Offset` is not registered (1 delegate, 3 bytes of payload)"), "{error}");
}

#[test]
fn memory_of_backends_is_limited() {
    let backends = registry();
    let full_text = |error: &dyn std::error::Error| {
        format!("{error}: {}", error.source().map_or_else(String::new, ToString::to_string))
    };
    let mut limited = options(&backends);
    limited.limits.backend_bytes = 4096;
    let error = program(LARGE).load_method("forward", limited.clone()).unwrap_err();
    let text = full_text(&error);
    assert!(text.contains("of `Limits::backend_bytes`") && text.contains("delegate 0"), "{text}");
    let mut method = program(LARGE_RUN).load_method("forward", limited).unwrap();
    let error = method.execute(&[Random(1).tensor(2)]).unwrap_err();
    let text = full_text(&error);
    assert!(text.contains("4097 bytes, 4096 are left"), "{text}");
    assert!(text.contains("forward") && text.contains("1 (delegate 0 of `Offset`)"), "{text}");
}

#[test]
fn a_fork_has_its_own_delegates() {
    let backends = registry();
    let mut options = options(&backends);
    options
        .backend_options
        .insert("Offset".to_owned(), BTreeMap::from([("step".to_owned(), OptionValue::Int(1))]));
    let mut method = program(b"sum").load_method("forward", options.clone()).unwrap();
    assert_eq!([run(&mut method), run(&mut method)], [0.0, 1.0]);
    let mut fork = method.fork().unwrap();
    assert_eq!([run(&mut fork), run(&mut method), run(&mut fork)], [0.0, 2.0, 1.0]);
    let alone = program(ALONE).load_method("forward", options).unwrap();
    let error = alone.fork().unwrap_err().to_string();
    assert!(error.contains("Offset"), "{error}");
}

#[test]
fn inputs_and_outputs_are_found_by_name() {
    let method = program(b"sum").load_method("forward", options(&registry())).unwrap();
    assert_eq!((method.input_index("before"), method.input_index("after")), (Some(0), None));
    assert_eq!((method.output_index("after"), method.output_index("before")), (Some(0), None));
}
