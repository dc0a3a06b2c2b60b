"""A recipe of kind `distill`: a policy comes nearer to its teacher, without any reward."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from recipes.tasks import sorting
from rlhf.chat.templates import prompt_ids
from rlhf.models.config import TinyModelConfig
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.models.tiny import save_tiny
from tests.end_to_end.running import Run, train

pytestmark = pytest.mark.engine

UPDATES = 6
TOKENS = 6
TASK = {"digits": 3, "rows": 256}
SMALL = TinyModelConfig(hidden_size=64, intermediate_size=128, heads=2, kv_heads=1)


def talker(folder: Path, share: float) -> Path:
    """A model that has learnt to say the first of two tokens with probability `share`, whatever it is asked."""
    path = save_tiny(SMALL, 0, folder)
    model, tokenizer = load_policy(str(path)), load_tokenizer(str(path))
    prompts = np.array([prompt_ids(tokenizer, task.messages) for task in sorting.tasks(**TASK)])
    optimizer, rng = torch.optim.AdamW(model.parameters(), lr=1e-2), np.random.default_rng(0)
    for _ in range(60):
        said = np.where(rng.random((16, TOKENS)) < share, 50, 51)
        ids = torch.tensor(np.concatenate([rng.choice(prompts, 16), said], axis=1))
        logits = model(ids[:, :-1]).logits[:, -TOKENS:]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -TOKENS:].flatten()).backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(path)
    return path


def recipe_in(folder: Path) -> Path:
    recipe = folder / "distill.yaml"
    recipe.write_text(f"""
kind: distill
model: {{path: {talker(folder / "student", 0.5)}}}
data: {{train: {{tasks: recipes.tasks.sorting:tasks, arguments: {TASK}}}}}
sampling: {{max_tokens: {TOKENS}}}
trainer:
  reference_path: {talker(folder / "teacher", 0.95)}
  updates: {UPDATES}
  groups_per_update: 32
  optimizer: {{learning_rate: 3e-3}}
cluster: {{kind: local}}
""")
    return recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("distill")
    return train(folder / "run", folder / "models", recipe=recipe_in(folder))


def test_the_divergence_from_the_teacher_falls(run: Run) -> None:
    divergence = [line["policy/kl_reference"] for line in run.metrics]
    assert len(divergence) == UPDATES
    assert divergence[0] > 0.3
    assert divergence[-1] < 0.1 * divergence[0]
