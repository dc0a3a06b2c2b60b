"""The command line starts fast, and ends as a shell expects."""

from __future__ import annotations

import getpass
import importlib
import inspect
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from rlhf.apps.cli import main as cli
from rlhf.apps.cli.options import all_options, default_text, type_name
from rlhf.config import known_keys
from rlhf.errors import UserError
from rlhf.recipe.schema import Recipe
from tests.apps.cli.conftest import Command
from tests.pace import scaled

ROOT = Path(__file__).parents[3]
RLHF = Path(sys.executable).parent / "rlhf"


def test_help_has_every_command_once_on_one_line_in_half_a_second_of_the_processor():
    before = processor_seconds()
    ended = subprocess.run([RLHF, "--help"], capture_output=True, text=True, timeout=scaled(60))
    assert processor_seconds() - before < 0.5
    shown = re.findall(r"^  (\w+) {2,}[A-Z].*[^.]\.$", ended.stdout, re.MULTILINE)
    assert sorted(shown) == sorted(typer.main.get_group(cli.app).commands)


def test_every_command_takes_what_its_signature_reads():
    for group in (cli.app, cli.serve, cli.env, cli.rewards):
        for one in group.registered_commands:
            if name := inspect.getclosurevars(one.callback).nonlocals.get("name"):
                run = vars(importlib.import_module(f"rlhf.apps.cli.{name}"))[f"run_{name}"]
                given = inspect.signature(one.callback).parameters
                inspect.signature(run).bind(**given)
                inspect.signature(run).bind(**{key: one for key, one in given.items() if one.default is not None})


def processor_seconds() -> float:
    """Of all children that have ended."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def test_the_command_line_imports_nothing_heavy():
    heavy = "('numpy', 'pydantic', 'torch', 'ray', 'vllm')"
    program = f"import sys, rlhf.apps.cli.main; sys.exit(any(m in sys.modules for m in {heavy}))"
    assert subprocess.run([sys.executable, "-c", program], timeout=scaled(60)).returncode == 0


def run_main(monkeypatch: pytest.MonkeyPatch, outcome: BaseException) -> int:
    """The exit code of `main` when a command ends with `outcome`."""

    def ends() -> None:
        raise outcome

    monkeypatch.setattr(cli, "app", ends)
    with pytest.raises(SystemExit) as caught:
        cli.main()
    return caught.value.code


def test_ctrl_c_is_130(monkeypatch: pytest.MonkeyPatch):
    assert run_main(monkeypatch, KeyboardInterrupt()) == 130


def test_ctrl_c_within_a_command_is_130(monkeypatch: pytest.MonkeyPatch):
    interrupted = typer.Typer()

    @interrupted.command()
    def wait() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "app", interrupted)
    monkeypatch.setattr(sys, "argv", ["rlhf"])
    with pytest.raises(SystemExit) as caught:
        cli.main()
    assert caught.value.code == 130


def test_options_lists_every_key_with_its_meaning():
    listed = {option.key: option for option in all_options()}
    groups = {key for key in known_keys(Recipe) if any(other.startswith(key + ".") for other in known_keys(Recipe))}
    assert set(listed) == set(known_keys(Recipe)) - groups
    assert [key for key, option in listed.items() if not option.meaning] == []


def test_options_in_a_pipe_are_lines_for_grep(rlhf: Command):
    lines = rlhf("options", "trainer.loss").stdout.splitlines()
    assert all(line.startswith("trainer.loss.") and line.count("\t") == 3 for line in lines)
    assert "trainer.loss.clip_low\tnumber\t0.2\tRatios below `1 - clip_low` are clipped." in lines


def test_options_with_a_prefix_that_nothing_has_is_refused(rlhf: Command):
    ended = rlhf("options", "trainer.los.clip")
    assert ended.returncode == 2
    assert "did you mean 'trainer.loss.clip" in ended.stderr


def test_types_and_defaults_read_as_one_writes_them():
    assert type_name(int | None) == "int | null"
    assert type_name(tuple[float, float]) == "[number, number]"
    assert type_name(tuple[str, ...]) == "list of text"
    fields = {key: option for option in all_options() if (key := option.key)}
    assert fields["trainer.optimizer.learning_rate"].default == "1e-06"
    assert default_text(Recipe.model_fields["model"]) == "required"
    assert fields["sampling.stop_token_ids"].type == "list of int"
    assert fields["reward.on_scorer_failure"].type == "unscored | number | null"
    assert fields["callbacks.arguments"].default == "{}"
    assert not [option for option in fields.values() if option.type != option.type.lower()], "names of Python's types"


def test_the_doctor_finds_this_machine_fit(rlhf: Command):
    ended = rlhf("doctor")
    assert ended.returncode == 0, ended.stdout
    for subject in ("python", "torch", "ray", "vllm", "cores", "threads", "ports", "/dev/shm", "disk"):
        assert f" {subject} " in ended.stdout


def test_ctrl_c_while_the_command_line_is_imported_ends_quietly(tmp_path: Path):
    (tmp_path / "typer.py").write_text("raise KeyboardInterrupt")
    ended = subprocess.run(
        [sys.executable, "-m", "rlhf"], env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "")


def test_files_are_read_as_utf8_in_every_locale_and_a_program_that_does_not_is_refused(tmp_path: Path):
    recipe = tmp_path / "utf8.yaml"
    recipe.write_text(f"base: {ROOT / 'recipes' / 'quickstart.yaml'}\nrun: {{dir: größer}}\n", encoding="utf-8")
    ascii_only = {"PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "LC_ALL": "C"}
    program = f"import rlhf; rlhf.Trainer.from_recipe('quickstart', 'run.dir={tmp_path}/run').fit()"
    ended = [
        subprocess.run(words, env=os.environ | ascii_only, capture_output=True, text=True, cwd=tmp_path)
        for words in ([str(RLHF), "check", str(recipe)], [sys.executable, "-c", program])
    ]
    assert ended[0].returncode == 0, ended[0].stderr
    assert "in größer" in ended[0].stdout
    assert "ConfigError: this Python's locale reads and writes files in" in ended[1].stderr
    assert "set PYTHONUTF8=1" in ended[1].stderr


def test_a_folder_that_is_gone_and_a_user_without_a_home_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def nobody(user: int) -> None:
        raise KeyError(user)

    monkeypatch.setattr("pwd.getpwuid", nobody)
    for name in ("HOME", "USER", "LOGNAME", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match=rf"user {os.getuid()} has no home; set HOME to a folder"):
        cli.check_surroundings()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOGNAME", "")
    cli.check_surroundings()
    assert getpass.getuser() == str(os.getuid())  # which libraries ask for, and which raises without a name
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Path, "cwd", lambda: os.stat("/nowhere"))
    with pytest.raises(UserError, match="the current folder was deleted"):
        cli.check_surroundings()
