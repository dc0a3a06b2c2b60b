"""Obey `rlhf engines` while a run goes on."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from rlhf.controller.engine_keeper import EngineKeeper
from rlhf.errors import RlhfError
from rlhf.runs.engine_requests import EnginesAnswer, EnginesRequest, answer, taken_requests

LOOK_SECONDS = 1.0


@asynccontextmanager
async def obeying(keeper: EngineKeeper, folder: Path) -> AsyncIterator[None]:
    """Take and answer the requests in a folder until the end of the block, one after the other."""
    task = asyncio.create_task(_obey(keeper, folder))
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _obey(keeper: EngineKeeper, folder: Path) -> None:
    while True:
        for taken, request in await asyncio.to_thread(taken_requests, folder):
            refused = await _done(keeper, request)
            await asyncio.to_thread(answer, taken, EnginesAnswer(serving=keeper.serving, refused=refused))
        await asyncio.sleep(LOOK_SECONDS)


async def _done(keeper: EngineKeeper, request: EnginesRequest) -> str:
    """Do what is asked; return why it was refused, or ""."""
    try:
        if request.do == "add":
            await keeper.add(request.count)
        elif request.do == "remove":
            await keeper.remove(request.name)
    except RlhfError as error:
        return str(error)
    return ""
