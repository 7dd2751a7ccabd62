use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// The identity of a server.
#[derive(Debug, Clone)]
pub struct TlsOptions {
    /// Its chain of certificates, PEM.
    pub certificates: PathBuf,
    /// The key of the first, PEM.
    pub key: PathBuf,
}

impl TlsOptions {
    pub(super) fn acceptor(&self) -> io::Result<TlsAcceptor> {
        let other = |e: &dyn std::fmt::Display| io::Error::other(e.to_string());
        let bad =
            |path: &PathBuf, e: &dyn std::fmt::Display| io::Error::other(format!("{}: {e}", path.display()));
        let certificates = CertificateDer::pem_file_iter(&self.certificates)
            .and_then(Iterator::collect::<Result<Vec<_>, _>>)
            .map_err(|e| bad(&self.certificates, &e))?;
        let key = PrivateKeyDer::from_pem_file(&self.key).map_err(|e| bad(&self.key, &e))?;
        let config = ServerConfig::builder().with_no_client_auth().with_single_cert(certificates, key);
        let mut config = config.map_err(|e| other(&e))?;
        config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}
