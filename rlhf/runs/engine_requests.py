"""Requests of `rlhf engines` to a running run: files in its folder, which the controller takes and answers.

A file reaches the controller from every machine that sees the run folder, without a port or a token.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal
from uuid import uuid4

from rlhf.durable import write_durably
from rlhf.errors import DeadlinePassed, UserError

ASKED, TAKEN, ANSWERED = ".asked", ".taken", ".answered"
POLL_SECONDS = 0.2
TAKE_SECONDS = 10.0
"""Time for a run that lives to take a request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesRequest:
    """`add` so many engines, `remove` the one of this name, or only `list` them."""

    do: Literal["add", "remove", "list"]
    count: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginesAnswer:
    """The names of the engines that serve afterwards; `refused` says why nothing was done."""

    serving: tuple[str, ...]
    refused: str = ""


def ask_run(folder: Path, request: EnginesRequest, seconds: float) -> EnginesAnswer:
    """Ask the run that writes to this folder, and wait for its answer. Raises `UserError` if none takes the request or
    the run refuses it, and `DeadlinePassed`."""
    folder.mkdir(exist_ok=True)
    asked = folder / f"{uuid4().hex}{ASKED}"
    write_durably(asked, json.dumps(asdict(request)))
    try:
        if not _until_gone(asked, TAKE_SECONDS):
            raise UserError(
                f"no run in {folder.parent} has taken the request within {TAKE_SECONDS:g} s: is it running?"
            )
        if not _until_gone(asked.with_suffix(TAKEN), seconds):
            raise DeadlinePassed(f"the run in {folder.parent}", seconds)
        row = json.loads(asked.with_suffix(ANSWERED).read_text())
    finally:
        for suffix in (ASKED, ANSWERED):
            asked.with_suffix(suffix).unlink(missing_ok=True)
    answered = EnginesAnswer(serving=tuple(row["serving"]), refused=row["refused"])
    if answered.refused:
        raise UserError(f"{answered.refused} (engines that serve: {', '.join(answered.serving)})")
    return answered


def taken_requests(folder: Path) -> list[tuple[Path, EnginesRequest]]:
    """Take the requests in a folder, each with the file to `answer` it by. Leave those that cannot be read, or are
    withdrawn meanwhile."""
    taken = []
    for asked in sorted(folder.glob(f"*{ASKED}")):
        with suppress(OSError, ValueError, TypeError):
            request = EnginesRequest(**json.loads(asked.read_text()))
            taken.append((asked.rename(asked.with_suffix(TAKEN)), request))
    return taken


def answer(taken: Path, answered: EnginesAnswer) -> None:
    """Answer a request that was taken, if the disk takes the answer."""
    with suppress(OSError):
        write_durably(taken.with_suffix(ANSWERED), json.dumps(asdict(answered)))
        taken.unlink()


def _until_gone(file: Path, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_SECONDS)
    return True
