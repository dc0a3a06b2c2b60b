"""The table of checks, in the order in which they run."""

from __future__ import annotations

from dataclasses import dataclass

HALVES = ("rollout.gpus_per_engine=0.5", "trainer.deepspeed.gpus_per_rank=0.5")
WHOLE = ("rollout.gpus_per_engine=1", "trainer.deepspeed.gpus_per_rank=1")
COLOCATED = ("cluster.placement=colocated", *WHOLE)
ZERO_3 = "trainer.deepspeed.zero_stage=3"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCheck:
    """A check: `function` is `module:function`, called with the machine and `arguments`. It needs `gpus` on each of
    `nodes`."""

    name: str
    function: str
    gpus: int = 1
    nodes: int = 1
    arguments: tuple[str, ...] = ()
    deadline_seconds: float = 120

    def lacks(self, gpus: int, nodes: int) -> str:
        """Return what the machine lacks for this check; empty if it can run."""
        if nodes < self.nodes:
            return f"needs {self.nodes} nodes: --nodes {self.nodes}"
        return f"needs {self.gpus} GPUs" if gpus < self.gpus else ""


def _check(
    name: str, function: str, arguments: tuple[str, ...] = (), *, seconds: float = 120, gpus: int = 1, nodes: int = 1,
) -> GpuCheck:  # fmt: skip
    return GpuCheck(
        name=name, function=f"rlhf.apps.gpu_checks.{function}", gpus=gpus, nodes=nodes,
        arguments=arguments, deadline_seconds=seconds,
    )  # fmt: skip


def _plan(name: str, *arguments: str, gpus: int = 1) -> GpuCheck:
    """Return a supervised run that is compared with float32."""
    return _check(name, "training:learner_plan", arguments, seconds=1000, gpus=gpus)


def _publish(name: str, *arguments: str, gpus: int = 1, nodes: int = 1) -> GpuCheck:
    """Return a run with an engine."""
    return _check(name, "training:publishes", arguments, seconds=500, gpus=gpus, nodes=nodes)


CHECKS: tuple[GpuCheck, ...] = (
    _check("GPUs agree", "facts:gpus_agree"),
    _check("driver", "facts:driver_serves_torch"),
    _check("GPUs are free", "facts:gpus_are_free"),
    _check("bf16 product", "arithmetic:matrix_product"),
    _check("device memory", "arithmetic:memory_bandwidth"),
    _check("host copies", "arithmetic:host_copies"),
    _check("compiled kernel", "arithmetic:compiled_kernel"),
    _check("flash attention", "arithmetic:flash_attention"),
    _check("NCCL as vLLM loads it", "communication:nccl_loads"),
    _check("packed rows", "made_model:packed_rows", seconds=240),
    _plan("ZeRO 1", "trainer.deepspeed.zero_stage=1"),
    _plan("ZeRO 2", "trainer.deepspeed.zero_stage=2"),
    _plan("ZeRO 3", ZERO_3),
    _plan("optimizer offloaded", "trainer.deepspeed.zero_stage=2", "trainer.deepspeed.offload_optimizer=cpu"),
    _plan("weights offloaded", ZERO_3, "trainer.deepspeed.offload_parameters=cpu"),
    _plan("activations recomputed", "model.gradient_checkpointing=true"),
    _plan("LoRA", "model.lora={rank: 8}"),
    _publish("publish by gloo", *HALVES, "trainer.weight_sync.backend=gloo"),
    _publish("engine without graphs", *HALVES, "rollout.vllm.enforce_eager=true"),
    _publish("engine scheduled in step", *HALVES, "rollout.vllm.async_scheduling=false"),
    _publish("publish by ipc", *HALVES, "trainer.weight_sync.backend=ipc"),
    _publish("colocated", *COLOCATED),
    _check("all-reduce", "communication:all_reduce", gpus=2),
    _plan("ZeRO 3 on 2 ranks", ZERO_3, "trainer.deepspeed.ranks=2", gpus=2),
    _plan("sequence parallel 2", "trainer.deepspeed.ranks=2", "trainer.deepspeed.sequence_parallel=2", gpus=2),
    _publish("publish by nccl", *WHOLE, "trainer.weight_sync.backend=nccl", gpus=2),
    _publish("tensor parallel 2", *WHOLE, "rollout.tensor_parallel_size=2", gpus=3),
    _publish("tensor parallel 1 and 2", *WHOLE, "rollout.tensor_parallel_size=[1, 2]", gpus=4),
    _publish(
        "4 ranks and tensor parallel 4",
        *WHOLE, "trainer.deepspeed.ranks=4", ZERO_3, "rollout.tensor_parallel_size=4", gpus=8,
    ),
    _publish("4 ranks and 4 engines", *WHOLE, "trainer.deepspeed.ranks=4", ZERO_3, "rollout.engines=4", gpus=8),
    _publish("colocated, 8 and 8", *COLOCATED, "trainer.deepspeed.ranks=8", ZERO_3, "rollout.engines=8", gpus=8),
    _publish(
        "colocated, 8 and 4 of 2", *COLOCATED,
        "trainer.deepspeed.ranks=8", ZERO_3, "rollout.engines=4", "rollout.tensor_parallel_size=2", gpus=8,
    ),
    _publish(
        "publish between nodes", *WHOLE,
        "trainer.deepspeed.ranks=2", ZERO_3, "cluster.learner_placement=spread", "rollout.engines=2", gpus=2, nodes=2,
    ),
)  # fmt: skip
