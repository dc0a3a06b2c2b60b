"""The folder of a run: writes input files, reads output files, and measures its size."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import stat
from collections.abc import Callable, Mapping
from typing import Any

from rlhf.sandbox.confine import confine
from rlhf.sandbox.descendants import Unmeasured
from rlhf.sandbox.limits import SandboxLimits
from rlhf.sandbox.run_request import Jail

READ_BYTES = 1 << 16


class Inside(Exception):
    """An operation failed inside the jail."""


def write_files(files: Mapping[str, bytes]) -> None:
    """Write `files` to the current folder. Raises `OSError`, `RecursionError`."""
    for path, content in files.items():
        if folder := os.path.dirname(path):
            os.makedirs(folder, exist_ok=True)
        with open(path, "wb") as file:
            file.write(content)


def fetch_files(paths: tuple[str, ...], jail: Jail, limits: SandboxLimits) -> dict[str, bytes]:
    """Read the regular files among `paths` with the program's own rights, so that links give no further access. Raises
    `Inside`."""
    found = _in_the_jail(lambda: _read(paths, limits.fetched_bytes), jail, limits) if paths else {}
    return {path: base64.b64decode(content) for path, content in found.items()}


def disk_use(folder: str, most: int) -> tuple[int, int]:
    """Bytes and entries of a folder; counting stops after more than `most` entries. Raises `Unmeasured` if the folder
    has a subfolder that cannot be read, because the program removed its rights or its path is too long."""
    total, entries, waiting = 0, 0, [folder]
    while waiting and entries <= most:
        try:
            with os.scandir(waiting.pop()) as listing:
                for entry in listing:
                    with contextlib.suppress(FileNotFoundError):
                        about = entry.stat(follow_symlinks=False)
                        total, entries = total + about.st_blocks * 512, entries + 1
                        if stat.S_ISDIR(about.st_mode):
                            waiting.append(entry.path)
        except (FileNotFoundError, NotADirectoryError):
            continue  # removed in the meantime
        except OSError as error:
            raise Unmeasured(f"a folder that cannot be read ({error.strerror})") from None
    return total, entries


def _read(paths: tuple[str, ...], most: int) -> dict[str, str]:
    found: dict[str, str] = {}
    for path in paths:
        with contextlib.suppress(FileNotFoundError):
            content = _regular(path, most)
            most -= len(content)
            found[path] = base64.b64encode(content).decode()
    return found


def _regular(path: str, most: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise Inside(f"{path} is not a regular file")
        content = file.read(most + 1)
    if len(content) > most:
        raise Inside(f"the fetched files are larger than the sandbox hands back, {path} among them")
    return content


def _in_the_jail(work: Callable[[], Any], jail: Jail, limits: SandboxLimits) -> Any:
    """Run `work` in a child process that is confined like the program, and return its result."""
    receive, send = os.pipe()
    if (child := os.fork()) == 0:
        os.close(receive)
        _answer(send, work, jail, limits)
    os.close(send)
    with open(receive, "rb") as pipe:
        answer = json.loads(pipe.read() or b'{"failed": "it was killed"}')
    os.waitpid(child, 0)
    if "broken" in answer:
        raise OSError(answer["broken"])
    if "failed" in answer:
        raise Inside(answer["failed"])
    return answer["done"]


def _answer(send: int, work: Callable[[], Any], jail: Jail, limits: SandboxLimits) -> None:
    """Run `work` and send its outcome; never returns, because this process is a copy of the supervisor."""
    try:
        answer = _outcome(work, jail, limits)
        with open(send, "wb") as pipe:
            pipe.write(json.dumps(answer).encode())
    finally:
        os._exit(0)


def _outcome(work: Callable[[], Any], jail: Jail, limits: SandboxLimits) -> dict[str, Any]:
    try:
        confine(jail, limits)
    except OSError as error:
        return {"broken": f"the jail could not be closed: {error}"}
    try:
        return {"done": work()}
    except (OSError, Inside, MemoryError, RecursionError) as error:
        return {"failed": f"{type(error).__name__}: {error}"}
