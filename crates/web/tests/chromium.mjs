// Drives Chromium over its debugging pipe, without a package. PTERON_CHROMIUM names the executable if it is not `chromium`.

import { spawn } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";

const FLAGS = [
  "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
];

/** A browser with one tab. */
export class Chromium {
  #process; #profile; #session; #asked = new Map(); #next = 0; #listeners = new Map();
  /** Warnings and errors logged by pages, and uncaught exceptions. */
  complaints = [];
  /** The requested URLs. */
  requests = [];

  static async start({ width = 1280, height = 800 } = {}) {
    const browser = new Chromium();
    browser.#profile = mkdtempSync(join(tmpdir(), "pteron-chromium-"));
    const options = [...FLAGS, `--user-data-dir=${browser.#profile}`, `--window-size=${width},${height}`];
    const child = spawn(process.env.PTERON_CHROMIUM || "chromium", options, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
    browser.#process = child;
    let rest = Buffer.alloc(0);
    child.stdio[4].on("data", (piece) => {
      rest = Buffer.concat([rest, piece]);
      for (let end; (end = rest.indexOf(0)) >= 0; rest = rest.subarray(end + 1)) browser.#hear(JSON.parse(rest.subarray(0, end)));
    });
    child.on("exit", () => browser.#asked.forEach(({ reject }) => reject(new Error("the browser has ended"))));
    child.on("error", (error) => browser.#asked.forEach(({ reject }) => reject(error)));
    const { targetId } = await browser.send("Target.createTarget", { url: "about:blank" });
    browser.#session = (await browser.send("Target.attachToTarget", { targetId, flatten: true })).sessionId;
    for (const domain of ["Page", "Runtime", "Log", "Network", "DOM"]) await browser.send(`${domain}.enable`);
    await browser.send("Target.setAutoAttach", { autoAttach: true, waitForDebuggerOnStart: false, flatten: true });
    await browser.send("Emulation.setDeviceMetricsOverride", { width, height, deviceScaleFactor: 1, mobile: false });
    return browser;
  }

  send(method, params = {}, sessionId = this.#session) {
    return new Promise((resolve, reject) => {
      this.#asked.set(++this.#next, { method, resolve, reject });
      this.#process.stdio[3].write(`${JSON.stringify({ id: this.#next, method, params, sessionId })}\0`);
    });
  }

  /** The parameters of the next event with this name. */
  event(name) {
    return new Promise((resolve) => this.#listeners.set(name, [...(this.#listeners.get(name) ?? []), resolve]));
  }

  #hear({ id, result, error, method, params, sessionId }) {
    if (id) {
      const asked = this.#asked.get(id);
      this.#asked.delete(id);
      error ? asked.reject(new Error(`${asked.method}: ${error.message}`)) : asked.resolve(result);
      return;
    }
    // Frames of other origins and workers have separate sessions.
    if (method === "Target.attachedToTarget") {
      for (const domain of ["Runtime", "Log", "Network"]) this.send(`${domain}.enable`, {}, params.sessionId).catch(() => {});
    }
    if (method === "Runtime.exceptionThrown") this.complaints.push(params.exceptionDetails.exception?.description ?? params.exceptionDetails.text);
    if (method === "Log.entryAdded" && ["warning", "error"].includes(params.entry.level)) this.complaints.push(params.entry.text);
    if (method === "Runtime.consoleAPICalled" && ["warning", "error", "assert"].includes(params.type)) {
      this.complaints.push(params.args.map((argument) => argument.value ?? argument.description).join(" "));
    }
    if (method === "Network.requestWillBeSent") this.requests.push(params.request.url.slice(0, 200));
    if (sessionId && sessionId !== this.#session) return;
    for (const listener of this.#listeners.get(method) ?? []) listener(params);
    this.#listeners.delete(method);
  }

  /** Navigates to a URL. */
  async go(url) {
    const loaded = this.event("Page.loadEventFired");
    await this.send("Page.navigate", { url: String(url) });
    await loaded;
  }

  /** Evaluates an expression in the page, and awaits its value. */
  async evaluate(expression) {
    const { result, exceptionDetails } = await this.send("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true });
    if (exceptionDetails) throw new Error(exceptionDetails.exception?.description ?? exceptionDetails.text);
    return result.value;
  }

  /** Polls an expression until it is truthy, and returns its value. */
  async until(expression, milliseconds = 60_000) {
    const end = Date.now() + milliseconds;
    for (;;) {
      const value = await this.evaluate(expression);
      if (value) return value;
      if (Date.now() > end) throw new Error(`${expression} has not become true in ${milliseconds} ms; ${this.complaints.join("; ")}`);
      await new Promise((resolve) => setTimeout(resolve, 20));
    }
  }

  /** Presses a key, with modifiers: 2 is Ctrl. */
  async press(key, { code = key, modifiers = 0, keyCode = key.toUpperCase().charCodeAt(0) } = {}) {
    const text = key.length === 1 && !modifiers ? { text: key } : key === "Enter" ? { text: "\r" } : {};
    const event = { key, code, modifiers, windowsVirtualKeyCode: keyCode };
    await this.send("Input.dispatchKeyEvent", { type: "keyDown", ...event, ...text });
    await this.send("Input.dispatchKeyEvent", { type: "keyUp", ...event });
  }

  /** Drops files at a position. */
  async drop(files, x = 170, y = 600) {
    const data = { items: [], files, dragOperationsMask: 1 };
    for (const type of ["dragEnter", "dragOver", "drop"]) await this.send("Input.dispatchDragEvent", { type, x, y, data });
  }

  /** A screenshot of the page as PNG. */
  async screenshot() {
    return Buffer.from((await this.send("Page.captureScreenshot", { format: "png" })).data, "base64");
  }

  async dark(isDark) {
    await this.send("Emulation.setEmulatedMedia", { features: [{ name: "prefers-color-scheme", value: isDark ? "dark" : "light" }] });
  }

  async close() {
    const ended = new Promise((resolve) => this.#process.on("exit", resolve));
    await this.send("Browser.close", {}, undefined).catch(() => {});
    await ended;
    rmSync(this.#profile, { recursive: true, force: true, maxRetries: 5, retryDelay: 100 });
  }
}
