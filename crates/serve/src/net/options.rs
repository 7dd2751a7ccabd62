use super::log::Log;
use std::net::SocketAddr;
use std::time::Duration;

/// The addresses of a [`Server`](super::Server), and its limits on clients.
#[derive(Clone)]
pub struct ServerOptions {
    /// The addresses to listen on, each for REST and gRPC.
    pub listen: Vec<SocketAddr>,
    /// The bearer token that all requests except health checks must carry; `None` if they need none.
    pub token: Option<String>,
    /// Whether requests may load and unload models.
    pub allow_control: bool,
    /// The origins whose pages may send requests from browsers (CORS), such as `https://example.com`; `*` for all.
    pub allowed_origins: Vec<String>,
    /// The maximum size of a request's body in bytes.
    pub max_body: u64,
    /// The maximum number of open connections; connections beyond it are closed at once.
    pub max_connections: usize,
    /// The timeout for the head of a request, for a TLS handshake, and for the next request of a persistent connection.
    pub head_timeout: Duration,
    /// The timeout for the body of a request.
    pub body_timeout: Duration,
    /// How long a client may take to accept more of a response (over HTTP/2, to accept 64 KiB of it).
    pub write_timeout: Duration,
    /// How long running requests may continue after the server was told to stop.
    pub grace: Duration,
    /// The number of threads that serve connections; programs run on the service's workers.
    pub threads: usize,
    /// A function that is called for every request.
    pub log: Option<Log>,
    /// Called on a blocking thread when at least half of many connections have been closed: it may make the allocator
    /// return free memory to the system.
    pub reclaim: Option<fn()>,
    /// The server's TLS certificate and key; `None` for connections without encryption.
    #[cfg(feature = "tls")]
    pub tls: Option<super::TlsOptions>,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            listen: vec![SocketAddr::from(([127, 0, 0, 1], 8000))],
            token: None,
            allow_control: false,
            allowed_origins: Vec::new(),
            max_body: 64 << 20,
            max_connections: 512,
            head_timeout: Duration::from_secs(30),
            body_timeout: Duration::from_secs(30),
            write_timeout: Duration::from_secs(30),
            grace: Duration::from_secs(30),
            threads: 1,
            log: None,
            reclaim: None,
            #[cfg(feature = "tls")]
            tls: None,
        }
    }
}
