// A card for each metric: its number, what it means, and its curve over the updates. `uPlot` is a global: the library is
// shipped minified, as a plain script.

import { h, number, svg } from "./dom.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];
const REWARD = /^(reward\/mean|eval\/(reward|.*@\d+|.*\/accuracy)|pairs\/accuracy)$/;
const [FLAT, NOISE] = [0.05, 1e-9];
const HEIGHT = 130;
export const COLOURS = ["#3b63d8", "#c2560c", "#1b8a4a", "#8b49c9", "#c23a86", "#8d6b00", "#5f6b7a", "#d1334a"];
export const SMOOTHINGS = { none: 0, some: 0.6, strong: 0.9 };

// A colour of the style sheet as the canvas takes it, for the theme of now.
export function ink(name) {
  const probe = h("i", { style: `color: var(${name})` });
  document.body.append(probe);
  const { color } = getComputedStyle(probe);
  probe.remove();
  return color;
}

// The ends of the vertical axis. Shares and rewards that lie between 0 and 1 have that scale, a healthy range is in
// sight, so that noise far below it is flat, and what hardly varies is a flat line.
export function ends(name, { unit, low = null, high = null }, values) {
  const known = values.filter(Number.isFinite);
  if (!known.length) return [0, 1];
  let [bottom, top] = known.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
  const size = Math.max(Math.abs(bottom), Math.abs(top));
  const between = bottom >= 0 && top <= 1;
  if (between && unit === "share" && high !== null && top <= high) return [0, Math.min(1, 1.2 * high)];
  if (between && (unit === "share" || REWARD.test(name))) return [-0.01, 1.01];
  if (size < NOISE && high === null && low === null) return bottom < 0 ? [-1, 1] : [0, 1];
  if (high !== null || low !== null) {
    [bottom, top] = [Math.min(bottom, low ?? 0, 0), Math.max(top, high ?? 0, low === null ? 0 : 1.5 * low)];
    return [bottom && bottom - 0.05 * (top - bottom), top + 0.1 * (top - bottom)];
  }
  if (top - bottom <= FLAT * size) return [bottom - 0.25 * size, top + 0.25 * size];
  return uPlot.rangeNum(bottom, top, 0.1, true);
}

// A horizontal axis, of whole numbers or of any, and a vertical one.
function axes(whole) {
  const axis = { stroke: ink("--dim"), grid: { stroke: ink("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
  const across = { ...axis, grid: { show: false }, size: 24, values: (_, ticks) => ticks.map((tick) => number(tick)), ...(whole ? { incrs: WHOLE } : {}) };
  return [across, { ...axis, size: 52, space: 28, values: (_, ticks) => ticks.map((tick) => number(tick, 3)) }];
}

// An exponential mean of the values so far, in which the first do not weigh more.
export function smoothed(values, strength) {
  if (!strength) return values;
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    if (!Number.isFinite(value)) return value;
    [sum, weight] = [strength * sum + (1 - strength) * value, strength * weight + (1 - strength)];
    return sum / weight;
  });
}

function band({ low, high }) {
  return ({ ctx, bbox, scales, valToPos }) => {
    if ((low ?? high ?? null) === null) return;
    const at = (value) => valToPos(Math.min(Math.max(value, scales.y.min), scales.y.max), "y", true);
    const [upper, lower] = [at(high ?? scales.y.max), at(low ?? scales.y.min)];
    ctx.fillStyle = ink("--healthy");
    ctx.fillRect(bbox.left, upper, bbox.width, lower - upper);
  };
}

let plots = [];

// Draw curves over `across` into a place. The pointer, or the arrow keys, tell `point` a place of the curves; charts with
// one `shared` axis move together.
export function draw(place, { across, curves, range, entry = {}, colours, smooth = 0, height = HEIGHT, whole = true, shared = "updates", point }) {
  plots = plots.filter((plot) => plot.root.isConnected || plot.destroy());
  const one = (stroke, width) => ({ stroke, width, spanGaps: true, points: { size: 4, show: across.length < 30 } });
  const faint = colours.map((colour) => one(`color-mix(in srgb, ${colour} 30%, transparent)`, 1));
  const data = (values) => (smooth ? [...values, ...values.map((curve) => smoothed(curve, smooth))] : values);
  const options = {
    width: place.clientWidth || 320, height, legend: { show: false }, axes: axes(whole), padding: [8, 8, 0, 0],
    scales: { x: { time: false }, y: { range: () => range() } },
    cursor: { drag: { x: true, y: false }, y: false, sync: { key: shared } },
    series: [{}, ...(smooth ? faint : []), ...colours.map((colour) => one(colour, 2))],
    hooks: { drawClear: [band(entry)], setCursor: [(plot) => point(plot.cursor.idx ?? null)] },
  };
  const plot = new uPlot(options, [across, ...data(curves)], place);
  plots.push(plot);
  const step = (by) => {
    const index = Math.min(Math.max((plot.cursor.idx ?? plot.data[0].length) + by, 0), plot.data[0].length - 1);
    plot.setCursor({ left: plot.valToPos(plot.data[0][index], "x"), top: 1 });
  };
  place.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !plot.data[0].length) return;
    step(by);
    event.preventDefault();
  });
  return { set: (later, values) => plot.setData([later, ...data(values)]) };
}

// The card of a metric, with several `curves` if those of policies have one name. `draw` is called once it is in the page,
// `update` with later numbers.
export function metricCard({ name, title, entry = {}, large = false, smooth = 0, players = [{}] }, updates, curves) {
  const lines = players.map(({ words, colour }) => {
    const [readout, beside] = [h("span", { class: "readout" }), h("span", { class: "dim beside-readout" })];
    const whose = words && h("span", { class: "dim" }, h("i", { class: "swatch", style: `background: ${colour}` }), words);
    return { words, readout, beside, element: h("p", { class: "now" }, whose, readout, beside) };
  });
  const place = h("div", { class: "plot", tabindex: large ? 0 : null, role: "img" });
  let plot = null;
  const told = (value) => ((entry.unit === "share" || name?.endsWith("/accuracy")) && Number.isFinite(value) ? `${number(100 * value, 3)} %` : number(value, 3));
  const rest = () => {
    const spoken = lines.map(({ words, readout, beside }, one) => {
      const [first, last] = [curves[one].find(Number.isFinite), curves[one].findLast(Number.isFinite)];
      readout.textContent = told(last);
      beside.textContent = first !== undefined && first !== last ? ` from ${told(first)}` : "";
      return `${words ? `${words} ` : ""}${number(first)} at first, ${number(last)} at last`;
    });
    place.setAttribute("aria-label", `${name}: ${spoken.join("; ")}`);
  };
  const point = (index) => {
    if (index === null) return rest();
    lines.forEach(({ readout, beside }, one) => {
      readout.textContent = told(curves[one][index]);
      beside.textContent = ` at update ${number(updates[index])}`;
    });
  };
  rest();
  const about = [healthy(entry), plain(entry.meaning) ?? "a metric of your own"].filter(Boolean).join(" · ");
  const advice = [about, plain(entry.remedy)].filter(Boolean).join("\n");
  const element = h("section", { class: large ? "chart large" : "chart", "data-metric": name },
    h("h3", {}, title ?? name, title && name ? h("code", {}, name) : null), lines.map(({ element: line }) => line),
    h("p", { class: "about", title: advice }, about), place);
  return {
    name, element,
    draw: () => {
      const range = () => ends(name, entry, curves.flat());
      plot = draw(place, { across: updates, curves, range, entry, colours: players.map(({ colour }) => colour ?? ink("--link")), smooth, height: large ? 150 : HEIGHT, point });
    },
    update: (later, numbers) => {
      [updates, curves] = [later, numbers];
      rest();
      plot?.set(updates, curves);
    },
  };
}

function healthy({ low = null, high = null, unit = "" }) {
  const told = (bound) => (unit === "share" ? `${number(100 * bound)} %` : `${number(bound)} ${unit ?? ""}`.trim());
  if (low === null) return high === null ? "" : `healthy: at most ${told(high)}`;
  return high === null ? `healthy: at least ${told(low)}` : `healthy: ${number(low)} to ${told(high)}`;
}

// The words of the catalogue are Markdown, of which the page shows the text alone.
export function plain(words) {
  return words?.replace(/\[([^\]]*)\]\([^)]*\)/g, "$1").replaceAll("`", "");
}

// A curve as small as a word.
export function sparkline(values, label) {
  const known = values.map((value, index) => [index, value]).filter(([, value]) => Number.isFinite(value));
  if (known.length < 2) return "–";
  const [least, most] = [Math.min(...known.map(([, value]) => value)), Math.max(...known.map(([, value]) => value))];
  const height = (value) => (most - least > FLAT * Math.max(Math.abs(least), Math.abs(most)) ? 22 - (20 * (value - least)) / (most - least) : 12);
  const points = known.map(([index, value]) => `${((98 * index) / (values.length - 1) + 1).toFixed(1)},${height(value).toFixed(1)}`);
  return svg("svg", { viewBox: "0 0 100 24", width: 100, height: 24, role: "img", "aria-label": label, class: "spark" }, svg("polyline", { points: points.join(" ") }));
}
