"""What the audit compares within an episode: tokens, columns, texts, end and reward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import chain
from math import isclose

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from rlhf.recipe.schema import Recipe
from rlhf.reward.reward import QUICK
from rlhf.runs.folder import RunFolder
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from rlhf.types import EpisodeStatus, TokenKind

Texts = Callable[[Sequence[int] | str], str]
"""Returns the text of tokens, or a text as the tokenizer reads it, without added tokens and white space: templates
write and strip these."""
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
    acted = record.kinds == TokenKind.ACTION
    wrong = [*_columns(record, acted, recipe)]
    yield from wrong or chain(_reward(record, recipe), _texts(record, acted, texts) if texts else ())
    if record.turns and record.turns[-1]["truncated"] != (record.status == EpisodeStatus.TRUNCATED):
        yield f"is {record.status}, and its last turn says otherwise"


def texts_of(folder: RunFolder) -> Texts | None:
    """Return the texts of the run's tokenizer; None without one."""
    file = folder.tokenizer / "tokenizer.json"
    if not file.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(file))
    added = [one.content for one in tokenizer.get_added_tokens_decoder().values()]

    @cache
    def read(text: str) -> str:
        return plain(tokenizer.encode(text, add_special_tokens=False).ids)

    def plain(tokens: Sequence[int] | str) -> str:
        if isinstance(tokens, str):
            return read(tokens)
        text = str(tokenizer.decode(tokens, skip_special_tokens=False))
        for one in added:
            text = text.replace(one, "")
        return "".join(text.split())

    return plain


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
    if any(texts(one["content"]) not in everything for one in heard if one["role"] in FROM_OUTSIDE):
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
    sampled = acted | (record.kinds == TokenKind.UNTRAINED)
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
