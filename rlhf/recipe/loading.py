"""Load a recipe in layers: other recipes, the algorithm's settings, the file, overrides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlhf.config import Origins, build, merge, parse_override, read_yaml
from rlhf.errors import ConfigError
from rlhf.recipe.schema import Recipe
from rlhf.trainer.algorithm import adapter_layer, mismatch_layer, preset_layer

Layer = tuple[str, dict[str, Any]]
"""A layer: the origin of its values, and the values."""


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with the origin of every value that is not a default."""

    recipe: Recipe
    origins: Origins
    path: Path | None = None


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe file and apply `key=value` overrides. Raises `ConfigError`.

    The layers, in order: the recipe that `base` names (a path relative to this file's folder), the algorithm's
    settings, the file, the overrides.
    """
    bases, own = _files(path)
    name = {"name": path.stem} if "name" not in own else {}
    given = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    return _composed(bases, [("file name", name), (str(path), own), *given], path)


def recipe_from(values: dict[str, Any]) -> LoadedRecipe:
    """A recipe from a mapping, for use from Python."""
    return _composed([], [("python", values)], None)


def _files(path: Path, above: tuple[Path, ...] = ()) -> tuple[list[Layer], dict[str, Any]]:
    """The layers of a file's bases, the most distant first, and its own values."""
    own = read_yaml(path)
    base = own.pop("base", None)
    if base is None:
        return [], own
    if not isinstance(base, str) or path.resolve() in above:
        raise ConfigError(f"{path}: base must be the path of another recipe, from this file's folder (got {base!r})")
    bases, values = _files(path.parent / base, (*above, path.resolve()))
    return [*bases, (str(path.parent / base), values)], own


def _composed(bases: Sequence[Layer], layers: Sequence[Layer], path: Path | None) -> LoadedRecipe:
    """All layers merged. The recipe's own values override the defaults of the kind or algorithm that it names, and
    those for engines whose log-probs or weights differ from the learner's."""
    values, _ = merge(*bases, *layers)
    beneath = _beneath(values)
    values, _ = merge(*bases, beneath, *layers)
    values, origins = merge(*bases, beneath, mismatch_layer(values), *layers, adapter_layer(values))
    return LoadedRecipe(build(Recipe, values), origins, path)


def _beneath(values: Mapping[str, Any]) -> Layer:
    """The default settings of a kind or an algorithm. A recipe may override each key."""
    if values.get("kind") == "distill":
        own = {"trainer": {"algorithm": "distill"}, "reward": {"kind": "none"}}
        return "kind distill", merge(("algorithm", preset_layer("distill")), ("kind", own))[0]
    trainer = values.get("trainer")
    algorithm = trainer.get("algorithm") if isinstance(trainer, Mapping) else None
    return f"algorithm {algorithm}", preset_layer(algorithm)
