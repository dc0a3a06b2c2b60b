"""Three policies in one run: two that learn and one that does not; a run that was resumed is the run that was."""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import psutil
import pytest
import torch
from safetensors.torch import load_file

from rlhf.apps.cli.audit import run_audit
from rlhf.errors import CheckpointError
from rlhf.runs.episode_parts import parts_in, read_episodes, write_part
from rlhf.runs.records import EpisodeOutcome, as_row
from rlhf.trainer.checkpoint import adapter_folder
from rlhf.types import Task
from tests.end_to_end.running import ROOT, Run, command, environment, largest_difference, run_warm, train
from tests.end_to_end.test_resume import timeless
from tests.pace import scaled

pytestmark = pytest.mark.engine

FILE = "adapter_model.safetensors"
RECIPE = ROOT / "recipes" / "tictactoe_selfplay.yaml"
OPTIONS = (
    "policies={one: {lora: {rank: 4}}, two: {lora: {rank: 8}, trainer: {optimizer: {learning_rate: 1e-4}}}, "
    "old: {trained: false}}",
    f"roles={__name__}:player", "model.warmup.updates=60", "trainer.groups_per_update=4", "trainer.group_size=4",
    "data.eval=null", "trainer.minibatches=1", "trainer.eval_every=0", "trainer.save_every=1",
    "trainer.updates=2", "cluster.kind=local",
)  # fmt: skip


def player(role: str, task: Task, ordinal: int) -> str:
    """The second player is in turn one that learns and one that does not."""
    return "one" if role == "first" else ("two", "old")[ordinal % 2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path) -> Run:
    return train(tmp_path_factory.mktemp("run") / "run", cache, *OPTIONS, recipe=RECIPE)


def test_each_episode_is_its_policy_s_and_only_those_that_learn_are_trained(run: Run) -> None:
    assert len(run.episodes) == 2 * 4 * 4 * 2
    for episode in run.episodes:
        if episode.outcome is EpisodeOutcome.FAILED:  # it was never this role's turn
            continue
        assert episode.policy == player(str(episode.role), Task(id="t", messages=()), episode.ordinal)
        fate = (episode.outcome, episode.failure_kind)
        assert fate == ((EpisodeOutcome.FILTERED, "frozen") if episode.policy == "old" else ("trained", None))
    for metrics in run.metrics:
        assert metrics["samples/trained"] == metrics["one/samples/trained"] + metrics["two/samples/trained"]
        assert min(metrics["one/samples/trained"], metrics["two/samples/trained"]) > 0
        assert metrics["one/optimizer/learning_rate"] != metrics["two/optimizer/learning_rate"]
        assert metrics["two/policy/logprob_difference_max"] < 1e-4
    assert "lr 5.0e-04  kl" in run.process.stdout, "the larger of both"
    assert run_audit(run.folder) == 0


def test_the_audit_finds_an_episode_of_another_policy(
    run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "run")
    number, part = max(enumerate(parts_in(folder / "episodes"), 1))
    records = list(read_episodes(part))
    place = next(place for place, one in enumerate(records) if one.policy == "two")
    records[place] = replace(records[place], policy="one")
    write_part(part.parent, number, records)
    assert run_audit(folder) == 1
    assert "the advantage" in capsys.readouterr().out


def test_two_updates_are_one_and_a_resume_and_one(run: Run, tmp_path: Path, cache: Path) -> None:
    folder = shutil.copytree(run.folder, tmp_path / "run")
    (folder / "summary.json").unlink()
    shutil.rmtree(folder / "checkpoints" / "version-000002")
    resumed_as(run, folder, cache, OPTIONS)
    for policy in ("one", "two", "old"):
        for state in ("adapter/adapter_model.safetensors", "state/rank-00000.safetensors"):
            file = Path("checkpoints", "version-000002", "policies", policy, state)
            assert (folder / file).read_bytes() == (run.folder / file).read_bytes()


def resumed_as(run: Run, folder: Path, cache: Path, options: Sequence[str]) -> None:
    """Continue in this folder; then it has the episodes of the run."""
    resumed = train(folder, cache, *options, "--resume", recipe=RECIPE)
    assert [timeless(as_row(one)) for one in resumed.episodes] == [timeless(as_row(one)) for one in run.episodes]
    assert run_audit(folder) == 0


def test_a_league_that_was_killed_goes_on_with_its_members_and_results(tmp_path: Path, cache: Path) -> None:
    league = "league={policy: main, members: 3, add_every: 1, match: by_win_rate}"
    options = ("policies={main: {lora: {rank: 4}}, weak: {trained: false}}", league, *OPTIONS[2:], "trainer.updates=3")
    run, folder = train(tmp_path / "whole", cache, *options, recipe=RECIPE), tmp_path / "run"
    arguments = command("train", str(RECIPE), f"run.dir={folder}", f"model.cache_dir={cache}", *options)
    process = psutil.Popen(arguments, cwd=ROOT, env=environment())
    deadline = time.monotonic() + scaled(120)
    while not (folder / "checkpoints" / "version-000001").is_dir() and time.monotonic() < deadline:
        time.sleep(0.01)
    for one in (process, *process.children(recursive=True)):
        one.kill()
    assert process.wait() == -signal.SIGKILL
    resumed_as(run, folder, cache, options)
    state = Path("checkpoints", "version-000003", "league.json")
    assert (folder / state).read_bytes() == (run.folder / state).read_bytes()
    assert json.loads((folder / state).read_text())["entered"] == {f"main_past_{place}": place for place in (1, 2, 3)}
    assert {one.policy for one in run.episodes if one.policy} == {"main", "weak", "main_past_1"}
    adapter = Path("checkpoints", "version-000003", "policies", "main_past_1", "adapter", FILE)
    for copy in (run.folder / "league" / "main@1" / FILE, folder / adapter):
        assert copy.read_bytes() == (run.folder / adapter).read_bytes()
    assert (run.folder / "league" / "main@2" / FILE).read_bytes() != copy.read_bytes()


def test_its_policies_are_evaluated_play_a_tournament_and_begin_another_run(
    run: Run, tmp_path: Path, cache: Path
) -> None:
    held_out = ("data.eval={seeds: 16, temperature: 1.0}", f"model.cache_dir={cache}")
    names = [f"{run.folder}:{policy}" for policy in ("one", "two", "old")]
    assert json.loads(run_warm("eval", str(run.folder), *held_out).stdout)["problems"] == 16
    played = run_warm("eval", names[0], "--against", names[1], "--against", names[2], *held_out)
    found = json.loads(played.stdout)
    assert set(found["elo"]) == set(names)
    assert sum(found["elo"].values()) == pytest.approx(3000)
    for one, other in permutations(names, 2):
        rate, first = found["win_rates"][one][other], found["win_rates_as_first"]
        assert rate == pytest.approx(1 - found["win_rates"][other][one])
        assert rate == pytest.approx((first[one][other] + 1 - first[other][one]) / 2, abs=0.2)  # some games are lost
    with pytest.raises(CheckpointError, match="holds policies and no model: old, one, two"):
        adapter_folder(str(run.folder))
    assert "is one policy; evaluate" in run_warm("eval", names[0], *held_out).stderr
    began = (
        f"policies={{one: {{lora: {{rank: 8}}, adapter: '{names[1]}'}}, "
        f"two: {{lora: {{rank: 4}}, adapter: '{names[0]}', trained: false}}}}",
        "roles={first: one, second: two}", *OPTIONS[2:], "trainer.updates=1", "trainer.optimizer.learning_rate=1e-9",
    )  # fmt: skip
    again = train(tmp_path / "run", cache, *began, recipe=RECIPE)
    assert {one.name for one in (again.folder / "adapters").iterdir()} == {"one", "two"}
    with pytest.raises(CheckpointError, match="is one adapter, not a run with a policy one"):
        adapter_folder(f"{again.folder / 'adapters' / 'one'}:one")
    for name, before in (("one", names[1]), ("two", names[0])):
        own, its = (load_file(Path(adapter_folder(one), FILE)) for one in (f"{again.folder}:{name}", before))
        assert all(torch.allclose(own[key], its[key], atol=1e-7) for key in its)


def test_an_agent_names_its_policies_as_models(tmp_path: Path, cache: Path) -> None:
    run = train(
        tmp_path / "run", cache,
        "agent={program: 'tests.end_to_end.agents:plans_and_works', models: [planner, worker]}",
        "policies={one: {lora: {rank: 4}}, two: {lora: {rank: 4}}}", "roles={planner: one, worker: two}",
        "reward.kind=environment", "cluster.kind=local", "data.eval=null", "trainer.eval_every=0",
        "model.warmup.updates=60", "trainer.updates=2", "trainer.groups_per_update=4", "trainer.group_size=4",
    )  # fmt: skip
    assert len(run.episodes) == 2 * 4 * 4 * 2
    for one in run.episodes:
        assert one.policy == {"planner": "one", "worker": "two"}[one.role]
        assert one.reward == (len(one.response) if one.role == "planner" else -len(one.response))
    assert all(one["one/samples/trained"] == one["two/samples/trained"] == 16 for one in run.metrics)
    assert largest_difference(run.episodes) <= 1e-4
    assert run_audit(run.folder) == 0


def test_policies_over_two_models_have_engines_of_their_own(tmp_path: Path, cache: Path) -> None:
    wide = "{tiny: {architecture: llama, hidden_size: 64, intermediate_size: 128, layers: 1, heads: 2, kv_heads: 1}}"
    options = (
        f"policies={{one: {{lora: {{rank: 4}}}}, two: {{lora: {{rank: 8}}, model: {wide}}}}}",
        "roles={first: one, second: two}", *OPTIONS[2:-1], "rollout.cpus_per_engine=0.5",
        "trainer.deepspeed.cpus_per_rank=0.5",
    )  # fmt: skip
    run = train(tmp_path / "run", cache, *options, recipe=RECIPE)
    for one in run.episodes:
        assert one.engine in (None, {"one": "engine-0", "two": "engine-two-0"}.get(one.policy or ""))
    assert largest_difference(run.episodes) <= 1e-4
    assert min(one[f"{policy}/samples/trained"] for one in run.metrics for policy in ("one", "two")) > 0
    assert run_audit(run.folder) == 0
    held_out = ("data.eval={seeds: 16}", "roles={first: one, second: two, agent: two}", f"model.cache_dir={cache}")
    evaluated = run_warm("eval", str(run.folder), *held_out)
    assert json.loads(evaluated.stdout)["problems"] == 16
