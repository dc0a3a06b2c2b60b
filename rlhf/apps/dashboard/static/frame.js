// What is above every view: the pages, and for a run how it is, with its views as tabs.

import { address, ask } from "./address.js";
import { ago, duration, h, number, tabs } from "./dom.js";
import { heldOut, pill, stateOf, took } from "./runs.js";

const VIEWS = { overview: "Overview", episodes: "Episodes", groups: "Groups", timeline: "Timeline", system: "System" };
const WITHIN = { episode: "episodes" };

export async function showFrame(view, { run }) {
  const page = (to, words, given) => h("a", { href: address(to, given), "aria-current": view === to ? "page" : null }, words);
  document.getElementById("nav").replaceChildren(page("runs", "Runs", {}), page("compare", "Compare", run ? { runs: run } : {}));
  const frame = document.getElementById("frame");
  if (!run) return frame.replaceChildren();
  const found = await ask("run", { run }).catch(() => null);
  const links = Object.entries(VIEWS).map(([to, words]) => ({ to: address(to, { run }), words, chosen: (WITHIN[view] ?? view) === to }));
  frame.replaceChildren(h("div", { class: "run" }, h("strong", {}, run), found ? [pill(found), found.error ? null : facts(found)] : null), tabs("Views of the run", links));
}

function facts(found) {
  const ending = found.left === null ? "" : `, ${duration(found.left)} left (until ${clock(found.left)})`;
  const told = {
    "Held-out": heldOut(found),
    Update: h("span", { id: "made" }, `${number(found.made)} of ${number(found.updates)}`),
    Model: found.model, Algorithm: found.algorithm,
    Started: ago(found.began),
    Took: `${duration(took(found))}${ending}`,
  };
  if (stateOf(found).kind === "running") {
    told["Running for"] = told.Took;
    delete told.Took;
  }
  return h("dl", {}, Object.entries(told).map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}

function clock(seconds) {
  return new Date(Date.now() + 1000 * seconds).toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
}
