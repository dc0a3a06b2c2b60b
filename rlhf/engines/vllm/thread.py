"""The single thread that owns an engine: it steps while there is work, and runs commands between steps."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rlhf.engines.vllm.settings import RefusedRequest
from rlhf.errors import DeadlinePassed, EngineBroken, Raised, catch
from rlhf.types import Completion, SampledTokens

if TYPE_CHECKING:
    from rlhf.engines.vllm.vllm_engine import VllmEngine

T = TypeVar("T")


class EngineThread:
    """`deliver` receives what each step finished; `fail` receives the cause when a step raises, after which there are
    no more steps.

    Every command runs on the thread, so vLLM and torch never run two commands at once. A command's exception is raised
    in its caller; the thread continues.
    """

    def __init__(
        self,
        name: str,
        *,
        deliver: Callable[[Mapping[str, Completion | SampledTokens | RefusedRequest]], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.name = name
        self._deliver, self._fail = deliver, fail
        self._commands: queue.SimpleQueue[tuple[Callable[[VllmEngine], Any], Future[Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._engine: VllmEngine | None = None
        self._takes_commands = False
        self._stepping = True

    def start(self, build: Callable[[], VllmEngine], *, timeout_seconds: float) -> None:
        """Build the engine on the thread. An exception of `build` is raised here, and the thread ends."""

        def own(_: VllmEngine) -> None:
            self._engine = build()

        self._thread.start()
        self._takes_commands = True
        with ExitStack() as failing:
            failing.callback(self._end)
            self.run(own, awaited="start", timeout_seconds=timeout_seconds)
            failing.pop_all()

    def run(self, command: Callable[[VllmEngine], T], *, awaited: str, timeout_seconds: float) -> T:
        """Run the command and return its result. Raises `DeadlinePassed`, naming what was `awaited`."""
        if not (self._takes_commands and self._thread.is_alive()):
            raise EngineBroken(self.name, "it is not running")
        future: Future[T] = Future()
        self._commands.put((command, future))
        done, _ = wait([future], timeout_seconds)
        if not done:
            future.cancel()
            raise DeadlinePassed(f"{self.name}.{awaited}", timeout_seconds)
        return future.result()

    def stop(self, *, timeout_seconds: float) -> None:
        """End the thread after its current command, and close the engine."""
        if self._thread.ident is None:
            return
        self._end()
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise DeadlinePassed(f"{self.name}.stop", timeout_seconds)

    def _end(self) -> None:
        self._takes_commands = False
        self._commands.put(None)

    def _run(self) -> None:
        """Run commands in their order, and step while there are none and the engine is busy."""
        while True:
            if self._commands.empty() and self._busy:
                self._step()
            elif work := self._commands.get():
                command, future = work
                with ExitStack() as settling:
                    settling.push(partial(_raised, future))
                    if future.set_running_or_notify_cancel():
                        future.set_result(command(cast("VllmEngine", self._engine)))
            else:
                break
        if self._engine is not None:
            self._engine.close()

    @property
    def _busy(self) -> bool:
        return self._stepping and self._engine is not None and self._engine.busy

    def _step(self) -> None:
        assert self._engine is not None
        finished = catch(self._engine.step)
        if isinstance(finished, Raised):
            self._stepping = False
            self._fail(finished.error)
            return
        self._deliver(finished)


def _raised(future: Future[T], kind: type[BaseException] | None, error: BaseException | None, at: object) -> bool:
    """Give the error of a command to who waits for it; `at` is its traceback. Whether there was one."""
    if error is not None:
        future.set_exception(error)
    return error is not None
