"""Result lines of tests: `signature index passed|failed detail`."""

from __future__ import annotations

import hashlib
import os

LONGEST_COMPLAINT, SHORT_COMPLAINT = 300, 60
PROSE = 1 << 19
"""So many bytes of complaints are written as they are, later ones short: what the sandbox keeps of the output is
bounded."""
NEVER_ASKED = "the test never asks the code for anything"


class Verdicts:
    """Writes result lines to what is standard output now, and leaves none to anybody else. Whoever reads the lines
    cannot write others, since the key is in none of them."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "wb", buffering=0)
        self._left = PROSE
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in range(3):
            os.dup2(nowhere, standard)

    def write(self, key: str, index: int, complaint: str) -> None:
        """The result of a test: it passes if there is no complaint."""
        why = " ".join(complaint.split()).encode("ascii", "backslashreplace").decode()
        why, self._left = why if len(why) <= self._left else why[:SHORT_COMPLAINT], self._left - len(why)
        line = f"{index} {'failed' if complaint else 'passed'} {''.join(filter(str.isprintable, why))}".rstrip()
        self._stream.write(f"{signature(key, line)} {line}\n".encode())


def signature(key: str, line: str) -> str:
    """The keyed hash of a result line. It includes the index, so a line cannot be reused for another test."""
    return hashlib.blake2b(line.encode(errors="replace"), key=bytes.fromhex(key), digest_size=16).hexdigest()


def in_a_line(error: BaseException) -> str:
    """What an exception says. Python's own `traceback` would look into more of it than its text."""
    try:
        said = str(error)
    except Exception:  # noqa: BLE001 - an exception of the code that cannot be shown
        said = ""
    return f"{type(error).__name__}{': ' if said else ''}{said}"[:LONGEST_COMPLAINT]
