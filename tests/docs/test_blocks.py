"""Every code block of README, CONTRIBUTING and docs/ is what it says: Python runs, recipes load, commands are taken.

A block that cannot be run here has an HTML comment above it that says why, `<!-- block: by name: WHY -->`: all that it
imports from `rlhf` must be there, with every attribute that it takes.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml
from typer.core import TyperGroup

from rlhf.apps.cli.init import run_init
from rlhf.apps.cli.main import app
from rlhf.errors import ConfigError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.shipped import recipe_file
from rlhf.runs.episode_parts import write_part
from rlhf.runs.records import EpisodeOutcome, EpisodeRecord
from tests.docs.blocks import PAGES, ROOT, Block, Said, blocks, commands
from tests.small_tasks import sorting
from tests.warm.command_line import rlhf

BLOCKS = blocks()
LANGUAGES = {"python", "yaml", "bash", "console", "json", "toml", "text"}
TOP_LEVEL_AWAIT = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
TAKES_RECIPES = {f"rlhf {name}" for name in ("train", "check", "plan", "score", "slurm", "kubernetes")}
MOMENTS = {"rlhf check", "rlhf score", "rlhf reward check"}
"""Commands that are run, for they take a moment."""
PARTS = {one.name for one in (*ROOT.iterdir(), *(ROOT / "rlhf").iterdir(), *(ROOT / "rlhf" / "trainer").iterdir())}
TRAINED_ON = ("rl", "sft", "distill", "reward_model", "preference")
"""Kinds that need `data.train`."""


def of(*languages: str, run: bool | None = None) -> pytest.MarkDecorator:
    chosen = [b for b in BLOCKS if b.language in languages and (run is None or run == (not b.mark))]
    return pytest.mark.parametrize("block", chosen, ids=lambda block: block.name)


def test_every_block_names_its_language_and_every_mark_belongs_to_one() -> None:
    assert {block.name: block.language for block in BLOCKS if block.language not in LANGUAGES} == {}
    marks = sum(page.read_text().count("<!-- block:") for page in PAGES)
    assert marks == sum(bool(block.mark) for block in BLOCKS)
    assert all(re.fullmatch(r"by name: .+", block.mark) for block in BLOCKS if block.mark)


def test_no_block_is_only_indented() -> None:
    """Which would be a block that nobody looks at."""
    for page in PAGES:
        prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        assert re.findall(r"\n\n    \S.*", prose) == [], page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    """From the checkout, from `rlhf/`, or beside what an update is made of (`rlhf/trainer/`, in architecture.md)."""
    named = set(re.findall(r"`([\w-]+/[\w./-]*(?:\.(?:py|yaml|sh|txt|toml)|/))`", page.read_text()))
    ours = {one for one in named if one.split("/")[0] in PARTS and not one.startswith("runs/quickstart")}
    roots = (ROOT, ROOT / "rlhf", ROOT / "rlhf" / "trainer")
    assert {one for one in ours if not any((root / one).exists() for root in roots)} == set()


def test_the_reading_spine_is_short() -> None:
    spine = re.findall(r"^\d+\. `([\w/]+\.py)`", (ROOT / "docs" / "architecture.md").read_text(), re.MULTILINE)
    assert 15 <= len(spine) <= 25
    assert sum(len((ROOT / "rlhf" / file).read_text().splitlines()) for file in spine) <= 4_500


@of("python", run=True)
def test_python_runs(block: Block, folder: Path) -> None:
    names: dict[str, Any] = {"__name__": "documented"}
    exec(compile(block.source, block.name, "exec"), names)
    assert any(not name.startswith("__") for name in names)


@of("python", run=False)
def test_python_that_is_not_run_takes_what_is_there(block: Block) -> None:
    """Names are followed from imports of `rlhf` to their attributes; the mark names what is neither imported nor
    made."""
    tree = compile(block.source, block.name, "exec", ast.PyCF_ONLY_AST | TOP_LEVEL_AWAIT)
    bound = set(dir(builtins))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "rlhf":
            for one in node.names:
                assert is_there(str(node.module), one.name, attributes_of(tree, one.name)), one.name
        if isinstance(node, ast.Import | ast.ImportFrom):
            bound |= {one.asname or one.name for one in node.names}
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.add(node.id)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            bound |= {node.name, *(one.arg for one in node.args.args)}
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)}
    assert {name for name in read - bound if name not in block.mark} == set()


def attributes_of(tree: ast.AST, name: str) -> set[str]:
    """What is taken from the name itself."""
    return {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name
    }


def is_there(module: str, name: str, attributes: set[str]) -> bool:
    """Whether the module has the name, with its attributes. One that needs a package of others is only read."""
    try:
        found = getattr(importlib.import_module(module), name)
    except ConfigError:
        source = (ROOT / Path(*module.split("."))).with_suffix(".py").read_text()
        return re.search(rf"^(class|def) {name}\b", source, re.MULTILINE) is not None
    return all(hasattr(found, attribute) for attribute in attributes)


@of("yaml")
def test_a_recipe_or_a_part_of_one_is_taken(block: Block, tmp_path: Path) -> None:
    """A part is put into a recipe that has what is missing: a model, and data to train on."""
    values = yaml.safe_load(block.source)
    if base := values.get("base"):
        values["base"] = str(ROOT / "recipes" / base)
    else:
        values["model"] = {} if "tiny" in (model := values.get("model", {})) else {"path": "owner/model"}
        values["model"] |= model
        if values.get("kind", "rl") in TRAINED_ON:
            values["data"] = {"train": sorting()} | values.get("data", {})
    (tmp_path / "part.yaml").write_text(yaml.safe_dump(values))
    load_recipe(tmp_path / "part.yaml")


@of("json")
def test_json_is_json(block: Block) -> None:
    json.loads(block.source)


@of("toml")
def test_toml_is_toml(block: Block) -> None:
    tomllib.loads(block.source)


@of("bash", "console")
def test_commands_are_taken_and_say_what_is_shown(block: Block, folder: Path) -> None:
    """Those that take a moment are run, where what they read is there; all others are parsed."""
    said = list(commands(block))
    assert said
    for one in said:
        if "rlhf" in one.words:
            check_rlhf(one, folder)
        elif one.words[0] == "cat":
            (folder / one.words[1]).write_text("\n".join(one.output) + "\n")
        elif one.words[0] == "make":
            assert re.search(rf"^{one.words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), one.words
        elif "-m" in one.words and one.words[one.words.index("-m") + 1] == "benchmarks":
            assert (ROOT / "benchmarks" / one.words[one.words.index("-m") + 2] / "command.py").exists(), one.words
        for word in one.words:
            if word.startswith(("recipes/", "requirements/", "scripts/")):
                assert (ROOT / word).exists(), word


def check_rlhf(said: Said, folder: Path) -> None:
    """The command line takes the words, and a recipe of the library its overrides. Where something is shown under a
    command that takes a moment, it is what the command says."""
    words = list(said.words[said.words.index("rlhf") + 1 :])
    context = parsed(words)
    named = context.params.get("recipe") or context.params.get("reward")
    overrides = context.params.get("overrides") or []
    shown = [timeless(line) for line in said.output if line.strip() not in ("", "…")]
    read = [str(one) for one in (named, context.params.get("rows")) if one and ("." in str(one) or "/" in str(one))]
    if not all((folder / one).exists() for one in read):
        return
    if context.command_path in TAKES_RECIPES and not (shown and shown[0].startswith("error: ")):
        load_recipe(recipe_file(folder / str(named)), overrides)
    if context.command_path in MOMENTS and shown:
        ended = rlhf(*words, folder=folder)
        told = [timeless(line) for line in (ended.stdout + ended.stderr).splitlines()]
        assert [line for line in shown if line not in told] == [], ended.stdout + ended.stderr


def timeless(line: str) -> str:
    return re.sub(r"\d+ rows/s", "N rows/s", line)


def parsed(words: list[str]) -> typer.Context:
    """The command that the words call, with its arguments parsed and nothing run."""
    command: Any = typer.main.get_command(app)
    context, rest, name = None, words, "rlhf"
    while True:
        context = command.make_context(name, list(rest), parent=context)
        if not isinstance(command, TyperGroup):
            return context
        name, command, rest = command.resolve_command(context, [*context._protected_args, *context.args])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: Block) -> Path:
    """A folder to run a block in: the recipes, the projects that the page makes and the files that it shows, and a run
    whose episodes can be read."""
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for one in BLOCKS:
        if one.page == block.page and (made := re.search(r"^(?:\$ )?rlhf init (\w+)", one.source, re.MULTILINE)):
            run_init(tmp_path / made[1], "reward")
        if one.page == block.page and (name := re.match(r"# ((?:first/)?\w+\.py)\n", one.source)):
            (tmp_path / name[1]).write_text(one.source)
    run = tmp_path / "runs" / "quickstart"
    run.mkdir(parents=True)
    record = EpisodeRecord(
        ordinal=0, sample=0, task="t", outcome=EpisodeOutcome.TRAINED, admitted_version=0, reward=1.0, response="12345",
        prompt=[{"role": "user", "content": "52431"}],
    )  # fmt: skip
    (run / "episodes").mkdir()
    write_part(run / "episodes", 1, [record])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path
