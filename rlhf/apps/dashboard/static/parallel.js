// Parallel coordinates: an axis for each key in which recipes differ, the metric as the last one, and a line for each run.

import { h, number, svg } from "./dom.js";

const [WIDTH, HEIGHT, TOP, SIDE] = [1000, 260, 40, 90];
const LOGARITHMIC = 20;

export function parallel(runs, recipes, keys, metric, ends, colours) {
  const axes = [...keys.map((key) => axis(key, recipes.map((recipe) => recipe.get(key)?.value))), axis(metric, ends)];
  const across = (place) => SIDE + (place * (WIDTH - 2 * SIDE)) / (axes.length - 1);
  const line = (run, index) => {
    const points = axes.map(({ heights }, place) => [across(place), heights[index]]).filter(([, height]) => height !== null);
    return svg("polyline", { points: points.join(" "), fill: "none", stroke: colours[index % colours.length], "stroke-width": 2 }, svg("title", {}, `${run} · ${number(ends[index])}`));
  };
  const scale = ({ name, bottom, top }, place) => {
    const words = (y, text) => svg("text", { x: across(place), y, "text-anchor": "middle", fill: "currentColor", "font-size": 12 }, text);
    return [
      svg("line", { x1: across(place), x2: across(place), y1: TOP, y2: HEIGHT - TOP, stroke: "currentColor", opacity: 0.3 }),
      words(TOP - 22, name.split(".").at(-1)), words(TOP - 6, top), words(HEIGHT - TOP + 16, bottom),
    ];
  };
  const picture = svg("svg", { id: "parallel", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, role: "img", "aria-label": `${runs.length} runs, a line each` }, ...axes.flatMap(scale), ...runs.map(line));
  return h("section", {}, h("h2", {}, "Values and what came of them"), picture);
}

// Numbers lie by their size, or its logarithm if they differ much; other values in their order.
function axis(name, given) {
  const present = given.filter((value) => value !== null && value !== undefined);
  const numeric = present.every((value) => Number.isFinite(Number(value)));
  const order = [...new Set(present)].sort();
  const plain = given.map((value) => (!present.includes(value) ? null : numeric ? Number(value) : order.indexOf(value)));
  const known = plain.filter((value) => value !== null);
  const logarithmic = numeric && Math.min(...known) > 0 && Math.max(...known) / Math.min(...known) > LOGARITHMIC;
  const sizes = plain.map((value) => (value !== null && logarithmic ? Math.log(value) : value));
  const [low, high] = [Math.min(...sizes.filter((size) => size !== null)), Math.max(...sizes.filter((size) => size !== null))];
  const heights = sizes.map((size) => (size === null ? null : HEIGHT - TOP - (high > low ? (size - low) / (high - low) : 0.5) * (HEIGHT - 2 * TOP)));
  const words = (bound) => (known.length ? (numeric ? number(bound(...known)) : order[bound(...known)]) : "–");
  return { name, heights, bottom: words(Math.min), top: words(Math.max) };
}
