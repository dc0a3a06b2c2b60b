"""Read the settings of a configuration of another system, and what each means by the tables in this folder. Nothing of
a configuration is executed."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from rlhf.config import flatten, load_yaml, parse_override
from rlhf.env.tools import calculated
from rlhf.errors import ConfigError
from rlhf.recipe.loading import other_names

Settings = dict[str, Any]
SYSTEMS = ("verl", "openrlhf", "trl")
CONSTRUCTED = {"GRPOConfig": "", "GRPOTrainer": "", "LoraConfig": "lora_"}
"""Classes whose arguments are settings of TRL, with the beginning that its command line gives their names."""
PEFT_DEFAULTS = {"lora_r": 8, "lora_alpha": 8}
"""Of peft's `LoraConfig`; TRL's own options have others."""
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


class Unread(str):
    """A value that only a run of the program would tell, as its source."""

    __slots__ = ()


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
        parts = [one for one in self.spellings if name == one or (one.endswith(".") and name.startswith(one))]
        known = name if name in parts else next(iter(parts), "")
        return self.spellings.get(known, "") + name.removeprefix(known)

    def meaning(self, name: str, value: Any) -> Meaning:
        """Return the meaning of one setting for itself."""
        if value is None or value in self.same.get(name, ()):
            return Meaning(names=(name,), values={}, same=True)
        choices, key = self.values.get(name, {}), self.key(name)
        copied = dict.fromkeys(key.split(", "), value) if key else None
        converted = choices.get(value if isinstance(value, Hashable) else str(value), copied)
        if converted is None:
            among = f"only {', '.join(map(str, choices))} have a counterpart" if choices else ""
            return Meaning(names=(name,), values={}, why=self.why(name) or among)
        taken = {key: one for key, one in converted.items() if key != "why"}
        return Meaning(names=(name,), values=taken, why=converted.get("why", ""), same=not taken)

    def key(self, name: str) -> str | None:
        """Return our key, or several, with the same value: of the table, or the only one that `other_names` offers."""
        if pattern := _match(name, self.keys):
            return self.keys[pattern].replace("*", name.removeprefix(pattern.rstrip("*")))
        meant = () if name in self.values or self.why(name) or "." in name else other_names().get(name, ())
        return meant[0] if len(meant) == 1 else None

    def why(self, name: str) -> str:
        """Return why a setting has no counterpart, and what to do instead; empty if it is not in the table."""
        return self.without.get(_match(name, self.without), "")


def _match(name: str, patterns: Mapping[str, object]) -> str:
    """Return the first pattern of a name; the name itself comes before."""
    return name if name in patterns else next((one for one in patterns if fnmatchcase(name, one)), "")


@cache
def read_table(system: str) -> Table:
    """Read the table of `trl`, `verl` or `openrlhf`."""
    return Table(**yaml.safe_load(resources.files(__package__).joinpath(f"{system}.yaml").read_text()))


def read_settings(path: Path) -> tuple[str, Settings]:
    """Return the system whose configuration a file is, and its settings by dotted names. Raises `ConfigError`."""
    kinds = {".py": _of_python, ".yaml": _of_tree, ".yml": _of_tree, ".json": _of_tree}
    try:
        system, settings = kinds.get(path.suffix, _of_shell)(path.read_text())
    except (OSError, SyntaxError, yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from None
    if not settings:
        raise ConfigError(f"{path} is not recognised: it gives no settings of {KNOWN}")
    return system, settings


def _of_python(text: str) -> tuple[str, Settings]:
    """Return the arguments of TRL's classes that a program constructs, of GRPOConfig once."""
    tree, settings = ast.parse(text), Settings()
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called_name(node) in CONSTRUCTED]
    configs = [str(call.lineno) for call in calls if called_name(call) == "GRPOConfig"]
    if len(configs) > 1:
        raise ValueError(f"GRPOConfig is constructed on lines {', '.join(configs)}; keep one")
    given_names = [*reversed([*ast.walk(tree)]), *tree.body]  # those at the top of the program last, so that they win
    known = {ast.unparse(one.targets[0]): one.value for one in given_names if isinstance(one, ast.Assign)}
    for name, node in list(known.items()):
        pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
        known |= {f"{name}[{ast.unparse(key)}]": value for key, value in pairs if key}
    for call in calls if configs else ():
        name, beginning = called_name(call), CONSTRUCTED[called_name(call)]
        given = {f"{name} argument {place}": one for place, one in enumerate(call.args, 1)}
        for one in call.keywords:
            given[beginning + one.arg.removeprefix(beginning) if one.arg else f"**{ast.unparse(one.value)}"] = one.value
        if name == "LoraConfig" and not any(key.startswith("**") for key in given):
            settings |= PEFT_DEFAULTS
        meant = {key: known.get(ast.unparse(node), node) for key, node in given.items()}
        settings |= {key: _literal(node, known) for key, node in meant.items() if called_name(node) not in CONSTRUCTED}
    return "trl", dict(flatten(settings))


def called_name(node: ast.expr) -> str:
    """Return the last name of what is called; empty for other expressions."""
    return ast.unparse(node.func).rpartition(".")[2] if isinstance(node, ast.Call) else ""


def _literal(node: ast.expr, known: Mapping[str, ast.expr]) -> Any:
    """Return the value of an expression, with `known` names in its arithmetic; `torch.bfloat16` is `bfloat16`."""
    source = ast.unparse(node)
    if isinstance(node, ast.BinOp):
        written = re.sub(r"[^\W\d]\w*", lambda one: ast.unparse(known.get(one[0], ast.Name(one[0]))), source)
        source = source if (found := calculated(written)).startswith("error") else found
    try:
        return ast.literal_eval(re.sub(r"\btorch\.(\w+)", r"'\1'", source))
    except (ValueError, TypeError, SyntaxError):
        return Unread(source)


def _of_tree(text: str) -> tuple[str, Settings]:
    """Return the settings of a YAML or JSON file, in which `${a.b}` refers to another one."""
    tree = load_yaml(text)
    system = next((one for one in SYSTEMS if isinstance(tree, dict) and {*read_table(one).trees} & {*tree}), "")
    settings = dict(flatten(tree)) if system else {}
    for key, value in [(key, value) for key, value in settings.items() if isinstance(value, str)]:
        filled = INTERPOLATION.sub(lambda name: str(settings.get(name[1], name[0])), value)
        settings[key] = _typed(filled) if filled != value or POWER_OF_TEN.fullmatch(value) else value
    return system, settings


def _of_shell(text: str) -> tuple[str, Settings]:
    """Return the arguments of a script's command that starts a training."""
    script = re.sub(r"\\[ \t]*\n", " ", re.sub(r"(?m)^[ \t]*#.*\n|[ \t]#.*$", "", text))
    for system in SYSTEMS:
        if match := re.search(read_table(system).command, script):
            before, line = script[: match.start()], script[match.end() :].split("\n", 1)[0]
            started = re.search(r"--(num_processes)[ =](\d+)[^\n]*$", before) if system == "trl" else None
            line = re.sub(r"\$\([^()]*\)", _as_name, _expanded(line, _variables(before)))
            return system, _arguments(_split(line)) | ({started[1]: int(started[2])} if started else {})
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
            if array := value.startswith("(") or re.fullmatch(r"\"[^\"]*\"|'[^']*'", value):
                value = value[1:-1]
            value = f"${{{name}}} {value}" if found["added"] else value
            before = {name: known[name]} if name in known and re.search(rf"\$\{{?{name}\b", value) else {}
            whole = _expanded(value, before if depth else known) if before or not depth else "$("
            known[name] = f"${name}" if "$(" in whole else " ".join(whole.split()) if array else whole
    return known


def _expanded(text: str, known: Mapping[str, str]) -> str:
    """Put the `known` variables and whole-number arithmetic into a text; what is not known stays, as `$name`."""

    def value(match: re.Match[str]) -> str:
        name, otherwise = match[1] or match[3], match[2]
        return known.get(name, match[0] if otherwise is None else _expanded(otherwise.strip("\"'"), known))

    def number(match: re.Match[str]) -> str:
        found = calculated(re.sub(r"\$?\{?([A-Za-z_]\w*)\}?", lambda name: known.get(name[1], name[0]), match[1]))
        return _as_name(match) if found.startswith("error") else found

    return VARIABLE.sub(value, ARITHMETIC.sub(number, re.sub(r'"?\$\{(\w+)\[[@*]\]\}"?', r"${\1}", text)))


def _as_name(run: re.Match[str]) -> str:
    """Return what only a run would tell as one word, which stays."""
    return "$" + re.sub(r"\W+", "_", run[0]).strip("_")


def _arguments(words: Sequence[str]) -> Settings:
    """Read Hydra's `key=value`, and flags: `--name value`, `--name=value`, `--name a b`, `--name`."""
    settings, flags, opened = Settings(), dict[str, list[Any]](), ""
    for word in words:
        name, equals, value = word.lstrip("+-").partition("=")
        if word.startswith("--"):
            settings[name], opened = None, "" if equals else name
            flags[name] = [_typed(value)] if equals else []
        elif equals and re.fullmatch(r"[a-z]\w*(\.[\w.]+)+", name):
            settings[name], opened = _typed(value), ""
        elif not opened or word in ("$@", "$*"):
            settings[word] = Unread(word)
        else:
            flags[opened].append(_typed(word.rstrip(",")))
    for name, values in flags.items():
        known = values[0] if len(values) == 1 else values or True
        settings[name] = next((one for one in values if isinstance(one, Unread)), known)
    return settings


def _typed(text: str) -> Any:
    """Read a value as a recipe's."""
    if "$" in text:
        return Unread(text)
    return None if text == "None" else parse_override(f"x={text}")[1]
