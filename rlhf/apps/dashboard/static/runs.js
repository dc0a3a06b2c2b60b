// The list of runs: what each is, how it goes, and what came of it.

import { address, ask, go, read, replace } from "./address.js";
import { sparkline } from "./charts.js";
import { ago, duration, h, number, scroll, show } from "./dom.js";

const chosen = new Set();
const NOW = () => Date.now() / 1000;

const COLUMNS = {
  run: (run) => run.name,
  status: (run) => stateOf(run).word,
  "held-out": (run) => run.held_out?.end,
  curve: null,
  training: (run) => run.lesson?.end,
  model: (run) => run.model,
  algorithm: (run) => run.algorithm,
  updates: (run) => run.made,
  started: (run) => run.began,
  took: (run) => took(run),
};
const NUMBERS = ["held-out", "training", "updates", "started", "took"];

// How a run is, in a word and the colour that it has everywhere.
export function stateOf({ outcome = "", error }) {
  if (error) return { word: "damaged", kind: "bad", why: error };
  if (outcome === "goes on") return { word: "running", kind: "running" };
  const [word, ...why] = outcome.split(": ");
  if (["finished", "saved", "stopped"].includes(word)) return { word, kind: word === "finished" ? "good" : "quiet", why: why.join(": ") };
  if (outcome.startsWith("its process")) return { word: "ended", kind: "bad", why: outcome };
  return { word: "failed", kind: "bad", why: outcome };
}

export function pill(run) {
  const { word, kind, why } = stateOf(run);
  return h("span", { class: `pill ${kind}`, title: why || null }, word);
}

export function took({ began, ended }) {
  return (ended ?? NOW()) - began;
}

// What became of the held-out reward, from the start to now.
export function heldOut({ held_out: found }) {
  if (!found) return h("span", { class: "dim" }, "–");
  const { metric, start, end } = found;
  const name = metric === "eval/reward" ? "" : ` ${metric.split("/").at(-1)}`;
  const inside = end >= 0 && end <= 1 && name !== " nll";
  return h("span", { class: "held", title: metric },
    inside ? h("meter", { min: 0, max: 1, value: end, "aria-hidden": "true" }) : null,
    h("span", { class: "dim" }, `${number(start, 3)} → `), h("b", {}, number(end, 3)), h("span", { class: "dim" }, name));
}

export async function showRuns({ sort = "-started", find = "" }) {
  const runs = await ask("runs");
  const [body, count, compare] = [h("tbody"), h("p", { class: "dim", id: "count" }), h("a", { class: "button" })];
  const choose = () => {
    const names = runs.map((run) => run.name).filter((name) => chosen.has(name));
    const sound = runs.filter((run) => !run.error).map((run) => run.name);
    compare.textContent = names.length ? `Compare ${names.length}` : "Compare all";
    compare.href = address("compare", { runs: (names.length ? names : sound).join("|") });
  };
  const fill = (words) => {
    const found = sorted(runs.filter((run) => matches(run, words)), sort);
    const states = Map.groupBy(found, (run) => stateOf(run).word);
    const told = [...states].map(([word, those]) => `${those.length} ${word}`).join(", ");
    count.textContent = `${found.length === 1 ? "1 run" : `${found.length} runs`}${told ? `: ${told}` : ""}`;
    const none = h("tr", {}, h("td", { colspan: 11, class: "dim" }, "No run has these words in its name, model, algorithm or status."));
    body.replaceChildren(...(found.length ? found.map((run) => row(run, choose)) : [none]));
  };
  const search = ({ target }) => {
    replace("runs", { ...read().given, find: target.value });
    fill(target.value);
  };
  const box = { type: "search", name: "find", value: find, placeholder: "Name, model, algorithm or status", oninput: search, spellcheck: "false" };
  show(
    h("div", { class: "title" }, h("h1", {}, "Runs"), h("label", { class: "search" }, h("span", { class: "unseen" }, "Find runs"), h("input", box)), compare),
    count,
    scroll("Table of runs", h("table", { id: "runs" }, heads(sort), body)),
  );
  choose();
  fill(find);
}

function matches(run, words) {
  const told = [run.name, run.model, run.algorithm, stateOf(run).word].join(" ").toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => told.includes(word));
}

// By a column, or with a minus against it; what has no value comes last.
function sorted(runs, sort) {
  const value = COLUMNS[sort.replace(/^-/, "")] ?? COLUMNS.started;
  const sign = sort.startsWith("-") ? -1 : 1;
  const order = (one, other) => (typeof one === "number" ? one - other : String(one).localeCompare(other, "en", { numeric: true }));
  const [known, unknown] = [true, false].map((there) => runs.filter((run) => (value(run) ?? null) !== null === there));
  return [...known.sort((one, other) => sign * order(value(one), value(other))), ...unknown];
}

function heads(sort) {
  const head = ([name, value]) => {
    const direction = { [name]: "ascending", [`-${name}`]: "descending" }[sort] ?? "none";
    const turn = () => go("runs", { ...read().given, sort: sort === `-${name}` ? name : `-${name}` });
    return h("th", { scope: "col", class: NUMBERS.includes(name) ? "number" : null, "aria-sort": value ? direction : null },
      value ? h("button", { type: "button", name, onclick: turn }, name) : name);
  };
  return h("thead", {}, h("tr", {}, h("th", { scope: "col" }, h("span", { class: "unseen" }, "compare")), Object.entries(COLUMNS).map(head)));
}

function row(run, choose) {
  const box = { type: "checkbox", name: "run", value: run.name, checked: chosen.has(run.name), "aria-label": `compare ${run.name}` };
  const change = ({ target }) => {
    chosen[target.checked ? "add" : "delete"](run.name);
    choose();
  };
  const cell = (value, kind) => h("td", { class: kind }, value);
  const first = [
    h("td", {}, run.error ? null : h("input", { ...box, onchange: change })),
    h("td", { class: "name" }, h("a", { href: address("overview", { run: run.name }) }, run.name)),
  ];
  const { word, why } = stateOf(run);
  const status = h("td", {}, pill(run), why && word !== "finished" ? h("div", { class: "why dim", title: why }, why) : null);
  if (run.error) return h("tr", {}, first, status, h("td", { colspan: 8 }));
  const share = run.writing ? h("progress", { max: run.updates, value: run.made, "aria-label": `${run.name}: updates made` }) : null;
  return h("tr", {}, first, status,
    cell(heldOut(run), "number"),
    cell(run.lesson ? sparkline(run.lesson.curve, `${run.lesson.metric} of ${run.name}`) : "–"),
    h("td", { class: "number", title: run.lesson?.metric }, number(run.lesson?.end, 3)),
    h("td", { class: "model", title: run.model }, run.model), cell(run.algorithm, "tight"),
    h("td", { class: "number" }, `${number(run.made)} of ${number(run.updates)}`, share),
    cell(ago(run.began), "number"),
    h("td", { class: "number" }, duration(took(run)), run.left === null ? null : h("div", { class: "dim" }, `${duration(run.left)} left`)));
}
