"use strict";
(() => {
const at = (id) => document.getElementById(id);
const text = (id) => at(id).textContent;
const make = (name, facts = {}, ...children) => {
  const made = Object.assign(document.createElement(name), facts);
  made.append(...children);
  return made;
};

// The worker.

const started = performance.now();
let worker, ready, asked = new Map(), next = 0;

function start() {
  const url = URL.createObjectURL(new Blob([text("worker")], { type: "text/javascript" }));
  worker = new Worker(url);
  worker.onmessage = ({ data: { id, ok, error } }) => {
    const { resolve, reject } = asked.get(id);
    asked.delete(id);
    error ? reject(Object.assign(new Error(error.message), error)) : resolve(ok);
  };
  worker.onerror = (event) => {
    for (const { reject } of asked.values()) reject(new Error(event.message || "the worker did not start"));
    asked.clear();
  };
  // A page that a server isolates from other origins may share memory with threads: their module is beside it.
  const threads = globalThis.crossOriginIsolated ? new URL("pteron.threads.wasm", location.href).href : null;
  ready = unpacked(text("wasm")).then((wasm) => ask("start", { wasm, threads })).then((about) => {
    document.documentElement.dataset.startMs = (performance.now() - started).toFixed(1);
    document.documentElement.dataset.threads = about.threads;
    return about;
  });
  ready.catch(fail);
}

const ask = (call, argument) => new Promise((resolve, reject) => {
  asked.set(++next, { resolve, reject });
  worker.postMessage({ id: next, call, argument });
});

const bytesOf = (base64) => Uint8Array.from(atob(base64.trim()), (c) => c.charCodeAt(0));

function unpacked(base64) {
  const stream = new Blob([bytesOf(base64)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).arrayBuffer();
}

// State of the page.

let opened = null, files = null, inputs = [], labels = [], address = null, shown = null;
const PROGRAMS = /\.(pte|bpte|pt2|bef|mlir|gguf|etdp|etdump)$/i, DATA = /\.ptd$/i, PICTURES = /\.(png|jpe?g|webp|bmp)$/i, LABELS = /\.(txt|csv)$/i;

/** Handles files by their kinds: programs, data, labels, pictures. */
async function take(list) {
  const all = [...list];
  const has = (kind) => all.filter((file) => kind.test(file.name));
  const [program] = has(PROGRAMS);
  const data = has(DATA);
  const others = all.filter((file) => ![PROGRAMS, DATA, PICTURES, LABELS].some((kind) => kind.test(file.name)));
  try {
    if (program) await open(program, data);
    else if (data.length && opened?.methods.length) await open(files.program, [...files.data, ...data]);
    else if (data.length || others.length) await open(others[0] ?? data[0], others[0] ? data : []);
    for (const file of has(LABELS)) await label(file);
    for (const file of has(PICTURES)) await picture(file);
  } catch (error) {
    fail(error);
  }
}

async function open(program, data) {
  say(`Opening ${program.name} …`);
  await ready;
  const given = async (file) => ({ name: file.name, bytes: await file.arrayBuffer() });
  const found = await ask("open", { file: await given(program), data: await Promise.all(data.map(given)) });
  [opened, files] = [found, { program, data }];
  at("name").textContent = opened.name;
  const outside = data.length ? ` and ${data.map((file) => file.name).join(", ")}` : "";
  at("facts").textContent = `${size(opened.bytes)}${outside}`;
  document.title = `${opened.name} · Pteron`;
  [at("file").hidden, at("open").hidden, at("start").hidden, at("work").hidden] = [false, false, true, false];
  at("results").hidden = true;
  const { methods, functions, main } = opened;
  at("method").replaceChildren(...methods.map(({ name }) => make("option", { textContent: name, selected: name === main })));
  at("methods").hidden = methods.length < 2;
  at("form").hidden = !methods.length;
  at("calls").value = functions.filter((one) => takesNothing(one)).map(({ name }) => name).join("\n");
  at("functions").hidden = !functions.length;
  labelOf(opened.task);
  showInputs();
  say("Drawing the report …");
  show(await ask("report"));
  say(methods.length || functions.length ? "" : "This file has no methods to run.");
}

/** Puts a page into the frame. */
function show(html) {
  if (address) URL.revokeObjectURL(address);
  address = URL.createObjectURL(shown = new Blob([html], { type: "text/html" }));
  at("report").src = `${address}#theme=${isDark() ? "dark" : "light"}`;
}

// Inputs.

const method = () => opened.methods.find(({ name }) => name === at("method").value);

/** Whether a tensor can be a single picture: "first" or "last", the position of 1, 3 or 4 channels, or null. */
function pictured({ dtype, sizes }) {
  const three = sizes.length === 4 && sizes[0] === 1 ? sizes.slice(1) : sizes.length === 3 ? sizes : null;
  if (!three || !/^(b?float|uint8|int(16|32|64)$)/.test(dtype)) return null;
  const colours = (channels) => [1, 3, 4].includes(channels);
  return colours(three[0]) ? "first" : colours(three[2]) ? "last" : null;
}

function showInputs() {
  inputs = method() ? method().inputs.map(input) : [];
  at("inputs").replaceChildren(...inputs.map(({ field }) => field).filter(Boolean));
}

/** An input: the form field, and a function that returns the source of its values. */
function input({ name: label, tensor, fixed }, index) {
  if (fixed !== null || !tensor) return { source: async () => ({ kind: "fixed" }) };
  const channels = pictured(tensor);
  const choice = make("select", { id: `source${index}` });
  const options = [channels && ["picture", "A picture"], ["random", "Random numbers"], ["zeros", "Zeros"], ["numbers", "These numbers"]];
  choice.append(...options.filter(Boolean).map(([value, textContent]) => make("option", { value, textContent })));
  choice.value = "random";
  const values = make("select", { ariaLabel: "Values" });
  values.append(...[["unit", "0 to 1"], ["signed", "−1 to 1"], ["imagenet", "ImageNet’s mean and deviation"]]
    .map(([value, textContent]) => make("option", { value, textContent })));
  const isFloat = /float/.test(tensor.dtype);
  const cut = make("select");
  if (opened.task?.preprocessing) cut.append(make("option", { value: "stored", textContent: "As the program says" }));
  cut.append(make("option", { value: "stretch", textContent: "Stretched" }), make("option", { value: "middle", textContent: "Shorter side, middle cut out" }));
  const pick = make("button", { type: "button", textContent: "Choose a picture" });
  const image = make("img", { alt: "", hidden: true });
  const numbers = make("textarea", { ariaLabel: "Numbers", placeholder: "0.5, 1, …", spellcheck: false });
  const sizes = make("input", { ariaLabel: "Sizes", value: tensor.sizes.join(", ") });
  const sized = tensor.dynamic ? [make("label", {}, "Sizes ", sizes)] : [];
  const valued = make("label", {}, "Values ", values);
  cut.onchange = () => { valued.hidden = cut.value === "stored"; };
  cut.onchange();
  const of = {
    picture: [make("div", { className: "preview" }, image, pick), ...(isFloat ? [valued] : []), make("label", {}, "Shape ", cut)],
    random: [], zeros: sized, numbers: [...sized, numbers],
  };
  const name = label || (method().inputs.length > 1 ? `Input ${index + 1}` : "Input");
  const more = make("div", { style: "display: grid; gap: 9px" });
  const field = make("fieldset", {}, make("legend", { textContent: name }),
    make("p", { className: "type", textContent: `${tensor.dtype} ${tensor.sizes.join("×") || "scalar"}${tensor.dynamic ? " at most" : ""}` }),
    make("label", {}, "Filled with ", choice), more);
  const self = { field, file: null, takesPicture: Boolean(channels) };
  choice.onchange = () => more.replaceChildren(...of[choice.value]);
  choice.onchange();
  pick.onclick = () => browse("image/png,image/jpeg,image/webp,image/bmp", (list) => self.take(list[0]));
  self.take = async (file) => {
    self.file = file;
    choice.value = "picture";
    choice.onchange();
    pick.textContent = file.name;
    if (image.src) URL.revokeObjectURL(image.src);
    [image.src, image.alt, image.hidden] = [URL.createObjectURL(file), file.name, false];
  };
  self.source = async () => {
    const declared = tensor.dynamic ? sizes.value.split(/[\s,×x]+/).filter(Boolean).map(Number) : tensor.sizes;
    switch (choice.value) {
      case "picture": {
        if (!self.file) throw new Error(`choose a picture for ${name}, or fill it with something else`);
        const [height, width] = channels === "last" ? tensor.sizes.slice(-3) : tensor.sizes.slice(-2);
        const middle = { resize: Math.round(Math.min(height, width) * 8 / 7), crop: [height, width] };
        const options = cut.value === "stored" ? {} : { channelsLast: channels === "last", ...(isFloat ? { preset: values.value } : {}), ...(cut.value === "middle" ? middle : {}) };
        return { kind: "picture", name: self.file.name, bytes: await self.file.arrayBuffer(), options };
      }
      case "numbers": return { kind: "numbers", text: numbers.value, sizes: declared };
      case "zeros": return { kind: "zeros", dtype: tensor.dtype, sizes: declared };
      default: return { kind: "random" };
    }
  };
  return self;
}

async function picture(file) {
  const target = inputs.find((input) => input.takesPicture);
  if (!target) throw new Error(`${file.name}: no input of the program takes a picture`);
  await target.take(file);
}

function labelOf(task) {
  if (!task?.labels) return;
  labels = task.labels;
  at("labels").textContent = `of the program (${labels.length})`;
}

async function label(file) {
  labels = (await file.text()).trimEnd().split(/\r?\n/).map((line) => line.trim());
  at("labels").textContent = `${file.name} (${labels.length})`;
}

// Running.

async function request() {
  const sources = await Promise.all(inputs.map((input) => input.source()));
  return { method: method().name, sources, repeat: Math.max(0, Math.trunc(Number(at("repeat").value) || 0)), labels };
}

async function act(what, does) {
  if (at("run").disabled || !opened?.methods.length) return;
  [at("run").disabled, at("profile").disabled] = [true, true];
  say(what);
  try {
    await does(await request());
    say("");
  } catch (error) {
    say("");
    fail(error);
  } finally {
    [at("run").disabled, at("profile").disabled] = [false, false];
  }
}

const run = () => act("Running …", async (asked) => results(await ask("run", asked)));
const profile = () => act("Running, and drawing the report …", async (asked) => show(await ask("profile", { ...asked, repeat: Math.max(1, asked.repeat) })));

/** Whether a function of a BEF program runs without arguments; chains may be left out. */
const takesNothing = ({ arguments: types }) => types.every((type) => type === "!tfrt.chain");

/** Runs the functions of a BEF program that are named, one in each line, and shows what they print. */
async function call() {
  const calls = at("calls").value.split("\n").map((line) => line.trim()).filter(Boolean);
  say("Running …");
  try {
    const { output, errors, exitCode, ms } = await ask("runFunctions", calls);
    const rows = [["Exit code", String(exitCode)], ["All functions", milliseconds(ms)]];
    at("times").replaceChildren(...rows.flatMap(([name, value]) => [make("dt", { textContent: name }), make("dd", { textContent: value })]));
    at("outputs").replaceChildren(...[output, errors].filter(Boolean).map((textContent) => make("pre", { textContent })));
    at("results").hidden = false;
    say("");
  } catch (error) {
    fail(error);
  }
}

function results({ outputs, inputsMs, loadMs, ms, latency }) {
  const rows = [["Inputs", inputsMs], ["Loading the method", loadMs], ["First run", ms]];
  if (latency) rows.push([`Mean of ${latency.runs} runs`, latency.mean], ["Fastest", latency.min], ["Median", latency.median], ["99 of 100 within", latency.p99]);
  at("times").replaceChildren(...rows.flatMap(([name, time]) => [make("dt", { textContent: name }), make("dd", { textContent: milliseconds(time) })]));
  at("outputs").replaceChildren(...outputs.map(output));
  at("results").hidden = false;
}

function output({ type, text, top, items }) {
  const made = make("div", { className: "output" }, make("p", { textContent: type }));
  if (items) return made.append(...items.map(output)), made;
  if (top) {
    const most = Math.max(...top.map(({ value }) => Math.abs(value)), Number.MIN_VALUE);
    const row = ({ index, value, label }) => {
      const item = make("li", {}, make("span", { textContent: label ?? `class ${index}` }), make("span", { textContent: number(value) }));
      item.style.setProperty("--share", `${Math.max(0, (value ?? 0) / most * 100).toFixed(1)}%`);
      return item;
    };
    made.append(make("ol", { className: "top" }, ...top.map(row)));
  }
  const all = make("pre", { textContent: text });
  made.append(top ? make("details", {}, make("summary", { textContent: "Elements" }), all) : all);
  return made;
}

// Words.

const number = (value) => (value === null ? "NaN" : Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6 || !value ? value.toFixed(4) : value.toExponential(3));
const milliseconds = (ms) => (ms >= 1000 ? `${(ms / 1000).toFixed(2)} s` : ms >= 10 ? `${ms.toFixed(1)} ms` : `${ms.toFixed(3)} ms`);
const size = (bytes) => (bytes < 1e3 ? `${bytes} B` : bytes < 1e6 ? `${(bytes / 1e3).toFixed(1)} kB` : `${(bytes / 1e6).toFixed(1)} MB`);

function say(what) {
  at("busy").textContent = what;
  at("said").textContent = what;
}

function fail(error) {
  say("");
  const { message, remedy, kind } = error;
  at("alert").firstElementChild.textContent = remedy && !message.includes(remedy) ? `${message}\n${remedy}` : message;
  at("alert").hidden = false;
  // A stopped module has lost its open file: start another worker and open the file again, once.
  if (kind !== "stopped" || !files) return;
  const { program, data } = files;
  files = null;
  worker.terminate();
  asked.clear();
  start();
  open(program, data).catch(fail);
}

// Keys, files, themes.

const isDark = () => (document.documentElement.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

function turn() {
  document.documentElement.dataset.theme = isDark() ? "light" : "dark";
  if (shown) show(shown);
}

function browse(accept, then) {
  const chooser = at("files");
  [chooser.accept, chooser.value] = [accept, ""];
  chooser.onchange = () => chooser.files.length && Promise.resolve(then(chooser.files)).catch(fail);
  chooser.click();
}

function example() {
  const { program, picture, labels } = JSON.parse(text("digits"));
  const file = (name, base64, type) => new File([bytesOf(base64)], name, { type });
  take([file("digits.pte", program, ""), file("3.png", picture, "image/png"), file("labels.txt", labels, "text/plain")]);
}

at("choose").onclick = at("open").onclick = () => browse("", take);
at("example").onclick = example;
at("labels").onclick = () => browse(".txt,.csv,text/plain", (list) => label(list[0]));
at("method").onchange = showInputs;
at("report").onload = () => { document.documentElement.dataset.report = at("report").src; };
at("form").onsubmit = (event) => {
  event.preventDefault();
  run();
};
at("functions").onsubmit = (event) => {
  event.preventDefault();
  call();
};
at("profile").onclick = profile;
at("theme").onclick = turn;
at("alert").querySelector("button").onclick = () => { at("alert").hidden = true; };
function press(key, control) {
  if (control) return void (key === "Enter" && run());
  if (key === "Escape") at("alert").hidden = true;
  if (key === "o") browse("", take);
  if (key === "t") turn();
}

addEventListener("keydown", (event) => {
  const control = event.ctrlKey || event.metaKey;
  const types = event.target.closest?.("input, select, textarea");
  if (control && event.key === "Enter") event.preventDefault();
  if (control || event.key === "Escape" || !(event.altKey || types)) press(event.key, control);
});
let over = 0;
const hovers = (by) => document.body.classList.toggle("over", (over = Math.max(0, over + by)) > 0);
addEventListener("dragenter", () => hovers(1));
addEventListener("dragleave", () => hovers(-1));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  hovers(-Infinity);
  if (event.dataTransfer.files.length) take(event.dataTransfer.files);
});
// The report is a frame of another origin: its script forwards drag events and keys.
addEventListener("message", ({ source, data }) => {
  if (source !== at("report").contentWindow || data?.pteron !== "report") return;
  if (data.key) return press(data.key, data.control);
  hovers(data.files ? -Infinity : data.over);
  if (data.files?.length) take(data.files);
});
start();
})();
