"""Exclusive ownership of a run folder: the writing process holds a lease, and checks before every write that it still
does.

`owner/000003` names the third owner; the number is its fencing token, and the file with the highest number is valid. It
is created with `O_EXCL`, so that of two concurrent claims one fails, on every file system. Its owner touches it while
it is alive. A later process checks whether the owner's process exists (on the same machine), or whether the file is
still touched (from another machine: it watches the file, without comparing clocks). The claim is written before the
run's first write, and checked before every irreversible step.
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
"""An owner on another machine whose file is not touched for this long is considered dead: six missed heartbeats."""
LOOK_SECONDS = 0.5
Notify = Callable[[str], None]


def silent(words: str) -> None:
    """A `tell` that discards its message."""


def machine() -> str:
    """Identifies the scope in which process ids are unique: this boot of this machine, and this container on it."""
    with contextlib.suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def began(pid: int) -> int | None:
    """Return the start time of a process, in the kernel's ticks since boot; None when it has ended, or is not
    visible."""
    try:
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, PermissionError, ProcessLookupError):
        return None
    return None if state in ("Z", "X") else int(fields[18])


def is_hidden(pid: int) -> bool:
    """Whether the process exists but is not visible, because it belongs to another user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return began(pid) is None
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What an owner records about itself."""

    host: str = field(default_factory=socket.gethostname)
    machine: str = field(default_factory=machine)
    pid: int = field(default_factory=os.getpid)
    began: int | None = field(default_factory=lambda: began(os.getpid()))
    since: str = field(default_factory=lambda: time.strftime("%Y-%m-%d %H:%M:%S"))
    token: str = field(default_factory=lambda: uuid4().hex)
    ended: bool = False
    """Whether the owner has released the folder."""

    def describe(self) -> str:
        """Return the owner, as text for people."""
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
        """Raises `RunTaken` when this process is no longer the owner. Opens the file: a network file system may cache a
        name for a minute, but opening a file asks the server."""
        path = self._folder / name(self.fence)
        found = read_claim(path)
        if found is None or found.token != self._claim.token or (self._folder / name(self.fence + 1)).exists():
            other = read_claim(self._folder / name(newest_fence(self._folder)))
            what = f"now belongs to {other.describe()}" if other else "was moved or deleted"
            raise RunTaken(f"{self._folder.parent} {what}: this run ends, and changes nothing more in it")

    def moved(self, run: Path) -> None:
        """The folder was renamed to `run`."""
        self._folder = run / FOLDER

    def give_back(self) -> None:
        """Release the ownership. The next owner need not watch the file."""
        self._ended.set()
        self._touching.join()
        with contextlib.suppress(RunTaken, OSError):  # if it is lost, or cannot be written, nothing is left to release
            self.check()
            path = self._folder / name(self.fence)
            with path.open("r+") as file:
                file.write(json.dumps(asdict(replace(self._claim, ended=True))))
                file.truncate()

    def _touch(self) -> None:
        while not self._ended.wait(TOUCH_SECONDS):
            with contextlib.suppress(OSError):  # `check` reports the problem where it matters
                os.utime(self._folder / name(self.fence))


def name(fence: int) -> str:
    """Return the file name of the claim with that fencing token."""
    return f"{fence:06d}"


def write_claim(path: Path, claim: Claim) -> bool:
    """Create the claim's file; False when it existed already. Raises `OSError`, and leaves no file then."""
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
    """Return the fencing token of the valid claim; 0 where there never was one."""
    try:
        return max((int(entry) for entry in os.listdir(folder) if entry.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def read_claim(path: Path) -> Claim | None:
    """Return the claim in a file; None when it is missing or incomplete. Raises `OSError`."""
    try:
        return Claim(**json.loads(path.read_text()))
    except (FileNotFoundError, NotADirectoryError, ValueError, TypeError):
        return None
    except OSError as error:
        if error.errno == errno.ESTALE:  # of a file that another host deleted
            return None
        raise


def lives(path: Path, tell: Notify, watch_seconds: float) -> bool:
    """Whether the owner that `path` names is alive. Takes `watch_seconds` when it may be on another machine."""
    claim = read_claim(path)
    if claim is not None and claim.ended:
        return False
    if claim is not None and claim.machine == machine() and not is_hidden(claim.pid):
        return began(claim.pid) == claim.began
    if claim is not None:
        tell(f"{path.parent.parent} belonged to {claim.describe()}: watching for {watch_seconds:g} s if it still does")
    return touched(path, watch_seconds)


def touched(path: Path, seconds: float) -> bool:
    """Whether a file is touched, or replaced by a newer owner's, while it is watched."""
    before, until = stamp(path), time.monotonic() + seconds
    while time.monotonic() < until:
        time.sleep(min(LOOK_SECONDS, seconds))
        if stamp(path) != before:
            return True
    return False


def stamp(path: Path) -> tuple[int, int] | None:
    """Time of the last touch, and size. The file is opened, so that a network file system asks its server."""
    try:
        with path.open() as file:
            found = os.stat(file.fileno())
        return found.st_mtime_ns, found.st_size
    except OSError:
        return None
