"""The base of every configuration: frozen, typed, read from YAML and `key=value`; unknown keys get a suggestion.

This module imports nothing heavy, so that a bad recipe fails in well under two seconds.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.machinery import PathFinder
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, ValidatorFunctionWrapHandler, field_validator

from rlhf.errors import ConfigError, PieceFailed, Raised, RlhfError, catch, describe_error, logged_error


class Config(BaseModel):
    """A frozen group of settings. The docstring of a field is what `rlhf options` prints."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
    alternatives: ClassVar[Mapping[str, Collection[str]]] = {}
    """Alternative keys, or `key=value`, of which a recipe has one, each with the keys that belong to it."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _is_no_truth_value(cls, given: Any, read: ValidatorFunctionWrapHandler) -> Any:
        value = read(given)
        if isinstance(given, bool) and type(value) in (int, float):  # pydantic takes true for 1
            raise ValueError(f"{str(given).lower()} is not a number")
        return value


C = TypeVar("C", bound=Config)
PIECE = re.compile(r"([A-Za-z_][\w.]*):[A-Za-z_]\w*")
"""`module:function`, unlike other texts with a colon."""
Origins = dict[str, str]
"""The origin of each dotted key: a file or `override`; a missing key has its default."""


class PlainLoader(yaml.SafeLoader):
    """Reads YAML by the core schema of YAML 1.2, so that `off`, `1:30` and `2026-01-02` are texts, and `1e-3` is a
    number. Refuses duplicate keys, and `010`, which is 8 in YAML 1.1."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        first: dict[tuple[str, str], yaml.Node] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.MappingNode):
                given = "a mapping cannot be a key; put quotes around a text that begins with {{"
                raise yaml.constructor.ConstructorError(problem=given, problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode) and (one := first.setdefault((key.tag, key.value), key)) is not key:
                given = f"the key {key.value!r} occurs twice, first on line {one.start_mark.line + 1}"
                raise yaml.constructor.ConstructorError(problem=given, problem_mark=key.start_mark)
        return super().construct_mapping(node, deep)

    def construct_yaml_int(self, node: yaml.ScalarNode) -> int:
        digits = node.value.replace("_", "")
        if re.fullmatch(r"[-+]?0[0-9]+", digits):
            said = f"{node.value} is ambiguous: write {int(digits)}, or '{node.value}' for a text"
            raise yaml.constructor.ConstructorError(problem=said, problem_mark=node.start_mark)
        return int(digits, 0)


class PlainDumper(yaml.SafeDumper):
    """Writes what `PlainLoader` reads: texts that it would take for numbers get quotes."""


SCALAR_FORMS = {
    "bool": r"true|True|TRUE|false|False|FALSE",
    "int": r"[-+]?[0-9][0-9_]*|0x[0-9a-fA-F]+",
    "float": r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*\.[0-9]*|[0-9]+(?=[eE]))(?:[eE][-+]?[0-9]+)?|[-+]?\.inf|\.nan",
    "merge": "<<",
    "null": r"~|null|Null|NULL|",
}
PlainLoader.yaml_implicit_resolvers = {
    None: [(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{form})\Z")) for tag, form in SCALAR_FORMS.items()]
}
PlainDumper.add_implicit_resolver("tag:yaml.org,2002:float", re.compile(rf"(?:{SCALAR_FORMS['float']})\Z"), None)
PlainLoader.add_constructor("tag:yaml.org,2002:int", PlainLoader.construct_yaml_int)


def load_yaml(text: str) -> Any:
    """Read YAML that users write. Raises `yaml.YAMLError`."""
    return yaml.load(text, Loader=PlainLoader)


def dump_yaml(value: Any, **options: Any) -> str:
    """Write YAML for `load_yaml`, with PyYAML's options."""
    return str(yaml.dump(value, Dumper=PlainDumper, **options))


def read_yaml(path: Path) -> dict[str, Any]:
    """Read a recipe file into a mapping. Raises `ConfigError` when it is missing or not a mapping."""
    try:
        loaded = load_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe{_nearby_files(path)}") from None
    except IsADirectoryError:
        inside = next(path.glob("*.yaml"), None)
        hint = (
            f"give the recipe file inside it, as {inside}" if inside else "it has no recipe, and `rlhf init` makes one"
        )
        raise ConfigError(f"{path} is a folder; {hint}") from None
    except yaml.MarkedYAMLError as error:
        where = f", line {mark.line + 1}, column {mark.column + 1}" if (mark := error.problem_mark) else ""
        raise ConfigError(f"{path}{where}: not valid YAML: {error.problem}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(loaded, dict):
        raise ConfigError(f"{path}: a recipe must be a mapping of keys to values, not {type(loaded).__name__}")
    keys = [key for key, _ in flatten(loaded)]
    if twice := next((key for key in keys if keys.count(key) > 1), None):
        raise ConfigError(f"{path}: {twice} occurs twice, once as a dotted key")
    return loaded


def parse_override(text: str) -> tuple[str, Any]:
    """Split `a.b=value` into its dotted key and its value, read as YAML: `1e-3`, `true`, `[1, 2]`, `null`. A template
    that begins with `{{` is a text."""
    key, equals, raw = text.partition("=")
    if not equals or not key:
        raise ConfigError(f"override {text!r} is not of the form key=value, for instance trainer.updates=10")
    try:
        return key, raw if raw.startswith("{{") else load_yaml(raw)
    except yaml.constructor.ConstructorError as error:
        raise ConfigError(f"override {text!r}: {error.problem}") from None
    except yaml.YAMLError:
        return key, raw


def shown_value(value: object) -> str:
    """Return a setting's value as a recipe writes it."""
    return f"{value:g}" if isinstance(value, float) else str(value).lower() if isinstance(value, bool) else str(value)


def merge(*layers: tuple[str, Mapping[str, Any]], kind: type[Config] | None = None) -> tuple[dict[str, Any], Origins]:
    """Merge named mappings; later ones win key by key. Return also which layer set each dotted key. Among the
    alternatives of `kind`, a layer's choice replaces those of earlier layers."""
    merged: dict[str, Any] = {}
    origins: Origins = {}
    for name, layer in layers:
        given: dict[str, Any] = {}
        for key, value in flatten(layer):
            _set(given, key, value)
        if kind:
            _drop_replaced(kind, merged, given)
        for key, value in flatten(given):
            _set(merged, key, value)
            origins = {k: v for k, v in origins.items() if not k.startswith(key + ".")} | {key: name}
    there = {key for key, _ in flatten(merged)}
    return merged, {key: name for key, name in origins.items() if key in there}


def _drop_replaced(kind: type[Config], earlier: dict[str, Any], later: Mapping[str, Any]) -> None:
    """Drop the alternatives of `kind` that `later` replaces, and the keys that belong to them."""
    for choice, beside in kind.alternatives.items():
        key, _, value = choice.partition("=")
        if later.get(key) not in (None, (), []) and value in ("", later[key]):
            others = {one.partition("=")[0] for one in kind.alternatives}.union(*kind.alternatives.values())
            for other in others - {*beside, key}:
                earlier.pop(other, None)
            if "arguments" in beside and earlier.get(key) not in (None, later[key]):  # those of another function
                earlier.pop("arguments", None)
    for key, above in later.items():
        field, below = kind.model_fields.get(key), earlier.get(key)
        group = next(iter(nested_configs(field.annotation)), None) if field else kind  # otherwise a name
        if group is None or not (isinstance(above, Mapping) and isinstance(below, dict)):
            continue
        by_name = field is not None and get_origin(field.annotation) is dict
        for lower, upper in [(below.get(name), above[name]) for name in above] if by_name else [(below, above)]:
            if isinstance(lower, dict) and isinstance(upper, Mapping):
                _drop_replaced(group, lower, upper)


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Walk the leaves of nested mappings as dotted keys."""
    for key, value in mapping.items():
        dotted = f"{prefix}{key}"
        if isinstance(value, Mapping) and value:
            yield from flatten(value, dotted + ".")
        else:
            yield dotted, value


OtherNames = Mapping[str, tuple[str, ...]]
"""Keys by names that users bring for the last part of one."""


def build(kind: type[C], values: Mapping[str, Any], other_names: OtherNames = MappingProxyType({})) -> C:
    """Validate `values` into `kind`. Raises `ConfigError` with key, value and a correction."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise ConfigError(explain(kind, error, other_names)) from None


SCALARS = ("bool", "int", "float", "str")
"""Ends of pydantic's locations for values of several possible types."""

LIKENESS = 0.6
"""Least similarity of a misspelt name to the one that was meant."""


def closest(name: str, known: Iterable[str], likeness: float = LIKENESS) -> str | None:
    """Return the known name that is most like a misspelt one; None if none is like it."""
    return next(iter(difflib.get_close_matches(name, list(known), n=1, cutoff=likeness)), None)


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return the end of an error about a misspelt name: a suggestion, or else `otherwise`."""
    return f"; did you mean {close!r}?" if (close := closest(name, known)) else otherwise


def explain(kind: type[Config], error: ValidationError, other_names: OtherNames = MappingProxyType({})) -> str:
    """Return the first problem of a validation error as one line."""
    problem = error.errors()[0]
    key = ".".join(key_of(problem))
    if problem["type"] == "extra_forbidden":
        known = known_keys(kind)
        inside = problem["input"] if isinstance(problem["input"], Mapping) else {}
        group = [f"{key}.{inner}" for inner, _ in flatten(inside)]
        alike = closest(key, known)
        if alike and inside and all(f"{alike}{inner.removeprefix(key)}" in known for inner in group):
            return f"unknown key {key!r}; did you mean {alike!r}?"
        meant = {given: keys for given in [key, *group] if (keys := _meant(given, known, other_names))}
        if key in meant:
            return f"unknown key {key!r}; did you mean {meant[key]}?"
        if meant:
            there = ", ".join(f"{given} is {keys}" for given, keys in meant.items())
            return f"unknown key {key!r}; did you mean: {there}?"
        leaf = key.rpartition(".")[2]
        same = next((f"; did you mean {one!r}?" for one in known if one.rpartition(".")[2] == leaf), "")
        return f"unknown key {key!r}{did_you_mean(key, known, same or '; `rlhf options` lists every key')}"
    if problem["type"] == "missing":
        return f"{key} is required and was not given"
    message = problem["msg"].removeprefix("Value error, ")
    value = problem.get("input")
    shown = f" (got {value!r})" if isinstance(value, (str, int, float, bool, type(None))) and key else ""
    return f"{key}: {message}{shown}" if key else message


def key_of(problem: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the parts of the key that a problem is about, without pydantic's tags of union members, which users do not
    know."""
    parts = tuple(one for one in map(str, problem["loc"]) if not (one.endswith("Config") or "[" in one))
    return parts[:-1] if parts[-1:] and parts[-1].removeprefix("constrained-") in SCALARS else parts


def known_keys(kind: type[Config]) -> list[str]:
    """Return every dotted key that `kind` accepts."""
    return [key for key, _ in walk_fields(kind)]


def walk_fields(kind: type[Config], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Iterate over every dotted key of `kind` with its pydantic field, depth first."""
    for name, field in kind.model_fields.items():
        yield prefix + name, field
        for nested in dict.fromkeys(nested_configs(field.annotation)):
            yield from walk_fields(nested, f"{prefix}{name}.")


def compiled_pattern(pattern: str) -> re.Pattern[str]:
    """Compile a regular expression of a recipe. Raises `ValueError` with its fault, for validators."""
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None


def nested_configs(annotation: Any) -> Iterable[type[Config]]:
    """Iterate over the groups of settings in a field of this type: itself, alternatives, list items, named values."""
    if isinstance(annotation, type) and issubclass(annotation, Config):
        yield annotation
        return
    for argument in getattr(annotation, "__args__", ()):
        yield from nested_configs(argument)


def _meant(key: str, known: list[str], other_names: OtherNames) -> str:
    """Return the keys that another trainer's name means, those within its own group first; empty for other names."""
    group, _, leaf = key.rpartition(".")
    meant = other_names.get(leaf, ())
    if meant and group and not any(one.startswith(f"{group}.") for one in meant):
        ends = {one.rpartition(".")[2] for one in meant}
        meant = tuple(one for one in known if one.startswith(f"{group}.") and one.rpartition(".")[2] in ends) or meant
    return " or ".join(map(repr, meant))


def _nearby_files(path: Path) -> str:
    if path.name == Path.cwd().name and Path("recipe.yaml").is_file():
        return "; you are in this folder: give . for its recipe"
    if not path.parent.is_dir():
        return f" (there is no folder {path.parent})"
    close = closest(path.name, (one.name for one in path.parent.glob("*.yaml")))
    return f"; did you mean {path.parent / close}?" if close else ""


def _set(target: dict[str, Any], dotted: str, value: Any) -> None:
    *parents, leaf = dotted.split(".")
    for parent in parents:
        inner = target.get(parent)
        if not isinstance(inner, dict):
            inner = target[parent] = {}
        target = inner
    target[leaf] = value


def is_piece(name: str) -> bool:
    """Whether `name` is of the form `module:function`."""
    module, colon, function = name.partition(":")
    return bool(module and colon and function)


def load_piece(name: str, setting: str) -> Any:
    """Import the function `name`, also from the current folder, as with `python -m`.

    Raises `ConfigError` with its `setting` if it cannot be imported or called, or if this process has imported another
    module of that name, as from another project.
    """
    module, _, function = name.partition(":")
    _look_here()
    _refuse_standard(name, setting)
    loaded = getattr(sys.modules.get(module), "__spec__", None)
    found = PathFinder.find_spec(module) if loaded and loaded.parent == "" else None
    if loaded and found and found.origin != loaded.origin:
        raise ConfigError(f"{setting} is {name}, but {loaded.origin} is imported already; start another process")
    piece = catch(lambda: getattr(importlib.import_module(module), function))
    if isinstance(piece, Raised):
        cause = describe_error(piece.error)
        raise ConfigError(f"{setting} is {name}, which cannot be imported: {cause}") from piece.error
    if not callable(piece):
        raise ConfigError(f"{setting} is {name}, which is {piece!r:.80}, not a function")
    return piece


def check_found(name: str, setting: str) -> None:
    """Check that the module in `name` exists, without importing it. Raises `ConfigError`."""
    module = name.partition(":")[0]
    _look_here()
    _refuse_standard(name, setting)
    try:
        found = importlib.util.find_spec(module)
    except (ImportError, ValueError):
        found = None
    if found is None:
        raise ConfigError(f"{setting} is {name}, but there is no module {module} in this folder or installed")


def _refuse_standard(name: str, setting: str) -> None:
    """Refuse a file that Python's standard library hides, or that would hide a module of it."""
    module = name.partition(":")[0].partition(".")[0]
    folders = [Path(one) for one in sys.path if one != sysconfig.get_path("stdlib")]
    file = next(filter(None, (module_file(folder, module) for folder in folders)), None)
    if module in sys.stdlib_module_names and file:
        raise ConfigError(f"{setting} is {name}, but {module} is a module of Python itself; rename {file}")


def named_modules(values: Any) -> Iterator[str]:
    """Iterate over the modules of all `module:function` texts in nested mappings and lists."""
    if isinstance(values, str) and (piece := PIECE.fullmatch(values)):
        yield piece[1]
    elif isinstance(values, Mapping | list | tuple):
        for inner in values.values() if isinstance(values, Mapping) else values:
            yield from named_modules(inner)


def module_file(folder: Path, module: str) -> Path | None:
    """Return the module's file, if the folder has it."""
    path = folder.joinpath(*module.split("."))
    return next(filter(Path.is_file, (path.with_name(f"{path.name}.py"), path / "__init__.py")), None)


def search_first(folders: Sequence[str]) -> None:
    """Find modules in these folders before all others, and then in the current one."""
    if folders:
        sys.path[:] = dict.fromkeys((*folders, os.getcwd(), *sys.path))


def _look_here() -> None:
    """Add the current folder to the search path, as `python -m` does."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def registered(name: str) -> Any:
    """Import the library's own `module:function`."""
    module, _, function = name.partition(":")
    return getattr(importlib.import_module(module), function)


def load_bound(name: str, setting: str, arguments: Mapping[str, Any], *, given: int) -> Any:
    """Bind the recipe's keyword `arguments` to the function `name`, which later gets `given` positional values.

    Raises `ConfigError` if it cannot be imported, or does not accept these."""
    piece = load_piece(name, setting)
    check_call(piece, name, setting, arguments, given=given)
    return partial(piece, **arguments)


def failing_by_name(piece: Callable[..., Any], name: str, setting: str) -> Callable[..., Any]:
    """Return the user's function; an exception of it becomes a `PieceFailed`, and its traceback is logged. Named
    failures stay as they are."""

    def call(*given: Any, **arguments: Any) -> Any:
        answer = catch(lambda: piece(*given, **arguments))
        if isinstance(answer, Raised):
            raise piece_failure(answer.error, name, setting) from answer.error
        return answer

    return call


def piece_failure(error: BaseException, name: str, setting: str) -> RlhfError:
    """Return the failure of the user's `name` that raised `error`, and log the traceback."""
    if isinstance(error, RlhfError):
        return error
    return PieceFailed(f"{setting} {name} failed: {logged_error(error)}")


def check_call(piece: Any, name: str, setting: str, arguments: Mapping[str, Any], *, given: int) -> None:
    """Raise `ConfigError` unless `piece` accepts `given` values and the keyword `arguments`."""
    try:
        inspect.signature(piece).bind(*range(given), **arguments)
    except ValueError:
        return  # a function in C may have no signature
    except TypeError as error:
        shown = f"{given} value{'s'[: given != 1]} and arguments: {{{', '.join(sorted(arguments))}}}"
        taken = ", ".join(inspect.signature(piece).parameters) or "nothing"
        raise ConfigError(
            f"{setting} is {name}, which cannot be called with {shown}: {error}; it takes {taken}"
        ) from error
