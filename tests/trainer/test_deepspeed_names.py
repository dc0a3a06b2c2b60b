"""DeepSpeed's own configuration through the recipe: every name is DeepSpeed's, refused with the reason, or unknown."""

from __future__ import annotations

from typing import Any

import pytest

from rlhf.errors import ConfigError
from rlhf.trainer.deepspeed_names import ALLOWED, ALLOWED_FP16, ALLOWED_ZERO, DECIDED_ZERO
from tests.trainer.test_deepspeed_config import recipe, told


def test_names_that_a_recipe_may_set_are_deepspeeds_own() -> None:
    from deepspeed.runtime.precision_config import DeepSpeedFP16Config
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    for allowed, model in ((ALLOWED_ZERO, DeepSpeedZeroConfig), (ALLOWED_FP16, DeepSpeedFP16Config)):
        known = {field.alias or name for name, field in model.model_fields.items()}
        assert not allowed - known
    assert not ALLOWED_ZERO & DECIDED_ZERO.keys()


def test_a_name_of_deepspeed_reaches_deepspeed() -> None:
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig

    found = told(zero_stage=3, config={"zero_optimization": {"stage3_max_live_parameters": 1000}})
    assert DeepSpeedZeroConfig(**found).max_live_parameters == 1000
    assert found["stage"] == 3, "what the recipe decides stays as it is"


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"gradient_cliping": 1}, "unknown key 'trainer.deepspeed.config.gradient_cliping'; did you mean"),
        ({"zero_optimization": {"sub_group": 1}}, "did you mean 'sub_group_size'"),
        ({"optimizer": {"type": "Adam"}}, "trainer.deepspeed.config.optimizer is not set there: set trainer.optimizer"),
        ({"zero_optimization": {"stage": 2}}, "zero_optimization.stage is not set there: set trainer.deepspeed.zero_"),
        ({"fp16": {"enabled": True}}, "set model.dtype"),
        ({"gradient_predivide_factor": 2}, "gradients are summed in float32"),
        ({"prescale_gradients": True}, "gradients are summed in float32"),
        ({"disable_allgather": True}, "DeepSpeed itself does not read it"),
        ({"zero_optimization": 3}, "is a mapping of DeepSpeed's names, not 3"),
    ],
)
def test_a_name_that_is_unknown_or_decided_elsewhere_is_refused(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        recipe(config=config)


def test_a_value_that_deepspeed_does_not_take_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match=r"zero_optimization\.sub_group_size: Input should be a valid integer"):
        told(zero_stage=3, config={"zero_optimization": {"sub_group_size": "large"}})


def test_every_allowed_section_is_one_that_deepspeed_reads() -> None:
    import inspect

    from deepspeed.runtime import config, constants

    known = {value for value in vars(constants).values() if isinstance(value, str)}
    source = inspect.getsource(config)
    fields = {"comms_logger", "csv_monitor", "flops_profiler", "tensorboard", "wandb"}
    assert not {name for name in ALLOWED - fields if name not in known and name not in source}


def test_sharing_has_defaults_by_size_and_device() -> None:
    on_cpu, on_gpu = told(zero_stage=3), told("cuda", zero_stage=3)
    assert (on_cpu["overlap_comm"], on_gpu["overlap_comm"]) == (False, True)
    assert on_gpu["reduce_bucket_size"] == 1000, "at most the model"
    assert on_gpu["stage3_param_persistence_threshold"] == 1, "at most a thousandth of it"
    own = {"overlap_comm": False, "stage3_param_persistence_threshold": "7", "reduce_bucket_size": "auto"}
    shared = told("cuda", zero_stage=3, config={"zero_optimization": own})
    assert shared == on_gpu | {"overlap_comm": False, "stage3_param_persistence_threshold": 7}


@pytest.mark.parametrize(("stage", "ranks"), [(2, 2), (3, 3)])
def test_a_copy_of_the_weights_for_each_node_needs_stage_3_and_whole_nodes(stage: int, ranks: int) -> None:
    with pytest.raises(ConfigError, match="zero_hpz_partition_size is 2: that is for zero_stage 3"):
        told(zero_stage=stage, ranks=ranks, config={"zero_optimization": {"zero_hpz_partition_size": 2}})
