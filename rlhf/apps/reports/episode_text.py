"""Recorded episodes as text: a table with a line for each, or one in full. No text of a model does anything in them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from rlhf.runs.view import format_number
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


def table_lines(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Return the rows as a table of aligned cells, each on one line and at most `CELL` long."""
    if not rows:
        yield "no episodes"
        return
    cells = [list(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for line in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def episode_text(row: Mapping[str, Any], text_of: Callable[[int], str]) -> str:
    """Return an episode as text: its place and reward, its messages, and the tokens that were least likely."""
    head = [
        f"update {row['update']}" if row["update"] else f"version {row['admitted_version']}",
        row["task"],
        f"sample {row['sample']}",
        row["outcome"],
        f"reward {reward_text(row)}",
        f"{_cell(row['sampled_tokens'])} tokens",
    ]
    lines = ["── " + " · ".join(escape_to_line(str(word)) for word in head)]
    lines += [f"[{escape_to_line(role)}] {_indented(text)}" for role, text in said_in(row)]
    lines += [f"[{name}] {_indented(str(row[key]))}" for name, key in EXPLAINING.items() if row[key]]
    if unsure := _least_likely(row, text_of):
        lines.append(f"[least likely] {unsure}")
    return "\n".join(lines) + "\n"


def reward_text(row: Mapping[str, Any]) -> str:
    """Return the reward of an episode, with its parts."""
    parts = ", ".join(f"{name} {format_number(value, NUMBER)}" for name, value in (row["reward_parts"] or {}).items())
    return format_number(row["reward"], NUMBER) + (f" ({parts})" if parts else "")


def said_in(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the messages of an episode, each as its role and its text with tool calls."""
    said = row["conversation"] or [*row["prompt"], {"role": "assistant", "content": row["response"] or ""}]
    calls = [[f"→ {call['name']}({call['arguments']})" for call in one.get("tool_calls") or ()] for one in said]
    return [(one["role"], "\n".join([one["content"] or "", *own])) for one, own in zip(said, calls, strict=True)]


def token_text(run: Path) -> Callable[[int], str]:
    """Return the function that gives a token's text: the run's tokenizer, or else the token's number."""
    file = run / "tokenizer" / "tokenizer.json"
    if not file.is_file():
        return str
    tokenizer = Tokenizer.from_file(str(file))
    return lambda token: tokenizer.decode([token], skip_special_tokens=False)


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
