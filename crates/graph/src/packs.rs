//! Packed weights, as the executables of a method have them.

use crate::descriptions::Descriptions;
use crate::graph::Constant;
use crate::pack_store::{ConvForm, DataKey, Form, MatrixForm, PackKey, PackStore, QuantizedForm};
use ir::SharedBytes;
use kernels::compute::{
    Conv, ConvParams, Isa, LaidOut, Layout, Method, PackedB, PackedWeights, QuantizedConv, weight_layout,
};
use operator::{Budget, Held, Result};
use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// Finds packed weights again, for as long as somebody holds them: a graph that is lowered for other sizes
/// has the weights that it had, and so has a call that runs outside of graphs.
///
/// Constants that have an [identity](crate::Bytes::identity) are known by it, and what is packed of them is shared with
/// all who pack them in the same [`PackStore`]. One that was computed for a graph is known by a hash of its bytes, here
/// alone. Clones share what was packed.
#[derive(Clone, Default)]
pub struct Packs {
    store: PackStore,
    table: Arc<Mutex<Table>>,
    descriptions: Arc<Mutex<Descriptions>>,
    /// What was packed, if that is to be stored.
    stored: Option<Arc<Mutex<Vec<StoredWeights>>>>,
    /// What packed weights and the workspaces of executables are taken from.
    budget: Budget,
}

/// Weights that were packed, as they can be stored: beside the constant, under the name of their layout
/// ([`Bytes::laid_out`](crate::Bytes::laid_out)).
#[derive(Clone)]
pub struct StoredWeights {
    /// What was packed.
    pub constant: Constant,
    /// The name of the layout.
    pub layout: String,
    /// The packed elements, which the executable uses where they are.
    pub bytes: SharedBytes,
}

/// How weights are kept as bytes: the name of their layout, taken from bytes where these lie, stored, and how many bytes they
/// take.
struct Kept<T, F> {
    layout: String,
    taken: F,
    store: fn(&T, &mut Vec<u8>),
    bytes: fn(&T) -> usize,
}

impl<T, F: Fn(LaidOut) -> Option<T>> Kept<T, F> {
    fn take(&self, bytes: SharedBytes) -> Option<T> {
        (self.taken)(LaidOut::new(Arc::new(Owned(bytes))))
    }
}

/// Bytes that somebody else owns, too.
struct Owned(SharedBytes);

impl AsRef<[u8]> for Owned {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// What was packed for the method, and is counted for it.
#[derive(Default)]
struct Table {
    made: HashMap<PackKey, Weak<dyn Any + Send + Sync>>,
    /// Number of entries at which unused ones are next looked for.
    crowded: usize,
}

/// What takes the memory of packed weights, for messages.
const PACKED: &str = "its packed weights";

/// A hash of many bytes by multiplication, with keys that nobody who makes a file knows.
struct Keyed([u64; 4]);

impl Default for Keyed {
    fn default() -> Self {
        let random = RandomState::new();
        Self(std::array::from_fn(|i| random.hash_one(i)))
    }
}

impl Keyed {
    fn hash(&self, bytes: &[u8]) -> u64 {
        let fold = |a: u64, b: u64| {
            let product = u128::from(a) * u128::from(b);
            (product ^ (product >> 64)) as u64
        };
        let [k, l, mut a, mut b] = self.0;
        let mut block = |block: &[u8; 32]| {
            let (words, _) = block.as_chunks::<8>();
            let word = |i: usize| u64::from_le_bytes(words[i]);
            a = fold(word(0) ^ k, word(1) ^ a);
            b = fold(word(2) ^ l, word(3) ^ b);
        };
        let (blocks, rest) = bytes.as_chunks::<32>();
        blocks.iter().for_each(&mut block);
        let mut last = [0; 32];
        last[..rest.len()].copy_from_slice(rest);
        block(&last);
        fold(a ^ l, b ^ k)
    }
}

/// The hash of bytes, the same for all packs of the process.
fn hashed(bytes: &[u8]) -> u64 {
    static KEYED: OnceLock<Keyed> = OnceLock::new();
    KEYED.get_or_init(Keyed::default).hash(bytes)
}

/// Packed weights, and the memory that they are counted as.
pub(crate) struct Packed<T> {
    weights: Arc<T>,
    _held: Held,
}

impl<T> Deref for Packed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.weights
    }
}

impl MatrixForm {
    fn layout(self, isa: Isa) -> String {
        let order = if self.transposed { "t" } else { "n" };
        format!("{} matrix {} {} {order}", weight_layout(isa), self.rows, self.columns)
    }
}

fn conv_layout(isa: Isa, params: &ConvParams, layout: Layout, method: Method) -> String {
    let ConvParams { in_channels, out_channels, groups, kernel, stride, padding, dilation, transposed } =
        params;
    let numbers = [kernel, stride, padding, dilation].map(|v| v.map(|n| n.to_string()).join(","));
    let (kind, images) = (
        if *transposed { "conv_transpose" } else { "conv" },
        if layout == Layout::ChannelsLast { "last" } else { "first" },
    );
    let base = weight_layout(isa);
    let method = if method == Method::Winograd { " winograd" } else { "" };
    format!("{base} {kind} {in_channels} {out_channels} {groups} {} {images}{method}", numbers.join(" "))
}

impl Packs {
    /// Packs whose weights are [stored](Self::stored), too, as they are made.
    pub fn storing() -> Self {
        // What others have packed is not stored here.
        Self { store: PackStore::new(), stored: Some(Arc::default()), ..Self::default() }
    }

    /// All weights that were packed, as they can be stored. None of packs that were not made for it.
    pub fn stored(&self) -> Vec<StoredWeights> {
        let list = self.stored.as_ref().map(|list| list.lock().unwrap_or_else(PoisonError::into_inner));
        list.map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }

    /// Whether weights are stored as they are packed.
    pub(crate) fn is_storing(&self) -> bool {
        self.stored.is_some()
    }

    /// No packs yet, what packed weights and workspaces may take, and with whom packed weights are shared.
    pub fn within(budget: Budget, store: PackStore) -> Self {
        Self { store, budget, ..Self::default() }
    }

    /// What executables know of their values.
    pub(crate) fn descriptions(&self) -> MutexGuard<'_, Descriptions> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What packed weights and workspaces may take.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Packs weights. Memory is taken before: about that of the constant.
    fn pack<T>(&self, constant: &Constant, pack: impl FnOnce() -> Result<T>) -> Result<T> {
        let _expected = self.budget.take(PACKED, constant.nbytes())?;
        pack()
    }

    /// Weights that are packed already, or are packed now by `pack`, which says how many bytes they take.
    fn shared<T: Send + Sync + 'static>(
        &self,
        key: Option<PackKey>,
        pack: impl FnOnce() -> Result<(T, usize)>,
    ) -> Result<Arc<Packed<T>>> {
        let known = key.as_ref().and_then(|key| self.lock().made.get(key)?.upgrade()?.downcast().ok());
        if let Some(known) = known {
            return Ok(known);
        }
        let (weights, bytes) = match key {
            Some(key) if key.is_lasting() => self.store.get(key, pack)?,
            _ => pack().map(|(weights, bytes)| (Arc::new(weights), bytes))?,
        };
        let packed = Arc::new(Packed { weights, _held: self.budget.take(PACKED, bytes)? });
        if let Some(key) = key {
            let weak = Arc::downgrade(&packed);
            self.lock().insert(key, weak);
        }
        Ok(packed)
    }

    /// Weights of a product: as they were packed, as the constant's owner has them, or by packing them now.
    pub(crate) fn matrix(
        &self,
        isa: Isa,
        constant: &Constant,
        form: MatrixForm,
        pack: impl FnOnce() -> Result<PackedB>,
    ) -> Result<Arc<Packed<PackedB>>> {
        let taken = |mut from: LaidOut| {
            let weights = PackedB::taken(isa, form.rows, form.columns, &mut from)?;
            from.is_empty().then_some(weights)
        };
        let kept = Kept { layout: form.layout(isa), taken, store: PackedB::store, bytes: PackedB::bytes };
        self.kept(constant, Form::Matrix(form), isa, kept, pack)
    }

    /// A convolution with its weights, for images in a layout: had as those of products.
    pub(crate) fn conv(
        &self,
        isa: Isa,
        constant: &Constant,
        form: ConvForm,
        pack: impl FnOnce() -> Result<Conv>,
    ) -> Result<Arc<Packed<Conv>>> {
        let ConvForm { params, layout, method, .. } = form;
        let taken = |from| Conv::taken(isa, params, method, layout, layout, from);
        let name = conv_layout(isa, &params, layout, method);
        let kept = Kept { layout: name, taken, store: Conv::store, bytes: Conv::bytes };
        self.kept(constant, Form::Conv(form), isa, kept, pack)
    }

    /// Weights as they were packed, as the constant's owner has them, or packed now; stored, too, if that is wanted.
    fn kept<T: Send + Sync + 'static>(
        &self,
        constant: &Constant,
        form: Form,
        isa: Isa,
        kept: Kept<T, impl Fn(LaidOut) -> Option<T>>,
        pack: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<Packed<T>>> {
        let data =
            identity(constant).unwrap_or_else(|| DataKey::Hash(hashed(constant.bytes()), constant.nbytes()));
        self.shared(Some(PackKey { data, isa, form }), || {
            let taken = constant.laid_out(&kept.layout).and_then(|bytes| kept.take(bytes));
            let (weights, own) = match taken {
                // They take no memory of their own.
                Some(weights) => (weights, 0),
                None => with_bytes(self.pack(constant, pack)?, kept.bytes),
            };
            let Some(list) = &self.stored else { return Ok((weights, own)) };
            let mut stored = Vec::with_capacity((kept.bytes)(&weights));
            (kept.store)(&weights, &mut stored);
            let bytes: SharedBytes = Arc::new(stored);
            let taken = kept.take(Arc::clone(&bytes));
            let stored = StoredWeights { constant: constant.clone(), layout: kept.layout.clone(), bytes };
            list.lock().unwrap_or_else(PoisonError::into_inner).push(stored);
            Ok(taken.map_or((weights, own), |weights| (weights, 0)))
        })
    }

    /// Weights of a product of quantized values, by the bytes of their scales. They are shared if the constant has an identity.
    pub(crate) fn quantized_matrix(
        &self,
        isa: Isa,
        constant: &Constant,
        form: QuantizedForm,
        scales: &[u8],
        pack: impl FnOnce() -> Result<PackedWeights>,
    ) -> Result<Arc<Packed<PackedWeights>>> {
        self.quantized(isa, constant, form, scales, pack, PackedWeights::bytes)
    }

    /// A convolution of quantized values with its weights, by the bytes of their scales. They are shared if the constant has an identity.
    pub(crate) fn quantized_conv(
        &self,
        isa: Isa,
        constant: &Constant,
        form: ConvForm,
        scales: &[u8],
        pack: impl FnOnce() -> Result<QuantizedConv>,
    ) -> Result<Arc<Packed<QuantizedConv>>> {
        self.quantized(isa, constant, QuantizedForm::Conv(form), scales, pack, QuantizedConv::bytes)
    }

    fn quantized<T: Send + Sync + 'static>(
        &self,
        isa: Isa,
        constant: &Constant,
        form: QuantizedForm,
        scales: &[u8],
        pack: impl FnOnce() -> Result<T>,
        bytes: fn(&T) -> usize,
    ) -> Result<Arc<Packed<T>>> {
        let key = identity(constant).map(|data| {
            let scales = (hashed(scales), scales.len());
            PackKey { data, isa, form: Form::Quantized(form, scales) }
        });
        self.shared(key, || self.pack(constant, pack).map(|weights| with_bytes(weights, bytes)))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How a constant is known to all who share a store.
fn identity(constant: &Constant) -> Option<DataKey> {
    match constant {
        Constant::Shared(bytes) => bytes.identity().map(DataKey::Known),
        _ => None,
    }
}

fn with_bytes<T>(weights: T, bytes: fn(&T) -> usize) -> (T, usize) {
    let bytes = bytes(&weights);
    (weights, bytes)
}

impl Table {
    fn insert(&mut self, key: PackKey, packed: Weak<dyn Any + Send + Sync>) {
        if self.made.len() >= self.crowded {
            // Unused entries are dropped whenever there are twice as many entries as were in use.
            self.made.retain(|_, packed| packed.strong_count() > 0);
            self.crowded = 2 * self.made.len() + 1;
        }
        self.made.insert(key, packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use ir::{Identity, SourceId};
    use kernels::compute::MatRef;
    use tensor::{Tensor, TensorMeta};

    fn computed(values: &[f32]) -> Constant {
        let meta = TensorMeta::contiguous(tensor::ScalarType::Float, &[values.len()]).unwrap();
        let mut tensor = Tensor::zeros(meta).unwrap();
        tensor.view_mut().storage_mut::<f32>().unwrap().copy_from_slice(values);
        Constant::from(tensor)
    }

    #[test]
    fn every_byte_and_place_counts() {
        let hasher = Keyed::default();
        let mut seen = std::collections::HashSet::from([hasher.hash(&[0; 70])]);
        for at in 0..70 {
            let mut bytes = [0; 70];
            for bit in 0..8 {
                bytes[at] = 1 << bit;
                assert!(seen.insert(hasher.hash(&bytes)), "bit {bit} of byte {at}");
                assert_eq!(hasher.hash(&bytes), hasher.hash(&bytes));
            }
        }
        assert_ne!(hasher.hash(&[1; 70]), Keyed::default().hash(&[1; 70]));
    }

    /// Packs a constant, and whether that had to be done.
    fn get(packs: &Packs, constant: &Constant, form: MatrixForm) -> (Arc<Packed<PackedB>>, bool) {
        let mut packed = false;
        let made = packs.matrix(Isa::default(), constant, form, || {
            packed = true;
            PackedB::new(Isa::default(), MatRef::new(&[0.0; 4], 2, 2)).map_err(Into::into)
        });
        (made.unwrap(), packed)
    }

    const FORM: MatrixForm = MatrixForm { rows: 2, columns: 2, transposed: false };

    #[test]
    fn the_same_bytes_are_packed_once_while_they_are_held() {
        let packs = Packs::default();
        let (a, again) = (computed(&[1.0, 2.0, 3.0, 4.0]), computed(&[1.0, 2.0, 3.0, 4.0]));
        let held = get(&packs, &a, FORM);
        assert!(held.1);
        assert!(!get(&packs, &again, FORM).1);
        assert!(get(&packs, &a, MatrixForm { transposed: true, ..FORM }).1);
        assert!(get(&packs, &computed(&[1.0, 2.0, 3.0, 5.0]), FORM).1);
        // What was computed is known here alone.
        assert!(get(&Packs::default(), &a, FORM).1);
        drop(held);
        assert!(get(&packs, &again, FORM).1);
    }

    /// Bytes of a range of a source.
    struct Ranged(Identity, [u8; 16]);

    impl crate::Bytes for Ranged {
        fn bytes(&self) -> &[u8] {
            &self.1
        }

        fn identity(&self) -> Option<Identity> {
            Some(self.0)
        }
    }

    #[test]
    fn methods_that_share_a_store_hold_one_copy_and_count_it_each() {
        let (store, file) = (crate::PackStore::new(), SourceId::numbered());
        let constant = |start| {
            Constant::Shared(Arc::new(Ranged(Identity::new(file, start, 16), [0; 16])) as SharedBytes)
        };
        let budgets = [Budget::new(4096), Budget::new(4096), Budget::new(16)];
        let methods = budgets.clone().map(|budget| Packs::within(budget, store.clone()));
        let first = get(&methods[0], &constant(0), FORM);
        let bytes = first.0.bytes();
        assert_eq!((first.1, store.bytes(), budgets[0].held()), (true, bytes, bytes as u64));
        let second = get(&methods[1], &constant(0), FORM);
        assert_eq!((second.1, store.bytes(), budgets[1].held()), (false, bytes, bytes as u64));
        // A method's limit is what it would be alone.
        let refused = methods[2].matrix(Isa::default(), &constant(0), FORM, || unreachable!());
        assert!(bytes > 16 && refused.is_err());
        let other = get(&methods[1], &constant(16), FORM);
        assert!(other.1 && !get(&methods[1], &constant(16), FORM).1);
        assert_eq!((store.bytes(), budgets[1].held()), (2 * bytes, 2 * bytes as u64));
        drop((first, other));
        assert_eq!((store.bytes(), budgets[0].held()), (bytes, 0));
        drop(second);
        assert_eq!(store.bytes(), 0);
    }
}
