"""Names of other trainers are answered by the key that they mean here."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.config import known_keys
from rlhf.errors import ConfigError
from rlhf.recipe.loading import other_names, recipe_from
from rlhf.recipe.schema import Recipe
from tests.small_tasks import sorting

SORTING = {"model": {"tiny": {}}, "data": {"train": sorting()}, "reward": {"kind": "exact"}}


def test_every_key_that_is_offered_is_one() -> None:
    offered = {key for keys in other_names().values() for key in keys}
    assert offered <= set(known_keys(Recipe))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"trainer": {"lr": 1}}, "'trainer.lr'; did you mean 'trainer.optimizer.learning_rate'?"),
        ({"trainer": {"batch_size": 8}}, "'trainer.batch_size'; did you mean 'trainer.groups_per_update'?"),
        (
            {"trainer": {"old_logprobs": "recomputed"}},
            "'trainer.old_logprobs'; did you mean 'trainer.proximal_logprobs'?",
        ),
        ({"trainer": {"num_generations": 8}}, "'trainer.num_generations'; did you mean 'trainer.group_size'?"),
        ({"max_completion_length": 8}, "'max_completion_length'; did you mean 'sampling.max_tokens'?"),
        ({"beta": 0.1}, "'beta'; did you mean 'trainer.kl.coefficient' or 'trainer.preference.beta'?"),
        (
            {"per_device_train_batch_size": 8},
            "'per_device_train_batch_size'; "
            "did you mean 'trainer.groups_per_update' or 'trainer.tokens_per_microbatch'?",
        ),
        ({"rollout": {"n": 8}}, "'rollout.n'; did you mean 'trainer.group_size'?"),
        (
            {"trainer": {"critic": {"lr": 1}}},
            "'trainer.critic.lr'; did you mean 'trainer.critic.optimizer.learning_rate'?",
        ),
        (
            {"actor_rollout_ref": {"actor": {"optim": {"lr": 1}, "strategy": "fsdp"}}},
            "'actor_rollout_ref'; did you mean: actor_rollout_ref.actor.optim.lr is 'trainer.optimizer.learning_rate'?",
        ),
        ({"clip_range": 0.3}, "'clip_range'; did you mean 'trainer.loss.clip_low' or 'trainer.loss.clip_high'?"),
        ({"trainer": {"optimiser": {"learning_rate": 1}}}, "'trainer.optimiser'; did you mean 'trainer.optimizer'?"),
        ({"trainer": {"update": 8}}, "'trainer.update'; did you mean 'trainer.updates'?"),
        ({"nonsense": {"of": "mine"}}, "'nonsense'; `rlhf options` lists every key"),
    ],
)
def test_a_name_of_another_trainer_gets_our_key(given: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as refused:
        recipe_from({**SORTING, **given})
    assert str(refused.value) == f"unknown key {told}"
