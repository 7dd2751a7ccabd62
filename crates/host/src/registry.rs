use crate::context::ExecutionContext;
use crate::kernel::{Effect, Frame, Kernel};
use crate::typed::{IntoKernel, typed};
use crate::value::Value;
use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

/// A function written in Rust that programs can call by name: from arguments to as many results as
/// its declaration says.
pub type NativeFunction = Arc<dyn Fn(&ExecutionContext, &[Value], &mut [Value]) + Send + Sync>;

/// Kernels and native functions by name. A value, passed to the code that opens programs; nothing is global.
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

    /// Adds a kernel that works on its frame. A kernel of the same name is replaced.
    pub fn add(&mut self, name: &str, kernel: impl Fn(&mut Frame<'_>) + Send + Sync + 'static) {
        self.add_kernel(name, Arc::new(kernel));
    }

    /// Adds a Rust function as a kernel: `registry.add_typed("tfrt.add.i32", |a: i32, b: i32| a + b)`.
    pub fn add_typed<P>(&mut self, name: &str, function: impl IntoKernel<P>) {
        self.add_kernel(name, typed(function));
    }

    /// Adds a kernel, of which nothing is known but what it is declared to be afterwards.
    pub fn add_kernel(&mut self, name: &str, kernel: Arc<dyn Kernel>) {
        self.kernels.insert(name.into(), (kernel, Effect::Any));
    }

    /// Declares the observable side effects of a kernel. Returns `false` if there is no such kernel.
    ///
    /// A function whose side effects come in the same order in every schedule needs no scheduling: on one thread it
    /// runs in program order, several times as fast.
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

    /// The kernel called `name`, with its name to share and its observable side effects.
    pub(crate) fn declared(&self, name: &str) -> Option<(&Arc<str>, &Arc<dyn Kernel>, Effect)> {
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

/// The one of `names` that `name` was most likely meant to be, if one differs by little: by one letter in four.
pub fn closest<'n>(name: &str, names: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    // Of longer names, there is none to compare.
    const LONGEST: usize = 128;
    let most = (name.len() / 4).clamp(1, 3);
    let near = |other: &&str| {
        !other.is_empty() && other.len() <= LONGEST && other.len().abs_diff(name.len()) <= most
    };
    let names = if name.len() <= LONGEST { Some(names) } else { None };
    let distances = names.into_iter().flatten().filter(near).map(|other| (distance(name, other), other));
    distances.filter(|(distance, _)| *distance <= most).min().map(|(_, other)| other)
}

/// How many bytes must be put in, taken out, replaced or exchanged with their neighbour to make one of the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    let mut rows = [vec![0; b.len() + 1], (0..=b.len()).collect(), vec![0; b.len() + 1]];
    for i in 1..=a.len() {
        rows[2][0] = i;
        for j in 1..=b.len() {
            let replaced = rows[1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[1][j] + 1).min(rows[2][j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[0][j - 2] + 1);
            }
            rows[2][j] = least;
        }
        rows.rotate_left(1);
    }
    rows[1][b.len()]
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::{closest, distance};

    #[test]
    fn the_closest_name_differs_by_little() {
        assert_eq!((distance("abc", "acb"), distance("abc", "abcd"), distance("", "ab")), (1, 1, 2));
        let names = ["tfrt.add.i32", "tfrt.add.i64", "tfrt.div.i32", "f"];
        assert_eq!(closest("tfrt.ad.i32", names), Some("tfrt.add.i32"));
        assert_eq!(closest("tfrt.dvi.i32", names), Some("tfrt.div.i32"));
        assert_eq!(closest("g", names), Some("f"));
        assert_eq!(closest("something.else", names), None);
        assert_eq!(closest(&"x".repeat(1 << 20), names), None);
    }
}

impl fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelRegistry({} kernels, {} native functions)", self.kernels.len(), self.natives.len())
    }
}
