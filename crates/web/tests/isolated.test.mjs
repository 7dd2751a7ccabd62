// Tests the page in Chromium, served so that it is isolated from other origins: it runs programs on several threads.

import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { after, before, test } from "node:test";
import { Chromium } from "./chromium.mjs";
import { serveIsolated } from "./isolated.mjs";

const dist = new URL("../dist/", import.meta.url);
const skip = !existsSync(new URL("pteron.threads.wasm", dist)) && "the module for several threads was not built";
let browser, server;

before(async () => {
  if (skip) return;
  server = await serveIsolated(dist);
  browser = await Chromium.start();
});
after(async () => {
  await browser?.close();
  server?.close();
});

test("an isolated page runs programs on several threads", { skip }, async () => {
  await browser.go(new URL("pteron.html", server.address));
  await browser.until(`document.documentElement.dataset.startMs`);
  const [threads, processors] = await browser.evaluate(`[Number(document.documentElement.dataset.threads), navigator.hardwareConcurrency]`);
  assert.equal(threads, Math.min(8, processors));
  await browser.evaluate(`document.getElementById("example").click()`);
  await browser.until(`!document.getElementById("work").hidden && !document.getElementById("said").textContent`);
  await browser.until(`document.querySelector("fieldset img")?.complete && !document.querySelector("fieldset img").hidden`);
  await browser.evaluate(`document.getElementById("run").click()`);
  await browser.until(`document.querySelector(".top li")?.textContent === "30.9595"`);
  assert.deepEqual(browser.complaints, []);
  const outside = browser.requests.filter((url) => !/^(http:\/\/127\.0\.0\.1:\d+\/(pteron\.html|pteron\.threads\.wasm)$|blob:|data:|about:)/.test(url));
  assert.deepEqual(outside, []);
});
