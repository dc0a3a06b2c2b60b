// Shows the view that the address names, and follows a run that goes on.

import { address, ask, read } from "./address.js";
import { showCompare } from "./compare.js";
import { h, number, show } from "./dom.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { showOverview } from "./overview.js";
import { showTimeline } from "./timeline.js";

const VIEWS = { runs: showRuns, compare: showCompare, overview: showOverview, episodes: showEpisodes, episode: showEpisode, timeline: showTimeline };
const LIVE = ["runs", "overview"];
let stream = null;

async function render({ focus }) {
  const { view, given } = read();
  follow(given.run);
  navigation(view, given.run);
  document.title = given.run ? `${given.run} · ${view}` : "rlhf";
  try {
    await (VIEWS[view] ?? showRuns)(given);
  } catch (error) {
    show(h("p", { class: "error", role: "alert" }, error.message));
  }
  if (focus) document.getElementById("page").focus({ preventScroll: true });
}

function navigation(view, run) {
  const link = (to, words, given) => h("a", { href: address(to, given), "aria-current": view === to ? "page" : null }, words);
  const links = [link("runs", "Runs", {}), link("compare", "Compare", run ? { runs: run } : {})];
  if (run) links.push(link("overview", "Overview", { run }), link("episodes", "Episodes", { run }), link("timeline", "Timeline", { run }));
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
    if (!first && LIVE.includes(read().view)) render({ focus: false });
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
        h("td", {}, run.outcome ?? "goes on, or was killed"),
      ]);
  const heads = ["run", "updates", "reward", "outcome"].map((name) => h("th", { scope: "col" }, name));
  show(h("h1", {}, "Runs"), h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, runs.map(row)))));
}

addEventListener("hashchange", () => render({ focus: true }));
render({ focus: false });
