"""Standard output and error, which may fail: a terminal is closed, a pipe loses its reader, a disk is full, a locale
lacks a character. A run continues without them; a command that only prints ends quietly."""

from __future__ import annotations

import errno
import locale
import os
import signal
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO, TextIOWrapper
from typing import Any, TextIO

from rlhf.errors import LOG


class LastingFile(FileIO):
    """The file of a stream. After its first failure it accepts everything and writes nothing. The log reports this
    once; if it `ends` the program, that ends."""

    def __init__(self, descriptor: int) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.ends, self._told = False, False
        self._failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            if self._failure is None:
                if (written := super().write(data)) is None:
                    raise BlockingIOError(errno.EAGAIN, "it stopped accepting output")
                return written
        except OSError as error:
            self._failure = error
            with suppress(OSError):  # for others that write there, such as children
                os.dup2(os.open(os.devnull, os.O_WRONLY), self.fileno())
        if self.ends:
            self.ends = False  # the interpreter flushes at its end what waits
            quiet = isinstance(self._failure, BrokenPipeError)
            sys.exit(128 + signal.SIGPIPE if quiet else f"error: standard output cannot be written: {self._failure}")
        if LOG.handlers and not self._told:
            self._told = True
            what = "the terminal or pipe of this program cannot be written"
            LOG.error("%s (%s): the run continues without it", what, self._failure)
        return len(data)


class Console(TextIOWrapper):
    """A text stream on a `LastingFile`; it writes `?` for what its encoding lacks."""

    def __init__(self, file: LastingFile, encoding: str, *, by_line: bool) -> None:
        super().__init__(BufferedWriter(file), encoding, "replace", line_buffering=by_line)
        self.file = file


def lasting(stream: TextIO | None, *, ends: bool = False) -> TextIO:
    """Return a replacement of standard output or error that does not fail; with `ends` the program ends instead. A
    stream set by a notebook or a test stays."""
    if stream is None:  # it was closed when the interpreter began
        stream = Console(LastingFile(os.open(os.devnull, os.O_RDONLY)), "utf-8", by_line=True)
    elif type(stream) is TextIOWrapper:
        stream.flush()
        encoding = locale.getencoding() if stream.isatty() else stream.encoding  # files are UTF-8 whatever the locale
        by_line = stream.line_buffering or stream.write_through
        stream = Console(LastingFile(stream.fileno()), encoding, by_line=by_line)
    if isinstance(stream, Console):
        stream.file.ends = ends
    return stream
