// Tests the module for several threads in Node.js: `node --test crates/web/tests`, after `build.sh`. PTERON_CASES names other folders
// of programs, separated by colons.

import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";

const root = new URL("../../../", import.meta.url);
const dist = new URL("../dist/", import.meta.url);
const skip = !existsSync(new URL("pteron.threads.wasm", dist)) && "the module for several threads was not built";
const folders = process.env.PTERON_CASES?.split(":") ?? [new URL("testdata/corpus/tiny", root).pathname];
const digits = readFileSync(new URL("examples/digits/digits.pte", root));

/** The package with an engine of its own. */
const separate = (name) => import(`${new URL("pteron.js", dist)}?${name}`);

/** The outputs of a program for its pseudo-random inputs, as bytes, or the message of its error. */
function outcome({ Tensor }, module) {
  const plain = (value) => (value instanceof Tensor ? [value.dtype, value.sizes, Buffer.from(value.data.buffer).toString("latin1")]
    : Array.isArray(value) ? value.map(plain) : String(value));
  try {
    return plain(module.run(module.random()));
  } catch (error) {
    assert.notEqual(error.kind, "stopped", error.message);
    return error.message;
  }
}

test("results are the same with any number of threads, bit for bit", { skip }, async () => {
  const numbers = [1, 2, 3];
  const packages = await Promise.all(numbers.map((threads) => separate(`threads-${threads}`)));
  for (const [i, pteron] of packages.entries()) {
    await pteron.setup(undefined, { threads: numbers[i] });
    assert.equal((await pteron.about()).threads, numbers[i]);
  }
  let programs = 0;
  for (const folder of folders.flatMap((parent) => readdirSync(parent).sort().map((name) => `${parent}/${name}`))) {
    // Programs that need other files fail, with the same message.
    if (!existsSync(`${folder}/model.pte`)) continue;
    const bytes = readFileSync(`${folder}/model.pte`);
    const outcomes = [];
    for (const pteron of packages) {
      const module = await pteron.load({ name: folder, bytes });
      outcomes.push(outcome(pteron, module));
      module.dispose();
    }
    for (const other of outcomes.slice(1)) assert.deepEqual(other, outcomes[0], folder);
    programs += 1;
  }
  assert.ok(programs > 0);
});

test("an engine that is replaced stays usable until its modules are closed", { skip }, async () => {
  const { setup, load, about } = await separate("replaced");
  await setup(undefined, { threads: 2 });
  const first = await load(digits);
  await setup(readFileSync(new URL("pteron.threads.wasm", dist)), { threads: 3 });
  assert.equal((await about()).threads, 3);
  const second = await load(digits);
  assert.deepEqual(first.run(new Float32Array(64)), second.run(new Float32Array(64)));
  first.dispose();
  assert.deepEqual(second.run(new Float32Array(64))[0].sizes, [1, 10]);
  await setup(undefined, { threads: 1 });
  second.dispose();
  assert.equal((await about()).threads, 1);
});

/** Runs a script of Node.js to its end. */
const run = (script) => {
  const { status, signal, stdout, stderr } = spawnSync(process.execPath, ["--input-type=module", "--eval", script], { encoding: "utf8", timeout: 60_000 });
  return { status: signal ?? status, stdout, stderr };
};

test("a process ends with its threads waiting", { skip }, () => {
  const program = new URL("examples/digits/digits.pte", root).pathname;
  const { status, stdout, stderr } = run(`
    import { readFileSync } from "node:fs";
    import { about, load, setup } from ${JSON.stringify(String(new URL("pteron.js", dist)))};
    await setup(undefined, { threads: 4 });
    const module = await load(readFileSync(${JSON.stringify(program)}));
    module.run(module.random());
    console.log((await about()).threads);`);
  assert.deepEqual([status, stdout, stderr], [0, "4\n", ""]);
});

test("without shared memory there is one thread", { skip }, () => {
  const { status, stdout } = run(`
    delete globalThis.SharedArrayBuffer;
    const { about, setup } = await import(${JSON.stringify(String(new URL("pteron.js", dist)))});
    await setup(undefined, { threads: 2 });
    console.log((await about()).threads);`);
  assert.deepEqual([status, stdout], [0, "1\n"]);
});

/**
 * A module that starts a thread, which traps: `pteron_thread_lost` sets the word of the memory for which `pteron_buffer` waits, and
 * that traps, too.
 */
function failing() {
  const name = (text) => [text.length, ...new TextEncoder().encode(text)];
  const section = (id, count, ...parts) => {
    const content = [count, ...parts.flat()];
    return [id, content.length, ...content];
  };
  const body = (...code) => [code.length + 2, 0, ...code, 0x0b];
  const [I32, CONST, CALL, DROP, UNREACHABLE] = [0x7f, 0x41, 0x10, 0x1a, 0x00];
  const exported = (text, index) => [...name(text), 0, index];
  return Uint8Array.from([
    0, 0x61, 0x73, 0x6d, 1, 0, 0, 0,
    ...section(1, 4, [0x60, 0, 1, I32], [0x60, 1, I32, 1, I32], [0x60, 2, I32, I32, 0], [0x60, 0, 0]),
    ...section(2, 2, [...name("env"), ...name("memory"), 2, 3, 1, 0x80, 0x80, 4], [...name("wasi"), ...name("thread-spawn"), 0, 1]),
    ...section(3, 5, [3, 0, 2, 3, 1]),
    ...section(7, 5, exported("_initialize", 1), exported("pteron_start", 2), exported("wasi_thread_start", 3),
      exported("pteron_thread_lost", 4), exported("pteron_buffer", 5)),
    ...section(10, 5, body(), body(CONST, 0, CALL, 0, DROP, CONST, 1), body(UNREACHABLE),
      body(CONST, 0, CONST, 1, 0xfe, 0x17, 2, 0),
      body(0x03, 0x40, CONST, 0, 0xfe, 0x10, 2, 0, 0x45, 0x0d, 0, 0x0b, UNREACHABLE)),
  ]);
}

test("the error of a thread is that of the run, and the engine stops", { skip }, async () => {
  const { setup, about } = await separate("failing");
  await assert.rejects(setup(failing(), { threads: 2 }), ({ kind, message }) => kind === "stopped" && /unreachable.*call setup\(\)/.test(message));
  assert.ok((await about()).threads >= 1, "another engine is started");
});
