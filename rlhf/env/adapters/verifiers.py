"""Environments of verifiers, as an agent: verifiers plays the episode itself, and the policy is its model.

It runs in a Python of its own (`verifiers_host.py`), because it needs other versions of packages than we do. The tasks
come from its taskset, the reward and its parts from its rubric.
"""

from __future__ import annotations

import asyncio
import functools
import itertools
import json
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlhf.env.adapters import verifiers_host
from rlhf.errors import ConfigError, DataError, EnvironmentFailed
from rlhf.types import Message, Task

LOAD_SECONDS = 600.0
"""A taskset may fetch its data set first."""


def tasks(python: str, environment: Mapping[str, Any], select: Mapping[str, Any] | None = None) -> list[Task]:
    """Return the tasks of an environment: `environment` is verifiers' `env` section, `select` its choice of tasks.
    Raises `ConfigError`, `DataError`."""
    request = json.dumps({"environment": environment, "select": select or {}}) + "\n"
    try:
        ended = subprocess.run(
            host_command(python, "tasks"),
            input=request,
            capture_output=True,
            text=True,
            timeout=LOAD_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DataError(f"verifiers did not list its tasks within {LOAD_SECONDS:g} s") from None
    if ended.returncode:
        raise DataError(
            f"verifiers has no tasks for {json.dumps(environment)}: {(ended.stderr.splitlines() or ['?'])[-1]}"
        )
    return [
        Task(id=one["key"], messages=(Message(role="user", content=one["question"]),), row=one["row"])
        for one in json.loads(ended.stdout)
    ]


async def play_episode(task: Task, base_url: str, api_key: str, *, python: str, environment: Mapping[str, Any]) -> Any:
    """Play the episode of a task of `tasks`, as `agent.program`. Return its reward and the parts of it."""
    host = await host_of(asyncio.get_running_loop(), python, json.dumps(environment))
    return await host.episode({"row": task.row, "url": base_url, "key": api_key})


@functools.lru_cache(maxsize=8)
def host_of(loop: asyncio.AbstractEventLoop, python: str, environment: str) -> asyncio.Task[Host]:
    """Return the process that plays all episodes of an environment in an event loop."""
    return loop.create_task(Host.start(python, environment))


class Host:
    """The process. It ends when this one does, because its standard input ends."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process, self._numbers = process, itertools.count()
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def start(cls, python: str, environment: str) -> Host:
        pipe = asyncio.subprocess.PIPE
        words = host_command(python, "play")
        process = await asyncio.create_subprocess_exec(*words, stdin=pipe, stdout=pipe, limit=verifiers_host.LINE_BYTES)
        host = cls(process)
        host._send({"environment": json.loads(environment)})
        return host

    async def episode(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request; a cancelled one is cancelled there, too. Raises `EnvironmentFailed`."""
        number = next(self._numbers)
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            if self._reading.done():
                raise EnvironmentFailed("verifiers", "lost", f"its process ended: {self._process.returncode}")
            self._send({"id": number, **request})
            answered = await answer
        finally:
            del self._waiting[number]
            if not answer.done() or answer.cancelled():
                self._send({"id": number})
        if "error" in answered:
            raise EnvironmentFailed("verifiers", "raised", answered["error"])
        return {"reward": answered["reward"], "reward_parts": answered["reward_parts"]}

    def _send(self, request: Mapping[str, Any]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request).encode() + b"\n")

    async def _read(self) -> None:
        assert self._process.stdout is not None
        while line := await self._process.stdout.readline():
            answered = json.loads(line)
            if (waiting := self._waiting.get(answered["id"])) and not waiting.done():
                waiting.set_result(answered)
        code = await self._process.wait()
        for waiting in self._waiting.values():
            waiting.set_exception(EnvironmentFailed("verifiers", "lost", f"its process ended with exit code {code}"))


def host_command(python: str, what: str) -> list[str]:
    """Return the words that start the host. Raises `ConfigError` where the interpreter is missing."""
    found = Path(python).expanduser().absolute()
    if not found.is_file():
        raise ConfigError(
            f"python is {python}, which is not there: make it by `python -m venv FOLDER`, install verifiers and the "
            "environment's package into it, and give FOLDER/bin/python"
        )
    return [str(found), "-P", verifiers_host.__file__, what]
