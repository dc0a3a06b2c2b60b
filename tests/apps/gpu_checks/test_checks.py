"""Every check of `rlhf doctor --gpu` runs on CPU tensors, and finds a fault that is planted."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from rlhf.apps.gpu_checks import arithmetic, facts, made_model, training
from rlhf.apps.gpu_checks.machine import DEEP, Finding, GpuMachine, Sizes
from rlhf.apps.gpu_checks.table import CHECKS, GpuCheck
from rlhf.apps.gpu_checks.training import RunEnd, recipe_of
from rlhf.cluster.host import resolve_name
from rlhf.errors import ModelError, PlacementError
from rlhf.models.config import TinyModelConfig
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.machines import CARDS, Card
from rlhf.recipe.preflight import check_placement, check_recipe
from tests.nvml import GIB, FakeGpu, FakeNvml, install_nvml

SMALL = Sizes(
    matrix=64,
    copied_mb=1,
    attended=64,
    shape=TinyModelConfig(hidden_size=128, intermediate_size=128, layers=2, heads=4),
    vocabulary=512,
)


def cpu_machine(folder: Path, **changed: Any) -> GpuMachine:
    """A machine of two GPUs, whose tensors are on the CPU."""
    values = {"gpus": 2, "nodes": 1, "folder": folder, "shared": folder, "device": "cpu", "sizes": SMALL}
    return GpuMachine(**values | changed)


ON_CPUS = (
    "trainer.deepspeed.gpus_per_rank=0", "rollout.gpus_per_engine=0", "trainer.weight_sync.backend=gloo",
    "trainer.deepspeed.cpus_per_rank=0.1", "rollout.cpus_per_engine=0.1",
)  # fmt: skip
BY_NAME = {check.name: check for check in CHECKS}
TRAINED = [check for check in CHECKS if "training:" in check.function]
HERE = [check for check in CHECKS if not any(part in check.function for part in ("training:", "communication:"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all checks, which share the made model."""
    return tmp_path_factory.mktemp("checks")


@pytest.fixture(autouse=True)
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    """The driver, torch and Ray see the same two GPUs, of a card that any CPU is fast enough for."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setitem(CARDS, "X1", Card(name="X1", memory=GIB, flops=1.0, bandwidth=1.0))
    monkeypatch.setattr(arithmetic, "LEAST_COPY_GB", 1e-6)
    monkeypatch.setattr(facts, "seen_by_torch", lambda: {"GPU-1111": (9, 0), "GPU-2222": (9, 0)})
    monkeypatch.setattr(facts, "counted_by_ray", lambda: 2)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    return install_nvml(monkeypatch, FakeNvml())


def performed(check: GpuCheck, machine: GpuMachine) -> Finding:
    finding: Finding = resolve_name(check.function)(machine, *check.arguments)
    return finding


@pytest.mark.parametrize("check", HERE, ids=lambda check: check.name)
def test_a_machine_that_is_well_passes(check: GpuCheck, folder: Path) -> None:
    found = performed(check, cpu_machine(folder))
    assert found.good, found


def slow_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CARDS, "X1", Card(name="X1", memory=GIB, flops=1e20, bandwidth=1e20))


def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "LEAST_COPY_GB", 1e9)


def wrong_product(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.matmul
    wrong = {torch.bfloat16: 1.1, torch.float32: 1.0}
    monkeypatch.setattr(torch.Tensor, "__matmul__", lambda a, b: real(a, b) * wrong[a.dtype])


def wrong_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", lambda function, backend: lambda *given: function(*given) * 1.01)


def wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    real = arithmetic._attended

    def attended(kernel: Any, inputs: list[torch.Tensor], upstream: torch.Tensor) -> torch.Tensor:
        found = real(kernel, inputs, upstream)
        if inputs[0].dtype == torch.bfloat16:
            inputs[1].grad = inputs[2].grad
        return found

    monkeypatch.setattr(arithmetic, "_attended", attended)


def mixed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("logits of packed sequences are off by 3")

    monkeypatch.setattr(made_model, "check_packed_forward", refuse)


def hidden_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "seen_by_torch", lambda: {"GPU-1111": (9, 0)})


def other_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "seen_by_torch", lambda: {"GPU-1111": (9, 0), "GPU-3333": (9, 0)})


def blind_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(facts, "counted_by_ray", lambda: 1)


def old_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    install_nvml(monkeypatch, FakeNvml(cuda=12080))


def torch_for_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "cuda", None)


def with_first_gpu(**values: Any) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: install_nvml(monkeypatch, FakeNvml([FakeGpu("GPU-1111", **values)])) and None


FAULTS = [
    ("GPUs agree", hidden_gpu),
    ("GPUs agree", other_gpu),
    ("GPUs agree", blind_ray),
    ("driver", old_driver),
    ("driver", torch_for_cpus),
    ("GPUs are free", with_first_gpu(processes=(1,))),
    ("GPUs are free", with_first_gpu(free=20 * GIB)),
    ("GPUs are free", with_first_gpu(mig=True)),
    ("bf16 product", slow_card),
    ("bf16 product", wrong_product),
    ("device memory", slow_card),
    ("host copies", slow_link),
    ("compiled kernel", wrong_compiler),
    ("flash attention", wrong_attention),
    ("packed rows", mixed_rows),
]


@pytest.mark.parametrize(("name", "plant"), FAULTS)
def test_a_planted_fault_is_found(
    name: str, plant: Callable[[pytest.MonkeyPatch], None], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    assert not performed(BY_NAME[name], cpu_machine(folder)).good


def test_this_process_and_a_card_without_mig_are_no_fault(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with_first_gpu(processes=(os.getpid(),), name="no MIG")(monkeypatch)
    assert performed(BY_NAME["GPUs are free"], cpu_machine(folder)).good
    install_nvml(monkeypatch, FakeNvml(loads=False))
    with pytest.raises(PlacementError, match="no NVIDIA driver"):
        performed(BY_NAME["GPUs are free"], cpu_machine(folder))


class Recorded:
    """Runs that end as given, in the place of `rlhf train`."""

    def __init__(self, end: RunEnd | None = None, **metrics: Any) -> None:
        self._end, self._metrics = end, metrics
        self.runs: list[tuple[str, Sequence[str]]] = []

    def __call__(self, machine: GpuMachine, name: str, overrides: Sequence[str]) -> RunEnd:
        self.runs.append((name, overrides))
        values = {
            "weight_sync/logprob_difference": 0.1,
            "seconds/weight_sync": 1.0,
            "seconds/update": 3.0,
            "sft/nll": 5.0,
        }
        changed = {} if name == "float32" else self._metrics
        summary = {"outcome": "finished", "updates": 2}
        return self._end or RunEnd(code=0, output="done", summary=summary, metrics=[values | changed] * 2)


def recorded(monkeypatch: pytest.MonkeyPatch, *end: RunEnd, **metrics: Any) -> Recorded:
    runs = Recorded(*end, **metrics)
    monkeypatch.setattr(training, "train_run", runs)
    return runs


@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_a_run_that_is_well_passes_and_one_that_ends_early_does_not(
    check: GpuCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch)
    assert performed(check, cpu_machine(tmp_path)).good
    recorded(monkeypatch, RunEnd(code=1, output="error: engine-1 died", summary={"updates": 1}, metrics=[]))
    found = performed(check, cpu_machine(tmp_path))
    assert not found.good
    assert "error: engine-1 died" in found.found


@pytest.mark.parametrize(
    ("name", "metric", "value"),
    [
        ("publish by ipc", "weight_sync/logprob_difference", float("nan")),
        ("publish by ipc", "weight_sync/logprob_difference", None),
        ("ZeRO 3", "sft/nll", 5.5),
        ("ZeRO 3", "sft/nll", None),
    ],
)
def test_a_run_that_ends_well_and_measures_a_fault_is_found(
    name: str, metric: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded(monkeypatch, **{metric: value})
    assert not performed(BY_NAME[name], cpu_machine(tmp_path)).good


@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_every_run_is_a_recipe_that_starts(check: GpuCheck, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It starts on a machine with the GPUs that the check asks for, which share the made model's heads."""
    runs = recorded(monkeypatch)
    performed(check, cpu_machine(tmp_path))
    monkeypatch.setattr("rlhf.cluster.machine.this_machines_gpus", lambda: [None] * check.gpus * check.nodes)
    monkeypatch.setattr("rlhf.cluster.machine.os.sched_getaffinity", lambda pid: set(range(64)))
    file = tmp_path / "recipe.yaml"
    file.write_text(str(recipe_of("owner/model")))
    assert runs.runs
    for _, overrides in runs.runs:
        recipe = load_recipe(file, overrides).recipe
        check_recipe(recipe)
        check_placement(recipe)
        sizes = recipe.rollout.tensor_parallel_sizes
        assert all(DEEP.heads % size == SMALL.shape.heads % size == 0 for size in sizes)


@pytest.mark.waits
def test_all_ranks_add_up(folder: Path) -> None:
    found = performed(BY_NAME["all-reduce"], cpu_machine(folder))
    assert found.good, found


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_every_run_trains_on_cpus(check: GpuCheck, folder: Path) -> None:
    """The same runs with workers that reserve no GPU."""
    own = folder / check.name.replace(" ", "_")
    own.mkdir()
    found = performed(check, cpu_machine(own, shared=folder, overrides=ON_CPUS))
    assert found.good, found


def test_a_run_that_cannot_start_ends_with_its_error(tmp_path: Path) -> None:
    end = training.train_run(cpu_machine(tmp_path, model="no/where/at/all"), "wrong", ())
    assert (end.code, end.summary) == (2, {})
    assert end.output.startswith("error: ")
