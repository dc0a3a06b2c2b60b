"""Record the answers of servers and environments to a file, and replay them. A line is one `request` with its `answer`
or its `failure`, without a token. Equal requests get their answers in the recorded order."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlhf.durable import private
from rlhf.errors import RecordingError
from rlhf.http.config import RecordingConfig, check_recording

Encode = Callable[[Any], str]
"""Writes plain data as one line of JSON."""


class RecordedFailure(Exception):
    """The recorded request failed. `kind` is one word, `detail` a sentence."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind, self.detail = kind, detail


class Recorder:
    """Writes each request with its outcome, at once, to a new file that only its owner may read. Raises
    `RecordingError` for a file that exists already or cannot be written."""

    def __init__(self, path: Path, encode: Encode = json.dumps) -> None:
        self._encode = encode
        try:
            self._file = open(path, "x", encoding="utf-8", opener=private)  # noqa: SIM115
        except OSError as error:
            raise RecordingError(f"{path} cannot be written: {error.strerror}; name another recording.path") from None

    def answered(self, request: Any, answer: Any) -> None:
        self._write({"request": request, "answer": answer})

    def failed(self, request: Any, kind: str, detail: str) -> None:
        self._write({"request": request, "failure": {"kind": kind, "detail": detail}})

    def close(self) -> None:
        """Close the file. Later outcomes are dropped: an episode may still run after another one ended the run."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        if not self._file.closed:
            self._file.write(self._encode(line) + "\n")
            self._file.flush()


class Replay:
    """Gives the recorded answers of a file. Raises `RecordingError` for a file that is not a recording."""

    def __init__(self, path: Path, encode: Encode = json.dumps) -> None:
        self._path, self._encode = path, encode
        self._lines: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        try:
            for text in filter(None, path.read_text(encoding="utf-8").split("\n")):
                line = json.loads(text)
                if "answer" not in line:
                    RecordedFailure(**line["failure"])
                self._lines[self._key(line["request"])].append(line)
        except OSError as error:
            raise RecordingError(f"{path} cannot be read: {error.strerror}") from None
        except (ValueError, KeyError, TypeError) as error:
            raise RecordingError(f"{path} is not a recording: {error}; record it again") from None

    def answer(self, request: Any) -> Any:
        """Return the next recorded answer to an equal request. Raises `RecordedFailure`, and `RecordingError`."""
        lines = self._lines[self._key(request)]
        if not lines:
            raise RecordingError(
                f"{self._path} has no answer left to {self._encode(request):.300}; "
                "this run's requests differ from the recorded run's: record again"
            )
        line = lines.popleft()
        if "failure" in line:
            raise RecordedFailure(**line["failure"])
        return line["answer"]

    def close(self) -> None: ...

    def _key(self, request: Any) -> str:
        """Return the same text for equal requests, independent of the order of keys and of tuples."""
        return json.dumps(json.loads(self._encode(request)), sort_keys=True)


def open_recording(recording: RecordingConfig, encode: Encode = json.dumps) -> Recorder | Replay:
    """Return the recorder or the replay of these settings. Raises `RecordingError`."""
    check_recording(recording)
    make = Recorder if recording.mode == "record" else Replay
    return make(recording.file, encode)
