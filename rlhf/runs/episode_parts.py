"""The records of episodes as Parquet files: one part for every update, and for every evaluation.

A thread converts and writes them while training continues. A part gets its name when it is complete and on disk.
"""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from itertools import chain
from pathlib import Path
from types import MappingProxyType

import pyarrow as pa
import pyarrow.parquet as pq

from rlhf.durable import private, private_folder, sync_file, sync_folder, unguarded
from rlhf.errors import DataError, DiskFailed
from rlhf.images import Image
from rlhf.runs.episode_records import EndedGroup, images_of, records_of
from rlhf.runs.episode_table import SCHEMA, check_version, records_in, table_of
from rlhf.runs.image_files import image_folder, write_images
from rlhf.runs.jsonl import read_jsonl
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord, record_of_row

NEVER_ADMITTED = (
    EpisodeOutcome.EVALUATED, EpisodeOutcome.SECOND_USE, EpisodeOutcome.BASELINE, EpisodeOutcome.SERVED,
)  # fmt: skip
"""Outcomes of records that are no episode of their own admitted for training."""
REPEATING = [
    *(field.name for field in SCHEMA if not pa.types.is_nested(field.type)),
    "kinds.list.element",
    "versions.list.element",
]
"""Columns that are dictionary and run-length encoded; log-probs and tokens hardly repeat."""
PARQUET_END = b"PAR1"
READ_AT_A_TIME = 64
"""Episodes that are decoded at a time: a part may hold more tokens than memory."""


class EpisodeParts:
    """Writes records to `part-000001.parquet`, … in `folder`, after those that are there, and counts outcomes, starting
    from `outcomes`.

    It calls `may_write` before each part, which raises if writing is forbidden. A failed write is raised by the next
    call of `cut`, `written` or `close`, as `DiskFailed`.
    """

    def __init__(
        self,
        folder: Path,
        outcomes: Mapping[str, int] = MappingProxyType({}),
        may_write: Callable[[], None] = unguarded,
    ) -> None:
        private_folder(folder)
        self._folder, self._may_write = folder, may_write
        self._outcomes = Counter({EpisodeOutcome(outcome): count for outcome, count in outcomes.items()})
        self._parts = max((part_number(path) for path in parts_in(folder)), default=0)
        self._waiting: list[EndedGroup] = []
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="episodes")
        self._writes: list[Future[None]] = []

    def add(self, *groups: EndedGroup) -> None:
        """Count the episodes of the groups, and keep them for the next part."""
        for group in groups:
            self._outcomes.update(group.outcomes)
            self._waiting.append(group)

    def cut(self) -> int:
        """Hand the groups since the last cut to the thread, as one part. Return the number of parts."""
        self._raise_failures()
        if self._waiting:
            self._may_write()
            self._parts += 1
            waiting, self._waiting = self._waiting, []
            self._writes.append(self._thread.submit(self._write, self._parts, waiting))
        return self._parts

    async def written(self) -> None:
        """Wait until every part that was cut is on disk."""
        await asyncio.to_thread(wait, self._writes)
        self._raise_failures()

    @property
    def counts(self) -> dict[str, int]:
        """Episodes per outcome, and their sum `admitted`, without episodes that were never meant for training."""
        outcomes = {
            outcome.value: self._outcomes[outcome] for outcome in EpisodeOutcome if outcome not in NEVER_ADMITTED
        }
        return {"admitted": sum(outcomes.values())} | outcomes

    @property
    def outcomes(self) -> dict[str, int]:
        """The number of records of every outcome."""
        return {outcome.value: count for outcome, count in self._outcomes.items()}

    def close(self) -> None:
        """Write what waits, and end the thread."""
        try:
            self.cut()
        finally:
            self._thread.shutdown()
        self._raise_failures()

    def _write(self, number: int, groups: Sequence[EndedGroup]) -> None:
        records = (record for group in groups for record in records_of(group))
        write_part(self._folder, number, records, self._may_write, chain.from_iterable(map(images_of, groups)))

    def _raise_failures(self) -> None:
        ended, self._writes = [w for w in self._writes if w.done()], [w for w in self._writes if not w.done()]
        for write in ended:
            write.result()


def read_episodes(path: Path, tell: Callable[[str], None] = print) -> Iterator[EpisodeRecord]:
    """Iterate over the records in a folder of parts, in one part, or in a JSONL file, in the order in which their
    outcomes became known.

    A truncated part is reported and skipped. Raises `DataError` for a newer schema, and for anything but a record.
    """
    if path.is_file() and path.suffix != ".parquet":
        try:
            yield from map(record_of_row, read_jsonl(path))
        except (TypeError, KeyError, ValueError) as error:
            raise DataError(f"{path} cannot be read as the episodes of a run ({error})") from None
        return
    for part in sound_parts(path, tell):
        try:
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(READ_AT_A_TIME):
                    yield from records_in(batch)
        except (pa.ArrowInvalid, OSError, DataError) as error:
            raise DataError(f"{part}: {error}") from None


def parts_in(folder: Path) -> list[Path]:
    """Return the parts of a folder, in the order in which they were written."""
    return sorted(folder.glob("part-*.parquet"), key=part_number)


def sound_parts(path: Path, tell: Callable[[str], None] = print) -> Iterator[Path]:
    """Iterate over the readable parts of a folder, or the one at `path`. Damaged ones are reported."""
    for part in parts_in(path) if path.is_dir() else [path]:
        if (why := damage(part)) is None:
            yield part
        else:
            tell(f"{part} is damaged ({why}): its episodes are left out")


def part_number(part: Path) -> int:
    """Return the place of a part, from 1."""
    return int(part.stem.removeprefix("part-"))


def damage(part: Path) -> str | None:
    """Return why a part cannot be read, or None: it is cut off unless it ends as Parquet files end."""
    with part.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - len(PARQUET_END), 0))
        return None if file.read() == PARQUET_END else f"cut off after {size:,} bytes"


def schema_of(part: Path) -> pa.Schema:
    """Return the schema of a part. Raises `DataError` for a newer one, and for a file that is no part."""
    try:
        schema = pq.read_schema(part)
        check_version(schema)
    except (pa.ArrowInvalid, OSError, DataError) as error:
        raise DataError(f"{part}: {error}") from None
    return schema


def lost_parts(folder: Path, last: int) -> list[str]:
    """Return a sentence for each of the parts up to `last` that is missing or damaged."""
    present = {part_number(part): damage(part) for part in parts_in(folder)}
    why = {number: present.get(number, "it is missing") for number in range(1, last + 1)}
    return [f"part {number} of {folder} is lost ({reason})" for number, reason in why.items() if reason is not None]


def drop_parts_after(folder: Path, last: int) -> None:
    """Delete the parts that were written after part `last`."""
    for part in parts_in(folder):
        if part_number(part) > last:
            part.unlink()


def write_part(
    folder: Path,
    number: int,
    records: Iterable[EpisodeRecord],
    may_write: Callable[[], None] = unguarded,
    images: Iterable[Image] = (),
) -> None:
    """Write records as the part of that number, after their images, and wait until it is on disk. Raises
    `DiskFailed`."""
    part = folder / f"part-{number:06}.parquet"
    beside = part.with_name(f".{part.name}")
    table = table_of(records)
    try:
        write_images(image_folder(folder), images)
        with open(beside, "wb", opener=private) as file:
            pq.write_table(table, file, compression="zstd", use_dictionary=REPEATING)
        sync_file(beside)
        may_write()
        os.replace(beside, part)
        sync_folder(folder)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise DiskFailed(f"{part} cannot be written ({error.strerror or error})") from error
