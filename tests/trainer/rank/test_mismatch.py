"""The guard's verdict over made log-probs, and the line that a person reads of it."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.distributed

from rlhf.trainer.batching.batch import Batch, build_batch
from rlhf.trainer.mismatch_report import ALL, LONG, SOME, explain_disagreement
from rlhf.trainer.rank.mismatch import Columns, MismatchGuard
from rlhf.trainer.rank_answers import Disagreement
from rlhf.types import Group
from rlhf.weight_sync.tolerance import EXACT, LogprobTolerance
from tests.trainer.made import made_groups

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A process group of one."""
    store = torch.distributed.FileStore(str(tmp_path_factory.mktemp("group") / "store"), 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def tokens(gaps: torch.Tensor, current: torch.Tensor | None = None) -> list[Columns]:
    """Tokens whose log-probs engine and learner give `gaps` apart."""
    engine = torch.linspace(-3, -1, len(gaps))
    return [(engine + gaps, engine, torch.ones(len(gaps), dtype=torch.bool) if current is None else current)]


def verdict(
    gaps: torch.Tensor,
    *,
    rounding: float = 0.0,
    current: torch.Tensor | None = None,
    guard: MismatchGuard | None = None,
) -> Disagreement | None:
    """As a rank asks: the limits are loosened on alarm."""
    guard, seen = guard or MismatchGuard(CPU), tokens(gaps, current)
    if guard.disagreement(seen) is None:
        return None
    guard.loosen(seen, [own + rounding for own, _, _ in seen])
    return guard.disagreement(seen)


def test_without_rounding_a_single_token_that_is_off_is_enough() -> None:
    gaps = torch.zeros(1000)
    assert verdict(gaps) is None
    gaps[17] = 2e-4
    found = verdict(gaps)
    assert found is not None
    assert (found.tokens, found.share, found.limits) == (1000, 0.001, EXACT)


def test_tokens_of_older_weights_are_not_judged() -> None:
    gaps, current = torch.zeros(10), torch.ones(10, dtype=torch.bool)
    gaps[3], current[3] = 2.0, False
    assert verdict(gaps, current=current) is None
    current[3] = True
    assert verdict(gaps, current=current)
    assert verdict(torch.ones(4), current=torch.zeros(4, dtype=torch.bool)) is None


def test_what_rounding_explains_is_no_fault() -> None:
    gaps = torch.full((1000,), 0.1)
    assert verdict(gaps, rounding=0.05) is None
    assert verdict(gaps, rounding=0.02)


def test_limits_grow_with_the_rounding_of_later_weights_and_are_kept() -> None:
    guard = MismatchGuard(CPU)
    for gap, rounding in ((0.01, 0.01), (0.03, 0.0), (0.08, 0.05), (0.16, 0.0)):
        assert verdict(torch.full((100,), gap), rounding=rounding, guard=guard) is None
    assert verdict(torch.full((100,), 0.3), rounding=0.05, guard=guard)


def test_what_is_no_number_is_left_to_the_gradient_s_norm() -> None:
    assert verdict(torch.tensor([float("nan"), 0.0])) is None


def batch_of(groups: list[Group]) -> Batch:
    return build_batch(groups, version=0)


def told(batch: Batch, wrong: np.ndarray, by: float = 2.0) -> str:
    logprobs = batch.behaviour_logprobs + np.where(wrong, by, 0).astype(np.float32)
    found = Disagreement(tokens=batch.tokens, mean=by * wrong.mean(), share=float(wrong.mean()), limits=EXACT)
    return explain_disagreement(batch, logprobs.astype(np.float32), found, 3)


def test_the_line_names_the_worst_episode_its_positions_and_the_lengths() -> None:
    batch = batch_of(made_groups())
    sequence = batch.sequences[5]
    wrong = np.zeros(batch.tokens, bool)
    actions = np.flatnonzero(sequence.action_mask)
    wrong[batch.starts[5] : batch.starts[5] + len(actions)] = True
    line = told(batch, wrong)
    ordinal, sample = batch.samples[batch.sequence_samples[5]]
    first, last = actions[0], actions[-1]
    assert "tokens that version 3 sampled" in line
    assert f"most, 2, in sample {sample} of group {ordinal}, at positions {first}-{last} of its" in line
    assert f"1 sequences of {len(sequence.token_ids)} to {len(sequence.token_ids)} tokens are off, 23 of" in line
    assert "\n" not in line


def test_the_line_says_what_the_pattern_looks_like() -> None:
    batch = batch_of(made_groups())
    length = np.repeat(
        [len(sequence.token_ids) for sequence in batch.sequences],
        [int(sequence.action_mask.sum()) for sequence in batch.sequences],
    )
    assert ALL in told(batch, length > 0)
    assert LONG in told(batch, length > 25)
    assert SOME in told(batch, np.isin(length, [length.min(), length.max()]))


def test_a_mean_that_is_too_large_without_large_differences_is_told_too() -> None:
    batch = batch_of(made_groups())
    found = Disagreement(tokens=batch.tokens, mean=0.2, share=0, limits=LogprobTolerance(mean=0.1, high=9, share=0.01))
    assert ALL in explain_disagreement(batch, batch.behaviour_logprobs + np.float32(0.2), found, 0)
