// Writes dist/: the npm package, and the self-contained page. `build.sh` calls it with the WebAssembly module.

import { copyFileSync, mkdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { gzipSync } from "node:zlib";

const here = new URL("./", import.meta.url);
const text = (path) => readFileSync(new URL(path, here), "utf8");
const base64 = (path) => readFileSync(new URL(path, here)).toString("base64");
const dist = new URL("dist/", here);
const wasm = readFileSync(process.argv[2]);

rmSync(dist, { recursive: true, force: true });
mkdirSync(dist);
for (const name of ["pteron.js", "pteron.d.ts"]) copyFileSync(new URL(`js/${name}`, here), new URL(name, dist));
writeFileSync(new URL("pteron.wasm", dist), wasm);

const zipped = gzipSync(wasm, { level: 9 });
const digits = "../../examples/digits/";
const places = {
  style: text("page/style.css"),
  script: text("page/page.js"),
  // The package and the worker are one classic script: a page that is opened as a file cannot start a module worker.
  worker: `"use strict";\n${text("js/pteron.js").replace(/^export /gm, "").replaceAll("import.meta.url", "location.href")}\n${text("page/worker.js")}`,
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
console.log(`dist/pteron.wasm ${size(wasm.length)} (gzip ${size(zipped.length)}), dist/pteron.html ${size(page.length)}`);
