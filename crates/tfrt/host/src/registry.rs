use crate::frame::Frame;
use crate::kernel::{Effect, Kernel, NativeFunction};
use crate::request::ExecutionContext;
use crate::typed::{IntoKernel, typed};
use crate::value::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// Maps names to kernels and native functions. It is passed to the code that opens programs; there is no global
/// registry.
#[derive(Clone, Default)]
pub struct KernelRegistry {
    kernels: HashMap<Arc<str>, (Arc<dyn Kernel>, Effect)>,
    natives: HashMap<String, NativeFunction>,
}

impl KernelRegistry {
    /// A registry without kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a kernel that works on a [`Frame`]. It replaces a kernel of the same name.
    pub fn add(&mut self, name: &str, kernel: impl Fn(&mut Frame<'_>) + Send + Sync + 'static) {
        self.add_kernel(name, Arc::new(kernel));
    }

    /// Adds a Rust function as a kernel: `registry.add_typed("tfrt.add.i32", |a: i32, b: i32| a + b)`.
    pub fn add_typed<P>(&mut self, name: &str, function: impl IntoKernel<P>) {
        self.add_kernel(name, typed(function));
    }

    /// Adds a kernel. Its effects count as [`Effect::Any`] until [`Self::declare`] declares them.
    pub fn add_kernel(&mut self, name: &str, kernel: Arc<dyn Kernel>) {
        self.kernels.insert(name.into(), (kernel, Effect::Any));
    }

    /// Declares the observable side effects of a kernel. Returns `false` if there is no such kernel.
    ///
    /// A function whose side effects have the same order in every schedule needs no scheduling: on one thread it runs
    /// in program order, several times as fast.
    pub fn declare(&mut self, name: &str, effect: Effect) -> bool {
        let kernel = self.kernels.get_mut(name);
        kernel.is_some_and(|(_, declared)| {
            *declared = effect;
            true
        })
    }

    /// Adds a native function.
    pub fn add_native(
        &mut self,
        name: &str,
        function: impl Fn(&ExecutionContext, &[Value], &mut [Value]) + Send + Sync + 'static,
    ) {
        self.natives.insert(name.to_owned(), Arc::new(function));
    }

    /// The kernel called `name`.
    pub fn kernel(&self, name: &str) -> Option<&Arc<dyn Kernel>> {
        self.kernels.get(name).map(|(kernel, _)| kernel)
    }

    /// The kernel called `name`, with its shared name and its declared effects.
    pub(crate) fn kernel_with_effect(&self, name: &str) -> Option<(&Arc<str>, &Arc<dyn Kernel>, Effect)> {
        self.kernels.get_key_value(name).map(|(name, (kernel, effect))| (name, kernel, *effect))
    }

    /// The native function called `name`.
    pub fn native(&self, name: &str) -> Option<&NativeFunction> {
        self.natives.get(name)
    }

    /// The names of the kernels, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }
}

impl fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelRegistry({} kernels, {} native functions)", self.kernels.len(), self.natives.len())
    }
}
