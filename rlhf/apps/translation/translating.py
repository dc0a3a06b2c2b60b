"""Make a recipe of another system's configuration, and account for every setting of it.

Their global batches count samples, ours groups (docs/recipes.md, "Batch sizes"): batches, steps, clipping, KL and GPUs
follow from several settings together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from itertools import product
from math import ceil
from pathlib import Path
from typing import Any

import yaml

from rlhf.apps.translation.program import carried_over
from rlhf.apps.translation.reading import Meaning, Table, Unread, read_settings, read_table
from rlhf.config import flatten, merge, walk_fields
from rlhf.data.config import OF_ROWS
from rlhf.errors import ConfigError
from rlhf.recipe.loading import recipe_from
from rlhf.recipe.schema import Recipe
from rlhf.trainer.credit.registry import preset_layer

OURS: dict[str, Any] = yaml.safe_load(resources.files(__package__).joinpath("ours.yaml").read_text())
PLACEHOLDERS: dict[str, str] = OURS["placeholders"]
ACTOR, ROLLOUT, CRITIC = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "trainer.critic.optimizer."
LOGGERS = ("wandb", "mlflow", "trackio", "comet")
ESTIMATORS = {"kl": "k1", "mse": "k2", "low_var_kl": "k3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Translation:
    """A recipe as nested `values`; the settings `given`, by the table's names, and how the file `spelled` these; what
    became of every one; the keys that the user must `name`; why our schema refuses the recipe, if it does; and the
    `source` of the module with the program's own functions, which the recipe names."""

    title: str
    given: Mapping[str, Any]
    spelled: Mapping[str, str]
    values: Mapping[str, Any]
    rows: tuple[Meaning, ...]
    to_name: tuple[str, ...]
    problem: str
    module: str
    source: str


def translated(path: Path, gpus: int | None = None) -> Translation:
    """Translate a configuration of TRL, verl or OpenRLHF; `gpus` train, where it does not say how many. Raises
    `ConfigError` if it is none of these."""
    system, read = read_settings(path)
    table = read_table(system)
    spelled = {table.spelled(name): name for name in read}
    given = {name: read[spelling] for name, spelling in spelled.items()}
    try:
        together = list(COMPUTED[system](Theirs(given, table.defaults, gpus)))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise ConfigError(f"{path}: a number of {table.title}'s batches is none that trains: {error}") from None
    module = re.sub(r"\W", "_", f"{path.stem}_functions")
    carried, source = carried_over(path.read_text(), module, given) if path.suffix == ".py" else ([], "")
    own = {name for one in carried for name in one.names}
    every = [one for one in _single(table, {**table.defaults, **given}, together) if not own.intersection(one.names)]
    every += [*together, *carried]
    values = {key: value for row in every for key, value in row.values.items()}
    preset = dict(flatten(preset_layer(values.get("trainer.algorithm"))))
    silent = {key: field.get_default(call_default_factory=True) for key, field in walk_fields(Recipe)} | preset
    plain = {key: list(one) if isinstance(one, tuple) else one for key, one in silent.items()}
    effective = [row if row in carried else _effective(row, preset | values) for row in every]
    shown = [row for row in effective if {**plain, **row.values} != plain or row.outcome == "without"]
    rows = tuple(row for row in effective if row in shown or set(row.names) & set(given))
    nested, problem = _recipe({key: value for row in rows for key, value in row.values.items()}), ""
    flat = {"trainer.updates": None, **dict(flatten(nested))}
    unnamed = [*list(PLACEHOLDERS.values())[:-1], None if flat["trainer.updates"] is None else ""]
    to_name = tuple(key for key, one in flat.items() if one in unnamed and not key.endswith("answer_column"))
    try:
        recipe_from(nested)
    except ConfigError as error:
        problem = str(error)
    return Translation(
        title=table.title, given=given, spelled=spelled, values=nested, rows=rows, to_name=to_name, problem=problem,
        module=module, source=source,
    )  # fmt: skip


def _single(table: Table, theirs: Mapping[str, Any], together: list[Meaning]) -> Iterator[Meaning]:
    """Iterate over the meanings of settings for themselves, which those read `together` have only by the table."""
    decided = {name for meaning in together for name in meaning.names}
    for name, value in theirs.items():
        if isinstance(value, Unread):
            default = table.defaults.get(name)
            why = (
                f"their default, {default}, is taken" if name in table.defaults else table.key(name) or table.why(name)
            )
            why = f"known only when it runs; {why}" if why else ""
            yield Meaning(names=(name,), values=table.meaning(name, default).values, why=why)
        elif name not in decided or name in (*table.keys, *table.values):
            meaning = table.meaning(name, value)
            if meaning.values or name not in decided or (name in table.values and meaning.outcome == "without"):
                yield meaning


def _effective(row: Meaning, values: Mapping[str, Any]) -> Meaning:
    """Remove from a meaning the keys that have no effect with the others."""
    kept, why = dict(row.values), row.why
    for key, (prefix, (needed, among)) in product(row.values, OURS["needs"].items()):
        there = key == needed or (values.get(needed) in among if among else values.get(needed))
        if key.startswith(prefix) and not there:
            kept.pop(key, None)
            why = why if kept else f"{needed} is {values.get(needed)}"
    return replace(row, values=kept, why=why, same=row.same or (bool(row.values) and not kept))


def _recipe(values: dict[str, Any]) -> dict[str, Any]:
    """Return the recipe's sections, with placeholders for what is not said; several files are several data sets."""
    for key in ("data.train", "data.eval"):
        path = values.get(f"{key}.path") or []
        files = path.split(",") if isinstance(path, str) else path
        if len(files) == 1:
            values[f"{key}.path"] = files[0]
        elif files:
            inside = [one for one in values if one.startswith(f"{key}.")]
            shared = {one.removeprefix(f"{key}."): values.pop(one) for one in inside}
            sets = [{**shared, "path": file} for file in files]
            values[key] = sets if key == "data.train" else {f"set{place}": one for place, one in enumerate(sets, 1)}
    for key in [key.removesuffix(".tasks") for key in values if key.endswith(".tasks")]:
        values = {name: one for name, one in values.items() if name.removeprefix(f"{key}.") not in {"path", *OF_ROWS}}
    trains = "data.train" in values or "data.train.tasks" in values
    taken = ("reward." if "reward.kind" in values else "-", "data.train.path" if trains else "-")
    own = {key: value for key, value in PLACEHOLDERS.items() if not key.startswith(taken)}
    nested = merge(("placeholders", own), ("translated", values))[0]
    return {section: nested[section] for section in Recipe.model_fields if section in nested}


class Theirs:
    """Settings over their system's defaults. It remembers which were read for the meaning that comes next."""

    def __init__(self, given: Mapping[str, Any], defaults: Mapping[str, Any], gpus: int | None) -> None:
        self._given, self._defaults, self.gpus, self._read = given, defaults, gpus, list[str]()

    def __call__(self, name: str, otherwise: Any = None) -> Any:
        """Return a value; its default, or `otherwise`, where it is not given, or known only to a run."""
        value = self._given.get(name)
        self._read += [] if isinstance(value, Unread) else [name]
        return self._defaults.get(name, otherwise) if isinstance(value, Unread | None) else value

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
    for what in ("save", "eval"):
        key, how, every = f"trainer.{what}_every", t(f"{what}_strategy", "steps"), t(f"{what}_steps", 0)
        known = how == "no" or (how == "steps" and (every >= 1 or every * total))
        count = 0 if how == "no" else max(round((every * total if every < 1 else every) / steps), 1)
        share = f"set {key} to {every:g} x trainer.updates" if 0 < every < 1 else f"{key} counts updates"
        yield t.mean({key: count} if known else {}, share if known or every or how != "steps" else "")
    length = t("max_prompt_length", 512) + t("max_completion_length")
    yield t.mean({"trainer.tokens_per_microbatch": per_device * length})
    low, high, kind = t("epsilon"), t("epsilon_high", t("epsilon")), t("loss_type")
    if kind == "cispo":  # epsilon_high bounds the weight itself, and nothing bounds it from below
        low, high = 1.0, max(high - 1.0, 0.0)
    yield t.mean(_below("trainer.loss.clip_", low=low, high=high))
    yield t.mean({"trainer.optimizer.betas": [t("adam_beta1", 0.9), t("adam_beta2", 0.999)]})
    adapters = _below("model.lora.", rank=t("lora_r", 16), alpha=t("lora_alpha", 32))
    yield t.mean(adapters if t("use_peft", t("lora_r")) else {})
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
        yield _warmup(t, warmup * steps if warmup >= 0 else None, ratio, total * steps, steps, ours)
    nodes, stale = t("trainer.nnodes"), t("async_training.staleness_threshold")
    ranks, parallel = nodes * t("trainer.n_gpus_per_node"), t(ROLLOUT + "tensor_model_parallel_size", 2)
    shared = stale is None and t("actor_rollout_ref.hybrid_engine", True)
    playing = ranks if shared else t("rollout.nnodes", 1) * t("rollout.n_gpus_per_node", ranks)
    placed = _gpus(ranks, playing // parallel, parallel, shared, 0 if shared else max(ceil(stale or 0), 1))
    yield t.mean(placed, "nodes join by cluster.address" if nodes > 1 else "")
    dynamic, tokens = t(ACTOR + "use_dynamic_bsz"), t(ACTOR + "ppo_max_token_len_per_gpu", 16384)
    whole = t(ACTOR + "ppo_micro_batch_size", 0)  # of all ranks
    micro = t(ACTOR + "ppo_micro_batch_size_per_gpu", ceil(whole / ranks))
    length = t("data.max_prompt_length", 512) + t("data.max_response_length")
    yield t.mean({"trainer.tokens_per_microbatch": tokens if dynamic or not micro else micro * length})
    cap, weighed = t(ACTOR + "tis_imp_ratio_cap", 0), t("algorithm.rollout_correction.rollout_is")
    if cap > 0 and weighed == "none":  # older versions name the bound alone
        truncated = _below("trainer.correction.", method="truncate", level="token", high=cap)
        yield t.mean({"trainer.proximal_logprobs": "recomputed"} | truncated)
    low, high = (t(f"{ACTOR}clip_ratio_{side}", t(ACTOR + "clip_ratio")) for side in ("low", "high"))
    yield t.mean(_below("trainer.loss.clip_", low=min(low, 1.0), high=high))  # a ratio is never below 0
    yield _verl_kl(t)
    off = t("reward_model.overlong_buffer.enable", False) is False and t("reward_model.overlong_buffer.len")
    yield t.mean({"trainer.overlong.buffer_tokens": 0} if off else {})
    model = t("reward_model.model.path") if t("reward_model.enable") else None
    yield t.mean({"reward.kind": "model", "reward.model": model} if model else {})
    named = t("trainer.logger", [])
    yield t.mean({"run.loggers": ["tensorboard", *(one for one in LOGGERS if one in named)]})


def _verl_kl(t: Theirs) -> Meaning:
    """Turn the two places of a KL penalty into the one of a recipe: that in the loss, if there is one."""
    in_loss, rate, kind = (t(ACTOR + name) for name in ("use_kl_loss", "kl_loss_coef", "kl_loss_type"))
    in_reward, penalty = t("algorithm.use_kl_in_reward"), t("algorithm.kl_penalty")
    names = ("kl_coef", "type", "target_kl", "horizon")
    coefficient, control, target, horizon = (t(f"algorithm.kl_ctrl.{name}") for name in names)
    if not (in_loss or in_reward):
        why = "algorithm.kl_ctrl counts with use_kl_in_reward; before there was that setting, always"
        return t.mean({"trainer.kl.coefficient": 0.0}, why if in_reward is None and coefficient else "")
    if in_loss:
        kl = _below("trainer.kl.", coefficient=rate, place="loss", estimator=ESTIMATORS.get(kind, kind))
        return t.mean(kl, "of two penalties that in the loss" if in_reward else "")
    rate = 0.001 if coefficient is None else coefficient
    kl = _below("trainer.kl.", coefficient=rate, place="reward", estimator=ESTIMATORS.get(penalty, penalty))
    divided = t("algorithm.adv_estimator") == "grpo" and t("algorithm.norm_adv_by_std_in_grpo", True)
    return t.mean(
        kl | (_below("trainer.kl.", target=target, horizon=horizon) if control == "adaptive" else {}),
        "theirs divides the KL by the deviation of the group's rewards, ours only the scores" if divided else "",
    )


def of_openrlhf(t: Theirs) -> Iterator[Meaning]:
    """Derive from OpenRLHF's flags: a rollout batch counts prompts, a train batch samples."""
    groups, size, batch = t("rollout_batch_size"), t("n_samples_per_prompt"), t("train_batch_size")
    minibatches = min(max(groups * size // batch, 1), groups)
    yield t.mean(_batch(groups, size, minibatches), f"{batch} samples a step")
    steps, passes, rows = minibatches * t("max_epochs"), t("num_episodes", 1), t("max_samples", 1e8)
    updates = ceil(passes * rows / groups) if rows < 1e8 else 0
    yield _updates(t, updates, groups, passes, f"if you have {rows:g} rows or more" if updates else "")
    yield _warmup(t, None, t("lr_warmup_ratio"), updates * steps, steps, "trainer.optimizer.", CRITIC)
    whole, prompt, reply = t("max_len"), t("prompt_max_len", 1024), t("generate_max_len")
    if reply is None:  # without a limit a reply fills what its prompt leaves
        reply = whole or 1024
        yield t.mean({"sampling.max_tokens": reply})
    dynamic, most, micro = t("use_dynamic_batch"), t("train_max_tokens_per_gpu", 16192), t("micro_train_batch_size", 4)
    yield t.mean({"trainer.tokens_per_microbatch": most if dynamic else micro * (whole or prompt + reply)})
    low, high = t("eps_clip_low_high", [t("eps_clip")] * 2)
    yield t.mean(_below("trainer.loss.clip_", low=low, high=high))
    corrects = t("enable_vllm_is_correction") or t("is_correction_level") != "off"
    bounds = t("vllm_is_truncated_threshold", [0.5, 5.0])
    low, high = bounds if isinstance(bounds, list) and len(bounds) == 2 else (0.0, bounds)
    yield t.mean(_below("trainer.correction.", low=low, high=high) if corrects else {})
    ranks, parallel = t("actor_num_nodes") * t("actor_num_gpus_per_node"), t("vllm_tensor_parallel_size", 1)
    engines, queued, late = t("vllm_num_engines", 1), t("async_queue_size", 1), t("async_train")
    shared = bool(t("colocate_all_models") and not late)
    yield t.mean(_gpus(ranks, ranks // parallel if shared else engines, parallel, shared, queued if late else 0))
    url, model = str(t("remote_rm_url", "")), str(t("reward_pretrain", ""))
    served = {"reward.kind": "remote", "reward.remote.url": url.removesuffix("/get_reward")}
    scored = {"reward.kind": "model", "reward.model": model} if model and not url else {}
    scored = {} if "," in url + model else served if url.startswith("http") else scored
    written = "name reward.function, module:function, as it is; several are a list below reward"
    yield t.mean(scored, "" if scored else written)


def _batch(groups: int, size: int, minibatches: int) -> dict[str, Any]:
    return _below("trainer.", groups_per_update=groups, group_size=size, minibatches=minibatches)


def _updates(t: Theirs, updates: int, groups: int, passes: float, why: str = "") -> Meaning:
    unknown = f"set trainer.updates to {passes:g} x your rows / {groups}"
    return t.mean({"trainer.updates": updates} if updates else {}, why if updates else unknown)


def _warmup(t: Theirs, count: int | None, ratio: float, total: int, steps: int, *of: str) -> Meaning:
    """Take the steps of a warm-up: `count`, or a `ratio` of all `total` steps (`steps` an update), if it is known."""
    keys = [f"{one}warmup_steps" for one in of or ("trainer.optimizer.",)]
    if count is None and ratio and not total:
        return t.mean({}, f"set {keys[0]} to {ratio:g} x {steps} x trainer.updates")
    return t.mean(dict.fromkeys(keys, round(ratio * total) if count is None else int(count)))


def _gpus(ranks: int, engines: int, parallel: int, shared: bool, late: int = 0) -> dict[str, Any]:
    """Place that many ranks, and engines of `parallel` GPUs, which share theirs with ranks or play `late` updates."""
    rollout = _below("rollout.", engines=max(engines, 1), tensor_parallel_size=parallel, gpus_per_engine=1)
    placed = rollout | _below("trainer.deepspeed.", ranks=ranks, gpus_per_rank=1)
    placed |= {"trainer.max_staleness": late} if late else {}
    return {"cluster.placement": "colocated" if shared else "separate"} | placed


def _below(prefix: str, **values: Any) -> dict[str, Any]:
    return {prefix + key: value for key, value in values.items()}


COMPUTED = {"trl": of_trl, "verl": of_verl, "openrlhf": of_openrlhf}
