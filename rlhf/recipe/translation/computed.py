"""What several settings of another system decide together: batches, steps, clipping, KL, GPUs.

Theirs count samples of a global batch, ours groups: `groups_per_update x group_size` samples an update, cut into
`minibatches` optimizer steps, `epochs` times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from math import ceil
from typing import Any

from rlhf.recipe.translation.reading import Unread
from rlhf.recipe.translation.tables import Meaning

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
LOGGERS = ("wandb", "mlflow", "trackio", "comet")


class Theirs:
    """Settings over their system's defaults. It remembers which were read for the meaning that comes next."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], gpus: int | None) -> None:
        known = {name: value for name, value in given.items() if not isinstance(value, Unread | None)}
        self._settings, self._given, self.gpus = {**defaults, **known}, given, gpus
        self._read: list[str] = []

    def __call__(self, name: str, otherwise: Any = None) -> Any:
        """Return a value; its default, or `otherwise`, where it is not given, or known only to a run."""
        if not isinstance(self._given.get(name), Unread):
            self._read.append(name)
        return self._settings.get(name, otherwise)

    def mean(self, values: Mapping[str, Any], why: str = "") -> Meaning:
        """Return the meaning of what was read."""
        names, self._read = tuple(dict.fromkeys(self._read)), []
        return Meaning(names=names, values=values, why=why, same=not (values or why))


def of_trl(t: Theirs) -> Iterator[Meaning]:
    """Derive from TRL's settings, which do not say on how many GPUs a training starts."""
    processes, per_device = t("num_processes", t.gpus or 1), t("per_device_train_batch_size")
    accumulated, samples = t("gradient_accumulation_steps"), t("generation_batch_size")
    micro = per_device * processes
    parts = samples // micro if samples else t("steps_per_generation", accumulated)
    samples, size = samples or micro * parts, t("num_generations")
    groups = max(ceil(samples / size), 1)
    minibatches = min(max(parts // accumulated, 1), groups)
    yield t.mean(_batch(groups, size, minibatches), f"{samples} samples on {processes} GPU(s); --gpus N for others")
    steps, total = minibatches * t("num_iterations"), max(t("max_steps", 0), 0)
    yield _updates(t, ceil(total / steps), groups, t("num_train_epochs", 3))
    warmup = t("warmup_steps", 0)  # transformers 5 takes a ratio by the same name
    yield _warmup(t, warmup if warmup >= 1 else None, t("warmup_ratio", warmup), total, "max_steps")
    for key, what in (("trainer.save_every", "save"), ("trainer.eval_every", "eval")):
        how, every = t(f"{what}_strategy", "steps"), t(f"{what}_steps", 0)
        every = 0 if how == "no" else every * total if every < 1 else every
        known = how == "no" or (how == "steps" and every)
        why = f"{key} counts updates" if known or how != "steps" else ""
        yield t.mean({key: max(round(every / steps), int(how != "no"))} if known else {}, why)
    length = t("max_prompt_length", 512) + t("max_completion_length")
    yield t.mean({"trainer.tokens_per_microbatch": per_device * length})
    low, high, kind = t("epsilon"), t("epsilon_high", t("epsilon")), t("loss_type")
    if kind == "cispo":  # epsilon_high bounds the weight itself, and nothing bounds it from below
        low, high = 1.0, max(high - 1.0, 0.0)
    yield t.mean(_clip(low, high))
    yield t.mean({"trainer.optimizer.betas": [t("adam_beta1", 0.9), t("adam_beta2", 0.999)]})
    parallel = t("vllm_tensor_parallel_size", 1)
    shared = t("vllm_mode", "colocate") == "colocate"
    yield t.mean(_gpus(processes, processes // parallel if shared else 1, parallel, shared))


def of_verl(t: Theirs) -> Iterator[Meaning]:
    """Derive from verl's settings, which count prompts, and steps that are updates."""
    size, mini = t(ROLLOUT + "n"), t(ACTOR + "ppo_mini_batch_size")
    mixed = t("async_training.require_batches", 1) * t("async_training.trigger_parameter_sync_step", 1)
    groups = t("data.train_batch_size") or mini * mixed
    minibatches = max(groups // max(mini, 1), 1)
    yield t.mean(_batch(groups, size, minibatches), f"{mini} prompts a step")
    steps, total = minibatches * t(ACTOR + "ppo_epochs"), max(t("trainer.total_training_steps", 0), 0)
    yield _updates(t, total, groups, t("trainer.total_epochs", 30))
    warmup, ratio = t(ACTOR + "optim.lr_warmup_steps", -1), t(ACTOR + "optim.lr_warmup_steps_ratio", 0)
    yield _warmup(t, warmup * steps if warmup >= 0 else None, ratio, total * steps, f"{steps} x trainer.updates")
    dynamic, tokens = t(ACTOR + "use_dynamic_bsz"), t(ACTOR + "ppo_max_token_len_per_gpu", 16384)
    micro = t(ACTOR + "ppo_micro_batch_size_per_gpu", t(ACTOR + "ppo_micro_batch_size"))
    length = t("data.max_prompt_length", 512) + t("data.max_response_length")
    yield t.mean({"trainer.tokens_per_microbatch": tokens if dynamic or not micro else micro * length})
    low, high = (t(f"{ACTOR}clip_ratio_{side}", t(ACTOR + "clip_ratio")) for side in ("low", "high"))
    yield t.mean(_clip(low, high))
    yield _verl_kl(t)
    nodes = t("trainer.nnodes")
    ranks = nodes * t("trainer.n_gpus_per_node")
    parallel, stale = t(ROLLOUT + "tensor_model_parallel_size", 2), t("async_training.staleness_threshold")
    shared = stale is None and t("actor_rollout_ref.hybrid_engine", True)
    playing = ranks if shared else t("rollout.nnodes", 1) * t("rollout.n_gpus_per_node", ranks)
    late = {} if shared else {"trainer.max_staleness": max(ceil(stale or 0), 1)}
    placed = _gpus(ranks, playing // parallel, parallel, shared) | late
    yield t.mean(placed, "nodes join by cluster.address" if nodes > 1 else "")
    off = t("reward_model.overlong_buffer.enable") is False and t("reward_model.overlong_buffer.len")
    yield t.mean({"trainer.overlong.buffer_tokens": 0} if off else {})
    model = t("reward_model.model.path") if t("reward_model.enable") else None
    yield t.mean({"reward.kind": "model", "reward.model": model} if model else {})
    named = t("trainer.logger", [])
    yield t.mean({"run.loggers": ["tensorboard", *(one for one in LOGGERS if one in named)]})


def _verl_kl(t: Theirs) -> Meaning:
    """Turn the two places of a KL penalty into the one of a recipe: that in the loss, if there is one."""
    in_loss, coefficient, kind = (t(ACTOR + name) for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"))
    in_reward, penalty = t("algorithm.use_kl_in_reward"), t("algorithm.kl_penalty")
    names = ("type", "kl_coef", "target_kl", "horizon")
    control, rate, target, horizon = (t(f"algorithm.kl_ctrl.{name}") for name in names)
    if not (in_loss or in_reward):
        return t.mean({"trainer.kl.coefficient": 0.0})
    estimator = (kind or "low_var_kl") if in_loss else (penalty or "kl")
    given = coefficient if in_loss else rate
    kl = {"coefficient": 0.001 if given is None else given, "place": "loss" if in_loss else "reward"}
    kl["estimator"] = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}.get(estimator, estimator)
    if control == "adaptive" and not in_loss:
        kl |= {"target": target or 0.1, "horizon": horizon or 10000}
    return t.mean(_below("trainer.kl.", kl), "of two penalties that in the loss" if in_loss and in_reward else "")


def of_openrlhf(t: Theirs) -> Iterator[Meaning]:
    """Derive from OpenRLHF's flags: a rollout batch counts prompts, a train batch samples."""
    groups, size, batch = t("rollout_batch_size"), t("n_samples_per_prompt"), t("train_batch_size")
    minibatches = min(max(groups * size // batch, 1), groups)
    yield t.mean(_batch(groups, size, minibatches), f"{batch} samples a step")
    steps, passes, rows = minibatches * t("max_epochs"), t("num_episodes", 1), t("max_samples", 1e8)
    updates = ceil(passes * rows / groups) if rows < 1e8 else 0
    yield _updates(t, updates, groups, passes)
    yield _warmup(t, None, t("lr_warmup_ratio"), updates * steps, f"{steps} x trainer.updates")
    dynamic, most, micro = t("use_dynamic_batch"), t("train_max_tokens_per_gpu", 16192), t("micro_train_batch_size", 4)
    length = t("prompt_max_len", 1024) + t("generate_max_len")
    yield t.mean({"trainer.tokens_per_microbatch": most if dynamic else micro * length})
    low, high = t("eps_clip_low_high", [t("eps_clip")] * 2)
    yield t.mean(_clip(low, high))
    ranks, parallel = t("actor_num_nodes") * t("actor_num_gpus_per_node"), t("vllm_tensor_parallel_size", 1)
    queued = t("async_queue_size", 1)
    late = {"trainer.max_staleness": queued} if t("async_train") else {}
    shared = bool(t("colocate_all_models") and not late)
    engines = ranks // parallel if shared else t("vllm_num_engines", 1)
    t("vllm_num_engines")
    yield t.mean(_gpus(ranks, engines, parallel, shared) | late)
    url, model = str(t("remote_rm_url", "")), str(t("reward_pretrain", ""))
    if url.startswith("http") and "," not in url:
        yield t.mean({"reward.kind": "remote", "reward.remote.url": url.removesuffix("/get_reward")})
    elif model and not url and "," not in model:
        yield t.mean({"reward.kind": "model", "reward.model": model})
    else:
        yield t.mean({}, "name reward.function, a (response, row, **arguments) -> float; several are reward.parts")


def _batch(groups: int, size: int, minibatches: int) -> dict[str, Any]:
    return _below("trainer.", {"groups_per_update": groups, "group_size": size, "minibatches": minibatches})


def _updates(t: Theirs, updates: int, groups: int, passes: float) -> Meaning:
    unknown = f"set trainer.updates to {passes:g} x your rows / {groups}"
    return t.mean({"trainer.updates": updates} if updates else {}, "" if updates else unknown)


def _warmup(t: Theirs, count: int | None, ratio: float, total: int, unit: str) -> Meaning:
    """Take the steps of a warm-up: `count`, or a `ratio` of all `total` steps, if these are known."""
    key = "trainer.optimizer.warmup_steps"
    if count is None and ratio and not total:
        return t.mean({}, f"set {key} to {ratio:g} x {unit}")
    return t.mean({key: round(ratio * total) if count is None else int(count)})


def _clip(low: float, high: float) -> dict[str, Any]:
    return {"trainer.loss.clip_low": low, "trainer.loss.clip_high": high}


def _gpus(ranks: int, engines: int, parallel: int, shared: bool) -> dict[str, Any]:
    """Place so many ranks, and engines of `parallel` GPUs, which share theirs with ranks or not."""
    rollout = {"engines": max(engines, 1), "tensor_parallel_size": parallel, "gpus_per_engine": 1}
    placed = {"cluster.placement": "colocated" if shared else "separate"}
    return placed | _below("rollout.", rollout) | _below("trainer.deepspeed.", {"ranks": ranks, "gpus_per_rank": 1})


def _below(prefix: str, values: Mapping[str, Any]) -> dict[str, Any]:
    return {prefix + key: value for key, value in values.items()}


COMPUTED: Mapping[str, Callable[[Theirs], Iterator[Meaning]]] = {
    "trl": of_trl, "verl": of_verl, "openrlhf": of_openrlhf,
}  # fmt: skip
