// What all charts share. `uPlot` is a global: the library is shipped minified, as a plain script.

import { number } from "./dom.js";

const WHOLE = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000, 100_000];

const FLAT = 1e-5;

// For what varies by less than a millionth uPlot finds an empty range, and then divides it for ever.
function range(_, low, high) {
  const size = Math.max(Math.abs(low), Math.abs(high));
  const space = 0.1 * size || 1;
  return high - low <= FLAT * size ? [low - space, high + space] : uPlot.rangeNum(low, high, 0.1, true);
}

export const SCALES = { x: { time: false }, y: { range } };

// A horizontal axis, of whole numbers or of any, and a vertical one.
export function axes(whole) {
  const style = getComputedStyle(document.body);
  const axis = { stroke: style.getPropertyValue("--dim"), grid: { stroke: style.getPropertyValue("--line"), width: 0.5 }, ticks: { show: false }, font: "11px system-ui" };
  const across = { ...axis, size: 24, values: (_, ticks) => ticks.map((tick) => number(tick)), ...(whole ? { incrs: WHOLE } : {}) };
  return [across, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => number(tick, 3)) }];
}
