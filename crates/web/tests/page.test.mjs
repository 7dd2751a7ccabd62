// Tests the page in Chromium, opened as a file without a server: programs and pictures are dropped, opened and run. `BLESS=1`
// saves screenshots to docs/.

import assert from "node:assert/strict";
import { readFileSync, writeFileSync } from "node:fs";
import { after, before, test } from "node:test";
import { Chromium } from "./chromium.mjs";

const root = new URL("../../../", import.meta.url);
const path = (name) => new URL(name, root).pathname;
const page = new URL("../dist/pteron.html", import.meta.url);
let browser;

before(async () => {
  browser = await Chromium.start({ width: 1440, height: 900 });
});
after(() => browser?.close());

const shown = (id) => `document.getElementById("${id}").textContent`;
const best = `document.querySelector(".top li")?.textContent`;
/** No operation is running, and the frame has loaded the report. */
const idle = `!document.getElementById("work").hidden && !document.getElementById("said").textContent && document.documentElement.dataset.report === document.getElementById("report").src`;

async function keep(name) {
  await browser.until(idle);
  const picture = await browser.screenshot();
  assert.ok(picture.length > 20_000, "the page shows something");
  if (process.env.BLESS) writeFileSync(path(`docs/${name}.png`), picture);
}

test("a program, labels and a picture are dropped, and the picture is classified", async () => {
  await browser.go(page);
  await browser.until(`document.documentElement.dataset.startMs`);
  await browser.drop(["examples/digits/digits.pte", "examples/digits/labels.txt"].map(path));
  await browser.until(idle);
  assert.equal(await browser.evaluate(shown("name")), "digits.pte");
  assert.match(await browser.evaluate(shown("inputs")), /float32 1×1×8×8/);
  await browser.drop([path("examples/digits/3.png")]);
  await browser.until(`document.querySelector("fieldset img")?.complete && !document.querySelector("fieldset img").hidden`);
  await browser.press("Enter", { modifiers: 2, keyCode: 13 });
  await browser.until(best);
  assert.equal(await browser.evaluate(best), "30.9595");
  assert.match(await browser.evaluate(shown("times")), /First run\d.*Mean of 20 runs\d/);
  assert.equal(await browser.evaluate(`document.querySelectorAll(".top li").length`), 5);
  await keep("web-light");

  await browser.evaluate(`document.getElementById("profile").click()`);
  const address = await browser.evaluate(`document.getElementById("report").src`);
  await browser.until(`document.getElementById("report").src !== ${JSON.stringify(address)} && ${idle}`);
  await browser.until(`!document.getElementById("run").disabled`);
});

/** A function that evaluates expressions in the frame of the report. */
async function frame() {
  const { targetInfos } = await browser.send("Target.getTargets");
  const found = targetInfos.find(({ type, url }) => type === "iframe" && url.startsWith("blob:"));
  assert.ok(found, "the report is a frame of its own origin");
  const { sessionId } = await browser.send("Target.attachToTarget", { targetId: found.targetId, flatten: true });
  return async (expression) => (await browser.send("Runtime.evaluate", { expression, returnByValue: true }, sessionId)).result.value;
}

test("the report is shown, and handles keys", async () => {
  const ask = await frame();
  assert.equal(await ask(`document.getElementById("file").textContent`), "digits.pte");
  assert.ok(await ask(`document.querySelectorAll("nav button").length > 2`));
  const time = await ask(`JSON.parse(document.getElementById("data").textContent).time_unit`);
  assert.ok(time, "it has times");
  assert.equal(await ask(`try { parent.document.title } catch (e) { e.name }`), "SecurityError");
  const theme = `document.documentElement.dataset.theme`;
  const before = await ask(theme);
  await ask(`document.getElementById("graph").dispatchEvent(new KeyboardEvent("keydown", { key: "t", bubbles: true }))`);
  assert.notEqual(await ask(theme), before, "t turns the light off");
  await ask(`document.getElementById("graph").dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowDown", bubbles: true }))`);
});

test("the report forwards unhandled keys to the page", async () => {
  const ask = await frame();
  const press = (key, more) => ask(`document.getElementById("graph").dispatchEvent(new KeyboardEvent("keydown", ${JSON.stringify({ key, bubbles: true, ...more })}))`);
  await browser.evaluate(`document.getElementById("files").click = () => { document.body.dataset.chooses = "yes"; }`);
  await press("o");
  await browser.until(`document.body.dataset.chooses === "yes"`);
  await browser.evaluate(`delete document.getElementById("files").click`);
  const times = `document.getElementById("times").textContent`;
  await browser.evaluate(`document.getElementById("times").textContent = ""`);
  await press("Enter", { ctrlKey: true });
  await browser.until(`${times} !== ""`);
  await browser.until(`!document.getElementById("run").disabled`);
});

test("a file is dropped onto the report, which is a frame of another origin", async () => {
  // Drag events of the debugging protocol reach only the page, whatever is under the mouse.
  const ask = await frame();
  const program = readFileSync(path("testdata/dynamic/mlp/model.pte")).toString("base64");
  await ask(`(() => {
    const files = new DataTransfer();
    files.items.add(new File([Uint8Array.from(atob("${program}"), (c) => c.charCodeAt(0))], "mlp.pte"));
    window.drag = (type) => document.getElementById("graph").dispatchEvent(new DragEvent(type, { dataTransfer: files, bubbles: true, cancelable: true }));
    drag("dragenter");
  })()`);
  await browser.until(`document.body.classList.contains("over")`);
  assert.equal(await ask(`drag("dragover")`), false, "it may be dropped");
  await ask(`drag("drop")`);
  await browser.until(`document.getElementById("name").textContent === "mlp.pte" && ${idle}`);
  assert.ok(await browser.evaluate(`!document.body.classList.contains("over")`), "nothing is being dragged");
});

test("the page follows the dark colour scheme", async () => {
  await browser.dark(true);
  await browser.go(page);
  await browser.until(`document.documentElement.dataset.startMs`);
  assert.equal(await browser.evaluate(`getComputedStyle(document.body).backgroundColor`), "rgb(14, 17, 22)");
  assert.ok((await browser.screenshot()).length > 10_000, "the page shows something");
  await browser.evaluate(`document.getElementById("example").click()`);
  await browser.until(`${idle} && document.querySelector("fieldset img")?.complete`);
  await browser.until(`!document.querySelector("fieldset img").hidden`);
  await browser.evaluate(`document.getElementById("run").click()`);
  await browser.until(best);
  await keep("web-dark");
  await browser.press("t", { code: "KeyT" });
  assert.equal(await browser.evaluate(`document.documentElement.dataset.theme`), "light");
  await browser.until(idle);
  await browser.dark(false);
});

test("errors are shown, and the page stays usable", async () => {
  await browser.drop([path("examples/digits/labels.txt"), path("Cargo.toml")]);
  await browser.until(`!document.getElementById("alert").hidden`);
  assert.match(await browser.evaluate(`document.getElementById("alert").textContent`), /Cargo\.toml is text/);
  await browser.press("Escape", { keyCode: 27 });
  assert.ok(await browser.evaluate(`document.getElementById("alert").hidden`));
  await browser.until(idle);
  await browser.evaluate(`(() => { const s = document.getElementById("source0"); s.value = "numbers"; s.onchange(); document.querySelector("textarea").value = "1, 2"; document.getElementById("run").click(); })()`);
  await browser.until(`!document.getElementById("alert").hidden`);
  assert.match(await browser.evaluate(`document.getElementById("alert").textContent`), /64 elements/);
  await browser.evaluate(`(() => { document.querySelector("textarea").value = "0.5"; document.getElementById("run").click(); })()`);
  // One number fills the tensor.
  await browser.until(`${best} === "80.9364"`);
  await browser.evaluate(`(() => { const s = document.getElementById("source0"); s.value = "zeros"; s.onchange(); document.getElementById("run").click(); })()`);
  await browser.until(`!document.getElementById("run").disabled`);
});

test("the page is usable with the keyboard alone", async () => {
  await browser.go(page);
  await browser.until(`document.documentElement.dataset.startMs`);
  const reached = [];
  for (let i = 0; i < 8; i++) {
    await browser.press("Tab", { keyCode: 9 });
    reached.push(await browser.evaluate(`document.activeElement.id`));
  }
  assert.ok(reached.includes("choose") && reached.includes("example") && reached.includes("theme"), String(reached));
  await browser.evaluate(`document.getElementById("example").focus()`);
  await browser.press("Enter", { keyCode: 13 });
  await browser.until(idle);
  await browser.press("Enter", { modifiers: 2, keyCode: 13 });
  await browser.until(best);
});

test("nothing is logged, and no network requests are made", () => {
  assert.deepEqual(browser.complaints, []);
  const outside = browser.requests.filter((url) => !/^(file:\/\/\/.*pteron\.html|blob:|data:|about:)/.test(url));
  assert.deepEqual(outside, []);
});
