"""Seeds of draws: one for each thing that is drawn."""

from __future__ import annotations

from itertools import product

from rlhf.rollout.seeds import request_seed


def test_every_draw_of_a_run_has_a_seed_of_its_own() -> None:
    keys = product((1, 2), ("train", "eval"), range(3), range(3), range(3))
    seeds = [request_seed(run_seed=r, purpose=p, ordinal=o, sample=s, turn=t) for r, p, o, s, t in keys]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**62 for seed in seeds)
