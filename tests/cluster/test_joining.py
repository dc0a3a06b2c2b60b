"""Joining Ray clusters that run already: several nodes on one machine, nodes that come late or never, and no Ray."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from rlhf.cluster.interfaces import own_address
from tests.end_to_end.running import QUICKSTART, ROOT, command, environment
from tests.end_to_end.test_clean_ends import MARK, marked
from tests.pace import scaled
from tests.raylets import RayletCluster, raylets

pytestmark = [pytest.mark.engine, pytest.mark.timeout(400)]

ENDS_SECONDS = scaled(120)
REFUSED_SECONDS = scaled(70)
"""Twice what is promised: the machine may be busy."""
NOBODY = "203.0.113.1:6379"
"""An address of nobody (RFC 5737)."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayletCluster]:
    with raylets(2) as running:
        yield running


def joining(cluster: RayletCluster, nodes: int, seconds: float, logs: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.cluster.join_program", cluster.address, str(nodes), str(seconds), str(logs)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=cluster.environment)


def told(program: subprocess.Popen[str]) -> Any:
    try:
        return json.loads(program.communicate(timeout=ENDS_SECONDS)[0])
    finally:
        program.kill()


def test_nodes_that_never_come_are_counted_in_the_refusal(cluster: RayletCluster, tmp_path: Path) -> None:
    error = told(joining(cluster, nodes=4096, seconds=8, logs=tmp_path))["error"]
    assert re.fullmatch(
        rf"PlacementError: \d of 4096 nodes have joined the Ray cluster at '{cluster.address}' within 8 s "
        r"\([^)]+\); start the others, or lower cluster\.nodes",
        error,
    )


def test_a_node_that_comes_late_is_waited_for_and_told_from_the_other_on_its_machine(
    cluster: RayletCluster, tmp_path: Path
) -> None:
    program = joining(cluster, nodes=2, seconds=100, logs=tmp_path)
    cluster.add(2)
    answer = told(program)
    host = socket.gethostname()
    first, second, third = answer["places"]  # Ray chooses which of two equal nodes gets two workers
    assert (first, third) == (f"{host}#1", f"{host}#2"), answer
    assert second in (first, third)
    assert len(set(zip(answer["places"], answer["nodes"], strict=True))) == 2, "each name is one node's"


def test_workers_use_the_interface_that_leads_to_the_head_and_say_so(cluster: RayletCluster, tmp_path: Path) -> None:
    answer = told(joining(cluster, nodes=1, seconds=60, logs=tmp_path))
    names = [name for name, known in psutil.net_if_addrs().items() if any(a.address == own_address() for a in known)]
    assert answer["interfaces"] == [[names[0], f"={names[0]}"]] * 3, answer
    said = (tmp_path / "calculator-0.log").read_text()
    assert f"{names[0]} ({own_address()}) leads to {own_address()}" in said


HOLDER = """
import sys, time, ray
from ray.util.placement_group import placement_group
ray.init(address=sys.argv[1], log_to_driver=False)
assert placement_group([{"CPU": 1}, {"CPU": 1}]).wait(60)
print("held", flush=True)
time.sleep(100)
"""
"""Another's program that keeps two cores."""


def test_cores_that_others_keep_are_awaited_until_the_deadline(cluster: RayletCluster, tmp_path: Path) -> None:
    words = [sys.executable, "-c", HOLDER, cluster.address]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=cluster.environment) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            error = told(joining(cluster, nodes=1, seconds=8, logs=tmp_path))["error"]
        finally:
            holder.kill()
    assert re.match(
        r"PlacementError: Ray did not find room for all workers within 8 s \(3 calculator x 1 core\): the 2 nodes have "
        r"\d cores and 0 GPUs free",
        error,
    ), error


def test_a_token_that_is_not_the_clusters_is_named(cluster: RayletCluster, tmp_path: Path) -> None:
    refusal = refused_by(cluster.address, tmp_path, {**cluster.environment, "RAY_AUTH_TOKEN": "0" * 64})
    assert f"the Ray cluster at '{cluster.address}' refuses this process's token" in refusal
    assert "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN" in refusal


@contextmanager
def silent_port() -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield "{}:{}".format(*listening.getsockname())


@contextmanager
def no_host() -> Iterator[str]:
    yield NOBODY


@pytest.mark.parametrize("place", [pytest.param(silent_port, marks=pytest.mark.slow), no_host])
def test_an_address_where_no_ray_is_is_refused_in_one_line_and_in_time(place: Any, tmp_path: Path) -> None:
    with place() as address:
        assert f"no Ray cluster answers at '{address}' (" in refused_by(address, tmp_path, environment())


def refused_by(address: str, folder: Path, variables: Mapping[str, str]) -> str:
    """The one line with which `rlhf train --address` ends; nothing of it is left."""
    began = time.monotonic()
    ended = subprocess.run(
        command("train", str(QUICKSTART), f"run.dir={folder / 'run'}", "--address", address),
        cwd=ROOT, env={**variables, MARK: str(folder)}, capture_output=True, text=True, timeout=ENDS_SECONDS,
    )  # fmt: skip
    seconds = time.monotonic() - began
    assert ended.returncode == 2, ended.stderr
    assert seconds < REFUSED_SECONDS, seconds
    assert not marked(folder)
    errors = [line for line in ended.stderr.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1, ended.stderr
    return errors[0]
