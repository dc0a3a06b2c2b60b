"""The checks, in the order in which they run: each names what it needs, and has a deadline."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

PACKAGE = "rlhf.commands.gpu_checks"
RUNS = ("vllm", "ray", "deepspeed")
LEARNER = ("transformers",)
RANKS = ("ray", "deepspeed")
HALVES = ("rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=0.5")
COLOCATED = ("cluster.placement=colocated", "trainer.deepspeed.gpus_per_rank=1", "rollout.gpus_per_engine=1")
WHOLE = ("rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1")
ONE_UPDATE_SECONDS, TWO_RUNS_SECONDS = 500.0, 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """`function` is `module:function` of this package, called with the machine and `arguments`. `gpus` are needed on
    each of `nodes`; `packages` must be installed."""

    name: str
    function: str
    gpus: int = 1
    nodes: int = 1
    packages: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    deadline_seconds: float = 120

    def lacks(self, gpus: int, nodes: int, installed: Collection[str]) -> str:
        """What the machine lacks for it, in words; empty if it can run."""
        if nodes < self.nodes:
            return f"needs {self.nodes} nodes: --nodes {self.nodes}"
        if gpus < self.gpus:
            return f"needs {self.gpus} GPUs"
        missing = [name for name in self.packages if name not in installed]
        return f"needs {', '.join(missing)}, not installed" if missing else ""


def _plan(name: str, *arguments: str, gpus: int = 1) -> Check:
    return Check(
        name=name,
        function="training:learner_plan",
        gpus=gpus,
        packages=RANKS,
        arguments=arguments,
        deadline_seconds=TWO_RUNS_SECONDS,
    )


def _publish(name: str, *arguments: str, gpus: int = 1, nodes: int = 1) -> Check:
    return Check(
        name=name,
        function="training:publishes",
        gpus=gpus,
        nodes=nodes,
        packages=RUNS,
        arguments=arguments,
        deadline_seconds=ONE_UPDATE_SECONDS,
    )


CHECKS: tuple[Check, ...] = (
    Check(name="GPUs agree", function="facts:gpus_agree"),
    Check(name="driver", function="facts:driver_serves_torch"),
    Check(name="GPUs are free", function="facts:gpus_are_free"),
    Check(name="host limits", function="facts:host_limits"),
    Check(name="packages", function="facts:packages_fit"),
    Check(name="bf16 product", function="arithmetic:matrix_product"),
    Check(name="device memory", function="arithmetic:memory_bandwidth"),
    Check(name="host copies", function="arithmetic:host_copies"),
    Check(name="compiled kernel", function="arithmetic:compiled_kernel"),
    Check(name="flash attention", function="arithmetic:flash_attention"),
    Check(name="fused AdamW", function="arithmetic:fused_adamw"),
    Check(name="streams", function="arithmetic:mixed_streams"),
    Check(name="NCCL as vLLM loads it", function="collectives:nccl_loads", packages=("vllm",)),
    Check(name="learner in bf16", function="learner:rounding", packages=LEARNER, deadline_seconds=240),
    Check(name="packed rows", function="learner:packed_rows", packages=LEARNER, deadline_seconds=240),
    Check(name="learner's step", function="learner:learner_step", packages=LEARNER, deadline_seconds=300),
    Check(name="float16 overflow", function="learner:float16_overflow", packages=LEARNER),
    _plan("ZeRO 1", "trainer.deepspeed.zero_stage=1"),
    _plan("ZeRO 2", "trainer.deepspeed.zero_stage=2"),
    _plan("ZeRO 3", "trainer.deepspeed.zero_stage=3"),
    _plan("optimizer offloaded", "trainer.deepspeed.zero_stage=2", "trainer.deepspeed.offload_optimizer=cpu"),
    _plan("weights offloaded", "trainer.deepspeed.zero_stage=3", "trainer.deepspeed.offload_parameters=cpu"),
    _plan("activations recomputed", "model.gradient_checkpointing=true"),
    _plan("LoRA", "model.lora={rank: 8}"),
    _publish("publish by gloo", *HALVES, "trainer.weight_sync.backend=gloo"),
    _publish("engine without graphs", *HALVES, "rollout.vllm.enforce_eager=true"),
    _publish("engine scheduled in step", *HALVES, "rollout.vllm.async_scheduling=false"),
    _publish("publish by ipc", *HALVES, "trainer.weight_sync.backend=ipc"),
    _publish("colocated", *COLOCATED),
    Check(
        name="reward rises",
        function="training:learns",
        packages=RUNS,
        arguments=COLOCATED,
        deadline_seconds=ONE_UPDATE_SECONDS,
    ),
    Check(
        name="save and resume",
        function="training:resumes",
        packages=RUNS,
        arguments=HALVES,
        deadline_seconds=TWO_RUNS_SECONDS,
    ),
    Check(name="all-reduce", function="collectives:all_reduce", gpus=2),
    _plan("ZeRO 3 on 2 ranks", "trainer.deepspeed.zero_stage=3", "trainer.deepspeed.ranks=2", gpus=2),
    _plan("sequence parallel 2", "trainer.deepspeed.ranks=2", "trainer.deepspeed.sequence_parallel=2", gpus=2),
    _publish("publish by nccl", *WHOLE, "trainer.weight_sync.backend=nccl", gpus=2),
    Check(
        name="engine killed",
        function="training:loses_engine",
        gpus=2,
        packages=RUNS,
        arguments=(*WHOLE, "trainer.weight_sync.backend=nccl"),
        deadline_seconds=ONE_UPDATE_SECONDS,
    ),
    _publish("tensor parallel 2", *WHOLE, "rollout.tensor_parallel_size=2", gpus=3),
    _publish("tensor parallel 1 and 2", *WHOLE, "rollout.tensor_parallel_size=[1, 2]", gpus=4),
    _publish(
        "4 ranks and tensor parallel 4",
        *WHOLE,
        "trainer.deepspeed.ranks=4",
        "trainer.deepspeed.zero_stage=3",
        "rollout.tensor_parallel_size=4",
        gpus=8,
    ),
    _publish(
        "4 ranks and 4 engines",
        *WHOLE,
        "trainer.deepspeed.ranks=4",
        "trainer.deepspeed.zero_stage=3",
        "rollout.engines=4",
        gpus=8,
    ),
    _publish(
        "colocated, 8 and 8",
        *COLOCATED,
        "trainer.deepspeed.ranks=8",
        "trainer.deepspeed.zero_stage=3",
        "rollout.engines=8",
        gpus=8,
    ),
    _publish(
        "colocated, 8 and 4 of 2",
        *COLOCATED,
        "trainer.deepspeed.ranks=8",
        "trainer.deepspeed.zero_stage=3",
        "rollout.engines=4",
        "rollout.tensor_parallel_size=2",
        gpus=8,
    ),
    Check(name="nodes' clocks and folder", function="nodes:clocks_and_folder", nodes=2, packages=("ray",)),
    _publish(
        "publish between nodes",
        *WHOLE,
        "trainer.deepspeed.ranks=2",
        "trainer.deepspeed.zero_stage=3",
        "cluster.learner_placement=spread",
        "rollout.engines=2",
        gpus=2,
        nodes=2,
    ),
)
