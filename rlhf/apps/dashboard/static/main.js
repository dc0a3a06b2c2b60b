// Shows the view that the address names, and follows a run that goes on.

import { address, ask, read } from "./address.js";
import { showCompare } from "./compare.js";
import { h, heads, number, show } from "./dom.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { afterMove, focused, restore } from "./focus.js";
import { showGroups } from "./groups.js";
import { showOverview } from "./overview.js";
import { showSystem } from "./system.js";
import { showTimeline } from "./timeline.js";

const VIEWS = { runs: showRuns, compare: showCompare, overview: showOverview, episodes: showEpisodes, episode: showEpisode, groups: showGroups, timeline: showTimeline, system: showSystem };
const LIVE = ["runs", "overview"];
const CHARTS = ["overview", "compare"];
let stream = null;

async function render(held, moved = false) {
  const { view, given } = read();
  follow(given.run);
  navigation(view, given.run);
  document.title = given.run ? `${given.run} · ${view}` : "rlhf";
  try {
    await (VIEWS[view] ?? showRuns)(given);
  } catch (error) {
    show(h("p", { class: "error", role: "alert" }, error.message));
  }
  document.getElementById("page").dataset.shown = location.hash;
  restore(held, moved);
}

function navigation(view, run) {
  const link = (to, words, given) => h("a", { href: address(to, given), "aria-current": view === to ? "page" : null }, words);
  const links = [link("runs", "Runs", {}), link("compare", "Compare", run ? { runs: run } : {})];
  if (run) links.push(link("overview", "Overview", { run }), link("episodes", "Episodes", { run }), link("groups", "Groups", { run }), link("timeline", "Timeline", { run }), link("system", "System", { run }));
  if (run) links.push(h("span", { class: "dim" }, run));
  document.getElementById("nav").replaceChildren(...links);
}

function follow(run) {
  if (stream?.run === run) return;
  stream?.source.close();
  stream = null;
  if (!run) return;
  const source = new EventSource(`/api/live?${new URLSearchParams({ run })}`);
  stream = { run, source };
  let first = true;
  source.onmessage = () => {
    if (!first && LIVE.includes(read().view)) render(focused("href", "name"));
    first = false;
  };
}

async function showRuns() {
  const runs = await ask("runs");
  const row = (run) =>
    h("tr", {},
      h("td", {}, h("a", { href: address("overview", { run: run.name }) }, run.name)),
      run.error ? h("td", { colspan: 3, class: "error" }, run.error) : [
        h("td", { class: "number" }, `${run.made} of ${run.updates}`),
        h("td", { class: "number" }, number(run.reward)),
        h("td", {}, run.outcome),
      ]);
  const all = runs.length > 1 && h("p", {}, h("a", { href: address("compare", { runs: runs.map((run) => run.name).join("|") }) }, "Compare all"));
  show(h("h1", {}, "Runs"), all, h("div", { class: "scroll" }, h("table", {}, heads(["run", "updates", "reward", "outcome"], ["updates", "reward"]), h("tbody", {}, runs.map(row)))));
}

let width = innerWidth;
function redraw() {
  width = innerWidth;
  if (CHARTS.includes(read().view)) render(focused("href", "name"));
}
addEventListener("resize", () => { if (innerWidth !== width) redraw(); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("hashchange", (event) => render(afterMove(event), true));
render(null);
