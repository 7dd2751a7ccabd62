//! What the models are, and how they have been used.

use super::{Models, State};
#[cfg(feature = "net")]
use super::{no_model_error, no_version_error};
use crate::guard::catch_panics;
use crate::metrics::ModelMetrics;
#[cfg(feature = "net")]
use crate::metrics::Totals;
use crate::refusal::Result;
#[cfg(feature = "net")]
use std::collections::BTreeMap;
use std::collections::BTreeSet;
use std::sync::Arc;

/// An entry of the repository index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexEntry {
    /// The name of the model.
    pub name: String,
    /// The version of the model as text; empty if the model was never loaded.
    pub version: String,
    /// Whether the model answers requests: it is loaded, or is loaded by its next request.
    pub is_ready: bool,
    /// Why the model is not loaded; empty if it is.
    pub reason: String,
}

impl Models {
    /// Calls `each` with every version of every model, including models in the folder that were never loaded.
    ///
    /// # Errors
    /// `each` fails.
    pub(crate) fn for_each_version(&self, mut each: impl FnMut(IndexEntry) -> Result<()>) -> Result<()> {
        let models = self.read();
        for (name, versions) in models.iter() {
            for (version, entry) in versions {
                let (is_ready, reason) = match &entry.state {
                    State::Ready(_) => (true, String::new()),
                    State::OnDemand(_) => (true, "not loaded; its next request loads it".to_owned()),
                    State::Failed(why) => (false, why.clone()),
                    State::Unloaded => (false, "unloaded".to_owned()),
                };
                each(IndexEntry { name: name.clone(), version: version.to_string(), is_ready, reason })?;
            }
        }
        let known: BTreeSet<String> = models.keys().cloned().collect();
        drop(models);
        let scanned = catch_panics(|| self.repository.scan()).unwrap_or_default();
        for name in scanned.into_keys().filter(|name| !known.contains(name)) {
            let reason = "not loaded".to_owned();
            each(IndexEntry { name, version: String::new(), is_ready: false, reason })?;
        }
        Ok(())
    }

    /// The numbers of the versions of a model that answer requests.
    pub(crate) fn versions(&self, name: &str) -> Vec<String> {
        let models = self.read();
        let available = models.get(name).into_iter().flatten().filter(|(_, entry)| entry.is_available());
        available.map(|(version, _)| version.to_string()).collect()
    }

    /// Calls `each` with the sums of a version of a model: of all its versions if `version` is empty, and of all models
    /// if `name` is.
    ///
    /// # Errors
    /// There is no such model or version, or `each` fails.
    #[cfg(feature = "net")]
    pub(crate) fn for_each_totals(
        &self,
        (name, version): (&str, &str),
        mut each: impl FnMut(&str, u64, &Totals) -> Result<()>,
    ) -> Result<()> {
        let models = self.read();
        let (mut has_model, mut has_version) = (name.is_empty(), version.is_empty());
        for (own, versions) in models.iter().filter(|(own, _)| name.is_empty() || *own == name) {
            has_model = true;
            for (number, entry) in versions {
                if version.is_empty() || version.parse() == Ok(*number) {
                    has_version = true;
                    each(own, *number, &entry.metrics.totals())?;
                }
            }
        }
        match (has_model, has_version) {
            (true, true) => Ok(()),
            (true, false) => {
                let there = models.get(name).into_iter().flat_map(BTreeMap::keys);
                Err(no_version_error(name, version, there))
            }
            (false, _) => Err(no_model_error(name)),
        }
    }

    /// The metrics of every version, with their labels.
    pub(crate) fn metrics(&self) -> Vec<(String, Arc<ModelMetrics>)> {
        let models = self.read();
        let versions = models.iter().flat_map(|(name, versions)| versions.iter().map(move |v| (name, v)));
        let labelled = versions.map(|(name, (version, entry))| {
            (format!("model=\"{name}\",version=\"{version}\""), Arc::clone(&entry.metrics))
        });
        labelled.collect()
    }
}
