// The printed form: the current graph, split into drawings of one page each, and the tables.

const SVG = "http://www.w3.org/2000/svg";
// The maximum number of pages of a graph, and of rows of a table.
const PAGES = 40, ROWS = 200;
// The minimum width of a drawing, and its ratio of height to width, which fills a page.
const WIDTH = 760, TALL = 1.22;

function svg(tag, attributes, words) {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (words != null) element.textContent = words;
  return element;
}

function routePath(route) {
  const path = [`M${route[0]} ${route[1]}`];
  for (let i = 2; i < route.length; i += 2) {
    const [x0, y0, x1, y1] = [route[i - 2], route[i - 1], route[i], route[i + 1]];
    path.push(x0 === x1 ? `L${x1} ${y1}` : `C${x0} ${(y0 + y1) / 2} ${x1} ${(y0 + y1) / 2} ${x1} ${y1}`);
  }
  return path.join("");
}

function drawing(graph, top, bottom) {
  const width = Math.max(graph.size[0] + 40, WIDTH);
  const picture = svg("svg", { viewBox: `${(graph.size[0] - width) / 2} ${top} ${width} ${bottom - top}`, role: "img" });
  const meets = (low, high) => high >= top && low <= bottom;
  for (const edge of graph.edges) {
    if (!edge.route.length || !meets(Math.min(edge.route[1], edge.route.at(-1)), Math.max(edge.route[1], edge.route.at(-1)))) continue;
    picture.append(svg("path", { d: routePath(edge.route), fill: "none", stroke: "#999", "stroke-width": 1.2, ...(edge.partial ? { "stroke-dasharray": "5 4" } : {}) }));
  }
  for (const node of graph.nodes) {
    const [x, y, w] = node.at, h = node.pill ? PILL : HEIGHT;
    if (!meets(y - h / 2, y + h / 2)) continue;
    const [hue, saturation] = [HUES[node.family], SATURATIONS[node.family]];
    picture.append(svg("rect", { x: x - w / 2, y: y - h / 2, width: w, height: h, rx: node.pill ? h / 2 : 8, fill: node.pill ? "#fff" : `hsl(${hue} ${saturation}% 96%)`, stroke: `hsl(${hue} ${saturation * 0.6}% 60%)` }));
    const label = { x: node.pill ? x : x - w / 2 + 12, "font-family": "sans-serif", fill: "#111", "text-anchor": node.pill ? "middle" : "start" };
    picture.append(svg("text", { ...label, y: node.detail && !node.pill ? y - 4 : y + 4, "font-size": 12, "font-weight": 600 }, nameOf(node).slice(0, Math.ceil(w / 7))));
    if (node.detail && !node.pill) picture.append(svg("text", { ...label, y: y + 13, "font-size": 10.5, fill: "#555" }, text(node.detail).slice(0, Math.ceil(w / 6))));
  }
  return make("figure", {}, picture);
}

function preparePrint() {
  const page = byId("print");
  page.replaceChildren(make("h1", {}, data.file), make("p", {}, data.format), facts(data.facts));
  for (const note of data.notes) page.append(make("p", { class: "note" }, text(note)));
  const graph = current();
  if (graph) {
    page.append(make("h2", {}, title(graph)));
    const step = Math.max(graph.size[0] + 40, WIDTH) * TALL;
    const pages = Math.ceil((graph.size[1] + 30) / step);
    for (let i = 0; i < Math.min(pages, PAGES); i++) page.append(drawing(graph, -15 + i * step, Math.min(-15 + (i + 1) * step, graph.size[1] + 15)));
    if (pages > PAGES) page.append(make("p", {}, `${pages - PAGES} further pages of this graph are left out.`));
  }
  for (const arena of data.arenas) page.append(make("h2", {}, text(arena.name)), make("p", {}, arenaNote(arena)));
  for (const table of data.tables) {
    page.append(make("h2", {}, text(table.title)), tableOf(table, table.rows.slice(0, ROWS)));
    if (table.rows.length > ROWS) page.append(make("p", {}, `and ${number(table.rows.length - ROWS)} more`));
  }
}

addEventListener("beforeprint", preparePrint);
addEventListener("afterprint", () => byId("print").replaceChildren());
