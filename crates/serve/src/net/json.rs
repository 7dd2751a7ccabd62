//! Inference requests and responses over REST: JSON, followed by the bytes of tensors if the binary extension is used.

use super::classes::{SentOutput, classify};
use super::elements::{self, BYTES, MAX_PICTURES};
use super::numbers;
use super::protocol::parse_dtype;
use crate::budget::Reservation;
use crate::buffer::Buffer;
use crate::refusal::{Reason, Refusal, Result};
use crate::repository::or_default;
use crate::request::{InferRequest, InferResponse, InputTensor, PictureInput};
use bytes::Bytes;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;
use std::time::{Duration, Instant};

#[derive(Deserialize)]
struct Request<'a> {
    #[serde(default, borrow, deserialize_with = "or_default")]
    id: Text<'a>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    #[serde(borrow)]
    inputs: BoundedList<Input<'a>, MAX_TENSORS>,
    #[serde(default, borrow, deserialize_with = "or_default")]
    outputs: BoundedList<Output<'a>, MAX_TENSORS>,
}

/// The maximum number of inputs of a request, and the maximum number of its outputs.
const MAX_TENSORS: usize = 4096;
/// The maximum number of dimensions of a shape.
const MAX_DIMENSIONS: usize = 64;

/// The maximum memory, in bytes, of a parsed object, without its texts and the elements of a tensor.
const OBJECT_BYTES: u64 = 1 << 10;

/// The memory that a text takes when it is parsed, besides the elements of tensors: there are no more objects than
/// braces, and texts are copied only if they have escapes.
fn parsed_bytes(text: &[u8]) -> u64 {
    let objects = text.iter().filter(|&&c| c == b'{').count() as u64;
    let texts = if text.contains(&b'\\') { text.len() as u64 } else { 0 };
    objects * OBJECT_BYTES + texts
}

/// A JSON string, borrowed unless it has escapes.
#[derive(Default, Deserialize)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// A list that fails to parse if it has more than `N` items.
struct BoundedList<T, const N: usize>(Vec<T>);

impl<T, const N: usize> Default for BoundedList<T, N> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>, const N: usize> Deserialize<'de> for BoundedList<T, N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(Items(PhantomData))
    }
}

struct Items<T, const N: usize>(PhantomData<T>);

impl<'de, T: Deserialize<'de>, const N: usize> Visitor<'de> for Items<T, N> {
    type Value = BoundedList<T, N>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a list of at most {N} items")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element()? {
            if list.len() == N {
                return Err(de::Error::invalid_length(N + 1, &self));
            }
            list.push(item);
        }
        Ok(BoundedList(list))
    }
}

#[derive(Deserialize)]
struct Input<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    shape: BoundedList<u64, MAX_DIMENSIONS>,
    #[serde(borrow)]
    datatype: Cow<'a, str>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Output<'a> {
    #[serde(borrow)]
    name: Cow<'a, str>,
    #[serde(default, deserialize_with = "or_default")]
    parameters: Parameters,
}

/// The parameters of a request or tensor that are known here; others are ignored, as the protocol requires.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Parameters {
    binary_data_size: Option<usize>,
    binary_data: Option<bool>,
    binary_data_output: Option<bool>,
    /// The timeout of the request, in microseconds.
    timeout: Option<u64>,
    classification: Option<u64>,
    shared_memory_region: Option<serde::de::IgnoredAny>,
}

/// A request, and how its outputs are sent.
pub(super) struct Parsed {
    pub(super) request: InferRequest,
    pub(super) binary: Binary,
    /// For each requested output in order, as how many classes it is sent; 0 for a tensor.
    pub(super) classes: Vec<u64>,
}

/// An input of a request.
enum ParsedInput {
    Tensor(InputTensor),
    Pictures(PictureInput),
}

/// Which outputs are sent as binary data after the JSON.
pub(super) struct Binary {
    all: bool,
    /// For each requested output in order, whether it is sent as binary data; `None` for the request's default.
    each: Vec<Option<bool>>,
}

impl Binary {
    fn is_binary(&self, index: usize) -> bool {
        self.each.get(index).copied().flatten().unwrap_or(self.all)
    }
}

/// Parses a request for a model. The first `header` bytes of the body are JSON.
pub(super) fn read_request(
    body: &Bytes,
    header: usize,
    model: String,
    version: String,
    mut reservation: Reservation,
) -> Result<Parsed> {
    let bad = |e: serde_json::Error| Refusal::invalid(format!("the request is no inference request: {e}"));
    reservation.grow(parsed_bytes(&body[..header]))?;
    let request: Request<'_> = serde_json::from_slice(&body[..header]).map_err(bad)?;
    reservation.grow(request.id.0.len() as u64)?;
    let mut at = header;
    let (mut inputs, mut pictures) = (Vec::with_capacity(request.inputs.0.len()), Vec::new());
    for input in request.inputs.0 {
        match read_input(input, body, &mut at, &mut reservation)? {
            ParsedInput::Tensor(tensor) => inputs.push(tensor),
            ParsedInput::Pictures(input) => pictures.push(input),
        }
    }
    if at != body.len() {
        let left = body.len() - at;
        return Err(Refusal::invalid(format!(
            "{left} bytes behind the JSON belong to no input (`binary_data_size`)"
        )));
    }
    for output in &request.outputs.0 {
        refuse_unsupported(&output.parameters, &output.name)?;
    }
    let binary = Binary {
        all: request.parameters.binary_data_output.unwrap_or(false),
        each: request.outputs.0.iter().map(|output| output.parameters.binary_data).collect(),
    };
    let classes =
        request.outputs.0.iter().map(|output| output.parameters.classification.unwrap_or(0)).collect();
    let request = InferRequest {
        model,
        version,
        id: request.id.0.into_owned(),
        inputs,
        pictures,
        outputs: request.outputs.0.into_iter().map(|output| output.name.into_owned()).collect(),
        deadline: request.parameters.timeout.and_then(deadline),
        reservation: Some(reservation),
    };
    Ok(Parsed { request, binary, classes })
}

/// The deadline of a request that may take `microseconds`; `None` for 0, which means the server's limit.
pub(super) fn deadline(microseconds: u64) -> Option<Instant> {
    Instant::now().checked_add(Duration::from_micros(microseconds)).filter(|_| microseconds > 0)
}

fn refuse_unsupported(parameters: &Parameters, name: &str) -> Result<()> {
    match parameters.shared_memory_region {
        None => Ok(()),
        Some(_) => {
            Err(Refusal::new(Reason::Unsupported, format!("`{name}`: shared memory is not supported")))
        }
    }
}

fn read_input(
    input: Input<'_>,
    body: &Bytes,
    at: &mut usize,
    reservation: &mut Reservation,
) -> Result<ParsedInput> {
    let Input { name, shape, datatype, parameters, data } = input;
    refuse_unsupported(&parameters, &name)?;
    let at_input =
        |refusal: Refusal| Refusal::new(refusal.reason, format!("input `{name}`: {}", refusal.message));
    let dtype = if datatype == BYTES { None } else { Some(parse_dtype(&datatype).map_err(at_input)?) };
    let shape = shape.0.iter().map(|&size| usize::try_from(size).ok()).collect::<Option<Vec<_>>>();
    let (shape, count) = shape
        .and_then(|shape| Some((shape.iter().try_fold(1usize, |n, &size| n.checked_mul(size))?, shape)))
        .map(|(count, shape)| (shape, count))
        .ok_or_else(|| at_input(Refusal::invalid("the number of elements of the shape exceeds 64 bits")))?;
    let data: crate::Data = match (parameters.binary_data_size, data, dtype) {
        (Some(bytes), None, _) => {
            let end = at.checked_add(bytes).filter(|&end| end <= body.len());
            let end =
                end.ok_or_else(|| at_input(Refusal::invalid("the body ends before its binary data")))?;
            let data = body.slice(*at..end);
            *at = end;
            if dtype.is_none() {
                let files = elements::split(data, reservation).map_err(at_input)?;
                let input = elements::to_picture_input(name.clone().into_owned(), count, files);
                return input.map(ParsedInput::Pictures).map_err(at_input);
            }
            Box::new(data)
        }
        (None, Some(data), None) => {
            let texts: Result<BoundedList<Text<'_>, MAX_PICTURES>, _> = serde_json::from_str(data.get());
            let texts = texts.map_err(|e| at_input(Refusal::invalid(format!("data: {e}"))))?;
            let texts = texts.0.iter().map(|text| &*text.0);
            let files = elements::decode_texts(texts, reservation).map_err(at_input)?;
            let input = elements::to_picture_input(name.clone().into_owned(), count, files);
            return input.map(ParsedInput::Pictures).map_err(at_input);
        }
        (None, Some(data), Some(dtype)) => {
            // Check before allocating: the text has at least one character per element.
            if count > data.get().len() {
                return Err(at_input(Refusal::invalid(format!(
                    "data: fewer elements than the shape's {count}"
                ))));
            }
            reservation.grow((count * dtype.size()) as u64)?;
            Box::new(numbers::read(data.get(), dtype, count).map_err(at_input)?)
        }
        _ => {
            return Err(at_input(Refusal::invalid(
                "either `data` or the parameter `binary_data_size` is needed",
            )));
        }
    };
    let Some(dtype) = dtype else {
        return Err(at_input(Refusal::invalid("it has no elements")));
    };
    Ok(ParsedInput::Tensor(InputTensor { name: name.into_owned(), dtype, shape, data }))
}

/// The maximum size in bytes of the body of a request to list, load or unload models.
pub(super) const MAX_CONTROL: u64 = 64 << 10;

/// The body of a request to list, load or unload models.
#[derive(Default, Deserialize)]
#[serde(default)]
pub(super) struct Control<'a> {
    /// Whether only models that are ready are to be listed.
    #[serde(deserialize_with = "or_default")]
    pub(super) ready: bool,
    #[serde(borrow)]
    parameters: Option<&'a RawValue>,
}

impl<'a> Control<'a> {
    /// Parses a body; an empty one gives the default values.
    pub(super) fn read(body: &'a [u8]) -> Result<Self> {
        if body.is_empty() {
            return Ok(Self::default());
        }
        let read: Option<Self> =
            serde_json::from_slice(body).map_err(|e| Refusal::invalid(format!("the body: {e}")))?;
        Ok(read.unwrap_or_default())
    }

    /// Whether the request has parameters.
    pub(super) fn has_parameters(&self) -> bool {
        let text = self.parameters.map_or("", RawValue::get);
        let inside = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')).unwrap_or(text);
        !inside.trim().is_empty()
    }
}

#[derive(Serialize)]
struct OutputHead<'a> {
    name: &'a str,
    datatype: &'a str,
    shape: &'a [usize],
    #[serde(skip_serializing_if = "Option::is_none")]
    parameters: Option<BinarySize>,
}

#[derive(Serialize)]
struct BinarySize {
    binary_data_size: usize,
}

/// The fields of an inference response that come before its outputs.
#[derive(Serialize)]
struct ResponseHead<'a> {
    model_name: &'a str,
    model_version: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    id: &'a str,
    parameters: ResponseParameters,
}

#[derive(Serialize)]
struct ResponseParameters {
    generation: u64,
}

/// Writes a response as JSON followed by binary data. Also returns the number of bytes of JSON.
pub(super) fn write_response(
    response: InferResponse,
    binary: &Binary,
    classes: &[u64],
) -> Result<(Vec<u8>, usize, Reservation)> {
    let InferResponse { model, version, id, generation, outputs, reservation, source, .. } = response;
    let (outputs, reservation) = classify(outputs, classes, source.task(), reservation)?;
    let mut out = Buffer::new(reservation);
    let parameters = ResponseParameters { generation };
    out.write_json(&ResponseHead { model_name: &model, model_version: &version, id: &id, parameters })?;
    out.pop();
    out.push(b",\"outputs\":[")?;
    for (i, output) in outputs.iter().enumerate() {
        if i > 0 {
            out.push(b",")?;
        }
        let is_binary = binary.is_binary(i);
        let parameters = is_binary.then_some(BinarySize { binary_data_size: output.data().len() });
        let (name, datatype, shape) = (output.name(), output.datatype(), output.shape());
        out.write_json(&OutputHead { name, datatype, shape, parameters })?;
        if !is_binary {
            out.pop();
            out.push(b",\"data\":")?;
            write_data(&mut out, output)?;
            out.push(b"}")?;
        }
    }
    out.push(b"]}")?;
    let header = out.len();
    for (i, output) in outputs.iter().enumerate() {
        if binary.is_binary(i) {
            out.push(output.data())?;
        }
    }
    let (bytes, reservation) = out.finish()?;
    Ok((bytes, header, reservation))
}

/// Writes the elements of an output as a JSON list.
fn write_data(out: &mut Buffer, output: &SentOutput) -> Result<()> {
    let classes = match output {
        SentOutput::Tensor(tensor) => return numbers::write(out, tensor),
        SentOutput::Classes(classes) => classes,
    };
    out.push(b"[")?;
    for (i, text) in classes.texts().enumerate() {
        if i > 0 {
            out.push(b",")?;
        }
        out.write_json(&text)?;
    }
    out.push(b"]")
}
