"""Which environment variables reach which process: the table of docs/gpu.md, held against what passes them."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from rlhf.apps.deploy.kubernetes.manifest import TEMPLATE as RAYJOB
from rlhf.apps.deploy.slurm.render import TEMPLATES
from rlhf.cluster.child import child_env
from rlhf.cluster.interfaces import Interface, interface_environment
from rlhf.engines.vllm.environment import engine_environment
from rlhf.sandbox.run import ENVIRONMENT
from rlhf.trainer.rank.process_memory import rank_environment
from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "gpu.md").read_text()
YES, NO, SET, CHOSEN = "yes", "no", "set", "chosen, if not set"
WAYS = ("one machine", "`rlhf slurm`", "`rlhf kubernetes`", "environments, scorers", "sandbox")
HEAD = f"| variable | {' | '.join(WAYS)} |"
Reach = Callable[[str], str]


def rows() -> dict[str, dict[str, str]]:
    """The table: way to cell, by variable. A row may name several variables."""
    lines = PAGE[PAGE.index(HEAD) :].split("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {name: dict(zip(WAYS, own, strict=True)) for named, *own in cells for name in re.findall(r"`(\w+)`", named)}


ROWS = rows()


def chosen(name: str) -> bool:
    """Workers of a run on several nodes take the interface of the route to the head, where the node has no own."""
    return name in interface_environment(Interface(name="eth0", address="10.0.0.2"))


def of_own_ray(name: str) -> str:
    """All of the shell's (`tests/integration/test_cluster_ray.py`), but what a role sets."""
    given = [engine_environment(device) | rank_environment(device) for device in ("cpu", "cuda")]  # type: ignore[arg-type]
    return SET if all(name in one for one in given) else CHOSEN if chosen(name) else YES


def of_slurm(name: str) -> str:
    assert "--export=ALL" in (TEMPLATES / "job.sbatch").read_text()
    return of_own_ray(name)


def of_kubernetes(name: str) -> str:
    if re.search(rf"{{name: {name}, value:", RAYJOB.read_text()):
        return SET
    return of_own_ray(name) if of_own_ray(name) != YES else NO


def of_children(name: str) -> str:
    return YES if name in child_env() else NO


def of_sandbox(name: str) -> str:
    return SET if name in ENVIRONMENT else NO


REACH: dict[str, Reach] = dict(zip(WAYS, (of_own_ray, of_slurm, of_kubernetes, of_children, of_sandbox), strict=True))


@pytest.mark.parametrize("name", ROWS)
def test_the_page_says_what_reaches_a_process(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "http://proxy.site:3128")
    found = {way: reach(name) for way, reach in REACH.items()}
    assert {way: cell.partition(" (")[0] for way, cell in ROWS[name].items()} == found


def test_a_proxy_with_a_password_is_not_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:word@proxy.site:3128")
    assert "HTTPS_PROXY" not in child_env()
