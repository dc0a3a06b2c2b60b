// The table of episodes: filtered and sorted by DuckDB, every choice in the address.

import { address, ask, go } from "./address.js";
import { choice, h, number, scroll, show } from "./dom.js";

const COLUMNS = ["update", "task", "sample", "role", "policy", "outcome", "reward", "advantage", "sampled_tokens", "question", "response", "answer", "ended"];
const TEXTS = ["question", "response"];
const SQL = { question: "prompt[-1].content", ended: "status" };
const LAST = (view) => (view === "episodes" ? "update = (SELECT max(update) FROM episodes)" : "admitted_version = (SELECT max(admitted_version) FROM evaluations)");
const NUMBERS = ["update", "sample", "reward", "advantage", "sampled_tokens"];
const PLAYERS = ["policy", "role"];
const LIMITS = [100, 300, 1000];

export async function showEpisodes(given) {
  const { run, view = "episodes", where = "", order = "", text = "", limit = LIMITS[0] } = given;
  const matching = text ? `regexp_matches(response, ${quoted(text)})` : "";
  const players = await askPlayers(given);
  const condition = [where && `(${where})`, matching, players.condition].filter(Boolean).join(" AND ");
  const filter = form({ run, view, where, order, text, limit, players });
  let found;
  try {
    found = await ask("episodes", { run, view, where: condition, order, limit });
  } catch (error) {
    show(h("h1", {}, "Episodes"), filter, h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  const down = (column) => `${SQL[column] ?? column} DESC NULLS LAST`;
  const sort = (column) => go("episodes", { ...given, order: order === down(column) ? (SQL[column] ?? column) : down(column) });
  const direction = (column) => ({ [SQL[column] ?? column]: "ascending", [down(column)]: "descending" })[order] ?? "none";
  const shown = COLUMNS.filter((column) => players.choices.length || !PLAYERS.includes(column));
  const columns = shown.filter((column) => !found.rows.length || found.rows.some((row) => row[column] !== null) || column === "response");
  const heads = columns.map((column) => h("th", { scope: "col", class: NUMBERS.includes(column) ? "number" : null, "aria-sort": direction(column) }, h("button", { type: "button", name: column, onclick: () => sort(column) }, column)));
  show(
    h("h1", {}, view === "episodes" ? "Episodes" : "Evaluations"),
    shortcuts(given, view, where),
    filter,
    h("div", { class: "title" },
      h("p", { class: "dim", id: "count" }, `${number(found.total)} episodes${found.rows.length < found.total ? `, the first ${number(found.rows.length)} shown` : ""}`),
      exports({ run, view, where: condition })),
    scroll("Table of episodes", h("table", { class: "pinned" }, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, found.rows.map((row) => line(row, columns, run, view))))),
  );
}

// What one looks for most often.
function shortcuts({ run, policy, role }, view, where) {
  const kinds = {
    All: "", "Of the last update": LAST(view), "Worst of the last update": `${LAST(view)} AND reward IS NOT NULL`, "Cut off": "status = 'truncated'",
    Failed: "failure_kind IS NOT NULL",
  };
  const chip = ([words, condition]) => h("a", {
    class: "chip", href: address("episodes", { run, view, where: condition, policy, role, order: words.startsWith("Worst") ? "reward" : "" }),
    "aria-current": where === condition ? "true" : null,
  }, words);
  const other = view === "episodes" ? "evaluations" : "episodes";
  const to = h("a", { class: "chip", href: address("episodes", { run, view: other, policy }) }, other === "episodes" ? "Training →" : "Evaluations →");
  return h("div", { class: "chips" }, Object.entries(kinds).map(chip), to);
}

// Files of all episodes that match, not only of those shown.
function exports(given) {
  const link = (form) => h("a", { href: `/api/export?${new URLSearchParams({ ...given, form })}`, download: "" }, form);
  return h("p", {}, "Export all of them as ", link("jsonl"), " or ", link("parquet"));
}

export function placeOf(row, run, view) {
  return { run, view, ordinal: row.ordinal, sample: row.sample, version: row.admitted_version, set: row.evaluation_set };
}

function line(row, columns, run, view) {
  const to = address("episode", placeOf(row, run, view));
  const cell = (column) => {
    if (column === "task") return h("td", {}, h("a", { href: to }, row.task));
    if (column === "reward") return h("td", { class: "number", title: parts(row) }, number(row.reward));
    if (NUMBERS.includes(column)) return h("td", { class: "number" }, number(row[column]));
    if (TEXTS.includes(column)) return h("td", { class: "text" }, h("div", { class: "clamp" }, row[column] ?? (column === "response" ? row.failure_kind : null) ?? "–"));
    return h("td", { class: column === "ended" ? "ended" : null }, row[column] ?? "–");
  };
  return h("tr", {}, columns.map(cell));
}

function parts(row) {
  return Object.entries(row.reward_parts ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
}

// Choices of a policy and of a role, and the condition of the chosen ones; none in a run without policies.
export async function askPlayers(given) {
  const found = await ask("players", { run: given.run, view: given.view }).catch(() => ({})); // the question itself fails, and says why
  const chosen = PLAYERS.filter((name) => given[name]);
  return {
    choices: Object.entries(found).map(([name, values]) => choice(name, name === "role" ? "Role" : "Policy", [...new Set(["", ...values, given[name] ?? ""])], given[name] ?? "")),
    condition: chosen.map((name) => `${name} = ${quoted(given[name])}`).join(" AND "),
  };
}

function form({ run, view, where, order, text, limit, players }) {
  const input = (name, label, value, hint, wide) => h("label", { class: wide ? "wide" : null }, label, h("input", { name, value, placeholder: hint, spellcheck: "false" }));
  const submit = (event) => {
    event.preventDefault();
    go("episodes", { run, ...Object.fromEntries(new FormData(event.target)) });
  };
  return h("form", { onsubmit: submit },
    choice("view", "From", ["episodes", "evaluations"], view), players.choices,
    input("where", "Condition (SQL)", where, "reward < 0.5 AND update > 10", true),
    input("text", "Reply matches (regular expression)", text, "", false),
    input("order", "Order (SQL)", order, "reward, update DESC", false),
    choice("limit", "Rows", LIMITS, limit),
    h("button", {}, "Show"));
}

export function quoted(text) {
  return `'${text.replaceAll("'", "''")}'`;
}
