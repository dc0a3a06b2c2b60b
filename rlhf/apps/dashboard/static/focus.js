// Where the focus and the scroll go when a view is drawn: a choice that was changed keeps them, whoever comes back finds the
// link that was followed, and another view begins at its top.

let place = window.navigation?.currentEntry?.index;

// A selector that finds the focused element again by these attributes.
export function focused(...attributes) {
  const one = document.activeElement;
  const held = [...attributes, one.type === "checkbox" ? "value" : ""].filter((name) => name && one.hasAttribute(name));
  return held.map((name) => `[${name}="${CSS.escape(one.getAttribute(name))}"]`).join("");
}

// The selector of what has the focus after a move from an address.
export function afterMove({ oldURL }) {
  const before = place;
  place = window.navigation?.currentEntry?.index;
  return place < before ? `a[href="${CSS.escape(new URL(oldURL).hash)}"]` : focused("name");
}

export function restore(selector, moved) {
  const found = selector && document.querySelector(selector);
  if (found) {
    found.focus({ preventScroll: !moved });
    if (found.type === "search") found.setSelectionRange(found.value.length, found.value.length);
  } else if (moved) {
    document.getElementById("page").focus({ preventScroll: true });
    scrollTo(0, 0);
  }
}
