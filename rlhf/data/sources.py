"""Datasets: a hub name, a local file or a folder of files, read through `datasets` into tasks."""

from __future__ import annotations

from collections.abc import Sequence
from errno import EACCES, ENOSPC, EROFS
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlhf.data.config import DatasetConfig
from rlhf.data.own_tasks import own_pairs, own_tasks
from rlhf.data.preference import PairSet, pair_from_row, pair_set
from rlhf.data.rows import Row, task_from_row
from rlhf.errors import DataError
from rlhf.types import Task

if TYPE_CHECKING:
    from datasets import Dataset

READERS = {".json": "json", ".jsonl": "json", ".csv": "csv", ".parquet": "parquet"}
"""The reader of `datasets` for each file ending; `.gz` may follow."""
CACHE = "datasets are cached in HF_HOME: set it to a writable folder with free space"


def load_tasks(config: DatasetConfig) -> list[Task]:
    """Load every task of a set, in the dataset's order.

    Raises `ConfigError` for a function that cannot be called, and `DataError`: missing file or split, unreachable hub,
    empty dataset, or a row without what a task needs.
    """
    if config.tasks is not None:
        return own_tasks(config)
    if config.seeds is not None:
        return [Task(id=f"seeds/{number}", messages=()) for number in range(config.seeds)][: config.limit]
    if config.holds_pairs:
        return [
            Task(id=f"{_set_name(config)}/{index}", messages=pair.prompt, row={"response": pair.chosen})
            for index, pair in enumerate(load_pairs(config).pairs)
        ]
    return [
        task_from_row(config, row, f"{_set_name(config)}/{index}", where)
        for index, (where, row) in enumerate(_placed(config, read_rows(config)))
    ]


def load_pairs(config: DatasetConfig) -> PairSet:
    """Load every preference pair of a set, in the dataset's order. Raises `DataError`, also for an empty set."""
    if config.tasks is not None:
        return own_pairs(config)
    found = (pair_from_row(config, row, where) for where, row in _placed(config, read_rows(config)))
    return pair_set(found, str(config.path))


def _set_name(config: DatasetConfig) -> str:
    path = Path(str(config.path))
    return path.name if path.expanduser().is_file() else f"{path.name}/{config.split}"


def _placed(config: DatasetConfig, rows: Sequence[Row]) -> list[tuple[str, Row]]:
    """Pair each row with its name for errors."""
    source = str(config.path)
    where = source if Path(source).expanduser().is_file() else f"{source}, split {config.split!r}"
    return [(f"{where}, row {index + 1}", row) for index, row in enumerate(rows)]


def read_rows(config: DatasetConfig) -> list[Row]:
    """Read the first `config.limit` rows. Raises `DataError`."""
    source = str(config.path)
    files = local_files(config)
    dataset = _load_local(files, source) if files else _load_hub(config, source)
    if len(dataset) == 0:
        raise DataError(f"{source}: the dataset is empty; it needs at least one row")
    if config.limit is not None:
        dataset = dataset.select(range(min(config.limit, len(dataset))))
    rows: list[Row] = dataset.to_list()
    return rows


def local_files(config: DatasetConfig) -> list[Path]:
    """List the files of a local dataset, without reading them; empty for a hub name. Raises `DataError`."""
    source = str(config.path)
    path = Path(source).expanduser()
    if not path.exists() and not _means_a_file(source):
        return []
    files = _files(path, config.split)
    if not any(file.stat().st_size for file in files):
        raise DataError(f"{source}: the dataset is empty ({files[0].name} has no bytes); it needs at least one row")
    return files


def _means_a_file(source: str) -> bool:
    """Hub names are `name` or `owner/name`; anything else that does not exist was meant as a file."""
    return source.startswith((".", "~", "/")) or source.count("/") > 1 or _ending(Path(source)) in READERS


def _files(path: Path, split: str) -> list[Path]:
    """List the files of one split: the file itself, or a folder's `train.jsonl`, `train-00000-of-00002.parquet`, …"""
    if path.is_file():
        if _ending(path) not in READERS:
            raise DataError(f"{path}: cannot read {path.suffix or 'this'} files; use one of {', '.join(READERS)}")
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder; give a hub name or the path of a local dataset")
    readable = sorted(file for file in path.iterdir() if file.is_file() and _ending(file) in READERS)
    chosen = [file for file in readable if _split_of(file) == split]
    if not chosen:
        splits = ", ".join(sorted({_split_of(file) for file in readable}))
        raise DataError(f"{path}: no file for split {split!r}; the folder has {splits or 'no dataset files'}")
    return chosen


def _split_of(file: Path) -> str:
    return file.name.split(".")[0].split("-")[0]


def _ending(path: Path) -> str:
    return Path(path.name.removesuffix(".gz")).suffix


def _load_local(files: list[Path], source: str) -> Dataset:
    datasets = _datasets()
    datasets.logging.set_verbosity(datasets.logging.CRITICAL)  # it logs what it also raises
    reader, names = READERS[_ending(files[0])], [str(file) for file in files]
    try:
        return datasets.load_dataset(reader, data_files=names, split="train")
    except (datasets.exceptions.DatasetsError, ValueError) as error:
        cause = _cause(error)
        if "corresponds to no data" in cause:
            raise DataError(f"{source}: the dataset is empty; it needs at least one row") from None
        raise DataError(f"{source}: cannot be read as {_ending(files[0])}: {cause}") from error
    except OSError as error:
        raise DataError(f"{source}: {_cause(error)}; {CACHE}") from error


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
