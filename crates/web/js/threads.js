// The threads of the module for several threads: workers that share its memory. Each has an instance of the module, and waits
// until the module starts a thread, by WASI's `thread-spawn`, which needs no event loop. Shared by all is `control`: for each worker
// its state and the argument of its thread, then the error of the first worker that failed, as UTF-8.

/** The most threads by default. */
const MOST = 8;
/** The most threads at all: each has a stack in memory. */
const LIMIT = 64;
/** The bytes of `control` for an error: its length, and its text. */
const ERROR = 1024;
/** Pages of memory: at first, as many as the module declares, and at most 4 GiB; where that cannot be reserved, less. */
const [FIRST, MOST_PAGES] = [256, [65536, 32768, 16384, 8192]];

const node = () => globalThis.process?.versions?.node !== undefined;

/** Whether this script can start threads and wait for them. The script of a page may not wait, and not every page may share memory. */
export function canThread() {
  try {
    if (globalThis.crossOriginIsolated === false || !(node() || typeof Worker === "function")) return false;
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 0);
    return true;
  } catch {
    return false;
  }
}

/** The number of threads: the one that is asked for, or one for each processor. */
export async function threadsFor(asked) {
  if (asked !== undefined) return Math.min(LIMIT, Math.max(1, Math.trunc(asked) || 1));
  const available = node() ? (await import("node:os")).availableParallelism?.() : navigator.hardwareConcurrency;
  return Math.min(MOST, available || 1);
}

/** Whether a compiled module is the one for several threads: its memory is imported. */
export const isThreaded = (module) => WebAssembly.Module.imports(module).some(({ kind }) => kind === "memory");

/** The workers of an instance, and what it imports. */
export class Threads {
  #control; #workers = [];

  /** Starts `workers` workers for a module. `stop` is called with the message of a panic and throws it. */
  static async start(module, workers, stop) {
    const threads = new Threads();
    const memory = sharedMemory();
    const control = new Int32Array(new SharedArrayBuffer(8 * workers + ERROR));
    threads.#control = control;
    const shared = { memory, control, origin: performance.timeOrigin };
    threads.imports = importsOf(shared, stop);
    // The first instance initializes the memory; the others wait for that.
    threads.instance = await WebAssembly.instantiate(module, threads.imports);
    threads.instance.exports._initialize();
    try {
      await Promise.all(Array.from({ length: workers }, (_, slot) => threads.#add({ ...shared, module, slot })));
    } catch (error) {
      threads.stop();
      throw error;
    }
    return threads;
  }

  /** Starts a worker, and waits until it can run a thread. */
  async #add(given) {
    const script = `(${work})(${importsOf})`;
    const ready = await (node() ? startInNode : startInBrowser)(script, given, (worker) => this.#workers.push(worker));
    if (ready !== true) throw new Error(`a thread did not start: ${ready}`);
  }

  /** The error of a thread that failed, or null. */
  get error() {
    const place = this.#control.length - ERROR / 4;
    const length = Atomics.load(this.#control, place);
    return length ? new TextDecoder().decode(new Uint8Array(this.#control.buffer, 4 * place + 4, length).slice()) : null;
  }

  /** Ends the workers. */
  stop() {
    for (const worker of this.#workers.splice(0)) worker.terminate();
  }
}

async function startInNode(script, given, add) {
  const { Worker } = await import("node:worker_threads");
  // Without the arguments of the process: the script is a CommonJS module, whatever they say.
  const worker = new Worker(script, { eval: true, execArgv: [], workerData: given });
  add(worker);
  const ready = await new Promise((resolve) => worker.once("message", resolve).once("error", resolve));
  // A thread that waits does not keep the process from ending.
  worker.unref();
  return ready;
}

async function startInBrowser(script, given, add) {
  const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
  const worker = new Worker(url);
  add(worker);
  const ready = await new Promise((resolve) => {
    worker.onmessage = ({ data }) => resolve(data);
    worker.onerror = (event) => resolve(event.message || "its script was not loaded; the page's security policy needs `worker-src blob:`");
    worker.postMessage(given);
  });
  URL.revokeObjectURL(url);
  return ready;
}

function sharedMemory() {
  for (const maximum of MOST_PAGES.slice(0, -1)) {
    try {
      return new WebAssembly.Memory({ initial: FIRST, maximum, shared: true });
    } catch {
      // There are not as many addresses.
    }
  }
  return new WebAssembly.Memory({ initial: FIRST, maximum: MOST_PAGES.at(-1), shared: true });
}

/** The script of a worker: it refers to nothing outside. */
async function work(importsOf) {
  const inNode = globalThis.process?.versions?.node !== undefined;
  const { workerData, parentPort } = inNode ? require("node:worker_threads") : {};
  const given = workerData ?? (await new Promise((resolve) => { onmessage = ({ data }) => resolve(data); }));
  const tell = (message) => (parentPort ?? globalThis).postMessage(message);
  const { module, memory, control, slot } = given;
  let exports;
  try {
    ({ exports } = await WebAssembly.instantiate(module, importsOf(given, (message) => { throw new Error(message); })));
  } catch (error) {
    return tell(String(error));
  }
  tell(true);
  for (;;) {
    for (let state; (state = Atomics.load(control, 2 * slot)) !== 2; ) Atomics.wait(control, 2 * slot, state);
    try {
      exports.wasi_thread_start(slot + 1, control[2 * slot + 1]);
    } catch (error) {
      const text = new TextEncoder().encode(error.message).slice(0, 1000);
      const place = control.length - 256;
      if (Atomics.compareExchange(control, place, 0, text.length) === 0) new Uint8Array(control.buffer).set(text, 4 * place + 4);
      return exports.pteron_thread_lost();
    }
    Atomics.store(control, 2 * slot, 0);
  }
}

/** What an instance imports: of WASI, what its standard library calls. Its text is a part of the script of workers, too. */
function importsOf({ memory, control, origin }, stop) {
  const [BAD_FILE, NOT_SUPPORTED, TRY_AGAIN] = [8, 52, -6];
  const write = (address, ...words) => new Uint32Array(memory.buffer, address >>> 0, words.length).set(words);
  const none = (count, size) => (write(count, 0), write(size, 0), 0);
  const preview = {
    args_sizes_get: none, args_get: () => 0, environ_sizes_get: none, environ_get: () => 0, sched_yield: () => 0,
    clock_time_get(clock, _, address) {
      // Threads compare their times, so the monotonic clock counts from the start of the thread that owns them all.
      const elapsed = performance.now() + (performance.timeOrigin - origin);
      const nanoseconds = clock === 0 ? Date.now() * 1e6 : Math.max(0, Math.round(elapsed * 1e6));
      write(address, nanoseconds % 2 ** 32, Math.floor(nanoseconds / 2 ** 32));
      return 0;
    },
    random_get(address, length) {
      const bytes = new Uint8Array(length);
      // Seeds of hash tables: where there is no cryptography (Node.js 18), others do.
      if (globalThis.crypto) crypto.getRandomValues(bytes);
      else bytes.forEach((_, i) => { bytes[i] = Math.random() * 256; });
      new Uint8Array(memory.buffer).set(bytes, address >>> 0);
      return 0;
    },
    fd_write: () => BAD_FILE, fd_prestat_get: () => BAD_FILE,
    proc_exit(code) { throw new Error(`the module has ended with code ${code}`); },
  };
  return {
    pteron: {
      panicked: (address, length) => stop(new TextDecoder().decode(new Uint8Array(memory.buffer, address >>> 0, length >>> 0).slice())),
    },
    env: { memory },
    wasi_snapshot_preview1: new Proxy(preview, { get: (known, name) => known[name] ?? (() => NOT_SUPPORTED) }),
    wasi: {
      "thread-spawn"(argument) {
        for (let slot = 0; slot < (control.length - 256) / 2; slot++) {
          if (Atomics.compareExchange(control, 2 * slot, 0, 1) !== 0) continue;
          control[2 * slot + 1] = argument;
          Atomics.store(control, 2 * slot, 2);
          Atomics.notify(control, 2 * slot);
          return slot + 1;
        }
        return TRY_AGAIN;
      },
    },
  };
}
