"""A run's checkpoint: ranks' state, counters and records are on disk before a manifest refers to them."""

from __future__ import annotations

import asyncio
import errno
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rlhf.controller.trainer_state import TRAINER_STATE, TrainerState, read_trainer_state, write_trainer_state
from rlhf.durable import sync_file, sync_folder, synced
from rlhf.errors import CheckpointError, DeadlinePassed, DiskFailed, SaveFailed, WorkerFailed
from rlhf.protocols import Saves
from rlhf.runs.folder import RunFolder
from rlhf.trainer.checkpoint import checkpoints, is_whole, prune, read_checkpoint, unfinished, write_checkpoint
from rlhf.types import PolicyVersion, Written

FULL_BYTES = 1 << 20
"""Less free space than this counts as a full disk, for any error that a library reports."""
OF_DISKS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE,
)  # fmt: skip
"""Error codes of a file system that cannot or must not write."""


async def save_run(
    folder: RunFolder,
    learner: Saves,
    trainer_state: TrainerState,
    *,
    version: PolicyVersion,
    next_ordinal: int,
    outstanding: tuple[int, ...],
    keep: int,
    copied: Callable[[], object],
) -> Path:
    """Write a new checkpoint; when it is complete, and its trainer state can be read, delete the oldest.

    It calls `copied` when the learner may train on. Raises `SaveFailed`, which says from which checkpoint the run can
    be resumed.
    """

    async def save(path: Path) -> Mapping[str, Written]:
        writing = await learner.snapshot(path)
        copied()
        written = await writing
        write_trainer_state(path, trainer_state)
        await asyncio.to_thread(sync_records, folder, trainer_state)
        return {**written, **synced(path, [path / TRAINER_STATE])}

    try:
        finished = await write_checkpoint(
            folder.checkpoints,
            version=version,
            next_ordinal=next_ordinal,
            outstanding=outstanding,
            save=save,
            mark=f"-{folder.owner.fence}" if folder.owner else "",
            may_write=folder.check,
        )
        read_trainer_state(finished)
        read_checkpoint(finished)
        await asyncio.to_thread(prune, folder.checkpoints, keep, folder.check)
        return finished
    except (OSError, CheckpointError, DeadlinePassed, DiskFailed, WorkerFailed) as error:
        why = f"version {version} cannot be saved: {cause(error, folder)}; {intact(folder)}"
        await asyncio.to_thread(make_room, folder)
        raise SaveFailed(why) from error


def make_room(folder: RunFolder) -> None:
    """Delete the incomplete checkpoint, so that a summary may fit on a full disk."""
    folder.check()
    for path in unfinished(folder.checkpoints):
        shutil.rmtree(path, ignore_errors=True)


def sync_records(folder: RunFolder, trainer_state: TrainerState) -> None:
    """Sync the record files that the trainer state counts, and the file names in and around the run folder."""
    for name in trainer_state.lines:
        sync_file(folder.path / name)
    for path in (folder.checkpoints, folder.path, folder.path.parent):
        sync_folder(path)


@contextmanager
def saying_what_is_intact(folder: RunFolder) -> Iterator[None]:
    """End a run whose disk is full, or refuses writes, with a one-line error. Raises `DiskFailed` for such an
    `OSError`."""
    try:
        yield
    except (OSError, DiskFailed) as error:
        if isinstance(error, OSError) and error.errno not in OF_DISKS:
            raise
        raise DiskFailed(f"{cause(error, folder)}; {intact(folder)}") from error


def cause(error: Exception, folder: RunFolder) -> str:
    """Return why a write failed, as text: libraries that write tensors do not report a full disk."""
    if shutil.disk_usage(folder.path).free < FULL_BYTES:
        return f"the disk of {folder.path} is full"
    if isinstance(error, OSError):
        return f"{error.filename or folder.path} cannot be written ({error.strerror})"
    return str(error)


def intact(folder: RunFolder) -> str:
    """Return as text which parts of a run are complete."""
    found = next((path for path in reversed(checkpoints(folder.checkpoints)) if is_whole(path)), None)
    return f"{found} is intact, and --resume continues from it" if found else "no checkpoint was written before"
