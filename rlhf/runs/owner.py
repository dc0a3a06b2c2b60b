"""Exclusive ownership of a run folder: the writing process holds a lease, and checks it before every write.

`owner/000003` is the claim of the third owner. The number is its fencing token; the file with the highest number is
valid. The owner creates it with `O_EXCL`, so that one of two concurrent claims fails on every file system, and touches
it regularly. A later process on the same machine checks whether the owner's process exists; on another machine it
watches whether the file is touched, without comparing clocks. The owner writes its claim before the run's first write,
and checks it before every irreversible step.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from uuid import uuid4

from rlhf.errors import RunTaken

FOLDER = "owner"
TOUCH_SECONDS = 5.0
WATCH_SECONDS = 30.0
"""An owner on another machine that does not touch its file for this long, six heartbeats, is considered dead."""
LOOK_SECONDS = 0.5
Notify = Callable[[str], None]


def silent(words: str) -> None:
    """Discard a message; the default for `tell`."""


def machine() -> str:
    """Identify the scope in which process ids are unique: the boot of this machine, and the container on it."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def began(pid: int) -> int | None:
    """Return the start time of a process, in the kernel's ticks since boot; None if it has ended or is hidden."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else int(fields[18])


def is_hidden(pid: int) -> bool:
    """Whether the process exists but is hidden, because it belongs to another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return began(pid) is None
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """An owner's record about itself."""

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=machine)
    pid: int = field(default_factory=os.getpid)
    began: int | None = field(default_factory=lambda: began(os.getpid()))
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
    token: str = field(default_factory=lambda: uuid4().hex)
    ended: bool = False
    """Whether the owner has released the folder."""

    def describe(self) -> str:
        """Describe the owner to users."""
        return f"process {self.pid} on {self.host}, since {self.since}"


class Owner:
    """This process as the owner of a run folder, from `claim` to `give_back`."""

    def __init__(self, folder: Path, fence: int, claim: Claim) -> None:
        self._folder, self.fence, self._claim = folder, fence, claim
        self._ended = threading.Event()
        self._touching = threading.Thread(target=self._touch, name="run-owner", daemon=True)
        self._touching.start()

    @classmethod
    def claim(cls, run: Path, tell: Notify = silent, watch_seconds: float = WATCH_SECONDS) -> Owner:
        """Own the existing run folder `run`. Raises `RunTaken` while another owner is alive."""
        folder = run / FOLDER
        folder.mkdir(exist_ok=True)
        while True:
            fence = newest_fence(folder)
            if fence and lives(folder / name(fence), tell, watch_seconds):
                found = read_claim(folder / name(fence))
                owner = found.describe() if found else "a process that has just begun"
                raise RunTaken(f"{run} belongs to {owner}: end that run first, or set run.dir to another folder")
            own = Claim()
            if not write_claim(folder / name(fence + 1), own):
                continue  # another process was faster: check its claim
            if newest_fence(folder) == fence + 1:
                (folder / name(fence)).unlink(missing_ok=True)
                return cls(folder, fence + 1, own)
            (folder / name(fence + 1)).unlink()  # while this process watched, others claimed and released it

    def check(self) -> None:
        """Raise `RunTaken` if this process is no longer the owner. Open the file, because a network file system may
        cache its name for a minute."""
        path = self._folder / name(self.fence)
        found = read_claim(path)
        if found is None or found.token != self._claim.token or (self._folder / name(self.fence + 1)).exists():
            other = read_claim(self._folder / name(newest_fence(self._folder)))
            what = f"now belongs to {other.describe()}" if other else "was moved or deleted"
            raise RunTaken(f"{self._folder.parent} {what}: this run ends without changing it further")

    def moved(self, run: Path) -> None:
        """Follow a rename of the folder to `run`."""
        self._folder = run / FOLDER

    def give_back(self) -> None:
        """Release the ownership, so that the next owner need not watch the file."""
        self._ended.set()
        self._touching.join()
        with contextlib.suppress(RunTaken, OSError):  # nothing to release if it is lost
            self.check()
            path = self._folder / name(self.fence)
            with path.open("r+") as file:
                file.write(json.dumps(asdict(replace(self._claim, ended=True))))
                file.truncate()

    def _touch(self) -> None:
        while not self._ended.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # `check` reports the problem if it matters
                os.utime(self._folder / name(self.fence))


def name(fence: int) -> str:
    """Return the file name of the claim with this fencing token."""
    return f"{fence:06d}"


def write_claim(path: Path, claim: Claim) -> bool:
    """Create the claim's file; return False if it exists. Raises `OSError`, after removing the file."""
    try:
        with path.open("x") as file:
            file.write(json.dumps(asdict(claim)))
    except FileExistsError:
        return False
    except OSError:
        path.unlink(missing_ok=True)
        raise
    return True


def newest_fence(folder: Path) -> int:
    """Return the fencing token of the valid claim, 0 without a claim."""
    try:
        return max((int(entry) for entry in os.listdir(folder) if entry.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def read_claim(path: Path) -> Claim | None:
    """Return the claim in a file; None if it is missing or incomplete. Raises `OSError`."""
    try:
        return Claim(**json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # another host deleted the file
            return None
        raise


def lives(path: Path, tell: Notify, watch_seconds: float) -> bool:
    """Whether the owner of the claim at `path` is alive. Takes `watch_seconds` if it may be on another machine."""
    claim = read_claim(path)
    if claim is not None and claim.ended:
        return False
    if claim is not None and claim.machine == machine() and not is_hidden(claim.pid):
        return began(claim.pid) == claim.began
    if claim is not None:
        tell(f"{path.parent.parent} belonged to {claim.describe()}: watching it for {watch_seconds:g} s")
    return touched(path, watch_seconds)


def touched(path: Path, seconds: float) -> bool:
    """Whether a file changes within `seconds`."""
    before, until = stamp(path), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(LOOK_SECONDS, seconds))
        if stamp(path) != before:
            return True
    return False


def stamp(path: Path) -> tuple[int, int] | None:
    """Return time of the last touch, and size. Open the file, so that a network file system asks its server."""
    try:
        with path.open() as file:
            found = os.stat(file.fileno())
        return found.st_mtime_ns, found.st_size
    except OSError:
        return None
