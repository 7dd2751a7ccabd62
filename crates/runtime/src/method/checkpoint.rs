//! Checkpoints: saving the persistent tensors of a method to a `.ptd` file, and restoring them.
//!
//! A tensor is persistent if it has initial values in the program, if the exporter named it, or if an execution reads
//! it before writing it: parameters in training, caches, counters. Constants and inputs are not persistent.
//!
//! A tensor's key is the name that the exporter gave it. An unnamed tensor gets a key made of the method's name and the
//! index of a value at its arena offset: `forward.value12`. Such keys are only valid for the same program.

use crate::method::Method;
use crate::plan::{Id, Storage};
use crate::prepare::raise::DefUse;
use crate::{Error, NamedDataMap, PtdDataMap, Result, replace_file};
use pteron_format::container::Blob;
use pteron_format::ptd::{Builder, TensorLayout};
use pteron_tensor::{Extent, TensorView};
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

/// Writes a checkpoint, atomically.
pub(crate) fn write_checkpoint(builder: Builder<'_>, path: &Path) -> Result<()> {
    let fail = |e| Error::format(&path.display().to_string(), e);
    replace_file(path, |out| builder.write(out).map(drop).map_err(fail))
}

impl Method {
    /// The persistent tensors (those that outlive an execution) with their keys, in the order of the program's values.
    pub fn state(&self) -> impl Iterator<Item = (String, TensorView<'_>)> {
        self.persistent_tensors().into_iter().filter_map(|(key, id)| Some((key, self.state.view(id).ok()?)))
    }

    /// Writes the persistent tensors to a `.ptd` file. The file is replaced atomically: after a crash it is either the
    /// old or the new one (see [`replace_file`]).
    pub fn save_checkpoint(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        write_checkpoint(self.checkpoint_builder(path)?, path)
    }

    /// A builder of the file that [`Self::save_checkpoint`] writes to `path`. The caller may add entries.
    pub(crate) fn checkpoint_builder(&self, path: &Path) -> Result<Builder<'_>> {
        let mut builder = Builder { share: false, ..Builder::new() };
        for (key, view) in self.state() {
            let sizes: Option<Vec<i32>> = view.sizes().iter().map(|&s| i32::try_from(s).ok()).collect();
            let layout = TensorLayout {
                scalar_type: view.dtype() as i8,
                sizes: sizes
                    .ok_or_else(|| self.mismatch_error(&key, path, "has sizes that a file cannot hold"))?,
                dim_order: view.dim_order().to_vec(),
            };
            let blob = match cfg!(target_endian = "big") {
                false => Blob::bytes(view.bytes()),
                true => {
                    let mut bytes = view.bytes().to_vec();
                    crate::convert::from_little_endian(&mut bytes, view.dtype());
                    Blob::bytes(bytes)
                }
            };
            builder.tensor(key, layout, blob);
        }
        Ok(builder)
    }

    /// Restores the persistent tensors from a `.ptd` file that [`Self::save_checkpoint`] has written. Entries that are
    /// not tensors of this method are ignored, since one file may contain the state of several methods. If a tensor is
    /// missing from the file, or has another type or shape, the call fails and changes nothing.
    pub fn load_checkpoint(&mut self, path: impl AsRef<Path>) -> Result<()> {
        self.restore(&PtdDataMap::open(path)?)
    }

    /// Restores a checkpoint as [`Self::load_checkpoint`] does, from an open map of named data.
    pub fn restore(&mut self, data: &dyn NamedDataMap) -> Result<()> {
        let persistent = self.persistent_tensors();
        // Everything is read before any tensor is changed.
        let mut read = Vec::with_capacity(persistent.len());
        for (key, id) in &persistent {
            let Some(t) = self.state.values[*id].tensor() else { continue };
            let name = Path::new(data.name());
            if !data.contains(key) {
                return Err(self.mismatch_error(key, name, "is not in the file"));
            }
            let layout = data.tensor_layout(key)?;
            let same = layout.as_ref().is_some_and(|l| {
                l.dtype() == t.meta.dtype()
                    && l.sizes() == t.meta.sizes()
                    && l.dim_order().same_layout(t.meta.dim_order(), t.meta.sizes())
            });
            if !same {
                let stored = layout.map_or_else(|| "a blob".to_owned(), |l| l.to_string());
                let problem = format!("is {} in the method and {stored} in the file", t.meta);
                return Err(self.mismatch_error(key, name, &problem));
            }
            let bytes = data.data(key)?;
            if bytes.len() != t.meta.nbytes() {
                let problem =
                    format!("is {} bytes in the method and {} in the file", t.meta.nbytes(), bytes.len());
                return Err(self.mismatch_error(key, name, &problem));
            }
            let Storage::Arena(extent) = t.home else { continue };
            read.push((*id, extent, bytes));
        }
        for (id, extent, bytes) in read {
            let target = self.state.arenas.bytes_mut(Extent { len: bytes.len(), ..extent })?;
            target.copy_from_slice(&bytes);
            if let Some(t) = self.state.values[id].tensor() {
                crate::convert::from_little_endian(target, t.meta.dtype());
            }
        }
        Ok(())
    }

    fn mismatch_error(&self, key: &str, file: &Path, problem: &str) -> Error {
        Error::Unsupported(format!(
            "method `{}` and the checkpoint {} do not belong together: `{key}` {problem}",
            self.name(),
            file.display()
        ))
    }

    /// The keys and value ids of the persistent tensors. Of several values at one arena offset, only one is listed.
    fn persistent_tensors(&self) -> Vec<(String, Id)> {
        let tables = self.program.tables();
        let starts_filled = |id: Id| {
            let value = self.meta().plan().values.get(id).and_then(pteron_format::pte::EValue::as_tensor);
            value.is_some_and(|t| {
                use pteron_format::pte::TensorData::{ExternalInitial, Initial};
                matches!(tables.tensor_data(t), Initial(_) | ExternalInitial(_))
            })
        };
        let def_use = DefUse::of(self.listing());
        // By arena and offset: the value that describes the tensor best. A named value is preferred over one with
        // initial values, and that over one that is only read first.
        let mut by_offset: BTreeMap<(usize, usize), (u8, Id)> = BTreeMap::new();
        for (id, value) in self.state.values.iter().enumerate() {
            let Some(t) = value.tensor() else { continue };
            let Storage::Arena(extent) = t.home else { continue };
            let rank = match (&t.name, starts_filled(id), def_use.is_read_first(id)) {
                (Some(_), ..) => 0,
                (_, true, _) => 1,
                (.., true) => 2,
                _ => continue,
            };
            let at = by_offset.entry((extent.arena, extent.offset)).or_insert((rank, id));
            *at = (*at).min((rank, id));
        }
        let mut persistent: Vec<(String, Id)> = by_offset
            .into_values()
            .map(|(_, id)| {
                let name = self.state.values[id].tensor().and_then(|t| t.name.as_deref());
                (name.map_or_else(|| format!("{}.value{id}", self.name()), str::to_owned), id)
            })
            .collect();
        persistent.sort_by_key(|(_, id)| *id);
        // To the exporter, two values with one name are the same tensor. The first value represents it.
        let mut keys = HashSet::new();
        persistent.retain(|(key, _)| keys.insert(key.clone()));
        persistent
    }
}
