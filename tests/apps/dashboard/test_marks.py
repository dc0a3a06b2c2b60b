"""Tokens are marked as the loss treats them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from rlhf.apps.dashboard.marks import token_marks
from rlhf.trainer.config import CorrectionConfig
from rlhf.trainer.losses.actions import Actions
from rlhf.trainer.losses.microbatch import importance_weights
from rlhf.trainer.losses.policy import cispo, ppo

LEARNER = [None, -1.0, -0.5, -1.0, -2.0, -0.1, None, -1.0]
ENGINE = [None, -1.0, -1.0, -0.5, -1.0, -3.0, None, -1.05]
ADVANTAGES = [None, 1.0, 1.0, 1.0, -1.0, -1.0, None, -1.0]
CLIP = {"clip_low": 0.2, "clip_high": 0.28}
SEGMENTS = [5, 3]


def marks(**trainer: Any) -> list[str | None]:
    episode = {
        "proximal_logprobs": LEARNER, "behaviour_logprobs": ENGINE, "advantages": ADVANTAGES,
        "segment_lengths": SEGMENTS,
    }  # fmt: skip
    found = token_marks(episode, trainer)
    assert found is not None
    return [mark for mark, logprob in zip(found, LEARNER, strict=True) if logprob is not None]


def actions() -> Actions:
    acted = [place for place, logprob in enumerate(LEARNER) if logprob is not None]
    learner, engine, advantages = (
        torch.tensor([column[place] for place in acted]) for column in (LEARNER, ENGINE, ADVANTAGES)
    )
    sequences = torch.tensor([int(place >= SEGMENTS[0]) for place in acted])
    return Actions(
        logprobs=learner.requires_grad_(), proximal_logprobs=engine, behaviour_logprobs=engine, advantages=advantages,
        entropies=torch.zeros(len(acted)), loss_weights=torch.ones(len(acted)), sequences=sequences,
    )  # fmt: skip


def test_a_token_that_ppo_clips_has_no_gradient() -> None:
    one = actions()
    losses, _ = ppo(one, **CLIP)
    (gradient,) = torch.autograd.grad(losses.sum(), one.logprobs)
    assert marks(proximal_logprobs="behaviour", loss={"policy": "ppo"} | CLIP) == [
        "clipped" if value == 0 else None for value in gradient.tolist()
    ]


def test_the_tokens_that_cispo_clips_are_those_it_counts() -> None:
    _, seen = cispo(actions(), **CLIP)
    found = marks(proximal_logprobs="behaviour", loss={"policy": "cispo"} | CLIP)
    assert found.count("clipped") == seen.sums["policy/clip_fraction_low"] + seen.sums["policy/clip_fraction_high"] == 4


@pytest.mark.parametrize("level", ["token", "sequence", "geometric"])
@pytest.mark.parametrize(("method", "mark"), [("truncate", "truncated"), ("mask", "masked"), ("none", None)])
def test_a_corrected_token_has_another_weight_than_its_ratio(level: str, method: str, mark: str | None) -> None:
    correction: Mapping[str, Any] = {"method": method, "level": level, "low": 0.5, "high": 1.5}
    one = actions()
    one = Actions(
        **{name: getattr(one, name) for name in one.__dataclass_fields__} | {"proximal_logprobs": one.logprobs}
    )
    kept = importance_weights(one, CorrectionConfig(**correction))
    whole = importance_weights(one, CorrectionConfig(**correction | {"method": "truncate", "high": 1e9}))
    expected = [None if method == "none" or torch.isclose(a, b) else mark for a, b in zip(kept, whole, strict=True)]
    assert marks(proximal_logprobs="recomputed", correction=correction) == expected


def test_an_episode_that_was_not_trained_has_no_marks() -> None:
    assert token_marks({"proximal_logprobs": None, "behaviour_logprobs": ENGINE}, {}) is None
