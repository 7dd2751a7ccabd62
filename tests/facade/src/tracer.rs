//! A tracer that counts kernels and executions.

use crate::Result;
use pteron::trace::{EventTracer, Span, SpanKind};
use pteron::{LoadOptions, Module, Tensor};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[derive(Default)]
struct Count {
    kernels: AtomicUsize,
    executions: AtomicUsize,
}

impl EventTracer for Count {
    fn span(&self, span: &Span<'_>) {
        match span.kind {
            SpanKind::Kernel => self.kernels.fetch_add(1, Ordering::Relaxed),
            SpanKind::Execute => self.executions.fetch_add(1, Ordering::Relaxed),
            _ => 0,
        };
    }
}

pub(crate) fn check(root: &Path) -> Result {
    let count = Arc::new(Count::default());
    let options = LoadOptions { tracer: Some(count.clone()), ..pteron::load_options() };
    let mut module = Module::open(root.join("examples/digits/digits.pte"), options)?;
    for _ in 0..2 {
        module.forward(&[Tensor::from_slice(&[1, 1, 8, 8], &[0.0f32; 64])?.into()])?;
    }
    let (kernels, executions) =
        (count.kernels.load(Ordering::Relaxed), count.executions.load(Ordering::Relaxed));
    if executions != 2 || kernels == 0 {
        return Err(format!("{executions} executions of {kernels} kernels were told").into());
    }
    Ok(())
}
