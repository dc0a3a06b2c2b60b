// Groups: the episodes of one task and version side by side, with the spread of their rewards.

import { address, ask, go } from "./address.js";
import { askPlayers, placeOf, quoted } from "./episodes.js";
import { choice, h, number, show } from "./dom.js";

const ORDERS = {
  newest: "update DESC NULLS LAST, admitted_version DESC, ordinal",
  oldest: "update, admitted_version, ordinal",
  "widest spread": "spread DESC NULLS LAST, ordinal",
  "lowest reward": "mean, ordinal",
  "highest reward": "mean DESC NULLS LAST, ordinal",
};
const LIMITS = [10, 30, 100];

export async function showGroups(given) {
  const { run, view = "episodes", where = "", order = "newest", limit = LIMITS[0] } = given;
  const players = await askPlayers(given);
  const condition = [where && `(${where})`, players.condition].filter(Boolean).join(" AND ");
  const filter = form({ run, view, where, order, limit, players });
  let found;
  try {
    found = await ask("groups", { run, view, where: condition, order: ORDERS[order] ?? ORDERS.newest, limit });
  } catch (error) {
    show(h("h1", {}, "Groups"), filter, h("p", { class: "error", role: "alert" }, error.message));
    return;
  }
  show(
    h("h1", {}, "Groups"),
    filter,
    h("p", { class: "dim", id: "count" }, `${found.length === 1 ? "1 group" : `${found.length} groups`}, of each the episodes that match`),
    found.map((one) => [h("h2", {}, title(one, run, view)), group(one, run, view)]).flat(),
  );
}

// The spread of a group's rewards, and its episodes beside each other.
export function group(one, run, view, marked = null) {
  return h("section", { class: "group" },
    one.rows[0]?.question ? h("div", { class: "clamp question" }, one.rows[0].question) : null,
    h("p", { class: "dim" }, spread(one), one.rows[0]?.answer ? ` · expected ${one.rows[0].answer}` : ""), dots(one),
    h("div", { class: "beside", role: "region", "aria-label": `Episodes of ${one.task} in ${run}, version ${one.admitted_version}`, tabindex: 0 }, one.rows.map((row) => card(row, run, view, row.sample === marked))));
}

export function sameTask(task, run, view) {
  return address("groups", { run, view, where: `task = ${quoted(task)}`, order: "oldest" });
}

function title(one, run, view) {
  const when = one.update === null ? `version ${one.admitted_version}` : `update ${one.update}`;
  return [h("a", { href: sameTask(one.task, run, view) }, one.task), ` · ${when}`, one.evaluation_set ? ` · ${one.evaluation_set}` : ""];
}

function spread({ episodes, mean, lowest, highest, spread }) {
  if (episodes === 1) return `1 episode · reward ${number(mean)}`;
  return mean === null ? `${episodes} episodes without a reward` : `${episodes} episodes · reward ${number(mean)} ± ${number(spread)}, from ${number(lowest)} to ${number(highest)}`;
}

// A dot for each reward, on a line from the lowest to the highest.
function dots({ rows, lowest, highest }) {
  if (lowest === null || lowest === highest) return null;
  const place = (row) => h("i", { class: "dot", style: `left: ${((100 * (row.reward - lowest)) / (highest - lowest)).toFixed(1)}%` });
  return h("div", { class: "dots", "aria-hidden": "true" }, rows.filter((row) => row.reward !== null).map(place));
}

function card(row, run, view, marked) {
  return h("article", { class: "card", "aria-current": marked ? "true" : null },
    h("h3", {}, h("a", { href: address("episode", placeOf(row, run, view)) }, ["sample " + row.sample, row.role, row.policy].filter(Boolean).join(" · "))),
    h("p", { class: "dim" }, [row.outcome, `reward ${number(row.reward)}`, `${number(row.sampled_tokens)} tokens`, row.ended?.startsWith("cut") && row.ended].filter(Boolean).join(" · ")),
    h("pre", {}, row.response ?? row.failure_kind ?? "–"));
}

function form({ run, view, where, order, limit, players }) {
  const submit = (event) => {
    event.preventDefault();
    go("groups", { run, ...Object.fromEntries(new FormData(event.target)) });
  };
  return h("form", { onsubmit: submit },
    choice("view", "From", ["episodes", "evaluations"], view), players.choices,
    h("label", { class: "wide" }, "Condition (SQL)", h("input", { name: "where", value: where, placeholder: "update = 10", spellcheck: "false" })),
    choice("order", "Order", Object.keys(ORDERS), order),
    choice("limit", "Groups", LIMITS, limit),
    h("button", {}, "Show"));
}
