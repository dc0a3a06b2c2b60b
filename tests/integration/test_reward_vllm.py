"""vLLM's own server of a reward model, asked by our client: the scores are those of Hugging Face, raw and in order."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.config import build
from rlhf.models.tiny import byte_tokenizer
from rlhf.reward.asking import segment_of
from rlhf.reward.config import RewardConfig
from rlhf.reward.reward import make_reward
from rlhf.rollout.vllm.environment import engine_environment
from rlhf.types import EpisodeStatus, Scored, Trajectory
from tests.integration.test_reward_model_served import folder  # noqa: F401 - a fixture
from tests.pace import scaled
from tests.reward.asked import TASK

pytestmark = pytest.mark.slow

START_SECONDS = scaled(240)
REPLIES = ("42", "41", "I do not know")
NUMBERS = {"probs", "data", "score"}


@pytest.fixture(scope="module")
def url(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:  # noqa: F811
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("vllm") / "server.log"
    command = [
        sys.executable,
        "-m",
        "vllm.entrypoints.openai.api_server",
        "--model",
        str(folder),
        "--served-model-name",
    ]
    command += ["rm", "--runner", "pooling", "--dtype", "float32", "--enforce-eager", "--max-model-len", "96"]
    command += ["--gpu-memory-utilization", "0.01", "--kv-cache-memory-bytes", str(2**26)]
    command += ["--host", "127.0.0.1", "--port", str(port)]
    environment = os.environ | engine_environment("cpu") | {"VLLM_LOGGING_LEVEL": "INFO"}
    with log.open("w") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until_healthy(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(scaled(30))


def wait_until_healthy(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-3000:]
        try:
            if httpx.get(url + "/health").status_code == 200:
                return
        except httpx.TransportError:
            time.sleep(0.5)
    raise AssertionError(f"vLLM did not start within {START_SECONDS} s: {log.read_text()[-3000:]}")


def expected(folder: Path, sequences: list[list[int]]) -> list[float]:  # noqa: F811
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    with torch.no_grad():
        return [float(model(torch.tensor([ids])).logits) for ids in sequences]


@pytest.mark.parametrize(
    ("shape", "sends"),
    [
        ("vllm_classify", "text"),
        ("vllm_pooling", "tokens"),
        ("vllm_score", "text"),
    ],
)
async def test_a_real_vllm_scores_as_the_model_does_without_a_sigmoid(
    url: str,
    folder: Path,  # noqa: F811
    shape: str,
    sends: str,
) -> None:
    encoded = [byte_tokenizer().encode(TASK.messages[0].content + reply, add_special_tokens=False) for reply in REPLIES]
    remote = {"url": url, "api": shape, "sends": sends, "model": "rm"}
    reward = make_reward(build(RewardConfig, {"kind": "remote", "remote": remote, "timeout_seconds": 60}))
    await reward.start()
    scores = await reward(
        TASK,
        [
            Trajectory(task=TASK, segments=(segment_of(ids),), status=EpisodeStatus.TERMINATED, response=reply)
            for reply, ids in zip(REPLIES, encoded, strict=True)
        ],
    )
    await reward.close()
    values = [score.value for score in scores if isinstance(score, Scored)]
    np.testing.assert_allclose(values, expected(folder, encoded), rtol=0, atol=1e-4)
    assert min(values) < 0 or max(values) > 1, "a sigmoid would give numbers between 0 and 1 only"


async def test_a_model_that_vllm_does_not_serve_is_rejected_and_has_no_number(url: str) -> None:
    remote = {"url": url, "api": "vllm_classify", "model": "another"}
    reward = make_reward(build(RewardConfig, {"kind": "remote", "remote": remote}))
    (score,) = await reward(TASK, [Trajectory(task=TASK, segments=(), status=EpisodeStatus.TERMINATED, response="42")])
    await reward.close()
    assert not isinstance(score, Scored)
    assert score.kind == "rejected"
