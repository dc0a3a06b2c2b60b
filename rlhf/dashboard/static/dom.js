// Elements whose text is always text: nothing that a model wrote is ever read as markup.

// Control characters, bidirectional marks and halves of characters, which a browser would obey or hide.
const INVISIBLE =
  /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\uffff\u{e0000}-\u{e007f}]|\p{Surrogate}/gu;

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

export function show(...children) {
  document.getElementById("page").replaceChildren(...children.flat().filter(Boolean));
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
