"""Recorded episodes as text: a table with a line for each, or one in full. No text of a model does anything in them."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rlhf.config import flatten, load_yaml
from rlhf.runs.folder import RunFolder
from rlhf.runs.image_files import recorded_text
from rlhf.runs.view import format_number
from rlhf.types import MAIN_THREADS
from rlhf.untrusted_text import escape_controls, escape_to_line

TABLE_COLUMNS = ("update", "task", "sample", "outcome", "reward", "sampled_tokens AS tokens", "answer", "response")
CELL = 60
"""Longest cell of the table in characters."""
EXPLAINING = {
    "expected": "answer", "detail": "reward_detail", "failed": "failure_kind", "because": "failure_detail",
}  # fmt: skip
"""Labels of the lines that explain an episode, with their columns."""
NUMBER = ".4g"
UNSURE = 3
"""Number of the least likely tokens that are shown of an episode."""

RecipeSettings = Mapping[str, Any]
"""The values of a recipe by their dotted keys; none if the recipe is unknown."""


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the rows as a table of aligned cells, each on one line and at most `CELL` long."""
    if not rows:
        yield "no episodes"
        return
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def episode_text(
    row: Mapping[str, Any], text_of: Callable[[int], str], settings_of: Callable[[Mapping[str, Any]], RecipeSettings]
) -> str:
    """Return an episode as text: its place and reward, its messages, and the tokens that were least likely."""
    ended = why_ended(row, settings_of(row))
    head = [
        f"update {row['update']}" if row["update"] else f"version {row['admitted_version']}",
        row["task"],
        f"sample {row['sample']}",
        *([f"role {row['role']}"] if row["role"] else []),
        row["outcome"],
        *([ended] if ended else []),
        f"reward {reward_text(row)}",
        f"{_cell(row['sampled_tokens'])} tokens",
    ]
    lines = ["── " + " · ".join(escape_to_line(str(word)) for word in head)]
    lines += [f"[{escape_to_line(role)}] {_indented(text)}" for role, text in said_in(row)]
    lines += [f"[{name}] {_indented(str(row[key]))}" for name, key in EXPLAINING.items() if row[key]]
    side = Counter(one for one in row.get("segment_threads") or () if one not in MAIN_THREADS)
    lines += [f"[other calls] {', '.join(f'{name} x{count}' for name, count in side.items())}"] if side else []
    if unsure := _least_likely(row, text_of):
        lines.append(f"[least likely] {unsure}")
    return "\n".join(lines) + "\n"


def reward_text(row: Mapping[str, Any]) -> str:
    """Return the reward of an episode, with its parts."""
    parts = ", ".join(f"{name} {format_number(value, NUMBER)}" for name, value in (row["reward_parts"] or {}).items())
    return format_number(row["reward"], NUMBER) + (f" ({parts})" if parts else "")


def said_in(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the messages of an episode, each as its role and its text with files of images and with tool calls."""
    said = row["conversation"] or [*row["prompt"], {"role": "assistant", "content": row["response"] or ""}]
    calls = [[f"→ {call['name']}({call['arguments']})" for call in one.get("tool_calls") or ()] for one in said]
    texts = [recorded_text(one, row.get("images")) for one in said]
    return [(one["role"], "\n".join([text, *own])) for one, text, own in zip(said, texts, calls, strict=True)]


def why_ended(row: Mapping[str, Any], settings: RecipeSettings) -> str | None:
    """Return why an episode ended, with the setting that cut it off; None if it was not played. The records do not name
    the limit: it is the one that the episode has reached."""
    if row["status"] is None:
        return None
    if row["status"] == "terminated":
        own = next((part for part in ("agent", "environment") if _has(settings, part)), "model")
        return f"ended by {f'the {own}' if settings else 'itself'}"
    if key := next(_limits_reached(row, settings), None):
        return f"cut off by {key} = {settings[key]:g}"
    if not settings or _has(settings, "agent"):
        return "cut off by a limit of tokens, turns or time"
    others = ["another role"] if row["role"] not in (None, "agent") else []
    others += ["the environment"] if _has(settings, "environment") else []
    return f"cut off by {' or '.join([*others, 'the end of the context'])}"


def _limits_reached(row: Mapping[str, Any], settings: RecipeSettings) -> Iterator[str]:
    """Iterate over the keys of the limits that a truncated episode has reached, the likeliest first."""
    turns = row["turns"] or ()
    last = turns[-1]["stop"] - turns[-1]["start"] if turns else 0
    own = [f"data.eval.{row['evaluation_set']}.max_tokens", "data.eval.max_tokens"] if row["evaluation_set"] else []
    longest = next((key for key in (*own, "sampling.max_tokens") if settings.get(key)), "")
    reached = {
        longest: last,
        "environment.max_turns": len(turns),
        "environment.episode_timeout_seconds": row["environment_seconds"] or 0,
        "agent.timeout_seconds": row["generate_seconds"] or 0,
        "rollout.generate_timeout_seconds": row["generate_seconds"] or 0,
        "rollout.max_context_tokens": turns[-1]["stop"] if turns else 0,
        "model.tiny.max_position_embeddings": turns[-1]["stop"] if turns else 0,
    }
    yield from (key for key, value in reached.items() if settings.get(key) and value >= settings[key])


def _has(settings: RecipeSettings, part: str) -> bool:
    """Whether a recipe has that part, which is null without it."""
    return any(key.startswith(f"{part}.") for key in settings)


def played_by(run: Path) -> Callable[[Mapping[str, Any]], RecipeSettings]:
    """Return the function that gives the settings with which a run played an episode."""
    folder = RunFolder(run)
    files = [*folder.earlier_recipes, (math.inf, folder.recipe)]
    known = [(last, dict(flatten(load_yaml(file.read_text())))) for last, file in files if file.is_file()]
    return lambda row: next((settings for last, settings in known if row["admitted_version"] < last), {})


def token_text(run: Path) -> Callable[..., str]:
    """Return the function that gives the text of tokens: the run's tokenizer, or else their numbers."""
    file = run / "tokenizer" / "tokenizer.json"
    if not file.is_file():
        return lambda *tokens: " ".join(map(str, tokens))
    tokenizer = Tokenizer.from_file(str(file))
    return lambda *tokens: tokenizer.decode(tokens, skip_special_tokens=False)


def _indented(text: str) -> str:
    """Return a text whose lines cannot be taken for labels."""
    return escape_controls(text).replace("\n", "\n  ")


def _least_likely(row: Mapping[str, Any], text_of: Callable[[int], str]) -> str:
    logprobs = row["proximal_logprobs"] or row["behaviour_logprobs"] or ()
    places = sorted((value, place) for place, value in enumerate(logprobs) if value is not None)[:UNSURE]
    texts = [json.dumps(text_of(row["token_ids"][place]), ensure_ascii=False) for _, place in places]
    told = [f"{text} at token {place} ({value:.2f})" for text, (value, place) in zip(texts, places, strict=True)]
    return escape_controls(", ".join(told))


def _cell(value: object) -> str:
    text = format_number(value, NUMBER) if isinstance(value, float | None) else escape_to_line(str(value))
    return text if len(text) <= CELL else text[: CELL - 1] + "…"
