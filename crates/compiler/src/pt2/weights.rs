//! The tensors of a model: views of raw storages.

use super::SAVE_ANEW;
use super::archive::{Archive, CopiedBytes};
use super::graph::{dtype_from_number, static_size};
use super::schema::{Payload, PayloadConfig, SymInt, TensorMeta};
use crate::limits::MAX_COPIED_BYTES;
use crate::{Error, Result};
use pteron_exported::{ConstantTensor, TensorSpec};
use pteron_tensor::DimOrder;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

/// The weights and constants of one model, as its two configuration files list them.
pub(super) struct Weights {
    configs: [(String, &'static str, PayloadConfig); 2],
    copied: u64,
    /// Copies by record and view, so that a tensor with two names is copied only once.
    copies: HashMap<(String, String), ConstantTensor>,
    /// The distinct views of each storage, and their total bytes.
    views: HashMap<String, (HashSet<Range<usize>>, usize)>,
}

impl Weights {
    pub(super) fn open(archive: &mut Archive<'_>, model: &str) -> Result<Self> {
        let mut config = |folder: &'static str, what: &str| -> Result<_> {
            let record = format!("{folder}{model}_{what}_config.json");
            let config = match archive.contains(&record) {
                true => archive.read_json(&record)?,
                false => PayloadConfig::default(),
            };
            Ok((record, folder, config))
        };
        let configs = [config("data/weights/", "weights")?, config("data/constants/", "constants")?];
        Ok(Self { configs, copied: 0, copies: HashMap::new(), views: HashMap::new() })
    }

    /// Loads a tensor by its name in the model. Returns it in row-major order, with that dim order.
    pub(super) fn load(
        &mut self,
        archive: &mut Archive<'_>,
        key: &str,
        declared: Option<&TensorSpec>,
    ) -> Result<(ConstantTensor, DimOrder)> {
        let entry = self.configs.iter().find_map(|(_, folder, c)| Some((*folder, c.config.get(key)?)));
        let Some((folder, payload)) = entry else {
            let place = self.configs[0].0.clone();
            return Err(Error::archive(place, format!("the tensor `{key}` is missing")));
        };
        let record = format!("{folder}{}", payload.path_name);
        let place = || format!("{record} (`{key}`)");
        let Payload { use_pickle: false, tensor_meta: Some(meta), .. } = payload else {
            let help = format!("save plain tensors: {SAVE_ANEW}");
            return Err(Error::archive_with_help(
                place(),
                "the tensor is pickled, and nothing is unpickled here",
                help,
            ));
        };
        let view = View::from_meta(meta, static_size).map_err(|problem| Error::archive(place(), problem))?;
        if declared.is_some_and(|d| d.dtype != view.dtype || d.known_sizes() != Some(view.sizes_as_i64())) {
            let problem = "its type or sizes are not those of the value in the graph";
            return Err(Error::archive(place(), problem));
        }
        let storage = archive.read_record(&record)?;
        let (first, end) = view.extent().ok_or_else(|| Error::archive(place(), "its size overflows"))?;
        if end > storage.len() {
            let problem = format!("it needs {end} bytes of a storage of {}", storage.len());
            return Err(Error::archive(place(), problem));
        }
        let name: Option<Arc<str>> = Some(key.into());
        let order = DimOrder::contiguous(view.sizes.len());
        if view.is_row_major() {
            let repeated = self.record_view(&record, &(first..end), storage.len());
            let charged = archive.budget().charge("writing views that overlap in their storage", repeated);
            charged.map_err(|e| Error::archive(place(), e.to_string()))?;
            return Ok((ConstantTensor { name, bytes: storage, range: first..end }, order));
        }
        let identity = (record.clone(), format!("{view:?}"));
        if let Some(copy) = self.copies.get(&identity) {
            return Ok((ConstantTensor { name, ..copy.clone() }, order));
        }
        let len = view.nbytes().ok_or_else(|| Error::archive(place(), "its size overflows"))?;
        self.copied = self.copied.saturating_add(len as u64);
        if self.copied > MAX_COPIED_BYTES {
            let problem = format!("tensors that are no dense views have more than {MAX_COPIED_BYTES} bytes");
            return Err(Error::archive(place(), problem));
        }
        let reservation = archive.budget().take("copying it, since it is no dense view of its storage,", len);
        let reservation = reservation.map_err(|e| Error::archive(place(), e.to_string()))?;
        let bytes = view
            .copy_row_major(storage.bytes(), len)
            .ok_or_else(|| Error::archive(place(), "no memory for it"))?;
        let range = 0..bytes.len();
        let constant = ConstantTensor { name, range, bytes: Arc::new(CopiedBytes::new(bytes, reservation)) };
        self.copies.insert(identity, constant.clone());
        Ok((constant, order))
    }
}

impl Weights {
    /// Records a view of a storage. Returns how many bytes it adds to a program beyond those of the storage: views that
    /// overlap are written one by one.
    fn record_view(&mut self, record: &str, range: &Range<usize>, storage: usize) -> usize {
        let (known, bytes) = self.views.entry(record.to_owned()).or_default();
        if !known.insert(range.clone()) {
            return 0;
        }
        let before = bytes.saturating_sub(storage);
        *bytes = bytes.saturating_add(range.len());
        bytes.saturating_sub(storage) - before
    }
}

/// A tensor as a strided view of a storage; strides and offset count elements.
#[derive(Debug)]
pub(super) struct View {
    pub(super) dtype: pteron_tensor::ScalarType,
    pub(super) sizes: Vec<usize>,
    strides: Vec<usize>,
    offset: usize,
}

impl View {
    /// The view that `meta` describes; `number` evaluates its sizes.
    pub(super) fn from_meta(
        meta: &TensorMeta,
        number: impl Fn(&SymInt) -> Result<usize, String>,
    ) -> Result<Self, String> {
        let sizes = |list: &[SymInt]| -> Result<Vec<usize>, String> { list.iter().map(&number).collect() };
        let view = Self {
            dtype: dtype_from_number(meta.dtype)?,
            sizes: sizes(&meta.sizes)?,
            strides: sizes(&meta.strides)?,
            offset: number(&meta.storage_offset)?,
        };
        if view.sizes.len() != view.strides.len() {
            return Err(format!("{} strides for {} sizes", view.strides.len(), view.sizes.len()));
        }
        if view.sizes.len() > pteron_tensor::MAX_RANK {
            return Err(format!("rank {} is above {}", view.sizes.len(), pteron_tensor::MAX_RANK));
        }
        Ok(view)
    }

    fn sizes_as_i64(&self) -> Vec<i64> {
        self.sizes.iter().map(|&s| i64::try_from(s).unwrap_or(i64::MAX)).collect()
    }

    pub(super) fn nbytes(&self) -> Option<usize> {
        self.sizes.iter().try_fold(self.dtype.size(), |n, &s| n.checked_mul(s))
    }

    /// The offsets of the first byte and of the end of the view in its storage.
    pub(super) fn extent(&self) -> Option<(usize, usize)> {
        let width = self.dtype.size();
        let first = self.offset.checked_mul(width)?;
        if self.sizes.contains(&0) {
            return Some((0, 0));
        }
        let last = self
            .sizes
            .iter()
            .zip(&self.strides)
            .try_fold(self.offset, |at, (&n, &s)| at.checked_add((n - 1).checked_mul(s)?))?;
        Some((first, last.checked_add(1)?.checked_mul(width)?))
    }

    fn is_row_major(&self) -> bool {
        let mut step = 1usize;
        self.sizes.contains(&0)
            || self.sizes.iter().zip(&self.strides).rev().all(|(&n, &s)| {
                let fits = n == 1 || s == step;
                step = step.saturating_mul(n);
                fits
            })
    }

    /// Copies the elements in row-major order. The extent must be in bounds of the storage.
    pub(super) fn copy_row_major(&self, storage: &[u8], len: usize) -> Option<Vec<u8>> {
        let width = self.dtype.size();
        let mut out = Vec::new();
        out.try_reserve_exact(len).ok()?;
        let mut index = vec![0usize; self.sizes.len()];
        let mut at = self.offset;
        while out.len() < len {
            out.extend_from_slice(storage.get(at * width..at * width + width)?);
            for d in (0..index.len()).rev() {
                index[d] += 1;
                at += self.strides[d];
                if index[d] < self.sizes[d] {
                    break;
                }
                at -= self.strides[d] * self.sizes[d];
                index[d] = 0;
            }
        }
        Some(out)
    }
}
