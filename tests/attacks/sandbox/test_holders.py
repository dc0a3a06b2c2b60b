"""No run holds more than 1.25 times a limit for longer than a blink, in whatever way it tries.

Where the kernel bounds the run (control groups; a file system of its size) it never does. Where the supervisor
measures, it does until the supervisor has looked; docs/sandbox.md lists what each way came to.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.attacks.sandbox.holders import KINDS, program
from tests.attacks.sandbox.meter import Meter, metered
from tests.pace import scaled
from tests.sandbox.conftest import LIMITS, MIB, Jail

pytestmark = pytest.mark.engine
LIMIT = {"memory": LIMITS["memory_bytes"], "disk": LIMITS["disk_bytes"], "processes": LIMITS["processes"]}
LONGEST_SECONDS = 0.2
BEST_EFFORT_SECONDS = 3.0
"""The same where only the supervisor looks: it shares the processor with whatever runs beside the tests."""
ALL = [(kind, way) for kind, ways in KINDS.items() for way in ways]
QUICK = [
    ("memory", "shared pages given back"),
    ("memory", "full pairs of streams, hidden"),
    ("disk", "mapped files without a name"),
    ("processes", "forks"),
]


def held(jail: Jail, kind: str, code: str) -> tuple[dict[str, Any], Meter]:
    with metered(kind) as meter:
        return jail.run(code, entered=meter.enter), meter


QUIET: dict[tuple[str, str, str], int] = {}


def quiet(jail: Jail, kind: str) -> int:
    """What the sandbox itself holds, where the run has no group of its own: that of a program that does nothing."""
    known = (jail.level, jail.user, kind)
    if known not in QUIET:
        peak = held(jail, kind, "import time; time.sleep(0.3)")[1].peak()
        QUIET[known] = peak - 1 if kind == "processes" else peak - 8 * MIB
    return QUIET[known]


def bounded_by_the_kernel(jail: Jail, kind: str) -> bool:
    return jail.user == "root" or (kind == "disk" and jail.level == "bubblewrap")


def check(jail: Jail, kind: str, way: str) -> None:
    seen, meter = held(jail, kind, program(kind, way))
    assert seen["ending"] in ("exited", "excess", "time"), seen
    baseline = 0 if jail.user == "root" or kind == "disk" else quiet(jail, kind)
    above = meter.seconds_above(1.25 * LIMIT[kind], baseline)
    if bounded_by_the_kernel(jail, kind):
        assert meter.peak(baseline) <= 1.25 * LIMIT[kind], (meter.peak(baseline), seen)
    longest = LONGEST_SECONDS if bounded_by_the_kernel(jail, kind) else BEST_EFFORT_SECONDS
    assert above <= scaled(longest), (above, meter.peak(baseline), seen)


@pytest.mark.parametrize(("kind", "way"), QUICK)
def test_a_limit_holds(metered_jail: Jail, kind: str, way: str) -> None:
    check(metered_jail, kind, way)


@pytest.mark.attack
@pytest.mark.parametrize(("kind", "way"), [pair for pair in ALL if pair not in QUICK])
def test_a_limit_holds_whatever_is_tried(metered_jail: Jail, kind: str, way: str) -> None:
    check(metered_jail, kind, way)


def test_there_are_enough_ways() -> None:
    assert {kind: len(ways) >= least for (kind, ways), least in zip(KINDS.items(), (10, 6, 6), strict=True)} == {
        "memory": True,
        "disk": True,
        "processes": True,
    }
