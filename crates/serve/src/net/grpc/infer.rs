//! Inference requests and responses.

use super::super::body::Reply;
use super::super::classes::classify;
use super::super::log::Entry;
use super::super::messages::{self as m, ParameterChoice};
use super::super::protocol::parse_dtype;
use super::super::shared::Shared;
use super::super::{contents, elements, json};
use super::{decode_message, encode_message};
use crate::budget::Reservation;
use crate::refusal::{Reason, Refusal, Result};
use crate::request::{Data, InferRequest, InferResponse, InputTensor, PictureInput};
use bytes::Bytes;
use hyper::Response;
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

/// Answers an inference request.
pub(super) async fn answer(
    shared: &Arc<Shared>,
    message: Bytes,
    deadline: Option<Instant>,
    mut reservation: Reservation,
    entry: &mut Entry,
) -> Result<Response<Reply>> {
    let call: m::InferRequest = decode_message(&message, &mut reservation)?;
    entry.line.model = Some(call.model_name.chars().take(128).collect());
    // Raw contents are not converted, so they do not count.
    let heavy = call.inputs.iter().filter_map(|input| Some(input.contents.as_ref()?.len())).sum();
    let (request, classes) =
        shared.run_blocking(heavy, move || to_request(call, deadline, reservation)).await?;
    let response = shared.infer(request).await?;
    entry.set_timing(&response.timing);
    let size = response.outputs.iter().map(|output| output.data.len()).sum();
    shared.run_blocking(size, move || to_response(response, &classes)).await
}

/// Converts a message to a request. Also returns, for each requested output in order, as how many classes it is sent; 0 for
/// a tensor.
fn to_request(
    call: m::InferRequest,
    deadline: Option<Instant>,
    mut reservation: Reservation,
) -> Result<(InferRequest, Vec<u64>)> {
    let raw = call.raw_input_contents;
    if !raw.is_empty() && raw.len() != call.inputs.len() {
        return Err(Refusal::invalid(format!("{} raw contents for {} inputs", raw.len(), call.inputs.len())));
    }
    let mut raw = raw.into_iter();
    let (mut inputs, mut pictures) = (Vec::with_capacity(call.inputs.len()), Vec::new());
    for input in call.inputs {
        match input.datatype == elements::BYTES {
            true => pictures.push(to_picture_input(input, raw.next(), &mut reservation)?),
            false => inputs.push(to_input_tensor(input, raw.next(), &mut reservation)?),
        }
    }
    let own = match call.parameters.get("timeout").and_then(|parameter| parameter.choice.as_ref()) {
        Some(&ParameterChoice::Int64(time)) => json::deadline(u64::try_from(time).unwrap_or(0)),
        Some(&ParameterChoice::Uint64(time)) => json::deadline(time),
        _ => None,
    };
    for output in &call.outputs {
        refuse_unsupported(&output.name, &output.parameters)?;
    }
    let classes = call.outputs.iter().map(|output| classes_of_output(&output.parameters)).collect();
    let request = InferRequest {
        model: call.model_name,
        version: call.model_version,
        id: call.id,
        inputs,
        pictures,
        outputs: call.outputs.into_iter().map(|output| output.name).collect(),
        deadline: [deadline, own].into_iter().flatten().min(),
        reservation: Some(reservation),
    };
    Ok((request, classes))
}

/// As how many classes an output is sent; 0 for a tensor.
fn classes_of_output(parameters: &HashMap<String, m::Parameter>) -> u64 {
    match parameters.get("classification").and_then(|parameter| parameter.choice.as_ref()) {
        Some(&ParameterChoice::Int64(count)) => u64::try_from(count).unwrap_or(0),
        Some(&ParameterChoice::Uint64(count)) => count,
        _ => 0,
    }
}

fn refuse_unsupported(name: &str, parameters: &HashMap<String, m::Parameter>) -> Result<()> {
    match parameters.contains_key("shared_memory_region") {
        true => Err(Refusal::new(Reason::Unsupported, format!("`{name}`: shared memory is not supported"))),
        false => Ok(()),
    }
}

/// Reads an input of type `BYTES`, which are pictures.
fn to_picture_input(
    input: m::InputTensor,
    raw: Option<Bytes>,
    reservation: &mut Reservation,
) -> Result<PictureInput> {
    let m::InputTensor { name, shape, parameters, contents, .. } = input;
    refuse_unsupported(&name, &parameters)?;
    let at_input =
        |refusal: Refusal| Refusal::new(refusal.reason, format!("input `{name}`: {}", refusal.message));
    let count = shape.iter().try_fold(1usize, |n, &size| n.checked_mul(usize::try_from(size).ok()?));
    let count = count.ok_or_else(|| at_input(Refusal::invalid("its shape has no number of elements")))?;
    let files = match (raw, contents) {
        (Some(raw), contents) if contents.as_ref().is_none_or(Bytes::is_empty) => {
            elements::split(raw, reservation).map_err(at_input)?
        }
        (Some(_), _) => {
            return Err(at_input(Refusal::invalid("both contents and raw contents were sent")));
        }
        (None, contents) => contents::files(contents.unwrap_or_default(), reservation).map_err(at_input)?,
    };
    elements::to_picture_input(name.clone(), count, files).map_err(at_input)
}

fn to_input_tensor(
    input: m::InputTensor,
    raw: Option<Bytes>,
    reservation: &mut Reservation,
) -> Result<InputTensor> {
    let m::InputTensor { name, datatype, shape, parameters, contents } = input;
    refuse_unsupported(&name, &parameters)?;
    let at_input =
        |refusal: Refusal| Refusal::new(refusal.reason, format!("input `{name}`: {}", refusal.message));
    let dtype = parse_dtype(&datatype).map_err(at_input)?;
    let shape = shape.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
    let shape = shape.ok_or_else(|| at_input(Refusal::invalid("a size is negative")))?;
    let data: Data = match (raw, contents) {
        // An empty message is as good as none.
        (Some(raw), contents) if contents.as_ref().is_none_or(Bytes::is_empty) => Box::new(raw),
        (Some(_), _) => {
            return Err(at_input(Refusal::invalid("both contents and raw contents were sent")));
        }
        (None, contents) => {
            let contents = contents.unwrap_or_default();
            // An element of eight bytes may be encoded in one, and vectors grow by doubling.
            reservation.grow(contents.len() as u64 * 16)?;
            Box::new(contents::elements(contents, dtype).map_err(at_input)?)
        }
    };
    Ok(InputTensor { name, dtype, shape, data })
}

fn to_response(response: InferResponse, classes: &[u64]) -> Result<Response<Reply>> {
    let InferResponse { model, version, id, generation, outputs, reservation, source, .. } = response;
    let (outputs, reservation) = classify(outputs, classes, source.task(), reservation)?;
    let generation = m::Parameter { choice: Some(ParameterChoice::Uint64(generation)) };
    let mut answer = m::InferResponse {
        model_name: model,
        model_version: version,
        id,
        parameters: HashMap::from([("generation".to_owned(), generation)]),
        ..m::InferResponse::default()
    };
    for mut output in outputs {
        answer.outputs.push(m::OutputTensor {
            name: output.name().to_owned(),
            datatype: output.datatype().to_owned(),
            shape: output.shape().iter().map(|&size| i64::try_from(size).unwrap_or(i64::MAX)).collect(),
        });
        answer.raw_output_contents.push(output.take_data().into());
    }
    encode_message(&answer, reservation)
}
