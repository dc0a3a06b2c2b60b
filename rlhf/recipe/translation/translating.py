"""Make a recipe of another system's configuration, and account for every setting of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from rlhf.config import flatten, merge, walk_fields
from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.recipe.translation.computed import COMPUTED, Theirs
from rlhf.recipe.translation.reading import Unread, read_settings
from rlhf.recipe.translation.tables import Meaning, Table, read_table
from rlhf.trainer.algorithms.registry import preset_layer

OURS: dict[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("ours.yaml").read_text())
PLACEHOLDERS: dict[str, str] = OURS["placeholders"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A recipe as nested `values`; the settings `given`, by the table's names, and how the file `spelled` these; what
    became of every one; the keys that the user must `name`; and why our schema refuses the recipe, if it does."""

    title: str
    given: Mapping[str, Any]
    spelled: Mapping[str, str]
    values: Mapping[str, Any]
    rows: tuple[Meaning, ...]
    to_name: tuple[str, ...]
    problem: str | None


def translated(path: Path, gpus: int | None = None) -> Translation:
    """Translate a configuration of TRL, verl or OpenRLHF; `gpus` train, where it does not say how many. Raises
    `ConfigError` if it is none of these."""
    system, read = read_settings(path)
    table = read_table(system)
    spelled = {table.spelled(name): name for name in read}
    given = {name: read[spelling] for name, spelling in spelled.items()}
    theirs = {**table.defaults, **given}
    try:
        together = list(COMPUTED[system](Theirs(given, table.defaults, gpus)))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: a number of {table.title}'s batches is none that trains: {error}") from None
    every = [*_single(table, theirs, together), *together]
    values = {key: value for row in every for key, value in row.values.items()}
    preset = dict(flatten(preset_layer(values.get("trainer.algorithm"))))
    effective = [_effective(row, preset | values) for row in every]
    silent = {key: field.get_default(call_default_factory=True) for key, field in walk_fields(Recipe)} | preset
    rows = tuple(row for row in effective if set(row.names) & set(given) or _differs(row, silent))
    nested = _recipe({key: value for row in rows for key, value in row.values.items()})
    flat = {"trainer.updates": None, **dict(flatten(nested))}
    to_name = tuple(key for key, value in flat.items() if value is None or value in list(PLACEHOLDERS.values())[:-1])
    return Translation(
        title=table.title, given=given, spelled=spelled, values=nested, rows=rows, to_name=to_name,
        problem=_refused(nested),
    )  # fmt: skip


def _single(table: Table, theirs: Mapping[str, Any], together: list[Meaning]) -> Iterator[Meaning]:
    """Iterate over the meanings of settings for themselves, which those read `together` have only by the table."""
    decided = {name for meaning in together for name in meaning.names}
    for name, value in theirs.items():
        if isinstance(value, Unread):
            default = f"their default, {table.defaults.get(name)}, is taken" if name in table.defaults else ""
            why = default or table.key(name) or table.why(name)
            yield Meaning(names=(name,), values={}, why=f"known only when it runs; {why}" if why else "")
        elif name not in decided or name in (*table.keys, *table.values):
            meaning = table.meaning(name, value)
            if meaning.values or name not in decided or (name in table.values and meaning.outcome == "without"):
                yield meaning


def _effective(row: Meaning, values: Mapping[str, Any]) -> Meaning:
    """Leave out of a meaning the keys that mean nothing beside the others."""
    kept, why = dict(row.values), row.why
    for key, (prefix, (needed, among)) in product(row.values, OURS["needs"].items()):
        there = key == needed or (values.get(needed) in among if among else values.get(needed))
        if key.startswith(prefix) and not there:
            del kept[key]
            why = why if kept else f"{needed} is {values.get(needed)}"
    return replace(row, values=kept, why=why, same=row.same or (bool(row.values) and not kept))


def _differs(row: Meaning, silent: Mapping[str, Any]) -> bool:
    """Whether a default of theirs differs from ours, or has no counterpart."""
    plain = {key: list(one) if isinstance(one, tuple) else one for key, one in silent.items()}
    return row.outcome == "without" or any(plain.get(key) != value for key, value in row.values.items())


def _recipe(values: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's sections, with placeholders for what is not said; several files are several data sets."""
    for key in ("data.train", "data.eval"):
        files = values.get(f"{key}.path")
        files = files.split(",") if isinstance(files, str) else files or []
        if len(files) > 1:
            inside = {one.removeprefix(f"{key}."): value for one, value in values.items() if one.startswith(f"{key}.")}
            values = {one: value for one, value in values.items() if not one.startswith(f"{key}.")}
            sets = [{**inside, "path": file} for file in files]
            values[key] = sets if key == "data.train" else {f"set{place}": one for place, one in enumerate(sets, 1)}
        elif files:
            values[f"{key}.path"] = files[0]
    taken = ("reward." if "reward.kind" in values else "-", "data.train.path" if "data.train" in values else "-")
    own = {key: value for key, value in PLACEHOLDERS.items() if not key.startswith(taken)}
    nested = merge(("placeholders", own), ("translated", values))[0]
    return {section: nested[section] for section in Recipe.model_fields if section in nested}


def _refused(values: dict[str, Any]) -> str | None:
    try:
        recipe_from(values)
    except ConfigError as error:
        return str(error)
    return None
