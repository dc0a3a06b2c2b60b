"""Standard output and error, which may fail: a terminal is closed, a pipe loses its reader, a disk is full, a locale
lacks a character. A run goes on without them; a command that only prints ends quietly."""

from __future__ import annotations

import locale
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from io import TextIOWrapper
from typing import Any, TextIO, cast

from rlhf.errors import LOG


class Console:
    """A text stream that writes `?` for what its encoding lacks. From its first failure on it writes nothing: the log
    says so once; where it `ends` the program, the next text does."""

    def __init__(self, stream: TextIO | None, *, ends: bool) -> None:
        self.stream = stream or open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - for the rest of the process
        if isinstance(self.stream, TextIOWrapper) and self.stream.isatty():
            self.stream.reconfigure(encoding=locale.getencoding())  # of the terminal: files are UTF-8 whatever it is
        self._ends, self._told = ends, False
        self._failure: OSError | ValueError | None = None if stream else ValueError("it is closed")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    @property
    def buffer(self) -> Console:
        return Console(cast(TextIO, self.stream.buffer), ends=self._ends)

    def write(self, text: str) -> int:
        try:
            if not self._failure:
                self.stream.write(text)
        except UnicodeEncodeError:
            return self.write(text.encode(self.stream.encoding, "replace").decode(self.stream.encoding))
        except (OSError, ValueError) as error:
            self._fail(error)
        if self._failure:
            self._go_on(self._failure)
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        try:
            if not self._failure:
                self.stream.flush()
        except (OSError, ValueError) as error:
            self._fail(error)
            self._go_on(error)

    def _fail(self, error: OSError | ValueError) -> None:
        self._failure = error
        with suppress(OSError, ValueError):  # the interpreter flushes at its end what waits
            os.dup2(os.open(os.devnull, os.O_WRONLY), self.stream.fileno())

    def _go_on(self, failure: OSError | ValueError) -> None:
        if self._ends and isinstance(failure, BrokenPipeError):
            sys.exit(128 + signal.SIGPIPE)
        if self._ends:
            sys.exit(f"error: standard output cannot be written: {failure}")
        if LOG.handlers and not self._told:
            self._told = True
            LOG.error("the terminal or pipe of this program cannot be written (%s): it goes on without it", failure)


def lasting(stream: TextIO | None, *, ends: bool = False) -> TextIO:
    """Return a stream that does not fail; with `ends` the program ends where it would."""
    return cast(TextIO, Console(stream.stream if isinstance(stream, Console) else stream, ends=ends))
