use crate::kernel::TableKernel;
use crate::{Kernel, Operator, closest};
use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

#[derive(Clone)]
enum Entry {
    /// An operator of a static table, and its kernel, which is created on first use.
    Table(&'static Operator, OnceLock<Arc<dyn Kernel>>),
    Owned(Arc<dyn Kernel>),
}

impl Entry {
    fn from_row(operator: &'static Operator) -> (Cow<'static, str>, Self) {
        (Cow::Borrowed(operator.name()), Self::Table(operator, OnceLock::new()))
    }
}

/// Kernels by name. There is no global registry: create one, register what a program needs, and pass it to
/// the code that loads programs. Cloning is cheap enough to extend a common set.
#[derive(Clone, Default)]
pub struct KernelRegistry {
    kernels: HashMap<Cow<'static, str>, Entry>,
}

/// The error for a second kernel with the same name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a kernel for `{name}` is registered already; use `replace` to put another in its place")]
pub struct DuplicateKernel {
    /// The operator's name.
    pub name: String,
}

impl KernelRegistry {
    /// A registry without kernels.
    pub fn new() -> Self {
        Self::default()
    }

    /// A registry of a table's operators. If several rows have the same name, the last one is used.
    pub fn from_table(table: &'static [Operator]) -> Self {
        Self { kernels: table.iter().map(Entry::from_row).collect() }
    }

    /// Adds a kernel under its schema's name.
    pub fn register(&mut self, kernel: impl Kernel + 'static) -> Result<(), DuplicateKernel> {
        let name = kernel.schema().name.clone();
        self.insert(name.into(), Entry::Owned(Arc::new(kernel)))
    }

    /// Adds a table of operators. Fails at the first row whose name is registered; the rows before it stay added.
    pub fn register_table(&mut self, table: &'static [Operator]) -> Result<(), DuplicateKernel> {
        self.kernels.reserve(table.len());
        table.iter().map(Entry::from_row).try_for_each(|(name, entry)| self.insert(name, entry))
    }

    /// Adds a kernel, replacing the one with the same name, if there is one.
    pub fn replace(&mut self, kernel: impl Kernel + 'static) {
        self.kernels.insert(kernel.schema().name.clone().into(), Entry::Owned(Arc::new(kernel)));
    }

    fn insert(&mut self, name: Cow<'static, str>, entry: Entry) -> Result<(), DuplicateKernel> {
        match self.kernels.entry(name) {
            std::collections::hash_map::Entry::Occupied(occupied) => {
                Err(DuplicateKernel { name: occupied.key().clone().into_owned() })
            }
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(entry);
                Ok(())
            }
        }
    }

    /// The kernel of an operator, by its full name (`aten::add.out`); `None` if there is none.
    ///
    /// # Panics
    /// If the kernel comes from a table row with a malformed schema.
    pub fn get(&self, name: &str) -> Option<Arc<dyn Kernel>> {
        self.kernels.get(name).map(|entry| match entry {
            Entry::Table(op, kernel) => {
                Arc::clone(kernel.get_or_init(|| Arc::new(TableKernel::new(**op)) as Arc<dyn Kernel>))
            }
            Entry::Owned(kernel) => Arc::clone(kernel),
        })
    }

    /// Whether the operator with this name has a kernel.
    pub fn contains(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    /// The number of kernels.
    pub fn len(&self) -> usize {
        self.kernels.len()
    }

    /// Whether there is no kernel.
    pub fn is_empty(&self) -> bool {
        self.kernels.is_empty()
    }

    /// The names of all operators that have a kernel, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.kernels.keys().map(|name| &**name).collect();
        names.sort_unstable();
        names
    }

    /// Names similar to `name`, for the error about a missing operator: other overloads of the same operator or, if
    /// there is none, operators whose names are a few edits away.
    pub fn similar(&self, name: &str) -> Vec<&str> {
        fn parts(name: &str) -> (&str, &str) {
            name.split_once('.').unwrap_or((name, ""))
        }
        let (base, overload) = parts(name);
        let names = self.names();
        let of = |base: &str| names.iter().copied().filter(|name| parts(name).0 == base).collect::<Vec<_>>();
        let same = of(base);
        if !same.is_empty() {
            return same;
        }
        let close = closest(base, names.iter().map(|name| parts(name).0));
        let best = |base| {
            let all = of(base);
            all.iter().find(|name| parts(name).1 == overload).or(all.first()).copied()
        };
        close.into_iter().filter_map(best).collect()
    }
}

impl fmt::Debug for KernelRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KernelRegistry({} kernels)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DtypeSet, FnKernel};

    static TABLE: &[Operator] =
        &[Operator::new("t::id.out(Tensor self, Tensor(a!) out) -> Tensor(a!)", DtypeSet::ALL, |_, a, o| {
            let x = a.tensor(0)?;
            o.tensor(0)?.resize(x.sizes())?;
            Ok(x.relayout(o.tensor(0)?)?)
        })];

    #[test]
    fn kernels_are_found_by_name_and_not_registered_twice() {
        let mut r = KernelRegistry::new();
        r.register_table(TABLE).unwrap();
        assert_eq!(r.get("t::id.out").unwrap().schema().args.len(), 2);
        assert_eq!(r.register_table(TABLE).unwrap_err().name, "t::id.out");
        let own = FnKernel::new("t::id.out(Tensor self) -> ()", |_, _, _| Ok(())).unwrap();
        r.replace(own);
        assert_eq!(r.get("t::id.out").unwrap().schema().args.len(), 1);
        assert_eq!(r.similar("t::id.other"), ["t::id.out"]);
        assert!(!r.contains("t::nothing"));
    }
}
