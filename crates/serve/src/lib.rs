//! Serves programs over the [Open Inference Protocol](https://github.com/kserve/open-inference-protocol), version 2.
//!
//! A [`Service`] holds the models of a folder, queues, and threads that execute requests, in batches where rows are
//! independent. It knows no socket and no protocol. With the feature `net`, a `Server` answers REST and gRPC on the
//! same ports.
// What a name says alone has no doc.
#![allow(missing_docs)]
#![forbid(unsafe_code)]

mod budget;
#[cfg(feature = "net")]
mod buffer;
mod check;
pub mod datatype;
mod event;
mod execute;
mod generation;
mod guard;
mod load;
mod metadata;
mod metrics;
mod models;
#[cfg(feature = "net")]
pub mod net;
mod options;
mod pictures;
mod probe;
mod queue;
mod refusal;
mod repository;
mod request;
mod service;
mod stateful;

pub use budget::Reservation;
pub use event::{Event, Events, Release};
pub use generation::Generation;
pub use metadata::TensorSpec;
pub use models::IndexEntry;
pub use options::{OnDemand, ServiceOptions};
pub use queue::Ticket;
pub use refusal::{Reason, Refusal, Result};
pub use repository::{Config, Files, Repository, Source, Stamp, Versions, is_model_name};
pub use request::{Data, InferRequest, InferResponse, InputTensor, OutputTensor, PictureInput, Timing};
pub use service::Service;
