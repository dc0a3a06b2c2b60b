"""Agents that are programs of the shell: each episode runs a command in a folder of its own, then a grader."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import psutil
from pydantic import Field

from rlhf.config import Config, load_piece, load_yaml
from rlhf.errors import ConfigError, RlhfError
from rlhf.rollout.agent_config import AgentConfig, PresetName
from rlhf.types import Task, finite_number
from rlhf.untrusted_text import escape_controls

KEPT = ("PATH", "USER", "LANG", "LC_ALL", "TZ", "TERM", "TMPDIR", "LD_LIBRARY_PATH")
"""Variables of the run that an agent gets. It gets no others: a policy that runs commands could print their secrets."""
OUTPUT_BYTES, LOOK_SECONDS = 1_000_000, 1.0
"""Largest file of a command's output, and how often its size is looked at; a larger one begins anew."""
LOGGED_BYTES = 4_000
"""How much of the end of the output is logged."""
CANNOT_START = (126, 127)
"""Exit statuses of a shell that cannot start a command."""


class KnownAgent(Config):
    """How a known agent is started: its `command`, variables and files in HOME."""

    install: str
    command: tuple[str, ...]
    env: dict[str, str] = Field({})
    files: dict[str, str] = Field({})


@cache
def presets() -> Mapping[PresetName, KnownAgent]:
    text = Path(__file__).with_name("agent_presets.yaml").read_text(encoding="utf-8")
    return {name: KnownAgent(**preset) for name, preset in load_yaml(text).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentCommand:
    """A command with its settings, in whose texts places such as `{prompt}` are filled in for each episode. `log`
    receives the end of each episode's output."""

    words: tuple[str, ...]
    env: Mapping[str, str]
    files: Mapping[str, str]
    workdir: str
    grader: tuple[str, ...]
    grader_prints: bool
    model: str
    log: Path | None

    async def play(self, task: Task, base_url: str, api_key: str) -> Mapping[str, Any]:
        """Play an episode, as an agent program does. Return the `exit_status`, the end of the `output`, and the
        `reward` if there is a grader. At the end, or when it is cancelled, no process is left, and no folder."""
        top = Path(await asyncio.to_thread(tempfile.mkdtemp, prefix="rlhf-agent-"))
        home, work = top / "home", top / "work"
        source = fill_places(self.workdir, task.row)
        places = {
            "prompt": next((one.content for one in reversed(task.messages) if one.role == "user"), ""),
            "model": self.model,
            "base_url": base_url,
            "root_url": base_url.removesuffix("/v1"),
            "api_key": api_key,
            "here": os.getcwd(),
            "workdir": os.path.abspath(source),
        }
        variables = {name: os.environ[name] for name in KEPT if name in os.environ} | {
            "HOME": str(home),
            "PWD": str(work),
            "OPENAI_BASE_URL": places["base_url"],
            "OPENAI_API_KEY": api_key,
            "ANTHROPIC_BASE_URL": places["root_url"],
            "ANTHROPIC_API_KEY": api_key,
        }
        variables |= {name: fill_places(value, places) for name, value in self.env.items()}
        try:
            await asyncio.to_thread(self._lay_out, home, work, source, places)
            status, output = await self._run("agent", self.words, task, places, variables)
            ended: dict[str, Any] = {"exit_status": status, "output": output}
            if self.grader:
                graded = await self._run("grader", self.grader, task, places, variables)
                ended["reward"] = reward_of(*graded, prints=self.grader_prints)
            return ended
        finally:
            await asyncio.to_thread(shutil.rmtree, top, ignore_errors=True)

    def _lay_out(self, home: Path, work: Path, source: str, places: Mapping[str, str]) -> None:
        """Make the folders of an episode. Raises `RlhfError` where there is none to copy."""
        if self.workdir and not os.path.isdir(source):
            raise RlhfError(f"agent.workdir is {source!r}, which is not a folder")
        shutil.copytree(source, work, symlinks=True) if self.workdir else work.mkdir()
        home.mkdir()
        for name, text in self.files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(fill_places(text, places), encoding="utf-8")

    async def _run(
        self, what: str, words: Sequence[str], task: Task, places: Mapping[str, str], variables: Mapping[str, str]
    ) -> tuple[int | None, str]:
        """Run a command in the episode's folder until it exits, then kill what it started. Return its exit status and
        the end of its output, which are also logged."""
        home, status, began = variables["HOME"], None, time.monotonic()
        output = Path(home).with_name(what)
        with output.open("ab") as file:
            process = await asyncio.create_subprocess_exec(
                *(fill_places(word, places) for word in words),
                cwd=variables["PWD"],
                env=variables,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        ending = asyncio.ensure_future(process.wait())
        try:
            while not (await asyncio.wait({ending}, timeout=LOOK_SECONDS))[0]:
                if output.stat().st_size > OUTPUT_BYTES:
                    os.truncate(output, 0)
            status = ending.result()
        finally:
            kill_all(process.pid, home)
            last = output.read_bytes()[-LOGGED_BYTES:].decode(errors="replace")
            if self.log is not None:
                how = "killed at its deadline" if status is None else f"exit status {status}"
                line = f"task {task.id}: {what}: {how} after {time.monotonic() - began:.1f} s"
                with self.log.open("a", encoding="utf-8") as log:
                    log.write(escape_controls(f"{line}\n{last.rstrip()}\n"))
        return status, last


def kill_all(session: int, home: str) -> None:
    """Kill the processes of a session, and those with this HOME, which some agents put into sessions of their own."""
    for _ in range(3):  # one may fork meanwhile
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if os.getsid(process.pid) == session or process.environ().get("HOME") == home:
                    process.kill()


def fill_places(text: str, places: Mapping[str, Any]) -> str:
    """Replace the places of known names in braces; other braces stay."""
    return re.sub(r"\{(\w+)\}", lambda found: str(places.get(found[1], found[0])), text)


def reward_of(status: int | None, output: str, *, prints: bool) -> float:
    """Return the reward of a grader: the number on its last line if it `prints` one, else 1 for exit status 0, or 0.
    Raises `RlhfError` for one that could not be started, or printed no number."""
    if status in CANNOT_START:
        raise RlhfError(f"agent.grader could not be started: {output[-200:]!r}")
    if not prints:
        return float(status == 0)
    last = output.strip().rpartition("\n")[2]
    with contextlib.suppress(ValueError):
        if status == 0 and (number := finite_number(float(last))) is not None:
            return number
    raise RlhfError(f"agent.grader ended with status {status} and the last line {last[-200:]!r}, which is not a number")


def agent_program(config: AgentConfig, log: Path | None = None) -> Callable[..., Any]:
    """Return what plays the episodes of an agent: its function, or its command. Raises `ConfigError`."""
    if config.program is not None:
        return partial(load_piece(config.program, "agent.program"), **config.arguments)
    preset = presets()[config.preset] if config.preset else KnownAgent(install="", command=())
    words, env = config.command or preset.command, preset.env | config.env
    found = shutil.which(words[0], path=env.get("PATH"))
    if found is None:
        how = f"install it with {preset.install}" if preset.install else "install it"
        raise ConfigError(f"agent.command starts {words[0]!r}, which is not on PATH; {how}, or give its path")
    if config.workdir and "{" not in config.workdir and not os.path.isdir(config.workdir):
        raise ConfigError(f"agent.workdir is {config.workdir!r}, which is not a folder here")
    return AgentCommand(
        words=(os.path.abspath(found), *words[1:]),
        env=env,
        files=preset.files | config.files,
        workdir=config.workdir,
        grader=config.grader,
        grader_prints=config.grader_prints,
        model=next(iter(config.models), "policy"),
        log=log,
    ).play
