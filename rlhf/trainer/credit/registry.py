"""Algorithms by name: each is a preset of pieces that a recipe can also combine itself. Data only; `composition.py`
checks which pieces fit together.

A preset is a layer of settings below the recipe's own. Estimators and losses are registered here by the names that
recipes use, `module:function` each; user-defined ones are named the same way. They are imported where they run.
`rlhf.trainer.credit.estimators` and `rlhf.trainer.losses.policy` document what each computes, docs/algorithms.md which
to choose when.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rlhf.config import failing_by_name, is_piece, load_bound, registered
from rlhf.trainer.config import AdvantageConfig, LossConfig, TrainerConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """`settings` are keys of `trainer` with their values; `paper` is an arXiv number."""

    paper: str
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What an estimator reads besides rewards: a critic's `values`, the learner's `proximal` and the `reference`'s
    log-probs, a greedy `baseline` episode, `siblings` to compare with. `weighted` advantages already include the
    importance weight."""

    values: bool = False
    proximal: bool = False
    reference: bool = False
    baseline: bool = False
    siblings: bool = False
    weighted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A registered loss or estimator: its `function` as `module:function`, the config `settings` that are its keyword
    arguments, and, for an estimator, what it `needs`."""

    function: str
    settings: tuple[str, ...] = ()
    needs: Needs = Needs()


CLIP = ("clip_low", "clip_high")
LOSSES: Mapping[str, Piece] = {
    "ppo": Piece(function="rlhf.trainer.losses.policy:ppo", settings=(*CLIP, "dual_clip")),
    "gspo": Piece(function="rlhf.trainer.losses.policy:gspo", settings=CLIP),
    "cispo": Piece(function="rlhf.trainer.losses.policy:cispo", settings=CLIP),
    "sapo": Piece(
        function="rlhf.trainer.losses.policy:sapo", settings=("temperature_positive", "temperature_negative")
    ),
    "policy_gradient": Piece(function="rlhf.trainer.losses.policy:policy_gradient"),
}

_OURS = "rlhf.trainer.credit.estimators:"
_SIBLINGS = Needs(siblings=True)
ESTIMATORS: Mapping[str, Piece] = {
    "group_relative": Piece(function=_OURS + "group_relative", settings=("normalize_by_std",), needs=_SIBLINGS),
    "leave_one_out": Piece(function=_OURS + "leave_one_out", needs=_SIBLINGS),
    "length_weighted": Piece(function=_OURS + "length_weighted", needs=_SIBLINGS),
    "best_of_group": Piece(function=_OURS + "best_of_group", settings=("normalize_by_std",), needs=_SIBLINGS),
    "reinforce_pp": Piece(function=_OURS + "reinforce_pp", settings=("gamma",)),
    "reinforce_pp_baseline": Piece(function=_OURS + "reinforce_pp_baseline", needs=_SIBLINGS),
    "remax": Piece(function=_OURS + "remax", needs=Needs(baseline=True)),
    "gae": Piece(
        function=_OURS + "gae", settings=("gamma", "lam", "per_turn", "lam_length_alpha"), needs=Needs(values=True)
    ),
    "vtrace": Piece(
        function=_OURS + "vtrace",
        settings=("gamma",),
        needs=Needs(values=True, proximal=True, weighted=True),
    ),
    "distillation": Piece(function=_OURS + "distillation", needs=Needs(proximal=True, reference=True)),
}

PRESETS: Mapping[str, Preset] = {
    "grpo": Preset(
        paper="2402.03300",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": True},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "sequence_mean"},
            "kl": {"coefficient": 0.04, "place": "loss", "estimator": "k3"},
        },
    ),
    "dr_grpo": Preset(
        paper="2503.20783",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": False},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "constant"},
        },
    ),
    "dapo": Preset(
        paper="2503.14476",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": True},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.28, "aggregation": "token_mean"},
            "filter": {"equal_rewards": True},
        },
    ),
    "gspo": Preset(
        paper="2507.18071",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": True},
            "loss": {"policy": "gspo", "clip_low": 3e-4, "clip_high": 4e-4, "aggregation": "sequence_mean"},
        },
    ),
    "cispo": Preset(
        paper="2506.13585",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": True},
            "loss": {"policy": "cispo", "clip_low": 1.0, "clip_high": 4.0, "aggregation": "token_mean"},
        },
    ),
    "sapo": Preset(
        paper="2511.20347",
        settings={
            "advantage": {"estimator": "group_relative", "normalize_by_std": True},
            "loss": {"policy": "sapo", "aggregation": "sequence_mean"},
        },
    ),
    "rloo": Preset(
        paper="2402.14740",
        settings={
            "advantage": {"estimator": "leave_one_out"},
            "loss": {"policy": "policy_gradient", "aggregation": "sequence_sum"},
            "kl": {"coefficient": 0.03, "place": "reward", "estimator": "k1"},
        },
    ),
    "reinforce_pp": Preset(
        paper="2501.03262",
        settings={
            "advantage": {"estimator": "reinforce_pp"},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean"},
            "kl": {"coefficient": 0.01, "place": "reward", "estimator": "k1"},
        },
    ),
    "remax": Preset(
        paper="2310.10505",
        settings={
            "advantage": {"estimator": "remax"},
            "loss": {"policy": "policy_gradient", "aggregation": "sequence_sum"},
            "kl": {"coefficient": 0.01, "place": "reward", "estimator": "k1"},
            "group_size": 1,
        },
    ),
    "ppo": Preset(
        paper="1707.06347",
        settings={
            "advantage": {"estimator": "gae", "gamma": 1.0, "lam": 0.95, "whiten": True},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean"},
            "kl": {"coefficient": 0.05, "place": "reward", "estimator": "k1"},
            "critic": {"value_clip": 0.2},
            "epochs": 2,
            "minibatches": 4,
            "group_size": 1,
        },
    ),
    "distill": Preset(
        paper="2306.13649",
        settings={
            "advantage": {"estimator": "distillation"},
            "loss": {"policy": "ppo", "clip_low": 0.2, "clip_high": 0.2, "aggregation": "token_mean"},
            "group_size": 1,
        },
    ),
}


def preset_layer(name: Any) -> dict[str, Any]:
    """Return the settings of a preset as a layer of a recipe; empty without a name, and for an unknown one, which is
    refused later."""
    return {"trainer": dict(PRESETS[name].settings)} if isinstance(name, str) and name in PRESETS else {}


def mismatch_layer(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Why the engines' log-probs of the trained samples differ from the learner's, and the default settings that
    follow. Both are empty where they are equal, where the recipe itself sets `proximal_logprobs`, and where the loss or
    the estimator already weights tokens. `values` are those of a whole recipe, not validated yet.

    Tokens are weighted by learner over engine probability, truncated at 2 (decoupled PPO, arXiv 2110.00641, with the
    truncated weights of arXiv 1802.01561); for GSPO by the geometric mean over their sequence, like its own ratio
    (arXiv 2507.18071). The ratio of CISPO is such a weight itself (arXiv 2506.13585), and V-trace includes one in its
    advantage.
    """
    trainer, model = _mapping(values, "trainer"), _mapping(values, "model")
    dtype = model.get("dtype", "float32")
    counts = {
        "trainer.max_staleness": trainer.get("max_staleness", 0),
        "trainer.replay": _mapping(trainer, "replay").get("groups", 0),
    }
    older = next((key for key, count in counts.items() if isinstance(count, int) and count > 0), None)
    why = f"model.dtype {dtype}" if dtype != "float32" else older
    agree = why is None
    learns_from_samples = values.get("kind", "rl") in ("rl", "distill", "offline")
    policy = _mapping(trainer, "loss").get("policy", "ppo")
    weighted = policy == "cispo" or _mapping(trainer, "advantage").get("estimator") == "vtrace"
    if agree or weighted or not learns_from_samples or "proximal_logprobs" in trainer:
        return "", {}
    level = "geometric" if policy == "gspo" else "token"
    correction = {"method": "truncate", "level": level, "high": 2.0}
    return str(why), {"trainer": {"proximal_logprobs": "recomputed", "correction": correction}}


def adapter_layer(values: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Default settings of LoRA in 16 bits: a weight sync sends the adapters themselves, unless the recipe sets it or
    the backend cannot.

    A merged change is added to a weight with 8 (bfloat16) or 11 (float16) significant bits: of changes of 1e-5 to
    weights of 0.02 bfloat16 keeps 28 %, of 1e-6 3 %, and engines would keep sampling with the base model.
    """
    model, sync = _mapping(values, "model"), _mapping(_mapping(values, "trainer"), "weight_sync")
    dtype, lora = model.get("dtype", "float32"), model.get("lora")
    travels = sync.get("backend", "auto") in ("auto", "gloo")
    if dtype == "float32" or not isinstance(lora, Mapping) or "weight_sync" in lora or not travels:
        return "", {}
    return f"model.dtype {dtype}", {"model": {"lora": {"weight_sync": "adapter"}}}


def _mapping(values: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a group of settings that is not checked yet; empty for any other value, which is refused later."""
    found = values.get(key)
    return found if isinstance(found, Mapping) else {}


def called_with(
    known: Mapping[str, Piece],
    name: str,
    setting: str,
    config: LossConfig | AdvantageConfig,
    arguments: Mapping[str, Any],
) -> Any:
    """Return the function `name` with its keyword arguments: for a registered one, the settings of `config` that it
    reads; for a user-defined one, the recipe's `arguments`. Raises `ConfigError`."""
    if is_piece(name):
        return failing_by_name(load_bound(name, setting, arguments, given=1), name, setting)
    piece = known[name]
    return partial(registered(piece.function), **config.model_dump(include=set(piece.settings)))


def needs_of(trainer: TrainerConfig) -> Needs:
    """Return what the recipe's estimator reads. A user-defined one gets everything that the recipe has."""
    estimator = trainer.advantage.estimator
    if is_piece(estimator):
        return Needs(values=trainer.critic is not None, proximal=trainer.proximal_logprobs == "recomputed")
    return ESTIMATORS[estimator].needs


def needs_reference(trainer: TrainerConfig) -> bool:
    """Whether the ranks hold the frozen policy, and compute its log-probs for every batch."""
    return trainer.kl.coefficient > 0 or needs_of(trainer).reference or trainer.hold_reference


def has_own_piece(trainer: TrainerConfig) -> bool:
    """Whether the loss or the estimator is user-defined, so that it is unknown what it reads."""
    return is_piece(trainer.loss.policy) or is_piece(trainer.advantage.estimator)


def is_corrected(trainer: TrainerConfig) -> bool:
    """Whether samples of weights other than the learner's get importance weights."""
    return needs_of(trainer).weighted or (
        trainer.proximal_logprobs == "recomputed" and trainer.correction.method != "none"
    )
