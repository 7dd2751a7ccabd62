// Measures the package in Node.js, or with `--chromium` in workers of the page: `node crates/web/tests/time.mjs MODEL.pte…`. With
// `--threads=2`, the modules for one thread and for two take turns, and the last number is how many times as fast two threads are.

import { readFileSync } from "node:fs";
import { resolve } from "node:path";
import { Chromium } from "./chromium.mjs";
import { serveIsolated } from "./isolated.mjs";

const options = process.argv.slice(2).filter((argument) => argument.startsWith("--"));
const files = process.argv.slice(2).filter((argument) => !argument.startsWith("--"));
const threads = Number(options.find((option) => option.startsWith("--threads="))?.slice(10) ?? 1);
const ROUNDS = 6;
const dist = new URL("../dist/", import.meta.url);
const milliseconds = (time) => `${time.toFixed(3)} ms`;

/** The number of runs that take a quarter of a second. */
const repeats = (ms) => Math.min(1000, Math.max(5, Math.round(250 / ms)));

/** Measures the sides in turns: each is a function that loads a file, and one that runs it some times and returns the times. */
async function compare(sides) {
  for (const file of files) {
    const bytes = readFileSync(file);
    const found = [];
    for (const side of sides) {
      await side.load(resolve(file), bytes);
      const { loadMs, ms } = await side.measure(5);
      found.push({ loadMs, first: ms, runs: repeats((await side.measure(5)).latency.min), min: Infinity, medians: [] });
    }
    for (let round = 0; round < ROUNDS; round++) {
      for (const [i, side] of sides.entries()) {
        const { latency } = await side.measure(found[i].runs);
        found[i].min = Math.min(found[i].min, latency.min);
        found[i].medians.push(latency.median);
      }
    }
    for (const [i, { loadMs, first, min, medians }] of found.entries()) {
      const median = medians.sort((a, b) => a - b)[ROUNDS / 2];
      console.log(`${file}, ${sides[i].threads} thread${sides[i].threads > 1 ? "s" : ""}: method loaded ${milliseconds(loadMs)}, `
        + `first ${milliseconds(first)}, then fastest ${milliseconds(min)}, median ${milliseconds(median)}`);
    }
    if (found.length > 1) console.log(`  ${(found[0].min / found[1].min).toFixed(2)} times as fast`);
    for (const side of sides) await side.close();
  }
}

/** A package of its own in Node.js. */
async function inNode(number) {
  const { about, load, setup } = await import(`${new URL("pteron.js", dist)}?${number}`);
  const start = performance.now();
  await setup(undefined, { threads: number });
  console.log(`${number}: compiled and instantiated in ${milliseconds(performance.now() - start)}`, await about());
  let module;
  return {
    threads: number,
    load: async (name, bytes) => { module = await load({ name, bytes }); },
    measure: async (repeat) => module.measure(module.random(), { repeat }),
    close: async () => module.dispose(),
  };
}

/** A package in a worker of a page. It is the first part of the page's own worker script. */
async function inBrowser(browser, number) {
  const { about, ms } = await browser.evaluate(`(async () => {
    const [script] = document.getElementById("worker").textContent.split("// Runs Pteron in a worker");
    const times = \`let module; onmessage = async ({ data: { source, number, bytes, repeat, close } }) => {
      const start = performance.now();
      if (source) return postMessage((await setup(source, { threads: number }), { about: await about(), ms: performance.now() - start }));
      if (bytes) return postMessage((module = await load(bytes), 0));
      if (close) return postMessage(module.dispose() ?? 0);
      const { outputs, ...times } = module.measure(module.random(), { repeat });
      postMessage(times);
    };\`;
    const worker = new Worker(URL.createObjectURL(new Blob([script, times], { type: "text/javascript" })));
    (window.sides ??= {})[${number}] = (message) => new Promise((resolve, reject) => {
      worker.onmessage = ({ data }) => resolve(data);
      worker.onerror = (event) => reject(new Error(event.message));
      worker.postMessage(message);
    });
    return sides[${number}]({ source: new URL("pteron${number > 1 ? ".threads" : ""}.wasm", location.href).href, number: ${number} });
  })()`);
  console.log(`${number}: compiled and instantiated in ${milliseconds(ms)}`, about);
  const ask = (message) => browser.evaluate(`sides[${number}](${message})`);
  return {
    threads: number,
    load: (_, bytes) => ask(`{ bytes: Uint8Array.from(atob("${bytes.toString("base64")}"), (c) => c.charCodeAt(0)) }`),
    measure: (repeat) => ask(`{ repeat: ${repeat} }`),
    close: () => ask("{ close: true }"),
  };
}

const numbers = threads > 1 ? [1, threads] : [1];
if (options.includes("--chromium")) {
  const server = await serveIsolated(dist);
  const browser = await Chromium.start();
  await browser.go(new URL("pteron.html", server.address));
  console.log(`the page has started its module after ${await browser.until("document.documentElement.dataset.startMs")} ms`);
  const sides = [];
  for (const number of numbers) sides.push(await inBrowser(browser, number));
  await compare(sides);
  await browser.close();
  server.close();
} else {
  const sides = [];
  for (const number of numbers) sides.push(await inNode(number));
  await compare(sides);
}
