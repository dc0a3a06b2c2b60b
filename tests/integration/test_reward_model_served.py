"""A real reward model behind HTTP: the scores are those of Hugging Face, for texts and for tokens."""

from __future__ import annotations

import asyncio
import os
import signal
from io import StringIO
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.cluster.watch import while_alive
from rlhf.config import build
from rlhf.controller.build import spawn_reward, started_cluster
from rlhf.http.outages import Outages
from rlhf.models.config import TinyModelConfig
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.workers import REWARD, reward_roles
from rlhf.reward.config import RewardConfig
from rlhf.reward.local_model import LocalModelReward
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.runs.view import PlainView
from rlhf.types import Scored
from tests.commanded import commanded
from tests.pace import scaled
from tests.reward.asked import TASK, replies, scored
from tests.reward.test_model import trajectory
from tests.servers import running

pytestmark = pytest.mark.engine

TINY = TinyModelConfig(hidden_size=64, intermediate_size=128, max_position_embeddings=96)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    policy, folder = (tmp_path_factory.mktemp(name) for name in ("policy", "reward"))
    model = load_scalar(str(save_tiny(TINY, 0, policy)), fresh_head=True)
    torch.nn.init.normal_(model.score.weight)
    model.save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder


async def test_every_shape_gives_the_models_own_score(folder: Path) -> None:
    config = build(RewardConfig, {"kind": "model", "model": str(folder)})
    reward = LocalModelReward(config, str(folder))
    await reward.start()
    text = TASK.messages[0].content + "42"
    ids = byte_tokenizer().encode(text, add_special_tokens=False)
    with torch.no_grad():
        plain = AutoModelForSequenceClassification.from_pretrained(folder)
        expected = pytest.approx(float(plain(torch.tensor([ids])).logits), abs=1e-5)
    (direct,) = await reward(TASK, replies("42"))
    assert isinstance(direct, Scored)
    assert direct.value == expected
    with running(reward_app(reward, RewardServerSettings(name="model", reads_tokens=True))) as url:
        async with httpx.AsyncClient(timeout=scaled(30)) as client:
            answers = [
                (await client.post(url + "/classify", json={"input": given, "use_activation": False})).json()
                for given in (text, [text], ids, [ids])
            ]
            refused = await client.post(url + "/classify", json={"input": [[1] * 200]})
        remote = make_reward(build(RewardConfig, {"kind": "remote", "remote": {"url": url, "api": "vllm_score"}}))
        (served,) = await scored(remote, "42")
    assert [answer["data"][0]["probs"][0] for answer in answers] == [expected] * 4
    assert isinstance(served, Scored)
    assert served.value == expected
    assert refused.status_code == 422
    assert "too long" in refused.json()["error"]["message"]
    await reward.close()


@pytest.mark.slow
async def test_what_a_killed_worker_was_asked_is_scored_by_the_one_that_follows(folder: Path, tmp_path: Path) -> None:
    values = {"kind": "model", "model": str(folder), "cpus_per_worker": 0.5}
    data = {"train": {"tasks": "recipes.tasks.sorting:tasks"}}
    recipe = recipe_from({"model": {"path": str(folder)}, "data": data, "reward": values}).recipe
    told: list[str] = []
    outages, asked = Outages(seconds=0.0, tell=told.append), [trajectory(last) for last in (65, 66)]
    async with started_cluster(recipe.cluster, reward_roles(recipe), tmp_path, PlainView(StringIO())) as cluster:
        reward = await spawn_reward(recipe.reward, cluster, str(folder), recipe.model, tmp_path, outages)
        await reward.start()
        before = await reward(TASK, asked)
        _, pid, _ = await asyncio.wrap_future(cluster.workers(REWARD)[0]._actor.process.remote().future())
        os.kill(pid, signal.SIGSTOP)  # so that it is asked, and does not answer
        asking = asyncio.ensure_future(while_alive(cluster, reward(TASK, asked)))
        await asyncio.sleep(0.2)
        os.kill(pid, signal.SIGKILL)
        after = await asyncio.wait_for(asking, scaled(60))
        await reward.close()
    assert all(isinstance(score, Scored) and score.value for score in before)
    assert after == before
    assert told[0] == "reward-0 died: killed by SIGKILL; starting a replacement"
    assert told[1].startswith("reward-1 replaces reward-0")


def test_the_command_serves_a_reward_model(folder: Path) -> None:
    with commanded("reward", "model", f"model={folder}") as (url, _):
        answer = httpx.post(url + "/pooling", json={"input": ["42", "43"]}, timeout=scaled(60)).json()
    scores = [entry["data"][0] for entry in answer["data"]]
    assert len(set(scores)) == 2
