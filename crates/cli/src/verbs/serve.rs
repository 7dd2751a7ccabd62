use crate::failure::{Failure, Result};
use crate::general::{ExecutionOpts, GeneralOpts, exit_status};
use crate::terminal::say;
use crate::limits::{parse_duration, parse_size};
use crate::registries;
use clap::Args;
use pteron::{LoadOptions, Pool};
use serde_json::json;
use pteron_serve::net::{Line, Log, RequestLog, Server, ServerOptions, json_line};
use pteron_serve::{Event, Events, OnDemand, Release, Service, ServiceOptions};
use std::io::Write;
use std::net::{SocketAddr, ToSocketAddrs};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use pteron_toolbox::paths::Paths;

/// Answer inference requests over HTTP: the Open Inference Protocol, REST and gRPC
///
/// A model is a file NAME.pte or NAME.pt2 in the folder, with external weights in NAME.ptd; or a folder NAME
/// with one program and the .ptd files that it needs; or a folder NAME with such a folder for each version,
/// named by its number. A pteron.json beside a program can set "method", the names of "inputs" and "outputs", and
/// "max_batch".
///
/// Replace files by renaming new ones over them, never by writing to them. SIGHUP, --poll and, with --control,
/// requests of the repository extension scan the folder again and swap in new files while requests run. The folder
/// may be a link, which is followed each time. SIGTERM and Ctrl-C stop the server after the running requests.
#[derive(Debug, Args)]
#[command(after_long_help = concat!(
    "Examples:\n",
    "  pteron serve models\n",
    "  curl 127.0.0.1:8000/v2/models/digits\n\n",
    "  # two executions at a time, of batches of up to 8 rows\n",
    "  pteron serve models --workers 2 --max-batch 8 --batch-delay 2ms\n\n",
    "  # models that are loaded by their first request, in at most 4 GB\n",
    "  pteron serve models --on-demand --model-memory 4G --idle 10m\n\n",
    "  # reachable from other machines, with a token, reloading replaced files\n",
    "  pteron serve models --listen 0.0.0.0:8000 --token-file token --poll 1s --log",
    exit_status!()
))]
pub(crate) struct Opts {
    /// The folder with the models
    #[arg(value_name = "MODELS")]
    models: PathBuf,
    /// Address to listen on, for REST and gRPC; may be given several times. A host name stands for its IPv4 addresses, or
    /// for its IPv6 addresses if it has no others
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:8000", value_parser = parse_endpoint)]
    listen: Vec<Endpoint>,
    /// A file with the bearer token that all requests except health checks must carry
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    /// Allow requests to load and unload models
    #[arg(long)]
    control: bool,
    /// Allow pages of this origin to send requests from browsers (CORS), as in https://example.com; `*` allows all; may be
    /// repeated
    #[arg(long, value_name = "ORIGIN")]
    allow_origin: Vec<String>,
    /// Interval at which to look for replaced files
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    poll: Option<Duration>,
    /// Load each model at its first request, or when a request of the repository extension asks for it, not at the start
    #[arg(long)]
    on_demand: bool,
    /// Maximum memory of loaded models: their files, and the planned memory of each worker. The least recently used ones
    /// are let go for others; a model in use never is
    #[arg(long, value_name = "SIZE", value_parser = parse_size, requires = "on_demand")]
    model_memory: Option<u64>,
    /// Let go models without requests for this time
    #[arg(long, value_name = "TIME", value_parser = parse_duration, requires = "on_demand")]
    idle: Option<Duration>,
    #[command(flatten)]
    execution: ExecutionOpts,
    /// Number of concurrent executions, each with --threads
    #[arg(long, value_name = "N", default_value = "1", value_parser = crate::general::parse_threads)]
    workers: NonZeroUsize,
    /// Combine requests into batches of up to N rows, for models whose first dimension is dynamic and whose rows are
    /// found to be independent
    #[arg(long, value_name = "N", default_value_t = 1)]
    max_batch: usize,
    /// How long a request waits for others to join its batch while a worker is idle
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "0ms")]
    batch_delay: Duration,
    /// Maximum number of waiting requests per model
    #[arg(long, value_name = "N", default_value_t = 256)]
    max_queue: usize,
    /// Maximum number of concurrent requests
    #[arg(long, value_name = "N", default_value_t = 1024)]
    max_requests: usize,
    /// Maximum size of one request
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "64M")]
    max_body: u64,
    /// Maximum memory of all requests and responses together
    #[arg(long, value_name = "SIZE", value_parser = parse_size, default_value = "1G")]
    max_held: u64,
    /// Maximum number of open connections
    #[arg(long, value_name = "N", default_value_t = 512)]
    max_connections: usize,
    /// Maximum time of a request; a request can only ask for less
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "60s")]
    deadline: Duration,
    /// Timeout for receiving a request, its head and its body, on a connection, and for a client to accept more of a
    /// response
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    patience: Duration,
    /// How long running requests may continue after the server was told to stop
    #[arg(long, value_name = "TIME", value_parser = parse_duration, default_value = "30s")]
    grace: Duration,
    /// The server's TLS certificate chain, PEM
    #[cfg(feature = "serve-tls")]
    #[arg(long, value_name = "FILE", requires = "tls_key")]
    tls_cert: Option<PathBuf>,
    /// The private key of the first certificate, PEM
    #[cfg(feature = "serve-tls")]
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    tls_key: Option<PathBuf>,
    /// Print a line for each request
    #[arg(long)]
    log: bool,
    /// Print JSON, one object per line
    #[arg(long)]
    json: bool,
}

/// The socket addresses of one `--listen`.
#[derive(Debug, Clone)]
struct Endpoint(Vec<SocketAddr>);

/// Reads `ADDRESS:PORT` or `HOST:PORT`; host names are resolved.
fn parse_endpoint(text: &str) -> Result<Endpoint, String> {
    if let Ok(address) = text.parse() {
        return Ok(Endpoint(vec![address]));
    }
    let resolved = text.to_socket_addrs().map_err(|e| format!("{e}; give ADDRESS:PORT, e.g. 127.0.0.1:8000"))?;
    let (v4, v6): (Vec<_>, Vec<_>) = resolved.partition(SocketAddr::is_ipv4);
    let addresses = if v4.is_empty() { v6 } else { v4 };
    if addresses.is_empty() { Err("the host has no address".to_owned()) } else { Ok(Endpoint(addresses)) }
}

/// The channels through which signals ask for a reload or a stop.
struct Signals {
    reload: mpsc::Sender<()>,
    stop: mpsc::Sender<()>,
}

impl Opts {
    pub(crate) fn declare_paths(&self, paths: &mut Paths) {
        paths.read("", &self.models);
        self.token_file.iter().for_each(|path| paths.read("--token-file", path));
        #[cfg(feature = "serve-tls")]
        for (name, path) in [("--tls-cert", &self.tls_cert), ("--tls-key", &self.tls_key)] {
            path.iter().for_each(|path| paths.read(name, path));
        }
    }

    pub(crate) fn run(self, general: &GeneralOpts) -> Result {
        let (reload, reloads) = mpsc::channel();
        let (stop, stopped) = mpsc::channel();
        forward_signals(Signals { reload, stop })?;
        print_panics(self.json);
        let service = Service::start(self.service_options(general)?).map_err(into_failure)?;
        let server = Server::start(Arc::clone(&service), self.server_options()?).map_err(into_failure)?;
        for address in server.addresses() {
            print(self.json, &json!({ "event": "listening", "address": address }), &format!("listening on {address}"));
            if !address.ip().is_loopback() && self.token_file.is_none() {
                say(format_args!("note: {address} is reachable from other machines, and asks for no token"));
            }
        }
        let (poll, json) = (self.poll, self.json);
        let follow = move || follow_folder(&service, &reloads, poll, json);
        // Loading may take long, and must not keep the server from stopping.
        std::thread::Builder::new().name("models".to_owned()).spawn(follow).map_err(into_failure)?;
        // The sender lives as long as the process.
        let _ = stopped.recv();
        print(self.json, &json!({ "event": "stopping" }), "stopping");
        server.stop();
        Ok(())
    }

    fn service_options(&self, general: &GeneralOpts) -> Result<ServiceOptions> {
        let setting = self.execution.setting_of_each(self.workers)?;
        let load = LoadOptions {
            isa: setting.isa,
            no_prepare: setting.no_prepare,
            pool: Pool::new(setting.threads),
            limits: general.limits().clone(),
            ..registries::load_options()
        };
        Ok(ServiceOptions {
            workers: self.workers.get(),
            max_batch: self.max_batch,
            batch_delay: self.batch_delay,
            max_queue: self.max_queue,
            max_requests: self.max_requests,
            max_bytes: self.max_held,
            deadline: self.deadline,
            on_demand: self.on_demand.then_some(OnDemand { memory: self.model_memory, idle: self.idle }),
            events: event_printer(self.json, self.models.display().to_string()),
            ..ServiceOptions::new(&self.models, load)
        })
    }

    fn server_options(&self) -> Result<ServerOptions> {
        Ok(ServerOptions {
            listen: self.listen.iter().flat_map(|endpoint| endpoint.0.iter().copied()).collect(),
            token: self.token_file.as_deref().map(read_token).transpose()?,
            allow_control: self.control,
            allowed_origins: self.allow_origin.clone(),
            max_body: self.max_body,
            max_connections: self.max_connections,
            head_timeout: self.patience,
            body_timeout: self.patience,
            write_timeout: self.patience,
            grace: self.grace,
            log: self.log.then(|| request_printer(self.json)),
            reclaim: Some(crate::allocator::release_free_pages),
            #[cfg(feature = "serve-tls")]
            tls: self.tls_cert.clone().zip(self.tls_key.clone()).map(|(certificates, key)| {
                pteron_serve::net::TlsOptions { certificates, key }
            }),
            ..ServerOptions::default()
        })
    }
}

/// Loads the models of the folder; at SIGHUP and every `poll`, loads those that have changed.
fn follow_folder(service: &Service, reloads: &mpsc::Receiver<()>, poll: Option<Duration>, json: bool) {
    // Failures are reported as events; the other models are served.
    let mut is_loaded = service.load_all().is_ok();
    if is_loaded {
        print(json, &json!({ "event": "ready" }), "ready");
    }
    loop {
        let asked = match poll {
            Some(time) => reloads.recv_timeout(time.max(Duration::from_millis(10))),
            None => reloads.recv().map_err(Into::into),
        };
        let looked = match asked {
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
            _ if !is_loaded => service.load_all(),
            Ok(()) => service.reload(),
            Err(mpsc::RecvTimeoutError::Timeout) => service.reload_changed(),
        };
        if looked.is_ok() && !is_loaded {
            is_loaded = true;
            print(json, &json!({ "event": "ready" }), "ready");
        }
    }
}

/// The handler that prints events of models. Messages are escaped, since they may quote names of files.
fn event_printer(json: bool, folder: String) -> Events {
    Events::new(move |event| match event {
        Event::Loaded { model, version, generation, unbatched } => {
            let value = json!({
                "event": "model_loaded", "model": model, "version": version, "generation": generation, "unbatched": unbatched,
            });
            print(json, &value, &format!("loaded {model}, version {version}, generation {generation}"));
            if let Some(reason) = unbatched.as_deref().filter(|_| !json) {
                say(format_args!("note: requests of {model} are not joined: {}", Line(reason)));
            }
        }
        Event::Failed { model, version, refusal, is_kept } => {
            let value = json!({
                "event": "model_failed", "model": model, "version": version, "error": refusal.message, "kept": is_kept,
            });
            let note = if *is_kept { "; what was loaded is served on" } else { "" };
            print_error(json, &value, &format!("{model}: {refusal}{note}"));
        }
        Event::Removed { model, version } => {
            let value = json!({ "event": "model_removed", "model": model, "version": version });
            print(json, &value, &format!("removed {model}, version {version}"));
        }
        Event::Released { model, version, why } => {
            let (word, text) = match why {
                Release::Idle => ("idle", "it had no requests"),
                Release::Memory => ("memory", "another model needs its memory"),
            };
            let value = json!({ "event": "model_released", "model": model, "version": version, "reason": word });
            print(json, &value, &format!("released {model}, version {version}: {text}"));
        }
        Event::Unloaded { model } => {
            print(json, &json!({ "event": "model_unloaded", "model": model }), &format!("unloaded {model}"));
        }
        Event::FolderFailed(refusal) => {
            let value = json!({ "event": "folder_failed", "folder": folder, "error": refusal.message });
            print_error(json, &value, &format!("{folder}: {refusal}; what was loaded is served on"));
        }
        Event::FolderReadable => {
            let value = json!({ "event": "folder_readable", "folder": folder });
            print(json, &value, &format!("{folder} can be read again"));
        }
    })
}

/// Sets a hook that prints each panic, which is a bug, in one escaped line.
fn print_panics(json: bool) {
    std::panic::set_hook(Box::new(move |info| {
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        let message = info.payload_as_str().unwrap_or_default();
        let value = json!({ "event": "panicked", "place": place, "error": message });
        print_error(json, &value, &format!("panicked at {place}: {message}"));
    }));
}

/// Prints an event to stdout: as JSON (`value`) if `json`, otherwise as text.
fn print(json: bool, value: &serde_json::Value, text: &str) {
    match json {
        true => print_line(&json_line(value)),
        false => print_line(&Line(text).to_string()),
    }
}

/// Prints an error: as JSON (`value`) to stdout if `json`, otherwise as text to stderr.
fn print_error(json: bool, value: &serde_json::Value, text: &str) {
    match json {
        true => print_line(&json_line(value)),
        false => say(format_args!("error: {}", Line(text))),
    }
}

fn into_failure(error: impl std::error::Error + Send + Sync + 'static) -> Failure {
    Failure::Failed(Box::new(error))
}

/// Writes a line to stdout. Errors are ignored: a closed stdout does not stop the server.
fn print_line(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}

fn request_printer(json: bool) -> Log {
    match json {
        true => Arc::new(|request: &RequestLog| print_line(&json_line(request))),
        false => Arc::new(|request: &RequestLog| print_line(&request.to_string())),
    }
}

/// Reads the bearer token from the first line of a file.
fn read_token(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path).map_err(pteron_toolbox::Error::read(path)).map_err(into_failure)?;
    match text.lines().next().map(str::trim).filter(|token| !token.is_empty()) {
        Some(token) => Ok(token.to_owned()),
        None => Err(Failure::Usage(format!("{} has no token in its first line", path.display()))),
    }
}

/// Forwards signals to channels: SIGHUP asks for a reload, SIGTERM and SIGINT for a stop.
#[cfg(unix)]
fn forward_signals(to: Signals) -> Result {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGHUP, SIGINT, SIGTERM]).map_err(into_failure)?;
    let forward = move || {
        for signal in signals.forever() {
            // A receiver that is gone has nothing left to do.
            let _ = if signal == SIGHUP { to.reload.send(()) } else { to.stop.send(()) };
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(forward).map_err(into_failure)?;
    Ok(())
}

/// Windows has no signals: a parked thread keeps the channels open, and the server runs until its process ends.
#[cfg(not(unix))]
fn forward_signals(to: Signals) -> Result {
    let keep = move || {
        let _senders = to;
        loop {
            std::thread::park();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(keep).map_err(into_failure)?;
    Ok(())
}
