// The tabs with tables and memory charts.

const sheet = byId("sheet");
// Rows that are shown initially.
const FEW = 500;

const heading = (name, note) => [make("h2", {}, name), make("p", {}, note)];

function cellText(cell, kind) {
  if (cell == null) return "";
  switch (kind) {
    case "text": return text(cell);
    case "bytes": return bytes(cell);
    case "time": return time(cell);
    case "share": return `${cell.toFixed(1)} %`;
    default: return number(cell);
  }
}

function tableOf(table, rows, onSort) {
  const largest = table.columns.map((_, c) => Math.max(0, ...table.rows.map((row) => typeof row.cells[c] === "number" ? row.cells[c] : 0)));
  const head = make("tr");
  table.columns.forEach(([name, kind], c) => {
    head.append(make("th", { class: kind === "text" ? "" : "number", scope: "col", onclick: onSort && (() => onSort(c)) }, text(name)));
  });
  const body = make("tbody");
  for (const row of rows) {
    const line = make("tr", { class: row.link ? "linked" : "", onclick: row.link && onSort ? () => go(row.link[0], row.link[1]) : null });
    row.cells.forEach((cell, c) => {
      const kind = table.columns[c][1];
      const shown = make("td", { class: kind === "text" ? "" : "number" });
      if (["bytes", "time", "share"].includes(kind) && cell != null) {
        const filled = make("i");
        filled.style.width = `${100 * cell / (kind === "share" ? 100 : largest[c] || 1)}%`;
        shown.append(make("span", { class: "bar" }, filled));
      }
      if (kind === "text") shown.append(...breakable(cellText(cell, kind)));
      else shown.append(make("span", { class: "value" }, cellText(cell, kind)));
      line.append(shown);
    });
    body.append(line);
  }
  return make("table", {}, make("thead", {}, head), body);
}

function showTable(index) {
  const table = data.tables[index];
  let [sorted, down, all] = [-1, true, false];
  const show = () => {
    const words = byId("search").value.trim().toLowerCase();
    let rows = table.rows;
    if (words) rows = rows.filter((row) => row.cells.some((cell, c) => table.columns[c][1] === "text" && text(cell).toLowerCase().includes(words)));
    if (sorted >= 0) {
      const isText = table.columns[sorted][1] === "text";
      const order = (a, b) => isText ? text(a).localeCompare(text(b)) : (a ?? -1) - (b ?? -1);
      rows = [...rows].sort((a, b) => (down ? -1 : 1) * order(a.cells[sorted], b.cells[sorted]));
    }
    const sum = table.columns.findIndex(([, kind]) => kind === "bytes");
    const total = sum >= 0 ? `, ${bytes(rows.reduce((n, row) => n + (row.cells[sum] ?? 0), 0))}` : "";
    const note = `${text(table.note)} ${number(rows.length)} ${rows.length === 1 ? "row" : "rows"}${total}`.trim();
    const shown = all ? rows : rows.slice(0, FEW);
    sheet.replaceChildren(...heading(text(table.title), note), tableOf(table, shown, (c) => {
      down = sorted === c ? !down : table.columns[c][1] !== "text";
      sorted = c;
      show();
    }));
    if (shown.length < rows.length) {
      sheet.append(make("button", { class: "more", type: "button", onclick: () => { all = true; show(); } }, `Show all ${number(rows.length)}`));
    }
  };
  sheet.refresh = show;
  show();
}

// The index of an instruction's node in the graph of a method; -1 before the first instruction.
function nodeOf(graph, instruction) {
  const nodes = data.graphs[graph].nodes;
  data.graphs[graph].first ??= nodes.findIndex((node) => !node.pill);
  return instruction < 0 ? -1 : data.graphs[graph].first + instruction;
}

// A block has the colour of the node that first writes it.
function blockColour(arena, first) {
  const node = arena.graph != null ? data.graphs[arena.graph].nodes[nodeOf(arena.graph, first)] : null;
  return node ? tint(node.family).solid : colours.quiet;
}

function drawArena(arena, chart, over) {
  const context = chart.getContext("2d");
  const [width, height] = size(chart, context);
  const top = 54, moments = arena.instructions + 2;
  const px = (moment) => (moment + 1) / moments * width;
  const py = (byte) => top + byte / (arena.bytes || 1) * (height - top - 2);
  context.clearRect(0, 0, width, height);
  context.fillStyle = colours.ground;
  context.fillRect(0, top, width, height - top);
  context.globalAlpha = 0.72;
  for (const [start, length, first, last] of arena.blocks) {
    const [x, y] = [px(first), py(start)];
    context.fillStyle = blockColour(arena, first);
    context.fillRect(x, y, Math.max(1, px(last + 1) - x - 0.7), Math.max(1, py(start + length) - y - 0.7));
  }
  context.globalAlpha = 1;
  if (over) {
    const [start, length, first, last] = over;
    context.strokeStyle = colours.text;
    context.lineWidth = 1.5;
    context.strokeRect(px(first), py(start), Math.max(2, px(last + 1) - px(first)), Math.max(2, py(start + length) - py(start)));
  }
  // The curve of live bytes over the instructions.
  const needed = needs(arena), most = Math.max(1, ...needed);
  context.beginPath();
  context.moveTo(0, top - 8);
  needed.forEach((n, moment) => {
    const y = top - 8 - n / most * (top - 14);
    context.lineTo(px(moment - 1), y);
    context.lineTo(px(moment), y);
  });
  context.lineTo(width, top - 8);
  context.closePath();
  context.fillStyle = colours.accent;
  context.globalAlpha = 0.16;
  context.fill();
  context.globalAlpha = 1;
  context.strokeStyle = colours.accent;
  context.lineWidth = 1.5;
  context.stroke();
}

function needs(arena) {
  if (arena.needs) return arena.needs;
  const changes = new Array(arena.instructions + 4).fill(0);
  for (const [, length, first, last] of arena.blocks) {
    changes[first + 1] += length;
    changes[last + 2] -= length;
  }
  let now = 0;
  arena.needs = changes.slice(0, -1).map((by) => now += by);
  return arena.needs;
}

function arenaNote(arena) {
  const peak = arena.peak_at ? `, of which at most ${bytes(arena.peak)} are needed at a time: at ${text(arena.peak_at)}` : "";
  return `${bytes(arena.bytes)}${peak}. Instructions run from left to right, bytes from top to bottom; the curve above shows the bytes in use.`;
}

function showMemory() {
  sheet.refresh = null;
  sheet.replaceChildren(...heading("Memory over time", `${number(data.arenas.length)} ${data.arenas.length === 1 ? "arena" : "arenas"}`));
  for (const arena of data.arenas) {
    const chart = make("canvas");
    chart.style.height = `${Math.min(460, 130 + Math.sqrt(arena.blocks.length) * 26)}px`;
    const block = (event) => {
      const [x, y] = [event.offsetX / chart.clientWidth, (event.offsetY - 54) / (chart.clientHeight - 56)];
      const moment = Math.floor(x * (arena.instructions + 2)) - 1, byte = y * arena.bytes;
      return arena.blocks.find(([start, length, first, last]) => first <= moment && moment <= last && start <= byte && byte < start + length);
    };
    chart.addEventListener("pointermove", (event) => {
      const over = block(event);
      drawArena(arena, chart, over);
      tip(event, over && `${text(over[4])}, ${bytes(over[1])} at byte ${number(over[0])}, instructions ${Math.max(0, over[2])} to ${Math.min(arena.instructions - 1, over[3])}${over[5] ? `, ${text(over[5])}` : ""}`);
    });
    chart.addEventListener("click", (event) => {
      const over = block(event), node = over && arena.graph != null ? nodeOf(arena.graph, over[2]) : -1;
      if (node < 0) return;
      tip(event);
      go(arena.graph, node);
    });
    chart.addEventListener("pointerleave", (event) => { drawArena(arena, chart); tip(event); });
    sheet.append(make("div", { class: "arena" }, make("h3", {}, text(arena.name)), make("p", {}, arenaNote(arena)), chart));
    drawArena(arena, chart);
  }
}

function tip(event, words) {
  let box = byId("tip");
  if (!words) {
    box?.remove();
    return;
  }
  if (!box) document.body.append(box = make("div", { id: "tip" }));
  box.textContent = words;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - box.offsetWidth - 10)}px`;
  box.style.top = `${event.clientY + 16}px`;
}
