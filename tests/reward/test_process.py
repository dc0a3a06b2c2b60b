"""A scorer that hangs, dies, raises or answers nonsense gives an error and never a number; on real processes."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from rlhf.errors import ConfigError
from rlhf.reward.process import ScorerPool
from rlhf.types import Scored, Unscored
from tests.pace import scaled
from tests.reward.asked import score_text

pytestmark = pytest.mark.waits

FAULTS = "tests.reward.faulty_scorers"
DEADLINE = 0.5


@pytest.fixture
async def pool() -> AsyncIterator[ScorerPool]:
    pool = ScorerPool(f"{FAULTS}:misbehave", workers=1, timeout_seconds=DEADLINE)
    yield pool
    await pool.close()


async def test_a_healthy_scorer_gives_its_number() -> None:
    pool = ScorerPool(f"{FAULTS}:length", workers=2, timeout_seconds=scaled(20))
    await pool.start()
    scores = await asyncio.gather(*(score_text(pool, "x" * n, {}) for n in range(300)))
    assert scores == [Scored(value=float(n)) for n in range(300)]
    await pool.close()


@pytest.mark.parametrize(
    ("behaviour", "kind", "detail"),
    [
        ("hang", "timeout", "was killed after 0.5 s"),
        ("loop in C", "timeout", "was killed after 0.5 s"),
        ("ignore signals", "timeout", "was killed after 0.5 s"),
        ("exit", "died", "exit code 3"),
        ("sys.exit", "raised", "SystemExit: 4 (at "),
        ("be killed", "died", "was killed by SIGKILL"),
        ("raise", "raised", "KeyError: 'no such column' (at tests/reward/faulty_scorers.py:"),
        ("nan", "not a number", "it returned nan"),
        ("inf", "not a number", "it returned -inf"),
        ("absurd", "not a number", "it returned 1e+300, which is infinite in float32"),
        ("text", "not a number", "it returned '1.0'"),
        ("none", "not a number", "it returned None"),
    ],
)
async def test_a_broken_scorer_is_unscored_and_the_next_response_is_not_touched(
    pool: ScorerPool, behaviour: str, kind: str, detail: str
) -> None:
    broken = await score_text(pool, behaviour, {})
    assert isinstance(broken, Unscored)
    assert broken.kind == kind
    assert detail in broken.detail
    assert await score_text(pool, "true", {}) == Scored(value=1.0)


async def test_a_forked_process_that_returns_does_not_answer(pool: ScorerPool) -> None:
    scores = [await score_text(pool, behaviour, {}) for behaviour in ("fork", "true", "fork", "true")]
    assert scores == [Scored(value=value) for value in (0.0, 1.0, 0.0, 1.0)]


async def test_waiting_for_a_free_worker_does_not_count(pool: ScorerPool) -> None:
    naps = await asyncio.gather(*(score_text(pool, "nap", {"seconds": 0.3}) for _ in range(4)))
    assert naps == [Scored(value=1.0)] * 4


async def test_one_hanging_response_does_not_hold_up_the_other_workers() -> None:
    pool = ScorerPool(f"{FAULTS}:misbehave", workers=2, timeout_seconds=scaled(20))
    await pool.start()
    hanging = asyncio.create_task(score_text(pool, "hang", {}))
    assert await score_text(pool, "true", {}) == Scored(value=1.0)
    assert not hanging.done()
    await pool.close()
    assert isinstance(await hanging, Unscored)


async def test_a_killed_scorer_takes_its_children_with_it(pool: ScorerPool, tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    outcome = await score_text(pool, "leave a child and hang", {"pid_file": str(pid_file)})
    assert isinstance(outcome, Unscored)
    assert gone(int(pid_file.read_text()))


async def test_a_worker_that_died_while_idle_costs_no_response(pool: ScorerPool) -> None:
    await pool.start()
    (worker,) = workers()
    worker.kill()
    worker.wait(timeout=scaled(5))
    assert await score_text(pool, "true", {}) == Scored(value=1.0)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_a_response_whose_worker_is_ended_or_stopped_from_outside_is_scored_again(number: int) -> None:
    pool = ScorerPool(f"{FAULTS}:misbehave", workers=1, timeout_seconds=scaled(1.5))
    await pool.start()
    (worker,) = workers()
    scoring = asyncio.create_task(score_text(pool, "nap", {"seconds": 0.5}))
    await asyncio.sleep(0.1)
    worker.send_signal(number)
    assert await scoring == Scored(value=1.0)
    assert gone(worker.pid)
    await pool.close()


async def test_a_worker_that_was_stopped_while_idle_costs_no_response(pool: ScorerPool) -> None:
    await pool.start()
    (worker,) = workers()
    worker.suspend()
    assert await score_text(pool, "true", {}) == Scored(value=1.0)
    assert gone(worker.pid)


@pytest.mark.parametrize(("times", "score"), [(2, "scored"), (3, "died")])
async def test_a_response_that_ends_its_worker_three_times_has_no_score(
    pool: ScorerPool, times: int, score: str, tmp_path: Path
) -> None:
    outcome = await score_text(pool, "die at first", {"file": str(tmp_path / "file"), "times": times})
    assert (outcome.kind if isinstance(outcome, Unscored) else "scored") == score
    assert (tmp_path / "file").read_text() == "..."


async def test_the_kernel_takes_a_scorer_before_the_trainer_when_memory_runs_out(pool: ScorerPool) -> None:
    assert await score_text(pool, "tell its memory rank", {}) == Scored(value=1000.0)


async def test_close_kills_at_once_and_nothing_is_scored_after_it() -> None:
    pool = ScorerPool(f"{FAULTS}:misbehave", workers=2, timeout_seconds=30.0)
    await pool.start()
    hanging = asyncio.create_task(score_text(pool, "hang", {}))
    await asyncio.sleep(0.1)
    started = time.monotonic()
    await pool.close()
    assert time.monotonic() - started < scaled(2.0)
    assert not workers()
    outcome = await hanging
    assert isinstance(outcome, Unscored)
    assert outcome.kind == "died"
    with pytest.raises(RuntimeError):
        await score_text(pool, "true", {})


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("no_such_module:score", "ModuleNotFoundError"),
        (f"{FAULTS}:no_such_function", "has no attribute 'no_such_function'"),
        (f"{FAULTS}:BEHAVIOURS", "is not a function"),
    ],
)
async def test_a_function_that_cannot_be_imported_is_the_users_error(function: str, message: str) -> None:
    pool = ScorerPool(function, workers=1, timeout_seconds=DEADLINE)
    with pytest.raises(ConfigError, match=message):
        await pool.start()
    await pool.close()


def test_workers_die_with_a_parent_that_is_killed() -> None:
    script = (
        "import asyncio, psutil\n"
        "from rlhf.reward.process import ScorerPool\n"
        "from tests.reward.asked import score_text\n"
        "async def main():\n"
        f"    pool = ScorerPool('{FAULTS}:misbehave', workers=2, timeout_seconds=60)\n"
        "    await pool.start()\n"
        "    print(*(child.pid for child in psutil.Process().children()), flush=True)\n"
        "    await score_text(pool, 'hang', {})\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert all(gone(pid) for pid in pids)


def test_a_worker_imports_nothing_but_the_standard_library() -> None:
    script = "import rlhf.reward.scorer_process, sys; print(*{'numpy', 'torch', 'pydantic'} & set(sys.modules))"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout == "\n"


def workers() -> list[psutil.Process]:
    """This process's scorers; other tests may have left it other children."""
    return [child for child in psutil.Process().children() if "rlhf.reward.scorer_process" in child.cmdline()]


def gone(pid: int, seconds: float = 5.0) -> bool:
    """Whether a process has ended (an unreaped orphan has) within `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:
                return True
        except psutil.NoSuchProcess:
            return True
        time.sleep(0.05)
    return False


async def test_the_traceback_of_a_scorer_is_in_the_log(tmp_path: Path) -> None:
    pool = ScorerPool(f"{FAULTS}:misbehave", workers=1, timeout_seconds=DEADLINE, log=tmp_path / "scorers.log")
    assert isinstance(await score_text(pool, "raise", {}), Unscored)
    await pool.close()
    logged = (tmp_path / "scorers.log").read_text()
    assert "Traceback" in logged
    assert "faulty_scorers.py" in logged


async def test_what_a_scorer_prints_is_in_the_log(tmp_path: Path) -> None:
    pool = ScorerPool(f"{FAULTS}:talk", workers=1, timeout_seconds=DEADLINE, log=tmp_path / "scorers.log")
    assert await score_text(pool, "a reply", {}) == Scored(value=1.0)
    await pool.close()
    assert (tmp_path / "scorers.log").read_text() == "scoring a reply\n"
