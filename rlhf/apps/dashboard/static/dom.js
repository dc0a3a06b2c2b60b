// Elements whose text is always text: nothing that a model wrote is ever read as markup.

// Control and format characters, such as bidirectional marks, and halves of characters: a browser would obey or hide them.
export const IMAGE_MARK = "\ufffc";
const INVISIBLE = /(?![\t\n])[\p{Control}\p{Format}\p{Surrogate}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}]/gu;

export function visible(text) {
  return String(text ?? "").replaceAll(IMAGE_MARK, "[image]").replace(INVISIBLE, (found) => "\\u{" + found.codePointAt(0).toString(16) + "}");
}

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : visible(child));
  }
  return element;
}

export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS("http:" + "//www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.map((child) => (child instanceof Node ? child : visible(child))));
  return element;
}

export function show(...children) {
  document.getElementById("page").replaceChildren(...children.flat().filter(Boolean));
}

export function heads(names, numbers = []) {
  return h("thead", {}, h("tr", {}, names.map((name) => h("th", { scope: "col", class: numbers.includes(name) ? "number" : null }, name))));
}

// One of several values, of which "" is called all; the chosen one may come from an address, as text.
export function choice(name, label, values, chosen) {
  const options = values.map((value) => h("option", { value, selected: String(value) === String(chosen) }, String(value) || "all"));
  return h("label", {}, label, h("select", { name }, options));
}

// What opens by a click, and stays open while the view is drawn again.
const opened = new Set();

export function fold(title, note, attributes, ...children) {
  const summary = h("summary", {}, title, note ? h("span", { class: "dim" }, ` ${note}`) : null);
  const element = h("details", { class: "fold", open: opened.has(title) ? "" : null, ...attributes }, summary, ...children);
  element.addEventListener("toggle", () => opened[element.open ? "add" : "delete"](title));
  return element;
}

export function tabs(name, links) {
  const tab = ({ to, words, chosen }) => h("a", { href: to, "aria-current": chosen ? "page" : null }, words);
  return h("nav", { class: "tabs", "aria-label": name }, links.map(tab));
}

// A table whose numbers are right-aligned, with their heads.
export function table(id, columns, rows) {
  const numeric = columns.map((_, column) => rows.some((row) => typeof row[column] === "number" || /^[\d.,]+ (%|k?B|[MGT]B)$/.test(row[column])));
  const kind = (column) => (numeric[column] ? "number" : null);
  const head = (name, column) => h("th", { scope: "col", class: kind(column) }, name);
  const cell = (value, column) => h("td", { class: kind(column) }, value instanceof Node ? value : number(value));
  const body = rows.map((row) => h("tr", {}, row.map(cell)));
  return scroll(id, h("table", { id }, h("thead", {}, h("tr", {}, columns.map(head))), h("tbody", {}, body)));
}

export function scroll(label, ...children) {
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": label }, ...children);
}

export function tell(words) {
  const told = document.getElementById("told");
  told.textContent = words;
  setTimeout(() => { if (told.textContent === words) told.textContent = ""; }, 3000);
}

export function number(value, digits = 4) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return visible(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : String(Number(value.toPrecision(digits)));
}

export function duration(seconds) {
  const [hours, minutes] = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60];
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  if (hours >= 48) return `${Math.floor(hours / 24)} d ${hours % 24} h`;
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${Math.round(seconds) % 60} s`;
}

// A moment in the past, as one says it, with the date to point at.
export function ago(time) {
  const passed = Date.now() / 1000 - time;
  const words = passed < 60 ? "just now" : `${duration(passed).replace(/(?<=min|h|d) .*/, "")} ago`;
  return h("time", { datetime: new Date(1000 * time).toISOString(), title: new Date(1000 * time).toLocaleString("en-GB") }, words);
}
