"""A real reward model behind HTTP: the scores are those of Hugging Face, for texts and for tokens."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from rlhf.config import build
from rlhf.models.config import TinyModelConfig
from rlhf.models.scalar import load_scalar
from rlhf.models.tiny import byte_tokenizer, save_tiny
from rlhf.reward.config import RewardConfig
from rlhf.reward.local_model import LocalModelReward
from rlhf.reward.reward import make_reward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.types import Scored
from tests.commanded import commanded
from tests.pace import scaled
from tests.reward.asked import TASK, replies, scored
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


def test_the_command_serves_a_reward_model(folder: Path) -> None:
    with commanded("reward", "model", f"model={folder}") as (url, _):
        answer = httpx.post(url + "/pooling", json={"input": ["42", "43"]}, timeout=scaled(60)).json()
    scores = [entry["data"][0] for entry in answer["data"]]
    assert len(set(scores)) == 2
