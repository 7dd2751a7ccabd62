//! The spans that a tracer records of an execution.

use pteron_host::{
    ExecutionContext, Frame, FunctionBuilder, HostContext, Kernel, Module, ModuleBuilder, Value, typed,
};
use pteron_pool::{Pool, WorkQueue};
use pteron_trace::{EventTracer, Span, SpanKind};
use std::sync::{Arc, Mutex, PoisonError};

/// Records kind, name and place of spans, in the order in which they end.
#[derive(Default)]
struct Recorder(Mutex<Vec<(SpanKind, String, Option<u32>, Option<u32>)>>);

impl EventTracer for Recorder {
    fn span(&self, span: &Span<'_>) {
        assert!(span.start <= span.end);
        let recorded = (span.kind, span.name.to_owned(), span.place.chain, span.place.instruction);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(recorded);
    }
}

/// `outer(a)`: a task returns a number, and `inner` adds it to `a`.
fn module(in_order: bool) -> Arc<Module> {
    let mut m = ModuleBuilder::new();
    let (outer, inner) = (m.declare("outer", 1, 1), m.declare("inner", 2, 1));
    let later: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let value = frame.context().enqueue(|| Value::I32(40));
        frame.set(0, value);
    });
    let call: Arc<dyn Kernel> = Arc::new(|frame: &mut Frame<'_>| {
        let inner = frame.function(0).unwrap();
        frame.call(inner, 0);
    });
    let mut b = FunctionBuilder::new("outer", 1);
    let (number, id) = b.call(&later, &[], 1);
    b.edit(id).name("later");
    let (sum, id) = b.call(&call, &[b.argument(0), number[0]], 1);
    b.edit(id).name("call").functions(&[inner]);
    b.returns(&sum);
    m.define(outer, b).unwrap();
    let mut b = FunctionBuilder::new("inner", 2);
    if in_order {
        b = b.in_order();
    }
    let add = typed(|a: i32, b: i32| a + b);
    let (sum, id) = b.call(&add, &[b.argument(0), b.argument(1)], 1);
    b.edit(id).name("add");
    b.returns(&sum);
    m.define(inner, b).unwrap();
    m.build().unwrap()
}

#[test]
fn kernels_and_tasks_are_recorded_with_their_places() {
    for in_order in [false, true] {
        for queue in [WorkQueue::single_threaded(), WorkQueue::multi_threaded(&Pool::new(2))] {
            let recorded = Arc::new(Recorder::default());
            let tracer = Arc::clone(&recorded);
            let host = HostContext::builder(queue).tracer(tracer).build();
            let results = module(in_order)
                .find("outer")
                .unwrap()
                .call(&ExecutionContext::new(&host), &[Value::I32(2)])
                .unwrap();
            host.quiesce();
            assert!(matches!(results[0], Value::I32(42)));
            let mut all = recorded.0.lock().unwrap().clone();
            let at = |name: &str| all.iter().position(|(_, n, ..)| n == name);
            // A callee that can run at once runs within the calling kernel's span.
            assert!(at("add") < at("call"), "{all:?}");
            all.sort_by(|a, b| a.1.cmp(&b.1));
            let expected = [
                (SpanKind::Kernel, "add".to_owned(), Some(1), Some(0)),
                (SpanKind::Kernel, "call".to_owned(), Some(0), Some(1)),
                (SpanKind::Kernel, "later".to_owned(), Some(0), Some(0)),
                (SpanKind::Task, "task".to_owned(), None, None),
            ];
            assert_eq!(all, expected);
        }
    }
}
