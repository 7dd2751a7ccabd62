// Draws a graph with pan, zoom, and a level of detail that depends on the scale.

const canvas = byId("graph"), pen = canvas.getContext("2d", { alpha: false });
const map = byId("map"), mapPen = map.getContext("2d");
// Scales below which nodes are plain rectangles, and below which their second lines are left out.
const CARDS = 0.2, DETAILS = 0.42;
// Edges per Path2D: paths outside the view are not drawn.
const EDGES_A_PATH = 200;
let colours = {}, drawn = false, mapped = null;

function readColours() {
  const style = getComputedStyle(document.documentElement);
  for (const name of ["ground", "dots", "panel", "text", "quiet", "line", "edge", "accent", "reads", "readers", "alert"]) {
    colours[name] = style.getPropertyValue(`--${name}`).trim();
  }
  colours.sans = style.getPropertyValue("--sans");
  colours.mono = style.getPropertyValue("--mono");
  state.dark = matchesDark();
  mapped = null;
}

// The fill, border and solid colour of a family.
function tint(family) {
  const [h, s] = [HUES[family], SATURATIONS[family]];
  return state.dark
    ? { fill: `hsl(${h} ${s * 0.45}% 17%)`, border: `hsl(${h} ${s * 0.55}% 36%)`, solid: `hsl(${h} ${s * 0.85}% 60%)` }
    : { fill: `hsl(${h} ${s}% 96.5%)`, border: `hsl(${h} ${s * 0.6}% 78%)`, solid: `hsl(${h} ${s}% 52%)` };
}

// The colours of a heat map; `share` is relative to the largest value.
function heat(share) {
  const warm = Math.sqrt(share), hue = 44 - 36 * warm;
  return state.dark
    ? { fill: `hsl(${hue} ${14 + 56 * warm}% ${15 + 17 * warm}%)`, border: `hsl(${hue} ${20 + 50 * warm}% ${32 + 20 * warm}%)`, solid: `hsl(${hue} ${30 + 60 * warm}% ${48 + 10 * warm}%)` }
    : { fill: `hsl(${hue} 95% ${98 - 25 * warm}%)`, border: `hsl(${hue} ${30 + 50 * warm}% ${80 - 22 * warm}%)`, solid: `hsl(${hue} ${40 + 52 * warm}% ${72 - 20 * warm}%)` };
}

// The second line of a node: its detail, or the measurement that it is coloured by.
function secondLine(node) {
  if (state.colours === "time" && node.time != null) return time(node.time);
  if (state.colours === "error" && node.error != null) return `± ${Number(node.error.toPrecision(2))}`;
  return text(node.detail);
}

function colourOf(graph, node) {
  if (state.colours === "time" && graph.slowest) return heat((node.time ?? 0) / graph.slowest);
  if (state.colours === "error" && graph.worst) return heat((node.error ?? 0) / graph.worst);
  return tint(node.family);
}

function traceRoute(path, route) {
  path.moveTo(route[0], route[1]);
  for (let i = 2; i < route.length; i += 2) {
    const [x0, y0, x1, y1] = [route[i - 2], route[i - 1], route[i], route[i + 1]];
    if (x0 === x1) path.lineTo(x1, y1);
    else {
      const middle = (y0 + y1) / 2;
      path.bezierCurveTo(x0, middle, x1, middle, x1, y1);
    }
  }
}

// An edge without a route, because it is too long: a curve beside the graph.
function traceLong(path, graph, edge) {
  const [from, to] = edge.ends.map((node) => graph.nodes[node]);
  const [y0, y1] = [from.at[1] + HEIGHT / 2, to.at[1] - HEIGHT / 2];
  const bow = Math.min(400, 60 + Math.abs(y1 - y0) / 8);
  const side = from.at[0] <= to.at[0] ? -1 : 1;
  path.moveTo(from.at[0], y0);
  path.bezierCurveTo(from.at[0] + side * bow, y0 + 120, to.at[0] + side * bow, y1 - 120, to.at[0], y1);
}

// Stubs at both ends of an edge without a route.
function traceStubs(path, graph, edge) {
  const [from, to] = edge.ends.map((node) => graph.nodes[node]);
  const half = (node) => (node.pill ? PILL : HEIGHT) / 2;
  path.moveTo(from.at[0] + from.at[2] / 2 - 14, from.at[1] + half(from));
  path.lineTo(from.at[0] + from.at[2] / 2 - 14, from.at[1] + half(from) + 14);
  path.moveTo(to.at[0] + to.at[2] / 2 - 14, to.at[1] - half(to) - 14);
  path.lineTo(to.at[0] + to.at[2] / 2 - 14, to.at[1] - half(to));
}

function pathsOf(graph) {
  if (graph.paths) return graph.paths;
  const span = (edge) => {
    let [low, high] = [Infinity, -Infinity];
    for (let i = 1; i < edge.route.length; i += 2) {
      low = Math.min(low, edge.route[i]);
      high = Math.max(high, edge.route[i]);
    }
    return [low, high];
  };
  const sorted = graph.edges.filter((edge) => edge.route.length).map((edge) => ({ edge, span: span(edge) })).sort((a, b) => a.span[0] - b.span[0]);
  graph.paths = [];
  for (let i = 0; i < sorted.length; i += EDGES_A_PATH) {
    const part = sorted.slice(i, i + EDGES_A_PATH);
    const [whole, partial, heads] = [new Path2D(), new Path2D(), new Path2D()];
    for (const { edge } of part) {
      traceRoute(edge.partial ? partial : whole, edge.route);
      const [x, y] = edge.route.slice(-2);
      const up = edge.route[edge.route.length - 3] > y ? -1 : 1;
      heads.moveTo(x, y);
      heads.lineTo(x - 3.6, y - 7 * up);
      heads.lineTo(x + 3.6, y - 7 * up);
      heads.closePath();
    }
    graph.paths.push({ whole, partial, heads, top: part[0].span[0], bottom: Math.max(...part.map((p) => p.span[1])) });
  }
  const stubs = new Path2D();
  graph.edges.forEach((edge) => edge.route.length || edge.ends[0] === edge.ends[1] || traceStubs(stubs, graph, edge));
  graph.paths.push({ whole: new Path2D(), partial: stubs, heads: new Path2D(), top: -Infinity, bottom: Infinity });
  return graph.paths;
}

function size(element, context) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [element.clientWidth, element.clientHeight];
  if (element.width !== Math.round(width * ratio) || element.height !== Math.round(height * ratio)) {
    element.width = Math.round(width * ratio);
    element.height = Math.round(height * ratio);
  }
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return [width, height];
}

// Schedules a draw for the next animation frame; several calls before it cause one draw.
function redraw() {
  if (drawn) return;
  drawn = true;
  requestAnimationFrame(() => {
    drawn = false;
    if (state.tab === "graph") draw();
  });
}

function draw() {
  const graph = current();
  const [width, height] = size(canvas, pen);
  pen.fillStyle = colours.ground;
  pen.fillRect(0, 0, width, height);
  if (!graph) return;
  const { x, y, scale } = state.view;
  dots(width, height);
  pen.save();
  pen.translate(width / 2 - x * scale, height / 2 - y * scale);
  pen.scale(scale, scale);
  const view = { left: x - width / 2 / scale, right: x + width / 2 / scale, top: y - height / 2 / scale, bottom: y + height / 2 / scale };
  drawEdges(graph, view, scale);
  drawNodes(graph, view, scale);
  pen.restore();
  byId("scale").textContent = `${Math.round(scale * 100)}%`;
  drawMap(graph, view);
}

function dots(width, height) {
  const { x, y, scale } = state.view;
  const step = 24 * scale;
  if (step < 12) return;
  pen.fillStyle = colours.dots;
  const from = (size, at) => ((size / 2 - at * scale) % step + step) % step;
  for (let i = from(width, x); i < width; i += step) {
    for (let j = from(height, y); j < height; j += step) pen.fillRect(i, j, 1.4, 1.4);
  }
}

function drawEdges(graph, view, scale) {
  pen.lineWidth = Math.max(1.3, 0.9 / scale);
  pen.strokeStyle = pen.fillStyle = colours.edge;
  // At small scales, edges are translucent so that they do not hide the nodes.
  pen.globalAlpha = scale < CARDS / 2 && graph.edges.length > 500 ? 0.5 : 1;
  for (const path of pathsOf(graph)) {
    if (path.bottom < view.top || path.top > view.bottom) continue;
    pen.stroke(path.whole);
    pen.setLineDash([5, 4]);
    pen.stroke(path.partial);
    pen.setLineDash([]);
    if (scale > CARDS) pen.fill(path.heads);
  }
  pen.globalAlpha = 1;
  if (state.node < 0) return;
  for (const [edges, colour] of [[graph.into[state.node], colours.reads], [graph.outOf[state.node], colours.readers]]) {
    const path = new Path2D();
    for (const edge of edges.map((index) => graph.edges[index])) {
      edge.route.length ? traceRoute(path, edge.route) : traceLong(path, graph, edge);
    }
    pen.lineWidth = Math.max(2.2, 1.6 / scale);
    pen.strokeStyle = colour;
    pen.stroke(path);
  }
}

// The index in `graph.rows` (nodes sorted from top to bottom) of the first node not above `y`.
function firstRow(graph, y) {
  let [low, high] = [0, graph.rows.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (graph.nodes[graph.rows[middle]].at[1] < y) low = middle + 1;
    else high = middle;
  }
  return low;
}

function inView(graph, view) {
  const all = [];
  for (let i = firstRow(graph, view.top - HEIGHT); i < graph.rows.length; i++) {
    const node = graph.nodes[graph.rows[i]];
    if (node.at[1] > view.bottom + HEIGHT) break;
    if (node.at[0] + node.at[2] / 2 >= view.left && node.at[0] - node.at[2] / 2 <= view.right) all.push(graph.rows[i]);
  }
  return all;
}

function drawNodes(graph, view, scale) {
  const shown = inView(graph, view);
  if (scale < CARDS) {
    const grow = Math.max(0, 1.4 / scale - HEIGHT);
    for (const index of shown) {
      const node = graph.nodes[index], [x, y, w] = node.at;
      pen.fillStyle = node.alert ? colours.alert : node.pill ? colours.quiet : colourOf(graph, node).solid;
      pen.fillRect(x - w / 2, y - HEIGHT / 2, w, HEIGHT + grow);
    }
    if (state.node >= 0) outline(graph.nodes[state.node], colours.accent, 3 / scale);
    return;
  }
  pen.textBaseline = "middle";
  for (const index of shown) drawNode(graph, index, scale);
}

function outline(node, colour, width) {
  const [x, y, w] = node.at, h = node.pill ? PILL : HEIGHT;
  pen.beginPath();
  pen.roundRect(x - w / 2 - width, y - h / 2 - width, w + 2 * width, h + 2 * width, (node.pill ? h / 2 : 8) + width);
  pen.lineWidth = width;
  pen.strokeStyle = colour;
  pen.stroke();
}

function drawNode(graph, index, scale) {
  const node = graph.nodes[index], [x, y, w] = node.at, h = node.pill ? PILL : HEIGHT;
  const look = node.pill ? { fill: colours.panel, border: colours.edge, solid: colours.quiet } : colourOf(graph, node);
  const left = x - w / 2, top = y - h / 2;
  pen.beginPath();
  pen.roundRect(left, top, w, h, node.pill ? h / 2 : 8);
  pen.fillStyle = look.fill;
  pen.fill();
  pen.lineWidth = 1;
  pen.strokeStyle = look.border;
  pen.stroke();
  if (!node.pill) {
    pen.beginPath();
    pen.roundRect(left, top, 5, h, [8, 0, 0, 8]);
    pen.fillStyle = look.solid;
    pen.fill();
  }
  if (node.alert) outline(node, colours.alert, 2);
  if (index === state.node) outline(node, colours.accent, 2.5);
  else if (index === state.over) outline(node, colours.quiet, 1);
  const detailed = scale >= DETAILS && !node.pill && node.detail;
  const room = w - 20;
  pen.fillStyle = node.pill ? colours.quiet : colours.text;
  pen.font = `${node.pill ? 550 : 620} 12.5px ${colours.sans}`;
  pen.textAlign = node.pill ? "center" : "left";
  const at = node.pill ? x : left + 14;
  writeFitted(nameOf(node), room - (node.opens != null ? 12 : 0), at, detailed ? y - 8 : y + 0.5);
  if (detailed) {
    // Grey is not legible on every colour of the heat map.
    pen.fillStyle = state.colours === "family" ? colours.quiet : colours.text;
    pen.font = `11px ${colours.sans}`;
    writeFitted(secondLine(node), room, left + 14, y + 9.5);
  }
  if (node.opens != null) {
    pen.strokeStyle = look.solid;
    pen.lineWidth = 1.8;
    pen.beginPath();
    pen.moveTo(left + w - 15, top + 10);
    pen.lineTo(left + w - 11, top + 14);
    pen.lineTo(left + w - 15, top + 18);
    pen.stroke();
  }
  if (node.time && graph.slowest) {
    pen.fillStyle = heat(node.time / graph.slowest).solid;
    pen.beginPath();
    pen.roundRect(left + 8, top + h - 3.5, Math.max(2, (w - 16) * node.time / graph.slowest), 2.5, 1.2);
    pen.fill();
  }
}

// Fits text into a width: it is condensed by at most this factor, then truncated. Fonts differ in their widths.
const CLOSER = 1.12;
function writeFitted(words, room, x, y) {
  pen.fillText(fitted(words, room * CLOSER), x, y, room);
}

const widths = new Map();
function fitted(words, room) {
  const key = `${pen.font} ${Math.round(room)} ${words}`;
  let short = widths.get(key);
  if (short === undefined) {
    short = words;
    if (pen.measureText(words).width > room) {
      let [low, high] = [0, words.length];
      while (low < high) {
        const middle = (low + high + 1) >> 1;
        if (pen.measureText(`${words.slice(0, middle)}…`).width <= room) low = middle;
        else high = middle - 1;
      }
      short = `${words.slice(0, low).trimEnd()}…`;
    }
    if (widths.size > 20000) widths.clear();
    widths.set(key, short);
  }
  return short;
}

// Draws the overview map: the whole graph, and the current view as a rectangle.
function drawMap(graph, view) {
  const [w, h] = graph.size;
  map.hidden = graph.nodes.length < 12;
  if (map.hidden) return;
  const scale = Math.min(150 / w, 190 / h);
  const sizes = [Math.max(44, w * scale), Math.max(44, h * scale)].map(Math.round);
  const [sx, sy] = [(sizes[0] - 8) / w, (sizes[1] - 8) / h];
  map.style.width = `${sizes[0]}px`;
  map.style.height = `${sizes[1]}px`;
  size(map, mapPen);
  const key = `${state.graph} ${state.dark} ${state.colours}`;
  if (mapped?.key !== key) {
    const ratio = devicePixelRatio || 1;
    const image = new OffscreenCanvas(sizes[0] * ratio, sizes[1] * ratio);
    const small = image.getContext("2d");
    small.scale(ratio, ratio);
    for (const node of graph.nodes) {
      const [x, y, width] = node.at;
      small.fillStyle = node.alert ? colours.alert : node.pill ? colours.quiet : colourOf(graph, node).solid;
      small.fillRect(4 + (x - width / 2) * sx, 4 + (y - HEIGHT / 2) * sy, Math.max(1.5, width * sx), Math.max(1, HEIGHT * sy));
    }
    mapped = { key, image };
  }
  mapPen.clearRect(0, 0, ...sizes);
  mapPen.drawImage(mapped.image, 0, 0, ...sizes);
  const [left, top] = [4 + Math.max(0, view.left) * sx, 4 + Math.max(0, view.top) * sy];
  const [right, bottom] = [4 + Math.min(w, view.right) * sx, 4 + Math.min(h, view.bottom) * sy];
  mapPen.strokeStyle = colours.accent;
  mapPen.lineWidth = 1.5;
  mapPen.strokeRect(left, top, Math.max(4, right - left), Math.max(4, bottom - top));
  mapPen.globalAlpha = 0.08;
  mapPen.fillStyle = colours.accent;
  mapPen.fillRect(left, top, Math.max(4, right - left), Math.max(4, bottom - top));
  mapPen.globalAlpha = 1;
  map.at = { sx, sy };
}

function nodeAt(graph, px, py) {
  const { x, y, scale } = state.view;
  const [gx, gy] = [x + (px - canvas.clientWidth / 2) / scale, y + (py - canvas.clientHeight / 2) / scale];
  const hit = inView(graph, { left: gx, right: gx, top: gy, bottom: gy }).find((index) => {
    const node = graph.nodes[index];
    return Math.abs(node.at[1] - gy) <= (node.pill ? PILL : HEIGHT) / 2;
  });
  return hit ?? -1;
}

function zoom(by, px = canvas.clientWidth / 2, py = canvas.clientHeight / 2) {
  const view = state.view, before = view.scale;
  view.scale = Math.min(4, Math.max(0.002, before * by));
  view.x += (px - canvas.clientWidth / 2) * (1 / before - 1 / view.scale);
  view.y += (py - canvas.clientHeight / 2) * (1 / before - 1 / view.scale);
  redraw();
}

function fit() {
  const graph = current();
  if (!graph) return;
  const scale = Math.min((canvas.clientWidth - 80) / graph.size[0], (canvas.clientHeight - 120) / graph.size[1], 1.25);
  state.view = { x: graph.size[0] / 2, y: graph.size[1] / 2, scale: Math.max(scale, 0.002) };
  redraw();
}

// Shows the top of the graph at a legible scale.
function begin() {
  const graph = current();
  if (!graph) return;
  const whole = Math.min((canvas.clientWidth - 80) / graph.size[0], (canvas.clientHeight - 150) / graph.size[1], 1);
  if (whole > 0.6) {
    fit();
    return;
  }
  const wide = Math.min(1, (canvas.clientWidth - 60) / graph.size[0]);
  const scale = Math.max(0.62, Math.min(wide, 0.95));
  const first = graph.nodes[graph.rows[0]];
  const x = graph.size[0] * scale < canvas.clientWidth ? graph.size[0] / 2 : first.at[0];
  const covered = byId("graphs").parentElement.offsetHeight + 38;
  state.view = { x, y: (canvas.clientHeight / 2 - covered) / scale, scale };
  redraw();
}

// Scrolls a node into view, if it is not visible.
function reveal(index) {
  const graph = current(), [x, y, w] = graph.nodes[index].at, view = state.view;
  if (view.scale < DETAILS) view.scale = 0.85;
  const [halfWidth, halfHeight] = [canvas.clientWidth / 2 / view.scale, canvas.clientHeight / 2 / view.scale];
  if (Math.abs(x - view.x) > halfWidth - w / 2 - 40) view.x = x;
  if (Math.abs(y - view.y) > halfHeight - 110 / view.scale) view.y = y;
  redraw();
}
