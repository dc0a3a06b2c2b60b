"""Training of a policy on one rank: forward passes, optimizer steps, sending weights. Imports torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlhf.config import is_piece
from rlhf.errors import CheckpointError, ModelError
from rlhf.images import PlacedImage, in_each_row
from rlhf.models.lora import without_adapter
from rlhf.models.policy import PolicyModel
from rlhf.models.rounding import rounded as otherwise_rounded
from rlhf.models.routing import RouterBalance, RoutingReplay, balance_of
from rlhf.models.vision import check_shown
from rlhf.trainer.arrays import Floats
from rlhf.trainer.batching.batch import MicroBatch, Minibatch, filled
from rlhf.trainer.batching.forward_outputs import Column
from rlhf.trainer.credit.registry import needs_of
from rlhf.trainer.losses import (
    Actions,
    Objective,
    engine_difference,
    off_policy_metrics,
    policy_loss,
    policy_loss_of,
    sft_loss,
)
from rlhf.trainer.losses.off_policy import mismatch
from rlhf.trainer.rank import zero
from rlhf.trainer.rank.critic import Critic
from rlhf.trainer.rank.metric_accumulator import MetricAccumulator
from rlhf.trainer.rank.mismatch import MismatchGuard
from rlhf.trainer.rank.model_rank import ModelRank
from rlhf.trainer.rank.policy_loading import load_policy_model, load_reference
from rlhf.trainer.rank.snapshot import Create
from rlhf.trainer.rank_answers import Disagreement, RankAnswer
from rlhf.trainer.settings import LearnerSettings, UpdateArguments
from rlhf.types import Routing
from rlhf.weight_sync import weights
from rlhf.weight_sync.sender import RankSender
from rlhf.weight_sync.types import Manifest, Rendezvous, Seconds


class Rank(ModelRank):
    """One rank's policy, with its reference and its critic where the recipe needs them. Policies over one `base` share
    its weights: the first puts the model into the list."""

    def __init__(
        self, rank: int, world_size: int, settings: LearnerSettings, *, base: list[PreTrainedModel] | None = None
    ) -> None:
        every, lora = settings.model.gradient_checkpointing, settings.model.lora
        self.policy = load_policy_model(settings, world_size, gradient_checkpointing=every, lora=lora, base=base)
        self.reference = load_reference(settings, world_size)
        super().__init__(self.policy, rank, world_size, settings)
        self.critic = Critic(settings.trainer.critic, settings, world_size) if settings.trainer.critic else None
        self.objective = _objective(settings)
        self.guard = MismatchGuard(self.device)
        self.routing = RoutingReplay(self.policy.model, settings.routing) if settings.routing != "ignore" else None
        self.balance = _balance(self.policy, settings)
        self.sender = RankSender(rank)
        self._held: list[Tensor] | None = None
        self._minibatches: Sequence[Minibatch] = ()

    def forward_outputs(self, minibatches: Sequence[Minibatch], wanted: Sequence[Column]) -> dict[str, Floats]:
        """Return the `wanted` columns of this rank's part of an update, `float32 [A]`, without gradients; with `values`
        also `last_values`, `[S]`. The rank keeps its part, with the columns, for `update`."""
        columns: dict[str, list[Tensor]] = defaultdict(list)  # tensors until the end, so that nothing waits for a GPU
        for microbatch in chain(*minibatches):
            if "proximal_logprobs" in wanted:
                columns["proximal_logprobs"].append(self._scored(self.engine, microbatch))
            if "reference_logprobs" in wanted:
                columns["reference_logprobs"].append(self._scored_by_reference(microbatch))
            if "values" in wanted:
                assert self.critic is not None, "the recipe has a critic"
                values, last = self.critic.values(microbatch)
                columns["values"].append(values)
                columns["last_values"].append(last)
        found = {name: torch.cat(parts).float().cpu().numpy() for name, parts in columns.items()}
        self._minibatches = filled(minibatches, {name: found[name] for name in wanted})
        return found

    def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        routing: Routing | None = None,
        images: Sequence[PlacedImage] = (),
        *,
        rounded: bool = False,
    ) -> NDArray[np.float32]:
        """Log-probs `[R, T - 1]` of the rows `[R, T]`, each with the same images, at temperature 1, or with another
        rounding; `routing` `[R, t, layers, k]` may be of the first tokens only."""
        self._take_routing(routing if routing is None else _filled(routing, token_ids.shape))
        with zero.forward_only(self.engine), otherwise_rounded(self.policy) if rounded else nullcontext():
            rows = self._tensor(token_ids).long()
            places = torch.arange(rows.numel(), device=self.device).view_as(rows)
            sources, targets = places[:, :-1].flatten(), places[:, 1:].flatten()
            logprobs, _ = self.engine(
                rows, places[:1].expand_as(rows), sources, targets, 1.0, images=in_each_row(images, *rows.shape)
            )
        self.policy.rows.forget_images()
        found: NDArray[np.float32] = logprobs.view(len(token_ids), -1).cpu().numpy()
        return found

    def update(
        self, minibatches: Sequence[Minibatch] | None, columns: Mapping[str, Floats], arguments: UpdateArguments
    ) -> RankAnswer:
        """One optimizer step for every minibatch of every epoch, of the policy and, with a critic, of the critic.
        `columns` are those that this rank's part lacks; the part itself is None after `forward_outputs`."""
        accumulator = MetricAccumulator()
        given, self._minibatches = minibatches or self._minibatches, ()
        self._optimize(filled(given, columns), arguments, accumulator)
        self._end_update()
        return accumulator.answer()

    def imitate(self, minibatches: Sequence[Minibatch]) -> RankAnswer:
        """One optimizer step for every minibatch, on the supervised loss of the ACTION tokens."""
        accumulator = MetricAccumulator()
        for minibatch in minibatches:
            total = torch.zeros((), device=self.device)
            for microbatch in minibatch:
                logprobs, _ = self._forward(self.engine, microbatch)
                loss, metrics = sft_loss(logprobs, self._tensor(microbatch.loss_weights), microbatch.denominator)
                accumulator.see(metrics)
                loss = loss + self._balance_loss(microbatch, accumulator)
                last = microbatch is minibatch[-1]
                total = total + zero.backward(self.engine, loss, self.world_size, last=last)
            self._step(total, accumulator)
        self._end_update()
        return accumulator.answer()

    def manifest(self) -> Manifest:
        """Return the manifest of `send`."""
        return weights.publish_manifest(self.policy, self._form)

    def connect(self, rendezvous: Rendezvous) -> None:
        """Join the transfer with the engines, if this rank sends."""
        self.sender.connect(rendezvous)

    def send(self) -> Seconds:
        """Send every weight to the engines, or help to gather them. Returns the seconds by activity."""
        return self.sender.send(self.published(), self.manifest())

    def published(self) -> Iterator[tuple[str, Tensor]]:
        """Return the tensors of `send`, gathered as they are asked for. Collective."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)  # an optimizer step may have run on another stream
        return weights.published_tensors(self.policy, self.settings.bucket_bytes, self._form)

    def perturb(self) -> None:
        """Move every weight far above tolerance, for the start check."""
        self._held = weights.snapshot(self.policy, self._form)
        weights.perturb(self.policy, self._form, self.settings.policy)

    def restore(self) -> None:
        """Undo `perturb`, bit for bit."""
        if self._held is not None:
            weights.put_back(self.policy, self._held, self._form)
            self._held = None

    def _save_state(self, path: Path, create: Create) -> list[Path]:
        own = super()._save_state(path, create)
        return own + zero.save(self.critic.engine, path / "critic", self.rank, create) if self.critic else own

    def _load_state(self, path: Path) -> None:
        if self.critic and not (path / "critic").is_dir():
            raise CheckpointError(f"{path} has no critic, but this run has one (trainer.critic)")
        super()._load_state(path)
        if self.critic:
            zero.load(self.critic.engine, path / "critic", self.critic.config.optimizer, self.rank)

    def stop(self) -> None:
        self.sender.close()

    def _end_update(self) -> None:
        super()._end_update()
        others: list[Any] = [self.reference, self.critic and self.critic.module]
        for module in filter(None, others):
            module.rows.forget_images()

    @property
    def _form(self) -> weights.SyncForm:
        return "adapter" if self.settings.model.publishes_adapters else "merged"

    def _optimize(
        self, minibatches: Sequence[Minibatch], arguments: UpdateArguments, accumulator: MetricAccumulator
    ) -> None:
        """All optimizer steps of an update, or only those until the policy has strayed too far. Learning rates continue
        as if every step had been made."""
        for epoch in range(arguments.epochs):
            for step, minibatch in enumerate(minibatches):
                strayed = False
                if arguments.policy_learns:
                    later = minibatches[1:] if epoch == step == 0 else None
                    strayed = self._policy_step(minibatch, arguments, accumulator, first=epoch == 0, later=later)
                if accumulator.disagreement:
                    return
                if self.critic:
                    self.critic.step(minibatch, accumulator)
                if strayed:
                    unmade = (arguments.epochs - epoch) * len(minibatches) - step - 1
                    for engine in (self.engine, *([self.critic.engine] if self.critic else [])):
                        zero.pass_over(engine, unmade)
                    return

    def _policy_step(
        self,
        minibatch: Minibatch,
        arguments: UpdateArguments,
        accumulator: MetricAccumulator,
        *,
        first: bool,
        later: Sequence[Minibatch] | None,
    ) -> bool:
        """Take one optimizer step, and return whether the policy was farther from the one that sampled than the recipe
        allows.

        Only the first step of an update gets the `later` minibatches: the distance of its weights from the engine says
        something about the engine, and too large a distance prevents the step. `first` passes are recorded.
        """
        total, strayed = torch.zeros((), device=self.device), torch.zeros(1, device=self.device)
        passes: list[Tensor] = []
        for microbatch in minibatch:
            logprobs, entropies = self._forward(self.engine, microbatch)
            if self.routing and later is not None:
                accumulator.add("moe/routing_disagreement", *self.routing.disagreement())
            actions = self._actions(microbatch, logprobs, entropies)
            loss, metrics = policy_loss(
                actions, microbatch.denominator, self.objective, kl_coefficient=arguments.kl_coefficient
            )
            accumulator.see(metrics)
            distance = off_policy_metrics(logprobs, entropies, actions.behaviour_logprobs)
            accumulator.see(distance)
            strayed.add_(distance.sums["policy/approx_kl"])
            if first:
                self._record(microbatch, actions, accumulator, untouched=later is not None)
            passes.append(logprobs.detach())
            loss = loss + self._balance_loss(microbatch, accumulator)
            last = microbatch is minibatch[-1]
            total = total + zero.backward(self.engine, loss, self.world_size, last=last)
        if later is not None and self.settings.trainer.mismatch == "stop":
            accumulator.disagreement = self._disagreement(minibatch, passes, later)
            if accumulator.disagreement:
                return False
        self._step(total, accumulator)
        return self._too_far(strayed, minibatch[0].step_tokens)

    def _disagreement(
        self, minibatch: Minibatch, passes: Sequence[Tensor], later: Sequence[Minibatch]
    ) -> Disagreement | None:
        """Compare log-probs of tokens that these weights sampled: in this minibatch's `passes`, and in `later` ones if
        they were computed before. Collective."""
        passed = list(zip(minibatch, passes, strict=True))
        for micro in chain(*later):
            if micro.proximal_logprobs is not None:
                passed.append((micro, self._tensor(micro.proximal_logprobs)))
        seen = [
            (logprobs, self._tensor(micro.behaviour_logprobs), self._tensor(micro.current) > 0)
            for micro, logprobs in passed
            if micro.current is not None
        ]
        if not seen or self.guard.disagreement(seen) is None:
            return None
        with otherwise_rounded(self.policy):
            rounded = [self._scored(self.engine, microbatch) for microbatch in minibatch]
        self.guard.loosen(seen, rounded)
        return self.guard.disagreement(seen)

    def _actions(self, microbatch: MicroBatch, logprobs: Tensor, entropies: Tensor) -> Actions:
        """Return a micro-batch as its loss reads it. With a single step the proximal log-probs are those of its own
        pass."""
        behaviour = proximal = self._tensor(microbatch.behaviour_logprobs)
        reference = microbatch.reference_logprobs
        if self.settings.trainer.proximal_logprobs == "recomputed":
            computed = microbatch.proximal_logprobs
            proximal = logprobs.detach() if computed is None else self._tensor(computed)
        return Actions(
            logprobs=logprobs,
            proximal_logprobs=proximal,
            behaviour_logprobs=behaviour,
            advantages=self._tensor(microbatch.advantages),
            entropies=entropies,
            loss_weights=self._tensor(microbatch.loss_weights),
            sequences=self._tensor(microbatch.sequences),
            reference_logprobs=None if reference is None else self._tensor(reference),
        )

    def _record(
        self, microbatch: MicroBatch, actions: Actions, accumulator: MetricAccumulator, *, untouched: bool
    ) -> None:
        """Keep the entropies of the first step's pass, and the learner's log-probs before the update: those computed
        before, or those of that pass."""
        column = microbatch.proximal_logprobs
        before = actions.logprobs.detach() if column is None else self._tensor(column)
        if column is not None or untouched:
            behaviour, current = actions.behaviour_logprobs, microbatch.current
            fresh = slice(None) if current is None else self._tensor(current) > 0
            accumulator.see(engine_difference(before[fresh], behaviour[fresh]))
            accumulator.see(mismatch(before, behaviour, self.settings.trainer.correction.high))
        accumulator.keep(microbatch.places, before, actions.entropies)

    def _too_far(self, divergence: Tensor, tokens: int) -> bool:
        """Whether a step's KL(behaviour, policy), over all ranks, passed the recipe's limit. Collective."""
        limit = self.settings.trainer.kl.stop
        if limit is None:
            return False
        torch.distributed.all_reduce(divergence)
        return float(divergence) / self.settings.trainer.deepspeed.sequence_parallel / tokens > limit

    def _balance_loss(self, microbatch: MicroBatch, accumulator: MetricAccumulator) -> Tensor | float:
        """Return the micro-batch's part of the step's balance of experts, by its ACTION tokens."""
        if self.balance is None or not len(microbatch.targets):
            return 0.0
        balance = self.balance.loss(self._tensor(microbatch.position_ids))
        accumulator.add("moe/balance_loss", balance.detach() * len(microbatch.targets), len(microbatch.targets))
        return balance * (len(microbatch.targets) / microbatch.step_tokens)

    def _scored_by_reference(self, microbatch: MicroBatch) -> Tensor:
        if self.reference is not None:
            return self._scored(self.reference, microbatch)
        with without_adapter(self.policy):
            return self._scored(self.engine, replace(microbatch, routing=None))

    def _scored(self, module: nn.Module, microbatch: MicroBatch) -> Tensor:
        with zero.forward_only(module):
            return self._forward(module, microbatch)[0]

    def _forward(self, module: nn.Module, microbatch: MicroBatch) -> tuple[Tensor, Tensor]:
        if module is self.engine:
            self._take_routing(microbatch.routing)
        token_ids = self._tensor(microbatch.token_ids).long()
        if self.settings.model.tower and microbatch.images is None:
            check_shown(self.policy.model, token_ids)
        logprobs, entropy = module(
            token_ids,
            self._tensor(microbatch.position_ids).long(),
            self._tensor(microbatch.sources),
            self._tensor(microbatch.targets),
            self.settings.temperature,
            entropy_gradient=self.objective.reads_entropies,
            most=microbatch.most,
            images=microbatch.images,
        )
        return logprobs, entropy

    def _take_routing(self, routing: Routing | None) -> None:
        if self.routing:
            self.routing.take(routing)


def _filled(routing: Routing, shape: tuple[int, ...]) -> Routing:
    """Experts of the first tokens of rows with this `shape` `(R, T)`, as `[R, T, layers, k]`: -1 where unknown."""
    unknown = np.full((*shape[:1], shape[1] - routing.shape[1], *routing.shape[2:]), -1, np.int16)
    return np.concatenate([routing, unknown], axis=1)


def _balance(policy: PolicyModel, settings: LearnerSettings) -> RouterBalance | None:
    balance = balance_of(policy.model, settings.trainer.loss.router_aux_loss_coefficient)
    if balance and settings.trainer.deepspeed.sequence_parallel > 1:
        raise ModelError(
            "ranks that share rows (trainer.deepspeed.sequence_parallel) do not see the balance of experts over them; "
            "use trainer.loss.router_aux_loss_coefficient: 0"
        )
    return balance


def _objective(settings: LearnerSettings) -> Objective:
    trainer = settings.trainer
    weighted = trainer.proximal_logprobs == "recomputed" and not needs_of(trainer).weighted
    return Objective(
        policy=policy_loss_of(trainer.loss),
        kl=trainer.kl if trainer.kl.coefficient > 0 and trainer.kl.place == "loss" else None,
        entropy_coefficient=trainer.loss.entropy_coefficient,
        reads_entropies=trainer.loss.entropy_coefficient > 0 or is_piece(trainer.loss.policy),
        correction=trainer.correction if weighted else None,
    )
