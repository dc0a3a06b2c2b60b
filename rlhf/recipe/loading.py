"""Load a recipe in layers: other recipes, the algorithm's settings, the file, overrides."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from rlhf.config import (
    Origins,
    OtherNames,
    build,
    flatten,
    merge,
    module_file,
    named_modules,
    parse_override,
    read_yaml,
    search_first,
)
from rlhf.errors import ConfigError
from rlhf.recipe.schema import Recipe
from rlhf.recipe.shipped import RECIPES
from rlhf.reward.config import combination
from rlhf.trainer.credit.registry import adapter_layer, mismatch_layer, preset_layer

Layer = tuple[str, dict[str, Any]]
"""A layer: the origin of its values, and the values."""


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe with the origin of every value that is not a default, and the bases, layers and files it is made of."""

    recipe: Recipe
    origins: Origins
    path: Path | None = None
    bases: tuple[Layer, ...] = ()
    layers: tuple[Layer, ...] = ()
    files: tuple[Path, ...] = ()

    def with_defaults(self, origin: str, values: Mapping[str, Any]) -> LoadedRecipe:
        """Return the recipe with other defaults, by dotted key. What it says itself wins. Raises `ConfigError`."""
        return _composed([(origin, dict(values)), *self.bases], self.layers, self.path, self.files)

    def says(self, key: str) -> bool:
        """Whether the recipe itself gives this key, or a part of it."""
        return any(one == key or one.startswith(f"{key}.") for one in self.origins)


def load_recipe(path: Path, overrides: Sequence[str] = ()) -> LoadedRecipe:
    """Read a recipe file and apply `key=value` overrides. Raises `ConfigError`.

    The layers, in order: the recipe that `base` names (a path relative to this file's folder, or to that of the shipped
    recipes), the file, the overrides. The file, or the base that alone names the algorithm, overrides the algorithm's
    settings.
    """
    bases, own, files = _files(path)
    name = {"name": path.stem} if "name" not in own else {}
    replaced = [("override", {key: value}) for key, value in map(parse_override, overrides)]
    return _composed(bases, [("file name", name), (str(path), own), *replaced], path, files)


def recipe_from(values: dict[str, Any]) -> LoadedRecipe:
    """Validate a recipe from a mapping, for use from Python."""
    return _composed([], [("python", values)])


def _files(path: Path, above: tuple[Path, ...] = ()) -> tuple[list[Layer], dict[str, Any], list[Path]]:
    """Return the layers of a file's bases, the farthest first; its own values; and the files, this one first."""
    own = read_yaml(path)
    base = own.pop("base", None)
    if base is None:
        return [], own, [path]
    if not isinstance(base, str) or path.resolve() in above:
        raise ConfigError(f"{path}: base must be the path of another recipe, from this file's folder (got {base!r})")
    beneath = path.parent / base
    if not beneath.exists() and (RECIPES / base).exists():
        beneath = RECIPES / base
    bases, values, files = _files(beneath, (*above, path.resolve()))
    return [*bases, (str(beneath), values)], own, [path, *files]


def _composed(
    bases: Sequence[Layer], layers: Sequence[Layer], path: Path | None = None, files: Sequence[Path] = ()
) -> LoadedRecipe:
    """Merge all layers. Beneath the recipe's own are the settings of its kind or algorithm, and those for engines with
    other log-probs or weights than the learner's. `files` are the recipe's and those of its bases: modules and data are
    searched next to them, then here; the path of an override first here."""
    bases, layers = [_listed(one) for one in bases], [_listed(one) for one in layers]
    values, _ = merge(*bases, *layers, kind=Recipe)
    naming = [index for index, layer in enumerate((*bases, *layers)) if _beneath(merge(layer)[0])[1]]
    below = min(max(naming, default=0), len(bases))
    beneath = [*bases[:below], _beneath(values), *bases[below:]]
    values, _ = merge(*beneath, *layers, kind=Recipe)
    all_layers = (*beneath, mismatch_layer(values), *layers, adapter_layer(values))
    values, origins = merge(*all_layers, kind=Recipe)
    recipe = build(Recipe, values, other_names())
    given = tuple(str(Path(folder).expanduser().absolute()) for folder in recipe.python_path)
    searched = _searched(values, files, given)
    search_first(searched)
    python_path = tuple(folder for folder in searched if folder in given or folder != os.getcwd())
    if python_path != given:
        origins["python_path"] = "where the recipe's modules are"
    typed = [value for name, layer in layers if name == "override" for _, value in flatten(layer)]
    beside = [file.parent for file in files]

    def place(name: str) -> str:
        return _placed(name, [Path.cwd(), *beside] if name in typed else [*beside, Path.cwd()])

    parts = {"python_path": python_path, "data": recipe.data.at(place)}
    made = recipe.model_copy(update=parts)
    return LoadedRecipe(made, origins, path, tuple(bases), tuple(layers), tuple(files))


def _listed(layer: Layer) -> Layer:
    """Write a list of scorers as a combined reward, so that later layers can change its parts."""
    name, values = layer
    reward = values.get("reward")
    return (name, {**values, "reward": combination(reward)}) if isinstance(reward, list) else layer


@cache
def other_names() -> OtherNames:
    """Return the keys that names of TRL, verl, OpenRLHF and transformers mean, the likeliest first."""
    table: dict[str, list[str]] = json.loads(resources.files("rlhf.recipe").joinpath("other_names.json").read_text())
    return {name: tuple(key for key in table if name in table[key]) for name in chain(*table.values())}


def _placed(name: str, folders: Sequence[Path]) -> str:
    """Return the absolute path of the file or folder `name` in the first of the folders that has it; other names, as
    those on the hub, unchanged."""
    path = Path(name).expanduser()
    return next((os.path.abspath(folder / path) for folder in folders if (folder / path).exists()), name)


def _searched(values: Mapping[str, Any], files: Sequence[Path], given: Sequence[str]) -> list[str]:
    """Return the folders to search before all others: those `given`, and of each other module that the recipe names the
    nearest folder above its files that has it, or else this one. The library's own modules need none."""
    above = zip_longest(*(file.resolve().parents for file in files))
    places = [*filter(None, chain(*above)), Path.cwd()]
    found = list(given)
    for module in named_modules(values):
        own = module.partition(".")[0] not in ("rlhf", RECIPES.name)
        if own and not any(module_file(Path(folder), module) for folder in found):
            found += [str(folder) for folder in places if module_file(folder, module)][:1]
    return found


def _beneath(values: Mapping[str, Any]) -> Layer:
    """Return the default settings of a kind or an algorithm, beneath those of the recipe."""
    if values.get("kind") == "distill":
        own = {"trainer": {"algorithm": "distill"}, "reward": {"kind": "none"}}
        return "kind distill", merge(("algorithm", preset_layer("distill")), ("kind", own))[0]
    trainer = values.get("trainer")
    algorithm = trainer.get("algorithm") if isinstance(trainer, Mapping) else None
    return f"algorithm {algorithm}", preset_layer(algorithm)
