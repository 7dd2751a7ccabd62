// The side panel: the properties of the selected node, or of the file.

const panel = byId("panel");

function facts(pairs) {
  const list = make("dl");
  for (const [name, value] of pairs) list.append(make("dt", {}, text(name)), make("dd", {}, ...breakable(text(value))));
  return list;
}

function showPanel() {
  const graph = current(), node = graph?.nodes[state.node];
  panel.replaceChildren(...(node ? ofNode(graph, node) : ofFile(graph)));
  panel.scrollTop = 0;
}

function ofFile(graph) {
  const parts = [make("h2", {}, ...breakable(shortName)), make("p", { class: "kind" }, ...breakable(data.file === shortName ? data.format : data.file))];
  for (const note of data.notes) parts.push(make("p", { class: "note" }, text(note)));
  parts.push(facts(data.facts));
  if (graph) {
    const drawnNodes = graph.nodes.filter((node) => !node.pill).length;
    parts.push(make("h3", {}, "This graph"), make("dl", {},
      make("dt", {}, "Nodes"), make("dd", {}, number(drawnNodes)),
      make("dt", {}, "Edges"), make("dd", {}, number(graph.edges.length))));
  }
  return parts;
}

// A button that goes to a node.
function to(graph, node, label) {
  return make("button", { class: "go", type: "button", onclick: () => go(graph, node) }, label);
}

function ofNode(graph, node) {
  const solid = tint(node.family).solid;
  const dot = make("span", { class: "dot" });
  dot.style.background = node.pill ? colours.quiet : solid;
  const kind = node.pill ? "Input, output or state" : families[node.family];
  const parts = [make("h2", {}, ...breakable(nameOf(node))), make("div", { class: "kind" }, dot, kind)];
  if (node.alert) parts.push(make("p", { class: "note alert" }, text(node.alert)));
  if (node.opens != null) {
    parts.push(make("button", { class: "open", type: "button", onclick: () => go(node.opens, -1) }, `Open ${title(data.graphs[node.opens])}`));
  }
  if (node.pill && node.detail) parts.push(make("p", { class: "mono" }, text(node.detail)));
  if (node.time != null) {
    const share = make("i");
    share.style.width = `${100 * node.time / (graph.slowest || 1)}%`;
    const all = graph.nodes.reduce((sum, each) => sum + (each.time ?? 0), 0);
    parts.push(make("h3", {}, "Time of one run"), make("div", {}, `${time(node.time)}, ${(100 * node.time / (all || 1)).toFixed(1)} % of the graph`), make("div", { class: "meter" }, share));
  }
  if (node.error != null) parts.push(make("h3", {}, "Largest difference"), make("div", {}, number(node.error)));
  if (node.about?.length) parts.push(make("h3", {}, "About"), facts(node.about));
  const links = node.links ?? [];
  if (links.length) {
    parts.push(make("h3", {}, "See also"));
    const list = make("dl");
    for (const [how, g, n] of links.slice(0, 60)) {
      const target = data.graphs[g].nodes[n];
      const label = text(how).startsWith("Calls ") ? title(data.graphs[g]) : `${nameOf(target)} · ${numberOf(target, n)}`;
      list.append(make("dt", {}, text(how).startsWith("Calls ") ? "Calls" : text(how)), make("dd", {}, to(g, text(how).startsWith("Calls ") ? -1 : n, label)));
    }
    parts.push(list);
  }
  parts.push(...operands(graph, node), ...readers(graph), ...frames(node));
  return parts;
}

// The number of a node's instruction, payload node or kernel in its program.
function numberOf(node, index) {
  const first = node.about?.find(([name]) => ["Instruction", "Node", "Kernel"].includes(text(name)));
  return first ? `${text(first[0]).toLowerCase()} ${text(first[1])}` : `step ${index}`;
}

function operands(graph, node) {
  if (!node.operands?.length) return [];
  const list = make("ul", { class: "operands" });
  for (const each of node.operands) {
    const from = each.from != null ? to(state.graph, each.from, nameOf(graph.nodes[each.from])) : null;
    const right = from ?? (each.bytes != null ? make("small", {}, `constant, ${bytes(each.bytes)}`) : make("small"));
    const value = make("span", { class: "mono" }, text(each.text));
    list.append(each.name ? make("li", {}, make("b", {}, text(each.name)), right, value) : make("li", {}, value, right));
  }
  return [make("h3", {}, "Reads"), list];
}

function readers(graph) {
  const out = graph.outOf[state.node];
  if (!out.length) return [];
  const list = make("ul");
  for (const index of out.slice(0, 60)) {
    const at = graph.edges[index].ends[1];
    list.append(make("li", {}, to(state.graph, at, `${nameOf(graph.nodes[at])} · ${numberOf(graph.nodes[at], at)}`)));
  }
  if (out.length > 60) list.append(make("li", {}, `and ${out.length - 60} more`));
  return [make("h3", {}, "Read by"), list];
}

function frames(node) {
  if (!node.frames?.length) return [];
  const list = make("ul", { class: "frames" });
  for (const id of [...node.frames].reverse()) {
    const [file, line, called, code] = data.frames[id];
    list.append(make("li", {}, make("b", {}, text(called) || "?"), " ", make("span", {}, `${text(file) || "?"}:${line}`), code ? make("code", {}, text(code)) : null));
  }
  return [make("h3", {}, "Source, innermost first"), list];
}
