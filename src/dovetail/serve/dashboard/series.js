// The books over time: cumulative counts by workflow and class, and the two charts that are drawn from their differences.

import { colour, dash, number, percent, svg } from "./dom.js";

const MOST_POINTS = 8000;
const KEEP_MS = 3600e3;

export class Series {
  constructor(workflows) {
    this.workflows = workflows;
    this.keys = [];            // "graph/class" in a steady order: the place is the colour
    this.points = [];          // {t, counts: {key: [ok, ended]}}
  }

  add(nowMs, totals) {
    const last = this.points[this.points.length - 1];
    if (last && nowMs - last.t < 900) return;
    const counts = {};
    for (const [graph, priority, ok, late, shed, expired, failed] of totals) {
      const key = graph + "/" + priority;
      if (!this.keys.includes(key)) { this.keys.push(key); this.keys.sort((a, b) => a.localeCompare(b, "en", { numeric: true })); }
      counts[key] = [ok, ok + late + shed + expired + failed];
    }
    this.points.push({ t: nowMs, counts });
    while (this.points.length > MOST_POINTS || nowMs - this.points[0].t > KEEP_MS) this.points.shift();
  }

  name(key) {
    const [graph, priority] = key.split("/");
    return this.workflows[graph].name + " · class " + priority;
  }

  // [t, attainment or null, goodput per second] of one key, each over the window before it.
  line(key, fromMs, windowMs) {
    const out = [];
    let behind = 0;
    const points = this.points;
    for (let i = 1; i < points.length; i += 1) {
      const point = points[i];
      if (point.t < fromMs) continue;
      while (behind < i - 1 && points[behind + 1].t <= point.t - windowMs) behind += 1;
      const before = points[behind].counts[key] || [0, 0];
      const now = point.counts[key] || before;
      const ended = now[1] - before[1];
      const seconds = Math.max(0.5, (point.t - points[behind].t) / 1000);
      out.push([point.t, ended > 0 ? (now[0] - before[0]) / ended : null, (now[0] - before[0]) / seconds]);
    }
    return out;
  }
}

function niceTop(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 7.5, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}

function ago(ms) {
  const seconds = Math.round(ms / 1000);
  if (seconds === 0) return "now";
  return seconds < 120 ? "−" + seconds + " s" : "−" + Math.round(seconds / 60) + " min";
}

export function draw(node, series, { which, nowMs, rangeS, target }) {
  const width = node.clientWidth || 600, height = node.clientHeight || 190;
  const box = { left: 38, right: width - 132, top: 8, bottom: height - 20 };
  const fromMs = nowMs - rangeS * 1000;
  const windowMs = rangeS <= 120 ? 10e3 : rangeS <= 900 ? 30e3 : 60e3;
  const lines = series.keys.map((key) => series.line(key, fromMs, windowMs).filter((p) => p[which] !== null));
  const highest = which === 1 ? 1 : niceTop(Math.max(0.1, ...lines.flat().map((p) => p[which])));
  const lowest = which === 1 ? Math.min(0.9, ...lines.flat().map((p) => Math.floor(p[1] * 10) / 10)) : 0;
  const x = (t) => box.left + ((t - fromMs) / (rangeS * 1000)) * (box.right - box.left);
  const y = (v) => box.bottom - ((v - lowest) / (highest - lowest)) * (box.bottom - box.top);
  const parts = [];
  for (let i = 0; i <= 4; i += 1) {
    const value = lowest + ((highest - lowest) * i) / 4;
    parts.push(svg("line", { class: "grid", x1: box.left, x2: box.right, y1: y(value), y2: y(value) }));
    const label = which === 1 ? Math.round(100 * value) + "%" : number(value);
    parts.push(svg("text", { x: box.left - 6, y: y(value) + 4, "text-anchor": "end", text: label }));
  }
  for (let i = 0; i <= 4; i += 1) {
    const t = fromMs + (rangeS * 1000 * i) / 4;
    parts.push(svg("text", { x: x(t), y: height - 4, "text-anchor": "middle", text: ago(nowMs - t) }));
  }
  if (which === 1) parts.push(svg("line", { class: "goal", x1: box.left, x2: box.right, y1: y(target), y2: y(target) }));
  const ends = [];
  lines.forEach((points, index) => {
    if (!points.length) return;
    const key = series.keys[index];
    let path = "", last = null;
    const gap = Math.max(3 * windowMs, 15e3);
    for (const point of points) {
      path += (last && point[0] - last[0] < gap ? "L" : "M") + x(point[0]).toFixed(1) + " " + y(point[which]).toFixed(1);
      last = point;
    }
    const attributes = { class: "series", d: path, stroke: colour(index), "stroke-dasharray": dash(Number(key.split("/")[1])) };
    parts.push(svg("path", attributes, svg("title", { text: series.name(key) })));
    const value = which === 1 ? percent(last[1]) : number(last[2]) + "/s";
    ends.push({ at: y(last[which]), index, key, text: series.name(key), value });
  });
  label(parts, ends, box);
  if (!ends.length) parts.push(svg("text", { x: (box.left + box.right) / 2, y: height / 2, "text-anchor": "middle", text: "no requests yet" }));
  node.replaceChildren(...parts);
  const words = ends.map((end) => end.text + " " + end.value).join(", ");
  node.setAttribute("aria-label", (which === 1 ? "Attainment: " : "Goodput: ") + (words || "no requests yet"));
}

// What each line is, at its end: below each other without overlap, on two lines each where there is room.
function label(parts, ends, box) {
  ends.sort((a, b) => a.at - b.at);
  const step = Math.min(26, (box.bottom - box.top + 8) / Math.max(1, ends.length));
  let free = box.top - 2;
  ends.forEach((end, i) => {
    const last = box.bottom - step * (ends.length - i) + 6;
    const at = Math.max(free, Math.min(end.at - 4, last));
    free = at + step;
    const fill = { fill: colour(end.index) };
    const value = svg("text", { class: "end", x: box.right + 8, y: at + 8, style: fill, text: end.value });
    if (step >= 24) {
      parts.push(value, svg("text", { x: box.right + 8, y: at + 20, text: clip(end.text, 21) }));
    } else if (step >= 11) {
      parts.push(value, svg("text", { x: box.right + 54, y: at + 8, text: clip(end.text.replace(" · class ", "/"), 13) }));
    }
  });
}

const clip = (text, most) => (text.length > most ? text.slice(0, most - 1) + "…" : text);
