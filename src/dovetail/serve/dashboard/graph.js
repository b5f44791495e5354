// A workflow's graph in layers from left to right, with what waits and how long its stages take.

import { number, svg } from "./dom.js";

const W = 120, H = 88, GAP_X = 24, GAP_Y = 14, PORT_W = 84, PORT_H = 28;

function layout(workflow) {
  const nodes = workflow.nodes;
  const depth = nodes.map(() => 1);
  nodes.forEach((node, i) => { for (const from of node.after) if (from >= 0) depth[i] = Math.max(depth[i], depth[from] + 1); });
  const layers = [];
  depth.forEach((d, i) => (layers[d] ||= []).push(i));
  layers[0] = workflow.inputs.map((_, k) => -1 - k);
  layers.push(workflow.outputs.map((_, k) => "out" + k));
  const place = new Map();
  const tall = (layer, column) => layer.length * (isPort(column, layers) ? PORT_H + GAP_Y : H + GAP_Y) - GAP_Y;
  const height = Math.max(...layers.map(tall));
  let x = 0;
  layers.forEach((layer, column) => {
    const weight = (id) => {
      const before = typeof id === "number" && id >= 0 ? nodes[id].after : [];
      const ys = before.map((from) => place.get(from)?.y).filter((v) => v !== undefined);
      return ys.length ? ys.reduce((a, b) => a + b) / ys.length : 0;
    };
    layer.sort((a, b) => weight(a) - weight(b));
    const ports = isPort(column, layers), wide = ports ? PORT_W : W, high = ports ? PORT_H : H;
    layer.forEach((id, row) => place.set(id, { x, y: (height - tall(layer, column)) / 2 + row * (high + GAP_Y), wide, high, column }));
    x += wide + GAP_X;
  });
  return { place, width: x - GAP_X, height };
}

const isPort = (column, layers) => column === 0 || column === layers.length - 1;

function edge(from, to) {
  const x1 = from.x + from.wide, y1 = from.y + from.high / 2, x2 = to.x, y2 = to.y + to.high / 2;
  const skip = to.column - from.column - 1;
  const bend = skip && Math.abs(y1 - y2) < 4 ? -(H / 2 + 14 + 6 * skip) : 0;
  const mid = Math.max(12, (x2 - x1) / 2.5);
  return svg("path", { class: "edge", d: `M${x1} ${y1}C${x1 + mid} ${y1 + bend} ${x2 - mid} ${y2 + bend} ${x2} ${y2}`, "marker-end": "url(#arrow)" });
}

export class Graph {
  constructor(node) { this.node = node; this.workflow = null; }

  show(workflow, stages) {
    this.workflow = workflow;
    const { place, width, height } = layout(workflow);
    const longest = Math.max(0, ...workflow.nodes.map((node, i) => Math.max(...node.after.map((from) => place.get(i).column - place.get(from).column - 1))));
    const above = longest ? 22 + 5 * longest : 6;
    this.node.setAttribute("viewBox", `-4 ${-above} ${width + 8} ${height + above + 8}`);
    this.node.style.maxHeight = Math.round((height + above + 8) * 1.25) + "px";
    this.node.style.minWidth = Math.min(1600, Math.round(width * 0.72)) + "px";
    const marker = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 7, markerHeight: 7, orient: "auto" },
      svg("path", { d: "M0 0L8 4L0 8z", style: { fill: "var(--line)" } }));
    const parts = [svg("defs", {}, marker)];
    workflow.nodes.forEach((node, i) => node.after.forEach((from) => parts.push(edge(place.get(from), place.get(i)))));
    workflow.outputs.forEach((_, k) => {
      const from = workflow.results[Math.min(k, workflow.results.length - 1)];
      parts.push(edge(place.get(from), place.get("out" + k)));
    });
    workflow.inputs.forEach((name, k) => parts.push(port(place.get(-1 - k), name)));
    workflow.outputs.forEach((name, k) => parts.push(port(place.get("out" + k), name)));
    this.live = workflow.nodes.map((node, i) => {
      const at = place.get(i);
      const kind = stages[node.stage]?.kind === "python" ? "ƒ" : "◆";
      const marks = (node.mapped ? " ∗" : "") + (node.conditional ? " ?" : "");
      const made = {
        name: svg("text", { class: "name", x: 9, y: 18, text: kind + " " + clip(node.name, 14) + marks }),
        queue: svg("text", { class: "num", x: 9, y: 35 }),
        time: svg("text", { class: "num", x: 9, y: 51 }),
        rest: svg("text", { class: "num", x: 9, y: 65 }),
        bar: svg("rect", { class: "queue", x: 9, y: 38, width: 0, height: 2.5 }),
        wait: svg("rect", { class: "wait", x: 9, y: 74, width: 0, height: 6 }),
        run: svg("rect", { class: "run", x: 9, y: 74, width: 0, height: 6 }),
        title: svg("title"),
      };
      made.group = svg("g", { class: "node", transform: `translate(${at.x} ${at.y})` },
        [made.title, svg("rect", { class: "box", width: W, height: H, rx: 8 }), made.name, made.queue, made.time, made.rest, made.bar, made.wait, made.run]);
      parts.push(made.group);
      return made;
    });
    this.node.replaceChildren(...parts);
  }

  update(stages) {
    if (!this.workflow) return;
    const now = this.workflow.nodes.map((node) => stages[node.stage]).map((s) => s || { depth: 0, run_ms: 0, wait_ms: 0, items_per_batch: 0, batches_per_s: 0, workers: 0, running: 0 });
    const longest = Math.max(1, ...now.map((s) => s.run_ms + s.wait_ms));
    const words = [];
    this.workflow.nodes.forEach((node, i) => {
      const s = now[i], made = this.live[i], room = W - 18;
      made.queue.textContent = `queue ${s.depth}` + (s.running ? ` · ${s.running} run` : "");
      made.time.textContent = s.batches_per_s ? `run ${number(s.run_ms)} ms` + (s.items_per_batch > 1 ? ` ×${number(s.items_per_batch, 2)}` : "") : "idle";
      made.rest.textContent = s.batches_per_s ? `wait ${number(s.wait_ms)} ms` : "";
      made.bar.setAttribute("width", Math.min(room, s.depth * 4));
      const run = (room * s.run_ms) / longest, wait = (room * s.wait_ms) / longest;
      made.run.setAttribute("width", run.toFixed(1));
      made.wait.setAttribute("x", (9 + run).toFixed(1));
      made.wait.setAttribute("width", wait.toFixed(1));
      made.group.classList.toggle("hot", s.depth > 0 && s.wait_ms > 2 * Math.max(1, s.run_ms));
      made.title.textContent = `${node.name}: ${s.depth} wait, ${s.running} batches run, ${number(s.run_ms)} ms running and ${number(s.wait_ms)} ms waiting, ` +
        `${number(s.items_per_batch, 2)} items per batch, ${number(s.batches_per_s)} batches/s, on ${s.workers} worker(s)`;
      words.push(made.title.textContent);
    });
    this.node.setAttribute("aria-label", this.workflow.name + ": " + words.join("; "));
  }
}

const clip = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);

function port(at, name) {
  return svg("g", { transform: `translate(${at.x} ${at.y})` }, [
    svg("rect", { class: "port", width: PORT_W, height: PORT_H, rx: 14 }),
    svg("text", { x: PORT_W / 2, y: PORT_H / 2 + 4, "text-anchor": "middle", text: clip(name, 13) }),
  ]);
}
