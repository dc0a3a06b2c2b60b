"""`rlhf drill`: trains a recipe for some minutes, breaks its parts one by one, and reports what came of each."""

from __future__ import annotations

import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from textwrap import shorten
from threading import Thread

import psutil

from rlhf.apps.cli.audit import run_audit
from rlhf.cluster.roles import table
from rlhf.controller.attempt import updates_of
from rlhf.controller.preemption import EXIT_SAVED
from rlhf.errors import UserError
from rlhf.recipe.loading import load_recipe
from rlhf.runs.folder import RunFolder
from rlhf.runs.restarts import read_restarts

SETTINGS = (
    "trainer.updates=100000", "trainer.eval_every=0", "trainer.save_every=2", "trainer.deepspeed.timeout_seconds=30",
    "rollout.silence_timeout_seconds=5", "run.silence_minutes=0.33", "run.max_restarts=20",
)  # fmt: skip
"""These replace the recipe's values, so that faults are noticed soon; the user's values replace these."""
START_SECONDS, RECOVERY_SECONDS, END_SECONDS = 600.0, 240.0, 180.0
ROUTINE = re.compile(r"update |evaluation after|warm-up |a reply|…|  |\[")
"""Beginnings of lines that a run prints while nothing happens."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Harm:
    """What is done to a part of a run: a signal to the process whose output goes to a log of this name; to the
    controller without one. It is over when a line says `over`, and an update has followed."""

    name: str
    log: str = ""
    how: signal.Signals
    over: str = ""


HARMS = (
    Harm(name="an engine is killed", log="engine-", how=signal.SIGKILL, over=" replaces "),
    Harm(name="an engine is stopped", log="engine-", how=signal.SIGSTOP, over=" replaces "),
    Harm(name="a scorer is killed", log="scorers", how=signal.SIGKILL),
    Harm(name="an environment server is stopped", log="environment-", how=signal.SIGSTOP),
    Harm(name="a rank is killed", log="learner-", how=signal.SIGKILL, over="restart "),
    Harm(name="a rank is stopped", log="learner-", how=signal.SIGSTOP, over="restart "),
    Harm(name="the controller is killed", how=signal.SIGKILL, over="restart "),
    Harm(name="the controller is stopped", how=signal.SIGSTOP, over="restart "),
)
WIDTH = 70
DISK_FULL = "the disk is full"
Line = tuple[float, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmOutcome:
    """What came of a harm. `noticed` are seconds, None where nothing was said; `lost` are seconds beyond those of an
    update, and `again` the updates that were trained once more."""

    name: str
    recovered: bool
    noticed: float | None = None
    words: str = ""
    lost: float = 0.0
    again: int = 0

    @property
    def row(self) -> tuple[str, ...]:
        noticed = "-" if self.noticed is None else f"{self.noticed:.1f}"
        end = "recovered" if self.recovered else "NOT RECOVERED"
        words = shorten(self.words or "training continued", WIDTH, placeholder=" …")
        return (self.name, end, words, noticed, f"{self.lost:.0f}", str(self.again))


def run_drill(recipe: Path, overrides: Sequence[str] = ()) -> int:
    """Print a table of all harms, and the audit of the run. Return 1 where one did not end well."""
    settings = (*SETTINGS, *overrides)
    loaded = load_recipe(recipe, settings).recipe
    if not loaded.plays or loaded.cluster.kind != "ray":
        raise UserError("a drill needs a recipe of kind rl, with processes to harm (cluster.kind: ray)")
    training = DrilledTraining(["train", str(recipe), *settings], RunFolder(loaded.run_dir))
    outcomes = []
    try:
        training.start()
        if not training.until(lambda: len(training.paces) >= 2, START_SECONDS):
            raise UserError(f"the run ended before the first fault: {training.last_words}")
        for outcome in training.harmed(HARMS):
            print(f"{outcome.name}: {outcome.row[1]}; {outcome.words or 'training continued'}", flush=True)
            outcomes.append(outcome)
        ended = training.end()
    finally:
        training.kill()
    head = ("harm", "end", "output of the run", "noticed after s", "lost s", "updates again")
    print(table([head, *(outcome.row for outcome in outcomes)], text_columns=3))
    print(f"not tried: a link that is cut, a node that is lost; the run {ended}, and its audit says", flush=True)
    failed = run_audit(loaded.run_dir)
    return int(failed or not all(outcome.recovered for outcome in outcomes))


class DrilledTraining:
    """`rlhf train` in a separate process, and the lines that it prints."""

    def __init__(self, arguments: Sequence[str], folder: RunFolder) -> None:
        self._arguments, self._folder = arguments, folder
        self._lines: list[Line] = []
        self._since = 0
        self._process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> None:
        """Start it, or start it again with `options`."""
        arguments = [sys.executable, "-m", "rlhf", *self._arguments, *options]
        self._process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        Thread(target=self._read, args=(self._process,), daemon=True).start()

    @property
    def paces(self) -> list[float]:
        """The seconds between two updates, of all in a row."""
        times = [at for at, line in self._lines if line.startswith("update ")]
        return [later - earlier for earlier, later in pairwise(times)]

    @property
    def last_words(self) -> str:
        said = [line for _, line in self._lines if not ROUTINE.match(line)]
        return said[-1] if said else "nothing"

    def harmed(self, harms: Sequence[Harm]) -> Iterator[HarmOutcome]:
        """Do each harm that this run has a part for, then fill the disk; return what came of it."""
        for harm in harms:
            if not self._ended and (victims := self._victims(harm.log)):
                yield self._outcome(
                    harm.name, partial(victims[0].send_signal, harm.how), partial(self._said, harm.over)
                )
                with suppress(psutil.NoSuchProcess):
                    victims[0].resume()
                self.until(partial(self._paced, len(self.paces)), RECOVERY_SECONDS)
        if not self._ended:
            yield self._without_disk()

    def _paced(self, before: int) -> bool:
        return len(self.paces) > before

    def _without_disk(self) -> HarmOutcome:
        """Let the controller write no further byte until the run has ended, and continue it as its user would."""
        controller = self._victims("")[0].pid
        _, hard = resource.prlimit(controller, resource.RLIMIT_FSIZE)

        def resumed() -> bool:
            if self._ended:
                self.start("--resume")
            return True

        return self._outcome(
            DISK_FULL, partial(resource.prlimit, controller, resource.RLIMIT_FSIZE, (0, hard)), resumed
        )

    def _outcome(self, name: str, strike: Callable[[], object], over: Callable[[], bool]) -> HarmOutcome:
        """Inject a fault, and wait until training has recovered and made progress."""
        reached, began, first = updates_of(self._folder.metrics), time.monotonic(), len(self._lines)
        restarts = len(read_restarts(self._folder.restarts))
        self._since = first
        usual = median(self.paces)
        strike()
        recovered = self.until(
            lambda: over() and updates_of(self._folder.metrics) > reached, RECOVERY_SECONDS, also_ended=True
        )
        said = next(((at, line) for at, line in self._lines[first:] if not ROUTINE.match(line)), None)
        new = read_restarts(self._folder.restarts)[restarts:]
        return HarmOutcome(
            name=name,
            recovered=recovered,
            noticed=said[0] - began if said else None,
            words=said[1] if said else "",
            lost=max(0.0, time.monotonic() - began - usual),
            again=sum(restart.reached - restart.from_update for restart in new),
        )

    def _said(self, words: str) -> bool:
        return any(words in line for _, line in self._lines[self._since :])

    def end(self) -> str:
        """Ask the run to save and to end; return how it ended."""
        assert self._process is not None, "it was started"
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            code = self._process.wait(END_SECONDS)
            return "was saved" if code == EXIT_SAVED else f"ended with code {code}: {self.last_words}"
        return f"did not end within {END_SECONDS:g} s"

    def kill(self) -> None:
        """End it in any case."""
        if self._process is not None and not self._ended:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)

    def until(self, condition: Callable[[], bool], seconds: float, *, also_ended: bool = False) -> bool:
        """Wait for a condition, and return whether it came; a run that has ended cannot bring it."""
        deadline = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > deadline or (self._ended and not also_ended):
                return False
            time.sleep(0.1)
        return True

    @property
    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _victims(self, log: str) -> list[psutil.Process]:
        """Return the processes whose output goes to a log of this name; without one, the controller."""
        assert self._process is not None, "it was started"
        guard = psutil.Process(self._process.pid)
        below: list[psutil.Process] = guard.children(recursive=bool(log))
        if not log:
            return [one for one in below if one.cmdline() == guard.cmdline()]  # a fork of it
        start, found = f"{self._folder.logs.absolute()}/{log}", []
        for one in below:
            with suppress(OSError):  # it has ended
                found += [one] * str(Path(f"/proc/{one.pid}/fd/2").readlink()).startswith(start)
        return found

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None, "it is a pipe"
        for line in process.stdout:
            self._lines.append((time.monotonic(), line.rstrip()))
