"""The process that writes a rank's part of a checkpoint; the rank's side of it is `rlhf.trainer.rank.snapshot`.

    python -m rlhf.trainer.rank.snapshot_writer PARENT

Standard input says what to write, standard output what was written. Only the standard library is imported: training
continues meanwhile, and a run waits for its last checkpoint.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from rlhf.cluster.child_side import die_with_parent
from rlhf.durable import checksums, sync_file

NICENESS = 5
"""Training goes first where cores are few."""


def write_copies(root: Path, files: Mapping[str, int | None]) -> dict[str, dict[str, int | str]]:
    """Write the copies, by descriptor, to their places, and sync all files; return the fields of each one's `Written`.
    The memory of a copy is given back at once."""
    for name, copy in files.items():
        if copy is not None:
            os.lseek(copy, 0, os.SEEK_SET)
            with open(copy, "rb+") as source, (root / name).open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 24)
                source.truncate(0)
        sync_file(root / name)
    digests = checksums(root / name for name in files)
    return {
        name: {"size": (root / name).stat().st_size, "checksum": digest}
        for name, digest in zip(files, digests, strict=True)
    }


def snapshot_writer_main(parent: int) -> None:
    die_with_parent(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the first Ctrl-C lets a run save
    os.nice(NICENESS)
    root, files = json.loads(sys.stdin.read())
    try:
        print(json.dumps({"written": write_copies(Path(root), files)}))
    except OSError as error:
        print(json.dumps({"failed": [error.errno, error.strerror, error.filename]}))


if __name__ == "__main__":
    snapshot_writer_main(int(sys.argv[1]))
