"""A Ray cluster that somebody else keeps: `ray job submit` of a training that joins it."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.cluster.supervisor import socket_folder
from tests.end_to_end.running import QUICKSTART, ROOT, SMALL, environment
from tests.end_to_end.test_clean_ends import MARK, marked, until
from tests.pace import scaled

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(600)]

RAY = (sys.executable, "-m", "ray.scripts.scripts")
START_SECONDS, RUN_SECONDS, END_SECONDS = scaled(120), scaled(300), scaled(30)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[dict[str, str]]:
    """A Ray with its dashboard and a token; the variables of who may use it."""
    gcs, dashboard, client = free_ports(3)
    variables = environment() | {
        MARK: str(tmp_path), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": secrets.token_hex(16),
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{dashboard}",
    }  # fmt: skip
    ports = ("--port", gcs, "--dashboard-port", dashboard, "--ray-client-server-port", client)
    place = ("--temp-dir", socket_folder("ray-"), "--num-cpus", 2, "--object-store-memory", 256 << 20)
    words = (*RAY, "start", "--head", "--block", "--disable-usage-stats", *ports, *place)
    with (tmp_path / "ray.log").open("w") as log:
        head = subprocess.Popen([*map(str, words)], env=variables, cwd=ROOT, stdout=log, stderr=log)
    try:
        listed = [*RAY, "job", "list"]
        assert until(
            lambda: subprocess.run(listed, env=variables, capture_output=True, timeout=scaled(60)).returncode == 0,
            START_SECONDS,
        ), (tmp_path / "ray.log").read_text()
        yield variables
    finally:
        head.terminate()
        head.wait(END_SECONDS)
        for left in marked(tmp_path):
            left.kill()


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now; all are held at once, so that no two are the same."""
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [one.getsockname()[1] for one in held]
    finally:
        for one in held:
            one.close()


def test_a_training_is_submitted_as_a_ray_job(cluster: dict[str, str], tmp_path: Path, cache: Path) -> None:
    run = tmp_path / "run"
    settings = (*SMALL, "model.warmup=null", "data.eval=null", "trainer.updates=2", f"run.dir={run}")
    training = (sys.executable, "-W", "ignore", "-m", "rlhf", "train", str(QUICKSTART), "--address", "auto")
    submitted = subprocess.run(
        [*RAY, "job", "submit", "--", *training, *settings, f"model.cache_dir={cache}"],
        env=cluster, cwd=ROOT, capture_output=True, text=True, timeout=RUN_SECONDS,
    )  # fmt: skip
    assert submitted.returncode == 0, submitted.stdout[-3000:] + submitted.stderr[-2000:]
    assert "2 updates" in submitted.stdout
    assert json.loads((run / "summary.json").read_text())["outcome"] == "finished"
