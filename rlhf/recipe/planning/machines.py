"""Cards by their data sheets, and the memory that a process takes before its first tensor.

Sources, with dense rates: NVIDIA's data sheets "A100 Tensor Core GPU" (2021), "H100 Tensor Core GPU" (2023), "H200
Tensor Core GPU" (2024), "L40S" (2023), "L4" (2023), "A10" (2021), "Blackwell architecture technical brief" (B200, 2024)
and "RTX 4090". `usable` is the total of `torch.cuda.mem_get_info`, in GiB.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise

import psutil

from rlhf.cluster.machine import this_machine, this_machines_gpus
from rlhf.engines.vllm.environment import installed_device
from rlhf.errors import ConfigError

GIB = 2**30
CUDA_CONTEXT = round(0.6 * GIB)
"""A process's CUDA context with the kernels of torch: 0.45 to 0.6 GiB on A100 and H100."""
NCCL_BUFFERS = round(0.9 * GIB)
"""NCCL's buffers of a rank's communicators: 0.3 GiB within a node to 1 GiB over many (4 MiB a channel and peer)."""
CUDA_GRAPHS = round(0.8 * GIB)
"""CUDA graphs that vLLM captures for its batch sizes: 0.5 to 1 GiB in its logs, part of `gpu_memory_utilization`."""
ALLOCATOR_SHARE = 0.05
"""Share of a card that torch's allocator holds in blocks too small for the next request."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A kind of GPU: usable bytes, of which others hold `held`, dense bfloat16 FLOP/s, and its memory's bytes/s."""

    name: str
    memory: int
    flops: float
    bandwidth: float
    held: int = 0

    @property
    def free(self) -> int:
        return self.memory - self.held


def _card(name: str, usable: float, teraflops: float, terabytes: float) -> Card:
    return Card(name=name, memory=round(usable * GIB), flops=teraflops * 1e12, bandwidth=terabytes * 1e12)


CARDS = {
    card.name: card
    for card in (
        _card("A10", 22.1, 125, 0.6),
        _card("L4", 22.0, 121, 0.3),
        _card("RTX4090", 23.6, 165, 1.01),
        _card("A100-40GB", 39.4, 312, 1.56),
        _card("A100", 79.1, 312, 2.04),
        _card("L40S", 44.4, 362, 0.86),
        _card("H100", 79.1, 989, 3.35),
        _card("H200", 139.8, 989, 4.8),
        _card("B200", 178.4, 2250, 8.0),
    )
}
NODE_MEMORY = 128 * GIB
"""Assumed host memory for each card: 1 TB for a node of 8."""
CARD_TEXT = re.compile(r"(?:(\d+)x)?([A-Za-z][\w-]*|\d+(?:\.\d+)?GB)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Equal nodes, each with `cards` GPUs of one kind (None without GPUs), `cores`, and bytes of `host_memory`."""

    nodes: int
    cards: int
    card: Card | None
    cores: int
    host_memory: int

    @property
    def described(self) -> str:
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        cards = f"{self.cards} x {self.card.name} ({self.card.memory / GIB:.1f} GiB)" if self.card else "no GPU"
        return f"{nodes}{cards}, {self.cores} cores, {self.host_memory / GIB:.0f} GiB host memory"

    @property
    def bought(self) -> str:
        """The machine as somebody looks for one: cards and memory."""
        nodes = f"{self.nodes} nodes of " if self.nodes > 1 else ""
        cards = f"{self.cards} x {self.card.name}" if self.card else "no GPU"
        return f"{nodes}{cards} and {self.host_memory / GIB:.0f} GiB host memory"


def here() -> Machine:
    """Return this machine, with its GPUs as the driver names them; without them if the installed vLLM is for CPUs."""
    gpus = [gpu for gpu in this_machines_gpus() if gpu.bytes] if installed_device() == "cuda" else []
    card = None
    if gpus:  # with the rates of its data sheet, else of an A100
        memory, held = min(gpu.bytes for gpu in gpus), max(gpu.held for gpu in gpus)
        card = replace(card_named(gpus[0].name) or CARDS["A100"], name=gpus[0].name, memory=memory, held=held)
    cores, host_memory = int(this_machine().cpus), int(psutil.virtual_memory().total)
    return Machine(nodes=1, cards=len(gpus), card=card, cores=cores, host_memory=host_memory)


def machine_of(gpus: str, nodes: int) -> Machine:
    """Return the machine of `8xH100`, `H100` or `8x80GB`, which has an A100's rates. Raises `ConfigError`."""
    found = CARD_TEXT.fullmatch(gpus.replace(" ", ""))
    card = _named(found[2]) if found else None
    if found is None or card is None:
        known = ", ".join(CARDS)
        raise ConfigError(f"--gpus {gpus} is not a known card; give for instance 8xH100 or 8x80GB; cards: {known}")
    count = int(found[1] or 1)
    return Machine(nodes=nodes, cards=count, card=card, cores=12 * count, host_memory=NODE_MEMORY * count)


def machine_of_job(nodes: int, gpus: int, cores: int | None, card: str | None = None) -> Machine:
    """Return the nodes that a job asks for. GPUs without a type that is known count as those of 80 GB."""
    found = (_named(card or "") or _named("80GB")) if gpus else None
    return Machine(nodes=nodes, cards=gpus, card=found, cores=cores or 12 * gpus or 1, host_memory=NODE_MEMORY * gpus)


def card_named(name: str) -> Card | None:
    """Return the card of the table with the driver's name, for instance `NVIDIA A100-SXM4-40GB`; None without one."""
    words = re.split(r"[\s-]+", name)
    parts = {*words, *map("".join, pairwise(words))}
    alike = [card for card in CARDS.values() if parts.issuperset(card.name.split("-"))]
    return max(alike, key=lambda card: len(card.name), default=None)


def _named(text: str) -> Card | None:
    if text.endswith("GB") and text[0].isdigit():
        plain = CARDS["A100"]
        usable = round(float(text.removesuffix("GB")) * plain.memory / 80)
        return Card(name=text, memory=usable, flops=plain.flops, bandwidth=plain.bandwidth)
    by_name = {name.lower().replace("-", ""): card for name, card in CARDS.items()}
    text = text.lower().replace("-", "")
    return by_name.get(text) or by_name.get(text.removesuffix("80gb"))
