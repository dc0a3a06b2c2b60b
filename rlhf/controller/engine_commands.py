"""Obey `rlhf engines` while a run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from rlhf.controller.engine_keeper import EngineKeeper, ended
from rlhf.errors import RlhfError
from rlhf.runs.engine_requests import EnginesAnswer, EnginesRequest, answer, taken_requests

LOOK_SECONDS = 1.0


@asynccontextmanager
async def obeying(keeper: EngineKeeper, folder: Path) -> AsyncIterator[None]:
    """Take and answer the requests in a folder until the end of the block."""
    tasks: set[asyncio.Task[None]] = set()
    tasks.add(asyncio.create_task(_obey(keeper, folder, tasks)))
    try:
        yield
    finally:
        await ended(tasks)


async def _obey(keeper: EngineKeeper, folder: Path, tasks: set[asyncio.Task[None]]) -> None:
    """Give each request a task of its own: starts take minutes, and a list is wanted at once."""
    while True:
        for taken, request in await asyncio.to_thread(taken_requests, folder):
            tasks.add(asyncio.create_task(_answer(keeper, taken, request)))
        await asyncio.sleep(LOOK_SECONDS)


async def _answer(keeper: EngineKeeper, taken: Path, request: EnginesRequest) -> None:
    refused = ""
    try:
        if request.do == "add":
            await keeper.add(request.count)
        elif request.do == "remove":
            await keeper.remove(request.name)
    except RlhfError as error:
        refused = str(error)
    await asyncio.to_thread(answer, taken, EnginesAnswer(serving=keeper.serving, refused=refused))
