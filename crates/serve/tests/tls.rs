//! Both protocols over TLS, negotiated by ALPN, and errors of certificates and keys.

mod common;

use common::call::{Channel, InferRequest, InferResponse, Tensor, block_on};
use common::socket::{Fixture, Response, mlp_request};
use common::{Folder, assert_close, expected_of_mlp, request};
use pteron_serve::Service;
use pteron_serve::net::{Server, ServerOptions, TlsOptions};
use std::fs;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

fn identity(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/tls").join(name)
}

fn encrypted(options: &mut ServerOptions) {
    options.tls = Some(TlsOptions { certificates: identity("certificate.pem"), key: identity("key.pem") });
    options.token = Some("secret".to_owned());
}

/// Connects and offers these protocols. Trusts only the certificate of the tests.
async fn connect(address: SocketAddr, protocols: &[&str]) -> TlsStream<tokio::net::TcpStream> {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(identity("certificate.pem")).unwrap()).unwrap();
    let mut config = ClientConfig::builder().with_root_certificates(roots).with_no_client_auth();
    config.alpn_protocols = protocols.iter().map(|name| name.as_bytes().to_vec()).collect();
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let name = "localhost".try_into().unwrap();
    TlsConnector::from(Arc::new(config)).connect(name, stream).await.unwrap()
}

/// Sends a request over HTTP/1.1, and reads the response.
async fn send(address: SocketAddr, head: &str, body: &str) -> Response {
    let mut stream = connect(address, &["http/1.1"]).await;
    assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"http/1.1"[..]));
    let length = body.len();
    let text = format!("{head}\r\nhost: x\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut all = Vec::new();
    stream.read_to_end(&mut all).await.unwrap();
    Response::read(&mut &all[..])
}

fn mlp() -> InferRequest {
    let input = &request("mlp", &[2, 12], 5).inputs[0];
    let shape = vec![2, 12];
    let tensor = Tensor { name: "input_0".to_owned(), datatype: "FP32".to_owned(), shape, contents: None };
    InferRequest {
        model_name: "mlp".to_owned(),
        inputs: vec![tensor],
        raw_input_contents: vec![(*input.data).as_ref().to_vec()],
        ..InferRequest::default()
    }
}

#[test]
fn both_protocols_work_over_tls_and_need_the_token() {
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), encrypted);
    let expected = expected_of_mlp(2, 5);
    block_on(async {
        let post = "POST /v2/models/mlp/infer HTTP/1.1";
        let body = mlp_request(2, 5).to_string();
        let response = send(fixture.address, &format!("{post}\r\nauthorization: Bearer secret"), &body).await;
        assert_eq!(response.status, 200);
        let found: Vec<f32> = serde_json::from_value(response.json()["outputs"][0]["data"].clone()).unwrap();
        assert_close(&found, &expected);
        assert!(send(fixture.address, post, &body).await.error(401).contains("bearer token"));
        let wrong = format!("{post}\r\nauthorization: Bearer secreT");
        assert_eq!(send(fixture.address, &wrong, &body).await.status, 401);
        assert_eq!(send(fixture.address, "GET /v2/health/live HTTP/1.1", "").await.status, 200);

        // If the client offers both, HTTP/2 is chosen.
        let stream = connect(fixture.address, &["h2", "http/1.1"]).await;
        assert_eq!(stream.get_ref().1.alpn_protocol(), Some(&b"h2"[..]));
        let mut channel = Channel::over(stream).await;
        let answer = channel.call("ModelInfer", &mlp(), &[("authorization", "Bearer secret")]).await;
        let response: InferResponse = answer.read();
        let bytes = response.raw_output_contents[0].chunks_exact(4);
        let found: Vec<f32> = bytes.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        assert_close(&found, &expected);
        for headers in [&[][..], &[("authorization", "Bearer secre")], &[("authorization", "secret")]] {
            let refused = channel.call("ModelInfer", &mlp(), headers).await;
            assert!(refused.code == 16 && refused.text.contains("bearer token"), "{refused:?}");
        }
    });
}

#[test]
fn clients_without_tls_are_disconnected_and_block_nobody() {
    let short = |options: &mut ServerOptions| {
        encrypted(options);
        options.head_timeout = Duration::from_millis(50);
    };
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), short);
    let mut plain = TcpStream::connect(fixture.address).unwrap();
    plain.write_all(b"GET /v2/health/live HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer);
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
    // An unfinished handshake times out.
    let mut silent = TcpStream::connect(fixture.address).unwrap();
    silent.write_all(&[22, 3, 1, 2, 0, 1]).unwrap();
    assert!(silent.read_to_end(&mut Vec::new()).is_ok());
    block_on(async {
        assert_eq!(send(fixture.address, "GET /v2/health/ready HTTP/1.1", "").await.status, 200);
    });
}

#[test]
fn a_handshake_does_not_keep_the_server_from_stopping() {
    let long = |options: &mut ServerOptions| {
        encrypted(options);
        (options.head_timeout, options.grace) = (common::FOREVER, common::FOREVER);
    };
    let fixture = Fixture::with(Folder::with_mlp(), |_| (), long);
    let _silent = TcpStream::connect(fixture.address).unwrap();
    block_on(async {
        // Accepted after the silent connection, which is therefore in its handshake.
        assert_eq!(send(fixture.address, "GET /v2/health/ready HTTP/1.1", "").await.status, 200);
    });
    let begin = Instant::now();
    drop(fixture);
    assert!(begin.elapsed() < Duration::from_secs(60));
}

#[test]
fn errors_describe_invalid_certificates_and_keys() {
    let folder = Folder::with_mlp();
    let service = Service::start(folder.options()).unwrap();
    fs::write(folder.0.join("empty.pem"), "").unwrap();
    fs::write(folder.0.join("text.pem"), "-----BEGIN CERTIFICATE-----\n!\n-----END CERTIFICATE-----\n")
        .unwrap();
    let nonsense = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    fs::write(folder.0.join("nonsense.pem"), nonsense).unwrap();
    let encrypted = "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n";
    fs::write(folder.0.join("encrypted.pem"), encrypted).unwrap();
    let key = fs::read_to_string(identity("key.pem")).unwrap();
    fs::write(folder.0.join("cut.pem"), &key[..key.len() / 2]).unwrap();
    let own = |name: &str| folder.0.join(name);
    let (good, key) = (identity("certificate.pem"), identity("key.pem"));
    for (certificates, key, messages) in [
        (own("none.pem"), key.clone(), ["cannot read ", "none.pem"]),
        (good.clone(), own("none.pem"), ["cannot read ", "none.pem"]),
        (own("empty.pem"), key.clone(), ["empty.pem", "there is no certificate in it"]),
        (key.clone(), good.clone(), ["key.pem", "there is no certificate in it"]),
        (own("text.pem"), key.clone(), ["text.pem", "this is no PEM file"]),
        (own("nonsense.pem"), key.clone(), ["nonsense.pem", "invalid peer certificate"]),
        (good.clone(), own("empty.pem"), ["empty.pem", "there is no private key in it"]),
        (good.clone(), good.clone(), ["certificate.pem", "there is no private key in it"]),
        (good.clone(), own("encrypted.pem"), ["encrypted.pem", "has to be decrypted first"]),
        (good.clone(), own("cut.pem"), ["cut.pem", "this is no PEM file"]),
        (good.clone(), identity("other.pem"), ["other.pem", "not the key of the first certificate of"]),
    ] {
        let listen = vec![([127, 0, 0, 1], 0).into()];
        let tls = Some(TlsOptions { certificates, key });
        let options = ServerOptions { listen, tls, ..ServerOptions::default() };
        let error = Server::start(Arc::clone(&service), options).err().expect("a server that cannot start");
        let error = error.to_string();
        assert!(messages.iter().all(|message| error.contains(message)), "{error}, not {messages:?}");
    }
}
