//! Triton's classification extension: an output as the largest elements of each row, as texts.

use super::elements::BYTES;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::datatype;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::OutputTensor;
use pteron::tensor::{Tensor, TensorMeta};
use pteron::tools::run;
use pteron::tools::task::TaskMetadata;

/// An output as it is sent.
pub(super) enum SentOutput {
    Tensor(OutputTensor),
    Classes(Classes),
}

/// The classes of an output, as a tensor of `BYTES`.
pub(super) struct Classes {
    name: String,
    /// The output's sizes, but the last one, which is the number of classes.
    shape: Vec<usize>,
    /// Each element is preceded by its length, four bytes, little-endian.
    data: Vec<u8>,
}

impl SentOutput {
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Tensor(tensor) => &tensor.name,
            Self::Classes(classes) => &classes.name,
        }
    }

    pub(super) fn datatype(&self) -> &'static str {
        match self {
            Self::Tensor(tensor) => datatype::name(tensor.dtype).unwrap_or_default(),
            Self::Classes(_) => BYTES,
        }
    }

    pub(super) fn shape(&self) -> &[usize] {
        match self {
            Self::Tensor(tensor) => &tensor.shape,
            Self::Classes(classes) => &classes.shape,
        }
    }

    pub(super) fn data(&self) -> &[u8] {
        match self {
            Self::Tensor(tensor) => &tensor.data,
            Self::Classes(classes) => &classes.data,
        }
    }

    /// Takes the bytes of the elements.
    pub(super) fn take_data(&mut self) -> Vec<u8> {
        match self {
            Self::Tensor(tensor) => std::mem::take(&mut tensor.data),
            Self::Classes(classes) => std::mem::take(&mut classes.data),
        }
    }
}

impl Classes {
    /// The texts of the elements.
    pub(super) fn texts(&self) -> impl Iterator<Item = &str> {
        let mut rest = &self.data[..];
        std::iter::from_fn(move || {
            let (len, after) = rest.split_first_chunk::<4>()?;
            let (text, after) = after.split_at_checked(u32::from_le_bytes(*len) as usize)?;
            rest = after;
            str::from_utf8(text).ok()
        })
    }
}

/// The outputs as they are sent: for each in order, a number above 0 in `classes` replaces it by that many classes of
/// each row. Their memory is charged to `reservation`.
pub(super) fn classify(
    outputs: Vec<OutputTensor>,
    classes: &[u64],
    task: Option<&TaskMetadata>,
    mut reservation: Reservation,
) -> Result<(Vec<SentOutput>, Reservation)> {
    let mut sent = Vec::with_capacity(outputs.len());
    for (i, output) in outputs.into_iter().enumerate() {
        sent.push(match classes.get(i) {
            None | Some(0) => SentOutput::Tensor(output),
            Some(&count) => {
                let (classes, left) = classes_of(output, count, task, reservation)?;
                reservation = left;
                SentOutput::Classes(classes)
            }
        });
    }
    Ok((sent, reservation))
}

/// The `count` largest elements along the last dimension, for every row, in descending order: `VALUE:INDEX`, or
/// `VALUE:INDEX:LABEL` if the task metadata has labels for them.
fn classes_of(
    output: OutputTensor,
    count: u64,
    task: Option<&TaskMetadata>,
    mut reservation: Reservation,
) -> Result<(Classes, Reservation)> {
    let OutputTensor { name, dtype, mut shape, data } = output;
    let failed = |e: &dyn std::error::Error| {
        let refusal = Refusal::from_error(Reason::Invalid, e);
        Refusal::invalid(format!("output `{name}`: classification: {}", refusal.message))
    };
    let width = shape.last().copied().unwrap_or(1);
    let each = usize::try_from(count).unwrap_or(usize::MAX).min(width);
    let rows: usize = shape.iter().rev().skip(1).product();
    // The tensor, which is copied in `top_k`, too, and the classes before they are texts.
    let working = (data.len() as u64).saturating_mul(2) + (rows * each + each + 1) as u64 * 64;
    reservation.grow(working)?;
    let mut tensor = TensorMeta::contiguous(dtype, &shape).and_then(Tensor::zeros).map_err(|e| failed(&e))?;
    tensor.view_mut().bytes_mut().copy_from_slice(&data);
    drop(data);
    let labels = task.map_or(&[][..], |task| task.labels_of(&tensor));
    let top = run::top_k(&tensor, each, labels).map_err(|e| failed(&e))?;
    let mut out = Buffer::new(reservation);
    for class in top.rows().flatten().filter(|_| width > 0) {
        let value = match dtype.is_floating() {
            true => format!("{:.6}", class.value),
            false => class.value.to_string(),
        };
        let text = match class.label {
            Some(label) => format!("{value}:{}:{label}", class.index),
            None => format!("{value}:{}", class.index),
        };
        let len = u32::try_from(text.len()).map_err(|e| failed(&e))?;
        out.push(&len.to_le_bytes())?;
        out.push(text.as_bytes())?;
    }
    match shape.last_mut() {
        Some(last) => *last = each,
        None => shape.push(1),
    }
    let (data, reservation) = out.finish()?;
    Ok((Classes { name, shape, data }, reservation))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::Budget;
    use pteron::ScalarType;

    fn texts(
        dtype: ScalarType,
        shape: &[usize],
        data: Vec<u8>,
        count: u64,
        task: &str,
    ) -> (Vec<usize>, Vec<String>) {
        let task = TaskMetadata::parse(task).unwrap();
        let output = OutputTensor { name: "y".to_owned(), dtype, shape: shape.to_vec(), data };
        let reservation = Reservation::empty(&Budget::new(1 << 20));
        let (sent, _) = classify(vec![output], &[count], Some(&task), reservation).unwrap();
        let [SentOutput::Classes(classes)] = &sent[..] else { panic!("no classes") };
        (classes.shape.clone(), classes.texts().map(str::to_owned).collect())
    }

    #[test]
    fn classes_are_the_largest_of_each_row() {
        let floats: Vec<u8> =
            [0.25f32, 2.0, -1.0, 7.5, f32::NAN, 8.0].into_iter().flat_map(f32::to_le_bytes).collect();
        let (shape, found) =
            texts(ScalarType::Float, &[2, 3], floats.clone(), 2, r#"{"labels": ["a", "b:c", "d"]}"#);
        assert_eq!(shape, [2, 2]);
        assert_eq!(found, ["2.000000:1:b:c", "0.250000:0:a", "8.000000:2:d", "7.500000:0:a"]);
        // Labels of another number of classes are left out; a larger number of classes means all of them.
        let (shape, found) = texts(ScalarType::Float, &[6], floats, 100, r#"{"labels": ["a"]}"#);
        assert_eq!((shape, found.len(), &*found[0]), (vec![6], 6, "8.000000:5"));
        let (shape, found) = texts(ScalarType::Byte, &[], vec![9], 5, "{}");
        assert_eq!((shape, found), (vec![1], vec!["9:0".to_owned()]));
        assert_eq!(texts(ScalarType::Byte, &[0, 3], vec![], 5, "{}").1.len(), 0);
        assert_eq!(texts(ScalarType::Byte, &[3, 0], vec![], 5, "{}"), (vec![3, 0], vec![]));
    }
}
