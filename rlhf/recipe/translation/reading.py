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
from rlhf.env.tools import calculated
from rlhf.errors import ConfigError
from rlhf.recipe.translation.tables import SYSTEMS, read_table

CONSTRUCTED = {"GRPOConfig": "", "GRPOTrainer": "", "LoraConfig": "lora_"}
"""Classes whose arguments are settings of TRL, with the beginning that its command line gives their names."""
KNOWN = "TRL's GRPOConfig (Python, YAML, command), verl's tree or command, or OpenRLHF's command train_ppo_ray"
INTERPOLATION = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,[^}]*)?\}")
BRACKETS = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
POWER_OF_TEN = re.compile(r"[-+]?\d+e-?\d+")
STATEMENT = re.compile(
    r"(?m)^[ \t]*(?:(?P<opens>(?:if|for|while|until|case)\b(?!.*\b(?:fi|done|esac)[ \t]*$))|"
    r"(?P<closes>(?:fi|done|esac)\b))|(?:^|;)[ \t]*(?:export[ \t]+)?(?P<name>\w+)(?P<added>\+?)="
    r"(?P<value>" + BRACKETS + r"|\"[^\"]*\"|'[^']*'|[^\n;]*)"
)
VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-((?:[^{}]|\{[^{}]*\})*))?\}|(\w+))")
ARITHMETIC = re.compile(r"\$\(\((.+?)\)\)(?!\))")
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
    read = {key: one for key, one in filled.items() if one != settings[key] or POWER_OF_TEN.fullmatch(one)}
    return system, settings | {key: _typed(value) for key, value in read.items()}


def _of_shell(text: str) -> tuple[str, Settings]:
    """Return the arguments of a script's command that starts a training."""
    script = re.sub(r"\\[ \t]*\n", " ", re.sub(r"(?m)^[ \t]*#.*\n|[ \t]#.*$", "", text))
    for system in SYSTEMS:
        if match := re.search(read_table(system).command, script):
            line = _expanded(script[match.end() :].split("\n", 1)[0], _variables(script[: match.start()]))
            words = _split(re.sub(r"\$\([^()]*\)", lambda run: re.sub(r"\W+", "_", run[0]).replace("_", "$", 1), line))
            own = [word for word in words if word in ("$@", "$*")]
            kept = [word for word in words if word not in own]
            return system, dict((_overrides if system == "verl" else _flags)(kept)) | {one: Unread(one) for one in own}
    return "", {}


def _split(line: str) -> list[str]:
    """Return the words of a command, up to its end; of one in the quotes of `bash -c "…"`, up to theirs."""
    try:
        words = shlex.split(line)
    except ValueError:
        words = shlex.split(shlex.split('"' + line)[0])
    return words[: next((place for place, word in enumerate(words) if END_OF_COMMAND.fullmatch(word)), None)]


def _variables(script: str) -> dict[str, str]:
    """Return what a script's variables and arrays hold after it; one that a condition sets stays, as `$name`."""
    known, depth = {"HOME": str(Path.home())}, 0
    for found in STATEMENT.finditer(script):
        depth += bool(found["opens"]) - bool(found["closes"])
        if name := found["name"]:
            value = found["value"].strip()
            before = {name: known[name]} if name in known else {}
            array = value.startswith("(")
            value = value[1:-1] if array or re.fullmatch(r"\"[^\"]*\"|'[^']*'", value) else value
            value = f"${{{name}}} {value}" if found["added"] else value
            certain = not depth or (before and re.search(rf"\$\{{?{name}\b", value))
            whole = _expanded(value, before if depth else known) if certain else "$("
            whole = f"${name}" if "$(" in whole else whole
            known[name] = " ".join(whole.split()) if array or "\n" in whole else whole
    return known


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Put the `known` variables and whole-number arithmetic into a text; what is not known stays, as `$name`."""

    def value(match: re.Match[str]) -> str:
        name, otherwise = match[1] or match[3], match[2]
        if name in known or otherwise is None:
            return known.get(name, match[0] if otherwise is None else "")
        return _expanded(otherwise.strip("\"'"), known)

    def number(match: re.Match[str]) -> str:
        written = re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), match[1])
        found = calculated(written)
        return re.sub(r"\W+", "_", f"${match[1]}").replace("_", "$", 1) if found.startswith("error") else found

    return VARIABLE.sub(value, ARITHMETIC.sub(number, re.sub(r'"?\$\{(\w+)\[[@*]\]\}"?', r"${\1}", text)))


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
        values = [_typed(word.rstrip(",")) for word in ([value] if equals else []) + list(words[start + 1 : end])]
        unread = next((one for one in values if isinstance(one, Unread)), None)
        yield name, unread or (values[0] if len(values) == 1 else values or True)


def _typed(text: str) -> Any:
    """Read a value as YAML does, but `no` as a word, as TRL has it."""
    if "$" in text:
        return Unread(text)
    return text if text in ("no", "yes") else None if text == "None" else parse_override(f"x={text}")[1]
