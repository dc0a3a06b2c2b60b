"""The rendezvous file: how the nodes of one cluster find its head, through a small file in a shared folder."""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rlhf.durable import write_durably
from rlhf.errors import DeadlinePassed, RendezvousError, UserError

LOOK_SECONDS = 0.5
LEAST_TOKEN = 16
"""Smallest length of a token that is accepted as a secret."""
HEAD_SECONDS = 300.0
"""Deadline for the head's file to appear; the nodes of one job do not start at the same moment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadAddress:
    """A head's address: the `run` it belongs to, its `address` (host and port) on `interface`, and its host's name."""

    run: str
    address: str
    interface: str
    host: str


def publish(path: Path, rendezvous: HeadAddress) -> None:
    """Write the file atomically: a reader sees all of it or none."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_durably(path, json.dumps(asdict(rendezvous)) + "\n")


def read_head_address(path: Path, run: str) -> HeadAddress | None:
    """Return the file's content; None without a file. Raises `RendezvousError` for a damaged or another run's."""
    try:
        values = json.loads(path.read_text())
        found = HeadAddress(**values)
    except (ValueError, TypeError):
        raise RendezvousError(f"{path} is not a rendezvous file; remove it") from None
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ESTALE):  # ESTALE: another host of the shared folder replaced it
            return None
        raise RendezvousError(f"cannot read {path}: {error.strerror}") from None
    if found.run != run:
        raise RendezvousError(f"{path} belongs to run {found.run!r}, and this is run {run!r}; it is not joined")
    return found


def is_there(path: Path) -> bool:
    """Whether the file exists. Any other error of a shared file system counts as existing."""
    try:
        path.stat()
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return True


def wait_for(path: Path, run: str, seconds: float, give_up: Callable[[], bool] = lambda: False) -> HeadAddress | None:
    """Wait for the head of `run` to publish itself. Returns None if `give_up` returns true first. Raises
    `DeadlinePassed`, and `RendezvousError` if the file belongs to another run."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not give_up():
        if found := read_head_address(path, run):
            return found
        time.sleep(LOOK_SECONDS)
    if give_up():
        return None
    raise DeadlinePassed(f"the head of run {run!r}, which is to write {path},", seconds)


def run_id() -> str:
    """Return the run that this process belongs to, from `RLHF_RUN_ID`. Raises `UserError`."""
    run = os.environ.get("RLHF_RUN_ID", "")
    if not run:
        raise UserError("RLHF_RUN_ID is not set; give the nodes of one run the same one, and no other run's")
    return run


def check_token() -> None:
    """Check that a token is set: a cluster without one would run anyone's code. Raises `UserError`."""
    if len(os.environ.get("RAY_AUTH_TOKEN", "")) < LEAST_TOKEN:
        raise UserError(
            f"RAY_AUTH_TOKEN is not set, or shorter than {LEAST_TOKEN} characters; export the same on all nodes"
        )


def joining(rendezvous: Path | None) -> list[str]:
    """Return the override for the cluster's address; empty without a file. Raises `UserError`, `DeadlinePassed`."""
    if rendezvous is None:
        return []
    check_token()
    found = wait_for(rendezvous.absolute(), run_id(), HEAD_SECONDS)
    return [f"cluster.address={found.address}"] if found else []
