"""Weight sync as a transaction with verification.

prepare all engines → the learner sends while all receive → commit → canary → resume. Each phase has the same deadline.
If any phase fails, no engine is resumed: a `WeightSyncError` names engine, phase and version. Engines that died, are
silent, or alone fail the canary are lost, and the others try again without them.

Engines and learner form a transfer group; where its members have changed, the next weight sync forms another. An engine
that joins is brought to the current weights at once if the learner is idle, else by the next weight sync.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from rlhf.errors import EnginesLost, TransferError, UserError, WeightSyncError, WorkerDied
from rlhf.images import PlacedImage
from rlhf.tracing import record_span, span
from rlhf.types import PolicyVersion, Routing
from rlhf.weight_sync.canary import VERIFY_FACTOR, WHOLE_EVERY, Canary, Start, difference, disagreement, few, staleness
from rlhf.weight_sync.tolerance import LogprobTolerance, measured
from rlhf.weight_sync.types import PublishTarget, Seconds, WeightSource

LEARNER = "learner"
AT_LENGTH = "the rope scaling or the attention window of transformers and vLLM differ; lower rollout.max_context_tokens"
ATTEMPTS = 8
"""Weight syncs of one version that may lose engines."""
GRACE_SECONDS = 1.0
"""After a first failure: a death is reported later than the broken connections that it causes."""


class Compared(NamedTuple):
    """The canary's log-probs `[R, T - 1]` of the sequences that were `asked` for, the learner's and the engines', by
    the names of engine and policy, and by how much those of a policy may differ."""

    asked: Sequence[int]
    learner: Mapping[tuple[str, str], NDArray[np.float32]]
    engines: Mapping[tuple[str, str], NDArray[np.float32]]
    limits: Mapping[str, LogprobTolerance]
    current: bool
    """Whether the limits are of these weights, or of earlier ones."""


class LearnerScores(NamedTuple):
    """The learner's log-probs, and those with another rounding if they were requested."""

    logprobs: NDArray[np.float32]
    rounded: NDArray[np.float32] | None

    @property
    def rounding(self) -> NDArray[np.float32]:
        """Absolute differences that rounding makes, `[N]`."""
        assert self.rounded is not None, "it measured with rounding"
        found: NDArray[np.float32] = np.abs(self.rounded - self.logprobs).ravel()
        return found


class Publisher:
    """Brings every engine to the learner's weights: `verify`, then `publish` after each update. Engines may `join` and
    `leave` between. A publisher that `fails_over` continues without the engines that a weight sync has lost
    (`PublishTarget.lose`), and waits while it has none, until one joins or `end`.

    `logprob_difference` is the largest difference in nats between engines and learner at the last publish.
    """

    def __init__(
        self,
        source: WeightSource,
        targets: Sequence[PublishTarget],
        *,
        canary: Canary,
        phase_timeout_seconds: float,
    ) -> None:
        self._source, self._targets = source, list(targets)
        self._joining: dict[PublishTarget, asyncio.Future[None]] = {}
        self._group: tuple[PublishTarget, ...] = ()
        self._arrived = asyncio.Event()
        self._end: EnginesLost | None = None
        self.fails_over = False
        self._canary, self._seconds = canary, phase_timeout_seconds
        self._start: Start | None = None
        self._routed: bool | None = None
        self._rounding: dict[str, NDArray[np.float32]] = {}
        self._proved = False
        self._resumed_at = time.monotonic()
        self.logprob_difference = 0.0

    async def connect(self) -> None:
        """Form the transfer group of all engines. A weight sync does this if necessary."""
        await self._connect(self._targets)

    async def publish(self) -> PolicyVersion:
        """Sync the weights and return the version that every engine now samples from. Raises `WeightSyncError`, and
        `EnginesLost` after `end`."""
        async with self._source.turn:
            for attempt in range(ATTEMPTS):
                await self._until_engines()
                try:
                    await self._to(*self._targets, *self._joining)
                    break
                except WeightSyncError as error:
                    self._group = ()
                    self._lose(error, last=attempt == ATTEMPTS - 1)
            for target in [one for one in self._joining if one in self._group]:  # others may have joined meanwhile
                self._joined(target)
            if not self._proved:
                self._proved = True
                if not self._whole:  # a resumed run reports what an uninterrupted one would
                    self.logprob_difference = _largest_difference(await self._compared(()))
            return self._source.version

    async def verify(self) -> PolicyVersion:
        """Prove the path: publish weights that are all far off, see the engines follow, then publish the real ones."""
        self._proved = False
        await self.connect()
        await self._ask_learner("perturb", self._source.perturb())
        await self._transaction(self._prove_followed)
        await self._ask_learner("restore", self._source.restore())
        return await self.publish()

    async def join(self, target: PublishTarget) -> None:
        """Return when this engine has the current weights, proved by its canary. Raises `WeightSyncError`."""
        joined = self._joining[target] = asyncio.get_running_loop().create_future()
        self._arrived.set()
        async with self._source.turn:
            if not joined.done():
                before, self._proved = (self._proved, self.logprob_difference), False  # the whole canary
                try:
                    await self._to(target)
                    self._joined(target)
                finally:
                    self._joining.pop(target, None)
                    self._proved, self.logprob_difference = before
        await joined

    def leave(self, target: PublishTarget) -> None:
        """Send nothing to this engine from the next weight sync on; no effect if it has left already."""
        self._joining.pop(target, None)
        if target in self._targets:
            self._targets.remove(target)

    def end(self, error: EnginesLost) -> None:
        """Fail a weight sync that waits for an engine, and all later ones."""
        self._end = error
        self._arrived.set()

    def _joined(self, target: PublishTarget) -> None:
        self._targets.append(target)
        self._joining.pop(target).set_result(None)

    def _lose(self, error: WeightSyncError, *, last: bool) -> None:
        """Continue without the lost engines. Raise the error if it names none, unless only connections broke: forming
        them again reveals the death that broke them."""
        if last or not self.fails_over or not (error.lost or isinstance(error.__cause__, TransferError)):
            raise error
        for target in (*self._targets, *self._joining):
            if target.name not in error.lost:
                continue
            joining = self._joining.get(target)
            self.leave(target)
            target.lose(error)
            if joining:
                joining.set_exception(error)

    async def _until_engines(self) -> None:
        while not (self._targets or self._joining or self._end or not self.fails_over):
            self._arrived.clear()
            await self._arrived.wait()
        if self._end:
            raise self._end

    async def _to(self, *members: PublishTarget) -> None:
        await self._connect(members)
        await self._transaction(self._prove)

    async def _connect(self, members: Sequence[PublishTarget]) -> None:
        """Form a transfer group of these engines, unless it is there: the learner is rank 0, the engines' workers
        follow in order."""
        if self._group == tuple(members):
            return
        self._group = ()
        size = 1 + sum(target.transfer_ranks for target in members)
        rendezvous = await self._ask_learner("connect", self._source.rendezvous(size))
        joining: dict[str, Coroutine[Any, Any, Any]] = {LEARNER: self._source.connect(rendezvous)}
        first_rank = 1
        for target in members:
            joining[target.name] = target.connect(rendezvous, first_rank)
            first_rank += target.transfer_ranks
        await self._phase("connect", joining)
        self._group = tuple(members)

    async def _transaction(self, prove: Callable[[Compared], Coroutine[Any, Any, None]]) -> None:
        manifest = await self._ask_learner("prepare", self._source.manifest())
        loads = await self._all("prepare", lambda target: target.prepare(manifest))
        for name, load in loads.items():
            if load:
                record_span("engine", time.monotonic() - self._resumed_at, engine=name, **load)
        moving = {target.name: target.receive(manifest) for target in self._group}
        scoring: list[asyncio.Future[dict[str, LearnerScores]]] = []
        try:
            spent = await self._phase("receive", {**moving, LEARNER: self._sent(scoring)})
            for name, seconds in ((name, each) for member in spent.values() for name, each in member.items()):
                record_span(f"weight_sync/{name}", seconds)
            await self._committed(scoring, prove)
        finally:
            _abandon(scoring)

    async def _committed(
        self,
        scoring: Sequence[asyncio.Future[dict[str, LearnerScores]]],
        prove: Callable[[Compared], Coroutine[Any, Any, None]],
    ) -> None:
        """Finish a transaction, when every engine has the weights."""
        version = self._source.version
        await self._all("commit", lambda target: target.commit(version))
        await prove(await self._compared(scoring))
        await self._all("resume", lambda target: target.resume())
        self._resumed_at = time.monotonic()

    async def _prove(self, compared: Compared) -> None:
        start = self._start or Start(learner=dict(compared.learner), engines=dict(compared.engines))
        if not compared.current and _faults(compared, start):
            self._measure(await self._ask_learner("canary", self._scored_by_policy(with_rounding=True)))
            compared = compared._replace(limits=self._limits(), current=True)
        self._refuse(_faults(compared, start))
        if self._start is None:
            await self._prove_at_length()
        self._start = start
        self.logprob_difference = _largest_difference(compared)

    async def _prove_followed(self, compared: Compared) -> None:
        # The measurement was of the perturbed weights.
        faults = {}
        for (name, policy), engine in compared.engines.items():
            limits = compared.limits[policy]
            limits = limits.times(VERIFY_FACTOR) if self._canary.limits else limits
            if fault := disagreement(engine, compared.learner[name, policy], limits):
                faults[name, policy] = f"it does not follow perturbed weights: {fault}"
        self._refuse(faults)

    async def _prove_at_length(self) -> None:
        """Engines reply to a prompt that fills the context, and the learner reads the replies."""
        prompt, tokens = self._canary.long_prompt, self._canary.reply_tokens
        faults = {}
        for policy in self._source.policies:
            extending = {target.name: target.extend(prompt, tokens, policy) for target in self._holding(policy)}
            replies = await self._phase("canary", extending) if extending else {}
            for name, reply in replies.items():
                whole = np.concatenate([prompt, reply.token_ids])
                scores = self._scored(whole, reply.routing, policy, with_rounding=True)
                learner = await self._ask_learner("canary", scores)
                limits = self._canary.limits or measured(learner.rounding[-tokens:])
                if fault := disagreement([reply.behaviour_logprobs], [learner.logprobs[-tokens:]], limits):
                    faults[name, policy] = f"at the end of a context of {len(whole)} tokens {fault}: {AT_LENGTH}"
        self._refuse(faults)

    def _refuse(self, faults: Mapping[tuple[str, str], str]) -> None:
        """Raise for engines with these faults, of a policy each. If every engine has one, it is not theirs."""
        if faults:
            names = list(dict.fromkeys(name for name, _ in faults))
            lost = names if len(names) < len(self._group) else ()
            told = (f"policy {policy}: {fault}" if policy else fault for (_, policy), fault in faults.items())
            words = "; ".join(dict.fromkeys(told))
            raise WeightSyncError(", ".join(names), "canary", self._source.version, words, lost)

    async def _sent(self, scoring: list[asyncio.Future[dict[str, LearnerScores]]]) -> Seconds:
        """Send the weights, and begin to answer the canary while the engines still reload, unless the answer depends on
        the experts that they choose."""
        spent = await self._source.send()
        if self._routed is False:
            scores = self._scored_by_policy(self._asked, with_rounding=self._whole)
            scoring.append(asyncio.ensure_future(scores))
        return spent

    async def _compared(self, scoring: Sequence[asyncio.Future[dict[str, LearnerScores]]]) -> Compared:
        """Return the canary on both sides; the learner may have begun."""
        tokens, images = self._sequences(self._asked), self._canary.images
        learner, engines = dict[tuple[str, str], NDArray[np.float32]](), dict[tuple[str, str], NDArray[np.float32]]()
        for policy in self._source.policies:
            asking: dict[str, Coroutine[Any, Any, Any]] = {
                target.name: target.token_logprobs(tokens, policy, images) for target in self._holding(policy)
            }
            if scoring:
                asking[LEARNER] = _result(scoring[0])
            if not asking:  # no engine here holds it
                continue
            answered = await self._phase("canary", asking)
            known: LearnerScores | None = answered.pop(LEARNER, {}).get(policy)
            self._routed = any(engine.routing is not None for engine in answered.values())
            for place, (name, engine) in enumerate(answered.items()):
                if self._routed or known is None:
                    scores = self._scored(tokens, engine.routing, policy, images, with_rounding=self._whole)
                    known = await self._ask_learner("canary", scores)
                if place == 0:
                    self._measure({policy: known})
                learner[name, policy], engines[name, policy] = known.logprobs, engine.logprobs
        return Compared(
            asked=self._asked,
            learner=learner,
            engines=engines,
            limits=self._limits(),
            current=self._canary.limits is not None or self._whole,
        )

    async def _scored_by_policy(
        self, places: Sequence[int] | None = None, *, with_rounding: bool
    ) -> dict[str, LearnerScores]:
        tokens = self._sequences(places)
        return {
            policy: await self._scored(tokens, None, policy, self._canary.images, with_rounding=with_rounding)
            for policy in self._source.policies
        }

    async def _scored(
        self,
        tokens: NDArray[np.int32],
        routing: Routing | None,
        policy: str,
        images: Sequence[PlacedImage] = (),
        *,
        with_rounding: bool,
    ) -> LearnerScores:
        asks = with_rounding and self._canary.limits is None
        with span("weight_sync/learner_canary"):
            logprobs = await self._source.token_logprobs(tokens, routing, policy, images)
            rounded = await self._source.rounded_logprobs(tokens, routing, policy, images) if asks else None
            return LearnerScores(logprobs, rounded)

    def _holding(self, policy: str) -> list[PublishTarget]:
        return [target for target in self._group if policy in target.policies]

    @property
    def _whole(self) -> bool:
        """Whether this weight sync asks for all sequences, and measures what rounding does to them. The version decides
        this, so a resumed run does the same."""
        return not self._proved or self._source.version % WHOLE_EVERY == 0

    @property
    def _asked(self) -> list[int]:
        count = len(self._canary.sequences)
        return list(range(count)) if self._whole else few(count, self._source.version)

    def _sequences(self, places: Sequence[int] | None = None) -> NDArray[np.int32]:
        """Return the canary's sequences at these places, or all, `[R, T]`."""
        return np.stack(self._canary.sequences)[... if places is None else places]

    def _measure(self, scores: Mapping[str, LearnerScores]) -> None:
        self._rounding |= {policy: own.rounding for policy, own in scores.items() if own.rounded is not None}

    def _limits(self) -> dict[str, LogprobTolerance]:
        """Return the fixed limits, or those of what rounding did to each policy when it was last measured."""
        return {
            policy: self._canary.limits or measured(self._rounding[policy], few=not self._whole)
            for policy in self._source.policies
            if self._canary.limits or policy in self._rounding  # else no engine here holds it
        }

    async def _ask_learner(self, phase: str, call: Coroutine[Any, Any, Any]) -> Any:
        return (await self._phase(phase, {LEARNER: call}))[LEARNER]

    async def _all(self, phase: str, call: Callable[[PublishTarget], Coroutine[Any, Any, Any]]) -> dict[str, Any]:
        return await self._phase(phase, {target.name: call(target) for target in self._group})

    async def _phase(self, phase: str, calls: Mapping[str, Coroutine[Any, Any, Any]]) -> dict[str, Any]:
        with span(f"weight_sync/{'transfer' if phase == 'receive' else phase}"):
            return await self._together(phase, calls)

    async def _together(self, phase: str, calls: Mapping[str, Coroutine[Any, Any, Any]]) -> dict[str, Any]:
        """Run the calls concurrently; return their answers by name. The first failure or the deadline ends the phase:
        calls in progress are cancelled and not awaited, because the failed one may block them."""
        tasks = {name: asyncio.ensure_future(call) for name, call in calls.items()}
        try:
            done, pending = await asyncio.wait(
                tasks.values(), timeout=self._seconds, return_when=asyncio.FIRST_EXCEPTION
            )
            if pending and any(_fault(task) for task in done):
                giving_up = asyncio.ensure_future(self._source.give_up())
                await asyncio.wait({giving_up, *pending}, timeout=min(GRACE_SECONDS, self._seconds))
                _abandon([giving_up])
        finally:
            _abandon(tasks.values())
        causes = {name: cause for name, task in tasks.items() if (cause := _fault(task))}
        silent = [name for name, task in tasks.items() if not task.done()]
        for refused in causes.values():
            if isinstance(refused, UserError):
                raise refused
        if causes or silent:
            raise self._error(phase, causes, silent)
        return {name: task.result() for name, task in tasks.items()}

    def _error(self, phase: str, causes: Mapping[str, BaseException], silent: Sequence[str]) -> WeightSyncError:
        """Blame a dead member first, then a failed one, then a silent one; and engines before the learner, which waits
        for them."""
        died = [name for name, cause in causes.items() if isinstance(cause, WorkerDied)]
        blamed = _engines_first(died) or _engines_first(causes) or _engines_first(silent)
        reasons = "; ".join(_describe(causes[name]) for name in blamed if name in causes)
        lost = [name for name in blamed if name != LEARNER and not isinstance(causes.get(name), TransferError)]
        if isinstance(causes.get(LEARNER), WorkerDied):
            lost = []
        reasons = reasons or f"no answer within {self._seconds:g} s"
        error = WeightSyncError(", ".join(blamed), phase, self._source.version, reasons, lost)
        error.__cause__ = causes.get(blamed[0])
        return error


async def _result(begun: asyncio.Future[dict[str, LearnerScores]]) -> dict[str, LearnerScores]:
    return await begun


def _largest_difference(compared: Compared) -> float:
    differences = [difference(engine, compared.learner[name]) for name, engine in compared.engines.items()]
    return max(differences, default=0.0)


def _faults(compared: Compared, start: Start) -> dict[tuple[str, str], str]:
    """Return the fault of each engine and policy that has one: it did not follow the learner, or it differs from it. An
    engine that joined later started with the weights of the others."""
    faults = {}
    for (name, policy), engine in compared.engines.items():
        learner, limits, places = compared.learner[name, policy], compared.limits[policy], compared.asked
        first = next((one for one in start.engines if one[1] == policy), None)
        stale, known = None, (name, policy) if (name, policy) in start.engines else first
        if known:
            began, learner_began = start.engines[known][places], start.learner[known][places]
            stale = staleness(engine, began, learner, learner_began, limits)
        if fault := stale or disagreement(engine, learner, limits):
            faults[name, policy] = fault
    return faults


def _engines_first(names: Iterable[str]) -> list[str]:
    """Return the engines among `names`; the learner only where it is alone."""
    listed = list(names)
    return [name for name in listed if name != LEARNER] or listed


def _fault(task: asyncio.Future[Any]) -> BaseException | None:
    if not task.done():
        return None
    return asyncio.CancelledError("cancelled") if task.cancelled() else task.exception()


def _describe(cause: BaseException) -> str:
    return str(cause) or type(cause).__name__


def _abandon(tasks: Iterable[asyncio.Future[Any]]) -> None:
    for task in tasks:
        if not task.done():
            task.cancel()
            # Retrieve the exception, so that asyncio does not warn.
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
