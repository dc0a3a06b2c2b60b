"""`rlhf options` lists the keys of a recipe."""

from __future__ import annotations

import itertools
import json
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlhf.config import Config, did_you_mean, nested_configs, walk_fields
from rlhf.errors import UserError
from rlhf.recipe.schema import Recipe


@dataclass(frozen=True, slots=True)
class Option:
    """One key of a recipe, formatted for people."""

    key: str
    type: str
    default: str
    meaning: str


def run_options(prefix: str = "") -> int:
    """Print the keys that begin with `prefix`: in colour on a terminal, tab-separated in a pipe."""
    chosen = [option for option in all_options() if option.key.startswith(prefix)]
    if not chosen:
        known = (option.key for option in all_options())
        raise UserError(f"no key begins with {prefix!r}{did_you_mean(prefix, known)}")
    if sys.stdout.isatty():
        print_table(chosen)
    else:
        print("\n".join("\t".join((one.key, one.type, one.default, one.meaning)) for one in chosen))
    return 0


def all_options() -> list[Option]:
    """Return every leaf key of a recipe, in the order of the recipe's parts: not a group of settings with keys of its
    own, unless its value may also be a number."""
    return [
        Option(key, type_name(field.annotation), default_text(field), " ".join((field.description or "").split()))
        for key, field in walk_fields(Recipe)
        if not any(nested_configs(field.annotation)) or "int" in type_name(field.annotation).split(" | ")
    ]


def print_table(chosen: Sequence[Option]) -> None:
    """Print the keys as a table, one section per part of the recipe."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("key", style="cyan", no_wrap=True)
    table.add_column("type", style="dim", overflow="fold")
    table.add_column("default", style="bold", overflow="fold")
    table.add_column("meaning")
    for _, section in itertools.groupby(chosen, key=lambda option: option.key.split(".")[0]):
        for option in section:
            table.add_row(*(Text(cell) for cell in (option.key, option.type, option.default, option.meaning)))
        table.add_row()
    Console().print(table)


def type_name(annotation: Any) -> str:
    """Return the type in the notation of the list: `int | null`, `sdpa | eager`, `list of text`."""
    names = {int: "int", float: "number", str: "text", bool: "true | false", type(None): "null"}
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Annotated:
        return type_name(arguments[0])
    if origin is Literal:
        return " | ".join(str(value) for value in arguments)
    if origin in (types.UnionType, typing.Union):
        return " | ".join(type_name(inner) for inner in arguments)
    if origin is tuple:
        inner = [type_name(argument) for argument in arguments if argument is not Ellipsis]
        return f"list of {inner[0]}" if Ellipsis in arguments else f"[{', '.join(inner)}]"
    if origin is dict or (isinstance(annotation, type) and issubclass(annotation, Config)):
        return "mapping"
    return names.get(annotation, getattr(annotation, "__name__", str(annotation)))


def default_text(field: FieldInfo) -> str:
    """Return the default in the notation of a recipe."""
    default = field.get_default(call_default_factory=True)
    if default is PydanticUndefined:
        return "required"
    if isinstance(default, str):
        return default or '""'
    if isinstance(default, float):
        return f"{default:g}"
    return json.dumps(default)
