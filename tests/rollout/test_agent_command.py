"""Agents that are commands: their folder, variables, output, grader and end."""

from __future__ import annotations

import asyncio
import os
import re
import sys
import time
from pathlib import Path
from typing import Any, get_args

import psutil
import pytest

from rlhf.errors import ConfigError, RlhfError
from rlhf.rollout import agent_command
from rlhf.rollout.agent_command import agent_program, presets, reward_of
from rlhf.rollout.agent_config import AgentConfig, PresetName
from rlhf.types import Failed, Group, Message, Task
from tests.docs.blocks import ROOT
from tests.rollout.test_agent import played, scripted

pytestmark = pytest.mark.waits

ASKS = """
import json, os, sys, urllib.request
asked = {"model": "policy", "messages": [{"role": "user", "content": sys.argv[1]}]}
headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, json.dumps(asked).encode(), headers)) as answer:
    said = json.load(answer)["choices"][0]["message"]["content"]
open("answer", "w").write(said)
print(sorted(os.environ), sys.argv[2:], os.getcwd() == os.environ["PWD"], open("given").read())
sys.exit(7)
"""
TASK = Task(
    id="t",
    messages=(Message(role="user", content="old"), Message(role="user", content="{model}?")),
    row={"name": "one"},
)


def python(code: str, *words: str, **settings: Any) -> AgentConfig:
    return AgentConfig(command=(sys.executable, "-c", code, *words), **settings)


def folders() -> list[str]:
    return [name for name in os.listdir(os.environ["TMPDIR"]) if name.startswith("rlhf-agent-")]


@pytest.fixture(autouse=True)
def scratch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("WANDB_API_KEY", "secret")


async def test_a_command_plays_in_a_copy_of_its_folder_and_the_grader_judges_what_it_left(tmp_path: Path) -> None:
    (tmp_path / "of-one").mkdir()
    (tmp_path / "of-one" / "given").write_text("its text")
    config = python(
        ASKS, "{prompt}", "{model}", "{nothing}",
        workdir=f"{tmp_path}/of-{{name}}", env={"MINE": "{base_url}"}, files={".a/b": "{root_url}"},
        grader=("sh", "-c", 'grep -q /sessions/ "$HOME/.a/b" && grep -q yes answer && test -e {workdir}/given'),
    )  # fmt: skip
    group = await played(config, scripted("yes", "no"), size=2, task=TASK, log=tmp_path / "agents.log")
    assert isinstance(group, Group)
    assert {trajectory.response: score.value for _, trajectory, score in group.trainable} == {"yes": 1.0, "no": 0.0}
    [info] = group.trainable[0][1].env_info
    assert info["exit_status"] == 7, "with a reply the reward decides"
    assert group.trainable[0][1].conversation[0].content == "{model}?", "a prompt is not filled in"
    assert "['policy', '{nothing}'] True its text" in info["output"]
    assert "'MINE'" in info["output"]
    assert "WANDB" not in info["output"]
    assert "task t: agent: exit status 7" in (tmp_path / "agents.log").read_text()
    assert folders() == []
    assert not (tmp_path / "of-one" / "answer").exists()


@pytest.mark.parametrize(
    ("config", "kind", "said"),
    [
        (python("print('no key'); raise SystemExit(3)"), "agent_raised", r"exited with status 3 .*last output: no key"),
        (python("print('bye')"), "agent_silent", "without receiving a reply; its last output: bye"),
        (python("", workdir="/nowhere/{name}"), "agent_raised", "agent.workdir is '/nowhere/one', which is not"),
    ],
)
async def test_a_command_without_a_reply_is_a_failure_with_its_last_words(
    config: AgentConfig, kind: str, said: str
) -> None:
    outcome = await played(config, scripted(), size=1, task=TASK)
    assert isinstance(outcome, Failed)
    assert re.search(said, outcome.detail)
    assert kind in repr(outcome.samples)


async def test_the_deadline_kills_all_that_a_command_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_command, "LOOK_SECONDS", 0.05)
    words = ("sh", "-c", "setsid sleep 98.7 & env -i sleep 98.7 & yes")
    outcome = await played(
        AgentConfig(command=words, timeout_seconds=1), scripted(), size=1, task=TASK, log=tmp_path / "log"
    )
    assert isinstance(outcome, Failed)
    until = time.monotonic() + 20
    while folders() or any("98.7" in (one.info["cmdline"] or ()) for one in psutil.process_iter(["cmdline"])):
        assert time.monotonic() < until
        await asyncio.sleep(0.1)
    assert "killed at its deadline" in (tmp_path / "log").read_text()
    assert (tmp_path / "log").stat().st_size < 2 * agent_command.LOGGED_BYTES


def test_a_grader_gives_a_number_or_fails() -> None:
    assert [reward_of(status, "9", prints=False) for status in (0, 1, -9)] == [1.0, 0.0, 0.0]
    assert reward_of(0, "noise\n0.25\n", prints=True) == 0.25
    for status, output, prints in ((127, "sh: not found", False), (0, "nan", True), (0, "", True), (1, "1", True)):
        with pytest.raises(RlhfError, match=r"agent\.grader"):
            reward_of(status, output, prints=prints)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"command": ["nowhere-to-be-found"]}, "'nowhere-to-be-found', which is not on PATH; install it, or give its"),
        (
            {"preset": "pi", "env": {"PATH": "/nowhere"}},
            "install it with npm install -g @mariozechner/pi-coding-agent@",
        ),
        ({"command": ["sh"], "workdir": "nowhere"}, r"agent\.workdir is 'nowhere', which is not a folder"),
    ],
)
def test_what_is_not_there_is_told_before_anything_starts(settings: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        agent_program(AgentConfig(**settings))


def test_every_preset_asks_what_the_task_says() -> None:
    assert set(presets()) == set(get_args(PresetName))
    assert all("{prompt}" in preset.command and preset.install for preset in presets().values())


def test_our_docs_and_pins_have_the_versions_of_the_presets() -> None:
    told = (ROOT / "docs" / "ecosystem.md").read_text()
    for preset in presets().values():
        version = re.search(r"[@=](\d[\d.]+\d)", preset.install)
        assert version
        assert version[1] in told, preset.install
    pins = (ROOT / "requirements" / "ecosystem" / "mini_swe_agent.txt").read_text()
    assert presets()["mini-swe-agent"].install.split()[2] in pins.split()
