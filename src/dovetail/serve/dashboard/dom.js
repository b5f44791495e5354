// Small helpers: elements, numbers as people read them, colours and marks. Text is only ever set as text.

export const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "text") node.textContent = value;
    else if (name === "class") node.setAttribute("class", value);
    else if (name === "style") Object.assign(node.style, value);
    else if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  for (const child of [].concat(children ?? [])) if (child !== null && child !== undefined) node.append(child);
  return node;
}

export const el = (tag, attributes, children) => fill(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, children) => fill(document.createElementNS(SVG, tag), attributes, children);

export function put(node, children) {
  node.replaceChildren(...[].concat(children));
}

export function number(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 10000) return Math.round(value).toLocaleString("en");
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return value.toFixed(Math.max(0, digits - 1 - Math.floor(Math.log10(size)) ) > 3 ? 3 : Math.max(0, digits - 1 - Math.floor(Math.log10(size))));
}

export const percent = (part) => (part === null || part === undefined ? "–" : part >= 0.9995 ? "100%" : (100 * part).toFixed(1) + "%");

export function bytes(count) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  while (count >= 1000 && at < units.length - 1) { count /= 1000; at += 1; }
  return number(count) + " " + units[at];
}

export function clock(unixMs) {
  return new Date(unixMs).toLocaleTimeString("en-GB", { hour12: false });
}

export const OUTCOMES = ["ok", "late", "shed", "expired", "failed", "cancelled"];
// Outcome -> mark, word and class: told by all three.
export const OUTCOME = {
  ok: ["✓", "in time", "good"], late: ["◷", "late", "warn"], shed: ["⊘", "shed", "warn"], expired: ["⌛", "expired", "bad"],
  failed: ["✕", "failed", "bad"], cancelled: ["–", "cancelled", "soft"], open: ["…", "open", "soft"],
};

export function badge(outcome) {
  const [mark, word, tone] = OUTCOME[outcome] || ["?", outcome, "soft"];
  return el("span", { class: "badge " + tone, text: mark + " " + word });
}

const COLOURS = 8;
export const colour = (index) => `var(--s${index % COLOURS})`;
export function resolved(index) {
  return getComputedStyle(document.documentElement).getPropertyValue("--s" + (index % COLOURS)).trim();
}
export const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
// Classes are told apart by the dash of a line and by hatching.
export const dash = (priority) => (priority <= 1 ? null : priority === 2 ? "6 4" : "2 3");
