// Runs Pteron in a worker, so that the page stays responsive. pack.mjs appends this to pteron.js in one script.

let open = null;

/** Creates the inputs from the sources that the page describes. */
function made(method, sources) {
  let random = null;
  return sources.map((source, index) => {
    switch (source.kind) {
      case "random": return (random ??= open.random(method))[index];
      case "zeros": return new Tensor(source.dtype, source.sizes);
      case "picture": return open.picture(source.bytes, { method, input: index, name: source.name, ...source.options });
      case "numbers": return { data: filled(numbersOf(source.text), count(source.sizes)), sizes: source.sizes };
      default: return undefined;
    }
  });
}

/** Parses the numbers of a text. */
function numbersOf(text) {
  const words = text.split(/[\s,;[\]]+/).filter(Boolean);
  const wrong = words.find((word) => Number.isNaN(Number(word)) && word !== "NaN");
  if (wrong !== undefined) throw new TypeError(`${wrong} is no number`);
  return words.map((word) => (/^[+-]?\d+$/.test(word) && !Number.isSafeInteger(Number(word)) ? BigInt(word) : Number(word)));
}

/** One number stands for all elements of a tensor, as on the command line. */
function filled(numbers, length) {
  return numbers.length === 1 ? Array.from({ length }, () => numbers[0]) : numbers;
}

/** Describes an output for the page: its first elements, and its largest ones if it is a row of scores. */
function shown(output, labels) {
  if (!(output instanceof Tensor)) {
    if (Array.isArray(output)) return { type: `list of ${output.length}`, items: output.map((inner) => shown(inner, labels)) };
    return { type: output === null ? "none" : typeof output, text: String(output) };
  }
  const { dtype, sizes, data } = output;
  const type = `${dtype}[${sizes.join(", ")}]`;
  const width = sizes.at(-1) ?? 1;
  const ranks = width > 1 && (sizes.length === 1 || sizes.slice(0, -1).every((size) => size === 1));
  const some = Array.from(data.slice(0, 24), (value) => (typeof value === "number" ? Number(value.toPrecision(6)) : String(value)));
  const text = some.join(", ") + (data.length > some.length ? ", …" : "");
  if (!ranks || !/^(b?float|u?int)/.test(dtype)) return { type, text };
  return { type, text, top: top(output, 5, labels?.length === width ? labels : [])[0] };
}

const calls = {
  /** Starts the module for several threads, if it is at an address beside the page, and otherwise the page's own. */
  async start({ wasm, threads }) {
    const found = threads && canThread() && await compiled(threads).catch(() => null);
    await setup(found || wasm);
    return about();
  },
  async open({ file, data }) {
    const opened = await load(file, { data });
    open?.dispose();
    open = opened;
    const { name, bytes, methods, functions, main, task, loadMs } = open;
    return { name, bytes, methods, functions, main, task, loadMs };
  },
  report: () => open.report(),
  profile: ({ method, sources, repeat }) => open.report({ method, inputs: made(method, sources), repeat }),
  runFunctions: (functions) => open.runFunctions(functions),
  run({ method, sources, repeat, labels }) {
    const start = performance.now();
    const inputs = made(method, sources);
    const inputsMs = performance.now() - start;
    const { outputs, loadMs, ms, latency } = open.measure(method, inputs, { repeat });
    return { outputs: outputs.map((output) => shown(output, labels)), inputsMs, loadMs, ms, latency };
  },
};

onmessage = async ({ data: { id, call, argument } }) => {
  try {
    postMessage({ id, ok: await calls[call](argument) });
  } catch (error) {
    postMessage({ id, error: { message: error.message, kind: error.kind, remedy: error.remedy } });
  }
};
