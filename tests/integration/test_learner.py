"""Real DeepSpeed ranks over gloo, one process each: the same gradients, weights and answers whatever the plan."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rlhf.durable import sizes
from rlhf.errors import CheckpointError, ModelError, TrainingDiverged
from rlhf.models import deepspeed_internals, head_chunks
from rlhf.models.config import ModelConfig
from rlhf.models.head import chosen_logprobs
from rlhf.models.loading import load_policy, load_tokenizer
from rlhf.trainer.batching.batch import build_minibatches
from rlhf.trainer.batching.forward_outputs import with_forward_outputs
from rlhf.trainer.config import DeepSpeedConfig, KLConfig, OptimizerConfig, TrainerConfig, WeightSyncConfig
from rlhf.trainer.learner import RemoteLearner
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.policy_rank import Rank
from rlhf.trainer.settings import LearnerSettings, UpdateArguments
from rlhf.types import Group, Sample
from rlhf.weight_sync.broadcast import BroadcastSource
from rlhf.weight_sync.buckets import unpack_bucket
from rlhf.weight_sync.types import Manifest, Rendezvous
from tests.integration.learner_ranks import ProcessWorker, ranks_of
from tests.pace import scaled
from tests.trainer.made import made_batch, made_groups
from tests.whole import whole_state

pytestmark = pytest.mark.engine
SLOW = pytest.mark.slow

CANARY = np.arange(3, 40, dtype=np.int32)
GROUPS = made_groups(12, 8)
CUTS = [(100_000, 512, 0), (300, 128, 0), (1, 1, 0), (300, 128, 5)]
"""`(tokens a micro-batch, tokens a row, seed of the order of groups)`: from one pass to one sequence at a time."""
LINEAR: dict[str, Any] = {"learning_rate": 1e-3, "schedule": "linear"}


def trainer(ranks: int, stage: int, learning_rate: float = 1e-3, **changes: Any) -> TrainerConfig:
    return TrainerConfig(
        updates=20,
        optimizer=OptimizerConfig(learning_rate=learning_rate, schedule="linear"),
        deepspeed=DeepSpeedConfig(ranks=ranks, zero_stage=stage, timeout_seconds=60, start_timeout_seconds=120),
        **changes,
    )


def start(
    workers: list[ProcessWorker],
    folder: str,
    config: TrainerConfig,
    dtype: str = "float32",
    temperature: float = 1.0,
    plays: bool = False,
) -> RemoteLearner:
    learner = RemoteLearner(workers, config, plays=plays)
    model = ModelConfig(path=folder, dtype=dtype)
    settings = LearnerSettings(model_path=folder, model=model, trainer=config, temperature=temperature)
    asyncio.run(learner.start(settings))
    return learner


def look(workers: list[ProcessWorker], what: Any, *per_rank: Any) -> Any:
    """What rank 0 sees; all ranks look, because looking is a collective."""
    futures = [worker.inspect(what, *own) for worker, own in zip(workers, per_rank or [()] * len(workers), strict=True)]
    first, *_ = [future.result(timeout=scaled(60)) for future in futures]
    return first


def whole_weights(rank: Rank) -> dict[str, torch.Tensor]:
    return whole_state(rank.policy)


def gradient_of(rank: Rank, minibatches: Any) -> np.ndarray:
    """The whole gradient that the optimizer step of `update` is about to apply."""
    from deepspeed.utils import safe_get_full_grad

    seen = []
    real_step = zero.step

    def reading_step(engine: Any) -> float:
        stage = engine.zero_optimization_stage()
        gradients = [safe_get_full_grad(p) if stage else p.grad for p in engine.module.parameters()]
        seen.append(torch.cat([gradient.double().flatten() for gradient in gradients]).numpy())
        return real_step(engine)

    zero.step = reading_step
    try:
        rank.update(minibatches, {}, UpdateArguments())
    finally:
        zero.step = real_step
    return seen[0]


def gradient(workers: list[ProcessWorker], tokens: int, row_tokens: int, order: int) -> np.ndarray:
    groups = [GROUPS[i] for i in np.random.default_rng(order).permutation(len(GROUPS))] if order else GROUPS
    parts = build_minibatches(
        made_batch(groups), minibatches=1, ranks=len(workers), tokens_per_microbatch=tokens, row_tokens=row_tokens
    )
    return look(workers, gradient_of, *[(part,) for part in parts])


def off(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def buffer_types(rank: Rank) -> set[torch.dtype]:
    return {buffer.dtype for buffer in rank.policy.buffers()}


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    return float(torch.cat([(a[name].float() - b[name].float()).flatten() for name in a]).norm())


@pytest.fixture(scope="module")
def reference_gradient(single: list[ProcessWorker], folder: str) -> np.ndarray:
    start(single, folder, trainer(1, 0, learning_rate=0))
    return gradient(single, *CUTS[0])


@pytest.fixture(scope="module")
def reference_weights(single: list[ProcessWorker], folder: str) -> dict[str, torch.Tensor]:
    learner = start(single, folder, trainer(1, 0))
    train(learner, 3)
    return look(single, whole_weights)


def train(learner: RemoteLearner, updates: int) -> None:
    for _ in range(updates):
        asyncio.run(learner.update(GROUPS))


@pytest.mark.parametrize(("ranks", "stage"), [(1, 0), (2, 3), *(pytest.param(2, n, marks=SLOW) for n in range(3))])
def test_the_gradient_does_not_depend_on_how_a_batch_is_cut(
    request: pytest.FixtureRequest, folder: str, reference_gradient: np.ndarray, ranks: int, stage: int
) -> None:
    workers = ranks_of(request, ranks)
    start(workers, folder, trainer(ranks, stage, learning_rate=0))
    differences = {cut: off(gradient(workers, *cut), reference_gradient) for cut in CUTS}
    assert max(differences.values()) <= 1e-6, differences


@pytest.mark.parametrize(("ranks", "stage"), [(1, 2), (2, 1), (2, 3)])
def test_the_weights_after_three_steps_do_not_depend_on_the_plan(
    request: pytest.FixtureRequest, folder: str, reference_weights: dict[str, torch.Tensor], ranks: int, stage: int
) -> None:
    workers = ranks_of(request, ranks)
    train(start(workers, folder, trainer(ranks, stage, tokens_per_microbatch=400)), 3)
    found = look(workers, whole_weights)
    assert found.keys() == reference_weights.keys()
    # Adam divides by the gradient's size, so where a gradient is all rounding its sign is: at most a step apart.
    worst = max(float((found[name] - reference_weights[name]).norm() / found[name].norm()) for name in found)
    assert worst <= 1e-3


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype"),
    [
        (2, 0, "float32"),
        (2, 3, "bfloat16"),
        *(pytest.param(*one, marks=SLOW) for one in ((2, 2, "float32"), (1, 0, "bfloat16"))),
    ],
)
def test_a_resumed_learner_continues_bit_for_bit(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, ranks: int, stage: int, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    learner = start(workers, folder, trainer(ranks, stage), dtype)
    train(learner, 2)
    written = asyncio.run(learner.save(tmp_path))
    assert {name: one.size for name, one in written.items()} == sizes(tmp_path), "every file has its writer"
    train(learner, 2)
    uninterrupted = look(workers, whole_weights)
    resumed = start(workers, folder, trainer(ranks, stage), dtype)
    asyncio.run(resumed.load(tmp_path))
    assert resumed.version == 2
    train(resumed, 2)
    assert same(look(workers, whole_weights), uninterrupted)


@pytest.mark.parametrize(
    ("before", "after", "dtype"),
    [
        ((1, 0), (2, 3), "float32"),
        pytest.param((2, 3), (1, 1), "float32", marks=SLOW),
        pytest.param((1, 2), (2, 3), "bfloat16", marks=SLOW),
    ],
)
def test_a_learner_continues_under_another_plan_but_for_rounding(
    request: pytest.FixtureRequest,
    folder: str,
    tmp_path: Path,
    before: tuple[int, int],
    after: tuple[int, int],
    dtype: str,
) -> None:
    workers = ranks_of(request, before[0])
    learner = start(workers, folder, trainer(*before), dtype)
    train(learner, 3)
    asyncio.run(learner.save(tmp_path))
    at_save = look(workers, whole_weights)
    train(learner, 2)
    uninterrupted = look(workers, whole_weights)
    workers = ranks_of(request, after[0])
    resumed = start(workers, folder, trainer(*after), dtype)
    asyncio.run(resumed.load(tmp_path))
    assert resumed.version == 3
    assert same(look(workers, whole_weights), at_save)
    train(resumed, 2)
    # Moments that started anew would move the weights otherwise: by 0.5 of the way and more.
    found = look(workers, whole_weights)
    assert distance(found, uninterrupted) <= (0.01 if dtype == "float32" else 0.3) * distance(at_save, uninterrupted)


@pytest.mark.parametrize(("before", "after"), [((2, 3), (2, 3)), pytest.param((1, 0), (1, 1), marks=SLOW)])
def test_settings_changed_at_a_resume_decide_the_next_step(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, before: tuple[int, int], after: tuple[int, int]
) -> None:
    learner = start(ranks_of(request, before[0]), folder, trainer(*before))
    train(learner, 2)
    asyncio.run(learner.save(tmp_path))
    workers = ranks_of(request, after[0])
    was, same_rate = next_step(workers, folder, tmp_path, trainer(*after))
    _, thrice = next_step(workers, folder, tmp_path, trainer(*after, learning_rate=3e-3))
    assert off(thrice, 3 * same_rate) < 1e-4
    decaying = trainer(*after).model_copy(update={"optimizer": OptimizerConfig(weight_decay=0.5, **LINEAR)})
    _, decayed = next_step(workers, folder, tmp_path, decaying)
    rate = 1e-3 * 18 / 20  # linear: two of twenty steps are taken
    assert off(decayed - same_rate, -rate * 0.5 * was) < 1e-2


def next_step(
    workers: list[ProcessWorker], folder: str, checkpoint: Path, config: TrainerConfig
) -> tuple[np.ndarray, np.ndarray]:
    """All weights as the checkpoint has them, and what the next update adds to them."""
    resumed = start(workers, folder, config)
    asyncio.run(resumed.load(checkpoint))
    was = flat(look(workers, whole_weights))
    train(resumed, 1)
    return was, flat(look(workers, whole_weights)) - was


def flat(state: dict[str, torch.Tensor]) -> np.ndarray:
    whole = [state[name].double().flatten() for name in sorted(state) if name != "lm_head.weight"]  # tied
    return torch.cat(whole).numpy()


@pytest.mark.parametrize(("ranks", "stage", "dtype"), [(2, 3, "float32"), pytest.param(1, 0, "bfloat16", marks=SLOW)])
def test_a_start_check_leaves_no_trace(
    request: pytest.FixtureRequest, folder: str, ranks: int, stage: int, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    plain = start(workers, folder, trainer(ranks, stage), dtype)
    train(plain, 2)
    undisturbed = look(workers, whole_weights)
    learner = start(workers, folder, trainer(ranks, stage), dtype)
    train(learner, 1)
    before, scores = look(workers, whole_weights), asyncio.run(learner.token_logprobs(CANARY))
    asyncio.run(learner.perturb())
    moved = look(workers, whole_weights)
    assert not any(torch.equal(moved[name], before[name]) for name in before)
    assert np.abs(asyncio.run(learner.token_logprobs(CANARY)) - scores).max() > 1
    asyncio.run(learner.restore())
    assert same(look(workers, whole_weights), before)
    np.testing.assert_array_equal(asyncio.run(learner.token_logprobs(CANARY)), scores)
    train(learner, 1)
    assert same(look(workers, whole_weights), undisturbed)


@pytest.mark.parametrize(("ranks", "stage", "dtype"), [(2, 3, "float32"), (1, 0, "bfloat16")])
def test_the_exported_folder_is_the_trained_policy(
    request: pytest.FixtureRequest, folder: str, tmp_path: Path, ranks: int, stage: int, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    learner = start(workers, folder, trainer(ranks, stage), dtype)
    train(learner, 1)
    asyncio.run(learner.export(tmp_path))
    model = load_policy(str(tmp_path), dtype=dtype)
    ids = torch.tensor(CANARY).long()
    with torch.no_grad():
        expected, _ = chosen_logprobs(model(ids[None]).logits[0, :-1], ids[1:])
    # In bfloat16 a logit is rounded to 2^-9 of itself, and how depends on how many rows are multiplied at once.
    tolerance = 1e-6 if dtype == "float32" else 5e-3
    np.testing.assert_allclose(asyncio.run(learner.token_logprobs(CANARY)), expected, rtol=0, atol=tolerance)
    assert same(dict(model.named_parameters()), look(workers, whole_weights))
    assert load_tokenizer(str(tmp_path)).chat_template == load_tokenizer(folder).chat_template


def received(rendezvous: Rendezvous, manifest: Manifest) -> dict[str, torch.Tensor]:
    """What an engine gets: joins the transfer group as its second member and takes one publish."""
    found: dict[str, torch.Tensor] = {}
    for bucket, buffer in BroadcastSource(1, rendezvous).buckets(manifest):
        found |= {name: tensor.clone() for name, tensor in unpack_bucket(bucket, buffer)}
    return found


async def publish_to_this_process(learner: RemoteLearner) -> dict[str, torch.Tensor]:
    manifest, rendezvous = await learner.manifest(), await learner.rendezvous(2)
    engine = asyncio.create_task(asyncio.to_thread(received, rendezvous, manifest))
    await learner.connect(rendezvous)
    await learner.send()
    return await engine


@pytest.mark.parametrize(
    ("ranks", "stage", "dtype"),
    [(1, 0, "float32"), (2, 3, "bfloat16"), *(pytest.param(2, n, "float32", marks=SLOW) for n in (1, 2, 3))],
)
def test_an_engine_receives_every_weight_bit_for_bit(
    request: pytest.FixtureRequest, folder: str, ranks: int, stage: int, dtype: str
) -> None:
    workers = ranks_of(request, ranks)
    config = trainer(ranks, stage, weight_sync=WeightSyncConfig(bucket_megabytes=0.1))
    learner = start(workers, folder, config, dtype)
    train(learner, 1)
    arrived, held = asyncio.run(publish_to_this_process(learner)), look(workers, whole_weights)
    assert same(arrived, held)
    assert "lm_head.weight" not in held, "it is tied to the embedding, which is sent"
    assert look(workers, buffer_types) == {torch.float32}, "rotary frequencies, also beside 16-bit weights"


def gathered_alike(rank: Rank) -> tuple[int, list[str]]:
    """How many weights lie in shards, and those that we and DeepSpeed gather differently, or that stay gathered."""
    shards = [(name, weight) for name, weight in rank.policy.named_parameters() if weight.ds_status.name != "AVAILABLE"]
    with deepspeed_internals.whole_to_read([weight for _, weight in (*shards, *shards)]):
        own = {name: weight.detach().clone() for name, weight in shards}
    kept = [name for name, weight in shards if weight.numel() or weight.ds_status.name == "AVAILABLE"]
    with deepspeed_internals.gathered([weight for _, weight in shards]):
        return len(shards), kept + [name for name, weight in shards if not torch.equal(weight, own[name])]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_shards_are_gathered_to_the_same_bytes_as_by_deepspeed(
    pair: list[ProcessWorker], folder: str, dtype: str
) -> None:
    train(start(pair, folder, trainer(2, 3), dtype), 1)
    count, differing = look(pair, gathered_alike)
    assert count > 5
    assert not differing


def gradient_in_chunks(rank: Rank, minibatches: Any) -> np.ndarray:
    """The gradient, with the head in chunks of 64 tokens, as for a vocabulary of 65,536 and more."""
    logits_at_once, head_chunks.LOGITS_AT_ONCE = head_chunks.LOGITS_AT_ONCE, 1
    try:
        return gradient_of(rank, minibatches)
    finally:
        head_chunks.LOGITS_AT_ONCE = logits_at_once


def test_ranks_with_fewer_chunks_of_the_head_than_others_meet_them_under_zero_3(
    pair: list[ProcessWorker], folder: str, reference_gradient: np.ndarray
) -> None:
    start(pair, folder, trainer(2, 3, learning_rate=0))
    batch = made_batch(GROUPS)
    parts = build_minibatches(batch, minibatches=1, ranks=2, tokens_per_microbatch=1000, row_tokens=512)
    ((one, *_), (other, *_)) = ([len(m.targets) for m in part[0]] for part in parts)
    size = head_chunks.MIN_CHUNK_TOKENS
    assert -(-one // size) != -(-other // size), "the ranks have different numbers of chunks"
    assert off(look(pair, gradient_in_chunks, *[(part,) for part in parts]), reference_gradient) <= 1e-6


def test_log_probs_come_back_to_their_samples_at_the_sampling_temperature(
    pair: list[ProcessWorker], folder: str
) -> None:
    learner = start(pair, folder, trainer(2, 1, tokens_per_microbatch=300), temperature=0.7)
    updated = asyncio.run(learner.update(GROUPS))
    assert learner.version == 1
    model = load_policy(folder)
    for trained in updated.samples:
        segment = GROUPS[trained.ordinal].samples[trained.sample].trajectory.segments[0]
        ids, actions = torch.tensor(segment.token_ids).long(), torch.tensor(np.flatnonzero(segment.action_mask))
        with torch.no_grad():
            expected, _ = chosen_logprobs(model(ids[None]).logits[0, actions - 1], ids[actions], 0.7)
        np.testing.assert_allclose(trained.proximal_logprobs, expected, rtol=0, atol=1e-5)
    difference = np.concatenate([t.proximal_logprobs for t in updated.samples]) - np.concatenate(
        [
            s.trajectory.segments[0].behaviour_logprobs[s.trajectory.segments[0].action_mask]
            for g in GROUPS
            for s in g.samples
        ]
    )
    assert updated.metrics["policy/logprob_difference_max"] == pytest.approx(np.abs(difference).max(), rel=1e-4)
    assert sum(len(one.proximal_logprobs) for one in updated.samples) == len(difference)


def test_stale_tokens_do_not_count_in_the_distance_between_engine_and_learner(
    pair: list[ProcessWorker], folder: str
) -> None:
    learner = start(pair, folder, trainer(2, 1, mismatch="ignore"), plays=True)
    fresh, stale = sampled_by(GROUPS[:1], 0), sampled_by(GROUPS[1:], -1)
    updated = asyncio.run(learner.update([*fresh, *stale]))
    own = {(one.ordinal, one.sample): one.proximal_logprobs for one in updated.samples}
    differences = [
        np.abs(own[group.ticket.ordinal, number] - segment.behaviour_logprobs[segment.action_mask])
        for group in fresh
        for number, sample in enumerate(group.samples)
        for segment in sample.trajectory.segments
    ]
    assert updated.metrics["policy/logprob_difference"] == pytest.approx(np.concatenate(differences).mean(), rel=1e-4)


def sampled_by(groups: Sequence[Group], version: int) -> list[Group]:
    def aged(sample: Sample) -> Sample:
        segments = [replace(one, versions=np.full_like(one.versions, version)) for one in sample.trajectory.segments]
        return replace(sample, trajectory=replace(sample.trajectory, segments=tuple(segments)))

    return [replace(group, samples=tuple(map(aged, group.samples))) for group in groups]


def test_scoring_gives_the_log_probs_that_an_update_starts_from(pair: list[ProcessWorker], folder: str) -> None:
    learner = start(pair, folder, trainer(2, 3))
    batch = made_batch(GROUPS)
    parts = build_minibatches(batch, minibatches=1, ranks=2, tokens_per_microbatch=4096)

    async def scored() -> list[Any]:
        calls = zip(pair, parts, strict=True)
        return await asyncio.gather(
            *(
                worker.call("policy.forward_outputs", part, ("proximal_logprobs",), timeout_seconds=scaled(60))
                for worker, part in calls
            )
        )

    scores = with_forward_outputs(batch, parts, asyncio.run(scored()))
    assert scores.proximal_logprobs is not None
    found = batch.per_sample(scores.proximal_logprobs)
    for sample, logprobs in zip(asyncio.run(learner.update(GROUPS)).samples, found, strict=True):
        np.testing.assert_array_equal(sample.proximal_logprobs, logprobs)


def test_several_steps_an_update_use_the_log_probs_from_before_the_first(
    single: list[ProcessWorker], folder: str
) -> None:
    changes = {"epochs": 2, "minibatches": 3, "proximal_logprobs": "recomputed", "kl": KLConfig(coefficient=0.1)}
    learner = start(single, folder, trainer(1, 0, **changes))
    first = asyncio.run(learner.update(GROUPS))
    frozen = start(single, folder, trainer(1, 0, learning_rate=0, proximal_logprobs="recomputed"))
    still = asyncio.run(frozen.update(GROUPS))
    for a, b in zip(first.samples, still.samples, strict=True):
        np.testing.assert_allclose(a.proximal_logprobs, b.proximal_logprobs, rtol=0, atol=1e-5)
    assert still.metrics["policy/ratio_max"] == 1.0
    assert first.metrics["policy/ratio_max"] > 1.01
    assert first.metrics["policy/kl_reference"] > 0


def test_what_no_step_used_is_not_trained_and_the_rate_follows_the_updates(
    single: list[ProcessWorker], folder: str
) -> None:
    """`kl.stop` ends both updates after the first of their six steps, of two groups each."""
    learner = start(single, folder, trainer(1, 0, minibatches=3, epochs=2, kl=KLConfig(stop=1e-9)))
    seen = [asyncio.run(learner.update(made_groups(6, 4))) for _ in range(2)]
    assert [one.metrics["optimizer/steps"] for one in seen] == [1, 1]
    assert [len({sample.ordinal for sample in one.samples}) for one in seen] == [2, 2]
    assert all(np.isfinite(sample.proximal_logprobs).all() for one in seen for sample in one.samples)
    assert seen[1].metrics["optimizer/learning_rate"] == pytest.approx(1e-3 * (1 - 6 / 120))


def test_gradients_that_are_no_numbers_end_the_run_by_name(single: list[ProcessWorker], folder: str) -> None:
    learner = start(single, folder, trainer(1, 0, learning_rate=1e38))
    with pytest.raises(TrainingDiverged, match=r"lower trainer\.optimizer\.learning_rate"):
        train(learner, 3)


def test_a_state_of_another_precision_is_refused(single: list[ProcessWorker], folder: str, tmp_path: Path) -> None:
    asyncio.run(start(single, folder, trainer(1, 0)).save(tmp_path))
    with pytest.raises(CheckpointError, match=r"written by 1 rank\(s\) of ZeRO stage 0 in float32; this run has 1"):
        asyncio.run(start(single, folder, trainer(1, 2), "bfloat16").load(tmp_path))


def test_a_model_that_cannot_be_trained_here_is_one_line(single: list[ProcessWorker], folder: str) -> None:
    with pytest.raises(ModelError, match="no such folder"):
        start(single, "./nowhere/at-all", trainer(1, 0))
    with pytest.raises(ModelError, match="float16 trains on GPUs only"):
        start(single, folder, trainer(1, 0), dtype="float16")
