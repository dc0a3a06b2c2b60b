"""The recipes for two cores learn what their heads promise."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

import pytest

from benchmarks.roles.command import strategy
from recipes.tasks.kuhn_poker import exploitability, seated
from tests.end_to_end import running
from tests.end_to_end.running import ROOT, Run, train

pytestmark = [pytest.mark.engine, pytest.mark.slow, pytest.mark.timeout(1500)]

PRESETS = sorted((ROOT / "recipes" / "presets").glob("*.yaml"))
PREFERENCES = ROOT / "recipes" / "preference_ppo"


@pytest.fixture(autouse=True)
def time_to_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "RUN_SECONDS", 1200)


def rise(run: Run) -> float:
    start, end = run.summary["eval_reward_start"], run.summary["eval_reward_end"]
    print(f"{run.folder.name}: {start:.3f} → {end:.3f}")
    return end - start


def test_programs_that_pass_their_unit_tests_become_the_rule(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "code_sandbox", cache, recipe=ROOT / "recipes" / "code_sandbox.yaml")
    assert rise(run) >= 0.3
    written = [episode for episode in run.episodes if episode.reward == 1.0]
    assert written
    assert all(episode.response.startswith("def f(x): return ") for episode in written)


def test_a_tool_is_called(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "tool_calculator", cache, recipe=ROOT / "recipes" / "tool_calculator.yaml")
    assert rise(run) >= 0.3


def test_self_play_wins_more_games_against_random_play(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "tictactoe_selfplay", cache, recipe=ROOT / "recipes" / "tictactoe_selfplay.yaml")
    assert rise(run) >= 0.3
    trained = [episode.role for episode in run.episodes if episode.update is not None]
    assert set(trained) == {"first", "second"}


def test_a_proposer_keeps_its_problems_solvable_and_hard_while_the_solver_learns(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "propose_and_solve", cache, recipe=ROOT / "recipes" / "propose_and_solve.yaml")
    assert rise(run) >= 0.4
    solve_rates = [update["solver/reward/mean"] for update in run.metrics]
    print(f"propose_and_solve: solve rates {solve_rates}")
    assert all(0.2 <= rate <= 0.8 for rate in solve_rates[2:])
    proposed = [one.response for one in run.episodes if one.role == "proposer" and one.update is not None]
    assert len(set(proposed[-256:])) > 200
    assert statistics.fmean(map(len, proposed[-256:])) > statistics.fmean(map(len, proposed[:256])) + 1


def test_two_policies_play_kuhn_poker_near_equilibrium(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    run = train(tmp_path / "kuhn", cache, recipe=ROOT / "recipes" / "kuhn_two_policies.yaml")
    first, second = (strategy(cache, run.model.parent / "policies" / name / "adapter") for name in ("one", "two"))
    before, after = exploitability(strategy(cache)), exploitability(seated(first, second))
    print(f"exploitability {before:.3f} → {after:.3f}")
    assert after <= 0.12 < 0.15 < before


@pytest.mark.ecosystem
def test_a_coding_agent_makes_failing_tests_pass(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agents = ROOT / ".venv-ecosystem" / "coding-agents" / "node_modules" / ".bin"
    monkeypatch.setenv("PATH", f"{agents}:{os.environ['PATH']}")
    run = train(tmp_path / "agent_fixes_a_test", cache, recipe=ROOT / "recipes" / "agent_fixes_a_test.yaml")
    rewards = [update["reward/mean"] for update in run.metrics]
    print(f"agent_fixes_a_test: {rewards}")
    assert sum(rewards[-3:]) / 3 - sum(rewards[:3]) / 3 >= 0.25


@pytest.mark.ecosystem
def test_sums_of_reasoning_gym_come_out_right(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "reasoning_gym", cache, recipe=ROOT / "recipes" / "reasoning_gym.yaml")
    assert rise(run) >= 0.3


@pytest.mark.ecosystem
def test_the_pole_is_balanced(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "cartpole_ppo", cache, recipe=ROOT / "recipes" / "cartpole_ppo.yaml")
    assert run.summary["eval_reward_end"] >= 150


@pytest.mark.parametrize("recipe", PRESETS, ids=lambda path: path.stem)
def test_a_preset_raises_the_held_out_reward(recipe: Path, tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, recipe=recipe)
    print(recipe.stem, run.summary["eval_reward_start"], run.summary["eval_reward_end"])
    assert run.summary["eval_problems"] == 256
    assert run.summary["eval_reward_end"] - run.summary["eval_reward_start"] >= 0.3


def test_preferences_become_a_reward_model_and_the_reward_model_a_better_policy(tmp_path: Path, cache: Path) -> None:
    sft = train(tmp_path / "sft", cache, recipe=PREFERENCES / "1_sft.yaml")
    start = f"model.path={sft.model}"
    pairs = train(tmp_path / "pairs", cache, start, recipe=PREFERENCES / "2_reward_model.yaml")
    (accuracy,) = [found["end"]["accuracy"] for found in pairs.summary["evaluations"].values()]
    assert accuracy >= 0.9
    scores = (f"reward.model={pairs.model}", f"trainer.critic.path={pairs.model}")
    ppo = train(tmp_path / "ppo", cache, start, *scores, recipe=PREFERENCES / "3_ppo.yaml")
    explained = [update["critic/explained_variance"] for update in ppo.metrics]
    divergence = [update["policy/kl_reference"] for update in ppo.metrics]
    rise = ppo.summary["eval_reward_end"] - ppo.summary["eval_reward_start"]
    print("accuracy", accuracy, "rise", rise, "kl", max(divergence), "explained", sum(explained[-5:]) / 5)
    assert rise >= 2.0
    assert max(divergence) < 0.5
    assert sum(explained[-5:]) / 5 > 0.5


def test_a_small_student_learns_from_the_quickstart_s_policy(tmp_path: Path, cache: Path) -> None:
    teacher = train(tmp_path / "teacher", cache)
    distilled = train(
        tmp_path / "run", cache, f"trainer.reference_path={teacher.folder}", recipe=ROOT / "recipes" / "distill.yaml"
    )
    divergence = [update["policy/kl_reference"] for update in distilled.metrics]
    print(distilled.summary["eval_reward_start"], distilled.summary["eval_reward_end"], divergence[0], divergence[-1])
    assert distilled.summary["eval_reward_end"] - distilled.summary["eval_reward_start"] >= 0.3
    assert sum(divergence[-5:]) < 0.7 * sum(divergence[:5])


def test_dpo_tells_held_out_pairs_apart(tmp_path: Path, cache: Path) -> None:
    run = train(tmp_path / "run", cache, recipe=ROOT / "recipes" / "dpo.yaml")
    (held_out,) = run.summary["evaluations"].values()
    print(held_out["end"])
    assert held_out["problems"] == 512
    assert held_out["start"]["accuracy"] == 0.5
    assert held_out["end"]["accuracy"] >= 0.9
