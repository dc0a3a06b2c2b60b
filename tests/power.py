"""A disk that loses its power: of a folder, what a machine that went off would find there when it comes back.

While it is `watched`, every operation on files is a moment at which the power may go. What was synced is there
afterwards; of what was not, each file and each folder is found as it was at any moment since: old, new, cut short, or
in its new length and never filled. Renames within a folder are atomic, as they are on every file system with a journal.
"""

from __future__ import annotations

import io
import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import RLock
from typing import Any

import pytest

State = bytes | dict[str, int]
"""A file's content, or what a folder names: inodes by name."""
OPEN = io.open
OPERATIONS = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir", "truncate", "ftruncate")


class PowerCut(BaseException):
    """Nothing of the program runs any more."""


class Disk:
    """The states of every file and folder below `root` since it was last synced, the synced one first."""

    def __init__(self, root: Path, cut_at: int | None = None) -> None:
        """The power goes before operation number `cut_at`, from 1."""
        self.root, self._cut_at = root, cut_at
        self.operations = 0
        self._one = RLock()  # records and checkpoints are written by several threads
        self._states: dict[int, list[State]] = {}
        self._held: list[int] = []
        self._look()
        self._states = {inode: states[-1:] for inode, states in self._states.items()}

    @contextmanager
    def watched(self) -> Iterator[Disk]:
        """The operations of this process are those of the disk."""
        try:
            with pytest.MonkeyPatch.context() as patch:
                for name in OPERATIONS:
                    patch.setattr(os, name, self._moment(getattr(os, name), synced=name == "fsync"))
                patch.setattr(io, "open", self._moment(OPEN))
                yield self
        finally:
            for descriptor in self._held:
                os.close(descriptor)

    def found(self, place: Path, rng: random.Random) -> Path:
        """What is left of `root` when the power comes back, made in `place`."""
        careless = rng.choice((0.0, 0.5, 1.0))  # how much of what was not asked for had come to the disk

        def make(inode: int, path: Path) -> None:
            states = self._states[inode]
            state = states[0] if rng.random() >= careless else rng.choice(states)
            if isinstance(state, dict):
                path.mkdir()
                for name, below in state.items():
                    make(below, path / name)
                return
            last = states[-1]
            assert isinstance(last, bytes)
            if len(states) > 1 and len(last) > len(state) and rng.random() < careless:
                grown = rng.randrange(len(state), len(last) + 1)
                state = rng.choice((last[:grown], last[: len(state)] + bytes(grown - len(state))))
            path.write_bytes(state)

        make(os.stat(self.root).st_ino, place)
        return place

    def _moment(self, real: Callable[..., Any], *, synced: bool = False) -> Callable[..., Any]:
        def operation(*arguments: Any, **named: Any) -> Any:
            if real is OPEN and str(named.get("mode", arguments[1] if len(arguments) > 1 else "r")).startswith("r"):
                return real(*arguments, **named)
            with self._one:
                self.operations += 1
                if self._cut_at is not None and self.operations >= self._cut_at:
                    if self.operations == self._cut_at:
                        self._look()
                    raise PowerCut
                answer = real(*arguments, **named)
                self._look()
                if synced and (states := self._states.get(os.fstat(arguments[0]).st_ino)):
                    del states[:-1]
                return answer

        return operation

    def _look(self) -> None:
        pending = [str(self.root)]
        while pending:
            folder = pending.pop()
            listing = {}
            for entry in list(os.scandir(folder)):
                listing[entry.name] = inode = entry.inode()
                if entry.is_dir():
                    self._hold(inode, entry.path, {})
                    pending.append(entry.path)
                else:
                    self._hold(inode, entry.path, b"")
                    self._note(inode, _content(entry.path))
            self._hold(os.stat(folder).st_ino, folder, {})
            self._note(os.stat(folder).st_ino, listing)

    def _hold(self, inode: int, path: str, empty: State) -> None:
        """Keep what is new open: its inode's number is then nobody else's, though it be deleted."""
        if inode not in self._states:
            self._held.append(os.open(path, os.O_RDONLY))
            self._states[inode] = [empty]

    def _note(self, inode: int, state: State) -> None:
        if self._states[inode][-1] != state:
            self._states[inode].append(state)


def _content(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 1 << 24)
    finally:
        os.close(descriptor)
