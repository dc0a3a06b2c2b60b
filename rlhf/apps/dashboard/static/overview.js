// A run at a glance: what is wrong, what matters in large, what the model says, and then every metric, folded by kind.

import { address, ask, go } from "./address.js";
import { COLOURS, SMOOTHINGS, ink, metricCard, plain } from "./charts.js";
import { placeOf, quoted } from "./episodes.js";
import { choice, fold, h, heads, number, scroll, show } from "./dom.js";
import { stateOf } from "./runs.js";

// The metrics that are shown in large, if a run has them, in other words than their names.
const FIRST = {
  "eval/reward": "Held-out reward",
  "eval/held_out/accuracy": "Held-out accuracy",
  "reward/mean": "Training reward",
  "pairs/accuracy": "Training accuracy",
  "sft/nll": "Loss of the demonstrations",
  "pairs/loss": "Loss of the pairs",
  "response/tokens_mean": "Reply length",
  "response/truncated": "Replies cut off",
  "policy/entropy": "Entropy",
  "policy/kl_reference": "KL from the reference",
  "policy/approx_kl": "KL of an update",
  "policy/logprob_difference": "Engine and learner differ by",
  "staleness/mean": "Off-policy by",
  "critic/explained_variance": "Critic explains",
};
const SPEED = { title: "Tokens per second", entry: { meaning: "trained tokens per second of the whole update", unit: "tokens/s" } };
const MOST_LARGE = 11;
const SAMPLES = 4;
const LAST = "outcome = 'evaluated' AND admitted_version = (SELECT max(admitted_version) FROM evaluations)";
let live = { cards: [] };

export async function showOverview({ run, smooth = "none", policy = "" }) {
  const found = await ask("overview", { run });
  const strength = SMOOTHINGS[smooth] ?? 0;
  const { metrics, update } = found;
  const called = byPolicy(found, policy);
  const card = (name, large) => {
    const names = called.get(name);
    const owners = names.map((one) => ownerOf(one, found.policies));
    const colour = (owner) => (owner ? COLOURS[found.policies.indexOf(owner) % COLOURS.length] : ink("--dim")); // the same in every chart
    const players = owners.some(Boolean) ? owners.map((owner) => ({ words: owner ?? "all", colour: colour(owner) })) : undefined;
    const about = { name, title: large ? FIRST[name] : null, entry: metrics[names[0]], large, smooth: strength, players };
    return { names, ...metricCard(about, update, names.map((one) => metrics[one].values)) };
  };
  const first = Object.keys(FIRST).filter((name) => called.has(name)).slice(0, MOST_LARGE);
  const large = first.map((name) => card(name, true));
  if (speed(found)) large.push(metricCard({ ...SPEED, large: true, smooth: strength }, update, [speed(found)]));
  const rest = [...called.keys()].filter((name) => !first.includes(name));
  const folded = Map.groupBy(rest, (name) => name.split("/")[0]);
  const groups = [...folded].map(([space, names]) => ({ space, cards: names.map((name) => card(name, false)) }));
  const samples = h("section", { id: "samples", class: metrics["reward/mean"] ? "expected" : null });
  live = { run, policy, count: Object.keys(metrics).length, cards: [...large, ...groups.flatMap(({ cards }) => cards)] };
  show(
    h("h1", { class: "unseen" }, `Overview of ${found.name}`),
    failure(found),
    h("div", { class: "title" }, h("h2", {}, "What matters"), choices({ run, smooth, policy }, found.policies)),
    large.length ? alarms(found) : h("p", { class: "dim" }, stateOf(found).kind === "running" ? "It is starting: the first update is not made yet." : "It made no update."),
    h("div", { class: "charts" }, large.map(({ element }) => element)),
    samples,
    found.league && standing(found.league),
    groups.length ? h("h2", {}, "All metrics") : null,
    groups.map(section),
    h("h2", {}, "What it was made from"),
    fold("Recipe", "every value and where it comes from", { id: "recipe" }, h("pre", {}, found.recipe)),
    Object.entries(found.code).map(([module, text]) => fold(`${module}.py`, "as the run began with it", {}, h("pre", {}, text))),
  );
  large.forEach((one) => one.draw());
  fillSamples(samples, run, metrics, policy).catch((error) => samples.replaceChildren(h("p", { class: "error" }, error.message)));
}

// Give the charts that are shown their later numbers; false if the view must be drawn anew.
export function updateOverview({ update, metrics, ...found }) {
  const drawn = live.cards.flatMap(({ names }) => names ?? []);
  if (!document.querySelector("[data-metric]") || live.count !== Object.keys(metrics).length || !drawn.every((name) => metrics[name])) return false;
  document.querySelector("#alarms").replaceWith(alarms(found));
  for (const card of live.cards) card.update(update, card.names?.map((name) => metrics[name].values) ?? [speed({ metrics })]);
  const samples = document.getElementById("samples");
  fillSamples(samples, live.run, metrics, live.policy).catch(() => {});
  return stateOf(found).kind === "running";
}

// The policy of a metric, as in `one/policy/entropy`; undefined for one of the whole run.
function ownerOf(name, policies) {
  return policies.find((one) => name.startsWith(`${one}/`) && name.slice(one.length + 1).includes("/"));
}

// The names of the metrics by what they are called without their policy. With a chosen policy, its own, and those of the
// whole run that no policy has.
function byPolicy({ metrics, policies }, policy) {
  const owner = (name) => ownerOf(name, policies);
  const called = Map.groupBy(Object.keys(metrics), (name) => (owner(name) ? name.slice(owner(name).length + 1) : name));
  if (!policy) return called;
  const kept = (names) => (names.some(owner) ? names.filter((name) => owner(name) === policy) : names);
  return new Map([...called].map(([name, names]) => [name, kept(names)]).filter(([, names]) => names.length));
}

// Who won against whom: the share of games that a row's player won against a column's.
function standing({ players, elo, rates }) {
  const row = (player, place) => h("tr", {}, h("th", { scope: "row" }, player), h("td", { class: "number" }, number(elo[place], 4)),
    rates[place].map((rate) => h("td", { class: "number" }, rate === null ? "–" : `${number(100 * rate, 3)} %`)));
  const table = h("table", {}, heads(["wins of", "Elo", ...players], ["Elo", ...players]), h("tbody", {}, players.map(row)));
  return h("section", { id: "league" }, h("h2", {}, "League"), h("p", { class: "dim" }, "Games at the newest checkpoint. A draw is half a win; the mean rating is 1000."), scroll("League", table));
}

function speed({ metrics }) {
  const tokens = (metrics["tokens/trained"] ?? metrics["tokens/computed"])?.values;
  const seconds = metrics["seconds/update"]?.values;
  return tokens && seconds && tokens.map((count, index) => (seconds[index] ? (count ?? NaN) / seconds[index] : null)).map((value) => (Number.isFinite(value) ? value : null));
}

function section({ space, cards }) {
  const element = fold(space, cards.length === 1 ? "1 metric" : `${cards.length} metrics`, { class: "fold metrics", "data-space": space }, h("div", { class: "charts small" }, cards.map((one) => one.element)));
  const draw = () => {
    if (!element.open) return;
    cards.splice(0).forEach((one) => one.draw());
  };
  element.addEventListener("toggle", draw);
  return element;
}

function choices(given, policies) {
  return h("form", { onchange: ({ target }) => go("overview", { ...given, [target.name]: target.value }) },
    policies.length ? choice("policy", "Policy", ["", ...policies], given.policy) : null, choice("smooth", "Smoothing", Object.keys(SMOOTHINGS), given.smooth));
}

function failure(found) {
  const { word, kind, why } = stateOf(found);
  return kind === "bad" ? h("div", { class: "notice bad", id: "failure" }, h("b", {}, `It ${word === "ended" ? "ended" : "failed"}: `), why) : null;
}

function alarms({ alarms: found, metrics }) {
  if (!found.length) return h("p", { id: "alarms" }, h("span", { class: "pill good" }, "no alarm"), h("span", { class: "dim" }, " Every metric is in its healthy range."));
  const to = ({ metric }) => () => {
    const card = live.cards.find(({ names }) => names?.includes(metric))?.element;
    if (!card) return go("overview", { run: live.run }); // it is another policy's
    card.closest("details")?.setAttribute("open", "");
    card.scrollIntoView({ block: "center" });
  };
  const remedy = (alarm) => metrics?.[alarm.metric]?.remedy && h("span", { class: "dim" }, ` ${plain(metrics[alarm.metric].remedy)}`);
  return h("ul", { class: "notice bad alarms", id: "alarms" }, found.map((alarm) => h("li", {}, h("button", { type: "button", class: "plain", onclick: to(alarm) }, alarm.sentence), remedy(alarm))));
}

// What the policy said at the last evaluation, the first problems of it, or in the last update where nothing was evaluated.
async function fillSamples(place, run, metrics, policy) {
  if (!metrics["reward/mean"] && !metrics["eval/reward"]) return;
  const links = (view, where) => h("span", {},
    h("a", { href: address("episodes", { run, view, where, policy, order: "reward" }) }, view === "episodes" ? "The worst replies of the last update" : "The worst of the evaluation"));
  const lastUpdate = "update = (SELECT max(update) FROM episodes)";
  const played = policy ? ` AND policy = ${quoted(policy)}` : "";
  const evaluated = await ask("episodes", { run, view: "evaluations", where: LAST + played, order: "evaluation_set, ordinal, sample", limit: SAMPLES });
  const found = evaluated.rows.length ? evaluated : await ask("episodes", { run, where: lastUpdate + played, order: "ordinal, sample", limit: SAMPLES });
  const [view, where] = evaluated.rows.length ? ["evaluations", LAST] : ["episodes", lastUpdate];
  const title = view === "evaluations" ? `What it said at the last evaluation, after update ${number(found.rows[0].admitted_version)}` : "What it said in the last update";
  place.replaceChildren(
    h("div", { class: "title" }, h("h2", {}, title), evaluated.rows.length ? links(view, where) : null, links("episodes", lastUpdate)),
    h("div", { class: "beside", role: "region", "aria-label": "Sampled replies", tabindex: 0 }, found.rows.map((row) => sample(row, run, view))));
}

function sample(row, run, view) {
  const mark = row.reward === null ? "quiet" : row.reward > 0.5 ? "good" : "bad";
  return h("article", { class: "card" },
    h("p", { class: "now" }, h("span", { class: `pill ${mark}` }, `reward ${number(row.reward, 3)}`), h("a", { href: address("episode", placeOf(row, run, view)) }, row.task)),
    row.question ? h("pre", { class: "dim" }, row.question) : null,
    h("pre", {}, row.response ?? row.failure_kind ?? "–"),
    h("p", { class: "about" }, [row.policy ? `played by ${row.policy}` : null, row.answer ? `expected ${row.answer}` : null, row.ended].filter(Boolean).join(" · ")));
}
