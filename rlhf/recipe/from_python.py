"""Make a recipe from values of a program: its rows and functions are written to files, which the recipe names."""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import os
import pickle
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import cloudpickle

from rlhf.config import flatten, merge
from rlhf.data.config import EvaluationSetConfig, TrainingSetConfig
from rlhf.errors import ConfigError
from rlhf.recipe.loading import LoadedRecipe, recipe_from
from rlhf.recipe.schema import RUN_NAME, Recipe
from rlhf.reward.config import combination

KEPT_IN = Path("~/.cache/rlhf/python")
"""Folder of these files. A file is named after its content, so that a resumed run and `rlhf eval` find it again."""
OF_SETS = {*TrainingSetConfig.model_fields, *EvaluationSetConfig.model_fields}
PICKLED = """import pickle
from pathlib import Path

piece = pickle.loads(Path(__file__).with_suffix(".pickle").read_bytes())
"""
"""The module of a function that no other process can import, such as one of a notebook."""


def recipe_from_python(*sections: Mapping[str, Any]) -> LoadedRecipe:
    """Validate the sections of a recipe; later ones win key by key. Raises `ConfigError`. Beyond what a recipe file
    allows, `model` may be the path, `reward` the kind, a function or a list of scorers, `data` the training set; a data
    set may be rows (a list of mappings, a `datasets.Dataset`) or the path of a file; and any `module:function` may be
    the function or class itself. Without a name the run has that of its folder.
    """
    values, _ = merge(*(("python", _written_out(section)) for section in sections), kind=Recipe)
    pieces = _Pieces()
    named = pieces.named(values)
    if pieces.folders:
        named["python_path"] = [*named.get("python_path", ()), *dict.fromkeys(pieces.folders)]
    folder = Path(str(dict(flatten(named)).get("run.dir", ""))).name
    if re.fullmatch(RUN_NAME, folder):
        named.setdefault("name", folder)
    return recipe_from(named)


def _written_out(section: Mapping[str, Any]) -> dict[str, Any]:
    """Write the short forms of `model`, `reward` and `data` as a recipe does."""
    values = dict(section)
    if isinstance(model := values.get("model"), str | Path):
        values["model"] = {"path": str(model)}
    if isinstance(reward := values.get("reward"), str):
        values["reward"] = {"kind": reward}
    elif callable(reward):
        values["reward"] = {"kind": "function", "function": reward}
    elif isinstance(reward, list | tuple):
        values["reward"] = combination(reward)
    if "data" in values:
        values["data"] = _data(values["data"])
    return values


def _data(data: Any) -> dict[str, Any]:
    """Return the section `data`, in which every set has settings."""
    values = dict(data) if isinstance(data, Mapping) else {"train": data}
    train, held_out = values.get("train"), values.get("eval")
    if isinstance(train, list) and all(map(_is_a_set, train)):
        values["train"] = [_data_set(one, f"data.train.{number}") for number, one in enumerate(train)]
    elif train is not None:
        values["train"] = _data_set(train, "data.train")
    if isinstance(held_out, Mapping) and not _is_a_set(held_out):
        values["eval"] = {name: _data_set(one, f"data.eval.{name}") for name, one in held_out.items()}
    elif held_out is not None:
        values["eval"] = _data_set(held_out, "data.eval")
    return values


def _is_a_set(value: Any) -> bool:
    """Whether a value is the settings of a data set; a row has other keys."""
    return isinstance(value, Mapping) and bool(value) and not set(value) - OF_SETS


def _data_set(value: Any, key: str) -> Any:
    """Return the settings of a data set that is rows or a path, or whose path is rows; any other value as it is."""
    if isinstance(value, Mapping):
        return {**value, **_data_set(value["path"], key)} if "path" in value else value
    return {"path": str(value if isinstance(value, str | Path) else _rows_file(value, key))}


def _rows_file(rows: Any, key: str) -> Path:
    """Write rows to a file named after them, and return it. Raises `ConfigError`."""
    if hasattr(rows, "to_parquet"):  # a `datasets.Dataset`, or a table of pandas
        return _kept(lambda file: rows.to_parquet(str(file)), "parquet", key)
    if not isinstance(rows, list | tuple):
        raise ConfigError(f"{key} is {type(rows).__name__}; give a path, a list of rows or a datasets.Dataset")
    lines = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, Mapping):
            raise ConfigError(f"{key}: row {number} is {type(row).__name__}; a row maps the names of columns to values")
        try:
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        except (TypeError, ValueError) as error:
            raise ConfigError(f"{key}: row {number} cannot be written as JSON: {error}") from None
    return _kept(lambda file: file.write_text("".join(lines), encoding="utf-8"), "jsonl", key)


def _kept(write: Callable[[Path], object], ending: str, kind: str = "piece") -> Path:
    """Return the file that `write` writes, named after its content, and after its `kind`: errors about rows name it."""
    folder = KEPT_IN.expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    new = folder / f"{os.getpid()}.new"
    write(new)
    kept = folder / f"{kind}_{hashlib.sha256(new.read_bytes()).hexdigest()[:16]}.{ending}"
    new.replace(kept)
    return kept


class _Pieces:
    """Replaces functions and classes by their names; `folders` are those where other processes find them."""

    def __init__(self) -> None:
        self.folders: list[str] = []

    def named(self, values: Mapping[str, Any], key: str = "") -> dict[str, Any]:
        return {name: self._named(value, f"{key}{name}") for name, value in values.items()}

    def _named(self, value: Any, key: str) -> Any:
        if isinstance(value, Mapping):
            return self.named(value, f"{key}.")
        if isinstance(value, list | tuple):
            return [self._named(one, key) for one in value]
        if isinstance(value, Path):
            return str(value)
        return self._name_of(value, key) if callable(value) else value

    def _name_of(self, piece: Any, key: str) -> str:
        """Return `module:name` of a function or class. Raises `ConfigError` if it cannot be sent to a process."""
        module, name = getattr(piece, "__module__", None), getattr(piece, "__qualname__", "")
        if module and module != "__main__" and getattr(sys.modules.get(module), name, None) is piece:
            self.folders += _folder_of(module)
            return f"{module}:{name}"
        try:
            pickled = cloudpickle.dumps(piece)
        except (TypeError, pickle.PicklingError) as error:
            raise ConfigError(f"{key} cannot be sent to another process: {error}") from None
        file = _kept(lambda new: new.write_bytes(pickled), "pickle")
        file.with_suffix(".py").write_text(PICKLED)
        self.folders += [str(file.parent), *_folder_of("__main__")]
        return f"{file.stem}:piece"


def _folder_of(module: str) -> list[str]:
    """Return the folder from which Python imported a module, in a list; none if it has no file."""
    try:
        file = Path(inspect.getfile(importlib.import_module(module))).resolve()
    except TypeError:  # built in, or a notebook's
        return []
    return [str(file.parents[0 if module == "__main__" else len(module.split(".")) - 1])]
