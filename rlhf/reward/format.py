"""Check the format of a reply: tagged blocks, each once, in order, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tagged_blocks(response: str, row: Mapping[str, Any]) -> float:
    """1 when the reply consists of one block `<tag>…</tag>` for each of `row["tags"]`, in order, none empty, with only
    whitespace between them; else 0. A tag within a block counts as a second one, so an answer cannot be hidden in
    another block. Linear in the length of the reply."""
    rest = response.strip()
    for tag in row["tags"]:
        opening, closing = f"<{tag}>", f"</{tag}>"
        if response.count(opening) != 1 or response.count(closing) != 1 or not rest.startswith(opening):
            return 0.0
        content, closed, rest = rest.removeprefix(opening).partition(closing)
        if not closed or not content.strip() or _has_tag(content, row["tags"]):
            return 0.0
        rest = rest.lstrip()
    return float(not rest)


def _has_tag(content: str, tags: tuple[str, ...]) -> bool:
    return any(mark in content for tag in tags for mark in (f"<{tag}>", f"</{tag}>"))
