//! Packed weights that methods and programs share.

use ir::Identity;
use kernels::compute::{ConvParams, Isa, Layout, Method, WeightBits};
use operator::Result;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};
use tensor::DimOrder;

/// Where methods find the weights that others have packed.
///
/// Weights are known by what they are packed of, the [identity](crate::Bytes::identity) of their bytes: a range of a file,
/// whoever has opened it; by how they are laid out; and by the instructions that they are laid out for. So the methods
/// of a program, and the programs of a process that have a file in common, hold one packed copy. The store itself holds
/// none: what is packed goes with the last executable that uses it. Other data, after a swap say, has another identity.
///
/// Clones are the same store; so are all that [`Default`] gives, which is the store of the process.
#[derive(Clone)]
pub struct PackStore(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    slots: HashMap<PackKey, Arc<Mutex<Slot>>>,
    /// Number of entries at which unused ones are next looked for.
    crowded: usize,
}

/// Weights that were packed, if somebody still has them. The lock is held while they are packed.
struct Slot {
    weights: Weak<dyn Any + Send + Sync>,
    bytes: usize,
}

impl Default for Slot {
    fn default() -> Self {
        Self { weights: Weak::<()>::new(), bytes: 0 }
    }
}

/// What was packed, and how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PackKey {
    pub(crate) data: DataKey,
    pub(crate) isa: Isa,
    pub(crate) form: Form,
}

/// The bytes that were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DataKey {
    Known(Identity),
    /// The hash and the number of bytes that were computed for a method.
    Hash(u64, usize),
}

/// As what bytes were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Form {
    Matrix(MatrixForm),
    Conv(ConvForm),
    /// Quantized values, with the hash and the number of their scales.
    Quantized(QuantizedForm, (u64, usize)),
}

/// How a constant is seen as the right operand of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixForm {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Whether the constant is stored as `[columns, rows]`.
    pub(crate) transposed: bool,
}

/// How a constant is seen as the weights of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvForm {
    pub(crate) params: ConvParams,
    /// The layout of the images.
    pub(crate) layout: Layout,
    /// How the weights lie.
    pub(crate) order: DimOrder,
    /// How the sums are made.
    pub(crate) method: Method,
}

/// How a constant is seen as quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QuantizedForm {
    Matrix { form: MatrixForm, bits: WeightBits, group: usize },
    Conv(ConvForm),
}

impl PackKey {
    /// Whether the key means the same bytes to all who pack them.
    pub(crate) fn is_lasting(&self) -> bool {
        matches!(self.data, DataKey::Known(_))
    }
}

impl PackStore {
    /// An empty store, apart from that of the process.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// Bytes of the weights in the store that somebody uses, each counted once. Weights that are being packed, and those
    /// that are used where they lie in a file, are left out.
    pub fn bytes(&self) -> usize {
        let slots: Vec<_> = self.lock().slots.values().cloned().collect();
        let bytes = slots.iter().map(|slot| match slot.try_lock() {
            Ok(slot) => slot.bytes_in_use(),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner().bytes_in_use(),
            Err(TryLockError::WouldBlock) => 0,
        });
        bytes.sum()
    }

    /// The weights of a key with the bytes that they take: those that somebody has, or those that `pack` makes.
    /// Others who want them meanwhile wait for them.
    pub(crate) fn get<T: Send + Sync + 'static>(
        &self,
        key: PackKey,
        pack: impl FnOnce() -> Result<(T, usize)>,
    ) -> Result<(Arc<T>, usize)> {
        let slot = self.lock().slot(key);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = slot.weights.upgrade().and_then(|weights| weights.downcast().ok()) {
            return Ok((found, slot.bytes));
        }
        let (weights, bytes) = pack()?;
        let weights = Arc::new(weights);
        let weak = Arc::downgrade(&weights);
        *slot = Slot { weights: weak, bytes };
        Ok((weights, bytes))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Default for PackStore {
    fn default() -> Self {
        static OF_PROCESS: OnceLock<PackStore> = OnceLock::new();
        OF_PROCESS.get_or_init(Self::new).clone()
    }
}

impl fmt::Debug for PackStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "PackStore({} bytes)", self.bytes())
    }
}

impl Table {
    fn slot(&mut self, key: PackKey) -> Arc<Mutex<Slot>> {
        if let Some(known) = self.slots.get(&key) {
            return Arc::clone(known);
        }
        if self.slots.len() >= self.crowded {
            // Unused entries are dropped whenever there are twice as many entries as were in use. One that somebody
            // has in hand is about to be used.
            let is_used = |slot: &Arc<Mutex<Slot>>| {
                Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|slot| slot.is_used())
            };
            self.slots.retain(|_, slot| is_used(slot));
            self.crowded = 2 * self.slots.len() + 1;
        }
        Arc::clone(self.slots.entry(key).or_default())
    }
}

impl Slot {
    fn is_used(&self) -> bool {
        self.weights.strong_count() > 0
    }

    fn bytes_in_use(&self) -> usize {
        if self.is_used() { self.bytes } else { 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::SourceId;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(data: Identity) -> PackKey {
        let form = Form::Matrix(MatrixForm { rows: 2, columns: 3, transposed: false });
        PackKey { data: DataKey::Known(data), isa: Isa::default(), form }
    }

    #[test]
    fn weights_are_packed_once_while_somebody_has_them() {
        let (store, source) = (PackStore::new(), SourceId::numbered());
        let made = AtomicUsize::new(0);
        let get = |start| {
            let pack = || {
                made.fetch_add(1, Ordering::Relaxed);
                Ok((start, 24))
            };
            store.get(key(Identity::new(source, start, 24)), pack).unwrap().0
        };
        let (a, again, b) = (get(0), get(0), get(24));
        assert_eq!((*a, *again, *b), (0, 0, 24));
        assert_eq!((store.bytes(), made.load(Ordering::Relaxed)), (48, 2));
        drop((a, b));
        assert_eq!(store.bytes(), 24);
        drop(again);
        assert_eq!(store.bytes(), 0);
        get(0);
        assert_eq!(made.load(Ordering::Relaxed), 3);
        // Entries of what has gone go, too.
        (0..100).for_each(|i| drop(get(i * 24)));
        assert!(store.lock().slots.len() < 8, "{}", store.lock().slots.len());
    }

    #[test]
    fn threads_that_want_the_same_weights_wait_for_them() {
        let (store, data) = (PackStore::new(), Identity::new(SourceId::numbered(), 0, 24));
        let (made, started) = (AtomicUsize::new(0), Barrier::new(4));
        let all: Vec<Arc<usize>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        started.wait();
                        let pack = || Ok((made.fetch_add(1, Ordering::Relaxed), 24));
                        store.get(key(data), pack).unwrap().0
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((made.load(Ordering::Relaxed), all.iter().all(|n| **n == 0)), (1, true));
    }

    #[test]
    fn what_cannot_be_packed_is_tried_again() {
        let (store, data) = (PackStore::new(), Identity::new(SourceId::numbered(), 0, 24));
        let failed = store.get::<u8>(key(data), || Err(operator::Error::invalid("no room")));
        assert!(failed.is_err());
        assert_eq!(store.get(key(data), || Ok((7u8, 1))).unwrap(), (Arc::new(7), 1));
    }
}
