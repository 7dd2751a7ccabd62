//! The network server: REST and gRPC.

mod activity;
mod body;
mod classes;
mod compression;
mod connection;
mod contents;
mod cors;
mod elements;
mod grpc;
mod json;
mod log;
mod messages;
mod numbers;
mod options;
mod protocol;
mod rest;
mod server;
mod shared;
mod stall_timeout;
#[cfg(feature = "tls")]
mod tls;
mod triton;

pub use log::{Field, Line, Log, RequestLog, json_line};
pub use options::ServerOptions;
pub use server::Server;
#[cfg(feature = "tls")]
pub use tls::TlsOptions;
