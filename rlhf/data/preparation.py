"""Rows as a recipe wants them: changed by a function of the user, and chosen by a condition over their columns."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from rlhf.config import load_bound
from rlhf.data.columns import Row, short_value
from rlhf.data.config import DatasetConfig
from rlhf.data.expressions import holds
from rlhf.data.files import Placed
from rlhf.errors import DataError, Raised, catch, describe_error


@dataclass(slots=True)
class RowCounts:
    """Numbers of rows: of the dataset, of those that the row function made of them, and of those that were kept."""

    read: int = 0
    made: int = 0
    kept: int = 0

    def describe(self) -> str:
        made = "" if self.made == self.read else f", which the row function made of {self.read:,}"
        return f"kept {self.kept:,} of {self.made:,} rows{made}"


def prepared(config: DatasetConfig, rows: Iterable[Placed], counts: RowCounts) -> Iterator[Placed]:
    """Iterate over the rows that the row function makes and the filter keeps. Raises `ConfigError` for a function that
    cannot be called, and `DataError` if it fails or no row is left."""
    change = load_bound(config.row, "row", {}, given=1) if config.row else None
    for where, row in rows:
        counts.read += 1
        for one in _changed(change, row, f"{where}: {config.row}") if change else [row]:
            counts.made += 1
            if config.filter is None or holds(config.filter, one, "filter", where):
                counts.kept += 1
                yield where, one
    if not counts.kept:
        raise DataError(f"no row is left of {config.path or 'few_shot.rows'}: {counts.describe()}")


def _changed(change: Any, row: Row, where: str) -> list[Row]:
    """Return the rows that the user's function makes of one, which it may change in place."""
    made = catch(lambda: change(dict(row)))
    if isinstance(made, Raised):
        raise DataError(f"{where} failed: {describe_error(made.error)}") from made.error
    rows = [] if made is None else [made] if isinstance(made, Mapping) else made
    if not isinstance(rows, list | tuple) or not all(isinstance(one, Mapping) for one in rows):
        raise DataError(f"{where} returned {short_value(made)}; it must return a row, a list of rows, or None")
    return [dict(one) for one in rows]
