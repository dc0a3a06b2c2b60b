"""Pairs on their way to the ranks: never parted, whatever the cut."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from rlhf.chat.reply_tokens import ReplyEncoder
from rlhf.chat.templates import comparison
from rlhf.images import Image, ImageFeatures, PlacedImage
from rlhf.models.tiny import byte_tokenizer
from rlhf.trainer.batching.batch import build_minibatches
from rlhf.trainer.batching.pairs import PairOfSegments, mismatched, pair_batch
from rlhf.trainer.rank.pair_ranks import ranking_metrics
from rlhf.types import Message


def made_pairs(count: int = 12) -> list[PairOfSegments]:
    """Pairs of many lengths, several of them on one prompt."""
    rng = np.random.default_rng(0)
    tokenizer = byte_tokenizer()
    pairs = []
    for n in range(count):
        prompt = [Message(role="user", content="?" * (4 + n // 3))]
        replies = ["".join(rng.choice(list("abcdef"), int(rng.integers(1, 40)))) for _ in range(2)]
        chosen, rejected = comparison(tokenizer, prompt, *replies, replies=ReplyEncoder(tokenizer).token_ids)
        pairs.append(PairOfSegments(chosen=chosen, rejected=rejected, margin=float(n)))
    return pairs


@pytest.mark.parametrize("tokens", [1, 60, 100_000])
@pytest.mark.parametrize("ranks", [1, 3])
def test_both_replies_of_a_pair_are_in_one_micro_batch_whatever_the_cut(tokens: int, ranks: int) -> None:
    batch = pair_batch(made_pairs())
    parts = build_minibatches(
        batch, minibatches=1, ranks=ranks, tokens_per_microbatch=tokens, row_tokens=60,
        aggregation="sequence_mean", whole_groups=True,
    )  # fmt: skip
    seen: list[int] = []
    for (minibatch,) in parts:
        assert minibatch[0].step_samples == 24
        for microbatch in minibatch:
            pairs = np.sort(microbatch.samples).reshape(-1, 2)
            assert (pairs[:, 0] % 2 == 0).all()
            assert (pairs[:, 0] + 1 == pairs[:, 1]).all()
            seen += (pairs[:, 0] // 2).tolist()
    assert sorted(seen) == list(range(12))
    assert len({len(minibatch) for (minibatch,) in parts}) == 1


def test_a_pairs_prompt_is_rendered_and_computed_once() -> None:
    (pair,) = made_pairs(1)
    shared = int((~pair.chosen.action_mask).sum())
    np.testing.assert_array_equal(pair.chosen.token_ids[:shared], pair.rejected.token_ids[:shared])
    ((minibatch,),) = build_minibatches(
        pair_batch([pair]), minibatches=1, ranks=1, tokens_per_microbatch=1000, row_tokens=1, whole_groups=True
    )
    (microbatch,) = minibatch
    assert microbatch.tokens == len(pair.chosen.token_ids) + len(pair.rejected.token_ids) - shared
    ids = microbatch.token_ids.flatten()[microbatch.ends]
    assert (ids == byte_tokenizer().eos_token_id).all()


def test_accuracy_counts_a_tie_half() -> None:
    chosen, rejected = torch.tensor([1.0, 0.0, -1.0]), torch.tensor([0.0, 0.0, 1.0])
    metrics = ranking_metrics(chosen, rejected, torch.ones(3))
    assert metrics.count == 3
    assert float(metrics.sums["pairs/accuracy"]) == 1.5
    assert float(metrics.sums["pairs/score_difference"]) == -1.0
    assert float(metrics.sums["pairs/score"]) == 0.5


def test_replies_are_put_to_other_prompts_and_kept_within_the_longest_pair() -> None:
    pairs = made_pairs()
    longest = max(pair.tokens for pair in pairs)
    for n, strange in enumerate(mismatched(pairs)):
        asked, answered = pairs[n].chosen, pairs[(n + 1) % len(pairs)]
        for segment, reply in ((strange.chosen, answered.chosen), (strange.rejected, answered.rejected)):
            expected = [*asked.token_ids[~asked.action_mask], *reply.token_ids[reply.action_mask]]
            assert segment.token_ids.tolist() == expected[:longest]
            assert int((~segment.action_mask).sum()) == int((~asked.action_mask).sum())
            assert segment.action_mask.any()


def test_a_prompt_keeps_its_images_with_the_replies_to_another() -> None:
    """KTO's baseline would be that of a model that sees nothing."""
    image = ImageFeatures(
        image=Image(sha256="0" * 64, data=b""), tensors={}, checksum=0, size=(1, 1), token_ids=(9,), mark=9
    )
    first, *others = made_pairs(4)
    shown = replace(first, chosen=replace(first.chosen, images=(PlacedImage(features=image, start=2),)))
    other, *_ = mismatched([shown, *others])
    for segment in (other.chosen, other.rejected):
        assert [placed.start for placed in segment.images] == [2]
        assert segment.token_ids[:4].tolist() == first.chosen.token_ids[:4].tolist()
