use crate::budget::Reservation;
use crate::generation::Generation;
use pteron::ScalarType;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The elements of a tensor as bytes, row-major and little-endian, in any container.
pub type Data = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A request to execute a model once.
#[derive(Debug, Default)]
pub struct InferRequest {
    pub model: String,
    /// The version of the model; if empty, the highest that is ready.
    pub version: String,
    /// An id that is copied to the response.
    pub id: String,
    /// The inputs, in any order.
    pub inputs: Vec<InputTensor>,
    /// Inputs that are given as encoded pictures, besides those in `inputs`.
    pub pictures: Vec<PictureInput>,
    /// The requested outputs, in the order of the response; if empty, all of them.
    pub outputs: Vec<String>,
    /// The time after which the client no longer needs the result; `None` for the server's limit.
    pub deadline: Option<Instant>,
    /// The request's share of the memory budget ([`Service::hold`](crate::Service::hold)), which moves to the response.
    pub reservation: Option<Reservation>,
}

/// An input of a request.
pub struct InputTensor {
    /// The input's name in the model's metadata.
    pub name: String,
    /// The type of the elements.
    pub dtype: ScalarType,
    /// The input's sizes, outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements as bytes, row-major and little-endian.
    pub data: Data,
}

impl fmt::Debug for InputTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = (*self.data).as_ref().len();
        write!(f, "{}: {} {:?}, {bytes} bytes", self.name, self.dtype.name(), self.shape)
    }
}

/// An input of a request that is given as pictures, for a model whose task metadata says how pictures are preprocessed.
pub struct PictureInput {
    /// The input's name in the model's metadata.
    pub name: String,
    /// The files of the pictures: PNG, JPEG, WebP or BMP. Each makes a row of the input.
    pub files: Vec<Data>,
}

impl fmt::Debug for PictureInput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} pictures", self.name, self.files.len())
    }
}

/// The response to an inference request.
#[derive(Debug)]
pub struct InferResponse {
    pub model: String,
    /// The version of the model that was executed.
    pub version: String,
    /// The id that the request gave.
    pub id: String,
    /// The number of the generation that computed the outputs; every reload of the model gives a higher one.
    pub generation: u64,
    /// The requested outputs.
    pub outputs: Vec<OutputTensor>,
    /// The times that the request spent queued and executing.
    pub timing: Timing,
    /// The memory that the request and its response hold of the budget.
    pub reservation: Reservation,
    /// The model that computed the outputs.
    pub source: Arc<Generation>,
}

/// An output of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTensor {
    /// The output's name in the model's metadata.
    pub name: String,
    /// The type of the elements.
    pub dtype: ScalarType,
    /// The output's sizes, outermost dimension first.
    pub shape: Vec<usize>,
    /// The elements as bytes, row-major and little-endian.
    pub data: Vec<u8>,
}

/// The times that a request spent queued and executing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// The time that the request waited for a worker and for other requests to join the batch.
    pub queued: Duration,
    /// The time from the start of the batch until the result: to copy the inputs, execute, and copy the outputs.
    pub computed: Duration,
    /// The number of rows, without padding, of the batch that the request was executed in; 0 if it was executed alone.
    pub batch_rows: usize,
    /// Whether the request is the first of the batch that it was executed in; if it was executed alone, it is.
    pub is_first: bool,
}
