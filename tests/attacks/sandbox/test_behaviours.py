"""Whatever code does is a verdict of its run: never a failure of the sandbox, and nothing of it stays."""

from __future__ import annotations

import pytest

from tests.attacks.sandbox.behaviours import BEHAVIOURS
from tests.sandbox.conftest import Jail

pytestmark = pytest.mark.engine
QUICK = (
    "folders too deep for a path",
    "folders too deep for a path, for long",
    "descriptors that it inherited",
)


def check(jail: Jail, name: str) -> None:
    behaviour = BEHAVIOURS[name]
    seen = jail.run(behaviour.code, fetch=behaviour.fetch, wall_seconds=2.0)
    assert seen["ending"] in behaviour.endings, seen
    assert behaviour.said is None or seen["stdout"] == behaviour.said, seen
    if name.startswith("fetched: ") and name != "fetched: a hole of a file":
        assert seen["fetched"] == []


@pytest.mark.parametrize("name", QUICK)
def test_it_is_a_verdict(jail: Jail, name: str) -> None:
    check(jail, name)


@pytest.mark.attack
@pytest.mark.parametrize("name", [name for name in BEHAVIOURS if name not in QUICK])
def test_it_is_a_verdict_whatever_it_does(jail: Jail, name: str) -> None:
    check(jail, name)
