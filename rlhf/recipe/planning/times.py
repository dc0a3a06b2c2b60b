"""The seconds of one update with replies of full length, from operations, bytes and rates: ranges, as the rates are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from rlhf.recipe.planning.layout import EngineLayout, RunLayout
from rlhf.recipe.planning.machines import Machine
from rlhf.recipe.planning.rates import NOTHING, Range, Rates, cpu_rates, gpu_rates
from rlhf.recipe.planning.shape import ModelShape

BYTES_OF_STATE = 16
"""Bytes of a weight's masters, moments and gradients, which leave the device of a parked rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one update. `gathering` is what DeepSpeed sends between ranks, in part hidden behind training."""

    generate: Range
    train: Range
    gathering: Range
    weight_sync: Range
    rest: Range
    overlapping: bool

    @property
    def learning(self) -> Range:
        """Training, and what it does not hide of gathering."""
        return Range(low=max(self.train.low, self.gathering.low), high=self.train.high + self.gathering.high)

    @property
    def update(self) -> Range:
        """With staleness the engines play while the learner trains."""
        learning = self.learning + self.weight_sync + self.rest
        return learning.at_least(self.generate + self.weight_sync) if self.overlapping else learning + self.generate


def rates_of(shape: ModelShape, run: RunLayout, machine: Machine) -> Rates:
    """Return the rates that are assumed until they are measured."""
    if machine.card is None or run.learner.device == "cpu":
        return cpu_rates(run.learner.threads, run.learner.width)
    return gpu_rates(machine.card, shape.multiplied, several_nodes=run.learner.ranks > machine.cards)


def times_of(shape: ModelShape, run: RunLayout, rates: Rates, caches: Sequence[int]) -> Times:
    """Return the times, with room for so many tokens in the cache of each kind of engine."""
    engines = sum(layout.engines for layout in run.engines)
    each = (
        generating(shape, run, layout, rates, cache, -(-run.samples // engines))
        for layout, cache in zip(run.engines, caches, strict=True)
    )
    generate = reduce(Range.at_least, each, NOTHING)
    return Times(
        generate=generate,
        train=train_seconds(shape, run, rates),
        gathering=_gathering(shape, run, rates),
        weight_sync=_syncing(shape, run, rates) if run.engines else NOTHING,
        rest=rates.update,
        overlapping=run.max_staleness > 0,
    )


def step_seconds(shape: ModelShape, run: RunLayout, layout: EngineLayout, rates: Rates, running: int) -> Range:
    """Return the seconds of a step with so many sequences of half their length. On a GPU the processor prepares the
    next step while this one runs; on a CPU it does both."""
    cached = (run.prompt + run.reply / 2) * shape.cache_elements(layout.parallel) * layout.width * layout.parallel
    read = shape.multiplied * layout.width + running * cached
    products = rates.decoding.seconds(2 * shape.multiplied * running / layout.parallel)
    device = products.at_least(rates.reading.seconds(read / layout.parallel)) + rates.step
    processor = rates.sequence.times(running)
    return device.at_least(processor) if layout.device == "cuda" else device + processor


def places(run: RunLayout, layout: EngineLayout, cache: int) -> int:
    """Return how many sequences of full length an engine runs at once."""
    return max(min(layout.sequences, cache // (run.prompt + run.reply)), 1)


def reading(shape: ModelShape, layout: EngineLayout, rates: Rates, tokens: float) -> Range:
    """Return the seconds in which an engine reads so many tokens of prompts."""
    return rates.decoding.seconds(2 * shape.multiplied * tokens / layout.parallel)


def generating(
    shape: ModelShape, run: RunLayout, layout: EngineLayout, rates: Rates, cache: int, samples: int
) -> Range:
    """Return the seconds in which one engine plays so many samples: a prompt is read once for its replies at best."""
    running = min(places(run, layout, cache), samples)
    steps = run.reply * samples / running
    prompts = reading(shape, layout, rates, samples * run.prompt)
    shared = Range(low=prompts.low / run.replies, high=prompts.high)
    return step_seconds(shape, run, layout, rates, running).times(steps) + shared


def trained_tokens(run: RunLayout) -> float:
    """Count the tokens that all ranks compute in an update: a prompt once for its replies."""
    return run.samples * run.reply + run.samples / run.replies * run.prompt


def train_seconds(shape: ModelShape, run: RunLayout, rates: Rates) -> Range:
    """Return the seconds of all passes over an update."""
    attended = 2 * shape.cached_layers * shape.hidden_size * (run.prompt + run.reply)
    operations = run.learner.passes * (2 * shape.multiplied + attended) * trained_tokens(run)
    return rates.training.seconds(operations / run.learner.ranks)


def _gathering(shape: ModelShape, run: RunLayout, rates: Rates) -> Range:
    """Return the seconds of what ranks send each other. ZeRO-3 gathers weights for both passes of a micro-batch, and
    reduces gradients in float32 after it, as stage 2 does; below that they are reduced once an update."""
    learner = run.learner
    if learner.ranks == 1:
        return NOTHING
    passes = max(trained_tokens(run) * learner.epochs / (learner.ranks * learner.tokens), 1)
    gathers = (2 + min(learner.checkpointing, 1)) * passes if learner.stage == 3 else learner.epochs
    reduces = passes if learner.stage >= 2 else learner.epochs
    trained = shape.adapter * learner.lora if learner.lora else shape.parameters
    bytes = shape.parameters * gathers * learner.width + 4 * trained * reduces
    return rates.link.seconds(bytes * (learner.ranks - 1) / learner.ranks)


def _syncing(shape: ModelShape, run: RunLayout, rates: Rates) -> Range:
    """Return the seconds in which weights go from ranks to engines; of colocated ones ranks park and engines wake."""
    learner = run.learner
    sent = rates.link.seconds(shape.parameters * learner.width) + rates.sync
    if not run.colocated:
        return sent
    trained = shape.adapter * learner.lora if learner.lora else shape.parameters
    state = BYTES_OF_STATE * trained + shape.parameters * learner.width
    return sent + rates.host.seconds(2 * state / learner.ranks) + rates.turn.times(2)
