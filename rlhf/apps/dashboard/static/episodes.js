// The table of episodes: filtered and sorted by DuckDB, every choice in the address.

import { address, ask, go } from "./address.js";
import { choice, h, number, show } from "./dom.js";

const COLUMNS = ["update", "task", "sample", "outcome", "reward", "advantage", "sampled_tokens", "answer", "response"];
const NUMBERS = ["update", "sample", "reward", "advantage", "sampled_tokens"];
const LIMITS = [100, 300, 1000];

export async function showEpisodes(given) {
  const { run, view = "episodes", where = "", order = "", text = "", limit = LIMITS[0] } = given;
  const matching = text ? `regexp_matches(response, ${quoted(text)})` : "";
  const condition = [where && `(${where})`, matching].filter(Boolean).join(" AND ");
  const filter = form({ run, view, where, order, text, limit });
  let found;
  try {
    found = await ask("episodes", { run, view, where: condition, order, limit });
  } catch (error) {
    show(h("h1", {}, "Episodes"), filter, h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const sort = (column) => go("episodes", { ...given, order: order === `${column} DESC NULLS LAST` ? column : `${column} DESC NULLS LAST` });
  const direction = (column) => (order === column ? "ascending" : order.startsWith(`${column} `) ? "descending" : "none");
  const heads = COLUMNS.map((column) => h("th", { scope: "col", class: NUMBERS.includes(column) ? "number" : null, "aria-sort": direction(column) }, h("button", { type: "button", name: column, onclick: () => sort(column) }, column)));
  show(
    h("h1", {}, view === "episodes" ? "Episodes" : "Evaluations"),
    filter,
    h("p", { class: "dim", id: "count" }, `${number(found.total)} episodes${found.rows.length < found.total ? `, the first ${number(found.rows.length)} shown` : ""}`),
    exports({ run, view, where: condition }),
    h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Table of episodes" },
      h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, found.rows.map((row) => line(row, run, view))))),
  );
}

// Files of all episodes that match, not only of those shown.
function exports(given) {
  const link = (form) => h("a", { href: `/api/export?${new URLSearchParams({ ...given, form })}`, download: "" }, form);
  return h("p", {}, "Export all of them as ", link("jsonl"), " or ", link("parquet"));
}

export function placeOf(row, run, view) {
  return { run, view, ordinal: row.ordinal, sample: row.sample, version: row.admitted_version, set: row.evaluation_set };
}

function line(row, run, view) {
  const to = address("episode", placeOf(row, run, view));
  const cell = (column) => {
    if (column === "task") return h("td", {}, h("a", { href: to }, row.task));
    if (column === "reward") return h("td", { class: "number", title: parts(row) }, number(row.reward));
    if (NUMBERS.includes(column)) return h("td", { class: "number" }, number(row[column]));
    return h("td", { class: column === "response" ? "text" : null }, row[column] ?? row.failure_kind ?? "–");
  };
  return h("tr", {}, COLUMNS.map(cell));
}

function parts(row) {
  return Object.entries(row.reward_parts ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
}

function form({ run, view, where, order, text, limit }) {
  const input = (name, label, value, hint, wide) => h("label", { class: wide ? "wide" : null }, label, h("input", { name, value, placeholder: hint, spellcheck: "false" }));
  const submit = (event) => {
    event.preventDefault();
    go("episodes", { run, ...Object.fromEntries(new FormData(event.target)) });
  };
  return h("form", { onsubmit: submit },
    choice("view", "of", ["episodes", "evaluations"], view),
    input("where", "Condition (SQL)", where, "reward < 0.5 AND update > 10", true),
    input("text", "Reply matches (regular expression)", text, "", false),
    input("order", "Order (SQL)", order, "reward, update DESC", false),
    choice("limit", "Rows", LIMITS, limit),
    h("button", {}, "Show"));
}

export function quoted(text) {
  return `'${text.replaceAll("'", "''")}'`;
}
