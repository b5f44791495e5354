// The dashboard: one stream of events, drawn as it comes. Nothing is asked of the server that it does not tell anyway,
// but the story of a request and the simulator's answer.

import { $, OUTCOME, OUTCOMES, badge, bytes, clock, colour, dash, el, number, percent, put, svg } from "./dom.js";
import { Graph } from "./graph.js";
import { Lanes } from "./lanes.js";
import { Series, draw } from "./series.js";
import { batchStory, openDrawer, tell } from "./story.js";
import { WhatIf } from "./whatif.js";

const TARGET = 0.95;
const state = { banner: null, tick: null, series: null, rangeS: 120, workflow: 0, only: "all", paused: false, model: {} };
const graph = new Graph($("graph"));
const lanes = new Lanes($("lanes"), { said: $("lane-said"), key: $("lane-key"), onBatch: batchStory });
const whatIf = new WhatIf();
const wall = (ms) => clock(state.banner.started_unix_ms + ms);

// -- the stream ---------------------------------------------------------------------------------------------------

let source = null;
let heard = 0;
function connect() {
  source?.close();
  source = new EventSource(location.origin + "/dashboard/events");
  source.addEventListener("banner", (event) => begin(JSON.parse(event.data)));
  source.addEventListener("tick", (event) => { heard = performance.now(); if (!state.paused) take(JSON.parse(event.data)); });
  source.addEventListener("gone", (event) => { say("gone", JSON.parse(event.data)); source.close(); setTimeout(connect, 2000); });
  source.addEventListener("error", () => { say("gone", "no connection"); if (source.readyState === 2) setTimeout(connect, 3000); });
}

function say(what, text) {
  if ($("pulse").textContent !== text) $("pulse").textContent = text;
  $("pulse").dataset.state = what;
}

function begin({ banner, history }) {
  const same = state.banner && state.banner.started_unix_ms === banner.started_unix_ms;
  state.banner = banner;
  $("where").textContent = `${banner.device} · policy ${banner.policy} · version ${banner.dovetail} · up since ${clock(banner.started_unix_ms)}`;
  document.title = banner.workflows.map((w) => w.name).join(", ") + " · Dovetail";
  if (!same) state.series = new Series(banner.workflows);
  if (!same) for (const [ms, totals] of history) state.series.add(ms, totals);
  state.model = {};
  for (const stage of banner.stages) (state.model[stage.weights] ||= []).push(stage.name);
  lanes.banner(banner.stages);
  put($("tabs"), banner.workflows.map((workflow, i) => el("button", { type: "button", role: "tab", text: workflow.name, "aria-selected": String(i === state.workflow), onclick: () => choose(i) })));
  $("tabs").hidden = banner.workflows.length < 2;
  choose(Math.min(state.workflow, banner.workflows.length - 1));
}

function choose(index) {
  if (!state.banner.workflows[index]) return;
  state.workflow = index;
  [...$("tabs").children].forEach((tab, i) => tab.setAttribute("aria-selected", String(i === index)));
  $("h-graph").textContent = "Workflow " + state.banner.workflows[index].name;
  graph.show(state.banner.workflows[index], Object.fromEntries(state.banner.stages.map((s) => [s.name, s])));
  if (state.tick) graph.update(Object.fromEntries(state.tick.stages.map((s) => [s.name, s])));
}

function take(tick) {
  state.tick = tick;
  say("live", tick.draining ? "draining" : "live");
  state.series.add(tick.now_ms, tick.classes.map((c) => c.totals));
  lanes.tick(tick, performance.now());
  whatIf.tick(tick);
  tiles(tick);
  charts();
  classes(tick);
  graph.update(Object.fromEntries(tick.stages.map((s) => [s.name, s])));
  memory(tick);
  requests(tick);
  notes(tick);
}

// -- parts --------------------------------------------------------------------------------------------------------

function tile(what, value, unit, more, tone) {
  return el("div", { class: "tile" }, [el("div", { class: "what", text: what }),
    el("div", { class: "value " + (tone || "") }, [value, unit ? el("small", { text: unit }) : null]), el("div", { class: "more", text: more, title: more })]);
}

function tiles(tick) {
  const all = tick.classes;
  const sum = (pick) => all.reduce((total, c) => total + pick(c), 0);
  const ended = all.filter((c) => c.attainment !== null);
  const good = sum((c) => c.goodput_per_s);
  const weight = ended.reduce((total, c) => total + (c.attainment ? c.goodput_per_s / c.attainment : 1e-9), 0);
  const hits = ended.length ? good / weight : null;
  const worst = ended.reduce((a, c) => (a && a.p99_ms / a.objective_ms >= c.p99_ms / c.objective_ms ? a : c), null);
  const busy = tick.workers.filter((w) => !w.on_host);
  const share = busy.length ? busy.reduce((total, w) => total + w.busy, 0) / busy.length : 0;
  const waiting = tick.stages.reduce((total, s) => total + s.depth, 0);
  const deepest = [...tick.stages].sort((a, b) => b.depth - a.depth)[0];
  put($("tiles"), [
    tile("Attainment", percent(hits), "", hits === null ? "no requests" : hits >= TARGET ? "✓ at least 95%" : "✕ below 95%", hits === null ? "" : hits >= TARGET ? "good" : "bad"),
    tile("Goodput", number(good), "/s", "answers within the objective"),
    tile("Arrivals", number(sum((c) => c.arrivals_per_s)), "/s", `${tick.open} open`),
    tile("p99 nearest its goal", worst && worst.p99_ms !== null ? number(worst.p99_ms) : "–", "ms", worst ? `${worst.workflow}, class ${worst.priority}, goal ${number(worst.objective_ms)} ms` : "",
      worst && worst.p99_ms > worst.objective_ms ? "bad" : ""),
    tile("Queued", number(waiting), "items", deepest && deepest.depth ? `most: ${deepest.name} (${deepest.depth})` : "nothing waits"),
    tile("Devices busy", Math.round(100 * Math.min(1, share)) + "%", "", `${busy.length} device(s), ${tick.workers.length - busy.length} Python`),
  ]);
}

function charts() {
  if (!state.tick) return;
  const how = { nowMs: state.tick.now_ms, rangeS: state.rangeS, target: TARGET };
  draw($("chart-hits"), state.series, { ...how, which: 1 });
  draw($("chart-good"), state.series, { ...how, which: 2 });
}

function swatch(index, priority) {
  return svg("svg", { class: "sw", viewBox: "0 0 18 10", "aria-hidden": "true" }, svg("line", { x1: 0, x2: 18, y1: 5, y2: 5, "stroke-width": 3, style: { stroke: colour(index) }, "stroke-dasharray": dash(priority) }));
}

function classes(tick) {
  put($("classes").tBodies[0], tick.classes.map((c) => {
    const counts = c.totals.slice(2), total = counts.reduce((a, b) => a + b, 0);
    const tones = ["var(--good)", "var(--warn)", "var(--s3)", "var(--s7)", "var(--bad)", "var(--soft)"];
    const mix = el("span", { class: "mix", role: "img", "aria-label": "outcomes" }, counts.map((n, i) => el("i", { style: { width: (100 * n) / Math.max(1, total) + "%", background: tones[i] } })));
    const words = OUTCOMES.map((name, i) => (counts[i] ? `${OUTCOME[name][0]} ${counts[i].toLocaleString("en")} ${OUTCOME[name][1]}` : "")).filter(Boolean).join("  ");
    const low = c.attainment !== null && c.attainment < TARGET;
    const meter = el("span", { class: "meter" + (low ? " low" : "") }, el("i", { style: { width: 100 * (c.attainment ?? 0) + "%" } }));
    const index = state.series.keys.indexOf(c.totals[0] + "/" + c.totals[1]);
    return el("tr", {}, [el("td", {}, [swatch(index, c.priority), c.workflow]), el("td", { text: String(c.priority) }),
      el("td", {}, [meter, el("span", { class: c.attainment === null ? "soft" : low ? "bad" : "good", text: percent(c.attainment) })]),
      el("td", { class: "n", text: number(c.arrivals_per_s) }), el("td", { class: "n", text: number(c.goodput_per_s) }), el("td", { class: "n", text: number(c.p50_ms) }),
      el("td", { class: "n" + (c.p99_ms > c.objective_ms ? " bad" : ""), text: number(c.p99_ms) }), el("td", { class: "n soft", text: number(c.objective_ms) }),
      el("td", {}, [mix, el("span", { class: "soft", text: words })])]);
  }));
}

function memory(tick) {
  const devices = tick.workers.filter((w) => !w.on_host);
  const named = (weights) => (state.model[weights] || [weights.slice(0, 8)]).join(", ");
  const order = Object.keys(state.model);
  put($("memory"), devices.map((worker) => {
    const room = worker.memory?.usable_bytes || worker.memory_bytes;
    const held = worker.memory?.held_bytes || worker.models.reduce((sum, m) => sum + m.nbytes, 0);
    const tight = room && room < 4 * held;
    const scale = tight ? room : Math.max(1, held);
    const counts = worker.memory ? ` · ${worker.memory.hits.toLocaleString("en")} hits, ${worker.memory.misses.toLocaleString("en")} misses, ${worker.memory.evictions.toLocaleString("en")} evictions` : "";
    return el("div", { class: "mem" }, [
      el("div", { class: "name" }, [el("strong", { text: worker.name }), el("span", { class: "soft", text: `${bytes(held)}${room ? " of " + bytes(room) : ""}${counts}` })]),
      el("div", { class: "strip" }, worker.models.filter((m) => m.nbytes || m.loading).map((m) => el("span", {
        style: { width: Math.max(1.5, (100 * m.nbytes) / scale) + "%", background: colour(Math.max(0, order.indexOf(m.weights))) }, title: `${named(m.weights)}: ${m.loading ? "on its way" : bytes(m.nbytes)}`,
        text: (m.loading ? "↓ " : "") + named(m.weights) })))]);
  }));
  put($("evictions"), tick.evictions.length ? [...tick.evictions].reverse().map((e) => el("li", {}, [el("time", { text: wall(e.at_ms) + " " }),
    el("strong", { text: named(e.weights) }), ` (${bytes(e.nbytes)}) left ${e.worker}: `, e.reason])) : el("li", { class: "soft", text: "none: everything fits" }));
}

function requests(tick) {
  const list = tick.ended.filter((r) => state.only === "all" || r.outcome !== "ok").slice(0, 30);
  const focused = document.activeElement?.dataset?.request;
  put($("requests"), list.length ? list.map((r) => el("li", {}, el("button", { type: "button", "data-request": r.request, onclick: () => tell(r.request), title: "The story of request " + r.request }, [
    badge(r.outcome), el("span", { text: `${r.workflow} · class ${r.priority}` }), el("span", { class: "mono", text: r.client_id ? r.client_id.slice(0, 22) : "#" + r.request }),
    el("span", { class: "n", text: number(r.latency_ms) + " ms" })]))) : el("li", { class: "soft", text: "none yet" }));
  if (focused) $("requests").querySelector(`[data-request="${CSS.escape(focused)}"]`)?.focus();
}

function notes(tick) {
  $("notes-card").hidden = !tick.notes.length;
  put($("notes"), [...tick.notes].reverse().map((n) => el("li", {}, [el("time", { text: wall(n.at_ms) + " " }), n.text])));
}

// -- keys and buttons ---------------------------------------------------------------------------------------------

function theme(next) {
  const kept = next ?? localStorage.getItem("dovetail-theme") ?? "auto";
  if (next) localStorage.setItem("dovetail-theme", next);
  const dark = kept === "dark" || (kept === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  document.documentElement.dataset.theme = dark ? "dark" : "light";
  $("theme").textContent = "Theme: " + kept;
  $("theme").dataset.kept = kept;
  charts();
}

function pause() {
  state.paused = !state.paused;
  $("pause").setAttribute("aria-pressed", String(state.paused));
  $("pause").textContent = state.paused ? "Go on" : "Pause";
  if (state.paused) say("paused", "paused");
}

function group(attribute, apply) {
  for (const button of document.querySelectorAll(`[data-${attribute}]`)) {
    button.addEventListener("click", () => {
      for (const other of document.querySelectorAll(`[data-${attribute}]`)) other.setAttribute("aria-pressed", String(other === button));
      apply(button.dataset[attribute]);
    });
  }
}

const SPANS = [2, 5, 15];
lanes.zoom = (by) => {
  const next = SPANS[Math.max(0, Math.min(2, SPANS.indexOf(lanes.spanS) + by))];
  document.querySelector(`[data-span="${next}"]`).click();
};
group("range", (value) => { state.rangeS = Number(value); charts(); });
group("span", (value) => { lanes.spanS = Number(value); });
group("only", (value) => { state.only = value; if (state.tick) requests(state.tick); });
const cycle = () => theme({ auto: "light", light: "dark", dark: "auto" }[$("theme").dataset.kept]);
$("theme").addEventListener("click", cycle);
$("pause").addEventListener("click", pause);
$("drawer-close").addEventListener("click", () => $("drawer").close());
$("drawer").addEventListener("click", (event) => { if (event.target === $("drawer")) $("drawer").close(); });
$("find").addEventListener("submit", (event) => { event.preventDefault(); const ident = $("find-id").value.trim(); if (ident) tell(ident); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => theme());

const KEYS = [["p", "pause, go on"], ["t", "light, dark, as the system has it"], ["/", "find a request"], ["1 … 9", "choose a workflow"], ["w", "what if"], ["d", "devices: ← → choose a batch, Enter tells of it, + − zoom"], ["?", "this list"], ["Esc", "close"]];
function help() {
  openDrawer("Keys", el("table", {}, el("tbody", {}, KEYS.map(([key, what]) => el("tr", {}, [el("td", {}, el("kbd", { text: key })), el("td", { text: what })])))));
}
$("keys").addEventListener("click", help);
addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName)) return;
  if (event.key === "p") pause();
  else if (event.key === "t") cycle();
  else if (event.key === "/") $("find-id").focus();
  else if (event.key === "w") whatIf.rate?.focus();
  else if (event.key === "d") $("lanes").focus();
  else if (event.key === "?") help();
  else if (/^[1-9]$/.test(event.key) && state.banner) choose(Number(event.key) - 1);
  else return;
  event.preventDefault();
});

theme();
connect();
setInterval(() => { if (!state.paused && heard && performance.now() - heard > 4000) say("gone", "nothing heard for " + Math.round((performance.now() - heard) / 1000) + " s"); }, 1000);
const still = matchMedia("(prefers-reduced-motion: reduce)");
let drawn = 0;
function frame(at) {
  // 20 pictures a second are smooth enough for bars that slide; one per tick if motion is not wanted.
  if (state.banner && !document.hidden && at - drawn > (still.matches ? 500 : 50)) { drawn = at; lanes.draw(performance.now(), state.paused); }
  requestAnimationFrame(frame);
}
requestAnimationFrame(frame);
