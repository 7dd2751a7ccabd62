//! Tensors that are stored outside the program.

use crate::open::tensor_meta;
use crate::plan::Id;
use crate::{Error, FreeableBuffer, MethodMeta, NamedDataMap, Program, Result, one_line};
use pteron_format::pte;
use pteron_tensor::TensorMeta;

/// Checks that named data fits a plan: it has every tensor that the plan stores outside the program, with the type and
/// shape that the plan declares.
pub(crate) fn check_data(program: &Program, plan: usize, data: &dyn NamedDataMap) -> Result<()> {
    let meta = MethodMeta::new(program, plan);
    check_present(meta, Some(data))?;
    for (id, value) in meta.plan().values.iter().enumerate() {
        if let Some(t) = value.as_tensor().filter(|t| t.is_external()) {
            let key = t.fully_qualified_name().unwrap_or("");
            let tensor = tensor_meta(t)?;
            // A matching layout determines the number of bytes. A blob has no layout, so its length is checked.
            if !(External { method: meta.name(), id, meta: &tensor }).check_layout(key, data)? {
                external_bytes(meta.name(), id, key, &tensor, Some(data))?;
            }
        }
    }
    Ok(())
}

/// Fails if external tensors of the method have no data. The error gives the number of their keys and the first one.
pub(super) fn check_present(meta: MethodMeta<'_>, data: Option<&dyn NamedDataMap>) -> Result<()> {
    let values = meta.plan().values.iter();
    let external = values.filter_map(pte::EValue::as_tensor).filter(|t| t.is_external());
    let keys = external.map(|t| t.fully_qualified_name().unwrap_or(""));
    let mut missing: Vec<&str> = keys.filter(|key| !data.is_some_and(|d| d.contains(key))).collect();
    missing.sort_unstable();
    missing.dedup();
    let Some(first) = missing.first() else { return Ok(()) };
    let problem = match data {
        None => "no data file was given; give the `.ptd` file that was exported with the program".to_owned(),
        Some(data) => format!("{} does not hold them", data.name()),
    };
    Err(Error::ExternalData {
        method: meta.name().to_owned(),
        count: missing.len(),
        key: (*first).to_owned(),
        problem,
    })
}

/// The bytes of an external tensor. Fails if the data's layout or length is not that in the program.
pub(super) fn external_bytes(
    method: &str,
    id: Id,
    key: &str,
    meta: &TensorMeta,
    data: Option<&dyn NamedDataMap>,
) -> Result<FreeableBuffer> {
    let place = External { method, id, meta };
    let data = data.ok_or_else(|| place.error("no data file was given"))?;
    place.check_layout(key, data)?;
    let bytes = data.data(key).map_err(|e| place.error(one_line(&e)))?;
    if bytes.len() != meta.nbytes() {
        return Err(place.error(format!(
            "`{key}` is {} bytes in the program and {} in {}",
            meta.nbytes(),
            bytes.len(),
            data.name()
        )));
    }
    Ok(bytes)
}

/// A tensor of a method that is stored outside the program.
pub(super) struct External<'a> {
    pub(super) method: &'a str,
    pub(super) id: Id,
    pub(super) meta: &'a TensorMeta,
}

impl External<'_> {
    /// Returns whether the data knows the tensor's layout. Fails if that layout differs from the program's.
    pub(super) fn check_layout(&self, key: &str, data: &dyn NamedDataMap) -> Result<bool> {
        let Some(layout) = data.tensor_layout(key).map_err(|e| self.error(one_line(&e)))? else {
            return Ok(false);
        };
        let meta = self.meta;
        let same = layout.dtype() == meta.dtype()
            && layout.sizes() == meta.sizes()
            && layout.dim_order().same_layout(meta.dim_order(), meta.sizes());
        if same {
            return Ok(true);
        }
        Err(self.error(format!(
            "`{key}` is {meta} in the program and {layout} in {}: the files do not belong together",
            data.name()
        )))
    }

    fn error(&self, problem: impl Into<String>) -> Error {
        let place = format!("value {} ({}, stored outside the program)", self.id, self.meta);
        Error::Load { method: self.method.to_owned(), place, problem: problem.into() }
    }
}
