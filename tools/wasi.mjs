// Runs a module for WASI in Node.js: `node --no-warnings tools/wasi.mjs MODULE.wasm ARGUMENTS…`. It sees the files below the
// current folder. For cargo: CARGO_TARGET_WASM32_WASIP1_RUNNER="node --no-warnings $PWD/tools/wasi.mjs".

import { readFileSync } from "node:fs";
import { basename } from "node:path";
import { WASI } from "node:wasi";

const [file, ...args] = process.argv.slice(2);
const wasi = new WASI({ version: "preview1", args: [basename(file), ...args], env: process.env, returnOnExit: true, preopens: { ".": "." } });
const { instance } = await WebAssembly.instantiate(readFileSync(file), wasi.getImportObject());
// Node.js 20 may crash in `process.exit` while it compiles functions.
process.exitCode = wasi.start(instance);
