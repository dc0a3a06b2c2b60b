"""A run with two training files and two evaluation sets: each is asked its own way, and every number is found again."""

from __future__ import annotations

import json
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import pytest

from rlhf.rollout.at_k import majority_at, pass_at, vote_of
from rlhf.runs.episode_parts import read_episodes
from rlhf.runs.records import EpisodeRecord
from tests.end_to_end.running import Run, run_warm, train, versions_of

pytestmark = pytest.mark.engine

RECIPE = """
model: {{tiny: {{hidden_size: 64, intermediate_size: 128, layers: 1, max_position_embeddings: 128}}}}
data:
  train:
    - {{path: {few}, weight: 3, max_prompt_tokens: 45}}
    - {{path: {many}, weight: 1}}
  eval:
    greedy: {{path: {held_out}}}
    sampled: {{path: {held_out}, limit: 4, samples: 6, temperature: 0.9, max_tokens: 3, pass_at: [1, 4],
               pass_reward: 0.5, majority_at: [3], vote_after: "e"}}
sampling: {{max_tokens: 6}}
reward: {{kind: function, function: "tests.end_to_end.rewards:varied"}}
trainer: {{updates: 1, groups_per_update: 8, group_size: 2}}
cluster: {{kind: local}}
"""


def written(path: Path, questions: list[str]) -> Path:
    path.write_text("".join(json.dumps({"question": text, "answer": text}) + "\n" for text in questions))
    return path


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    few = written(folder / "few.jsonl", ["a1", "a2", "a" * 30])
    many = written(folder / "many.jsonl", [f"b{n}" for n in range(9)])
    held_out = written(folder / "held_out.jsonl", ["c1", "c2", "c1", "c3", "c4", "c5"])
    (folder / "sets.yaml").write_text(RECIPE.format(few=few, many=many, held_out=held_out))
    return folder / "sets.yaml"


@pytest.fixture(scope="module")
def run(recipe: Path) -> Run:
    return train(recipe.parent / "run", recipe.parent / "models", recipe=recipe)


def replies(run: Run, name: str, version: int) -> dict[str, list[EpisodeRecord]]:
    """The recorded replies of one set by their problem."""
    by_problem: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in read_episodes(run.folder / "evaluations"):
        if (record.evaluation_set, record.admitted_version) == (name, version):
            by_problem[record.task].append(record)
    return by_problem


def test_the_training_files_are_mixed_by_weight_without_the_prompt_that_is_too_long(run: Run) -> None:
    asked = [episode.prompt[-1]["content"] for episode in run.episodes]
    assert sum(text.startswith("a") for text in asked) == 12, "three quarters of 16"
    assert max(map(len, asked)) == 2


def test_people_are_told_what_was_left_out_and_what_every_set_came_to(run: Run) -> None:
    said = run.process.stdout
    assert "data.train.0: 1 of 3 rows left out (1 above 45 prompt tokens)" in said
    assert "data.eval.greedy: 1 of 6 rows repeat a problem; each is evaluated once" in said
    assert "evaluation after update 1  greedy  reward " in said
    assert "evaluation after update 1  sampled  reward " in said


def test_each_set_is_asked_its_own_way_and_each_problem_counts_once(run: Run) -> None:
    for version in (0, 1):
        greedy, sampled = replies(run, "greedy", version), replies(run, "sampled", version)
        assert [len(its) for its in greedy.values()] == [1] * 5
        assert [len(its) for its in sampled.values()] == [6] * 3
        assert max(len(versions_of(one)) for its in sampled.values() for one in its) == 3


def test_the_metrics_can_be_found_again_from_the_recorded_replies(run: Run) -> None:
    by_problem = replies(run, "sampled", 1).values()
    rewards = [[one.reward for one in its] for its in by_problem]
    votes = [[vote_of(str(one.response), "e") for one in its] for its in by_problem]
    (logged,) = run.metrics
    assert logged["eval/sampled/avg@6"] == pytest.approx(fmean(map(fmean, rewards)))
    for k in (1, 4):
        passed = [sum(reward >= 0.5 for reward in its) for its in rewards]
        assert logged[f"eval/sampled/pass@{k}"] == pytest.approx(fmean(pass_at(k, replies=6, passed=n) for n in passed))
    pairs = zip(votes, rewards, strict=True)
    assert logged["eval/sampled/maj@3"] == pytest.approx(fmean(majority_at(3, vote, its) for vote, its in pairs))
    assert 0 < logged["eval/sampled/pass@1"] < logged["eval/sampled/pass@4"], "the test would see a difference"


def test_the_summary_has_the_first_sets_mean_and_every_set(run: Run) -> None:
    summary = run.summary
    assert summary["eval_reward_end"] == run.metrics[0]["eval/greedy/avg@1"] == run.metrics[0]["eval/reward"]
    assert summary["eval_problems"] == 5
    assert list(summary["evaluations"]) == ["greedy", "sampled"]
    for end, version in (("start", 0), ("end", 1)):
        rewards = [fmean(one.reward for one in its) for its in replies(run, "sampled", version).values()]
        assert summary["evaluations"]["sampled"][end]["avg@6"] == pytest.approx(fmean(rewards))


def test_the_checkpoint_evaluates_to_the_same_numbers_from_the_command_line(run: Run, recipe: Path) -> None:
    ended = run_warm("eval", str(run.folder), "--recipe", str(recipe))
    assert ended.returncode == 0, ended.stderr[-3000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    assert told["reward"] == run.summary["eval_reward_end"]
    for name, one in run.summary["evaluations"].items():
        assert told["sets"][name] == {"problems": one["problems"], **one["end"]}
    assert "1 of 6 rows repeat a problem" in ended.stderr
