// Elements whose text is always text: nothing that a model wrote is ever read as markup.

// Control and format characters, such as bidirectional marks, and halves of characters: a browser would obey or hide them.
const INVISIBLE = /(?![\t\n])[\p{Control}\p{Format}\p{Surrogate}\p{Zl}\p{Zp}\p{Noncharacter_Code_Point}]/gu;

export function visible(text) {
  return String(text ?? "").replace(INVISIBLE, (found) => "\\u{" + found.codePointAt(0).toString(16) + "}");
}

export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) {
    if (child === null || child === undefined) continue;
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

// One of several values; the chosen one may come from an address, as text.
export function choice(name, label, values, chosen) {
  const options = values.map((value) => h("option", { value, selected: String(value) === String(chosen) }, String(value)));
  return h("label", {}, label, h("select", { name }, options));
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
