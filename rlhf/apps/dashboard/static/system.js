// Who worked for a run, where and how fast, and what failed.

import { address, ask } from "./address.js";
import { quoted } from "./episodes.js";
import { h, number, show, table } from "./dom.js";

export async function showSystem({ run }) {
  const found = await ask("system", { run });
  const [heads = [], ...workers] = found.placement;
  show(
    h("h1", {}, "System"),
    h("h2", {}, "Placement"),
    workers.length ? table("placement", heads, workers) : nothing("The run printed no table of workers: all its parts are in one process."),
    h("h2", {}, "Engines"),
    found.engines.length ? table("engines", ["engine", "episodes", "sampled tokens", "tokens/s of an episode", ...SECONDS], found.engines.map(engine)) : nothing("No episode was sampled."),
    found.loads.length ? table("loads", ["engine", "steps", "running requests", "waiting requests", "largest KV cache", "prefix hits"], found.loads.map(load)) : null,
    h("h2", {}, "Environments"),
    found.environments.length ? table("environments", ["role", "episodes", "malformed calls", "cut replies", ...SECONDS], found.environments.map(environment)) : nothing("Its episodes have no environment."),
    h("h2", {}, "Failures of engines, environments and scorers"),
    found.failures.length ? table("failures", ["what", "outcome", "episodes", "last update"], found.failures.map((row) => failure(row, run))) : nothing("Nothing failed."),
    h("h2", {}, "On disk"),
    table("disk", ["file", "size"], Object.entries(found.disk).sort((one, other) => other[1] - one[1]).map(([name, size]) => [name, bytes(size)])),
    h("h2", {}, "Provenance"),
    Object.keys(found.provenance).length ? table("provenance", ["input", "digest"], Object.entries(found.provenance)) : nothing("It is in the first checkpoint."),
  );
}

const SECONDS = ["median seconds", "95 % within", "longest"];

function engine(row) {
  return [row.engine, row.episodes, row.tokens, row.seconds ? row.tokens / row.seconds : null, row.median_seconds, row.p95_seconds, row.longest_seconds];
}

// In the mean step of the engine.
function load(row) {
  const share = (value) => (value === null ? null : `${number(100 * value, 3)} %`);
  return [row.engine, row.steps, row.running, row.waiting, share(row.kv_cache), share(row.prefix_hits)];
}

function environment(row) {
  return [row.role, row.episodes, row.malformed_calls, row.cut_replies, row.median_seconds, row.p95_seconds, row.longest_seconds];
}

function failure(row, run) {
  const where = `failure_kind = ${quoted(row.failure_kind)} AND outcome = ${quoted(row.outcome)}`;
  const link = h("a", { href: address("episodes", { run, where, order: "admitted_version DESC" }) }, row.failure_kind);
  return [link, row.outcome, row.episodes, row.last_update ?? row.last_version];
}

function nothing(words) {
  return h("p", { class: "dim" }, words);
}

function bytes(size) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  const power = Math.min(Math.floor(Math.log10(Math.max(size, 1)) / 3), units.length - 1);
  return `${number(size / 1000 ** power, 3)} ${units[power]}`;
}
