//! A server on loopback, and clients on raw sockets.

use super::{Folder, floats, request};
use pteron_serve::net::{Server, ServerOptions};
use pteron_serve::{OutputTensor, Service, ServiceOptions};
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// A server that is stopped on drop.
pub struct Fixture {
    pub server: Option<Server>,
    pub service: Arc<Service>,
    pub address: SocketAddr,
    pub folder: Folder,
}

impl Fixture {
    pub fn new(folder: Folder) -> Self {
        Self::with(folder, |_| (), |_| ())
    }

    pub fn with(
        folder: Folder,
        service: impl FnOnce(&mut ServiceOptions),
        server: impl FnOnce(&mut ServerOptions),
    ) -> Self {
        let mut service_options = folder.options();
        service(&mut service_options);
        let service = folder.service_with(service_options);
        let mut options =
            ServerOptions { listen: vec![([127, 0, 0, 1], 0).into()], ..ServerOptions::default() };
        server(&mut options);
        let server = Server::start(Arc::clone(&service), options).unwrap();
        let address = server.addresses()[0];
        Self { server: Some(server), service, address, folder }
    }

    /// Sends a request, and reads the response.
    pub fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> Response {
        let mut stream = TcpStream::connect(self.address).unwrap();
        let length = body.len();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n"
        );
        stream.write_all(head.as_bytes()).unwrap();
        // The server may have answered already, without reading the body.
        let _ = stream.write_all(body);
        Response::read(&mut stream)
    }

    pub fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Response {
        self.send("POST", path, "", body.to_string().as_bytes())
    }

    /// Calls a method of the gRPC service over HTTP/1.1, which the server accepts, too. The status is in headers or
    /// trailers.
    pub fn call(&self, method: &str, message: &[u8]) -> Response {
        let mut body = vec![0];
        body.extend(u32::try_from(message.len()).unwrap().to_be_bytes());
        body.extend(message);
        let path = format!("/inference.GRPCInferenceService/{method}");
        self.send("POST", &path, "content-type: application/grpc\r\nte: trailers\r\n", &body)
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.server.take().unwrap().stop();
        assert!(self.service.metrics().contains("pteron_held_bytes 0"), "{}", self.service.metrics());
    }
}

pub struct Response {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Response {
    pub fn read(stream: &mut impl Read) -> Self {
        let mut all = Vec::new();
        let _ = stream.read_to_end(&mut all);
        let end =
            all.windows(4).position(|w| w == b"\r\n\r\n").unwrap_or_else(|| panic!("no response: {all:?}"));
        let head = String::from_utf8(all[..end].to_vec()).unwrap().to_lowercase();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Self { status, head, body: all.split_off(end + 4) }
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap()
    }

    /// Checks the status of an error response, and returns its message.
    pub fn error(&self, status: u16) -> String {
        assert_eq!(self.status, status, "{}", String::from_utf8_lossy(&self.body));
        self.json()["error"].as_str().unwrap().to_owned()
    }
}

pub fn mlp_request(rows: usize, seed: usize) -> Value {
    let input = &request("mlp", &[rows, 12], seed).inputs[0];
    let data = (*input.data).as_ref().to_vec();
    let output = OutputTensor { name: String::new(), dtype: input.dtype, shape: input.shape.clone(), data };
    json!({ "inputs": [{ "name": "input_0", "datatype": "FP32", "shape": [rows, 12], "data": floats(&output) }] })
}

/// Spins until the metrics of the service contain the line.
pub fn until(service: &Service, line: &str) {
    while !service.metrics().contains(line) {
        std::thread::yield_now();
    }
}
