//! A gRPC client over HTTP/2 that shares no code with the server except the `h2` crate.

use bytes::Bytes;
use h2::client::SendRequest;
use hyper::http::{HeaderMap, Request};
use std::collections::HashMap;
use std::net::SocketAddr;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

/// The messages that the tests send and read, with the field names and numbers of the specification.
#[derive(Clone, PartialEq, prost::Message)]
pub struct InferRequest {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub inputs: Vec<Tensor>,
    #[prost(message, repeated, tag = "6")]
    pub outputs: Vec<RequestedOutput>,
    #[prost(bytes = "vec", repeated, tag = "7")]
    pub raw_input_contents: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Parameter {
    #[prost(int64, optional, tag = "2")]
    pub int64: Option<i64>,
    #[prost(uint64, optional, tag = "5")]
    pub uint64: Option<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Tensor {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(string, tag = "2")]
    pub datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub shape: Vec<i64>,
    #[prost(message, optional, tag = "5")]
    pub contents: Option<Contents>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub fp32s: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub fp64s: Vec<f64>,
    #[prost(bytes = "vec", repeated, tag = "8")]
    pub files: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct RequestedOutput {
    #[prost(string, tag = "1")]
    pub name: String,
    #[prost(map = "string, message", tag = "2")]
    pub parameters: HashMap<String, Parameter>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct InferResponse {
    #[prost(string, tag = "1")]
    pub model_name: String,
    #[prost(string, tag = "2")]
    pub model_version: String,
    #[prost(string, tag = "3")]
    pub id: String,
    #[prost(map = "string, message", tag = "4")]
    pub parameters: HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub outputs: Vec<Tensor>,
    #[prost(bytes = "vec", repeated, tag = "6")]
    pub raw_output_contents: Vec<Vec<u8>>,
}

/// The result of a call: its status code and text, and the message.
#[derive(Debug)]
pub struct Answer {
    pub code: i32,
    pub text: String,
    pub message: Vec<u8>,
}

impl Answer {
    /// The message, if the call succeeded.
    pub fn read<M: prost::Message + Default>(&self) -> M {
        assert_eq!(self.code, 0, "{}", self.text);
        M::decode(&self.message[..]).unwrap()
    }
}

/// An HTTP/2 connection with prior knowledge, without an upgrade.
pub struct Channel {
    pub send: SendRequest<Bytes>,
    /// The task that drives the connection; aborting it closes the socket.
    pub driver: JoinHandle<()>,
}

impl Channel {
    pub async fn open(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap()).await
    }

    pub async fn over(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Self {
        let (send, connection) = h2::client::handshake(stream).await.unwrap();
        let driver = tokio::spawn(async move { drop(connection.await) });
        Self { send, driver }
    }

    /// Sends a call, and returns the future of its response.
    pub async fn start(
        &mut self,
        method: &str,
        message: &impl prost::Message,
        headers: &[(&str, &str)],
    ) -> h2::client::ResponseFuture {
        self.start_body(method, framed(0, &message.encode_to_vec()), headers).await
    }

    /// As [`Self::start`], with the bytes of the body.
    pub async fn start_body(
        &mut self,
        method: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> h2::client::ResponseFuture {
        let path = format!("http://x/inference.GRPCInferenceService/{method}");
        let mut request =
            Request::post(path).header("content-type", "application/grpc").header("te", "trailers");
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let mut send = self.send.clone().ready().await.unwrap();
        let (response, mut stream) = send.send_request(request.body(()).unwrap(), false).unwrap();
        // A server that refuses a call by its headers may close the stream before the body is sent; the response says so.
        let _ = stream.send_data(body.into(), true);
        response
    }

    pub async fn call(
        &mut self,
        method: &str,
        message: &impl prost::Message,
        headers: &[(&str, &str)],
    ) -> Answer {
        let (flag, _, answer) = self.exchange(method, framed(0, &message.encode_to_vec()), headers).await;
        assert_eq!(flag, 0);
        answer
    }

    /// Sends a body, and returns the flag of the response's message, the response's headers, and the result.
    pub async fn exchange(
        &mut self,
        method: &str,
        body: Vec<u8>,
        headers: &[(&str, &str)],
    ) -> (u8, HeaderMap, Answer) {
        let response = self.start_body(method, body, headers).await.await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/grpc");
        let (parts, mut body) = response.into_parts();
        let mut bytes = Vec::new();
        while let Some(data) = body.data().await {
            let data = data.unwrap();
            body.flow_control().release_capacity(data.len()).unwrap();
            bytes.extend(data);
        }
        let trailers = body.trailers().await.unwrap();
        let status = trailers.unwrap_or_else(|| parts.headers.clone());
        let text = status.get("grpc-message").map_or("", |text| text.to_str().unwrap()).to_owned();
        let code = status["grpc-status"].to_str().unwrap().parse().unwrap();
        if let Some(head) = bytes.first_chunk::<5>() {
            let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
            assert_eq!(len as usize, bytes.len() - 5);
        }
        let flag = bytes.first().copied().unwrap_or(0);
        (flag, parts.headers, Answer { code, text, message: bytes.split_off(bytes.len().min(5)) })
    }
}

/// A message with its 5-byte prefix; `flag` is 1 if it is compressed.
pub fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
    let len = u32::try_from(message.len()).unwrap().to_be_bytes();
    [&[flag], &len[..], message].concat()
}

/// Runs a future to completion.
pub fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap().block_on(work)
}
