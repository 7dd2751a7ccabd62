//! Packed weights that several executables share.

use crate::descriptions::Descriptions;
use crate::graph::Constant;
use ir::SharedBytes;
use kernels::compute::{Conv, ConvParams, Isa, LaidOut, Layout, PackedB, weight_layout};
use operator::{Budget, Held, Result};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tensor::DimOrder;

/// Finds packed weights again, for as long as somebody holds them: a graph that is lowered for other sizes
/// has the weights that it had, and so has a call that runs outside of graphs.
///
/// Constants that are shared are known by their [identity](crate::Bytes::identity): no other constant comes to
/// have it while the packs are used. One that was computed for a graph is known by a hash of its bytes. All executables
/// of a `Packs` work with the same instructions. Clones share what was packed, and work on the same constants.
#[derive(Clone, Default)]
pub struct Packs {
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
    /// The packed elements.
    pub bytes: Vec<u8>,
}

/// Bytes that a constant's owner keeps.
struct Kept(SharedBytes);

impl AsRef<[u8]> for Kept {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

#[derive(Default)]
struct Table {
    hasher: Keyed,
    made: HashMap<Source, Vec<Made>>,
    /// Number of entries at which unused ones are next looked for.
    crowded: usize,
}

/// What takes the memory of packed weights, for messages.
const PACKED: &str = "its packed weights";

/// The bytes that were packed.
#[derive(PartialEq, Eq, Hash)]
enum Source {
    Shared((usize, usize)),
    Hash(u64, usize),
}

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

enum Made {
    Matrix(MatrixForm, Weak<Packed<PackedB>>),
    Conv(ConvForm, Weak<Packed<Conv>>),
}

/// Packed weights, and the memory that they are counted as.
pub(crate) struct Packed<T> {
    weights: T,
    _held: Held,
}

impl<T> Deref for Packed<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.weights
    }
}

/// How a constant is seen as the right operand of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatrixForm {
    pub(crate) rows: usize,
    pub(crate) columns: usize,
    /// Whether the constant is stored as `[columns, rows]`.
    pub(crate) transposed: bool,
}

/// How a constant is seen as the weights of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ConvForm {
    pub(crate) params: ConvParams,
    /// The layout of the images.
    pub(crate) layout: Layout,
    /// How the weights lie.
    pub(crate) order: DimOrder,
}

impl MatrixForm {
    fn layout(self, isa: Isa) -> String {
        let order = if self.transposed { "t" } else { "n" };
        format!("{} matrix {} {} {order}", weight_layout(isa), self.rows, self.columns)
    }
}

fn conv_layout(isa: Isa, params: &ConvParams, layout: Layout) -> String {
    let ConvParams { in_channels, out_channels, groups, kernel, stride, padding, dilation, transposed } =
        params;
    let numbers = [kernel, stride, padding, dilation].map(|v| v.map(|n| n.to_string()).join(","));
    let (kind, images) = (
        if *transposed { "conv_transpose" } else { "conv" },
        if layout == Layout::ChannelsLast { "last" } else { "first" },
    );
    let base = weight_layout(isa);
    format!("{base} {kind} {in_channels} {out_channels} {groups} {} {images}", numbers.join(" "))
}

impl Packs {
    /// Packs whose weights are [stored](Self::stored), too, as they are made.
    pub fn storing() -> Self {
        Self { stored: Some(Arc::default()), ..Self::default() }
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

    fn store(&self, constant: &Constant, layout: &str, store: impl FnOnce(&mut Vec<u8>)) {
        if let Some(list) = &self.stored {
            let mut bytes = Vec::new();
            store(&mut bytes);
            let stored = StoredWeights { constant: constant.clone(), layout: layout.to_owned(), bytes };
            list.lock().unwrap_or_else(PoisonError::into_inner).push(stored);
        }
    }

    /// No packs yet, and what packed weights and workspaces may take.
    pub fn within(budget: Budget) -> Self {
        Self { budget, ..Self::default() }
    }

    /// No packs yet, within the same budget: what the executables know of their values is shared.
    pub fn apart(&self) -> Self {
        let descriptions = Arc::clone(&self.descriptions);
        Self { descriptions, ..Self::within(self.budget.clone()) }
    }

    /// What executables know of their values.
    pub(crate) fn descriptions(&self) -> MutexGuard<'_, Descriptions> {
        self.descriptions.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What packed weights and workspaces may take.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// Packs weights that nobody shares. Their bytes are taken before: about those of the constant.
    pub(crate) fn packed<T>(
        &self,
        constant: &Constant,
        pack: impl FnOnce() -> Result<T>,
        bytes: impl FnOnce(&T) -> usize,
    ) -> Result<Arc<Packed<T>>> {
        let expected = self.budget.take(PACKED, constant.bytes().len())?;
        let weights = pack()?;
        drop(expected);
        let held = self.budget.take(PACKED, bytes(&weights))?;
        Ok(Arc::new(Packed { weights, _held: held }))
    }

    /// Weights that take no memory of their own.
    fn held<T>(&self, weights: T) -> Result<Arc<Packed<T>>> {
        Ok(Arc::new(Packed { weights, _held: self.budget.take(PACKED, 0)? }))
    }

    /// Weights of a product: as they were packed, as the constant's owner has them, or by packing them now.
    pub(crate) fn matrix(
        &mut self,
        isa: Isa,
        constant: &Constant,
        form: MatrixForm,
        pack: impl FnOnce() -> Result<PackedB>,
    ) -> Result<Arc<Packed<PackedB>>> {
        let mut table = self.lock();
        let list = table.of(constant);
        let found = list.iter().find_map(|made| match made {
            Made::Matrix(other, weak) if *other == form => weak.upgrade(),
            _ => None,
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let layout = form.layout(isa);
        let taken = constant.laid_out(&layout).and_then(|bytes| {
            let mut from = LaidOut::new(Arc::new(Kept(bytes)));
            let weights = PackedB::taken(isa, form.rows, form.columns, &mut from)?;
            from.is_empty().then_some(weights)
        });
        let packed = match taken {
            Some(weights) => self.held(weights)?,
            None => self.packed(constant, pack, PackedB::bytes)?,
        };
        self.store(constant, &layout, |out| packed.store(out));
        list.push(Made::Matrix(form, Arc::downgrade(&packed)));
        Ok(packed)
    }

    /// A convolution with its weights, for images in a layout: had as those of products.
    pub(crate) fn conv(
        &mut self,
        isa: Isa,
        constant: &Constant,
        form: ConvForm,
        pack: impl FnOnce() -> Result<Conv>,
    ) -> Result<Arc<Packed<Conv>>> {
        let mut table = self.lock();
        let list = table.of(constant);
        let found = list.iter().find_map(|made| match made {
            Made::Conv(other, weak) if *other == form => weak.upgrade(),
            _ => None,
        });
        if let Some(found) = found {
            return Ok(found);
        }
        let ConvForm { params, layout, .. } = form;
        let name = conv_layout(isa, &params, layout);
        let taken = constant
            .laid_out(&name)
            .and_then(|bytes| Conv::taken(isa, params, layout, layout, LaidOut::new(Arc::new(Kept(bytes)))));
        let packed = match taken {
            Some(conv) => self.held(conv)?,
            None => self.packed(constant, pack, Conv::bytes)?,
        };
        self.store(constant, &name, |out| packed.store(out));
        list.push(Made::Conv(form, Arc::downgrade(&packed)));
        Ok(packed)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// What was made of a constant and is still there.
    fn of(&mut self, constant: &Constant) -> &mut Vec<Made> {
        let identity = if let Constant::Shared(bytes) = constant { bytes.identity() } else { None };
        let source = identity.map_or_else(
            || Source::Hash(self.hasher.hash(constant.bytes()), constant.nbytes()),
            Source::Shared,
        );
        if !self.made.contains_key(&source) && self.made.len() >= self.crowded {
            // Unused entries are dropped whenever there are twice as many entries as were in use.
            self.made.retain(|_, list| {
                list.retain(Made::is_held);
                !list.is_empty()
            });
            self.crowded = 2 * self.made.len() + 1;
        }
        self.made.entry(source).or_default()
    }
}

impl Made {
    fn is_held(&self) -> bool {
        match self {
            Self::Matrix(_, weak) => weak.strong_count() > 0,
            Self::Conv(_, weak) => weak.strong_count() > 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
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

    #[test]
    fn the_same_bytes_are_packed_once_while_they_are_held() {
        let mut packs = Packs::default();
        let form = MatrixForm { rows: 2, columns: 2, transposed: false };
        let mut get = |constant: &Constant, form| {
            let mut packed = false;
            let made = packs.matrix(Isa::default(), constant, form, || {
                packed = true;
                PackedB::new(Isa::default(), MatRef::new(&[0.0; 4], 2, 2)).map_err(Into::into)
            });
            (made.unwrap(), packed)
        };
        let (a, again) = (computed(&[1.0, 2.0, 3.0, 4.0]), computed(&[1.0, 2.0, 3.0, 4.0]));
        let held = get(&a, form);
        assert!(held.1);
        assert!(!get(&again, form).1);
        assert!(get(&a, MatrixForm { transposed: true, ..form }).1);
        assert!(get(&computed(&[1.0, 2.0, 3.0, 5.0]), form).1);
        drop(held);
        assert!(get(&again, form).1);
    }
}
