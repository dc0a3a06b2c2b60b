"""Every check of `rlhf doctor --gpu` runs on a stand-in of a machine with GPUs, and finds what is planted."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rlhf.commands.gpu_checks import arithmetic, learner, nodes
from rlhf.commands.gpu_checks.arithmetic import card_named
from rlhf.commands.gpu_checks.child import performed, training_in
from rlhf.commands.gpu_checks.launched_run import train_run
from rlhf.commands.gpu_checks.machine import DEEP, RunEnd
from rlhf.commands.gpu_checks.nodes import NodeAnswer
from rlhf.commands.gpu_checks.nvml import driver_of, shown_gpus
from rlhf.commands.gpu_checks.table import CHECKS, Check
from rlhf.commands.gpu_checks.training import recipe_of
from rlhf.errors import ModelError
from rlhf.recipe.loading import load_recipe
from rlhf.recipe.planning.machines import CARDS, Card
from rlhf.recipe.preflight import preflight
from tests.commands.gpu_checks.stand_in import (
    GIB,
    SMALL,
    CpuDevice,
    FakeGpu,
    FakeNvml,
    Recorded,
    run_that_is_well,
    stand_in,
)

ON_CPUS = (
    "trainer.deepspeed.gpus_per_rank=0", "rollout.gpus_per_engine=0", "trainer.weight_sync.backend=gloo",
    "trainer.deepspeed.cpus_per_rank=0.1", "rollout.cpus_per_engine=0.1",
)  # fmt: skip
BY_NAME = {check.name: check for check in CHECKS}
TRAINED = [check for check in CHECKS if check.function.startswith("training:")]
HERE = [check for check in CHECKS if not check.function.startswith(("training:", "nodes:", "collectives:"))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shared, for the made model is."""
    return tmp_path_factory.mktemp("checks")


@pytest.fixture(autouse=True)
def card_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CARDS, "X1", Card(name="X1", memory=GIB, flops=1.0, bandwidth=1.0, link=1.0))
    monkeypatch.setattr(arithmetic, "LEAST_COPY_GB", 1e-6)


@pytest.mark.parametrize("check", HERE, ids=lambda check: check.name)
def test_a_machine_that_is_well_passes(check: Check, folder: Path) -> None:
    found = performed(check, stand_in(folder))
    assert found.good, found


def wrong_by(factor: float, function: Callable[..., Any]) -> Callable[..., Any]:
    def wrong(*arguments: Any, **keywords: Any) -> Any:
        return function(*arguments, **keywords) * factor

    return wrong


def slow_card(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(CARDS, "X1", Card(name="X1", memory=GIB, flops=1e20, bandwidth=1e20, link=1.0))


def slow_link(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arithmetic, "LEAST_COPY_GB", 1e9)


def wrong_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CpuDevice, "compiled", lambda self, function: wrong_by(1.01, function))


def wrong_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    real = arithmetic._attended

    def attended(kernel: Any, inputs: list[torch.Tensor], upstream: torch.Tensor) -> torch.Tensor:
        found = real(kernel, inputs, upstream)
        if inputs[0].dtype == torch.bfloat16:
            inputs[1].grad = inputs[2].grad
        return found

    monkeypatch.setattr(arithmetic, "_attended", attended)


def wrong_adamw(monkeypatch: pytest.MonkeyPatch) -> None:
    real = torch.optim.AdamW

    def adamw(weights: Any, *, fused: bool, weight_decay: float, **settings: Any) -> torch.optim.Optimizer:
        return real(weights, fused=fused, weight_decay=0.0 if fused else weight_decay, **settings)

    monkeypatch.setattr(arithmetic.torch.optim, "AdamW", adamw)


def crossed_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    class Crossed:
        def __enter__(self) -> None:
            self.real = torch.Tensor.clone
            torch.Tensor.clone = lambda tensor: self.real(tensor) + 1  # type: ignore[method-assign]

        def __exit__(self, *_: object) -> None:
            torch.Tensor.clone = self.real  # type: ignore[method-assign]

    monkeypatch.setattr(CpuDevice, "on_streams", lambda self, count: [Crossed() for _ in range(count)])


def coarse_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    real = learner._logprobs

    def logprobs(model: Any, tokens: torch.Tensor) -> Any:
        return real(model, tokens) + (0.5 if model.dtype == torch.bfloat16 else 0.0)

    monkeypatch.setattr(learner, "_logprobs", logprobs)


def mixed_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise ModelError("logits of packed sequences are off by 3")

    monkeypatch.setattr(learner, "check_packed_forward", refuse)


def wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    real = learner._gradients
    calls: list[int] = []

    def gradients(model: Any) -> list[torch.Tensor]:
        calls.append(1)
        return [-one if len(calls) == 1 else one for one in real(model)]

    monkeypatch.setattr(learner, "_gradients", gradients)


def silent_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(learner.torch.nn.utils, "clip_grad_norm_", lambda weights, most: torch.tensor(2.0))


PLANTED = {
    "bf16 product": slow_card,
    "device memory": slow_card,
    "host copies": slow_link,
    "compiled kernel": wrong_compiler,
    "flash attention": wrong_attention,
    "fused AdamW": wrong_adamw,
    "streams": crossed_streams,
    "learner in bf16": coarse_kernels,
    "packed rows": mixed_rows,
    "learner's step": wrong_gradient,
    "float16 overflow": silent_overflow,
}
"""A fault for each check that computes."""


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_of_the_arithmetic_is_found(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    PLANTED[name](monkeypatch)
    assert not performed(BY_NAME[name], stand_in(folder)).good


def test_a_product_that_is_wrong_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.Tensor, "__matmul__", wrong_by(1.1, torch.matmul))
    assert performed(BY_NAME["bf16 product"], stand_in(folder)).good, "both sides are wrong alike"
    real = torch.matmul

    def narrow_only(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return real(a, b) * (1.1 if a.dtype == torch.bfloat16 else 1.0)

    monkeypatch.setattr(torch.Tensor, "__matmul__", narrow_only)
    assert not performed(BY_NAME["bf16 product"], stand_in(folder)).good


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("GPUs agree", {"planned": 1}),
        ("GPUs agree", {"by_ray": 1}),
        ("GPUs agree", {"device": CpuDevice(uuids=("GPU-1111",))}),
        ("GPUs agree", {"device": CpuDevice(uuids=("GPU-1111", "GPU-3333"))}),
        ("driver", {"device": CpuDevice(cuda=(14, 0))}),
        ("driver", {"device": CpuDevice(cuda=(0, 0))}),
        ("GPUs are free", {"nvml": FakeNvml([FakeGpu("GPU-1111", processes=(1,))])}),
        ("GPUs are free", {"nvml": FakeNvml([FakeGpu("GPU-1111", free=20 * GIB)])}),
        ("GPUs are free", {"nvml": FakeNvml([FakeGpu("GPU-1111", partitioned=True)])}),
    ],
)
def test_a_planted_fault_of_the_machine_is_found(name: str, changed: dict[str, Any], folder: Path) -> None:
    assert not performed(BY_NAME[name], stand_in(folder, **changed)).good


def test_limits_and_packages_that_do_not_fit_are_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = "rlhf.commands.gpu_checks.facts"
    with monkeypatch.context() as small:
        small.setattr(f"{facts}.SHARED_MEMORY_GIB", 1e9)
        assert not performed(BY_NAME["host limits"], stand_in(folder)).good
    with monkeypatch.context() as locked:
        locked.setattr(f"{facts}.resource.getrlimit", lambda kind: (2**26, 2**26))
        assert performed(BY_NAME["host limits"], stand_in(folder)).good
        assert not performed(BY_NAME["host limits"], stand_in(folder, nodes=2)).good
    monkeypatch.setattr(f"{facts}.installed", lambda name: "0.32.0")
    monkeypatch.setattr(f"{facts}.required_torch", lambda name: "2.0.0")
    assert not performed(BY_NAME["packages"], stand_in(folder)).good


def test_gpus_that_are_hidden_are_not_counted() -> None:
    driver = driver_of(FakeNvml())
    shown = {name: [gpu.uuid for gpu in shown_gpus(driver, name)] for name in ("1", "GPU-22", "0,-1,1", "", "1,0")}
    assert shown == {
        "1": ["GPU-2222"], "GPU-22": ["GPU-2222"], "0,-1,1": ["GPU-1111"], "": [], "1,0": ["GPU-2222", "GPU-1111"],
    }  # fmt: skip
    assert [gpu.capability for gpu in shown_gpus(driver, None)] == [(9, 0), (9, 0)]
    assert (driver.cuda, driver.version) == ((13, 4), "610.12")


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100"),
        ("NVIDIA GeForce RTX 4090", "RTX4090"),
        ("NVIDIA L40S", "L40S"),
    ],
)
def test_a_card_has_the_figures_of_its_own_name(name: str, card: str) -> None:
    assert card_named(name) == CARDS[card]


@pytest.mark.parametrize("name", ["NVIDIA A10G", "NVIDIA A1000", "NVIDIA GeForce 9"])
def test_a_card_that_is_not_known_has_no_figures(name: str) -> None:
    assert card_named(name) is None


@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_a_run_that_is_well_passes_and_one_that_ends_early_does_not(check: Check, tmp_path: Path) -> None:
    assert performed(check, stand_in(tmp_path)).good
    broken = RunEnd(code=1, said="error: engine-1 died", summary={"updates": 1}, metrics=[])
    ends = dict.fromkeys(("publish", "learns", "plan", "resumes", "killed"), broken)
    found = performed(check, stand_in(tmp_path, train=Recorded(ends)))
    assert not found.good
    assert "error: engine-1 died" in found.found


@pytest.mark.parametrize(
    ("name", "run", "changed"),
    [
        ("publish by ipc", "publish", {"weight_sync/logprob_difference": float("nan")}),
        ("publish by ipc", "publish", {"weight_sync/logprob_difference": None}),
        ("ZeRO 3", "plan", {"sft/nll": 5.5}),
        ("ZeRO 3", "plan", {"sft/nll": None}),
        ("reward rises", "learns", {"reward/mean": 0.3}),
    ],
)
def test_a_run_that_ends_well_and_measures_ill_is_found(
    name: str, run: str, changed: dict[str, Any], tmp_path: Path
) -> None:
    updates = ("trainer.updates=10",) if run == "learns" else ()
    ill = Recorded({run: run_that_is_well(updates, **changed)})
    assert not performed(BY_NAME[name], stand_in(tmp_path, train=ill)).good


def test_the_run_that_plans_are_held_against_is_made_once(tmp_path: Path) -> None:
    train = Recorded()
    for name in ("ZeRO 1", "ZeRO 3"):
        assert performed(BY_NAME[name], stand_in(tmp_path, train=train)).good
    assert [name for name, _, _ in train.asked] == ["float32", "plan", "plan"]


@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_every_run_is_a_recipe_that_starts(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with the GPUs that the check asks for."""
    train = Recorded()
    performed(check, stand_in(tmp_path, train=train))
    monkeypatch.setattr("rlhf.cluster.machine.this_machines_gpus", lambda: [None] * check.gpus * check.nodes)
    monkeypatch.setattr("rlhf.cluster.machine.os.sched_getaffinity", lambda pid: set(range(64)))
    file = tmp_path / "recipe.yaml"
    file.write_text(str(recipe_of("owner/model")))
    assert train.asked
    for _, overrides, _ in train.asked:
        preflight(load_recipe(file, overrides).recipe)


@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_the_engines_gpus_share_the_heads_of_the_made_model(check: Check, tmp_path: Path) -> None:
    train = Recorded()
    performed(check, stand_in(tmp_path, train=train))
    file = tmp_path / "recipe.yaml"
    file.write_text(str(recipe_of("owner/model")))
    for _, overrides, _ in train.asked:
        rollout = load_recipe(file, overrides).recipe.rollout
        assert all(DEEP.heads % size == SMALL.shape.heads % size == 0 for size in rollout.tensor_parallel_sizes)


def test_nccl_is_found_as_vllm_finds_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Library:
        def ncclGetVersion(self) -> str:
            return "2.29.7"

    def absent() -> None:
        raise OSError("libnccl.so.2: cannot open shared object file")

    name = "vllm.distributed.device_communicators.pynccl_wrapper"
    monkeypatch.setitem(sys.modules, name, SimpleNamespace(NCCLLibrary=Library))
    for parent in ("vllm", "vllm.distributed", "vllm.distributed.device_communicators"):
        monkeypatch.setitem(sys.modules, parent, SimpleNamespace())
    assert performed(BY_NAME["NCCL as vLLM loads it"], stand_in(folder)).found == "2.29.7"
    sys.modules[name].NCCLLibrary = absent
    assert not performed(BY_NAME["NCCL as vLLM loads it"], stand_in(folder)).good


@pytest.mark.waits
def test_all_ranks_add_up_and_a_rank_that_does_not_come_is_found(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = performed(BY_NAME["all-reduce"], stand_in(folder))
    assert found.good, found
    monkeypatch.setattr("rlhf.commands.gpu_checks.collectives.START_SECONDS", 0.1)
    assert not performed(BY_NAME["all-reduce"], stand_in(folder)).good


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.timeout(900)
@pytest.mark.parametrize("check", TRAINED, ids=lambda check: check.name)
def test_every_run_trains_on_cpus(check: Check, folder: Path) -> None:
    """The same runs with workers that reserve no GPU, which are tried without one."""
    train = training_in(folder, check.name.replace(" ", "_"), None, SMALL, more={}, last=ON_CPUS)
    found = performed(check, stand_in(folder, train=train))
    assert found.good, found


ANSWERS = [NodeAnswer(node=name, seconds=100.5, read="secret") for name in ("n1", "n2")]


@pytest.mark.parametrize(
    ("answers", "good"),
    [
        (ANSWERS, True),
        (ANSWERS[:1], False),
        ([ANSWERS[0], replace(ANSWERS[1], read="")], False),
        ([ANSWERS[0], replace(ANSWERS[1], seconds=95)], False),
        ([ANSWERS[0], replace(ANSWERS[1], seconds=105)], False),
    ],
)
def test_nodes_are_all_there_at_one_time_and_see_one_folder(answers: list[NodeAnswer], good: bool) -> None:
    assert nodes.judged(answers, "secret", 2, (100.0, 101.0)).good is good


def test_a_node_reads_what_another_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nodes, "ask_nodes", lambda file: [nodes.answer(str(file)) for _ in range(2)])
    assert performed(BY_NAME["nodes' clocks and folder"], stand_in(tmp_path, nodes=2)).good
    monkeypatch.setattr(nodes, "ask_nodes", lambda file: [nodes.answer("elsewhere") for _ in range(2)])
    assert not performed(BY_NAME["nodes' clocks and folder"], stand_in(tmp_path, nodes=2)).good


def test_a_run_that_cannot_start_or_takes_too_long_ends_and_says_so(tmp_path: Path) -> None:
    wrong = train_run(tmp_path, "wrong", {"model": {"path": "no/where/at/all"}}, (), 60.0, resume=False)
    assert (wrong.code, wrong.summary) == (2, {})
    assert wrong.said.startswith("error: ")
    late = train_run(tmp_path, "late", {"model": {}}, (), 0.05, resume=False)
    assert late.code == 124
