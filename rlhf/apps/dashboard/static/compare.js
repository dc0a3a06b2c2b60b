// Curves of several runs over one axis, and what differs between their recipes.

import { ask, go, read } from "./address.js";
import { SCALES, axes } from "./charts.js";
import { quoted } from "./episodes.js";
import { group } from "./groups.js";
import { choice, h, heads, number, show } from "./dom.js";
import { parallel } from "./parallel.js";

const KNOWN = 100;
const COLOURS = ["#0969da", "#bc4c00", "#1a7f37", "#8250df", "#bf3989", "#9a6700", "#57606a", "#cf222e"];
const AXES = ["updates", "samples", "tokens", "hours"];
const HEIGHT = 260;

export async function showCompare({ runs = "", metric = "reward/mean", over = AXES[0], view = "evaluations", task = "" }) {
  const known = (await ask("runs")).filter((run) => !run.error).map((run) => run.name);
  const chosen = runs.split("|").filter((run) => known.includes(run));
  const found = await Promise.all(chosen.map((run) => ask("overview", { run })));
  const metrics = [...new Set(found.flatMap((one) => Object.keys(one.metrics)))].sort();
  const place = h("div", { id: "curves" });
  const problem = chosen.length ? await showProblem(chosen, view, task) : [];
  show(
    h("h1", {}, "Compare"),
    form({ known, chosen, metrics, metric, over }),
    found.length ? [place, ends(chosen, found, metric), inParallel(chosen, found, metric), ...problem, h("h2", {}, "Recipes"), difference(chosen, found), ...code(chosen, found)] : h("p", { class: "dim" }, "Choose two runs or more."),
  );
  if (found.length) draw(place, chosen, found, metric, over);
}

function form({ known, chosen, metrics, metric, over }) {
  const boxes = known.map((run) => h("label", { class: "box" }, h("input", { type: "checkbox", name: "run", value: run, checked: chosen.includes(run) }), run));
  const change = (event) => {
    const given = new FormData(event.currentTarget);
    go("compare", { ...read().given, runs: given.getAll("run").join("|"), metric: given.get("metric"), over: given.get("over") });
  };
  return h("form", { onchange: change },
    h("fieldset", {}, h("legend", {}, "Runs"), boxes),
    choice("metric", "Metric", metrics.length ? metrics : [metric], metric),
    choice("over", "Over", AXES, over));
}

function positions(one, over) {
  if (over === "updates") return one.update;
  if (over === "hours") return one.time.map((time) => (time - one.time[0]) / 3600);
  const amounts = one.metrics[over === "samples" ? "samples/trained" : "tokens/trained"]?.values ?? one.update.map(() => 0);
  let sum = 0;
  return amounts.map((amount) => (sum += amount ?? 0));
}

function draw(place, runs, found, metric, over) {
  const curves = found.map((one) => [positions(one, over), one.metrics[metric]?.values ?? one.update.map(() => null)]);
  const series = runs.map((run, index) => ({ label: run, stroke: COLOURS[index % COLOURS.length], width: 1.5, spanGaps: true, value: (_, value) => number(value) }));
  const options = { width: place.clientWidth || 320, height: HEIGHT, scales: SCALES, axes: axes(over !== "hours"), series: [{ label: over, value: (_, value) => number(value) }, ...series] };
  new uPlot(options, uPlot.join(curves), place);
}

function ends(runs, found, metric) {
  const row = (one, index) => {
    const values = one.metrics[metric]?.values.filter((value) => value !== null) ?? [];
    return h("tr", {}, h("td", {}, runs[index]), ...[values[0], values.at(-1), values.length ? Math.max(...values) : null].map((value) => h("td", { class: "number" }, number(value))));
  };
  const numbers = ["first", "last", "largest"];
  return h("div", { class: "scroll" }, h("table", { id: "ends", class: "narrow" }, h("caption", {}, metric), heads(["run", ...numbers], numbers), h("tbody", {}, found.map(row))));
}

// A resolved recipe has a line `key: value  # origin` for each value, indented by its depth.
export function values(recipe) {
  const found = new Map();
  const path = [];
  for (const line of recipe.split("\n")) {
    const parsed = line.match(/^( *)([^\s:#][^:]*):(?: (.*?))?(?:\s+# (.*))?$/);
    if (!parsed) continue;
    const [, indent, key, value, origin] = parsed;
    path.length = indent.length / 2;
    path.push(key);
    if (value !== undefined && value.trim() !== "") found.set(path.join("."), { value: value.trim(), origin });
  }
  return found;
}

function differing(found) {
  const recipes = found.map((one) => values(one.recipe));
  const keys = [...new Set(recipes.flatMap((recipe) => [...recipe.keys()]))];
  return { recipes, differ: keys.filter((key) => new Set(recipes.map((recipe) => recipe.get(key)?.value)).size > 1) };
}

function inParallel(runs, found, metric) {
  const { recipes, differ } = differing(found);
  return parallel(runs, recipes, differ, metric, found.map((one) => one.metrics[metric]?.values.findLast((value) => value !== null) ?? null), COLOURS);
}

function difference(runs, found) {
  const { recipes, differ } = differing(found);
  if (!differ.length) return h("p", { class: "dim" }, runs.length > 1 ? "Their recipes are equal." : "One run.");
  const cell = (entry) => h("td", { class: "text" }, entry ? [entry.value, h("span", { class: "dim" }, entry.origin ? ` ${entry.origin}` : "")] : "–");
  const row = (key) => h("tr", {}, h("td", {}, key), recipes.map((recipe) => cell(recipe.get(key))));
  return h("div", { class: "scroll" }, h("table", { id: "recipes" }, heads(["key", ...runs]), h("tbody", {}, differ.map(row))));
}

// The modules that the recipes name, where their text differs.
function code(runs, found) {
  const modules = [...new Set(found.flatMap((one) => Object.keys(one.code)))];
  const differ = modules.filter((module) => new Set(found.map((one) => one.code[module])).size > 1);
  return differ.flatMap((module) => [
    h("h2", {}, `${module}.py`),
    h("div", { class: "scroll" }, h("table", { id: module }, heads(runs), h("tbody", {}, h("tr", {}, found.map((one) => h("td", {}, h("pre", {}, one.code[module] ?? "–"))))))),
  ]);
}

// The newest episodes of one problem in each run.
async function showProblem(runs, view, task) {
  const answers = await Promise.all(runs.map((run) => newest(run, view, task)));
  const part = ({ group: one, error }, index) => h("section", {},
    h("h3", {}, runs[index], one ? h("span", { class: "dim" }, ` version ${one.admitted_version}`) : null),
    one ? group(one, runs[index], view) : h("p", { class: error ? "error" : "dim" }, error ?? "It has no episode of this problem."));
  return [
    h("h2", {}, "Episodes of one problem"),
    chooser([...new Set(answers.flatMap((answer) => answer.tasks))], view, task),
    task ? h("div", { id: "problem" }, answers.map(part)) : null,
  ];
}

async function newest(run, view, task) {
  const of = (where, limit) => ask("groups", { run, view, where, order: "admitted_version DESC, ordinal", limit });
  try {
    const known = await of("", KNOWN);
    const [group] = task ? await of(`task = ${quoted(task)}`, 1) : [];
    return { tasks: known.map((one) => one.task), group };
  } catch (error) {
    return { tasks: [], error: error.message };
  }
}

function chooser(tasks, view, task) {
  const submit = (event) => {
    event.preventDefault();
    go("compare", { ...read().given, ...Object.fromEntries(new FormData(event.target)) });
  };
  return h("form", { onsubmit: submit },
    choice("view", "of", ["evaluations", "episodes"], view),
    h("label", { class: "wide" }, "Problem", h("input", { name: "task", value: task, list: "tasks", spellcheck: "false" })),
    h("datalist", { id: "tasks" }, tasks.map((one) => h("option", { value: one }))),
    h("button", {}, "Show"));
}
