// Runs recorded cases of the reference with the WebAssembly module. PTERON_CASES names other folders of cases (see
// CONTRIBUTING.md for their format), separated by colons; PTERON_THREADS the number of threads, 1 by default.

import assert from "node:assert/strict";
import { existsSync, readFileSync, readdirSync } from "node:fs";
import { test } from "node:test";
import { Tensor, about, load, setup } from "../dist/pteron.js";

const here = new URL("../../../testdata/corpus/tiny", import.meta.url).pathname;
const folders = process.env.PTERON_CASES?.split(":") ?? [here];

/** Tolerances relative to the largest element of an output, for types with fewer bits than float32. */
const TOLERANCE = { float16: 4e-3, bfloat16: 4e-2 };

const bits = new DataView(new ArrayBuffer(8));
const numbers = {
  bfloat16: (half) => (bits.setUint32(0, half << 16), bits.getFloat32(0)),
  float16(half) {
    const [sign, exponent, fraction] = [half >> 15 ? -1 : 1, (half >> 10) & 31, half & 1023];
    if (exponent === 31) return fraction ? NaN : sign * Infinity;
    return sign * (exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -14 * (fraction / 1024));
  },
};

/** The largest difference between an output and the expected one, in units of the tolerance. */
function distance(found, expected, scale) {
  if (Array.isArray(expected)) {
    assert.equal(found.length, expected.length);
    return Math.max(0, ...expected.map((inner, i) => distance(found[i], inner, scale)));
  }
  if (!(expected instanceof Tensor)) return Object.is(found, expected) || Math.abs(found - expected) < 1e-5 ? 0 : Infinity;
  assert.deepEqual([found.dtype, found.sizes], [expected.dtype, expected.sizes]);
  const number = numbers[expected.dtype] ?? Number;
  const [a, b] = [Array.from(found.data, number), Array.from(expected.data, number)];
  if (!/float|complex/.test(expected.dtype)) return a.every((value, i) => value === b[i]) ? 0 : Infinity;
  const most = Math.max(1e-30, ...b.map(Math.abs).filter(Number.isFinite));
  const { atol = 1e-5, rtol = TOLERANCE[expected.dtype] ?? 1e-4 } = scale ?? {};
  const apart = a.map((value, i) => (Object.is(value, b[i]) || value === b[i] ? 0 : Math.abs(value - b[i]) / (atol + rtol * most)));
  return Math.max(0, ...apart.map((value) => (Number.isNaN(value) ? Infinity : value)));
}

/** Reads a recorded value. */
function value(folder, recorded) {
  const { kind, dtype, shape, file, offset, nbytes } = recorded;
  if (kind === "tensor") {
    const bytes = readFileSync(`${folder}/${file}`).subarray(offset, offset + nbytes);
    const array = new Tensor(dtype, shape).data.constructor;
    return new Tensor(dtype, shape, new array(Uint8Array.from(bytes).buffer));
  }
  if (kind === "list") return recorded.values.map((inner) => value(folder, inner));
  if (kind === "double") return Number(String(recorded.value).replace("inf", "Infinity"));
  return kind === "none" ? null : recorded.value;
}

async function check(folder, { model, data_files = [], runs, tolerance }) {
  const data = data_files.map(({ file }) => readFileSync(`${folder}/${file}`));
  const module = await load({ name: folder, bytes: readFileSync(`${folder}/${model}`) }, { data });
  let counted = 0;
  for (const { method = "forward", inputs, outputs, runtime_error, reference_departs } of runs) {
    const given = inputs.map((recorded) => value(folder, recorded));
    if (runtime_error || reference_departs) {
      // Any result or error is accepted, but the module must not stop. Later runs may depend on the state, so skip them.
      try {
        module.run(method, given);
      } catch (error) {
        assert.notEqual(error.kind, "stopped", error.message);
      }
      break;
    }
    const found = module.run(method, given);
    const apart = distance(found, outputs.map((recorded) => value(folder, recorded)), tolerance);
    assert.ok(apart <= 1, `${method}: the outputs are ${apart} tolerances apart`);
    counted += 1;
  }
  module.dispose();
  return counted;
}

/** The cases of a folder: one, or many small ones, unless their results are random. */
function casesOf(folder) {
  // Python writes NaN and infinities as invalid JSON; none of these values is compared.
  const json = (text) => JSON.parse(text.replace(/(?<=[:[,]\s*)(NaN|-?Infinity)(?=\s*[,\]}])/g, "null"));
  const read = (name) => existsSync(`${folder}/${name}`) && json(readFileSync(`${folder}/${name}`, "utf8"));
  const [one, many] = [read("case.json"), read("cases.json")];
  if (one) return [one];
  return many && !many.nondeterministic ? many.cases.map((each) => ({ ...each, model: each.pte })) : [];
}

const threads = Number(process.env.PTERON_THREADS ?? 1);
await setup(undefined, { threads });
test(`there are ${threads} threads`, async () => assert.equal((await about()).threads, threads));

for (const parent of folders) {
  const names = ["", ...readdirSync(parent).sort()];
  let runs = 0;
  for (const folder of names.map((name) => (name ? `${parent}/${name}` : parent))) {
    const cases = casesOf(folder).filter((each) => each.runs && !each.load_error && !each.runtime_crash_signal);
    if (!cases.length) continue;
    test(folder, async () => {
      for (const each of cases) runs += await check(folder, each);
    });
  }
  test(`${parent} has cases`, () => assert.ok(runs > 0, "no run was compared"));
}
