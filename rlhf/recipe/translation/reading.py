"""Read the settings of a configuration of another system. Nothing of it is executed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rlhf.config import flatten, parse_override
from rlhf.errors import ConfigError
from rlhf.recipe.translation.tables import SYSTEMS, read_table

CONSTRUCTED = {"GRPOConfig": "", "GRPOTrainer": "", "LoraConfig": "lora_"}
"""Classes whose arguments are settings of TRL, with the beginning that its command line gives their names."""
KNOWN = "TRL's GRPOConfig (Python, YAML), verl's tree or command, or OpenRLHF's command openrlhf.cli.train_ppo_ray"
INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,[^}]*)?\}")
ASSIGNMENT = re.compile(r"(?m)^\s*(?:export\s+)?(\w+)=(\((?s:.*?)\)|[^\n;]*)")
VARIABLE = re.compile(r"\$\{(\w+)(?::?-([^}]*))?\}|\$(\w+)")
END_OF_COMMAND = re.compile(r"[|;&]+|\d?&?>+\S*")


@dataclass(frozen=True, slots=True)
class Unread:
    """A value that only a run of the program would tell, as its source."""

    source: str


Settings = dict[str, Any]


def read_settings(path: Path) -> tuple[str, Settings]:
    """Return the system whose configuration a file is, and its settings by dotted names. Raises `ConfigError`."""
    kinds = {".py": _of_python, ".yaml": _of_tree, ".yml": _of_tree, ".json": _of_tree}
    try:
        system, settings = kinds.get(path.suffix, _of_shell)(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    except (SyntaxError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} cannot be parsed: {' '.join(str(error).split())}") from None
    if not settings:
        raise ConfigError(f"{path} is not recognised: it gives no settings of {KNOWN}")
    return system, settings


def _of_python(text: str) -> tuple[str, Settings]:
    """Return the arguments of TRL's classes that a program constructs, of GRPOConfig once."""
    tree, settings = ast.parse(text), Settings()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _called(node) in CONSTRUCTED]
    configs = [str(call.lineno) for call in calls if _called(call) == "GRPOConfig"]
    if len(configs) > 1:
        raise ValueError(f"GRPOConfig is constructed on lines {', '.join(configs)}; keep one")
    known = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
    for call in calls if configs else ():
        name, beginning = _called(call), CONSTRUCTED[_called(call)]
        given = [(f"{name} argument {place}", one) for place, one in enumerate(call.args, 1)]
        given += [(one.arg or f"**{ast.unparse(one.value)}", one.value) for one in call.keywords]
        for key, node in given:
            meant = known.get(ast.unparse(node), node)
            if _called(meant) not in CONSTRUCTED:
                added = beginning if key.isidentifier() and not key.startswith(beginning) else ""
                settings[added + key] = _literal(meant)
    return "trl", dict(flatten(settings))


def _called(node: ast.expr) -> str:
    """Return the last name of what is called; empty for other expressions."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _literal(node: ast.expr) -> Any:
    """Return the value of an expression; `torch.bfloat16` is `bfloat16`."""
    if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "torch":
        return node.attr
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        return {
            ast.literal_eval(key): _literal(value) for key, value in zip(node.keys, node.values, strict=True) if key
        }
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError):
        return Unread(ast.unparse(node))


def _of_tree(text: str) -> tuple[str, Settings]:
    """Return the settings of a YAML or JSON file, in which `${a.b}` stands for another one."""
    tree = yaml.safe_load(text)
    given = tree if isinstance(tree, dict) else {}
    system = next((system for system in SYSTEMS if any(key in given for key in read_table(system).trees)), "")
    settings = dict(flatten(given)) if system else {}
    filled = {
        key: INTERPOLATION.sub(lambda name: str(settings.get(name[1], name[0])), value)
        for key, value in settings.items()
        if isinstance(value, str)
    }
    return system, settings | {key: _typed(value) for key, value in filled.items()}


def _of_shell(text: str) -> tuple[str, Settings]:
    """Return the arguments of the first command of a script that starts a training."""
    script = re.sub(r"\\\s*\n", " ", re.sub(r"(?m)^\s*#.*\n", "", text))
    found = [(one, system) for system in SYSTEMS if (one := re.search(read_table(system).command, script))]
    if not found:
        return "", {}
    match, system = min(found, key=lambda one: one[0].start())
    variables = dict(ASSIGNMENT.findall(script[: match.start()]))
    words = shlex.split(_expanded(script[match.end() :].split("\n", 1)[0], variables), comments=True)
    last = next((place for place, word in enumerate(words) if END_OF_COMMAND.fullmatch(word)), len(words))
    return system, dict((_overrides if system == "verl" else _flags)(words[:last]))


def _expanded(text: str, variables: Mapping[str, str]) -> str:
    """Put a script's variables and arrays into a text; others stay, as `$name`, and computed ones as one word."""

    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3]
        given = variables.get(name, match[2])
        inside = "" if given is None else given.strip("()").replace("\n", " ").strip().strip("\"'")
        others = {key: one for key, one in variables.items() if key != name}
        return match[0] if given is None else _expanded(inside, others)

    arrays = re.sub(r'"?\$\{(\w+)\[@\]\}"?', r"${\1}", text)
    return VARIABLE.sub(value, re.sub(r"\$\(.*?\)+", lambda one: one[0].replace(" ", ""), arrays))


def _overrides(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Read Hydra's `key=value`."""
    for word in words:
        key, equals, value = word.lstrip("+").partition("=")
        yield (key, _typed(value)) if equals and key[:1].isalpha() else (word, Unread(word))


def _flags(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """Read `--name value`, `--name=value`, `--name a b` and `--name`."""
    starts = [place for place, word in enumerate(words) if word.startswith("--")]
    yield from ((word, Unread(word)) for word in words[: min(starts, default=len(words))])
    for start, end in zip(starts, [*starts[1:], len(words)], strict=True):
        name, equals, value = words[start].removeprefix("--").partition("=")
        values = [_typed(word) for word in ([value] if equals else []) + list(words[start + 1 : end])]
        yield name, values[0] if len(values) == 1 else values or True


def _typed(text: str) -> Any:
    """Read a value as YAML does, but `no` as a word, as TRL has it."""
    if "$" in text:
        return Unread(text)
    return text if text in ("no", "yes") else None if text == "None" else parse_override(f"x={text}")[1]
