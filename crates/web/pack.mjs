// Writes dist/: the npm package, and the self-contained page. `build.sh` calls it with the WebAssembly module, and with the one for
// several threads where it could be built.

import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const here = new URL("./", import.meta.url);
const text = (path) => readFileSync(new URL(path, here), "utf8");
const base64 = (path) => readFileSync(new URL(path, here)).toString("base64");
const dist = new URL("dist/", here);
const [wasm, threads] = process.argv.slice(2).map((path) => readFileSync(path));

rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);
for (const name of ["pteron.js", "threads.js", "pteron.d.ts"]) copyFileSync(new URL(`js/${name}`, here), new URL(name, dist));
writeFileSync(new URL("pteron.wasm", dist), wasm);
if (threads) writeFileSync(new URL("pteron.threads.wasm", dist), threads);

const zipped = gzipSync(wasm, { level: 9 });
const digits = "../../examples/digits/";
/** The text of a module as that of a classic script. */
const script = (path) => text(path).replace(/^import .*\n/gm, "").replace(/^export /gm, "").replaceAll("import.meta.url", "location.href");
const places = {
  style: text("page/style.css"),
  script: text("page/page.js"),
  // The package and the worker are one classic script: a page that is opened as a file cannot start a module worker.
  worker: `"use strict";\n${script("js/threads.js")}\n${script("js/pteron.js")}\n${text("page/worker.js")}`,
  wasm: zipped.toString("base64"),
  example: JSON.stringify({
    program: base64(`${digits}digits.pte`), picture: base64(`${digits}3.png`), labels: base64(`${digits}labels.txt`),
  }),
};
for (const [name, content] of Object.entries(places)) {
  if (/<\/?script|<!--/i.test(content)) throw new Error(`${name} would end its element`);
}
const page = text("page/index.html").replace(/\{\{(\w+)\}\}/g, (_, name) => places[name]);
writeFileSync(new URL("pteron.html", dist), page);

const size = (bytes) => `${(bytes / 1e6).toFixed(2)} MB`;
const sizes = (module) => `${size(module.length)} (gzip ${size(gzipSync(module, { level: 9 }).length)})`;
console.log(`dist/pteron.wasm ${sizes(wasm)}, dist/pteron.html ${size(page.length)}`);
if (threads) console.log(`dist/pteron.threads.wasm ${sizes(threads)}`);
