"""What the audit compares within an episode: tokens, columns, texts, end and reward."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import accumulate, chain, pairwise
from math import isclose
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlhf.chat.thinking import HEADER_TOKENS
from rlhf.chat.tool_calls import FORMATS
from rlhf.chat.tool_format_names import AUTO, OWN_FORMATS
from rlhf.images import IMAGE_MARK
from rlhf.recipe.schema import Recipe
from rlhf.reward.reward import QUICK
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.types import MAIN_THREADS, EpisodeStatus, TokenKind

Asked = dict[tuple[str | None, int], object]
"""Task, prompt and answer, by evaluation set and ordinal."""
ROUNDING = 1e-4
"""Of a log-prob, or an entropy, of 0 in float32."""
OF_THE_ENGINE = ("log-probs", "versions")
"""Columns of all sampled tokens; the others are those of the trained ones."""
OF_THE_PASS = ("log-probs of the learner", "entropies")
"""Columns that an episode lacks if no step of the policy used it."""
SIGNS = {"log-probs": -1, "log-probs of the learner": -1, "entropies": 1}
FROM_OUTSIDE = ("system", "user")
"""Roles whose messages every chat template writes as they are."""


def faults_of_episode(record: EpisodeRecord, recipe: Recipe, texts: Texts | None, asked: Asked) -> Iterator[str]:
    """Report what is wrong with an episode played under `recipe`. `asked` are the problems of earlier ones."""
    named = f"ordinal {record.ordinal} sample {record.sample}"
    problem = (record.task, [(one["role"], one["content"]) for one in record.prompt], record.answer)
    if asked.setdefault((record.evaluation_set, record.ordinal), problem) != problem:
        yield f"{named} has another problem than others of its group"
    yield from (f"{named} {fault}" for fault in _faults(record, recipe, texts))


def _faults(record: EpisodeRecord, recipe: Recipe, texts: Texts | None) -> Iterator[str]:
    if record.token_ids is None or record.kinds is None:
        if record.outcome is EpisodeOutcome.TRAINED:
            yield "was trained and has no tokens"
        return
    assigned = {} if isinstance(recipe.roles, str) else recipe.roles
    if record.policy and assigned and assigned.get(record.role or "") != record.policy:
        yield f"is of {record.role} and was played by {record.policy}, which roles does not say"
    acted = record.kinds == TokenKind.ACTION
    wrong = [*_columns(record, acted, recipe)] or [*_turns(record)]
    yield from wrong or _reward(record, recipe)
    if texts and not wrong:
        yield from chain(_texts(record, acted, texts), _replies(record, recipe, texts), _unsampled(record, texts))
    if record.turns and record.turns[-1]["truncated"] != (record.status == EpisodeStatus.TRUNCATED):
        yield f"is {record.status}, and its last turn says otherwise"


class Texts:
    """The texts of a run's tokenizer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer, self._read_calls = tokenizer, False
        self._added = [one.content for one in tokenizer.get_added_tokens_decoder().values()]
        self._tokens = cache(lambda text: tuple(tokenizer.encode(text, add_special_tokens=False).ids))
        self._exact = (json.loads(tokenizer.to_str())["decoder"] or {}).get("type") == "ByteLevel"

    def whole(self, tokens: Sequence[int]) -> str:
        """Return the text of tokens."""
        return str(self._tokenizer.decode(tokens, skip_special_tokens=False))

    def __call__(self, tokens: Sequence[int] | str) -> str:
        """Return the text of tokens, or a text as the tokenizer reads it, without added tokens and white space:
        templates write and strip these."""
        text = self.whole(self._tokens(tokens) if isinstance(tokens, str) else tokens)
        for one in self._added:
            text = text.replace(one, "")
        return "".join(text.split())

    def are_encoded(self, tokens: Sequence[int]) -> bool:
        """Whether the tokenizer encodes their text as these tokens; true for tokenizers that lose part of a text."""
        return not self._exact or self._tokens(self.whole(tokens)) == tuple(tokens)

    def reads(self, text: str, message: Mapping[str, Any]) -> bool:
        """Whether a format of ours reads this message in a reply; true for calls while none has read one of this run,
        whose format may be another."""
        calls = [(one["name"], one["arguments"]) for one in message.get("tool_calls", ())]
        parsed = [read(text, thinking=begun) for read in FORMATS.values() for begun in (False, True)]
        found = [([(call.name, call.arguments) for call in one.calls], self(one.beside)) for one in parsed]
        known = (calls, self(message["content"])) in found
        self._read_calls |= known and bool(calls)
        return (known and bool(calls or message["content"])) or (bool(calls) and not self._read_calls)


def texts_of(folder: RunFolder) -> Texts | None:
    """Return the texts of the run's tokenizer; None without one."""
    file = folder.tokenizer / "tokenizer.json"
    return Texts(Tokenizer.from_file(str(file))) if file.is_file() else None


def _turns(record: EpisodeRecord) -> Iterator[str]:
    """Report turns that are not the sampled tokens, each once, or not each a reply of the conversation."""
    left, said, replies = _sampled(record).astype(int), record.conversation or (), list[int | None]()
    for turn, thread, start, stop in _placed(record):
        left[start:stop] -= 1
        if turn.get("message") is not None or thread in MAIN_THREADS:
            replies.append(turn.get("message"))
    if record.turns and left.any():
        yield "has other turns than its sampled tokens, each once"
    known = {one for one in replies if one is not None and one < len(said) and said[one]["role"] == "assistant"}
    if replies.count(None) < len(replies) != len(known):
        yield "has turns that are not each a reply of its conversation"


def _placed(record: EpisodeRecord) -> Iterator[tuple[Mapping[str, Any], str, int, int]]:
    """Iterate over the turns, each with the kind of its context and with its range in the columns."""
    begins = [0, *accumulate(record.segment_lengths or ())]
    for turn in record.turns or ():
        number = turn["segment"]
        thread = record.segment_threads[number] if record.segment_threads else "main"
        yield turn, thread, begins[number] + turn["start"], begins[number] + turn["stop"]


def _sampled(record: EpisodeRecord) -> NDArray[np.bool_]:
    assert record.kinds is not None
    return np.isin(record.kinds, (int(TokenKind.ACTION), int(TokenKind.UNTRAINED)))


def _replies(record: EpisodeRecord, recipe: Recipe, texts: Texts) -> Iterator[str]:
    """Report where the tokens of a turn are not those of its message. A message that is no UTF-8 cannot be compared."""
    assert record.token_ids is not None
    played = recipe.environment or recipe.agent
    partly = record.cut_replies or (played is not None and played.tool_format not in (AUTO, *OWN_FORMATS))
    for turn, _, start, stop in _placed(record):
        if (place := turn.get("message")) is None or record.conversation is None:
            continue
        tokens, message = record.token_ids[start:stop].tolist(), record.conversation[place]
        text, last, said = texts.whole(tokens), texts(tokens), texts(message["content"])
        seen = texts(record.token_ids[max(start - HEADER_TOKENS, 0) : stop].tolist())  # a header may open the thinking
        same = said in last if partly else said.endswith(last) and seen.endswith(said)
        right = "\ufffd" in message["content"] or (same and (partly or not message.get("tool_calls")))
        if not right and not texts.reads(text, message):
            yield f"has tokens of another text than its message {place}"


def _unsampled(record: EpisodeRecord, texts: Texts) -> Iterator[str]:
    """Report tokens that were not sampled, and that the tokenizer does not give for their text. A context may begin
    with that of another, replies included. Replies under a grammar are no turns, so where they are is not known."""
    bounds = [0, *accumulate(record.segment_lengths or ())]
    own, turns = _sampled(record), [*_placed(record)]
    assert record.token_ids is not None
    for begin, end in pairwise(bounds if not record.constrained_replies else ()):
        tokens, sampled = record.token_ids[begin:end], own[begin:end].copy()
        for other, stop in pairwise(bounds):
            both = min(end - begin, stop - other)
            differ = np.flatnonzero(tokens[:both] != record.token_ids[other : other + both])
            agree = other + (int(differ[0]) if len(differ) else both)
            for _, _, first, last in turns:
                if other <= first and last <= agree:
                    sampled[first - other : last - other] = True
        for run in np.split(np.arange(len(tokens)), np.flatnonzero(np.diff(sampled)) + 1):
            if len(run) and not sampled[run[0]] and not texts.are_encoded(tokens[run].tolist()):
                yield f"has other tokens than those of their text, from token {begin + run[0]}"


def _texts(record: EpisodeRecord, acted: NDArray[np.bool_], texts: Texts) -> Iterator[str]:
    """Report where the tokens are not those of the prompt, or of the last reply."""
    assert record.token_ids is not None
    start, reply = 0, np.flatnonzero(acted)  # the segment of the last turn, and its sampled tokens
    if record.turns:
        turn = record.turns[-1]
        start = sum((record.segment_lengths or [])[: turn["segment"]])
        first = start + turn["start"]
        reply = first + np.flatnonzero(acted[first : start + turn["stop"]])
    said, last = texts(record.response or ""), texts(record.token_ids[reply].tolist())
    seen = texts(record.token_ids[start : max(reply, default=start - 1) + 1].tolist())  # a header may open the thinking
    forced = record.constrained_replies  # the last reply may be one of them, which is no turn
    if not (forced or (said in last if record.cut_replies else said.endswith(last) and seen.endswith(said))):
        yield "has tokens of another text than its reply"
    heard, everything = record.prompt, texts(record.token_ids.tolist())
    if said_in := record.conversation:  # what follows the last reply need not be tokens
        heard = said_in[: max((place for place, one in enumerate(said_in) if one["role"] == "assistant"), default=0)]
    parts = (part for one in heard if one["role"] in FROM_OUTSIDE for part in one["content"].split(IMAGE_MARK))
    if any(texts(part) not in everything for part in parts):
        yield "has tokens of another text than its prompt"


def _columns(record: EpisodeRecord, acted: NDArray[np.bool_], recipe: Recipe) -> Iterator[str]:
    """Report columns whose length differs from the tokens', which have values at tokens that were not sampled, or
    impossible values."""
    assert record.token_ids is not None
    length = len(record.token_ids)
    columns = {
        "log-probs": record.behaviour_logprobs, "versions": record.versions,
        "log-probs of the learner": record.proximal_logprobs, "entropies": record.entropies,
        "advantages": record.advantages,
    }  # fmt: skip
    there = {name: column for name, column in columns.items() if column is not None}
    wrong = [name for name, column in there.items() if len(column) != length]
    if wrong or len(acted) != length or sum(record.segment_lengths or ()) != length:
        yield f"has {length} tokens and other numbers of {', '.join(wrong) or 'kinds, or in its segments'}"
        return
    if record.sampled_tokens != acted.sum():
        yield f"says {record.sampled_tokens} sampled tokens and has {acted.sum()}"
    critic = recipe.trainer.critic
    waits = critic is not None and (record.update or 0) <= critic.warmup_updates
    sampled = _sampled(record)
    for name, column in there.items():
        known = column >= 0 if name == "versions" else np.isfinite(column)
        expected = sampled if name in OF_THE_ENGINE else acted
        if (known != expected).any() and not (waits and name in OF_THE_PASS and not known.any()):
            yield f"has {name} at other tokens than the sampled"
        elif (SIGNS.get(name, 0) * column[known] < -ROUNDING).any():
            yield f"has {name} that no distribution gives"
    if record.update and record.versions is not None and acted.any():
        oldest, newest = record.versions[acted].min(), record.versions[acted].max()
        bound = max(record.update - 1 - recipe.trainer.max_staleness, record.admitted_version)
        if not bound <= oldest <= newest < record.update:
            yield f"of update {record.update} has tokens of versions {oldest} to {newest}"
    mean = None if record.advantages is None else float(np.mean(record.advantages[acted], dtype=np.float64))
    if mean is not None and not isclose(mean, record.advantage or 0.0, rel_tol=1e-5, abs_tol=1e-6):
        yield f"has the mean advantage {record.advantage}, and that of its tokens is {mean:g}"


def _reward(record: EpisodeRecord, recipe: Recipe) -> Iterator[str]:
    """Report where the reward is not that of the reply, for rules that need nothing else, or of its parts."""
    config, parts, found = recipe.reward, record.reward_parts or {}, record.reward
    if found is not None and (rule := QUICK.get(config.kind)):
        found = rule(record.response or "", {"answer": record.answer, "pattern": config.pattern, "tags": config.tags})
    elif found is not None and parts.keys() == config.parts.keys() and parts:
        found = sum(part.weight * (parts[name] or 0.0) for name, part in config.parts.items())
    if found is not None and not isclose(found, record.reward or 0.0, rel_tol=1e-6, abs_tol=1e-6):
        yield f"has the reward {record.reward:g}, and its reply gives {found:g}"
