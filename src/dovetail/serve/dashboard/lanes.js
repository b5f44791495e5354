// Each device's lanes: batches and, where they ran kernel by kernel, their kernels and the gaps that they filled.

import { el, number, resolved, themed } from "./dom.js";

const ROW = 19, PAD = 8, LEFT = 92, KEEP_MS = 40e3, DELAY_MS = 700, AXIS = 18;

export class Lanes {
  constructor(canvas, { said, key, onBatch }) {
    Object.assign(this, { canvas, said, key, onBatch, spanS: 5, spans: [], kernels: new Map(), workers: [], running: [], nowMs: 0, seen: 0, chosen: null, boxes: [] });
    canvas.addEventListener("click", (event) => { this.choose(this.under(event)); this.open(); });
    canvas.addEventListener("mousemove", (event) => { const hit = this.under(event); canvas.style.cursor = hit ? "pointer" : ""; canvas.title = hit ? this.words(hit) : ""; });
    canvas.addEventListener("keydown", (event) => this.pressed(event));
  }

  banner(stages) {
    this.stages = stages;
    this.key.replaceChildren();
    stages.forEach((stage, i) => {
      if (i < 14) this.key.append(el("span", { class: "swatch", style: { background: `var(--s${i % 8})` } }), stage.name + " ");
    });
    this.key.append(" · the lower the class, the lower the bar · pale: others had the device in between · ▲ a kernel that filled a gap");
  }

  tick(tick, atMs) {
    this.nowMs = tick.now_ms;
    this.seen = atMs;
    this.workers = tick.workers;
    this.running = tick.running;
    for (const [worker, stage, priority, begin, end, busy, items, batch, requests, failed] of tick.spans) {
      this.spans.push({ worker, stage, priority, begin: begin / 1e6, end: end / 1e6, busy: busy / 1e6, items, batch, requests, failed });
    }
    for (const [worker, stage, priority, begin, end, batch, why] of tick.kernels) {
      const name = worker + "/" + batch;
      if (!this.kernels.has(name)) this.kernels.set(name, []);
      this.kernels.get(name).push({ stage, priority, begin: begin / 1e6, end: end / 1e6, why });
    }
    const old = this.nowMs - KEEP_MS;
    this.spans = this.spans.filter((s) => s.end > old);
    for (const [name, list] of this.kernels) if (list[list.length - 1].end < old) this.kernels.delete(name);
    if (this.kernels.size > 4000) this.kernels.clear();
  }

  // Batches that overlap on a worker go into rows below each other, the same row as long as they last.
  rows(worker, from) {
    const ends = [];
    const mine = this.spans.filter((s) => s.worker === worker && s.end >= from).sort((a, b) => a.begin - b.begin);
    for (const span of mine) {
      let row = ends.findIndex((end) => end <= span.begin + 1e-6);
      if (row < 0) row = ends.length;
      ends[row] = span.end;
      span.row = Math.min(row, 5);
    }
    return { mine, count: Math.max(1, Math.min(6, ends.length)) };
  }

  draw(clockMs, paused) {
    const canvas = this.canvas, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth;
    const nowMs = this.nowMs + (paused ? 0 : Math.min(3000, clockMs - this.seen)) - DELAY_MS;
    const from = nowMs - this.spanS * 1000;
    const groups = this.workers.map((worker) => ({ worker, ...this.rows(worker.ident, from) }));
    const height = groups.reduce((sum, g) => sum + Math.max(2, g.count) * ROW + PAD, AXIS) || 60;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
      canvas.style.height = height + "px";
    }
    const g = canvas.getContext("2d");
    g.setTransform(ratio, 0, 0, ratio, 0, 0);
    g.clearRect(0, 0, width, height);
    const ink = themed("--ink"), soft = themed("--soft"), grid = themed("--grid"), card = themed("--card"), accent = themed("--accent");
    const x = (t) => LEFT + ((t - from) / (nowMs - from)) * (width - LEFT);
    g.font = "11px system-ui, sans-serif";
    this.boxes = [];
    const stepMs = this.spanS <= 2 ? 250 : this.spanS <= 5 ? 500 : 2500;
    for (let t = Math.ceil(from / stepMs) * stepMs; t <= nowMs; t += stepMs) {
      g.fillStyle = grid;
      g.fillRect(x(t), 0, 1, height - AXIS);
      g.fillStyle = soft;
      if (x(t) < width - 30) g.fillText((t / 1000).toFixed(this.spanS <= 2 ? 2 : 1) + " s", x(t) + 3, height - 5);
    }
    let top = 0;
    for (const group of groups) {
      const tall = Math.max(2, group.count) * ROW;
      g.fillStyle = ink;
      g.font = "600 12px system-ui, sans-serif";
      g.fillText(group.worker.name.slice(0, 12), 2, top + 13);
      g.font = "11px system-ui, sans-serif";
      g.fillStyle = soft;
      g.fillText(Math.round(100 * group.worker.busy) + "% busy", 2, top + 28);
      g.fillStyle = grid;
      g.fillRect(0, top + tall + PAD / 2, width, 1);
      g.save();
      g.beginPath();
      g.rect(LEFT, top, width - LEFT, tall + PAD);
      g.clip();
      for (const span of group.mine) this.batch(g, span, x, top + span.row * ROW + 2, { ink, card, accent });
      g.restore();
      top += tall + PAD;
    }
  }

  batch(g, span, x, y, { ink, card, accent }) {
    // The lower the class, the lower the bar: colour is the stage's.
    const full = ROW - 5, tall = span.priority <= 1 ? full : span.priority === 2 ? full - 4 : full - 7;
    const left = x(span.begin), wide = Math.max(1.5, x(span.end) - left);
    y += full - tall;
    const kernels = this.kernels.get(span.worker + "/" + span.batch);
    const divided = kernels || span.busy < 0.98 * (span.end - span.begin);
    const tone = resolved(span.stage);
    g.globalAlpha = divided ? 0.3 : 1;
    g.fillStyle = tone;
    g.fillRect(left, y, wide - (wide > 4 ? 0.7 : 0), tall);
    g.globalAlpha = 1;
    if (kernels) {
      for (const k of kernels) {
        const a = x(k.begin), b = Math.max(1, x(k.end) - a);
        g.fillStyle = tone;
        g.fillRect(a, y, Math.max(1, b - 0.5), tall);
        if (k.why !== "turn") {
          g.fillStyle = ink;
          g.beginPath();
          g.moveTo(a + b / 2 - 3, y + tall + 4); g.lineTo(a + b / 2 + 3, y + tall + 4); g.lineTo(a + b / 2, y + tall - 1);
          g.fill();
        }
      }
    }
    if (span.failed) { g.strokeStyle = ink; g.setLineDash([2, 2]); g.strokeRect(left + 0.5, y + 0.5, wide - 1, tall - 1); g.setLineDash([]); }
    if (wide > 34 && tall > 8) {
      const name = this.stages[span.stage].name + (span.items > 1 ? " ×" + span.items : "");
      const room = Math.floor((wide - 6) / 6);
      if (divided) { g.globalAlpha = 0.75; g.fillStyle = card; g.fillRect(left + 2, y + 1, Math.min(wide - 4, name.length * 6 + 4), tall - 2); g.globalAlpha = 1; }
      g.fillStyle = divided ? ink : card;
      g.fillText(name.length > room ? name.slice(0, Math.max(0, room - 1)) + "…" : name, left + 4, y + tall / 2 + 4);
    }
    if (this.chosen === span.batch) { g.strokeStyle = accent; g.lineWidth = 2; g.strokeRect(left - 1, y - 1, wide + 2, tall + 2); g.lineWidth = 1; }
    this.boxes.push({ span, left, right: left + wide, top: y, bottom: y + tall });
  }

  under(event) {
    const box = this.canvas.getBoundingClientRect(), px = event.clientX - box.left, py = event.clientY - box.top;
    return this.boxes.find((b) => px >= b.left - 2 && px <= b.right + 2 && py >= b.top && py <= b.bottom)?.span ?? null;
  }

  words(span) {
    const worker = this.workers.find((w) => w.ident === span.worker)?.name ?? span.worker;
    const busy = span.busy < 0.98 * (span.end - span.begin) ? `, had the device for ${number(span.busy)} ms of that` : "";
    return `batch ${span.batch}: ${span.items} item(s) of ${this.stages[span.stage].name}, class ${span.priority}, on ${worker}, ` +
      `${number(span.end - span.begin)} ms${busy}` + (span.failed ? `, failed: ${span.failed}` : "");
  }

  choose(span) {
    if (!span) return;
    this.chosen = span.batch;
    this.said.textContent = this.words(span);
  }

  open() {
    const span = this.spans.find((s) => s.batch === this.chosen);
    if (span) this.onBatch(span, this.words(span));
  }

  pressed(event) {
    const order = this.boxes.map((b) => b.span).sort((a, b) => a.begin - b.begin);
    const at = order.findIndex((s) => s.batch === this.chosen);
    if (event.key === "ArrowLeft") this.choose(order[at < 0 ? order.length - 1 : Math.max(0, at - 1)]);
    else if (event.key === "ArrowRight") this.choose(order[at < 0 ? 0 : Math.min(order.length - 1, at + 1)]);
    else if (event.key === "Enter") this.open();
    else if (event.key === "+" || event.key === "=") this.zoom?.(-1);
    else if (event.key === "-") this.zoom?.(1);
    else return;
    event.preventDefault();
  }
}
