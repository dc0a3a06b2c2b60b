// Who did what when, in one update: a bar for each timed activity.

import { address, ask, go } from "./address.js";
import { h, number, show } from "./dom.js";

const LANES = ["generate", "wait", "train", "weight_sync", "record", "evaluate", "save", "start"];
const COLOURS = {
  generate: "#0969da", wait: "#cf222e", train: "#1a7f37", weight_sync: "#8250df", record: "#9a6700", evaluate: "#bf3989", save: "#bc4c00", start: "#57606a",
};
const ROW = 14;
const WIDTH = 1000;
const MOST_ROWS = 40;

export async function showTimeline({ run, update = "" }) {
  const found = await ask("timeline", { run, update });
  if (found.update === null) {
    show(h("h1", {}, "Timeline"), h("p", { class: "dim" }, "There is no update yet."));
    return;
  }
  const seconds = found.stop - found.start;
  const to = (other, words) => (other >= 1 && other <= found.updates ? h("a", { href: address("timeline", { run, update: other }) }, words) : h("span", { class: "dim" }, words));
  const choose = (event) => go("timeline", { run, update: event.target.value });
  show(
    h("h1", {}, `Update ${found.update}`),
    h("form", {}, to(found.update - 1, "← earlier"), h("label", {}, "Update", h("input", { type: "number", min: 1, max: found.updates, value: found.update, onchange: choose })), to(found.update + 1, "later →")),
    h("p", { class: "dim" }, `${number(seconds)} seconds, from the end of the update before to its own.`),
    h("div", { class: "scroll" }, LANES.map((lane) => drawn(lane, found, seconds))),
    shares(found, seconds),
  );
}

function drawn(lane, found, seconds) {
  const spans = found.spans.filter((span) => span.name.split("/")[0] === lane);
  if (!spans.length) return null;
  const rows = stacked(spans);
  const height = Math.min(rows.length, MOST_ROWS) * ROW;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "lane", height, role: "img", "aria-label": `${lane}, ${spans.length} in all` });
  rows.slice(0, MOST_ROWS).forEach((row, index) => row.forEach((span) => picture.append(bar(span, index, found, seconds, lane))));
  const hidden = rows.length > MOST_ROWS ? `, ${rows.length - MOST_ROWS} rows more` : "";
  return h("section", {}, h("h2", {}, `${lane} `, h("span", { class: "dim" }, `${spans.length === 1 ? "1 activity" : `${spans.length} activities, at most ${rows.length} at once`}${hidden}`)), picture);
}

function bar(span, index, found, seconds, lane) {
  const from = Math.max(span.start, found.start);
  const to = Math.min(span.start + span.seconds, found.stop);
  const rectangle = svg("rect", {
    x: ((from - found.start) / seconds) * WIDTH, width: Math.max(((to - from) / seconds) * WIDTH, 0.5), y: index * ROW + 1, height: ROW - 2,
    fill: COLOURS[lane], opacity: span.name === lane ? 0.55 : 0.9,
  });
  const title = svg("title");
  title.textContent = `${span.name} · ${number(span.seconds)} s${span.ordinal === undefined ? "" : ` · group ${span.ordinal}`}`;
  rectangle.append(title);
  return rectangle;
}

// Rows in which no two bars overlap: the first row that is free takes the next span.
function stacked(spans) {
  const rows = [];
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    const free = rows.find((row) => row.at(-1).start + row.at(-1).seconds <= span.start);
    if (free) free.push(span);
    else rows.push([span]);
  }
  return rows;
}

function shares(found, seconds) {
  const busy = LANES.map((lane) => [lane, covered(found.spans.filter((span) => span.name === lane), found)]).filter(([, time]) => time > 0);
  const row = ([lane, time]) => h("tr", {}, h("td", {}, lane), h("td", { class: "number" }, number(time)), h("td", { class: "number" }, `${((100 * time) / seconds).toFixed(1)} %`), h("td", { class: "number" }, `${(100 - (100 * time) / seconds).toFixed(1)} %`));
  const heads = ["activity", "seconds", "busy", "idle"].map((name) => h("th", { scope: "col" }, name));
  return h("table", { id: "shares" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, busy.map(row)));
}

// Seconds of the update in which at least one of these ran.
function covered(spans, { start, stop }) {
  let [sum, reached] = [0, start];
  for (const span of [...spans].sort((one, other) => one.start - other.start)) {
    const end = Math.min(span.start + span.seconds, stop);
    sum += Math.max(0, end - Math.max(span.start, reached));
    reached = Math.max(reached, end);
  }
  return sum;
}

function svg(tag, attributes = {}) {
  const element = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
