// The story of a request, in a drawer: where its time went, and every moment of it.

import { $, badge, el, number, put, svg } from "./dom.js";

const PARTS = [["waiting_ns", "waiting", "waiting"], ["transport_ns", "transport", "on its way"], ["running_ns", "running", "running"]];

export function openDrawer(title, body) {
  $("drawer-title").textContent = title;
  put($("drawer-body"), body);
  if (!$("drawer").open) $("drawer").showModal();
}

export async function tell(ident) {
  openDrawer("Request " + ident, el("p", { class: "soft", text: "reading …" }));
  let told;
  try {
    const answer = await fetch(location.origin + "/dashboard/requests/" + encodeURIComponent(ident));
    told = await answer.json();
    if (!answer.ok) throw new Error(told.error);
  } catch (error) {
    openDrawer("Request " + ident, el("p", { class: "error", text: error.message }));
    return;
  }
  const name = `Request ${told.request}` + (told.client_id ? ` (${told.client_id})` : "");
  openDrawer(name, [
    el("p", {}, [badge(told.outcome), el("span", { class: "soft", text: ` ${told.workflow}, class ${told.priority}, objective ${number((told.objective_ns - told.arrived_ns) / 1e6)} ms` })]),
    el("p", { class: "verdict", text: told.verdict }),
    ...(told.path.length ? [waterfall(told), legend()] : []),
    moments(told),
  ]);
}

function waterfall(told) {
  const whole = Math.max(1, told.path.reduce((sum, leg) => sum + PARTS.reduce((s, [key]) => s + leg[key], 0), 0));
  const goal = told.objective_ns - told.arrived_ns;
  const span = Math.max(whole, goal);
  const row = 24, left = 150, right = 790, height = told.path.length * row + 30;
  const x = (ns) => left + (ns / span) * (right - left);
  const parts = [];
  let at = 0;
  told.path.forEach((leg, i) => {
    const y = i * row;
    parts.push(svg("text", { x: 0, y: y + 15, text: leg.name + (leg.failed ? " (failed)" : "") }));
    const begin = at;
    for (const [key, tone, word] of PARTS) {
      if (!leg[key]) continue;
      parts.push(svg("rect", { class: tone, x: x(at), y: y + 4, width: Math.max(1, x(at + leg[key]) - x(at)), height: 14 },
        svg("title", { text: `${leg.name}: ${word} ${number(leg[key] / 1e6)} ms` })));
      at += leg[key];
    }
    parts.push(svg("text", { class: "num", x: x(at) + 6, y: y + 15, text: number((at - begin) / 1e6) + " ms" }));
  });
  parts.push(svg("line", { x1: x(goal), x2: x(goal), y1: 0, y2: height - 24, style: { stroke: "var(--ink)", strokeDasharray: "3 3" } }));
  parts.push(svg("text", { class: "num", x: x(goal), y: height - 8, "text-anchor": "middle", text: "objective " + number(goal / 1e6) + " ms" }));
  return svg("svg", { class: "fall", viewBox: `0 0 880 ${height}`, role: "img", "aria-label": "Where the time went: " + told.verdict }, parts);
}

function legend() {
  return el("p", { class: "key" }, PARTS.flatMap(([, tone, word]) => [
    el("span", { class: "swatch", style: { background: tone === "running" ? "var(--accent)" : tone === "waiting" ? "var(--warn)" : "var(--s3)" } }), word + " "]));
}

function moments(told) {
  const rows = told.moments.map((moment) => el("tr", {}, [
    el("td", { class: "mono n", text: number((moment.at_ns - told.arrived_ns) / 1e6) }),
    el("td", { class: "mono", text: "#" + moment.step }), el("td", { text: moment.text })]));
  return el("div", { class: "moments", tabindex: 0, "aria-label": "Moments" }, el("table", {}, [
    el("thead", {}, el("tr", {}, ["ms", "step", "what happened"].map((text) => el("th", { scope: "col", text })))),
    el("tbody", {}, rows)]));
}

export function batchStory(span, words) {
  const list = el("ul", { class: "rows" }, span.requests.map((request) => el("li", {}, el("button", { type: "button", onclick: () => tell(request) }, [
    el("span", { text: "request" }), el("span", { class: "mono", text: String(request) }), el("span", { text: "" }), el("span", { class: "n", text: "story →" })]))));
  openDrawer("Batch " + span.batch, [el("p", { class: "verdict", text: words }), el("h3", { text: "Requests in it" }), list]);
}
