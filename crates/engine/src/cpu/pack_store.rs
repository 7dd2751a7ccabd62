//! A store through which methods and programs share packed weights.

use pteron_ir::Identity;
use pteron_kernels::compute::{ConvParams, Isa, Layout, Method, WeightBits, WeightType};
use pteron_operator::Result;
use pteron_tensor::DimOrder;
use std::any::Any;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError, Weak};

/// A store of packed weights, shared by methods and programs.
///
/// The key of packed weights is the [identity](crate::Bytes::identity) of their source bytes (a range of a file,
/// whoever has opened it), the packed layout, and the instruction set. So the methods of a program, and all programs of
/// a process that use the same file, share one packed copy. The store holds weak references: packed weights are freed
/// with the last executable that uses them. New data, for example after a swap, has a new identity.
///
/// Clones refer to the same store. [`Default`] returns the store of the process.
#[derive(Clone)]
pub struct PackStore(Arc<Mutex<Table>>);

#[derive(Default)]
struct Table {
    slots: HashMap<PackKey, Arc<Mutex<Slot>>>,
    /// The number of entries at which the next cleanup removes those that are no longer in use.
    sweep_at: usize,
}

/// Packed weights, held weakly. The slot's lock is held while they are packed.
struct Slot {
    weights: Weak<dyn Any + Send + Sync>,
    bytes: usize,
}

impl Default for Slot {
    fn default() -> Self {
        Self { weights: Weak::<()>::new(), bytes: 0 }
    }
}

/// The key of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct PackKey {
    pub(crate) data: DataKey,
    pub(crate) isa: Isa,
    pub(crate) form: PackFormat,
}

/// The source bytes of packed weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum DataKey {
    Known(Identity),
    /// The hash and the length of bytes without an identity, such as those of a constant that a pass computed.
    Hash(u64, usize),
}

/// The form in which bytes were packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum PackFormat {
    Matrix(MatrixPack, PackedAs),
    Conv(ConvPack, PackedAs),
    /// Quantized values, with the hash and the length in bytes of their scales.
    Quantized(QuantizedPack, (u64, usize)),
}

/// The type in which f32 weights are packed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct PackedAs {
    pub(crate) ty: WeightType,
    /// A hash of the scales, if the type has any.
    pub(crate) scales: u64,
}

/// How a constant is packed as the right operand of a matrix multiplication.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct MatrixPack {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Whether the constant is stored as `[columns, rows]`.
    pub(crate) transposed: bool,
}

/// How a constant is packed as the weights of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConvPack {
    pub(crate) params: ConvParams,
    /// The layout of the images.
    pub(crate) layout: Layout,
    /// The dim order of the stored weights.
    pub(crate) order: DimOrder,
    /// The convolution algorithm.
    pub(crate) method: Method,
}

/// How a constant is packed as quantized weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum QuantizedPack {
    Matrix { form: MatrixPack, bits: WeightBits, group: usize },
    Conv(ConvPack),
}

impl PackKey {
    /// Whether the key identifies the same bytes in the whole process, so that their packed form can be shared.
    pub(crate) fn is_shareable(&self) -> bool {
        matches!(self.data, DataKey::Known(_))
    }
}

impl PackStore {
    /// An empty store, separate from the one that the whole process shares.
    pub fn new() -> Self {
        Self(Arc::default())
    }

    /// The total size in bytes of the weights that are in use, each counted once. Weights that are being packed are not
    /// counted, nor are those that are used directly from a file.
    pub fn bytes(&self) -> usize {
        let slots: Vec<_> = self.lock().slots.values().cloned().collect();
        let bytes = slots.iter().map(|slot| match slot.try_lock() {
            Ok(slot) => slot.bytes_in_use(),
            Err(TryLockError::Poisoned(slot)) => slot.into_inner().bytes_in_use(),
            Err(TryLockError::WouldBlock) => 0,
        });
        bytes.sum()
    }

    /// Returns the weights of a key and their size in bytes; packs them with `pack` if nobody holds them. Other threads
    /// that request the same key wait meanwhile.
    pub(crate) fn get_or_pack<T: Send + Sync + 'static>(
        &self,
        key: PackKey,
        pack: impl FnOnce() -> Result<(T, usize)>,
    ) -> Result<(Arc<T>, usize)> {
        let slot = self.lock().slot(key);
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(weights) = slot.weights.upgrade().and_then(|weights| weights.downcast().ok()) {
            return Ok((weights, slot.bytes));
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
        if self.slots.len() >= self.sweep_at {
            // Amortized cleanup: unused entries are removed whenever the table has twice as many entries as were in use
            // the last time. An entry that another thread has a handle to is about to be used.
            let is_used = |slot: &Arc<Mutex<Slot>>| {
                Arc::strong_count(slot) > 1 || slot.try_lock().is_ok_and(|slot| slot.is_used())
            };
            self.slots.retain(|_, slot| is_used(slot));
            self.sweep_at = 2 * self.slots.len() + 1;
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
    use pteron_ir::SourceId;
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn key(data: Identity) -> PackKey {
        let form = MatrixPack { rows: 2, columns: 3, transposed: false };
        let form = PackFormat::Matrix(form, PackedAs::default());
        PackKey { data: DataKey::Known(data), isa: Isa::default(), form }
    }

    #[test]
    fn weights_are_packed_once_while_they_are_in_use() {
        let (store, source) = (PackStore::new(), SourceId::unique());
        let num_packed = AtomicUsize::new(0);
        let get = |start| {
            let pack = || {
                num_packed.fetch_add(1, Ordering::Relaxed);
                Ok((start, 24))
            };
            store.get_or_pack(key(Identity::new(source, start, 24)), pack).unwrap().0
        };
        let (a, again, b) = (get(0), get(0), get(24));
        assert_eq!((*a, *again, *b), (0, 0, 24));
        assert_eq!((store.bytes(), num_packed.load(Ordering::Relaxed)), (48, 2));
        drop((a, b));
        assert_eq!(store.bytes(), 24);
        drop(again);
        assert_eq!(store.bytes(), 0);
        get(0);
        assert_eq!(num_packed.load(Ordering::Relaxed), 3);
        // Entries of dropped weights are removed, too.
        (0..100).for_each(|i| drop(get(i * 24)));
        assert!(store.lock().slots.len() < 8, "{}", store.lock().slots.len());
    }

    #[test]
    fn threads_that_request_the_same_weights_wait_for_one_packing() {
        let (store, data) = (PackStore::new(), Identity::new(SourceId::unique(), 0, 24));
        let (num_packed, started) = (AtomicUsize::new(0), Barrier::new(4));
        let all: Vec<Arc<usize>> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        started.wait();
                        let pack = || Ok((num_packed.fetch_add(1, Ordering::Relaxed), 24));
                        store.get_or_pack(key(data), pack).unwrap().0
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!((num_packed.load(Ordering::Relaxed), all.iter().all(|n| **n == 0)), (1, true));
    }

    #[test]
    fn failed_packing_is_retried() {
        let (store, data) = (PackStore::new(), Identity::new(SourceId::unique(), 0, 24));
        let failed = store.get_or_pack::<u8>(key(data), || Err(pteron_operator::Error::invalid("no room")));
        assert!(failed.is_err());
        assert_eq!(store.get_or_pack(key(data), || Ok((7u8, 1))).unwrap(), (Arc::new(7), 1));
    }
}
