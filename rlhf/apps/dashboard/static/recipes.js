// What differs between the recipes of runs, and whether they are a sweep.

import { fold, h, scroll } from "./dom.js";

const NOT_SEARCHED = ["name", "run.dir"];
const MOST_SEARCHED = 8;

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

export function differing(found) {
  const recipes = found.map((one) => values(one.recipe));
  const keys = [...new Set(recipes.flatMap((recipe) => [...recipe.keys()]))].filter((key) => !NOT_SEARCHED.includes(key));
  return { recipes, differ: keys.filter((key) => new Set(recipes.map((recipe) => recipe.get(key)?.value)).size > 1) };
}

// The keys that a sweep has tried: three runs or more of one kind, which differ in few values that all of them have.
export function searched(found) {
  const { recipes, differ } = differing(found);
  const all = differ.every((key) => recipes.every((recipe) => recipe.has(key)));
  return found.length > 2 && differ.length && differ.length <= MOST_SEARCHED && all ? differ : [];
}

export function difference(runs, found) {
  if (runs.length < 2) return h("p", { class: "dim" }, "Choose another run to see what differs.");
  const { recipes, differ } = differing(found);
  if (!differ.length) return h("p", { class: "dim" }, "Their recipes are equal.");
  const written = (key) => recipes.some((recipe) => recipe.has(key) && recipe.get(key).origin !== "default");
  const [own, defaults] = [true, false].map((wanted) => differ.filter((key) => written(key) === wanted));
  return [
    keys("recipes", own, runs, recipes),
    defaults.length ? fold("Values that are defaults in all", `${defaults.length}`, {}, keys("defaults", defaults, runs, recipes)) : null,
  ];
}

function keys(id, names, runs, recipes) {
  const origin = (entry) => (entry.origin && entry.origin !== "default" ? h("div", { class: "dim" }, entry.origin) : null);
  const cell = (entry, first) => h("td", { class: entry?.value === first?.value ? null : "other" },
    entry ? [h("div", { class: "value", title: entry.value }, entry.value), origin(entry)] : "–");
  const row = (key) => h("tr", {}, h("th", { scope: "row" }, key), recipes.map((recipe) => cell(recipe.get(key), recipes[0].get(key))));
  const heads = ["key", ...runs].map((name) => h("th", { scope: "col" }, name));
  return scroll("Values that differ", h("table", { id, class: "pinned" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, names.map(row))));
}

// The modules that the recipes name, where their text differs.
export function code(runs, found) {
  const modules = [...new Set(found.flatMap((one) => Object.keys(one.code)))];
  const differ = modules.filter((module) => new Set(found.map((one) => one.code[module])).size > 1);
  return differ.flatMap((module) => [
    h("h2", {}, `${module}.py`),
    h("div", { class: "beside" }, found.map((one, index) => h("section", { class: "card" }, h("h3", {}, runs[index]), h("pre", {}, one.code[module] ?? "–")))),
  ]);
}
