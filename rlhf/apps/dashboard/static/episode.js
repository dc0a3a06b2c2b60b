// One episode, token by token.

import { address, ask, go } from "./address.js";
import { placeOf, quoted } from "./episodes.js";
import { sameTask } from "./groups.js";
import { IMAGE_MARK, choice, h, heads, number, scroll, show, tell, visible } from "./dom.js";

const KINDS = ["prompt", "action", "environment", "not trained"];
const KIND_COLOURS = ["transparent", "hsl(210 80% 55% / 0.3)", "hsl(40 80% 55% / 0.3)", "hsl(280 45% 55% / 0.3)"];
const RED = (strength) => `hsl(0 80% 55% / ${(0.5 * strength).toFixed(3)})`;
const GREEN = (strength) => `hsl(140 70% 45% / ${(0.5 * strength).toFixed(3)})`;
const NEIGHBOURS = 10;

// How the text of a token is shown.
const TEXTS = {
  "special tokens": (token) => token.text.replaceAll("\n", "↵\n") || "∅",
  rendered: (token) => (token.special ? "" : token.text),
  raw: (token) => token.text.replaceAll("\n", "\\n").replaceAll("\t", "\\t") || "∅",
};

// Each gives a number or null per token; `middle` has no colour, and a value `span` above or below it has the full one; `sign` says
// on which side alone values are.
const COLOURS = {
  kind: null,
  "log-prob": { value: (token) => token.learner ?? token.engine, middle: 0, span: 4, sign: -1 },
  "engine − learner": { value: (token) => difference(token), middle: 0, span: 0.05 },
  ratio: { value: (token) => (difference(token) === null ? null : Math.exp(-difference(token))), middle: 1, span: 0.2 },
  advantage: { value: (token) => token.advantage, middle: 0, span: 2 },
  entropy: { value: (token) => token.entropy, middle: 0, span: 2, sign: 1 },
  version: { value: (token, episode) => (token.version === null || episode.update === null ? null : episode.update - 1 - token.version), middle: 0, span: 4, sign: 1 },
};

export async function showEpisode(given) {
  const { run, view = "episodes", colour = "kind", segment = "0", text = "special tokens" } = given;
  const { episode, siblings, ...beside } = await ask("episode", { run, view, ordinal: given.ordinal, sample: given.sample, version: given.version, set: given.set });
  const tokens = tokensOf(episode, beside);
  const segments = ranges(episode.segment_lengths ?? []);
  const details = h("dl", { class: "facts", id: "token" });
  show(
    h("h1", {}, `${episode.task} · sample ${episode.sample}`),
    facts(episode),
    h("h2", {}, "Conversation"),
    conversation(episode, run),
    turns(episode),
    tokens.length ? [
      h("h2", {}, "Tokens"),
      segments.length > 1 ? contexts(given, segments, Number(segment), episode.segment_threads) : null,
      h("form", { onchange: ({ target }) => go("episode", { ...given, [target.name]: target.value }) },
        choice("colour", "Colour by", Object.keys(COLOURS), colour),
        choice("text", "Text", Object.keys(TEXTS), text)),
      legend(colour),
      marked(tokens),
      h("p", { class: "dim" }, beside.texts ? "← and → choose a token, c copies its neighbourhood as JSON." : "The run folder has no tokenizer: tokens are shown by number."),
      strip(tokens.slice(...(segments[Number(segment)] ?? [])), episode, { colour, text: TEXTS[text] ?? TEXTS.rendered }, details),
      details,
    ].flat() : h("p", { class: "dim" }, "It was never played: there are no tokens."),
    h("h2", {}, "Its group"),
    h("p", {}, h("a", { href: address("episodes", { run, view, where: `task = ${quoted(episode.task)}`, order: "admitted_version, sample" }) }, "All episodes of this task, by version"), " · ", h("a", { href: sameTask(episode.task, run, view) }, "side by side")),
    group(siblings, episode, run, view),
  );
}

function facts(episode) {
  const kind = episode.reward === null ? "quiet" : episode.reward > 0.5 ? "good" : "bad";
  const ended = episode.ended && h("span", { class: `pill ${episode.ended.startsWith("cut") ? "bad" : ""}`, id: "ended" }, episode.ended);
  const parts = Object.entries(episode.reward_parts ?? {}).map(([name, value]) => `${name} ${number(value)}`).join(", ");
  const told = {
    outcome: episode.outcome, update: number(episode.update), "sampled by version": number(episode.admitted_version),
    reward: `${number(episode.reward)}${parts ? ` (${parts})` : ""}`, "reward detail": episode.reward_detail, answer: episode.answer,
    advantage: number(episode.advantage), tokens: number(episode.sampled_tokens), failure: episode.failure_kind, because: episode.failure_detail,
    role: episode.role, policy: episode.policy, engine: episode.engine, "generate seconds": number(episode.generate_seconds),
  };
  const rows = Object.entries(told).filter(([, value]) => value !== null && value !== undefined && value !== "–");
  return [
    h("p", { class: "now" }, h("span", { class: `pill ${kind}` }, `reward ${number(episode.reward)}`), ended),
    h("dl", { class: "facts strip" }, rows.map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value)))),
  ];
}

// The text of a message with its images where the model saw them, each with the tokens that it became.
function content(message, episode, run) {
  const own = message.images ?? [];
  const image = (sha256) => {
    const seen = (episode.images ?? []).filter((one) => one.sha256 === sha256);
    const places = seen.map(({ segment, start, stop }) => `tokens ${start} to ${stop - 1}${episode.segment_lengths.length > 1 ? ` of context ${segment + 1}` : ""}`);
    return h("figure", { class: "image" }, h("img", { src: `/api/image?${new URLSearchParams({ run, sha256 })}`, alt: `image ${sha256.slice(0, 8)}`, title: sha256 }), h("figcaption", { class: "dim" }, places.join(", ") || "not among the tokens"));
  };
  return (message.content ?? "").split(IMAGE_MARK).flatMap((text, place) => [
    place === 0 ? null : own[place - 1] ? image(own[place - 1]) : IMAGE_MARK, text ? h("pre", {}, text) : null,
  ]);
}

function conversation(episode, run) {
  const said = episode.conversation ?? [...episode.prompt, { role: "assistant", content: episode.response ?? "" }];
  const kind = (role) => (["assistant", "tool", "system"].includes(role) ? role : "user");
  return h("div", {}, said.map((message) => h("div", { class: `message ${kind(message.role)}` }, h("b", {}, message.role), content(message, episode, run),
    (message.tool_calls ?? []).map((call) => h("pre", { class: "dim" }, `→ ${call.name}(${call.arguments})`)))));
}

function turns({ turns, segment_lengths: lengths }) {
  if ((turns ?? []).length < 2 && !turns?.some((turn) => turn.reward !== null)) return null;
  const ended = (turn) => (turn.terminated ? "terminated" : turn.truncated ? "truncated" : "–");
  const row = (turn, index) => h("tr", {}, [index + 1, ...(lengths.length > 1 ? [turn.segment + 1] : []), turn.stop - turn.start, turn.reward].map((value) => h("td", { class: "number" }, number(value))), h("td", {}, ended(turn)));
  const numbers = ["turn", ...(lengths.length > 1 ? ["context"] : []), "tokens", "reward"];
  return scroll("Turns", h("table", { id: "turns", class: "narrow" }, heads([...numbers, "end"], numbers), h("tbody", {}, turns.map(row))));
}

function tokensOf(episode, { texts, special, marks }) {
  const at = (column, place) => episode[column]?.[place] ?? null;
  return (episode.token_ids ?? []).map((id, place) => ({
    place, id, text: texts ? texts[place] : String(id), kind: episode.kinds[place], special: special?.[place] ?? false, mark: marks?.[place] ?? null,
    engine: at("behaviour_logprobs", place), learner: at("proximal_logprobs", place), entropy: at("entropies", place), version: at("versions", place),
    advantage: episode.advantages ? at("advantages", place) : episode.kinds[place] === 1 ? episode.advantage : null,
  }));
}

function ranges(lengths) {
  let start = 0;
  return lengths.map((length) => [start, (start += length)]);
}

function difference(token) {
  return token.engine === null || token.learner === null ? null : token.engine - token.learner;
}

function background(token, episode, name) {
  const colour = COLOURS[name];
  if (!colour) return KIND_COLOURS[token.kind];
  const value = colour.value(token, episode);
  if (value === null || value === undefined) return "transparent";
  const strength = Math.max(-1, Math.min(1, (value - colour.middle) / colour.span));
  return strength < 0 ? RED(-strength) : GREEN(strength);
}

function legend(name) {
  const { middle, span, sign } = COLOURS[name] ?? {};
  const shown = (words, background) => h("span", { style: `background: ${background}` }, words);
  if (span === undefined) return h("p", { class: "legend", id: "legend" }, KINDS.map((kind, index) => shown(kind, KIND_COLOURS[index])));
  return h("p", { class: "legend", id: "legend" },
    sign === 1 ? null : shown(`≤ ${number(middle - span)}`, RED(1)), shown(number(middle), "none"), sign === -1 ? null : shown(`≥ ${number(middle + span)}`, GREEN(1)));
}

// How many tokens the loss clipped or corrected, which are underlined.
function marked(tokens) {
  const names = [...new Set(tokens.map(({ mark }) => mark).filter(Boolean))];
  const told = names.map((name) => `${tokens.filter(({ mark }) => mark === name).length} ${name}`);
  return told.length ? h("p", { id: "marked" }, h("span", { class: "marked" }, told.join(", ")), " in the first step of its update") : null;
}

function strip(tokens, episode, { colour, text }, details) {
  const place = h("div", { class: "tokens", tabindex: 0, role: "group", "aria-label": "Tokens" });
  let chosen = null;
  const choose = (index) => {
    if (index < 0 || index >= tokens.length) return;
    if (chosen !== null) place.children[chosen].classList.remove("chosen");
    chosen = index;
    place.children[chosen].classList.add("chosen");
    place.children[chosen].scrollIntoView({ block: "nearest" });
    details.replaceChildren(...describe(tokens[chosen], episode));
  };
  place.append(...tokens.map((token, index) => {
    const span = h("span", { class: ["token", token.kind === 1 ? "" : "unsampled", token.mark ? "marked" : ""].join(" "), onclick: () => choose(index), onmouseenter: () => details.replaceChildren(...describe(token, episode)) }, text(token));
    span.style.background = background(token, episode, colour);
    return span;
  }));
  place.addEventListener("keydown", (event) => {
    if (event.key === "ArrowRight") choose((chosen ?? -1) + 1);
    else if (event.key === "ArrowLeft") choose((chosen ?? tokens.length) - 1);
    else if (event.key === "c" && chosen !== null && !event.ctrlKey && !event.metaKey) copy(tokens.slice(Math.max(0, chosen - NEIGHBOURS), chosen + NEIGHBOURS + 1));
    else return;
    event.preventDefault();
  });
  return place;
}

function describe(token, episode) {
  const values = {
    token: `${JSON.stringify(visible(token.text))} (${token.id}), ${token.place} of its episode, ${KINDS[token.kind]}`,
    "engine log-prob": number(token.engine, 6), "learner log-prob": number(token.learner, 6),
    "engine − learner": number(difference(token)), ratio: number(COLOURS.ratio.value(token)),
    advantage: number(token.advantage), entropy: number(token.entropy), version: number(token.version), staleness: number(COLOURS.version.value(token, episode)),
    ...(token.mark ? { "the loss": `${token.mark} it` } : {}),
  };
  return Object.entries(values).map(([name, value]) => [h("dt", {}, name), h("dd", {}, value)]).flat();
}

async function copy(tokens) {
  await navigator.clipboard.writeText(JSON.stringify(tokens, null, 1));
  tell(`${tokens.length} tokens copied`);
}

// Rewritten context begins a segment of its own.
function contexts(given, segments, segment, threads) {
  const tab = ([start, stop], index) => h("a", { href: address("episode", { ...given, segment: index }), "aria-current": index === segment ? "true" : null }, `Context ${index + 1}${threads ? `: ${threads[index]}` : ""}`, h("span", { class: "dim" }, ` ${stop - start} tokens`));
  return h("nav", { class: "tabs", "aria-label": "Contexts" }, segments.map(tab));
}

function group(siblings, episode, run, view) {
  const row = (one) => h("tr", { "aria-current": one.sample === episode.sample ? "true" : null },
    h("td", {}, h("a", { href: address("episode", placeOf(one, run, view)) }, `sample ${one.sample}${one.policy ? ` · ${one.role} · ${one.policy}` : ""}`)),
    h("td", {}, one.outcome), h("td", { class: "number" }, number(one.reward)), h("td", {}, one.ended ?? "–"), h("td", { class: "text" }, one.response ?? one.failure_kind ?? "–"));
  const rewards = siblings.map((one) => one.reward).filter((reward) => reward !== null);
  const spread = rewards.length ? `reward ${number(Math.min(...rewards))} to ${number(Math.max(...rewards))}` : "no rewards";
  return h("div", {}, h("p", { class: "dim" }, spread), scroll("Its group", h("table", { id: "group" }, heads(["episode", "outcome", "reward", "ended", "reply"], ["reward"]), h("tbody", {}, siblings.map(row)))));
}
