"""Durable writes: sync files and folders to disk before anything refers to them."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlhf.types import Written

READERS = 8
"""Number of files hashed concurrently: hashing releases the interpreter lock."""
NO_FOLDER_SYNC = (errno.EINVAL, errno.ENOTSUP, errno.EACCES)
"""Error codes of file systems that need no folder sync, and of folders without read permission."""


def private_folder(path: Path) -> None:
    """Make a folder that only its owner may enter; an existing folder keeps its mode."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)


def private(path: str, flags: int) -> int:
    """Open a file that only its owner may read; an `opener` for records, recipes and recordings."""
    return os.open(path, flags, 0o600)


def unguarded() -> None:
    """Allow every write; the default for `may_write`."""


def checksum(path: Path) -> str:
    """Return the BLAKE2b of a file's content in 32 hexadecimal digits."""
    digest = blake2b(digest_size=16)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def checksums(paths: Iterable[Path]) -> list[str]:
    """Return the checksums of many files, in their order."""
    with ThreadPoolExecutor(READERS) as readers:
        return list(readers.map(checksum, paths))


def sync_file(path: Path) -> None:
    """Wait until the content of a file is on disk, even if another process of this machine wrote it."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def sync_folder(path: Path) -> None:
    """Wait until the file names in a folder are on disk."""
    try:
        sync_file(path)
    except OSError as error:
        if error.errno not in NO_FOLDER_SYNC:
            raise


def sync_tree(root: Path) -> None:
    """Wait until the file names in `root` and in all folders below it are on disk."""
    for folder in sorted(path for path in root.rglob("*") if path.is_dir()):
        sync_folder(folder)
    sync_folder(root)


def synced(root: Path, paths: Iterable[Path]) -> dict[str, Written]:
    """Sync files of `root` that this machine wrote; return their sizes and checksums, by path within `root`."""
    from rlhf.types import Written  # a process that only writes does without numpy

    files = sorted(set(paths))
    for path in files:
        sync_file(path)
    return {
        str(path.relative_to(root)): Written(size=path.stat().st_size, checksum=own)
        for path, own in zip(files, checksums(files), strict=True)
    }


def files_below(root: Path) -> list[Path]:
    """Return every file below a folder."""
    return sorted(path for path in root.rglob("*") if path.is_file())


def sizes(root: Path) -> Mapping[str, int]:
    """Return the sizes in bytes of all files below a folder, by path within it."""
    return {str(path.relative_to(root)): path.stat().st_size for path in files_below(root)}


def write_durably(path: Path, text: str) -> None:
    """Replace the content of `path`, so that it has either all of the new text or its old content."""
    with whole(path) as temporary, open(temporary, "w", opener=private) as file:
        file.write(text)


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Provide the path of a temporary file. At the end of the block it is synced and takes the name `path`; a block
    that fails deletes it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with ExitStack() as failing:
        failing.callback(temporary.unlink, missing_ok=True)
        yield temporary
        sync_file(temporary)
        temporary.replace(path)
        failing.pop_all()
    sync_folder(path.parent)
