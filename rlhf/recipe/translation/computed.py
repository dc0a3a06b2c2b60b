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

ACTOR, ROLLOUT, CRITIC = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "trainer.critic.optimizer."
LOGGERS = ("wandb", "mlflow", "trackio", "comet")
CORRECTIONS = {"tis": ("truncate", "token"), "icepop": ("mask", "token"), "seq-mask-tis": ("mask", "geometric")}


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
    samples, size = max(samples or micro * parts, micro * accumulated), t("num_generations")
    groups = max(ceil(samples / size), 1)
    minibatches = min(max(parts // accumulated, 1), groups)
    yield t.mean(_batch(groups, size, minibatches), f"{samples} samples on {processes} GPU(s); --gpus N for others")
    steps, total = minibatches * t("num_iterations"), max(t("max_steps", 0), 0)
    yield _updates(t, ceil(total / steps), groups, t("num_train_epochs", 3))
    warmup = t("warmup_steps", 0)  # transformers 5 takes a ratio by the same name
    yield _warmup(t, warmup if warmup >= 1 else None, t("warmup_ratio", warmup), total, steps)
    for key, what in (("trainer.save_every", "save"), ("trainer.eval_every", "eval")):
        how, every = t(f"{what}_strategy", "steps"), t(f"{what}_steps", 0)
        known = how == "no" or (how == "steps" and (every >= 1 or every * total))
        count = 0 if how == "no" else max(round((every * total if every < 1 else every) / steps), 1)
        share = f"set {key} to {every:g} x trainer.updates" if 0 < every < 1 else f"{key} counts updates"
        yield t.mean({key: count} if known else {}, share if known or every or how != "steps" else "")
    length = t("max_prompt_length", 512) + t("max_completion_length")
    yield t.mean({"trainer.tokens_per_microbatch": per_device * length})
    low, high, kind = t("epsilon"), t("epsilon_high", t("epsilon")), t("loss_type")
    if kind == "cispo":  # epsilon_high bounds the weight itself, and nothing bounds it from below
        low, high = 1.0, max(high - 1.0, 0.0)
    yield t.mean(_clip(low, high))
    yield t.mean({"trainer.optimizer.betas": [t("adam_beta1", 0.9), t("adam_beta2", 0.999)]})
    adapters = {"rank": t("lora_r", 16), "alpha": t("lora_alpha", 32)} if t("use_peft") else {}
    yield t.mean(_below("model.lora.", adapters))
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
    total = total or ceil(t("rollout.total_rollout_steps", 0) / groups)
    yield _updates(t, total, groups, t("trainer.total_epochs", 30))
    for theirs, ours in ((ACTOR, "trainer.optimizer."), ("critic.", CRITIC)):
        warmup, ratio = t(theirs + "optim.lr_warmup_steps", -1), t(theirs + "optim.lr_warmup_steps_ratio", 0)
        yield _warmup(t, warmup * steps if warmup >= 0 else None, ratio, total * steps, steps, (ours,))
    nodes = t("trainer.nnodes")
    ranks = nodes * t("trainer.n_gpus_per_node")
    parallel, stale = t(ROLLOUT + "tensor_model_parallel_size", 2), t("async_training.staleness_threshold")
    shared = stale is None and t("actor_rollout_ref.hybrid_engine", True)
    playing = ranks if shared else t("rollout.nnodes", 1) * t("rollout.n_gpus_per_node", ranks)
    late = {} if shared else {"trainer.max_staleness": max(ceil(stale or 0), 1)}
    placed = _gpus(ranks, playing // parallel, parallel, shared) | late
    yield t.mean(placed, "nodes join by cluster.address" if nodes > 1 else "")
    dynamic, tokens = t(ACTOR + "use_dynamic_bsz"), t(ACTOR + "ppo_max_token_len_per_gpu", 16384)
    whole = t(ACTOR + "ppo_micro_batch_size", 0)  # of all ranks
    micro = t(ACTOR + "ppo_micro_batch_size_per_gpu", ceil(whole / ranks))
    length = t("data.max_prompt_length", 512) + t("data.max_response_length")
    yield t.mean({"trainer.tokens_per_microbatch": tokens if dynamic or not micro else micro * length})
    low, high = (t(f"{ACTOR}clip_ratio_{side}", t(ACTOR + "clip_ratio")) for side in ("low", "high"))
    yield t.mean(_clip(low, high))
    yield _verl_kl(t)
    off = t("reward_model.overlong_buffer.enable", False) is False and t("reward_model.overlong_buffer.len")
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
        why = "algorithm.kl_ctrl counts with use_kl_in_reward; before there was that setting, always" if rate else ""
        return t.mean({"trainer.kl.coefficient": 0.0}, why if in_reward is None else "")
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
    yield _updates(t, updates, groups, passes, f"if you have {rows:g} rows or more" if updates else "")
    yield _warmup(t, None, t("lr_warmup_ratio"), updates * steps, steps, ("trainer.optimizer.", CRITIC))
    whole, prompt, reply = t("max_len"), t("prompt_max_len", 1024), t("generate_max_len")
    if reply is None:  # without a length of its own a reply fills what its prompt leaves
        reply = whole or 1024
        yield t.mean({"sampling.max_tokens": reply})
    dynamic, most, micro = t("use_dynamic_batch"), t("train_max_tokens_per_gpu", 16192), t("micro_train_batch_size", 4)
    yield t.mean({"trainer.tokens_per_microbatch": most if dynamic else micro * (whole or prompt + reply)})
    yield t.mean(_clip(*t("eps_clip_low_high", [t("eps_clip")] * 2)))
    level, mode = t("is_correction_level", "off"), t("is_correction_mode", "mask")
    kind = t("vllm_is_correction_type", "icepop" if t("use_icepop") else "tis")
    bounds = t("vllm_is_truncated_threshold", [0.5, 5.0])
    if level != "off":
        kind = "seq-mask-tis" if level == "seq" else "icepop" if mode == "mask" else "tis"
    if t("enable_vllm_is_correction") or level != "off":
        low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (0.0, bounds)
        method, level = CORRECTIONS[kind]
        correction = {"method": method, "level": level, "high": high} | ({"low": low} if method == "mask" else {})
        yield t.mean({"trainer.old_logprobs": "recomputed", **_below("trainer.correction.", correction)})
    else:
        yield t.mean({})
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


def _updates(t: Theirs, updates: int, groups: int, passes: float, why: str = "") -> Meaning:
    unknown = f"set trainer.updates to {passes:g} x your rows / {groups}"
    return t.mean({"trainer.updates": updates} if updates else {}, why if updates else unknown)


def _warmup(
    t: Theirs, count: int | None, ratio: float, total: int, steps: int, of: tuple[str, ...] = ("trainer.optimizer.",)
) -> Meaning:
    """Take the steps of a warm-up: `count`, or a `ratio` of all `total` steps (`steps` an update), if it is known."""
    if count is None and ratio and not total:
        return t.mean({}, f"set {of[0]}warmup_steps to {ratio:g} x {steps} x trainer.updates")
    return t.mean({f"{one}warmup_steps": round(ratio * total) if count is None else int(count) for one in of})


def _clip(low: float, high: float) -> dict[str, Any]:
    """Clip a ratio, which is never below 0."""
    return {"trainer.loss.clip_low": min(low, 1.0), "trainer.loss.clip_high": high}


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
