use crate::budget::Held;
use pteron::ScalarType;
use std::fmt;
use std::time::{Duration, Instant};

/// The bytes of a tensor, wherever they are: row-major, little-endian.
pub type Data = Box<dyn AsRef<[u8]> + Send + Sync>;

/// A request for one execution of a model.
#[derive(Debug, Default)]
pub struct InferRequest {
    /// The model.
    pub model: String,
    /// Its version; the highest that is ready if it is empty.
    pub version: String,
    /// Given back with the response.
    pub id: String,
    /// The inputs, in any order.
    pub inputs: Vec<InputTensor>,
    /// The outputs that are wanted, in the order of the response; all of them if empty.
    pub outputs: Vec<String>,
    /// When the result is of no more use.
    pub deadline: Option<Instant>,
    /// What the request holds of the server's memory ([`Service::hold`](crate::Service::hold)), given back with the response.
    pub held: Option<Held>,
}

/// An input of a request.
pub struct InputTensor {
    /// Its name in the model's metadata.
    pub name: String,
    /// The type of its elements.
    pub dtype: ScalarType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its elements.
    pub data: Data,
}

impl fmt::Debug for InputTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bytes = (*self.data).as_ref().len();
        write!(f, "{}: {} {:?}, {bytes} bytes", self.name, self.dtype.name(), self.shape)
    }
}

/// What an execution gave.
#[derive(Debug)]
pub struct InferResponse {
    /// The model.
    pub model: String,
    /// The version that was executed.
    pub version: String,
    /// The request's id.
    pub id: String,
    /// Which load of this version computed the outputs, all of them: it grows with every swap.
    pub generation: u64,
    /// The outputs that were asked for.
    pub outputs: Vec<OutputTensor>,
    /// Where the time went.
    pub timing: Timing,
    /// What request and response hold of the server's memory.
    pub held: Held,
}

/// An output of a response.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputTensor {
    /// Its name in the model's metadata.
    pub name: String,
    /// The type of its elements.
    pub dtype: ScalarType,
    /// Its sizes.
    pub shape: Vec<usize>,
    /// Its elements, row-major, little-endian.
    pub data: Vec<u8>,
}

/// Where the time of a request went.
#[derive(Debug, Clone, Copy, Default)]
pub struct Timing {
    /// Waiting for a worker and for others to join.
    pub queued: Duration,
    /// Copying inputs, executing, copying outputs.
    pub computed: Duration,
    /// Rows of the batch that the request was part of; none if it was executed alone.
    pub batch_rows: usize,
}
