// Who did what when, in one update: a bar for each timed activity.

import { address, ask, go } from "./address.js";
import { h, heads, number, show, svg } from "./dom.js";

const LANES = ["generate", "wait", "train", "weight_sync", "record", "evaluate", "save", "start"];
const COLOURS = {
  generate: "#0969da", wait: "#cf222e", train: "#1a7f37", weight_sync: "#8250df", record: "#9a6700", evaluate: "#bf3989", save: "#bc4c00", start: "#57606a",
};
const LANE = 160;
const [LEAST_ROW, MOST_ROW] = [3, 14];
const WIDTH = 1000;
const MOST_ROWS = 80;

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
    h("form", {}, to(found.update - 1, "← earlier"), h("label", {}, "Update", h("input", { type: "number", name: "update", min: 1, max: found.updates, value: found.update, onchange: choose })), to(found.update + 1, "later →")),
    h("p", { class: "dim" }, `${number(seconds)} seconds, from the end of the update before to its own.`),
    h("div", { class: "ruler dim" }, [0, 1, 2, 3, 4].map((part) => h("span", {}, `${number((part * seconds) / 4, 3)} s`))),
    h("div", {}, LANES.map((lane) => drawn(lane, found, seconds))),
    shares(found, seconds),
  );
}

function drawn(lane, found, seconds) {
  const spans = found.spans.filter((span) => span.name.split("/")[0] === lane);
  if (!spans.length) return null;
  const rows = stacked(spans);
  const row = Math.max(LEAST_ROW, Math.min(MOST_ROW, LANE / rows.length));
  const height = Math.min(rows.length, MOST_ROWS) * row;
  const picture = svg("svg", { viewBox: `0 0 ${WIDTH} ${height}`, class: "lane", height, preserveAspectRatio: "none", role: "img", "aria-label": `${lane}, ${spans.length} in all` });
  rows.slice(0, MOST_ROWS).forEach((spans, index) => spans.forEach((span) => picture.append(bar(span, { y: index * row, height: 0.85 * row }, found, seconds, lane))));
  const hidden = rows.length > MOST_ROWS ? `, ${rows.length - MOST_ROWS} rows more` : "";
  return h("section", {}, h("h2", {}, `${lane} `, h("span", { class: "dim" }, `${spans.length === 1 ? "1 activity" : `${spans.length} activities, at most ${rows.length} at once`}${hidden}`)), picture);
}

function bar(span, place, found, seconds, lane) {
  const from = Math.max(span.start, found.start);
  const to = Math.min(span.start + span.seconds, found.stop);
  const rectangle = svg("rect", {
    x: ((from - found.start) / seconds) * WIDTH, width: Math.max(((to - from) / seconds) * WIDTH, 0.5), ...place,
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
  const numbers = ["seconds", "busy", "idle"];
  return h("table", { id: "shares", class: "narrow" }, heads(["activity", ...numbers], numbers), h("tbody", {}, busy.map(row)));
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
