"""The single thread that owns an engine: it steps while there is work, and runs commands between steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from typing import Generic, Protocol, TypeVar

from rlhf.errors import DeadlinePassed, EngineBroken, Raised, catch
from rlhf.types import Completion, SampledTokens

T = TypeVar("T")


class Steppable(Protocol):
    """The engine's interface for its thread."""

    @property
    def busy(self) -> bool: ...
    def step(self) -> Mapping[str, Completion | SampledTokens]: ...
    def close(self) -> None: ...


E = TypeVar("E", bound=Steppable)


class EngineThread(Generic[E]):
    """`deliver` receives what each step finished; `fail` receives the cause when a step raises, after which there are
    no more steps.

    Every command runs on the thread, so vLLM and torch never run two commands at once. A command's exception is raised
    in its caller; the thread continues.
    """

    def __init__(
        self,
        name: str,
        *,
        deliver: Callable[[Mapping[str, Completion | SampledTokens]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self._deliver, self._fail = deliver, fail
        self._commands: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._engine: E | None = None
        self._stepping = True

    def start(self, build: Callable[[], E], *, timeout_seconds: float) -> None:
        """Build the engine on the thread. An exception of `build` is raised here, and the thread ends."""

        def own() -> None:
            self._engine = build()

        self._thread.start()
        with ExitStack() as failing:
            failing.callback(self._commands.put, None)
            self._put(own, awaited="start", timeout_seconds=timeout_seconds)
            failing.pop_all()

    def run(self, command: Callable[[E], T], *, awaited: str, timeout_seconds: float) -> T:
        """Run the command and return its result. Raises `DeadlinePassed`, naming what was `awaited`."""
        if self._engine is None or not self._thread.is_alive():
            raise EngineBroken(self.name, "it is not running")
        engine = self._engine
        return self._put(lambda: command(engine), awaited=awaited, timeout_seconds=timeout_seconds)

    def stop(self, *, timeout_seconds: float) -> None:
        """End the thread after its current command, and close the engine."""
        if self._thread.ident is None:
            return
        self._commands.put(None)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise DeadlinePassed(f"{self.name}.stop", timeout_seconds)

    def _put(self, command: Callable[[], T], *, awaited: str, timeout_seconds: float) -> T:
        future: Future[T] = Future()
        self._commands.put(lambda: _settle(command, future))
        done, _ = wait([future], timeout_seconds)
        if not done:
            future.cancel()
            raise DeadlinePassed(f"{self.name}.{awaited}", timeout_seconds)
        return future.result()

    def _run(self) -> None:
        while self._obey():
            if self._busy:
                self._step()
        if self._engine is not None:
            self._engine.close()

    @property
    def _busy(self) -> bool:
        return self._stepping and self._engine is not None and self._engine.busy

    def _obey(self) -> bool:
        """Run pending commands, or wait for one when there is nothing to step; False when the thread must end."""
        idle = not self._busy
        while idle or not self._commands.empty():
            command = self._commands.get()
            if command is None:
                return False
            command()
            idle = False
        return True

    def _step(self) -> None:
        assert self._engine is not None
        finished = catch(self._engine.step)
        if isinstance(finished, Raised):
            self._stepping = False
            self._fail(finished.error)
            return
        self._deliver(finished)


def _settle(command: Callable[[], T], future: Future[T]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    outcome = catch(command, also=BaseException)
    if isinstance(outcome, Raised):
        future.set_exception(outcome.error)
    else:
        future.set_result(outcome)
