"""Ranks and engines that take turns: two of each train as they do apart, and a stopped run goes on bit for bit. One of
these runs has a process of every kind, and is watched by what gets its traces."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlhf.runs.trace_export import ENDPOINT
from tests.collector import Collector, collecting
from tests.commanded import commanded
from tests.end_to_end.running import SMALL, Run, largest_difference, train
from tests.end_to_end.test_resume import died_at_its_end, same_to_the_bit

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

RAW = (
    *SMALL, "model.warmup=null", "reward.kind=function", "reward.function=tests.end_to_end.rewards:varied",
    "trainer.optimizer.learning_rate=1e-3", "trainer.deepspeed.ranks=2", "rollout.engines=2",
)  # fmt: skip
COLOCATED = "cluster.placement=colocated"
PROCESSES = {"controller", "engine-0", "engine-1", "learner-0", "learner-1", "environment", "reward"}
COMPARED = ("reward/mean", "optimizer/loss", "optimizer/grad_norm", "policy/approx_kl")


def turns(run: Run) -> list[str]:
    """The phases of a run in their order: what the ranks hold, and everything that is timed between."""
    spans = [json.loads(line) for line in (run.folder / "spans.jsonl").read_text().splitlines()]
    shown = [span for span in spans if span["name"] in ("sleep", "hold", "save", "evaluate")]
    return [span.get("held", span["name"]) for span in sorted(shown, key=lambda span: span["start"])]


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as collector:
        yield collector


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, cache: Path, collector: Collector) -> Run:
    """Two updates, with an environment and a scorer behind servers."""
    folder, told = tmp_path_factory.mktemp("runs") / "run", {ENDPOINT: collector.url}
    with (
        commanded("reward", "tests.end_to_end.rewards:varied", **told) as (scorer, _),
        commanded("env", "rlhf.env.tools:CalculatorEnvironment", **told) as (environment, _),
    ):
        remote = ("reward.function=null", "reward.kind=remote", f"reward.remote={{url: {scorer}, api: slime}}")
        plan = (COLOCATED, "trainer.updates=2", "trainer.deepspeed.zero_stage=2", f"environment.urls=[{environment}]")
        return train(folder, cache, *RAW, *remote, *plan, f"run.otlp={collector.url}")


def test_two_ranks_and_two_engines_take_turns_and_agree_on_every_token(run: Run) -> None:
    assert largest_difference(run.episodes) <= 1e-4
    update, sync = ["sleep", "everything"], ["weights", "nothing"]
    saved = ["save", *update, *sync]
    assert turns(run) == [*sync, "evaluate", *update, *sync, *update, *sync, *saved, "evaluate"]


def test_an_update_is_one_connected_trace_of_all_processes(run: Run, collector: Collector) -> None:
    traces = collector.traces
    assert sorted(traces) == ["start", "update 1", "update 2"]
    for name in ("update 1", "update 2"):
        spans = {span.span: span for span in traces[name]}
        assert {span.service.removeprefix("rlhf-") for span in spans.values()} == PROCESSES
        began = {span.span: span.start - spans[span.parent].start for span in spans.values() if span.parent}
        assert min(began.values()) > -0.05, "a span begins in its parent, by the clocks of both processes"
        made = Counter(span.name for span in spans.values())
        played = made["episode"]
        assert (made["generate"], played) == (8 + played, 32 * (1 + (name == "update 2")))  # the last evaluates 32
        assert made["reply"] >= played == made["WebSocket /ws"] == made["POST /"] == made["environment/reset"]
        assert made["policy.update"] == 2
    assert {span.run for span in traces["update 1"] if span.service == "rlhf-controller"} == {"quickstart"}


@pytest.mark.slow
@pytest.mark.parametrize("stage", [0, 3])
def test_a_colocated_run_is_the_separate_one_and_goes_on_bit_for_bit(tmp_path: Path, cache: Path, stage: int) -> None:
    plan = (*RAW, f"trainer.deepspeed.zero_stage={stage}", "trainer.updates=4", "trainer.save_every=2")
    separate = train(tmp_path / "separate", cache, *plan)
    whole = train(tmp_path / "whole", cache, *plan, COLOCATED)
    assert len(separate.metrics) == len(whole.metrics) == 4
    for one, other in zip(separate.metrics, whole.metrics, strict=True):
        assert [one[name] for name in COMPARED] == pytest.approx([other[name] for name in COMPARED], abs=1e-5)
    resumed = train(died_at_its_end(whole, tmp_path / "died"), cache, *plan, COLOCATED, "--resume")
    assert "resuming from version-000002" in resumed.process.stdout
    assert same_to_the_bit(resumed, whole)
