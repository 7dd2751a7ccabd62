// The data of the page, and the state of the view.

const began = performance.now();
const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("data").textContent);
const families = JSON.parse(byId("families").textContent);
const text = (id) => data.strings[id ?? 0];
// The file name with its innermost folder.
const shortName = data.file.split(/[\\/]/).slice(-2).join("/");
const HEIGHT = 42, PILL = 28;

// Hues of the families, in their order.
const HUES = [220, 212, 262, 330, 172, 24, 46, 190, 215, 142, 88, 0, 285];
const SATURATIONS = [10, 78, 66, 70, 62, 86, 84, 74, 14, 55, 58, 68, 58];

const state = {
  graph: 0, node: -1, over: -1, view: { x: 0, y: 0, scale: 1 }, tab: "graph", colours: "family",
  back: [], found: [], at: -1, dark: false,
};

// Text with line-break opportunities after the separators of paths and names.
const breakable = (words) => words.split(/(?<=[/\\_])/).flatMap((part, i) => i ? [make("wbr"), part] : [part]);

// Makes an element with these attributes and children. Strings become text nodes: report data is never parsed as HTML.
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (value !== false && value != null) element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child != null));
  return element;
}

function bytes(n) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let unit = 0;
  for (; n >= 999.95 && unit + 1 < units.length; unit++) n /= 1000;
  return `${unit === 0 ? n : n.toFixed(1)} ${units[unit]}`;
}

function time(n) {
  if (data.time_unit !== "µs") return `${n.toLocaleString("en")} ${data.time_unit ?? ""}`;
  if (n >= 1e6) return `${(n / 1e6).toFixed(2)} s`;
  if (n >= 1e3) return `${(n / 1e3).toFixed(2)} ms`;
  return `${n.toFixed(n < 10 ? 2 : 1)} µs`;
}

function number(n) {
  const rounded = Number.isInteger(n) ? n : Number(n.toPrecision(4));
  return Number.isInteger(rounded) ? rounded.toLocaleString("en") : String(rounded);
}

// Computes the derived data of a graph (adjacency, nodes by row, maxima) when it is first shown.
function prepare(graph) {
  if (graph.ready) return graph;
  const count = graph.nodes.length;
  graph.into = Array.from({ length: count }, () => []);
  graph.outOf = Array.from({ length: count }, () => []);
  graph.edges.forEach((edge, index) => {
    graph.into[edge.ends[1]].push(index);
    graph.outOf[edge.ends[0]].push(index);
  });
  graph.rows = graph.nodes.map((_, index) => index).sort((a, b) => graph.nodes[a].at[1] - graph.nodes[b].at[1] || graph.nodes[a].at[0] - graph.nodes[b].at[0]);
  graph.present = [...new Set(graph.nodes.filter((node) => !node.pill).map((node) => node.family))].sort((a, b) => a - b);
  graph.slowest = Math.max(0, ...graph.nodes.map((node) => node.time ?? 0));
  graph.worst = Math.max(0, ...graph.nodes.map((node) => node.error ?? 0));
  graph.ready = true;
  return graph;
}

const current = () => data.graphs.length ? prepare(data.graphs[state.graph]) : null;
const title = (graph) => text(graph.name);
const nameOf = (node) => text(node.label);
