// The metrics of a run: alarms first, then a curve for each.

import { address, ask } from "./address.js";
import { SCALES, axes } from "./charts.js";
import { h, number, show } from "./dom.js";

const FIRST = [
  "reward/mean", "eval/reward", "sft/nll", "pairs/loss", "pairs/accuracy", "policy/kl_reference", "policy/approx_kl", "policy/entropy", "response/tokens_mean",
  "policy/clip_fraction_low", "policy/clip_fraction_high", "staleness/mean", "tokens/trained", "seconds/update",
];
const HEIGHT = 140;

export async function showOverview({ run }) {
  const found = await ask("overview", { run });
  const names = Object.keys(found.metrics);
  const ordered = [...FIRST.filter((name) => names.includes(name)), ...names.filter((name) => !FIRST.includes(name))];
  const charts = ordered.map((name) => ({ name, metric: found.metrics[name], place: h("div") }));
  show(
    h("h1", {}, found.name),
    state(found),
    alarms(found.alarms),
    names.includes("reward/mean") && h("p", {}, h("a", { href: address("episodes", { run, order: "reward", where: "update = (SELECT max(update) FROM episodes)" }) }, "The worst replies of the last update")),
    h("h2", {}, "Metrics"),
    h("div", { class: "charts" }, charts.map(chart)),
    h("h2", {}, "Recipe"),
    h("pre", {}, found.recipe),
    Object.entries(found.code).flatMap(([module, text]) => [h("h2", {}, `${module}.py`), h("pre", {}, text)]),
  );
  for (const { metric, place } of charts) draw(place, found.update, metric);
}

function state({ summary, outcome, update, updates }) {
  const made = `${update.at(-1) ?? 0} of ${updates} updates`;
  return h("p", { class: "dim" }, summary ? `${made} · ${outcome} · ${number(summary.samples)} samples · ${number(summary.wall_seconds)} s` : `${made} · ${outcome}`);
}

function alarms(found) {
  if (!found.length) return h("p", { class: "dim" }, "No alarm.");
  return h("ul", { class: "alarms" }, found.map((alarm) => h("li", { class: "alarm" }, alarm.sentence)));
}

function chart({ name, metric, place }) {
  const last = metric.values.findLast((value) => value !== null);
  const bounded = [metric.low, metric.high].some((bound) => bound !== null && bound !== undefined);
  const range = bounded ? `healthy: ${metric.low ?? ""} … ${metric.high ?? ""} ${metric.unit ?? ""}` : null;
  const words = [number(last), plain(metric.meaning) ?? "a metric of your own", range].filter(Boolean).join(" · ");
  return h("section", { class: "chart", "data-metric": name, title: plain(metric.remedy) }, h("h3", {}, name), h("p", {}, words), place);
}

// The words of the catalogue are Markdown, of which the page shows the text alone.
function plain(words) {
  return words?.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");
}

function draw(place, updates, metric) {
  const style = getComputedStyle(document.body);
  const options = {
    width: place.clientWidth || 320, height: HEIGHT,
    scales: SCALES,
    legend: { show: true, live: true },
    cursor: { drag: { x: true, y: false } },
    axes: axes(true),
    series: [{ label: "update" }, { label: "value", stroke: style.getPropertyValue("--link"), width: 1.5, spanGaps: true, points: { size: 4 }, value: (_, value) => number(value) }],
  };
  new uPlot(options, [updates, metric.values], place);
}
