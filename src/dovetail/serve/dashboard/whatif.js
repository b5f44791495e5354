// What if: another rate, other devices, and the simulator's answer beside what was measured.

import { $, el, number, percent, put } from "./dom.js";

export class WhatIf {
  constructor() {
    this.kinds = "";
    $("whatif").addEventListener("submit", (event) => { event.preventDefault(); this.ask(); });
  }

  tick(tick) {
    const counts = {};
    for (const worker of tick.workers) counts[worker.kind] = (counts[worker.kind] || 0) + 1;
    const kinds = JSON.stringify(counts);
    this.perSecond = tick.classes.reduce((sum, c) => sum + c.arrivals_per_s, 0);
    if (this.kinds !== kinds) { this.kinds = kinds; this.form(counts); }
    this.label();
  }

  form(counts) {
    this.rate = el("input", { id: "wi-rate", type: "range", min: -2, max: 3, step: 0.1, value: 1, oninput: () => this.label() });
    this.out = el("output", { for: "wi-rate" });
    this.devices = Object.entries(counts).map(([kind, count]) => {
      const input = el("input", { id: "wi-" + kind, type: "number", min: 1, max: 64, value: count, "data-kind": kind });
      return [el("div", {}, [el("label", { for: "wi-" + kind, text: kind === "host" ? "Python processes" : kind + " devices" }), input]), input];
    });
    this.button = el("button", { class: "primary", text: "Ask the simulator" });
    put($("whatif"), [el("div", {}, [el("label", { for: "wi-rate" }, ["rate ", this.out]), this.rate]), ...this.devices.map(([box]) => box), this.button]);
    this.label();
  }

  factor() { return 2 ** Number(this.rate.value); }

  label() {
    if (!this.out) return;
    const factor = this.factor();
    this.out.textContent = `×${factor < 10 ? factor.toFixed(2) : factor.toFixed(1)}` + (this.perSecond ? ` (${number(this.perSecond)} → ${number(this.perSecond * factor)}/s)` : "");
  }

  async ask() {
    const question = { rate: this.factor(), devices: Object.fromEntries(this.devices.map(([, input]) => [input.dataset.kind, Number(input.value)])) };
    const place = $("whatif-answer");
    this.button.disabled = true;
    put(place, el("p", { class: "soft", text: "simulating …" }));
    try {
      const answer = await fetch(location.origin + "/dashboard/what-if", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(question) });
      const told = await answer.json();
      if (!answer.ok) throw new Error(told.error);
      put(place, this.table(told));
    } catch (error) {
      put(place, el("p", { class: "error", text: error.message }));
    }
    this.button.disabled = false;
  }

  table(told) {
    const find = (list, row) => list.find((s) => s.workflow === row.workflow && s.priority === row.priority);
    const rows = told.other.map((row) => {
      const seen = find(told.seen, row), same = find(told.same, row);
      const change = same ? row.hit_rate - same.hit_rate : 0;
      const tone = Math.abs(change) < 0.005 ? "" : change > 0 ? "good up" : "bad down";
      return el("tr", {}, [
        el("td", { text: row.workflow }), el("td", { text: String(row.priority) }),
        el("td", { class: "n soft", text: seen ? percent(seen.hit_rate) : "–" }), el("td", { class: "n", text: same ? percent(same.hit_rate) : "–" }),
        el("td", { class: "n " + tone, text: percent(row.hit_rate) }),
        el("td", { class: "n soft", text: seen ? number(seen.p99_ms) : "–" }), el("td", { class: "n", text: same ? number(same.p99_ms) : "–" }),
        el("td", { class: "n" + (row.p99_ms > row.objective_ms ? " bad" : ""), text: number(row.p99_ms) }),
        el("td", { class: "n", text: number(row.objective_ms) }),
        el("td", { class: "n", text: number((row.outcomes.ok || 0) / told.seconds) }),
        el("td", { class: "n", text: number((row.outcomes.shed || 0) / told.seconds) })]);
    });
    const heads = ["workflow", "class", "hits seen", "hits simulated", "hits then", "p99 seen", "p99 simulated", "p99 then", "goal ms", "in time/s then", "shed/s then"];
    const devices = (counts) => Object.entries(counts).map(([kind, count]) => `${count} ${kind}`).join(", ");
    const words = `${number(told.rate_per_s)}/s on ${devices(told.devices)} → ${number(told.other_rate_per_s)}/s on ${devices(told.other_devices)}; ` +
      `${number(told.seconds)} s simulated from the present: models in memory, open requests, times that were seen. ` + told.notes.join(". ");
    return [
      el("div", { class: "scroll" }, el("table", {}, [
        el("thead", {}, el("tr", {}, heads.map((text, i) => el("th", { scope: "col", class: i > 1 ? "n" : "", text })))), el("tbody", {}, rows)])),
      el("p", { class: "key", text: words })];
  }
}
