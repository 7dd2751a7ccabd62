//! The packed weights of a method's executables.

use super::descriptions::Descriptions;
use super::pack_store::{
    ConvPack, DataKey, MatrixPack, PackFormat, PackKey, PackStore, PackedAs, QuantizedPack,
};
use super::weights::view_of;
use crate::graph::Constant;
use pteron_ir::SharedBytes;
use pteron_kernels::compute::{
    Conv, ConvParams, Isa, Layout, MatRef, Method, PackedB, PackedWeights, PackedWeightsReader,
    QuantizedConv, WeightStorage, WeightType, weight_layout,
};
use pteron_operator::{Budget, Reservation, Result};
use pteron_tensor::{ScalarType, TensorMeta};
use std::any::Any;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

/// A cache of packed weights that lives as long as they are in use: a graph that is lowered again for other sizes
/// reuses its packed weights, and so do prepared calls outside of graphs.
///
/// Constants with an [identity](crate::Bytes::identity) are keyed by it, and their packed weights are shared through
/// the [`PackStore`]. A constant that was computed for a graph is keyed by a hash of its bytes, within this cache only.
/// Clones share the cache.
#[derive(Clone, Default)]
pub struct Packs {
    store: PackStore,
    table: Arc<Mutex<Table>>,
    descriptions: Arc<Mutex<Descriptions>>,
    /// The packed weights in storable form; `None` unless they are collected.
    stored: Option<Arc<Mutex<Vec<StoredWeights>>>>,
    /// The memory budget of packed weights and of the executables' workspaces.
    budget: Budget,
}

/// Packed weights in a form that can be stored with the constant, under the name of their layout
/// ([`Bytes::laid_out`](crate::Bytes::laid_out)).
#[derive(Clone)]
pub struct StoredWeights {
    /// The constant that was packed.
    pub constant: Constant,
    /// The name of the layout.
    pub layout: String,
    /// The packed elements; the executable uses these bytes directly.
    pub bytes: SharedBytes,
}

/// The storage format of a kind of packed weights.
struct StorageFormat<T, F> {
    /// The name of the layout.
    layout: String,
    /// Makes weights that refer to stored bytes, without a copy.
    load: F,
    store: fn(&T, &mut Vec<u8>),
    /// The size of the weights in bytes.
    bytes: fn(&T) -> usize,
}

impl<T, F: Fn(PackedWeightsReader) -> Option<T>> StorageFormat<T, F> {
    fn load(&self, bytes: SharedBytes) -> Option<T> {
        (self.load)(PackedWeightsReader::new(Arc::new(AsBytes(bytes))))
    }
}

/// Adapts shared bytes to `AsRef<[u8]>`.
struct AsBytes(SharedBytes);

impl AsRef<[u8]> for AsBytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The packed weights of a method, which count against the method's budget.
#[derive(Default)]
struct Table {
    packed: HashMap<PackKey, Weak<dyn Any + Send + Sync>>,
    /// The number of entries at which the next cleanup removes those that are no longer in use.
    sweep_at: usize,
}

/// The name of the packed weights in errors about an exhausted memory budget.
const PACKED: &str = "its packed weights";

/// A fast multiplicative hash with random keys, so that a file cannot be crafted to cause collisions.
struct KeyedHash([u64; 4]);

impl Default for KeyedHash {
    fn default() -> Self {
        let random = RandomState::new();
        Self(std::array::from_fn(|i| random.hash_one(i)))
    }
}

impl KeyedHash {
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

/// The hash of bytes, with keys that are the same in the whole process.
pub(super) fn process_wide_hash(bytes: &[u8]) -> u64 {
    static KEYED: OnceLock<KeyedHash> = OnceLock::new();
    KEYED.get_or_init(KeyedHash::default).hash(bytes)
}

/// Packed weights, with the share of the memory budget that they hold.
pub(crate) struct Packed<T> {
    weights: Arc<T>,
    _held: Reservation,
}

impl<T> Deref for Packed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.weights
    }
}

impl MatrixPack {
    fn layout(self, isa: Isa, ty: WeightType) -> String {
        let order = if self.transposed { "t" } else { "n" };
        format!("{} matrix {} {} {order}", weight_layout(isa, ty), self.rows, self.columns)
    }
}

fn conv_layout(isa: Isa, ty: WeightType, params: &ConvParams, layout: Layout, method: Method) -> String {
    let ConvParams { in_channels, out_channels, groups, kernel, stride, padding, dilation, transposed } =
        params;
    let numbers = [kernel, stride, padding, dilation].map(|v| v.map(|n| n.to_string()).join(","));
    let (kind, images) = (
        if *transposed { "conv_transpose" } else { "conv" },
        if layout == Layout::ChannelsLast { "last" } else { "first" },
    );
    let base = weight_layout(isa, ty);
    let method = if method == Method::Winograd { " winograd" } else { "" };
    format!("{base} {kind} {in_channels} {out_channels} {groups} {} {images}{method}", numbers.join(" "))
}

impl Packs {
    /// A cache that also collects the packed weights in storable form: see [`Self::take_stored`].
    pub fn new_storing() -> Self {
        // A separate store: weights that are already packed elsewhere would not be collected.
        Self { store: PackStore::new(), stored: Some(Arc::default()), ..Self::default() }
    }

    /// Takes all packed weights in storable form. Empty unless the cache was created by [`Self::new_storing`].
    pub fn take_stored(&self) -> Vec<StoredWeights> {
        let list = self.stored.as_ref().map(|list| list.lock().unwrap_or_else(PoisonError::into_inner));
        list.map(|mut list| std::mem::take(&mut *list)).unwrap_or_default()
    }

    /// Whether packed weights are collected in storable form.
    pub(crate) fn is_storing(&self) -> bool {
        self.stored.is_some()
    }

    /// An empty cache with this memory budget for packed weights and workspaces, which shares packed weights through
    /// `store`.
    pub fn with_budget(budget: Budget, store: PackStore) -> Self {
        Self { store, budget, ..Self::default() }
    }

    /// The metas that executables share.
    pub(crate) fn descriptions(&self) -> MutexGuard<'_, Descriptions> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The memory budget of packed weights and workspaces.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Packs weights. Reserves the constant's size from the budget meanwhile, as an estimate of the packed size.
    fn pack<T>(&self, constant: &Constant, pack: impl FnOnce() -> Result<T>) -> Result<T> {
        let _expected = self.budget.take(PACKED, constant.nbytes())?;
        pack()
    }

    /// Returns cached weights, or packs them: `pack` returns the weights and their size in bytes.
    fn get_or_pack<T: Send + Sync + 'static>(
        &self,
        key: Option<PackKey>,
        pack: impl FnOnce() -> Result<(T, usize)>,
    ) -> Result<Arc<Packed<T>>> {
        let known = key.as_ref().and_then(|key| self.lock().packed.get(key)?.upgrade()?.downcast().ok());
        if let Some(known) = known {
            return Ok(known);
        }
        let (weights, bytes) = match key {
            Some(key) if key.is_shareable() => self.store.get_or_pack(key, pack)?,
            _ => pack().map(|(weights, bytes)| (Arc::new(weights), bytes))?,
        };
        let packed = Arc::new(Packed { weights, _held: self.budget.take(PACKED, bytes)? });
        if let Some(key) = key {
            let weak = Arc::downgrade(&packed);
            self.lock().insert(key, weak);
        }
        Ok(packed)
    }

    /// The packed weights of a matrix multiplication: from the cache, from storage beside the constant, or packed now.
    pub(crate) fn packed_matrix(
        &self,
        isa: Isa,
        constant: &Constant,
        form: MatrixPack,
        (storage, packed_as): (WeightStorage<'_>, PackedAs),
        pack: impl FnOnce() -> Result<PackedB>,
    ) -> Result<Arc<Packed<PackedB>>> {
        let load = |mut from: PackedWeightsReader| {
            let weights = PackedB::from_packed(isa, storage, form.rows, form.columns, &mut from)?;
            from.is_empty().then_some(weights)
        };
        let layout = form.layout(isa, packed_as.ty);
        let format = StorageFormat { layout, load, store: PackedB::store, bytes: PackedB::nbytes };
        self.find_or_pack(constant, PackFormat::Matrix(form, packed_as), isa, format, pack)
    }

    /// A convolution with its packed weights, for images in the layout of `form`: found or packed as for
    /// [`Self::packed_matrix`].
    pub(crate) fn packed_conv(
        &self,
        isa: Isa,
        constant: &Constant,
        form: ConvPack,
        (storage, packed_as): (WeightStorage<'_>, PackedAs),
        pack: impl FnOnce() -> Result<Conv>,
    ) -> Result<Arc<Packed<Conv>>> {
        let ConvPack { params, layout, method, .. } = form;
        let load = |from| Conv::from_packed(isa, params, method, storage, (layout, layout), from);
        let name = conv_layout(isa, packed_as.ty, &params, layout, method);
        let format = StorageFormat { layout: name, load, store: Conv::store, bytes: Conv::nbytes };
        self.find_or_pack(constant, PackFormat::Conv(form, packed_as), isa, format, pack)
    }

    /// Returns packed weights from the cache, from storage beside the constant, or packs them now. Collects them in
    /// storable form, too, if the cache does so.
    fn find_or_pack<T: Send + Sync + 'static>(
        &self,
        constant: &Constant,
        form: PackFormat,
        isa: Isa,
        format: StorageFormat<T, impl Fn(PackedWeightsReader) -> Option<T>>,
        pack: impl FnOnce() -> Result<T>,
    ) -> Result<Arc<Packed<T>>> {
        let data = identity_key(constant)
            .unwrap_or_else(|| DataKey::Hash(process_wide_hash(constant.bytes()), constant.nbytes()));
        self.get_or_pack(Some(PackKey { data, isa, form }), || {
            let loaded = constant.laid_out(&format.layout).and_then(|bytes| format.load(bytes));
            let (weights, own) = match loaded {
                // Loaded weights refer to the stored bytes, and take no memory of their own.
                Some(weights) => (weights, 0),
                None => with_size(self.pack(constant, pack)?, format.bytes),
            };
            let Some(list) = &self.stored else { return Ok((weights, own)) };
            let mut stored = Vec::with_capacity((format.bytes)(&weights));
            (format.store)(&weights, &mut stored);
            let bytes: SharedBytes = Arc::new(stored);
            let loaded = format.load(Arc::clone(&bytes));
            let stored = StoredWeights { constant: constant.clone(), layout: format.layout.clone(), bytes };
            list.lock().unwrap_or_else(PoisonError::into_inner).push(stored);
            Ok(loaded.map_or((weights, own), |weights| (weights, 0)))
        })
    }

    /// The packed weights of a quantized matrix multiplication; `scales` are the bytes of the weights' scales. The
    /// packed weights are cached only if the constant has an identity.
    pub(crate) fn packed_quantized_matrix(
        &self,
        isa: Isa,
        constant: &Constant,
        form: QuantizedPack,
        scales: &[u8],
        pack: impl FnOnce() -> Result<PackedWeights>,
    ) -> Result<Arc<Packed<PackedWeights>>> {
        self.quantized_weights(isa, constant, form, scales, pack, PackedWeights::nbytes)
    }

    /// A quantized convolution with its packed weights; `scales` are the bytes of the weights' scales. The packed
    /// weights are cached only if the constant has an identity.
    pub(crate) fn packed_quantized_conv(
        &self,
        isa: Isa,
        constant: &Constant,
        form: ConvPack,
        scales: &[u8],
        pack: impl FnOnce() -> Result<QuantizedConv>,
    ) -> Result<Arc<Packed<QuantizedConv>>> {
        self.quantized_weights(isa, constant, QuantizedPack::Conv(form), scales, pack, QuantizedConv::nbytes)
    }

    fn quantized_weights<T: Send + Sync + 'static>(
        &self,
        isa: Isa,
        constant: &Constant,
        form: QuantizedPack,
        scales: &[u8],
        pack: impl FnOnce() -> Result<T>,
        bytes: fn(&T) -> usize,
    ) -> Result<Arc<Packed<T>>> {
        let key = identity_key(constant).map(|data| {
            let scales = (process_wide_hash(scales), scales.len());
            PackKey { data, isa, form: PackFormat::Quantized(form, scales) }
        });
        self.get_or_pack(key, || self.pack(constant, pack).map(|weights| with_size(weights, bytes)))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of bytes of a matrix that are read at a time during packing, unless the matrix is in memory already.
const PIECE: usize = 4 << 20;

/// Packs a constant matrix: piece by piece if its bytes are not in memory yet, so that a large matrix is not in memory
/// together with its packed form.
pub(crate) fn pack_matrix(isa: Isa, constant: &Constant, form: MatrixPack) -> Result<PackedB> {
    let MatrixPack { rows: k, columns: n, transposed } = form;
    let (rows, columns) = if transposed { (n, k) } else { (k, n) };
    let meta = |rows: usize| TensorMeta::contiguous(ScalarType::Float, &[rows, columns]);
    let (all, line) = (meta(rows)?, columns * size_of::<f32>());
    if constant.nbytes() > 2 * PIECE && constant.part(0..line).is_some() {
        let piece = PIECE / size_of::<f32>();
        return PackedB::from_pieces(isa, WeightStorage::F32, (k, n), transposed, piece, |part, pack| {
            match constant.part(part.start * line..part.end * line) {
                Some(bytes) => pack(view_of(&Constant::Shared(bytes), &meta(part.len())?)?.storage()?),
                // Another user has loaded the whole matrix meanwhile.
                None => {
                    let elements: &[f32] = view_of(constant, &all)?.storage()?;
                    pack(&elements[part.start * columns..part.end * columns]);
                }
            }
            Ok(())
        });
    }
    let plain = MatRef::new(view_of(constant, &all)?.storage()?, rows, columns);
    Ok(PackedB::new(isa, if transposed { plain.t() } else { plain })?)
}

/// The key of a constant's bytes that is valid in the whole process, if the constant has an identity.
fn identity_key(constant: &Constant) -> Option<DataKey> {
    match constant {
        Constant::Shared(bytes) => bytes.identity().map(DataKey::Known),
        _ => None,
    }
}

fn with_size<T>(weights: T, bytes: fn(&T) -> usize) -> (T, usize) {
    let bytes = bytes(&weights);
    (weights, bytes)
}

impl Table {
    fn insert(&mut self, key: PackKey, packed: Weak<dyn Any + Send + Sync>) {
        if self.packed.len() >= self.sweep_at {
            // Amortized cleanup: unused entries are removed whenever the table has twice as many entries as were in use
            // the last time.
            self.packed.retain(|_, packed| packed.strong_count() > 0);
            self.sweep_at = 2 * self.packed.len() + 1;
        }
        self.packed.insert(key, packed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use pteron_ir::{Identity, SourceId};
    use pteron_tensor::Tensor;

    fn computed(values: &[f32]) -> Constant {
        let meta = TensorMeta::contiguous(pteron_tensor::ScalarType::Float, &[values.len()]).unwrap();
        let mut tensor = Tensor::zeros(meta).unwrap();
        tensor.view_mut().storage_mut::<f32>().unwrap().copy_from_slice(values);
        Constant::from(tensor)
    }

    #[test]
    fn the_hash_depends_on_every_bit() {
        let hasher = KeyedHash::default();
        let mut seen = std::collections::HashSet::from([hasher.hash(&[0; 70])]);
        for at in 0..70 {
            let mut bytes = [0; 70];
            for bit in 0..8 {
                bytes[at] = 1 << bit;
                assert!(seen.insert(hasher.hash(&bytes)), "bit {bit} of byte {at}");
                assert_eq!(hasher.hash(&bytes), hasher.hash(&bytes));
            }
        }
        assert_ne!(hasher.hash(&[1; 70]), KeyedHash::default().hash(&[1; 70]));
    }

    /// The packed weights of a constant, and whether they had to be packed.
    fn get(packs: &Packs, constant: &Constant, form: MatrixPack) -> (Arc<Packed<PackedB>>, bool) {
        let mut packed = false;
        let weights = packs.packed_matrix(Isa::default(), constant, form, AS_F32, || {
            packed = true;
            PackedB::new(Isa::default(), MatRef::new(&[0.0; 4], 2, 2)).map_err(Into::into)
        });
        (weights.unwrap(), packed)
    }

    const FORM: MatrixPack = MatrixPack { rows: 2, columns: 2, transposed: false };
    const AS_F32: (WeightStorage<'_>, PackedAs) =
        (WeightStorage::F32, PackedAs { ty: WeightType::F32, scales: 0 });

    #[test]
    fn equal_bytes_are_packed_once_while_the_weights_are_in_use() {
        let packs = Packs::default();
        let (a, again) = (computed(&[1.0, 2.0, 3.0, 4.0]), computed(&[1.0, 2.0, 3.0, 4.0]));
        let first_weights = get(&packs, &a, FORM);
        assert!(first_weights.1);
        assert!(!get(&packs, &again, FORM).1);
        assert!(get(&packs, &a, MatrixPack { transposed: true, ..FORM }).1);
        assert!(get(&packs, &computed(&[1.0, 2.0, 3.0, 5.0]), FORM).1);
        // Computed constants are not shared with another cache.
        assert!(get(&Packs::default(), &a, FORM).1);
        drop(first_weights);
        assert!(get(&packs, &again, FORM).1);
    }

    /// Bytes with an identity.
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
    fn methods_share_packed_weights_and_each_counts_them() {
        let (store, file) = (crate::PackStore::new(), SourceId::unique());
        let constant = |start| {
            Constant::Shared(Arc::new(Ranged(Identity::new(file, start, 16), [0; 16])) as SharedBytes)
        };
        let budgets = [Budget::new(4096), Budget::new(4096), Budget::new(16)];
        let methods = budgets.clone().map(|budget| Packs::with_budget(budget, store.clone()));
        let first = get(&methods[0], &constant(0), FORM);
        let bytes = first.0.nbytes();
        assert_eq!((first.1, store.bytes(), budgets[0].held()), (true, bytes, bytes as u64));
        let second = get(&methods[1], &constant(0), FORM);
        assert_eq!((second.1, store.bytes(), budgets[1].held()), (false, bytes, bytes as u64));
        // Shared weights count fully against each method's budget.
        let refused = methods[2].packed_matrix(Isa::default(), &constant(0), FORM, AS_F32, || unreachable!());
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
