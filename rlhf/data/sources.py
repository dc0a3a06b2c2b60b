"""Datasets as tasks, pairs and demonstrations: a local file, a folder of files, or a hub name that `datasets` reads."""

from __future__ import annotations

from collections.abc import Iterator
from errno import EACCES, ENOSPC, EROFS
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data.config import DatasetConfig
from rlhf.data.demonstrations import Demonstration, demonstration_from_row, demonstration_of_pair, demonstration_of_task
from rlhf.data.files import READERS, Placed, ending_of, rows_in_file
from rlhf.data.own_tasks import own_pairs, own_tasks
from rlhf.data.preference import PairSet, pair_from_row, pair_set
from rlhf.data.preparation import RowCounts, prepared
from rlhf.data.rows import task_from_row
from rlhf.errors import DataError
from rlhf.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

CACHE = "datasets are cached in HF_HOME: set it to a writable folder with free space"


def load_tasks(config: DatasetConfig) -> list[Task]:
    """Load every task of a set, in the dataset's order. Raises `ConfigError` for a function that cannot be called, and
    `DataError`: missing file or split, unreachable hub, empty dataset, or a row without what a task needs."""
    if config.tasks is not None:
        return own_tasks(config)
    if config.seeds is not None:
        return [Task(id=f"seeds/{number}", messages=()) for number in range(config.seeds)][: config.limit]
    path = Path(str(config.path))
    name = path.name if path.expanduser().is_file() else f"{path.name}/{config.split}"
    if config.holds_pairs:
        return [
            Task(id=f"{name}/{index}", messages=pair.prompt, row={"response": pair.chosen}, tools=pair.tools)
            for index, pair in enumerate(load_pairs(config).pairs)
        ]
    return [
        task_from_row(config, row, f"{name}/{index}", where) for index, (where, row) in enumerate(read_rows(config))
    ]


def load_pairs(config: DatasetConfig) -> PairSet:
    """Load every preference pair of a set, in the dataset's order. Raises `DataError`, also for an empty set."""
    if config.tasks is not None:
        return own_pairs(config)
    return pair_set((pair_from_row(config, row, where) for where, row in read_rows(config)), str(config.path))


def load_demonstrations(config: DatasetConfig) -> list[Demonstration]:
    """Load every demonstration of a set, in the dataset's order; the chosen replies of pairs."""
    if config.tasks is not None:
        return [demonstration_of_task(config, task, task.where) for task in own_tasks(config)]
    if config.holds_pairs:
        return [demonstration_of_pair(pair) for pair in load_pairs(config).pairs]
    return [demonstration_from_row(config, row, where) for where, row in read_rows(config)]


def read_rows(config: DatasetConfig, counts: RowCounts | None = None) -> Iterator[Placed]:
    """Iterate over the first `config.limit` rows that its row function and its filter keep. Raises `DataError`, also
    for an empty dataset, and `ConfigError` for a function that cannot be called."""
    source = str(config.path)
    files = local_files(config)
    rows = chain.from_iterable(map(rows_in_file, files)) if files else _hub_rows(config, source)
    first = next(rows, None)
    if first is None:
        raise DataError(f"{source}: the dataset is empty; it needs at least one row")
    yield from islice(prepared(config, chain([first], rows), counts or RowCounts()), config.limit)


def local_files(config: DatasetConfig) -> list[Path]:
    """List the files of a local dataset, without reading them; empty for a hub name. Raises `DataError`."""
    source = str(config.path)
    path = Path(source).expanduser()
    # Hub names are `name` or `owner/name`; anything else that does not exist is a missing file.
    means_a_file = source.startswith((".", "~", "/")) or source.count("/") > 1 or ending_of(Path(source)) in READERS
    if not path.exists() and not means_a_file:
        return []
    files = _files(path, config.split)
    if not any(file.stat().st_size for file in files):
        raise DataError(f"{source}: the dataset is empty ({files[0].name} has no bytes); it needs at least one row")
    return files


def _files(path: Path, split: str) -> list[Path]:
    """List the files of one split: the file itself, or a folder's `train.jsonl`, `train-00000-of-00002.parquet`, …"""
    if path.is_file():
        if ending_of(path) not in READERS:
            raise DataError(f"{path}: cannot read {path.suffix or 'this'} files; use one of {', '.join(READERS)}")
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; give a hub name or the path of a local dataset")
    readable = sorted(file for file in path.iterdir() if file.is_file() and ending_of(file) in READERS)
    chosen = [file for file in readable if _split_of(file) == split]
    if len(endings := {ending_of(file) for file in chosen}) > 1:
        raise DataError(f"{path}: the split {split!r} has {', '.join(sorted(endings))} files; keep only one kind")
    if not chosen:
        splits = ", ".join(sorted({_split_of(file) for file in readable}))
        raise DataError(f"{path}: no file for split {split!r}; the folder has {splits or 'no dataset files'}")
    return chosen


def _split_of(file: Path) -> str:
    return file.name.split(".")[0].split("-")[0]


def _hub_rows(config: DatasetConfig, source: str) -> Iterator[Placed]:
    batches = (table.to_pylist() for table in _load_hub(config, source).with_format("arrow").iter(batch_size=1000))
    for number, row in enumerate((row for batch in batches for row in batch), 1):
        yield f"{source}, split {config.split!r}, row {number}", row


def _load_hub(config: DatasetConfig, source: str) -> Dataset:
    datasets = _datasets()
    try:
        return datasets.load_dataset(source, config.name, split=config.split)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise DataError(f"{source} is neither a file here nor a dataset on the hub: {_cause(error)}") from error
    except OSError as error:
        if error.errno in (EACCES, ENOSPC, EROFS):
            raise DataError(f"{source}: {_cause(error)}; {CACHE}") from error
        raise DataError(
            f"{source}: the hub cannot be reached ({_cause(error)}); download it once or give a local path"
        ) from error
    except (datasets.exceptions.DatasetsError, ValueError) as error:
        raise DataError(f"{source} on the hub: {_cause(error)}") from error


def _datasets() -> Any:
    """Import the library, which takes half a second, without progress bars."""
    import datasets

    datasets.disable_progress_bars()
    return datasets


def _cause(error: BaseException) -> str:
    """Return the first line of the innermost cause, because `datasets` wraps its errors."""
    while error.__cause__ is not None:
        error = error.__cause__
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
