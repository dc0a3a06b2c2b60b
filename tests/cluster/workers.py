"""Classes that the tests of clusters place in workers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading
import time

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import DataError


class Calculator:
    """Answers, fails, waits and dies as it is told."""

    def __init__(self, index: int = 0) -> None:
        self.index = index
        self._met = threading.Barrier(2)

    def add(self, left: int, right: int = 0) -> int:
        return left + right

    def double(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        return array * 2

    async def later(self, value: str) -> str:
        await asyncio.sleep(0.01)
        return value

    def fail(self) -> None:
        raise KeyError("no such thing")

    def refuse(self) -> None:
        raise DataError("row 3 has no column 'answer'; give data.train.answer_column")

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def meet(self) -> int:
        """Returns only when two calls are in it at the same time."""
        return self._met.wait(timeout=10)

    def variable(self, name: str) -> str | None:
        return os.environ.get(name)

    def ray_node(self) -> str:
        import ray

        return ray.get_runtime_context().get_node_id()

    def pid(self) -> int:
        return os.getpid()

    def say(self, words: str) -> None:
        print(words)
        subprocess.run(["echo", f"child: {words}"], check=True)

    def exit(self, code: int) -> None:
        os._exit(code)


class Office:
    """Has parts that are asked for what they can do."""

    def __init__(self) -> None:
        self._calculator = Calculator(0)

    def opens(self, hours: int, minutes: int = 0) -> str:
        return f"{hours}:{minutes}"

    @property
    def calculator(self) -> Calculator:
        return self._calculator

    @property
    def closed(self) -> Calculator:
        raise RuntimeError("the office is closed")


class Stubborn:
    """Cannot be constructed."""

    def __init__(self) -> None:
        raise DataError("the folder is empty; give model.path")


class Unfinished:
    """Takes longer to construct than its role allows."""

    def __init__(self, seconds: float) -> None:
        time.sleep(seconds)


def imported_ahead() -> None:
    """What a fork server of the tests imports: a module that nothing else does."""
    import colorsys  # noqa: F401
