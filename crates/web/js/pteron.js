// The functions and classes of the package, on top of the WebAssembly module. They are documented in pteron.d.ts.

import { Threads, canThread, isThreaded, threadsFor } from "./threads.js";

const ABI = 1;

/** The array type for the elements of each type. Types that JavaScript lacks are stored as bits, complex numbers as parts. */
const ARRAYS = {
  float32: Float32Array, float64: Float64Array, float16: Uint16Array, bfloat16: Uint16Array,
  int8: Int8Array, uint8: Uint8Array, bool: Uint8Array, int16: Int16Array, uint16: Uint16Array,
  int32: Int32Array, uint32: Uint32Array, int64: BigInt64Array, uint64: BigUint64Array,
  complex32: Uint16Array, complex64: Float32Array, complex128: Float64Array,
  qint8: Int8Array, quint8: Uint8Array, qint32: Int32Array, bits16: Uint16Array,
};
/** The number of array elements per tensor element. */
const PARTS = { complex32: 2, complex64: 2, complex128: 2 };
const arrayOf = (dtype) => ARRAYS[dtype] ?? Uint8Array;

/** An error that Pteron reports. */
export class PteronError extends Error {
  constructor({ message, ...facts }) {
    super(message);
    this.name = "PteronError";
    Object.assign(this, facts);
  }
}

/** A tensor: a type, sizes, and elements in row-major order. */
export class Tensor {
  constructor(dtype, sizes, data) {
    this.dtype = dtype;
    this.sizes = [...sizes];
    this.data = data ?? new (arrayOf(dtype))(count(this.sizes) * (PARTS[dtype] ?? 1));
  }
}

const count = (sizes) => sizes.reduce((product, size) => product * size, 1);

/** The current engine, and the promise of one that is starting. */
let engine = null;
let starting = null;

class Engine {
  constructor(instance, threads = null) {
    this.exports = instance.exports;
    this.threads = threads;
    this.stopped = null;
    /** The number of open modules, and whether another engine has replaced this one. */
    this.open = 0;
    this.replaced = false;
  }

  /** Ends the threads of an engine that nothing uses any more. */
  release() {
    if (this.stopped || (this.replaced && this.open === 0)) this.threads?.stop();
  }

  /** Calls an exported function. Once one has failed, or a thread has, the module can no longer be used. */
  enter(name, ...args) {
    if (this.stopped) throw new PteronError({ kind: "stopped", message: this.stopped });
    try {
      if (this.threads?.error) throw new Stopped(this.threads.error);
      return this.exports[name](...args);
    } catch (error) {
      const why = this.threads?.error ?? (error instanceof Stopped ? error.message : String(error));
      this.stopped = `Pteron has stopped (${why}); call setup() to start it anew`;
      if (engine === this) engine = starting = null;
      this.release();
      throw new PteronError({ kind: "stopped", message: this.stopped });
    }
  }

  /** Creates a buffer with a copy of these bytes. */
  give(view) {
    const bytes = bytesOf(view);
    const buffer = this.enter("pteron_buffer", bytes.length);
    if (!buffer) throw new PteronError({ kind: "memory", message: `there is no memory for ${bytes.length} bytes` });
    this.bytes(buffer).set(bytes);
    return buffer;
  }

  /** A view of the bytes of a buffer, valid until the next call: memory may grow. */
  bytes(buffer) {
    const [address, length] = [this.enter("pteron_address", buffer), this.enter("pteron_length", buffer)];
    return new Uint8Array(this.exports.memory.buffer, address >>> 0, length >>> 0);
  }

  /** Copies the bytes of a buffer, and frees it. */
  take(buffer) {
    const bytes = this.bytes(buffer).slice();
    this.enter("pteron_free", buffer);
    return bytes;
  }

  /** Sends a request, and returns the result of the response. */
  call(name, request = {}) {
    const asked = new TextEncoder().encode(JSON.stringify({ call: name, ...request }));
    const answered = this.enter("pteron_call", this.give(asked));
    if (!answered) throw new PteronError({ kind: "memory", message: "there is no memory for the answer" });
    const answer = JSON.parse(new TextDecoder().decode(this.take(answered)));
    if (answer.error) throw new PteronError(answer.error);
    return answer.ok;
  }

  /** Calls `act` with a function that creates buffers, and frees them afterwards. */
  with(act) {
    const buffers = [];
    const give = (view) => {
      const buffer = this.give(view);
      buffers.push(buffer);
      return buffer;
    };
    try {
      return act(give);
    } finally {
      if (!this.stopped) for (const buffer of buffers) this.enter("pteron_free", buffer);
    }
  }

  /** Converts a value of a response. */
  value(value) {
    switch (value.kind) {
      case "tensor": {
        const bytes = this.take(value.buffer);
        return new Tensor(value.dtype, value.sizes, new (arrayOf(value.dtype))(bytes.buffer));
      }
      case "int": {
        const exact = Number(value.value);
        return Number.isSafeInteger(exact) ? exact : BigInt(value.value);
      }
      case "double": return Number(value.value);
      case "list": return value.values.map((inner) => this.value(inner));
      case "none": return null;
      default: return value.value;
    }
  }
}

/** A panic of the module. */
class Stopped extends Error {}

/** A byte view of a typed array or a buffer. */
function bytesOf(view) {
  if (view instanceof ArrayBuffer || (typeof SharedArrayBuffer !== "undefined" && view instanceof SharedArrayBuffer)) {
    return new Uint8Array(view);
  }
  return new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
}

/** Starts Pteron, unless it has been started and neither a source nor a number of threads is given. */
export function setup(source, { threads } = {}) {
  const isAsked = source || threads !== undefined;
  if (!isAsked && engine) return Promise.resolve();
  if (!isAsked && starting) return starting;
  const start = started(source, threads).then((started) => {
    if (engine) engine.replaced = true;
    engine?.release();
    engine = started;
  });
  starting = start;
  start.catch(() => {
    if (starting === start) starting = null;
  });
  return start;
}

/** Starts an engine: by default on several threads, where that is possible. */
async function started(source, asked) {
  const threads = canThread() ? await threadsFor(asked) : 1;
  if (source) return instantiate(await compiled(source), threads);
  const alone = () => compiled(new URL("./pteron.wasm", import.meta.url));
  if (threads === 1) return instantiate(await alone(), 1);
  try {
    return await instantiate(await compiled(new URL("./pteron.threads.wasm", import.meta.url)), threads);
  } catch (error) {
    if (asked !== undefined) throw error;
    return instantiate(await alone(), 1);
  }
}

async function instantiate(module, threads) {
  const engine = isThreaded(module) ? await withThreads(module, threads) : new Engine(await withoutThreads(module));
  try {
    const version = engine.enter("pteron_start");
    if (version !== ABI) throw new Error(`pteron.wasm has version ${version} of the interface; this script wants ${ABI}`);
    if (engine.threads) engine.call("setThreads", { threads });
    return engine;
  } catch (error) {
    engine.threads?.stop();
    throw error;
  }
}

const stop = (message) => { throw new Stopped(message); };

async function withThreads(module, number) {
  if (!canThread()) throw new Error("this script cannot start threads: load pteron.wasm, the module for one thread (docs/web.md)");
  const threads = await Threads.start(module, number - 1, stop);
  return new Engine(threads.instance, threads);
}

async function withoutThreads(module) {
  let memory;
  const panicked = (address, length) =>
    stop(new TextDecoder().decode(new Uint8Array(memory.buffer, address >>> 0, length >>> 0).slice()));
  const instance = await WebAssembly.instantiate(module, { pteron: { now: () => performance.now(), panicked } });
  memory = instance.exports.memory;
  return instance;
}

/** Compiles a module from a URL, a response, or bytes; returns a compiled one unchanged. */
async function compiled(source) {
  if (source instanceof WebAssembly.Module) return source;
  if (source instanceof ArrayBuffer || ArrayBuffer.isView(source)) return WebAssembly.compile(source);
  if (typeof Response !== "undefined" && source instanceof Response) return streamed(source);
  const url = new URL(source, globalThis.location?.href ?? import.meta.url);
  if (url.protocol === "file:" && globalThis.process?.versions?.node) {
    const { readFile } = await import("node:fs/promises");
    return WebAssembly.compile(await readFile(url));
  }
  return streamed(await fetch(url));
}

async function streamed(response) {
  if (!response.ok) throw new Error(`cannot fetch ${response.url}: ${response.status} ${response.statusText}`);
  const type = response.headers.get("Content-Type") ?? "";
  return type.startsWith("application/wasm") && WebAssembly.compileStreaming
    ? WebAssembly.compileStreaming(response)
    : WebAssembly.compile(await response.arrayBuffer());
}

/** The version of Pteron, and what it holds. */
export async function about() {
  await setup();
  return engine.call("about");
}

/** Opens a file. */
export async function load(file, { name, data = [] } = {}) {
  await setup();
  const isBlob = (file) => typeof Blob !== "undefined" && file instanceof Blob;
  const isBytes = (file) => file instanceof ArrayBuffer || ArrayBuffer.isView(file);
  const named = async (source, otherwise) => {
    const file = isBlob(source) || isBytes(source) ? source : source?.bytes;
    const bytes = isBlob(file) ? await file.arrayBuffer() : file;
    if (!isBytes(bytes)) throw new TypeError("a file is given as bytes (ArrayBuffer, Uint8Array) or as a Blob");
    return { name: source.name ?? file.name ?? otherwise, bytes };
  };
  const main = await named(file, "the program");
  const others = await Promise.all((Array.isArray(data) ? data : [data]).map((one, i) => named(one, `data[${i}]`)));
  const given = ({ name, bytes }) => ({ name, buffer: engine.give(bytes) });
  const request = { file: given({ ...main, name: name ?? main.name }), data: others.map(given) };
  const described = engine.call("load", request);
  engine.open += 1;
  return new Module(engine, described);
}

/** An open file. */
export class Module {
  #engine;
  #number;

  constructor(engine, { module, ms, main, ...facts }) {
    this.#engine = engine;
    this.#number = module;
    this.name = facts.name;
    this.bytes = facts.bytes;
    this.loadMs = ms;
    this.methods = facts.methods;
    this.main = main ?? null;
    this.functions = facts.functions ?? [];
    this.task = facts.task ?? null;
  }

  /** A method by name, by default the main one. */
  method(name = this.main) {
    const found = this.methods.find((method) => method.name === name);
    if (found) return found;
    const names = this.methods.map((method) => method.name).join(", ");
    throw new PteronError({
      kind: "input",
      message: !this.methods.length ? `${this.name} has no methods: only programs run`
        : name ? `the program has no method \`${name}\`; it has ${names}` : `name one of the methods: ${names}`,
    });
  }

  run(...args) {
    return this.measure(...args).outputs;
  }

  measure(method, inputs, { repeat = 0 } = {}) {
    if (typeof method !== "string") [method, inputs, { repeat = 0 } = {}] = [undefined, method, inputs];
    const { name, inputs: declared } = this.method(method);
    return this.#with((engine, give) => {
      const request = { module: this.#number, method: name, inputs: given(declared, inputs, give), repeat };
      const { outputs, ...times } = engine.call("run", request);
      return { outputs: outputs.map((value) => engine.value(value)), ...times };
    });
  }

  runFunctions(functions = []) {
    return this.#with((engine) => engine.call("runFunctions", { module: this.#number, functions: [...functions] }));
  }

  random(method) {
    const { name } = this.method(method);
    return this.#with((engine) =>
      engine.call("random", { module: this.#number, method: name }).map((value) => engine.value(value)));
  }

  picture(bytes, { method, input = 0, name = "picture", ...preparation } = {}) {
    const { name: called } = this.method(method);
    return this.#with((engine, give) => {
      const picture = { name, buffer: give(bytes) };
      return engine.value(engine.call("picture", { module: this.#number, method: called, input, picture, preparation }));
    });
  }

  report({ method, inputs, repeat = 10 } = {}) {
    return this.#with((engine, give) => {
      const timed = () => {
        const { name, inputs: declared } = this.method(method);
        return { method: name, inputs: given(declared, inputs, give), repeat };
      };
      const { buffer } = engine.call("report", { module: this.#number, profile: inputs ? timed() : null });
      return new TextDecoder().decode(engine.take(buffer));
    });
  }

  inspect() {
    return this.#with((engine) => engine.call("inspect", { module: this.#number }));
  }

  dispose() {
    if (!this.#number) return;
    if (!this.#engine.stopped) this.#engine.call("close", { module: this.#number });
    this.#number = 0;
    this.#engine.open -= 1;
    this.#engine.release();
  }

  #with(act) {
    if (!this.#number) throw new PteronError({ kind: "input", message: `${this.name} has been disposed of` });
    return this.#engine.with((give) => act(this.#engine, give));
  }
}
if (Symbol.dispose) Module.prototype[Symbol.dispose] = Module.prototype.dispose;

/** The largest elements of each row of a tensor. */
export function top(tensor, k, labels = []) {
  if (!engine) throw new PteronError({ kind: "input", message: "Pteron has not been started; await setup()" });
  return engine.with((give) => engine.call("top", { tensor: asTensor(tensor, give), count: k, labels }));
}

function asTensor({ dtype, sizes, data }, give) {
  return { kind: "tensor", dtype, sizes, buffer: give(data) };
}

/** Converts inputs to those of a request. They are a list, an object by name, or a single one. */
function given(declared, inputs, give) {
  const list = inputs == null ? [] : isOne(inputs) ? [inputs] : Array.isArray(inputs) ? inputs : byName(declared, inputs);
  const open = declared.filter((input) => input.fixed === null);
  const taken = list.length === declared.length ? declared : open;
  return list.map((input, index) => one(input, taken[index] ?? {}, declared.indexOf(taken[index]), give));
}

const isOne = (inputs) => typeof inputs !== "object" || ArrayBuffer.isView(inputs) || "data" in inputs;

function byName(declared, inputs) {
  const names = declared.map((input) => input.name);
  const unknown = Object.keys(inputs).find((name) => !names.includes(name));
  if (unknown === undefined) return names.map((name) => inputs[name]);
  const known = names.filter(Boolean).join(", ");
  throw new PteronError({
    kind: "input",
    message: `no input is named ${unknown}; ${known ? `there are ${known}` : "none has a name"}`,
  });
}

function one(input, declared, index, give) {
  if (input === undefined) return declared.fixed == null ? { kind: "none" } : { kind: "fixed" };
  if (input === null) return { kind: "none" };
  if (input instanceof Tensor) return asTensor(input, give);
  if (typeof input === "boolean") return { kind: "bool", value: input };
  if (typeof input === "string") return { kind: "string", value: input };
  const wanted = declared.tensor;
  if (typeof input === "number" || typeof input === "bigint") {
    if (!wanted) return { kind: "number", value: String(input) };
    input = [input];
  }
  const unfit = (why) => new TypeError(`input ${index}: ${why}`);
  const sizes = input.sizes;
  let data = input.data ?? input;
  const dtype = input.dtype ?? wanted?.dtype;
  if (!dtype) throw unfit("the method takes no tensor there");
  const array = arrayOf(dtype);
  if (Array.isArray(data)) {
    const flat = data.flat(Infinity);
    if (["float16", "bfloat16", "complex32"].includes(dtype)) throw unfit(`${dtype} is given as its bits in a Uint16Array`);
    data = array === BigInt64Array || array === BigUint64Array ? array.from(flat, BigInt) : array.from(flat);
  }
  const fits = data instanceof array || (array === Uint8Array && data instanceof Uint8ClampedArray)
    || (dtype === "float16" && data?.constructor?.name === "Float16Array");
  if (!fits) throw unfit(`${dtype} is given as ${array.name}, not as ${data?.constructor?.name ?? typeof data}`);
  return { kind: "tensor", dtype, sizes: sizes ?? sizesOf(data.length / (PARTS[dtype] ?? 1), wanted, unfit), buffer: give(data) };
}

/** The default sizes of a tensor of `length` elements: those that the method declares. */
function sizesOf(length, wanted, unfit) {
  if (count(wanted.sizes) === length) return wanted.sizes;
  const sizes = wanted.sizes.join("×");
  throw unfit(wanted.dynamic
    ? `${length} elements are not ${sizes}, the largest sizes; give { data, sizes }`
    : `${length} elements are given, ${count(wanted.sizes)} are wanted (${sizes})`);
}
