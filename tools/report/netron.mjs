// Opens the files listed on standard input, one per line, with Netron, and prints `ok NODES FILE` or
// `failed FILE: reason` for each. Usage: node netron.mjs FOLDER, where FOLDER holds Netron's modules (from its wheel on
// PyPI).
import * as fs from "fs";
import * as path from "path";
import * as readline from "readline";
import { pathToFileURL } from "url";

const folder = path.resolve(process.argv[2]);
const load = (name) => import(pathToFileURL(path.join(folder, name)).href);
const base = await load("base.js");
globalThis.document ??= { createElement: () => ({ style: {} }) };
globalThis.window ??= globalThis;
const view = await load("view.js");

const host = {
  type: "Test",
  require: (id) => load(`${id}.js`),
  asset: async (file) => fs.promises.readFile(path.join(folder, file), "utf-8"),
  fetch: async (file, encoding, from) => {
    const bytes = await fs.promises.readFile(path.join(from ?? ".", file));
    return encoding ? bytes.toString(encoding) : new base.BinaryStream(new Uint8Array(bytes));
  },
  event: () => {},
  exception: () => {},
  environment: () => null,
};

async function open(file) {
  const stream = new base.BinaryStream(new Uint8Array(await fs.promises.readFile(file)));
  const context = { ...host, identifier: path.basename(file), name: file, stream, entries: new Map() };
  context.fetch = (other, encoding) => host.fetch(other, encoding, path.dirname(file));
  const model = await new view.ModelFactoryService(host).open(context);
  const graphs = model.modules ?? model.graphs ?? [];
  return graphs.reduce((sum, graph) => sum + (graph.nodes?.length ?? 0), 0);
}

for await (const file of readline.createInterface({ input: process.stdin })) {
  try {
    console.log(`ok ${await open(file)} ${file}`);
  } catch (error) {
    console.log(`failed ${file}: ${String(error.message).split("\n")[0]}`);
  }
}
