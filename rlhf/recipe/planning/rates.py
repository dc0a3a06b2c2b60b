"""The rates that times are planned with: each a range with its source, until it is measured.

No GPU of this project has confirmed those of GPUs: they come from data sheets, from reading the sources of vLLM and
DeepSpeed, and from what their processor time was on a CPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np

from rlhf.recipe.planning.machines import Card


@dataclass(frozen=True, slots=True, kw_only=True)
class Range:
    """A number that is known to lie between two, for instance seconds."""

    low: float
    high: float

    def __add__(self, other: Range) -> Range:
        return Range(low=self.low + other.low, high=self.high + other.high)

    def times(self, factor: float) -> Range:
        return Range(low=self.low * factor, high=self.high * factor)

    def at_least(self, other: Range) -> Range:
        """Return the larger one, at both ends."""
        return Range(low=max(self.low, other.low), high=max(self.high, other.high))


NOTHING = Range(low=0.0, high=0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate(Range):
    """A rate between two bounds, and where it is from."""

    source: str

    def seconds(self, amount: float) -> Range:
        """Return the seconds for so much at this rate."""
        return Range(low=amount / self.high, high=amount / self.low)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """FLOP/s and bytes/s of one rank or one engine's worker, and seconds. `training` counts the operations of matrix
    products over all time of a pass; `decoding` and `reading` are the products of a step of an engine and the bytes it
    reads. `step` are an engine's other seconds a step, `sequence` its processor's for each sequence in it. `link` joins
    ranks and engines, `host` a device and the machine's memory. `update` and `sync` are the seconds of an update and of
    a weight sync beside those that follow from sizes, `turn` those of an engine that sleeps and wakes."""

    training: Rate
    decoding: Rate
    reading: Rate
    step: Rate
    sequence: Rate
    link: Rate
    host: Rate
    update: Rate
    sync: Rate
    turn: Rate


TRAINING_SHARES = ((5e8, 0.12, 0.20), (1.5e9, 0.18, 0.28), (7e9, 0.30, 0.42), (7e10, 0.28, 0.40))
"""Weights, and the shares of a card's peak in their training: eager modules, no fused norms, a head in chunks that is
computed twice and takes a third of the operations at 0.5e9 weights."""
CARD_LINKS = {"A100": 300e9, "A100-40GB": 300e9, "H100": 450e9, "H200": 450e9, "B200": 900e9}
"""NVLink in one direction, by the data sheets; other cards have PCIe."""
PCIE, NODE_LINK = 25e9, 50e9
"""PCIe 4 x16 as copies of pinned memory reach it; one link of 400 Gbit/s for each card between nodes."""
CPU_PRODUCTS = {4: (50e9, 110e9), 2: (1e9, 205e9)}
"""FLOP/s of a core by the bytes of a weight: in 16 bits the lower one is without instructions for them."""


def gpu_rates(card: Card, weights: float, *, several_nodes: bool) -> Rates:
    """Return the rates on cards, of a model whose token is multiplied with so many weights."""
    sizes, low, high = zip(*TRAINING_SHARES, strict=True)
    shares = [float(np.interp(math.log(max(weights, 1.0)), np.log(sizes), bound)) for bound in (low, high)]
    link = NODE_LINK if several_nodes else CARD_LINKS.get(card.name, PCIE)
    return Rates(
        training=Rate(low=shares[0] * card.flops, high=shares[1] * card.flops, source="a guess by the model's size"),
        decoding=Rate(low=0.3 * card.flops, high=0.6 * card.flops, source="a guess"),
        reading=Rate(low=0.5 * card.bandwidth, high=0.8 * card.bandwidth, source="a guess of the data sheet's rate"),
        step=Rate(low=2e-3, high=5e-3, source="a guess: launches, and sampling over the vocabulary"),
        sequence=Rate(low=20e-6, high=50e-6, source="vLLM's scheduler and outputs, on an EPYC with 256 and 1,024"),
        link=Rate(low=0.3 * link, high=0.8 * link, source="a guess of the data sheet's rate"),
        host=Rate(low=12e9, high=50e9, source="PCIe 4 and 5 with 16 lanes, pinned memory"),
        update=Rate(low=0.2, high=1.0, source="a guess: packing, records, the optimizer's launches"),
        sync=Rate(low=0.3, high=1.5, source="a guess: engines take weights over, and answer the canary"),
        turn=Rate(low=0.5, high=2.0, source="a guess: vLLM maps its memory"),
    )


def cpu_rates(threads: int, width: int) -> Rates:
    """Return the rates of workers with so many threads each and weights of so many bytes, as on machines of this
    project (two cores of an EPYC)."""
    low, high = (threads * rate for rate in CPU_PRODUCTS[width])
    return Rates(
        training=Rate(low=0.5 * low, high=0.85 * high, source="benchmarks learner"),
        decoding=Rate(low=0.5 * low, high=high, source="benchmarks end_to_end"),
        reading=Rate(low=4e9, high=12e9, source="copies on an EPYC"),
        step=Rate(low=5e-3, high=40e-3, source="the quickstart's engine"),
        sequence=Rate(low=50e-6, high=200e-6, source="the quickstart's engine"),
        link=Rate(low=0.5e9, high=2e9, source="benchmarks publish"),
        host=Rate(low=4e9, high=12e9, source="copies on an EPYC"),
        update=Rate(low=0.2, high=0.8, source="the quickstart's learner"),
        sync=Rate(low=0.15, high=0.4, source="the quickstart's weight sync"),
        turn=Rate(low=0.1, high=0.5, source="benchmarks colocation"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRates:
    """What was measured on this machine: FLOP/s of products and bytes/s of copies on one device, bytes/s to it from the
    machine's memory, and an engine's seconds of a step, and of each sequence in it."""

    products: float
    copies: float
    host: float
    step: float
    sequence: float


def with_measured(rates: Rates, found: MeasuredRates, *, threads: int, on_gpu: bool) -> Rates:
    """Replace guesses by what was measured, except for the shares of a product's rate that passes reach."""
    products = found.products * threads
    shares = (0.3, 0.6) if on_gpu else (0.5, 1.0)
    peak = rates.decoding.high / shares[1]
    training = (rates.training.low / peak, rates.training.high / peak) if on_gpu else (0.5, 0.85)
    source = "products measured, the share of them a guess"
    return replace(
        rates,
        training=Rate(low=training[0] * products, high=training[1] * products, source=source),
        decoding=Rate(low=shares[0] * products, high=shares[1] * products, source=source),
        reading=Rate(low=0.8 * found.copies, high=2 * found.copies, source="copies measured; a read is half of one"),
        host=Rate(low=found.host, high=found.host, source=MEASURED),
        step=Rate(low=found.step, high=found.step, source=MEASURED),
        sequence=Rate(low=found.sequence, high=found.sequence, source=MEASURED),
    )


MEASURED = "measured"
