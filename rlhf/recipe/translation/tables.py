"""What the settings of other systems mean, by the tables beside this module."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from typing import Any

import yaml

from rlhf.recipe.loading import other_names

SYSTEMS = ("verl", "openrlhf", "trl")


@dataclass(frozen=True, slots=True, kw_only=True)
class Meaning:
    """What became of settings: their `values` in ours; or ours does the `same`; or `why` they have no counterpart; or
    none of these: they are unknown."""

    names: tuple[str, ...]
    values: Mapping[str, Any]
    why: str = ""
    same: bool = False

    @property
    def outcome(self) -> str:
        return "taken" if self.values else "same" if self.same else "without" if self.why else "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The settings of one system; `trl.yaml` says what each section is."""

    title: str
    command: str
    trees: list[str]
    spellings: Mapping[str, str]
    defaults: Mapping[str, Any]
    keys: Mapping[str, str]
    values: Mapping[str, Mapping[Any, Mapping[str, Any]]]
    same: Mapping[str, list[Any]]
    without: Mapping[str, str]

    def spelled(self, name: str) -> str:
        """Return the name by which this table knows a setting, whose spelling is of another version."""
        if name in self.spellings:
            return self.spellings[name]
        prefix = next((one for one in self.spellings if one.endswith(".") and name.startswith(one)), "")
        return self.spellings.get(prefix, "") + name.removeprefix(prefix)

    def meaning(self, name: str, value: Any) -> Meaning:
        """Return the meaning of one setting for itself."""
        if value is None or value in self.same.get(name, ()):
            return Meaning(names=(name,), values={}, same=True)
        converted = self.values.get(name, {}).get(value if isinstance(value, Hashable) else str(value))
        key = self.key(name)
        if converted is None and key:
            converted = dict.fromkeys(key.split(", "), value)
        if converted is not None:
            taken = {key: one for key, one in converted.items() if key != "why"}
            return Meaning(names=(name,), values=taken, why=converted.get("why", ""), same=not taken)
        among = ", ".join(map(str, self.values.get(name, ())))
        why = self.why(name) or (f"only {among} have a counterpart" if among else "")
        return Meaning(names=(name,), values={}, why=why)

    def key(self, name: str) -> str | None:
        """Return our key, or several, with the same value: of the table, or the only one that `other_names` offers."""
        if (pattern := _match(name, self.keys)) is not None:
            return self.keys[pattern].replace("*", name.removeprefix(pattern.rstrip("*")))
        if name in self.values or _match(name, self.without) is not None or "." in name:
            return None
        meant = other_names().get(name, ())
        return meant[0] if len(meant) == 1 else None

    def why(self, name: str) -> str | None:
        """Return why a setting has no counterpart, and what to do instead."""
        pattern = _match(name, self.without)
        return None if pattern is None else self.without[pattern]


def _match(name: str, patterns: Mapping[str, object]) -> str | None:
    """Return the first pattern of a name; the name itself comes before."""
    return name if name in patterns else next((one for one in patterns if fnmatchcase(name, one)), None)


@cache
def read_table(system: str) -> Table:
    """Read the table of `trl`, `verl` or `openrlhf`."""
    return Table(**yaml.safe_load(resources.files(__package__).joinpath(f"{system}.yaml").read_text()))
