//! Inputs that are given as encoded pictures.

use crate::budget::Reservation;
use crate::check::no_tensor_error;
use crate::generation::Generation;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{InputTensor, PictureInput};
use pteron::tensor::TensorMeta;
use pteron::tools::picture::{self, Preparation};
use pteron::tools::task::Preprocessing;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Decodes pictures and preprocesses them as the task metadata of the model says. The tensor is charged to `reservation`,
/// and while a picture is decoded, its memory to `working`.
///
/// # Errors
/// The model has no such input, its metadata does not say how pictures are preprocessed, or something is no picture.
pub(crate) fn decode(
    generation: &Generation,
    input: PictureInput,
    reservation: &mut Reservation,
    mut working: Reservation,
) -> Result<InputTensor> {
    let PictureInput { name, files } = input;
    let spec = generation.inputs().find(|spec| spec.name == name);
    let spec = spec.ok_or_else(|| no_tensor_error("input", &name, generation.inputs().map(|s| &s.name)))?;
    let preprocessing = generation.task().and_then(|task| task.preprocessing.as_ref());
    let preparation = preprocessing.map(Preprocessing::preparation).ok_or_else(|| {
        Refusal::invalid(format!(
            "input `{name}`: the program does not say how pictures are preprocessed; send a tensor, or store it in \
             the program (pteron set-task)"
        ))
    })?;
    let (shape, one) = match spec.bounds[..] {
        [_, a, b, c] => (vec![files.len(), a, b, c], vec![1, a, b, c]),
        _ if files.len() == 1 => (spec.bounds.clone(), spec.bounds.clone()),
        _ => {
            let message = format!("input `{name}`: one picture is expected, {} were sent", files.len());
            return Err(Refusal::invalid(message));
        }
    };
    let bytes = spec.check(spec.dtype, &shape)?;
    reservation.grow(bytes as u64)?;
    let meta = TensorMeta::contiguous(spec.dtype, &one);
    let meta = meta.map_err(|e| Refusal::from_error(Reason::Invalid, &e))?;
    let mut data = Vec::new();
    let reserved = data.try_reserve_exact(bytes);
    reserved.map_err(|_| Refusal::new(Reason::Busy, "there is not enough memory; try again later"))?;
    let mut charged = 0;
    for (index, file) in files.iter().enumerate() {
        let label = match files.len() {
            1 => format!("the picture of input `{name}`"),
            _ => format!("picture {index} of input `{name}`"),
        };
        let needed = decoding_bytes(&label, (**file).as_ref(), &meta, &preparation)?;
        working.grow(u64::saturating_sub(needed, charged)).map_err(|mut refusal| {
            refusal.message = format!("{label} takes {needed} bytes to decode: {}", refusal.message);
            refusal
        })?;
        charged = charged.max(needed);
        decode_to(&mut data, &label, (**file).as_ref(), &meta, &preparation)?;
    }
    Ok(InputTensor { name, dtype: spec.dtype, shape, data: Box::new(data) })
}

fn decoding_bytes(label: &str, file: &[u8], meta: &TensorMeta, preparation: &Preparation) -> Result<u64> {
    catch(label, || picture::decoding_bytes(label, file, meta, preparation))
}

/// Appends the elements of a picture.
fn decode_to(
    data: &mut Vec<u8>,
    label: &str,
    file: &[u8],
    meta: &TensorMeta,
    preparation: &Preparation,
) -> Result<()> {
    let tensor = catch(label, || picture::decode(label, file, meta, preparation))?;
    data.extend_from_slice(tensor.view().bytes());
    Ok(())
}

/// Runs a decoder: an error or a panic is one of the picture.
fn catch<T>(label: &str, work: impl FnOnce() -> pteron::tools::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(result) => result.map_err(|e| Refusal::from_error(Reason::Invalid, &e)),
        Err(_) => Err(Refusal::new(Reason::Failed, format!("{label} makes its decoder panic"))),
    }
}
