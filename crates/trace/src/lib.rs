//! Events about loading and executing programs: the input of profiles, ETDumps and Chrome traces.
//!
//! Code that runs programs holds a [`Tracer`]; code that records events implements [`EventTracer`]. With
//! no tracer installed, a span costs one comparison and does not read the clock.
#![forbid(unsafe_code)]

use pteron_clock::Instant;

/// What a span measures.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SpanKind {
    /// Opening and verifying a program.
    LoadProgram,
    /// Loading a method: memory, constants, kernels, delegates.
    LoadMethod,
    /// Preparing kernels: packing weights, lowering regions.
    Prepare,
    /// One complete execution of a method or function.
    Execute,
    /// One operator call.
    Kernel,
    /// One call of a delegate.
    Delegate,
    /// A step inside a delegate, reported by the delegate.
    DelegateStep,
    /// A task from a work queue.
    Task,
}

/// The part of a program that a span belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Place {
    /// Index of the chain or function.
    pub chain: Option<u32>,
    /// Index of the instruction in the chain, or of the kernel in the function.
    pub instruction: Option<u32>,
    /// The number of the node in the delegate's payload, if the instruction calls a delegate.
    pub node: Option<u32>,
}

impl Place {
    /// An instruction of a chain.
    pub fn instruction(chain: u32, instruction: u32) -> Self {
        Self { chain: Some(chain), instruction: Some(instruction), node: None }
    }

    /// A node of a delegate's payload, without the instruction that calls the delegate.
    pub fn node(node: u32) -> Self {
        Self { node: Some(node), ..Self::default() }
    }
}

/// A finished span.
#[derive(Debug, Clone, Copy)]
pub struct Span<'a> {
    /// What the span measures.
    pub kind: SpanKind,
    /// The name of what is measured, such as a method, an operator or a backend.
    pub name: &'a str,
    /// The part of the program that the span measures.
    pub place: Place,
    /// The start time of the span.
    pub start: Instant,
    /// The end time of the span.
    pub end: Instant,
}

/// Receives events. Several threads may call it concurrently.
pub trait EventTracer: Send + Sync {
    /// A span ended. Inner spans end before outer ones.
    fn span(&self, span: &Span<'_>);

    /// Memory was allocated; `owner` names the arena or allocator.
    fn allocation(&self, owner: &str, bytes: usize) {
        let _ = (owner, bytes);
    }

    /// Whether [`Self::value`] should be called for the outputs of every instruction.
    fn wants_values(&self) -> bool {
        false
    }

    /// An instruction wrote a tensor: the output's index, PyTorch's name of the scalar type, the
    /// sizes, and the elements' bytes in logical row-major order.
    fn value(&self, name: &str, place: Place, output: usize, dtype: &str, sizes: &[usize], bytes: &[u8]) {
        let _ = (name, place, output, dtype, sizes, bytes);
    }
}

/// Forwards events that happen inside one instruction: events without an instruction get this instruction's place.
pub struct Within<'a> {
    tracer: &'a dyn EventTracer,
    place: Place,
}

impl<'a> Within<'a> {
    /// Forwards events to `tracer`; `place` names the instruction.
    pub fn new(tracer: &'a dyn EventTracer, place: Place) -> Self {
        Self { tracer, place }
    }

    fn place(&self, inner: Place) -> Place {
        match inner.instruction {
            Some(_) => inner,
            None => Place { node: inner.node, ..self.place },
        }
    }
}

impl EventTracer for Within<'_> {
    fn span(&self, span: &Span<'_>) {
        self.tracer.span(&Span { place: self.place(span.place), ..*span });
    }

    fn allocation(&self, owner: &str, bytes: usize) {
        self.tracer.allocation(owner, bytes);
    }

    fn wants_values(&self) -> bool {
        self.tracer.wants_values()
    }

    fn value(&self, name: &str, place: Place, output: usize, dtype: &str, sizes: &[usize], bytes: &[u8]) {
        self.tracer.value(name, self.place(place), output, dtype, sizes, bytes);
    }
}

/// An optional tracer.
#[derive(Clone, Copy, Default)]
pub struct Tracer<'a>(Option<&'a dyn EventTracer>);

impl<'a> Tracer<'a> {
    /// No tracer: a span costs one comparison.
    pub const NONE: Tracer<'static> = Tracer(None);

    /// Reports to `tracer`.
    pub fn new(tracer: &'a dyn EventTracer) -> Self {
        Self(Some(tracer))
    }

    /// The tracer, if there is one.
    pub fn get(&self) -> Option<&'a dyn EventTracer> {
        self.0
    }

    /// Whether there is a tracer.
    pub fn is_enabled(&self) -> bool {
        self.0.is_some()
    }

    /// The start time of a span, or `None` without a tracer.
    pub fn start(&self) -> Option<Instant> {
        self.0.map(|_| Instant::now())
    }

    /// Reports the span that began at `start`.
    pub fn end(&self, start: Option<Instant>, kind: SpanKind, name: &str, place: Place) {
        if let (Some(tracer), Some(start)) = (self.0, start) {
            tracer.span(&Span { kind, name, place, start, end: Instant::now() });
        }
    }

    /// Reports an allocation.
    pub fn allocation(&self, owner: &str, bytes: usize) {
        if let Some(tracer) = self.0 {
            tracer.allocation(owner, bytes);
        }
    }
}

impl<'a> From<Option<&'a dyn EventTracer>> for Tracer<'a> {
    fn from(tracer: Option<&'a dyn EventTracer>) -> Self {
        Self(tracer)
    }
}

impl std::fmt::Debug for Tracer<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(if self.is_enabled() { "Tracer(on)" } else { "Tracer(off)" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[derive(Default)]
    struct Names(Mutex<Vec<String>>);
    impl EventTracer for Names {
        fn span(&self, span: &Span<'_>) {
            self.0.lock().unwrap().push(format!("{:?} {}", span.kind, span.name));
        }
    }

    #[test]
    fn events_inside_an_instruction_get_its_place() {
        #[derive(Default)]
        struct Places(Mutex<Vec<Place>>);
        impl EventTracer for Places {
            fn span(&self, span: &Span<'_>) {
                self.0.lock().unwrap().push(span.place);
            }
        }
        let places = Places::default();
        let within = Within::new(&places, Place::instruction(1, 7));
        let tracer = Tracer::new(&within);
        for place in [Place::default(), Place::node(2), Place::instruction(0, 3)] {
            tracer.end(tracer.start(), SpanKind::DelegateStep, "step", place);
        }
        let node = Place { node: Some(2), ..Place::instruction(1, 7) };
        assert_eq!(*places.0.lock().unwrap(), [Place::instruction(1, 7), node, Place::instruction(0, 3)]);
    }

    #[test]
    fn spans_reach_the_tracer_and_no_tracer_reads_no_clock() {
        let names = Names::default();
        let tracer = Tracer::new(&names);
        let start = tracer.start();
        tracer.end(start, SpanKind::Kernel, "aten::add.out", Place::instruction(0, 3));
        assert_eq!(*names.0.lock().unwrap(), ["Kernel aten::add.out"]);
        assert!(Tracer::NONE.start().is_none());
    }
}
