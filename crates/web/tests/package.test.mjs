// Tests the npm package in Node.js: `node --test crates/web/tests`, after `build.sh`.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { PteronError, Tensor, about, load, setup, top } from "../dist/pteron.js";

const root = new URL("../../../", import.meta.url);
const file = (path) => readFileSync(new URL(path, root));
const digits = (options) => load({ name: "digits.pte", bytes: file("examples/digits/digits.pte") }, options);

/** Checks that `act` fails with an error that has these fields. */
const fails = async (act, facts) => {
  try {
    await act();
  } catch (error) {
    assert.ok(error instanceof PteronError || facts.type === error.name, error.stack);
    for (const [name, wanted] of Object.entries(facts)) {
      if (name === "type") continue;
      wanted instanceof RegExp ? assert.match(error[name], wanted) : assert.deepEqual(error[name], wanted);
    }
    return error;
  }
  assert.fail(`it should fail with ${JSON.stringify(facts)}`);
};

// The module for several threads is tested by threads.test.mjs.
await setup(undefined, { threads: 1 });

test("a picture is classified", async () => {
  const module = await digits();
  assert.equal(module.main, "forward");
  const { name, tensor } = module.method().inputs[0];
  assert.equal(name, null);
  assert.deepEqual(tensor, { dtype: "float32", sizes: [1, 1, 8, 8], dynamic: false });
  const [scores] = module.run(module.picture(file("examples/digits/3.png")));
  assert.deepEqual([scores.dtype, scores.sizes, scores.data.constructor], ["float32", [1, 10], Float32Array]);
  const [[best, second]] = top(scores, 2, [..."abcdefghij"]);
  assert.deepEqual([best.index, best.label], [3, "d"]);
  assert.ok(Math.abs(best.value - 0.959504) < 1e-5 && second.value < best.value, JSON.stringify(best));
  module.dispose();
});

test("inputs are accepted as arrays, lists, tensors and objects", async () => {
  const module = await digits();
  const data = Float32Array.from({ length: 64 }, (_, i) => (i % 16) / 16);
  const [expected] = module.run([data]);
  const rows = Array.from({ length: 8 }, (_, y) => Array.from(data.slice(8 * y, 8 * y + 8)));
  const ways = [
    data, { data }, { data, sizes: [1, 1, 8, 8] }, new Tensor("float32", [1, 1, 8, 8], data), [Array.from(data)], [[[rows]]],
    new Float32Array([0, 0, ...data]).subarray(2), { data: rows, dtype: "float32" },
  ];
  for (const way of ways) assert.deepEqual(module.run("forward", way), [expected]);
  const kept = [...expected.data];
  module.run(new Float32Array(64));
  assert.deepEqual([...expected.data], kept, "outputs stay as they are");
  const { outputs, ms, latency } = module.measure(data, { repeat: 5 });
  assert.deepEqual(outputs, [expected]);
  assert.ok(ms > 0 && latency.runs === 5 && latency.mean > 0 && latency.min <= latency.p99, JSON.stringify(latency));
  assert.deepEqual(module.run(module.random()), module.run("forward", module.random("forward")));
  module.dispose();
});

test("errors have a kind, a location and a remedy", async () => {
  const bytes = file("examples/digits/digits.pte");
  await fails(() => load({ name: "cut.pte", bytes: bytes.subarray(0, 100) }), { kind: "format", file: "cut.pte", message: /cut\.pte/, remedy: /export it again/ });
  await fails(() => load(new TextEncoder().encode("hello")), { kind: "format", message: /is text/ });
  await fails(() => load("model.pte"), { type: "TypeError", message: /bytes/ });
  const module = await digits();
  await fails(() => module.run([]), { kind: "input", message: /1 inputs; it was given 0/ });
  await fails(() => module.run(new Float32Array(63)), { type: "TypeError", message: /63 elements are given, 64 are wanted \(1×1×8×8\)/ });
  await fails(() => module.run(new Float64Array(64)), { type: "TypeError", message: /float32 is given as Float32Array, not as Float64Array/ });
  await fails(() => module.run(new Tensor("uint8", [64])), { kind: "input", method: "forward" });
  await fails(() => module.run({ x: new Float32Array(64) }), { kind: "input", message: /no input is named x/ });
  await fails(() => module.run("backward", []), { kind: "input", message: /no method `backward`; it has forward/ });
  await fails(() => module.picture(bytes), { message: /picture/ });
  module.dispose();
  await fails(() => module.run(new Float32Array(64)), { kind: "input", message: /digits\.pte has been disposed of/ });
  module.dispose();
});

test("external weights are loaded", async () => {
  const folder = "testdata/corpus/tiny/ModuleLinear_extconst/";
  const bytes = file(`${folder}model.pte`);
  const data = file(`${folder}_default_external_constant.ptd`);
  const alone = await load(bytes);
  await fails(() => alone.run(alone.random()), { kind: "data", remedy: /`data`/ });
  for (const given of [data, [{ name: "weights.ptd", bytes: data }], new Blob([data])]) {
    const module = await load(new Blob([bytes]), { name: "linear.pte", data: given });
    assert.equal(module.name, "linear.pte");
    assert.ok(module.run(module.random())[0] instanceof Tensor);
    module.dispose();
  }
  alone.dispose();
});

test("reports are self-contained pages", async () => {
  const module = await digits();
  const unit = (page) => JSON.parse(page.match(/id="data">([^]*?)<\/script>/)[1]).time_unit;
  assert.ok(module.report().startsWith("<!doctype html>"));
  assert.equal(unit(module.report()), undefined);
  assert.equal(unit(module.report({ inputs: module.random(), repeat: 2 })), "µs");
  assert.equal(module.inspect().file, "digits.pte");
  module.dispose();
});

test("freed memory is reused", async () => {
  const before = await about();
  const grown = async (times) => {
    for (let i = 0; i < times; i++) {
      const module = await digits();
      module.run(new Float32Array(64));
      await fails(() => module.run([]), { kind: "input" });
      module.dispose();
    }
    return process.memoryUsage().arrayBuffers;
  };
  const after = await grown(50);
  assert.ok((await grown(200)) - after < 4e6, "no more memory is held");
  const { modules, buffers, version } = await about();
  assert.deepEqual([modules, buffers], [before.modules, before.buffers]);
  assert.equal(version, JSON.parse(file("crates/web/package.json")).version);
});

/** A WebAssembly module with memory, a `pteron_start` that returns a version, and a `pteron_buffer` that traps. */
function stub(version) {
  const name = (text) => [text.length, ...new TextEncoder().encode(text)];
  const section = (id, ...content) => [id, content.length, ...content];
  return Uint8Array.from([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, 2, 0x60, 0, 1, 0x7f, 0x60, 1, 0x7f, 1, 0x7f),
    ...section(3, 2, 0, 1),
    ...section(5, 1, 0, 1),
    ...section(7, 3, ...name("memory"), 2, 0, ...name("pteron_start"), 0, 0, ...name("pteron_buffer"), 0, 1),
    ...section(10, 2, 4, 0, 0x41, version, 0x0b, 3, 0, 0x00, 0x0b),
  ]);
}

test("a module that traps is not used again, and can be replaced", async () => {
  await assert.rejects(setup(stub(9)), /version 9 of the interface; this script wants 1/);
  await setup(stub(1));
  await fails(() => load(new Uint8Array(8)), { kind: "stopped", message: /unreachable.*call setup\(\)/ });
  await setup(undefined, { threads: 1 });
  const module = await digits();
  assert.equal(module.run(new Float32Array(64))[0].data.length, 10);
  const compiled = await WebAssembly.compile(file("crates/web/dist/pteron.wasm"));
  await setup(compiled);
  assert.equal(module.run(new Float32Array(64))[0].data.length, 10, "what is open stays with its instance");
  assert.equal((await about()).modules, 0);
  module.dispose();
});
