// Every view and every selection has an address: #/VIEW?run=…&…

export function read() {
  const [view, query] = location.hash.slice(2).split("?");
  return { view: view || "runs", given: Object.fromEntries(new URLSearchParams(query)) };
}

export function address(view, given) {
  const kept = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return `#/${view}?${new URLSearchParams(kept)}`;
}

export function go(view, given) {
  location.hash = address(view, given).slice(1);
}

// Another address for the view that is shown already.
export function replace(view, given) {
  history.replaceState(history.state, "", address(view, given));
  document.getElementById("page").dataset.shown = location.hash;
}

// The answer never comes if the user has gone on to another address before it: it is for a view that is no longer wanted.
export async function ask(path, given = {}) {
  const asked = location.hash;
  const kept = Object.entries(given).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const response = await fetch(`/api/${path}?${new URLSearchParams(kept)}`);
  const answer = await response.json().catch(() => ({}));
  if (location.hash !== asked) return new Promise(() => {});
  if (!response.ok) throw new Error(answer.error ?? `the server answered ${response.status}`);
  return answer;
}
