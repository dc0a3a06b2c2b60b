// Several runs: curves of what they share, what differs between their recipes, and their episodes of one problem.

import { address, ask, go, read } from "./address.js";
import { COLOURS, SMOOTHINGS, draw, ends } from "./charts.js";
import { quoted } from "./episodes.js";
import { group } from "./groups.js";
import { choice, fold, h, number, show, table, tabs } from "./dom.js";
import { parallel } from "./parallel.js";
import { code, difference, differing, searched } from "./recipes.js";
import { pill } from "./runs.js";

const KNOWN = 100;
const PARTS = { curves: "Curves", recipes: "Recipes", episodes: "Episodes" };
const AXES = ["updates", "samples", "tokens", "hours"];
const FIRST = [
  "eval/reward", "eval/held_out/accuracy", "reward/mean", "pairs/accuracy", "sft/nll", "response/tokens_mean", "policy/entropy",
  "policy/approx_kl", "optimizer/grad_norm", "seconds/update",
];
const HEIGHT = 280;

export async function showCompare(given) {
  const cards = (await ask("runs")).filter((run) => !run.error);
  const known = cards.map((run) => run.name);
  const runs = (given.runs ?? "").split("|").filter((run) => known.includes(run));
  const found = await Promise.all(runs.map((run) => ask("overview", { run })));
  const part = PARTS[given.part] ? given.part : "curves";
  const links = Object.entries(PARTS).map(([to, words]) => ({ to: address("compare", { ...given, part: to }), words, chosen: to === part }));
  const { content, drawn } = runs.length ? await VIEWS[part](runs, found, given, cards) : { content: h("p", { class: "dim" }, "Choose two runs or more.") };
  show(h("h1", {}, "Compare"), picker(cards, runs), runs.length ? tabs("Kinds of comparison", links) : null, content);
  drawn?.();
}

const VIEWS = { curves: showCurves, recipes: showRecipes, episodes: showProblem };

function colour(index) {
  return COLOURS[index % COLOURS.length];
}

function dot(index) {
  return h("i", { class: "swatch", style: `background: ${colour(index)}` });
}

function picker(cards, chosen) {
  const box = ({ name, model, algorithm, ...card }) => h("label", { class: "box" },
    h("input", { type: "checkbox", name: "run", value: name, checked: chosen.includes(name) }), name, pill(card), h("span", { class: "dim" }, `${algorithm} · ${model}`));
  const change = (event) => {
    const names = new FormData(event.currentTarget).getAll("run");
    go("compare", { ...read().given, runs: [...chosen.filter((one) => names.includes(one)), ...names.filter((one) => !chosen.includes(one))].join("|") });
  };
  const without = (name) => address("compare", { ...read().given, runs: chosen.filter((one) => one !== name).join("|") });
  const chips = chosen.map((name, index) => h("span", { class: "chip" }, dot(index), h("a", { href: address("overview", { run: name }) }, name), h("a", { href: without(name), "aria-label": `leave out ${name}` }, "×")));
  const boxes = fold("Choose runs", `${chosen.length} of ${cards.length}`, { id: "choose", ...(chosen.length ? {} : { open: "" }) }, h("form", { class: "boxes", onchange: change }, cards.map(box)));
  return h("div", { class: "picker" }, h("div", { class: "chips" }, chips), boxes);
}

// The metrics that all runs have come first, and the chosen one is the first of those that matter.
function shared(found) {
  const names = [...new Set(found.flatMap((one) => Object.keys(one.metrics)))].sort();
  const several = (name) => found.filter((one) => one.metrics[name]).length > Math.min(1, found.length - 1);
  const all = names.filter((name) => found.every((one) => one.metrics[name]));
  return { all, some: names.filter((name) => !all.includes(name)), first: [...FIRST.filter((name) => several(name)), ...all, ...names][0] };
}

function showCurves(runs, found, given, cards) {
  const { all, some, first } = shared(found);
  const { metric = first, over = AXES[0], smooth = "none" } = given;
  const others = FIRST.filter((name) => all.includes(name) && name !== metric);
  const places = [metric, ...others].map((name) => ({ name, readout: h("ul", { class: "readouts" }), place: h("div", { class: "plot", tabindex: 0, role: "img", "aria-label": `${name} of ${runs.length} runs` }) }));
  const lacking = runs.filter((_, index) => !found[index].metrics[metric]);
  const option = (name) => h("option", { value: name, selected: name === metric }, name);
  const metrics = h("label", {}, "Metric", h("select", { name: "metric" },
    h("optgroup", { label: "in all runs" }, all.map(option)), h("optgroup", { label: "in some" }, some.map(option)),
    all.includes(metric) || some.includes(metric) ? null : option(metric)));
  const change = (event) => go("compare", { ...read().given, ...Object.fromEntries(new FormData(event.currentTarget)) });
  const content = [
    h("form", { onchange: change }, metrics, choice("over", "Over", AXES, over), choice("smooth", "Smoothing", Object.keys(SMOOTHINGS), smooth)),
    lacking.length && lacking.length < runs.length ? h("p", { class: "dim" }, `Not recorded by ${lacking.join(", ")}.`) : null,
    h("section", { id: "curves", class: "chart" }, h("h2", {}, metric), places[0].readout, places[0].place),
    results(runs, found, metric, cards),
    searched(found).length ? parallel(runs, differing(found).recipes, searched(found), metric, found.map((one) => last(one, metric)), COLOURS) : null,
    others.length ? h("h2", {}, "What they share") : null,
    h("div", { class: "charts" }, places.slice(1).map(({ name, place, readout }) => h("section", { class: "chart" }, h("h3", {}, name), readout, place))),
  ].flat();
  const drawn = () => places.forEach((one, index) => drawMetric(one, runs, found, over, SMOOTHINGS[smooth] ?? 0, index ? undefined : HEIGHT));
  return { content, drawn };
}

function last(one, metric) {
  return one.metrics[metric]?.values.findLast((value) => value !== null) ?? null;
}

function positions(one, over) {
  if (over === "updates") return one.update;
  if (over === "hours") return one.time.map((time) => (time - one.time[0]) / 3600);
  const amounts = one.metrics[over === "samples" ? "samples/trained" : "tokens/trained"]?.values ?? one.update.map(() => 0);
  let sum = 0;
  return amounts.map((amount) => (sum += amount ?? 0));
}

function drawMetric({ name, place, readout }, runs, found, over, smooth, height) {
  const having = runs.map((_, index) => index).filter((index) => found[index].metrics[name]);
  const tables = having.map((index) => [positions(found[index], over), found[index].metrics[name].values]);
  const [across, ...curves] = tables.length ? uPlot.join(tables) : [[]];
  const entry = found[having[0]]?.metrics[name] ?? {};
  const point = (index) => {
    const told = having.map((run, place) => [run, index === null ? null : curves[place][index]]).filter(([, value]) => value !== null && value !== undefined);
    readout.replaceChildren(...(index === null ? [] : [h("li", { class: "dim" }, `${over} ${number(across[index])}`), ...told.map(([run, value]) => h("li", {}, dot(run), `${runs[run]} ${number(value)}`))]));
  };
  draw(place, { across, curves, entry, colours: having.map(colour), smooth, height, whole: over !== "hours", shared: `compare ${over}`, point, range: () => ends(name, entry, curves.flat()) });
}

// What came of each run, the best first as far as one can say: by what is larger.
function results(runs, found, metric, cards) {
  const keys = searched(found);
  const { recipes } = differing(found);
  const rows = found.map((one, index) => {
    const values = (one.metrics[metric]?.values ?? []).filter((value) => value !== null);
    const card = cards.find(({ name }) => name === runs[index]);
    const most = values.reduce((one, other) => Math.max(one, other), -Infinity);
    const name = h("span", {}, dot(index), h("a", { href: address("overview", { run: runs[index] }) }, runs[index]));
    return [name, pill(card), values[0] ?? null, values.at(-1) ?? null, values.length ? most : null, ...keys.map((key) => recipes[index].get(key).value), ...(keys.length ? [] : [card.algorithm, card.model])];
  });
  rows.sort((one, other) => (other[3] ?? -Infinity) - (one[3] ?? -Infinity));
  const columns = ["run", "status", "first", "last", "largest", ...keys, ...(keys.length ? [] : ["algorithm", "model"])];
  return table("ends", columns, rows);
}

function showRecipes(runs, found) {
  return { content: [difference(runs, found), code(runs, found)].flat() };
}

// The newest episodes of one problem in each run.
async function showProblem(runs, found, { view = "evaluations", task = "" }) {
  const known = await Promise.all(runs.map((run) => newest(run, view, "", KNOWN)));
  const tasks = [...new Set(known.flatMap(({ groups }) => groups.map((one) => one.task)))];
  const everywhere = tasks.find((one) => known.every(({ groups }) => groups.some((group) => group.task === one)));
  const chosen = task || everywhere || tasks[0] || "";
  const answers = await Promise.all(runs.map((run) => newest(run, view, `task = ${quoted(chosen)}`, 1)));
  const part = ({ groups: [one], error }, index) => h("section", {},
    h("h2", {}, dot(index), runs[index], one ? h("span", { class: "dim" }, ` version ${one.admitted_version}`) : null),
    one ? group(one, runs[index], view) : h("p", { class: error ? "error" : "dim" }, error ?? "It has no episode of this problem."));
  return { content: [chooser(tasks, view, chosen), h("div", { id: "problem" }, answers.map(part))] };
}

async function newest(run, view, where, limit) {
  try {
    return { groups: await ask("groups", { run, view, where, order: "admitted_version DESC, ordinal", limit }) };
  } catch (error) {
    return { groups: [], error: error.message };
  }
}

function chooser(tasks, view, task) {
  const submit = (event) => {
    event.preventDefault();
    go("compare", { ...read().given, ...Object.fromEntries(new FormData(event.target)) });
  };
  return h("form", { onsubmit: submit },
    choice("view", "From", ["evaluations", "episodes"], view),
    h("label", { class: "wide" }, "Problem", h("input", { name: "task", value: task, list: "tasks", spellcheck: "false" })),
    h("datalist", { id: "tasks" }, tasks.map((one) => h("option", { value: one }))),
    h("button", {}, "Show"));
}
