// Serves a folder so that its pages are cross-origin isolated, and may share memory with workers.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";

const TYPES = { html: "text/html", js: "text/javascript", wasm: "application/wasm" };

/** Serves the files of a folder on a free port. Returns the address, and a function that ends the server. */
export async function serveIsolated(folder) {
  const server = createServer(async ({ url }, response) => {
    const name = url.slice(1);
    try {
      if (!/^[\w.-]+$/.test(name)) throw new Error("not a name of a file");
      const bytes = await readFile(new URL(name, folder));
      response.writeHead(200, {
        "Content-Type": TYPES[name.split(".").at(-1)] ?? "application/octet-stream",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Embedder-Policy": "require-corp",
      });
      response.end(bytes);
    } catch {
      response.writeHead(404).end();
    }
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  const close = () => {
    server.closeAllConnections?.();
    server.close();
  };
  return { address: `http://127.0.0.1:${server.address().port}/`, close };
}
