// Measures the package in Node.js, or with `--chromium` in a worker of the page: `node crates/web/tests/time.mjs MODEL.pte…`.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";
import { about, load, setup } from "../dist/pteron.js";
import { Chromium } from "./chromium.mjs";

const isPage = process.argv.includes("--chromium");
const files = process.argv.slice(2).filter((argument) => !argument.startsWith("--"));
const milliseconds = (time) => `${time.toFixed(3)} ms`;
const row = (name, { loadMs, ms, latency }) =>
  console.log(`${name}: method loaded ${milliseconds(loadMs)}, first ${milliseconds(ms)}, then ${latency.runs}: fastest `
    + `${milliseconds(latency.min)}, median ${milliseconds(latency.median)}, mean ${milliseconds(latency.mean)}`);

/** The number of runs that take a second or two. */
const repeats = (ms) => Math.min(5000, Math.max(5, Math.round(1500 / ms)));

if (isPage) {
  const browser = await Chromium.start();
  await browser.go(new URL("../dist/pteron.html", import.meta.url));
  console.log(`the page has started its module after ${await browser.until("document.documentElement.dataset.startMs")} ms`);
  // Runs the package, which is the first part of the page's worker script, in a worker that measures times.
  await browser.evaluate(`(async () => {
    const [script] = document.getElementById("worker").textContent.split("// Runs Pteron in a worker");
    const zipped = Uint8Array.from(atob(document.getElementById("wasm").textContent.trim()), (c) => c.charCodeAt(0));
    const wasm = await new Response(new Blob([zipped]).stream().pipeThrough(new DecompressionStream("gzip"))).arrayBuffer();
    const times = \`onmessage = async ({ data: [wasm, bytes, repeat] }) => {
      const start = performance.now();
      if (wasm) return postMessage((await setup(wasm), performance.now() - start));
      const module = await load(bytes);
      const { outputs, ...times } = module.measure(module.random(), { repeat });
      module.dispose();
      postMessage(times);
    };\`;
    window.worker = new Worker(URL.createObjectURL(new Blob([script, times], { type: "text/javascript" })));
    window.asked = (message) => new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => reject(new Error(event.message));
      worker.postMessage(message);
    });
    window.instantiated = await asked([wasm]);
  })()`);
  console.log(`compiled and instantiated in ${milliseconds(await browser.evaluate("instantiated"))}`);
  for (const file of files) {
    const bytes = readFileSync(file).toString("base64");
    await browser.evaluate(`window.file = Uint8Array.from(atob("${bytes}"), (c) => c.charCodeAt(0)); 0`);
    const { ms } = await browser.evaluate("asked([null, file, 1])");
    row(file, await browser.evaluate(`asked([null, file, ${repeats(ms)}])`));
  }
  await browser.close();
} else {
  const wasm = readFileSync(new URL("../dist/pteron.wasm", import.meta.url));
  for (const _ of [1, 2]) {
    const start = performance.now();
    await setup(wasm);
    console.log(`compiled and instantiated in ${milliseconds(performance.now() - start)}`);
  }
  console.log(await about());
  for (const file of files) {
    const module = await load({ name: pathToFileURL(resolve(file)).pathname, bytes: readFileSync(file) });
    const { ms } = module.measure(module.random(), { repeat: 1 });
    row(file, module.measure(module.random(), { repeat: repeats(ms) }));
    module.dispose();
  }
}
