// Tabs, search, keyboard and pointer input.

function say(words) {
  byId("said").textContent = words;
}

function matchesDark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
}

function setTheme(theme) {
  if (theme) document.documentElement.dataset.theme = theme;
  readColours();
  byId("theme").textContent = state.dark ? "☀" : "☾";
  legend();
  redraw();
  showPanel();
  if (state.tab !== "graph") showTab(state.tab);
}

// Shows a graph and selects a node of it; -1 selects none.
function go(graph, node, remember = true) {
  if (remember && (graph !== state.graph)) state.back.push([state.graph, state.node, { ...state.view }]);
  if (state.tab !== "graph") showTab("graph");
  const other = graph !== state.graph;
  state.graph = graph;
  if (other) showGraph();
  select(node);
  if (node >= 0) {
    if (other) centre(node);
    reveal(node);
  }
}

function centre(node) {
  const [x, y] = current().nodes[node].at;
  state.view = { x, y, scale: Math.max(0.85, DETAILS) };
}

function back() {
  const last = state.back.pop();
  if (!last) return;
  const [graph, node, view] = last;
  state.graph = graph;
  showGraph();
  state.view = view;
  select(node);
}

function select(node) {
  state.node = node;
  const graph = current();
  if (node >= 0) say(`${nameOf(graph.nodes[node])} ${text(graph.nodes[node].detail)}`);
  noteAddress();
  showPanel();
  redraw();
}

// A segmented control: a row of buttons of which one is pressed.
function segments(element, choices, chosen, choose) {
  element.replaceChildren(...choices.map(([value, label]) =>
    make("button", { type: "button", "aria-pressed": String(value === chosen), onclick: () => choose(value) }, label)));
}

function showGraph() {
  const graph = current();
  if (!graph) return;
  mapped = null;
  byId("graphs").value = String(state.graph);
  const root = graph.kind === "run" ? graph.parent : state.graph;
  const runs = data.graphs.flatMap((each, index) => each.kind === "run" && each.parent === root ? [index] : []);
  const forms = runs.length === 1 && ["method", "run"].includes(graph.kind) ? [[root, "As written"], [runs[0], "As it runs"]] : [];
  segments(byId("forms"), forms, state.graph, (index) => go(index, -1));
  const path = byId("path");
  path.replaceChildren();
  if (graph.kind === "payload" || (graph.kind === "function" && state.back.length)) {
    const up = state.back.length ? back : () => go(graph.parent ?? 0, -1);
    path.append(make("button", { type: "button", onclick: up }, "← Back"));
  }
  const measures = [["family", "Family"], ...(graph.slowest ? [["time", "Time"]] : []), ...(graph.worst ? [["error", "Error"]] : [])];
  const choose = (value) => {
    state.colours = value;
    showGraph();
    redraw();
  };
  if (!measures.some(([value]) => value === state.colours)) state.colours = "family";
  segments(byId("colours"), measures.length > 1 ? measures : [], state.colours, choose);
  legend();
  begin();
}

function legend() {
  const graph = current(), list = byId("legend");
  list.replaceChildren();
  if (!graph) return;
  if (state.colours !== "family") {
    const [most, shown] = state.colours === "time" ? [graph.slowest, time] : [graph.worst, number];
    const ramp = make("span", { class: "ramp" });
    ramp.style.background = `linear-gradient(to right, ${[0, 0.1, 0.3, 0.6, 1].map((share) => `${heat(share).solid} ${100 * share}%`)})`;
    list.append(make("li", {}, "0", ramp, shown(most)));
    return;
  }
  for (const family of graph.present) {
    const dot = make("span", { class: "dot" });
    dot.style.background = tint(family).solid;
    list.append(make("li", {}, dot, families[family]));
  }
}

const tabs = [];

function makeTabs() {
  if (data.graphs.length) tabs.push(["graph", "Graph", null]);
  data.tables.forEach((table, index) => tabs.push([`table ${index}`, text(table.title), table.rows.length]));
  if (data.arenas.length) tabs.splice(Math.min(3, tabs.length), 0, ["memory", "Memory", null]);
  for (const [id, name, count] of tabs) {
    byId("tabs").append(make("button", { type: "button", role: "tab", "data-tab": id, onclick: () => showTab(id) }, name, count == null ? null : make("small", {}, number(count))));
  }
}

// Moves the tabs to a line of their own if they do not fit into the header.
function fitTabs() {
  const list = byId("tabs"), header = list.parentElement;
  header.classList.remove("narrow");
  header.classList.toggle("narrow", list.scrollWidth > list.clientWidth);
  fadeTabs();
}

// Fades out the side of the tab list on which more tabs are scrolled out of view.
function fadeTabs() {
  const list = byId("tabs");
  list.classList.toggle("before", list.scrollLeft > 1);
  list.classList.toggle("after", list.scrollLeft + list.clientWidth < list.scrollWidth - 1);
}

function revealTab({ offsetLeft, offsetWidth }) {
  const list = byId("tabs"), left = offsetLeft - list.offsetLeft;
  list.scrollLeft = Math.min(left - 40, Math.max(list.scrollLeft, left + offsetWidth + 40 - list.clientWidth));
}

function showTab(id) {
  state.tab = id;
  for (const button of byId("tabs").children) {
    button.setAttribute("aria-selected", String(button.dataset.tab === id));
    if (button.dataset.tab === id) revealTab(button);
  }
  byId("stage").hidden = id !== "graph";
  sheet.hidden = id === "graph";
  if (id === "graph") redraw();
  else if (id === "memory") showMemory();
  else if (id) showTable(Number(id.split(" ")[1]));
}

// Nodes of all graphs whose texts contain all of these words, those of the current graph first; at most 200.
function search(words) {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  if (!wanted.length) return [];
  const order = [state.graph, ...data.graphs.keys()].filter((index, at, all) => all.indexOf(index) === at);
  const all = [];
  for (const graph of order) {
    data.graphs[graph]?.nodes.forEach((node, index) => {
      if (all.length >= 200) return;
      node.words ??= [nameOf(node), text(node.detail), ...(node.about ?? []).map(([, value]) => text(value)), ...(node.operands ?? []).map((each) => text(each.text)), ...(node.frames ?? []).map((id) => data.frames[id].filter((_, i) => i !== 1).map(text).join(" "))].join("\n").toLowerCase();
      if (wanted.every((word) => node.words.includes(word))) all.push([graph, index]);
    });
  }
  return all;
}

function showFound() {
  const list = byId("found"), words = byId("search").value;
  list.hidden = !words.trim() || state.tab !== "graph" || document.activeElement !== byId("search");
  if (list.hidden) return;
  const rows = state.found.slice(0, 60).map(([graph, node], index) => {
    const each = data.graphs[graph].nodes[node], dot = make("span", { class: "dot" });
    dot.style.background = each.pill ? colours.quiet : tint(each.family).solid;
    return make("li", { "aria-selected": String(index === state.at), onpointerdown: (event) => { event.preventDefault(); state.at = index; go(graph, node); showFound(); } }, dot, `${nameOf(each)} ${text(each.detail)}`, make("small", {}, title(data.graphs[graph])));
  });
  list.replaceChildren(...(rows.length ? rows : [make("li", { class: "none" }, "Nothing was found")]));
  list.querySelector("[aria-selected=true]")?.scrollIntoView({ block: "nearest" });
}

function listenToSearch() {
  const field = byId("search");
  field.addEventListener("input", () => {
    if (state.tab !== "graph") {
      sheet.refresh?.();
      return;
    }
    state.found = search(field.value);
    state.at = -1;
    showFound();
  });
  field.addEventListener("keydown", (event) => {
    const by = { Enter: event.shiftKey ? -1 : 1, ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (event.key === "Escape") {
      field.value = "";
      sheet.refresh?.();
      field.blur();
    } else if (by && state.found.length && state.tab === "graph") {
      event.preventDefault();
      state.at = (state.at + by + state.found.length) % state.found.length;
      go(...state.found[state.at]);
      showFound();
    }
    event.stopPropagation();
  });
  field.addEventListener("blur", showFound);
  field.addEventListener("focus", () => { field.select(); showFound(); });
}

// The node that an arrow key moves to.
function neighbour(key) {
  const graph = current();
  if (state.node < 0) return graph.rows[0] ?? -1;
  const [x, y] = graph.nodes[state.node].at;
  const nearest = (all) => all.reduce((best, each) => best < 0 || distance(graph.nodes[each].at) < distance(graph.nodes[best].at) ? each : best, -1);
  const distance = (at) => Math.abs(at[0] - x) + Math.abs(at[1] - y);
  if (key === "ArrowUp") return nearest(graph.into[state.node].map((edge) => graph.edges[edge].ends[0]));
  if (key === "ArrowDown") return nearest(graph.outOf[state.node].map((edge) => graph.edges[edge].ends[1]));
  const side = key === "ArrowLeft" ? -1 : 1, row = [];
  for (let i = firstRow(graph, y - HEIGHT); i < graph.rows.length && graph.nodes[graph.rows[i]].at[1] <= y + HEIGHT; i++) {
    if ((graph.nodes[graph.rows[i]].at[0] - x) * side > 0) row.push(graph.rows[i]);
  }
  return nearest(row);
}

function listenToKeys() {
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || byId("keys").open || event.target.closest?.("select")) return;
    const graph = state.tab === "graph" && current();
    const pressed = {
      "/": () => byId("search").focus(),
      "?": () => byId("keys").showModal(),
      t: () => setTheme(state.dark ? "light" : "dark"),
      Escape: () => graph && select(-1),
      "+": () => graph && zoom(1.3), "=": () => graph && zoom(1.3),
      "-": () => graph && zoom(1 / 1.3),
      0: () => graph && fit(),
      Backspace: () => graph && back(),
      Enter: () => graph && event.target === canvas && graph.nodes[state.node]?.opens != null && go(graph.nodes[state.node].opens, -1),
    }[event.key];
    if (pressed) {
      if (event.key !== "Enter") event.preventDefault();
      pressed();
    } else if (event.key.startsWith("Arrow") && graph) {
      event.preventDefault();
      const next = neighbour(event.key);
      if (next >= 0) {
        select(next);
        reveal(next);
      }
    }
  });
}

function listenToPointer() {
  let held = null;
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    held = { x: event.offsetX, y: event.offsetY, moved: false };
    canvas.focus();
  });
  canvas.addEventListener("pointermove", (event) => {
    const graph = current();
    if (!graph) return;
    if (held) {
      const [dx, dy] = [event.offsetX - held.x, event.offsetY - held.y];
      if (!held.moved && Math.hypot(dx, dy) < 4) return;
      Object.assign(held, { x: event.offsetX, y: event.offsetY, moved: true });
      canvas.classList.add("moving");
      state.view.x -= dx / state.view.scale;
      state.view.y -= dy / state.view.scale;
      redraw();
      return;
    }
    const over = nodeAt(graph, event.offsetX, event.offsetY);
    if (over !== state.over) {
      state.over = over;
      canvas.classList.toggle("over", over >= 0);
      redraw();
    }
  });
  canvas.addEventListener("pointerup", (event) => {
    if (held && !held.moved && current()) select(nodeAt(current(), event.offsetX, event.offsetY));
    held = null;
    canvas.classList.remove("moving");
  });
  canvas.addEventListener("dblclick", (event) => {
    const node = current()?.nodes[nodeAt(current(), event.offsetX, event.offsetY)];
    if (node?.opens != null) go(node.opens, -1);
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    const lines = event.deltaMode === 1 ? 16 : 1;
    if (event.ctrlKey || event.metaKey) zoom(Math.exp(-event.deltaY * lines * 0.01), event.offsetX, event.offsetY);
    else if (event.shiftKey) state.view.x += (event.deltaY + event.deltaX) * lines / state.view.scale;
    else {
      state.view.x += event.deltaX * lines / state.view.scale;
      state.view.y += event.deltaY * lines / state.view.scale;
    }
    redraw();
  }, { passive: false });
  const jump = (event) => {
    if (event.buttons !== 1 || !map.at) return;
    state.view.x = (event.offsetX - 4) / map.at.sx;
    state.view.y = (event.offsetY - 4) / map.at.sy;
    redraw();
  };
  map.addEventListener("pointerdown", (event) => { map.setPointerCapture(event.pointerId); jump(event); });
  map.addEventListener("pointermove", jump);
}

// For a page that embeds the report in a frame and opens files, such as the page of the npm package: posts to it drag
// enter (+1) and leave (-1) events, dropped files, and the shortcut keys that the embedding page handles.
function listenForPage() {
  if (parent === window) return;
  addEventListener("keydown", ({ key, ctrlKey, metaKey, altKey, target }) => {
    if (byId("keys").open || altKey || target.closest?.("input, select, textarea")) return;
    const message = { key, control: ctrlKey || metaKey };
    if (message.control ? key === "Enter" : key === "o") parent.postMessage({ pteron: "report", ...message }, "*");
  });
  const tell = (event, message) => {
    if (!event.dataTransfer?.types.includes("Files")) return;
    event.preventDefault();
    if (message) parent.postMessage({ pteron: "report", ...message }, "*");
  };
  addEventListener("dragenter", (event) => tell(event, { over: 1 }));
  addEventListener("dragleave", (event) => tell(event, { over: -1 }));
  addEventListener("dragover", (event) => tell(event));
  addEventListener("drop", (event) => tell(event, { files: [...event.dataTransfer.files] }));
}

// Applies the address's fragment, such as `#graph=1&node=7&tab=memory&colours=time&theme=dark`, so that links can point
// to a node.
function followAddress() {
  const wanted = new URLSearchParams(location.hash.slice(1));
  const index = (name, count) => {
    const value = Number(wanted.get(name) ?? -1);
    return Number.isInteger(value) && value >= 0 && value < count ? value : -1;
  };
  const graph = index("graph", data.graphs.length);
  if (["light", "dark"].includes(wanted.get("theme"))) setTheme(wanted.get("theme"));
  if (graph >= 0 && graph !== state.graph) {
    state.graph = graph;
    showGraph();
  }
  const node = data.graphs.length ? index("node", current().nodes.length) : -1;
  if (wanted.has("colours")) {
    state.colours = wanted.get("colours");
    showGraph();
  }
  if (node >= 0) {
    centre(node);
    select(node);
  }
  if (wanted.has("fit")) fit();
  if (wanted.has("measure")) measure();
  const tab = tabs.find(([id, name]) => [id, name.toLowerCase()].includes(wanted.get("tab")?.toLowerCase()));
  if (tab) showTab(tab[0]);
}

// For benchmarks: draws the top of the graph and the whole graph synchronously, and stores the milliseconds since the page
// began in `data-drawn` of the document element, which Chromium's `--dump-dom` prints.
function measure() {
  for (const show of [begin, fit]) {
    show();
    draw();
  }
  // Reading a pixel waits until drawing has finished.
  pen.getImageData(0, 0, 1, 1);
  document.documentElement.dataset.drawn = Math.round(performance.now() - began);
}

function noteAddress() {
  const parts = state.node >= 0 || state.graph > 0 ? [`graph=${state.graph}`] : [];
  if (state.node >= 0) parts.push(`node=${state.node}`);
  history.replaceState(null, "", parts.length ? `#${parts.join("&")}` : location.pathname + location.search);
}

function start() {
  byId("format").textContent = data.format;
  byId("file").textContent = shortName;
  makeTabs();
  const names = byId("graphs");
  data.graphs.forEach((graph, index) => names.append(make("option", { value: index }, title(graph))));
  names.hidden = data.graphs.length < 2;
  names.addEventListener("change", () => go(Number(names.value), -1));
  byId("theme").addEventListener("click", () => setTheme(state.dark ? "light" : "dark"));
  byId("help").addEventListener("click", () => byId("keys").showModal());
  byId("in").addEventListener("click", () => zoom(1.3));
  byId("out").addEventListener("click", () => zoom(1 / 1.3));
  byId("fit").addEventListener("click", fit);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme());
  addEventListener("resize", () => {
    fitTabs();
    if (state.tab === "graph") redraw();
    else if (state.tab === "memory") showMemory();
  });
  byId("tabs").addEventListener("scroll", fadeTabs);
  listenToSearch();
  listenToKeys();
  listenToPointer();
  listenForPage();
  fitTabs();
  state.tab = tabs[0]?.[0] ?? "";
  // For a BEF program, start with a function rather than a region.
  state.graph = Math.max(0, data.graphs.findIndex((graph) => !title(graph).includes("(region ")));
  setTheme();
  showTab(state.tab);
  showGraph();
  followAddress();
}

start();
