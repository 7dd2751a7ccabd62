use super::activity::{Activity, Verdict};
use super::options::ServerOptions;
use super::shared::Shared;
use super::stall_timeout::StallTimeout;
use crate::service::Service;
use hyper::Request;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Handle, Runtime};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinHandle;

/// The minimum number of connections that must have closed before memory is returned to the system.
const RECLAIM_AFTER: u64 = 256;

/// The minimum timeout of connections: checking for a shorter one would keep a thread busy.
const MIN_TIMEOUT: Duration = Duration::from_millis(10);

/// Serves a [`Service`] over the network.
pub struct Server {
    shared: Arc<Shared>,
    runtime: Runtime,
    addresses: Vec<SocketAddr>,
    stop: watch::Sender<bool>,
    acceptors: Vec<JoinHandle<()>>,
}

/// Accepts connections and serves each in its own task.
#[derive(Clone)]
struct Acceptor {
    shared: Arc<Shared>,
    permits: Arc<Semaphore>,
    #[cfg(feature = "tls")]
    tls: Option<tokio_rustls::TlsAcceptor>,
}

impl Server {
    /// Binds the addresses and starts answering requests.
    ///
    /// # Errors
    /// An address cannot be bound, a certificate cannot be read, or threads cannot be started.
    pub fn start(service: Arc<Service>, options: ServerOptions) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(options.threads.max(1))
            .max_blocking_threads(4)
            .thread_name("connections")
            .enable_all()
            .build()?;
        let bind = |address: &SocketAddr| {
            let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot listen on {address}: {e}"));
            runtime.block_on(TcpListener::bind(address)).map_err(named)
        };
        let listeners: Vec<TcpListener> = options.listen.iter().map(bind).collect::<io::Result<_>>()?;
        let addresses = listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?;
        let permits = Arc::new(Semaphore::new(options.max_connections.clamp(1, Semaphore::MAX_PERMITS)));
        #[cfg(feature = "tls")]
        let tls = options.tls.as_ref().map(super::TlsOptions::acceptor).transpose()?;
        let shared = Arc::new(Shared {
            service,
            options,
            connections: AtomicU64::new(0),
            loads: Arc::default(),
            peak_connections: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        });
        let (stop, stopped) = watch::channel(false);
        let acceptor = Acceptor {
            shared: Arc::clone(&shared),
            permits,
            #[cfg(feature = "tls")]
            tls,
        };
        let accept = |listener| runtime.spawn(acceptor.clone().accept(listener, stopped.clone()));
        let acceptors = listeners.into_iter().map(accept).collect();
        Ok(Self { shared, runtime, addresses, stop, acceptors })
    }

    /// The bound addresses, with the ports that the system chose for port 0.
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Accepts no more connections, waits for running requests, and stops the service. After the grace period the
    /// remaining requests are cancelled.
    pub fn stop(self) {
        let end = Instant::now() + self.shared.options.grace;
        self.shared.service.announce_stop();
        self.stop.send_replace(true);
        let Self { runtime, acceptors, shared, stop, .. } = self;
        runtime.block_on(async {
            for acceptor in acceptors {
                // An acceptor that panicked has stopped, too.
                let _ = acceptor.await;
            }
            // Every connection holds a receiver until it is closed.
            let _ = tokio::time::timeout_at(end.into(), stop.closed()).await;
        });
        shared.service.stop(end);
        runtime.shutdown_timeout(Duration::from_secs(1));
    }
}

impl Acceptor {
    async fn accept(self, listener: TcpListener, mut stopped: watch::Receiver<bool>) {
        loop {
            let accepted = tokio::select! {
                accepted = listener.accept() => accepted,
                _ = stopped.wait_for(|&stopped| stopped) => return,
            };
            let Ok((stream, peer)) = accepted else {
                // An error such as too many open files: wait until some are closed.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            match Arc::clone(&self.permits).try_acquire_owned() {
                Ok(permit) => {
                    let open = OpenConnection::new(&self.shared, permit);
                    tokio::spawn(self.clone().handle_connection(stream, peer, stopped.clone(), open));
                }
                Err(_) => drop(self.shared.rejected.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    async fn handle_connection(
        self,
        stream: TcpStream,
        peer: SocketAddr,
        #[cfg_attr(not(feature = "tls"), expect(unused_mut, reason = "only a handshake waits for it"))]
        mut stopped: watch::Receiver<bool>,
        _open: OpenConnection,
    ) {
        // Send small responses without delay.
        let _ = stream.set_nodelay(true);
        #[cfg(feature = "tls")]
        if let Some(tls) = &self.tls {
            // A client in the handshake has sent no request, and must not keep the server from stopping.
            let handshake = tokio::select! {
                handshake = tokio::time::timeout(self.shared.options.head_timeout, tls.accept(stream)) => handshake,
                _ = stopped.wait_for(|&stopped| stopped) => return,
            };
            if let Ok(Ok(stream)) = handshake {
                serve_connection(&self.shared, stream, peer, stopped).await;
            }
            return;
        }
        serve_connection(&self.shared, stream, peer, stopped).await;
    }
}

/// Answers the requests of a connection until the client closes it, it is idle or stalled for too long, or the server
/// stops.
async fn serve_connection<S>(
    shared: &Arc<Shared>,
    stream: S,
    peer: SocketAddr,
    mut stopped: watch::Receiver<bool>,
) where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let options = &shared.options;
    let activity = Activity::new();
    let answer = service_fn(|request: Request<Incoming>| {
        let (shared, activity) = (Arc::clone(shared), Arc::clone(&activity));
        async move { Ok::<_, Infallible>(shared.answer(request, peer, activity).await) }
    });
    let stream = StallTimeout::new(stream, options.head_timeout, options.write_timeout);
    let builder = protocol_builder(options);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), answer));
    let timeout = |time: Duration| time.max(MIN_TIMEOUT);
    let verdict = || activity.verdict(timeout(options.head_timeout), timeout(options.write_timeout));
    let (mut next_look, mut is_stopping) = (tokio::time::Instant::now(), false);
    loop {
        tokio::select! {
            // Errors of a connection concern only its client.
            _ = connection.as_mut() => return,
            _ = stopped.wait_for(|&stopped| stopped), if !is_stopping => {
                is_stopping = true;
                connection.as_mut().graceful_shutdown();
            }
            () = tokio::time::sleep_until(next_look) => match verdict() {
                Verdict::Until(time) => next_look = time,
                Verdict::Idle(end) => {
                    connection.as_mut().graceful_shutdown();
                    next_look = end;
                }
                Verdict::Stalled => return,
            }
        }
    }
}

/// The HTTP/1.1 and HTTP/2 settings of connections.
fn protocol_builder(options: &ServerOptions) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(options.head_timeout).max_buf_size(64 << 10);
    builder
        .http2()
        .timer(TokioTimer::new())
        .keep_alive_interval(options.head_timeout)
        .keep_alive_timeout(options.head_timeout)
        .max_concurrent_streams(64)
        .max_header_list_size(16 << 10)
        .initial_stream_window_size(256 << 10)
        .initial_connection_window_size(1 << 20)
        .max_send_buf_size(256 << 10);
    builder
}

/// A guard that counts an open connection. On drop, returns memory to the system if many connections have closed.
struct OpenConnection {
    shared: Arc<Shared>,
    _permit: OwnedSemaphorePermit,
}

impl OpenConnection {
    fn new(shared: &Arc<Shared>, permit: OwnedSemaphorePermit) -> Self {
        let connections = shared.connections.fetch_add(1, Ordering::Relaxed) + 1;
        shared.peak_connections.fetch_max(connections, Ordering::Relaxed);
        Self { shared: Arc::clone(shared), _permit: permit }
    }
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        let left = self.shared.connections.fetch_sub(1, Ordering::Relaxed) - 1;
        let peak = self.shared.peak_connections.load(Ordering::Relaxed);
        let many_closed = left <= peak / 2 && peak - left >= RECLAIM_AFTER;
        let Some(reclaim) = self.shared.options.reclaim.filter(|_| many_closed) else { return };
        // Only one of several connections that close at the same time reclaims.
        let exchanged =
            self.shared.peak_connections.compare_exchange(peak, left, Ordering::Relaxed, Ordering::Relaxed);
        let is_first = exchanged.is_ok();
        if let (true, Ok(runtime)) = (is_first, Handle::try_current()) {
            drop(runtime.spawn_blocking(reclaim));
        }
    }
}
