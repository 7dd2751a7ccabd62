use std::fmt::Display;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{Error, InconsistentKeys, ServerConfig};

/// The certificate and private key of a server.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// The path of the certificate chain (PEM), which starts with the server's own certificate.
    pub certificates: PathBuf,
    /// The path of the server certificate's private key (PEM: PKCS #8, PKCS #1 or SEC 1), not encrypted.
    pub key: PathBuf,
}

impl TlsOptions {
    /// An acceptor of TLS 1.2 and 1.3 that offers HTTP/2 and HTTP/1.1 by ALPN.
    pub(super) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let certificates = CertificateDer::pem_file_iter(&self.certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| read_error(&self.certificates, &e))?;
        if certificates.is_empty() {
            return Err(pem_error(
                &self.certificates,
                &"there is no certificate in it: `-----BEGIN CERTIFICATE-----` is expected",
            ));
        }
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| match e {
            pem::Error::NoItemsFound => pem_error(
                &self.key,
                &"there is no private key in it: `-----BEGIN PRIVATE KEY-----` is expected, and an encrypted one has to be decrypted first",
            ),
            other => read_error(&self.key, &other),
        })?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
        let mut config = config.map_err(|e| match e {
            Error::InconsistentKeys(InconsistentKeys::KeyMismatch) => {
                let first = self.certificates.display();
                pem_error(&self.key, &format!("this is not the key of the first certificate of {first}"))
            }
            Error::InvalidCertificate(_) => pem_error(&self.certificates, &e),
            _ => pem_error(&self.key, &e),
        })?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

fn pem_error(path: &Path, what: &dyn Display) -> io::Error {
    io::Error::other(format!("{}: {what}", path.display()))
}

fn read_error(path: &Path, error: &pem::Error) -> io::Error {
    match error {
        pem::Error::Io(error) => {
            io::Error::new(error.kind(), format!("cannot read {}: {error}", path.display()))
        }
        other => pem_error(path, &format!("this is no PEM file: {other}")),
    }
}
