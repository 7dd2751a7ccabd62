//! Executes the requests of JavaScript.

use crate::buffers::{Buffers, Handles};
use crate::failure::{Failure, Result};
use crate::opened::OpenFile;
use crate::request::{File, Input, Profile, Request};
use crate::values::{self, InputValue};
use pteron::tensor::AlignedBuffer;
use pteron::{EValue, Method, Pool, Registries, Tensor, ValueMeta};
use pteron_clock::Instant;
use pteron_toolbox::picture::Preparation;
use pteron_toolbox::run::{Latency, top_k};
use pteron_toolbox::{picture, random};
use serde_json::{Value, json};
use std::time::Duration;

/// The open files, and the buffers shared with JavaScript. Both have handles, which are never 0.
#[derive(Default)]
pub struct Engine {
    buffers: Buffers,
    modules: Handles<OpenFile>,
    registries: Registries,
    /// The threads of the files that are opened.
    pool: Pool,
}

impl Engine {
    /// An engine whose programs use these operators and backends, instead of those of the library.
    pub fn with_registries(registries: Registries) -> Self {
        Self { registries, ..Self::default() }
    }

    /// Creates a buffer of zeros; `None` if there is not enough memory.
    pub fn create_buffer(&mut self, len: usize) -> Option<u32> {
        self.buffers.add(AlignedBuffer::zeroed(len).ok()?)
    }

    /// The bytes of a buffer; `None` if there is no such buffer.
    pub fn bytes(&self, buffer: u32) -> Option<&[u8]> {
        self.buffers.get(buffer).map(|buffer| &**buffer)
    }

    /// The bytes of a buffer, mutable; `None` if there is no such buffer.
    pub fn bytes_mut(&mut self, buffer: u32) -> Option<&mut [u8]> {
        self.buffers.get_mut(buffer).map(|buffer| &mut **buffer)
    }

    /// Frees a buffer, if it exists.
    pub fn free(&mut self, buffer: u32) {
        drop(self.buffers.take(buffer));
    }

    /// Executes the request in a buffer, and frees the buffer. Returns the buffer of the response, `{"ok": …}` or
    /// `{"error": {"message": …}}`; `None` if there is not enough memory for it.
    pub fn call(&mut self, request: u32) -> Option<u32> {
        let answer = match self.read_request(request).and_then(|request| self.execute(request)) {
            Ok(value) => json!({ "ok": value }),
            Err(failure) => json!({ "error": failure }),
        };
        let text = answer.to_string();
        self.buffers.add(AlignedBuffer::from_slice(text.as_bytes()).ok()?)
    }

    fn read_request(&mut self, request: u32) -> Result<Request> {
        Ok(serde_json::from_slice(&self.buffers.take_buffer(request)?)?)
    }

    fn execute(&mut self, request: Request) -> Result<Value> {
        match request {
            Request::About => Ok(json!({
                "version": env!("CARGO_PKG_VERSION"),
                "simd": cfg!(target_feature = "simd128"),
                "threads": self.pool.threads(),
                "modules": self.modules.len(),
                "buffers": self.buffers.len(),
            })),
            Request::SetThreads { threads } => {
                self.pool = Pool::new(threads);
                Ok(json!(self.pool.threads()))
            }
            Request::Load { file, data } => self.load(file, data),
            Request::Close { module } => Ok(json!(self.modules.take(module).is_some())),
            Request::Run { module, method, inputs, repeat } => self.run(module, method, inputs, repeat),
            Request::RunFunctions { module, functions } => {
                self.modules.get(module).ok_or_else(|| no_such_module(module))?.run_functions(functions)
            }
            Request::Random { module, method } => {
                let Self { buffers, modules, .. } = self;
                let (opened, method, _) = resolve_method(modules, module, method)?;
                let inputs = random::random_inputs(opened.module()?.program(), &method, 0)?;
                inputs.into_iter().map(|value| values::to_response(value, buffers)).collect()
            }
            Request::Picture { module, method, input, picture, preparation } => {
                let Self { buffers, modules, .. } = self;
                let (opened, method, declared) = resolve_method(modules, module, method)?;
                let given = Preparation::from(preparation);
                let preparation = if given.is_given() { given } else { opened.preparation()? };
                let info = declared.get(input).and_then(|declared| declared.tensor.as_ref());
                let no_tensor =
                    || Failure::invalid_input(format!("input {input} of method `{method}` is no tensor"));
                let meta = &info.ok_or_else(no_tensor)?.meta;
                let bytes = buffers.bytes_of(picture.buffer)?;
                let tensor = picture::decode(&picture.name, bytes, meta, &preparation)?;
                values::to_response(EValue::Tensor(tensor), buffers)
            }
            Request::Top { tensor, count, labels } => {
                let Input::Tensor { dtype, sizes, buffer } = tensor else {
                    return Err(Failure::invalid_input("only a tensor has largest elements"));
                };
                let (meta, bytes) = values::borrow_tensor(&dtype, &sizes, buffer, &self.buffers)?;
                Ok(serde_json::to_value(top_k(&Tensor::from_bytes(meta, bytes)?, count, &labels)?)?)
            }
            Request::Report { module, profile } => self.report(module, profile),
            Request::Inspect { module } => {
                self.modules.get(module).ok_or_else(|| no_such_module(module))?.inspect()
            }
        }
    }

    fn load(&mut self, file: File, data: Vec<File>) -> Result<Value> {
        let mut take_file =
            |File { name, buffer }: File| Ok::<_, Failure>((name, self.buffers.take_buffer(buffer)?));
        let (name, bytes) = take_file(file)?;
        let data = data.into_iter().map(take_file).collect::<Result<_>>()?;
        let start = Instant::now();
        let mut opened = OpenFile::new(name, bytes, data, &self.registries, &self.pool)?;
        let mut described = opened.describe()?;
        described["ms"] = json!(to_milliseconds(start.elapsed()));
        let number = self.modules.add(opened);
        described["module"] =
            json!(number.ok_or_else(|| Failure::invalid_input("too many modules were opened"))?);
        Ok(described)
    }

    fn run(
        &mut self,
        module: u32,
        method: Option<String>,
        inputs: Vec<Input>,
        repeat: usize,
    ) -> Result<Value> {
        let Self { buffers, modules, .. } = self;
        let (opened, name, declared) = resolve_method(modules, module, method)?;
        let given_inputs = values::borrowed_inputs(&declared, inputs, buffers)?;
        let start = Instant::now();
        let method = opened.module()?.method(&name)?;
        let load = start.elapsed();
        let once = |method: &mut Method| {
            let start = Instant::now();
            given_inputs
                .iter()
                .enumerate()
                .try_for_each(|(index, input)| InputValue::set(input, method, index))?;
            method.run()?;
            Ok::<_, Failure>(start.elapsed())
        };
        let first = once(method)?;
        let outputs = (0..method.num_outputs())
            .map(|index| method.output(index))
            .collect::<pteron::Result<Vec<_>>>()?;
        let mut times = Vec::new();
        let start = Instant::now();
        for _ in 0..repeat {
            times.push(once(method)?);
        }
        // The clock may be too coarse for a single run, so the mean is measured over all of them.
        let mean = start.elapsed().checked_div(u32::try_from(repeat).unwrap_or(u32::MAX));
        let outputs = outputs
            .into_iter()
            .map(|value| values::to_response(value, buffers))
            .collect::<Result<Vec<_>>>()?;
        let latency = Latency::from_durations(times).map(|latency| {
            json!({
                "runs": latency.runs, "min": latency.min_ms, "median": latency.median_ms, "p99": latency.p99_ms,
                "mean": mean.map(to_milliseconds),
            })
        });
        Ok(json!({
            "method": name, "outputs": outputs,
            "loadMs": to_milliseconds(load), "ms": to_milliseconds(first), "latency": latency,
        }))
    }

    fn report(&mut self, module: u32, profile: Option<Profile>) -> Result<Value> {
        let Self { buffers, modules, .. } = self;
        let run = match profile {
            None => None,
            Some(Profile { method, inputs, repeat }) => {
                let (_, method, declared) = resolve_method(modules, module, method)?;
                Some((method, values::owned_inputs(&declared, inputs, buffers)?, repeat))
            }
        };
        let page = modules.get_mut(module).ok_or_else(|| no_such_module(module))?.report(run)?;
        Ok(json!({ "buffer": buffers.add_buffer(AlignedBuffer::from_slice(page.as_bytes())?)? }))
    }
}

/// The open file `module`, the name of the selected or default method, and the description of its inputs.
fn resolve_method(
    modules: &mut Handles<OpenFile>,
    module: u32,
    method: Option<String>,
) -> Result<(&mut OpenFile, String, Vec<ValueMeta>)> {
    let opened = modules.get_mut(module).ok_or_else(|| no_such_module(module))?;
    let method = opened.method_or_default(method)?;
    let declared = opened.module()?.method_meta(&method)?.inputs();
    Ok((opened, method, declared))
}

fn no_such_module(number: u32) -> Failure {
    Failure::invalid_input(format!("there is no module {number}: it has been disposed of"))
}

fn to_milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
