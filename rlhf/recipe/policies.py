"""Several policies in one run, in RLlib's words: which there are, and which plays a role."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import Field

from rlhf.config import Config, build, did_you_mean, failing_by_name, is_piece, load_bound, merge
from rlhf.errors import ConfigError
from rlhf.models.config import LoraConfig, ModelConfig
from rlhf.runs.metric_catalogue import spaces
from rlhf.trainer.checkpoint import adapter_folder
from rlhf.trainer.config import TrainerConfig
from rlhf.trainer.credit.composition import check_composition
from rlhf.trainer.credit.registry import needs_of
from rlhf.types import Task

NAME = "[a-z][a-z0-9_]*"

OWN_SETTINGS = ("optimizer", "advantage", "loss", "kl", "epochs", "minibatches")
"""The settings of `trainer` that a policy may have of its own; the others are one for all."""


class PolicyConfig(Config):
    """One of several policies: an adapter over the recipe's model, or over one of its own."""

    model: ModelConfig | None = None
    """The model under its adapter, in place of the recipe's: of the same family, with the same tokenizer. It gets
    separate engines, as many as the recipe's model has. Policies with an equal `model` share it."""
    lora: LoraConfig = LoraConfig()
    """Its adapter. Engines always receive the adapters themselves."""
    adapter: str | None = None
    """The adapter to start from: a folder in peft's format, a run with `model.lora`, or `RUN:POLICY`. Without one the
    policy starts as the plain model."""
    trained: bool = True
    """Whether it learns. If not, it stays as it starts."""
    trainer: dict[str, Any] = Field({})
    """Its own settings, over those of the recipe's `trainer`: `optimizer`, `advantage`, `loss`, `kl`, `epochs`,
    `minibatches`."""


def of_adapter(named: str, model: str | None) -> PolicyConfig:
    """Return a policy that is not trained, and plays with the adapter of `model` that `named` names. Raises
    `ConfigError`, also for one that says that it is of a model with another name."""
    folder = Path(adapter_folder(named))
    try:
        described = json.loads((folder / "adapter_config.json").read_text())
        lora = LoraConfig(rank=described["r"], alpha=described["lora_alpha"])
    except (OSError, ValueError, KeyError) as error:
        raise ConfigError(f"{folder} is not an adapter in peft's format: {error}") from None
    if (own := described.get("base_model_name_or_path")) and Path(own).name != Path(model or "").name:
        raise ConfigError(f"{folder} is an adapter of {own}, but the recipe's model.path is {model}")
    return PolicyConfig(lora=lora, adapter=str(folder), trained=False)


def trainer_of(shared: TrainerConfig, name: str, policy: PolicyConfig) -> TrainerConfig:
    """Return the settings with which a policy is trained: its own, over the recipe's. Raises `ValueError`."""
    for key in policy.trainer:
        if key.partition(".")[0] not in OWN_SETTINGS:
            raise ValueError(
                f"policies.{name}.trainer.{key} is not a setting of one policy"
                f"{did_you_mean(key, OWN_SETTINGS, f'; set trainer.{key}, for all of them')}"
            )
    layers = ("trainer", shared.model_dump(exclude_unset=True)), ("policy", policy.trainer)
    values, _ = merge(*layers, kind=TrainerConfig)
    try:
        trainer = build(TrainerConfig, values)
        check_composition(trainer)
    except (ConfigError, ValueError) as error:
        raise ValueError(f"policies.{name}: trainer.{error}") from None
    return trainer


Roles = Mapping[str, str] | str
"""The policy of each role, or the `module:function` that names it."""
Assignment = Callable[[str, Task, int], str]
"""Names the policy of a role, in the group of a task with an ordinal."""


def check_policies(
    policies: Mapping[str, PolicyConfig], roles: Roles | None, trainer: TrainerConfig, *, corrected: bool
) -> None:
    """Check that policies and roles, if the recipe gives them, fit together, and that something is trained. Where old
    samples, or those of 16 bits, are `corrected`, the correction follows from the recipe's loss and estimator. Raises
    `ValueError`."""
    for name, policy in policies.items():
        if not re.fullmatch(NAME, name):
            raise ValueError(f"policies.{name}: a name has lower-case letters, digits and _, and begins with a letter")
        if name == "all" or name in spaces():
            raise ValueError(f"policies.{name}: metrics are called {name}/…; choose another name")
        if policy.trainer and not policy.trained:
            raise ValueError(f"policies.{name} is not trained, but has trainer; remove one of them")
        if policy.model and policy.model.lora:
            raise ValueError(f"policies.{name}.model.lora: set policies.{name}.lora")
        own = trainer_of(trainer, name, policy)
        if needs_of(own).baseline:
            raise ValueError(f"policies.{name}: a greedy baseline (remax) is for one policy; choose another estimator")
        if own.kl.stop != trainer.kl.stop:
            raise ValueError(f"policies.{name}.trainer.kl.stop: set trainer.kl.stop, for all of them")
        pieces, shared = ((one.loss.policy, one.advantage.estimator) for one in (own, trainer))
        if corrected and pieces != shared:
            raise ValueError(
                f"policies.{name} has another loss.policy or advantage.estimator than trainer, from which the "
                "correction of old samples and of 16 bits follows; use float32 without staleness, or the same for all"
            )
    if all(policy.model for policy in policies.values()):
        raise ValueError("each of policies has a model of its own; leave out that of one, and set the recipe's model")
    if not any(policy.trained for policy in policies.values()):
        raise ValueError("no policy is trained: each of policies has trained: false")
    targets = {name: policy.lora.target_modules for name, policy in policies.items()}
    if len(set(targets.values())) > 1:
        raise ValueError("policies differ in lora.target_modules, which an engine has once; make them equal")
    if roles is None:
        return
    if isinstance(roles, str):
        if not is_piece(roles):
            raise ValueError(f"roles is {roles!r}; give module:function, or a policy for each role")
        return
    for role, name in roles.items():
        if name not in policies:
            known = f"; the policies are {', '.join(policies)}"
            raise ValueError(f"roles.{role} is {name!r}{did_you_mean(name, policies, known)}")
    if idle := next((name for name in policies if name not in roles.values()), None):
        raise ValueError(f"policies.{idle} plays no role; add it to roles, or remove it")


def check_roles(
    policies: Mapping[str, PolicyConfig], roles: Roles, training: Sequence[str], evaluation: Sequence[str]
) -> None:
    """Check that a policy plays each role of the environment, and that what is trained plays in training. Raises
    `ConfigError`."""
    playing = {*training, *evaluation}
    if not policies or isinstance(roles, str):
        return
    if absent := sorted(playing - roles.keys()):
        raise ConfigError(f"roles names no policy for {absent[0]}, which plays here; it has {', '.join(roles)}")
    if unknown := sorted(roles.keys() - playing):
        raise ConfigError(f"roles.{unknown[0]} is no role of the environment, which has {', '.join(sorted(playing))}")
    learning = {name for name, policy in policies.items() if policy.trained}
    if idle := sorted(learning - {roles[role] for role in training}):
        raise ConfigError(f"policies.{idle[0]} is trained, but its roles are of evaluations alone")


def assignment(policies: Collection[str], roles: Roles) -> Assignment:
    """Return what names the policy of a role, in the group of a task with an ordinal; without policies that is `""`. It
    raises `ConfigError` for a role, or a policy, that the recipe does not know."""
    if not policies:
        return lambda role, task, ordinal: ""
    if isinstance(roles, str):
        make = failing_by_name(load_bound(roles, "roles", {}, given=3), roles, "roles")
    else:
        make = lambda role, task, ordinal: roles.get(role)  # noqa: E731 - as the function of a user

    def assigned(role: str, task: Task, ordinal: int) -> str:
        if (name := make(role, task, ordinal)) not in policies:
            raise ConfigError(f"roles gives {role} to {name!r:.80}; the policies are {', '.join(policies)}")
        return str(name)

    return assigned
