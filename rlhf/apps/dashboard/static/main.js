// Shows the view that the address names, and follows runs that go on.

import { ask, read } from "./address.js";
import { showCompare } from "./compare.js";
import { h, show } from "./dom.js";
import { showEpisode } from "./episode.js";
import { showEpisodes } from "./episodes.js";
import { afterMove, focused, restore } from "./focus.js";
import { showFrame } from "./frame.js";
import { showGroups } from "./groups.js";
import { showOverview, updateOverview } from "./overview.js";
import { showRuns } from "./runs.js";
import { showSystem } from "./system.js";
import { showTimeline } from "./timeline.js";

const VIEWS = {
  runs: showRuns, compare: showCompare, overview: showOverview, episodes: showEpisodes, episode: showEpisode,
  groups: showGroups, timeline: showTimeline, system: showSystem,
};
const LIVE = ["runs", "overview", "compare"];
const CHARTS = ["overview", "compare"];
const BUSY = ".plot:hover, .plot:focus, input[name=task]:focus";
const AGAIN = 2000;
let stream = null;
let waiting = 0;

async function render(held, moved = false) {
  const { view, given } = read();
  follow(given.run ?? "");
  document.title = given.run ? `${given.run} · ${view}` : "rlhf";
  const frame = showFrame(view, given);
  try {
    await (VIEWS[view] ?? showRuns)(given);
  } catch (error) {
    show(h("p", { class: "error", role: "alert" }, error.message));
  }
  await frame;
  document.getElementById("page").dataset.shown = location.hash;
  restore(held, moved);
}

function follow(run) {
  if (stream?.run === run) return;
  stream?.source.close();
  const source = new EventSource(`/api/live?${new URLSearchParams({ run })}`);
  stream = { run, source };
  let first = true;
  source.onmessage = () => {
    if (!first) later();
    first = false;
  };
}

// Draw the view again with what the runs have done since. The charts of an overview only get their new numbers, and a
// comparison waits while someone reads or writes in it.
async function later() {
  const { view, given } = read();
  clearTimeout(waiting);
  if (view === "compare" && document.querySelector(BUSY)) {
    waiting = setTimeout(later, AGAIN);
    return;
  }
  const updated = view === "overview" && updateOverview(await ask("overview", given));
  const held = focused("href", "name");
  if (LIVE.includes(view) && !updated) return render(held);
  await showFrame(view, given);
  restore(held);
}

function redraw() {
  if (CHARTS.includes(read().view)) render(focused("href", "name"));
}

let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  redraw();
});
const switched = document.getElementById("theme");
switched.value = theme.chosen ?? "";
switched.addEventListener("change", () => {
  if (switched.value) document.documentElement.dataset.theme = switched.value;
  else delete document.documentElement.dataset.theme;
  redraw();
  localStorage.setItem("theme", switched.value);
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("hashchange", (event) => render(afterMove(event), true));
render(null);
