"""A vLLM engine as a worker: plain types in and out, callable from any thread; one internal thread runs the engine."""

from __future__ import annotations

import importlib
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from rlhf.engines.vllm.environment import installed_version
from rlhf.engines.vllm.settings import EngineFacts, EngineSettings, GenerateRequest, RefusedRequest
from rlhf.engines.vllm.thread import EngineThread
from rlhf.errors import DeadlinePassed, EngineBroken, ModelError, Raised, TransferError, catch
from rlhf.images import ImageFeatures, PlacedImage
from rlhf.models.failures import OF_CODE, cause_of, naming_model
from rlhf.models.model_files import family_of
from rlhf.types import Completion, PolicyVersion, SampledTokens, TokenLogprobs
from rlhf.weight_sync.types import Load, Manifest, Rendezvous, Seconds

if TYPE_CHECKING:
    from rlhf.engines.vllm.vllm_engine import VllmEngine

T = TypeVar("T")
Delivered = Completion | SampledTokens | RefusedRequest

COLDEST = 0.01
"""vLLM raises lower temperatures to this value: its log-probs would differ from the learner's."""


class EngineWorker:
    """Runs in a Ray actor or in this process.

    `submit` takes a batch and returns at once; `collect` waits for replies that have ended since. A weight sync is
    `connect` where the members have changed, then `prepare`, `receive`, `commit`, (`token_logprobs`,) `resume`. When a
    step or a phase fails or exceeds its deadline, the engine is broken: every request in flight is refused, and every
    later call raises `EngineBroken`. An engine whose peers failed in a transfer (`TransferError`) is not broken: it
    waits for another weight sync.
    """

    def __init__(self, name: str, settings: EngineSettings) -> None:
        self.name, self.settings = name, settings
        self._seconds = settings.rollout.weight_sync_timeout_seconds
        self._thread = EngineThread(name, deliver=self._deliver, fail=self._fail_step)
        self._outbox: queue.SimpleQueue[tuple[str, Delivered]] = queue.SimpleQueue()
        self._in_flight: dict[str, float] = {}  # when each request was taken, in seconds since 1970
        self._cause = ""
        self._has_resumed = False

    def start(self) -> EngineFacts:
        """Import vllm and load the model. Raises `ModelError` where vLLM refuses it, or its settings."""
        began = time.monotonic()
        with naming_model(self._cannot("run")):
            self._thread.start(
                lambda: _build(self.settings), timeout_seconds=self.settings.rollout.start_timeout_seconds
            )
        facts = self._thread.run(lambda engine: engine.facts, awaited="facts", timeout_seconds=self._seconds)
        self.facts = facts._replace(seconds=time.monotonic() - began)
        return self.facts

    def submit(
        self, requests: Sequence[GenerateRequest], images: Sequence[ImageFeatures] = (), forgotten: Sequence[str] = ()
    ) -> None:
        """Accept requests, the images among theirs that are new here, and the hashes of those to forget. Requests that
        cannot be answered are returned by `collect` as `RefusedRequest`."""
        take = partial(self._take, requests=requests, images=images, forgotten=forgotten)
        self._thread.run(take, awaited="submit", timeout_seconds=self._seconds)

    async def beat(self) -> None:
        """Answer, whatever the engine's thread is doing, to show that this process runs."""

    def collect(self, timeout_seconds: float) -> list[tuple[str, Delivered]]:
        """Return all replies since the last call, each with its request, and the new tokens of unfinished ones. Waits
        at most `timeout_seconds` for the first."""
        try:
            replies = [self._outbox.get(timeout=timeout_seconds)]
        except queue.Empty:
            return []
        while not self._outbox.empty():
            replies.append(self._outbox.get())
        return replies

    def abort(self, ids: Sequence[str]) -> None:
        """Drop requests; `collect` will not return them."""
        self._thread.run(lambda engine: self._forget(engine, ids), awaited="abort", timeout_seconds=self._seconds)

    def cut_off(self, ids: Sequence[str]) -> None:
        """End requests now: `collect` returns the tokens sampled so far."""
        self._thread.run(lambda engine: self._cut_off(engine, ids), awaited="cut_off", timeout_seconds=self._seconds)

    def token_logprobs(
        self, token_ids: NDArray[np.int32], policy: str = "", images: Sequence[PlacedImage] = ()
    ) -> TokenLogprobs:
        """Return log-probs of given tokens `[T]`, or of rows of them `[R, T]`, each with the same `images`, at
        temperature 1, with a policy's current weights.

        Raises `ValueError` for tokens outside the model's vocabulary or context.
        """
        for row in token_ids.reshape(-1, token_ids.shape[-1]):
            request = GenerateRequest("token_logprobs", row, temperature=1, max_tokens=1, seed=0, policy=policy)
            if detail := why_refused(request, self.facts, self.settings.policies):
                raise ValueError(f"{self.name} cannot give log-probs: {detail}")
        return self._phase(
            "token_logprobs",
            lambda engine: engine.token_logprobs(token_ids, policy, images, timeout_seconds=self._seconds),
        )

    def extend(self, token_ids: NDArray[np.int32], tokens: int, policy: str = "") -> Completion:
        """Sample `tokens` more tokens after `token_ids`, at temperature 1 with a policy's current weights, while all
        other requests wait."""
        request = GenerateRequest("extend", token_ids, temperature=1, max_tokens=tokens, seed=0, policy=policy)
        completion = self._phase("extend", lambda engine: engine.extend(request, timeout_seconds=self._seconds))
        return replace(completion, engine=self.name)

    def connect(self, rendezvous: Rendezvous, first_rank: int) -> None:
        self._phase("connect", lambda engine: engine.connect(rendezvous, first_rank))

    def sleep(self) -> None:
        """Stop sampling, keep the requests, and release the memory of weights and KV cache until a weight sync."""
        self._phase("sleep", lambda engine: engine.sleep())

    def prepare(self, manifest: Manifest) -> Load:
        """Stop sampling, keep the requests, and check that these tensors will fill the whole model. Returns the load
        since the last call."""
        return self._phase("prepare", lambda engine: engine.prepare(manifest))

    def receive(self, manifest: Manifest) -> Seconds:
        """Receive the tensors while the learner sends them; returns the seconds of each part."""
        return self._phase("receive", lambda engine: engine.receive(manifest))

    def commit(self, version: PolicyVersion) -> None:
        self._phase("commit", lambda engine: engine.commit(version))

    def resume(self) -> None:
        self._phase("resume", lambda engine: engine.resume())
        self._has_resumed = True

    def close(self) -> None:
        """End the thread and free the model."""
        self._thread.stop(timeout_seconds=self._seconds)

    def _phase(self, name: str, do: Callable[[VllmEngine], T]) -> T:
        try:
            return self._thread.run(
                lambda engine: self._guarded(name, do, engine), awaited=name, timeout_seconds=self._seconds
            )
        except DeadlinePassed as error:
            self._break(str(error))
            raise

    def _guarded(self, name: str, do: Callable[[VllmEngine], T], engine: VllmEngine) -> T:
        if self._cause:
            raise EngineBroken(self.name, self._cause)
        done = catch(lambda: do(engine))
        if isinstance(done, Raised):
            if isinstance(done.error, TransferError):
                raise done.error
            self._break(f"{name} failed with {_one_line(done.error)}")
            if not self._has_resumed and isinstance(done.error, (ModelError, *OF_CODE)):
                raise ModelError(f"{self._cannot('receive new weights of')}: {cause_of(done.error)}") from done.error
            raise EngineBroken(self.name, self._cause) from done.error
        return done

    def _cannot(self, act: str) -> str:
        """Return a sentence that vLLM cannot do something with this model."""
        device = {"cpu": "a CPU", "cuda": "a GPU"}[self.settings.device]
        family = family_of(self.settings.model_path)
        return f"{self.name}: vllm {installed_version()} cannot {act} {family} on {device}"

    def _take(
        self,
        engine: VllmEngine,
        requests: Sequence[GenerateRequest],
        images: Sequence[ImageFeatures],
        forgotten: Sequence[str],
    ) -> None:
        engine.show(images, forgotten)
        for request in requests:
            detail = self._cause or why_refused(request, self.facts, self.settings.policies)
            if detail:
                self._outbox.put((request.id, RefusedRequest(detail, broken=bool(self._cause))))
                continue
            self._in_flight[request.id] = time.time()
            try:
                engine.add(request)
            except ModelError as error:
                del self._in_flight[request.id]
                self._outbox.put((request.id, RefusedRequest(str(error))))

    def _forget(self, engine: VllmEngine, ids: Sequence[str]) -> None:
        for request_id in ids:
            self._in_flight.pop(request_id, None)
        engine.abort(list(ids))

    def _cut_off(self, engine: VllmEngine, ids: Sequence[str]) -> None:
        self._deliver(engine.cut_off([request_id for request_id in ids if request_id in self._in_flight]))

    def _deliver(self, replies: Mapping[str, Completion | SampledTokens | RefusedRequest]) -> None:
        for request_id, reply in replies.items():
            if isinstance(reply, RefusedRequest):
                self._in_flight.pop(request_id, None)
            if isinstance(reply, Completion):
                now = time.time()
                began = self._in_flight.pop(request_id, now)
                reply = replace(reply, engine=self.name, began=began, seconds=now - began)
            self._outbox.put((request_id, reply))

    def _fail_step(self, error: BaseException) -> None:
        self._break(f"a step failed with {_one_line(error)}")

    def _break(self, cause: str) -> None:
        self._cause = self._cause or cause
        lost, self._in_flight = self._in_flight, {}
        for request_id in lost:
            self._outbox.put((request_id, RefusedRequest(self._cause, broken=True)))


def import_engine() -> None:
    """Import vllm: this takes most of an engine's start time."""
    from rlhf.engines.vllm.process import quieten_imports

    quieten_imports()
    importlib.import_module("rlhf.engines.vllm.vllm_engine")


def _build(settings: EngineSettings) -> VllmEngine:
    from rlhf.engines.vllm.process import undisturbed_process

    with undisturbed_process():
        import_engine()
        from rlhf.engines.vllm.vllm_engine import VllmEngine

        return VllmEngine(settings)


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"


def why_refused(request: GenerateRequest, facts: EngineFacts, policies: Sequence[str] = ("",)) -> str:
    """Return the reason to refuse this request, or ""."""
    length = len(request.token_ids)
    if length == 0:
        return "the prompt has no tokens"
    if length >= facts.max_context_tokens:
        return f"a prompt of {length} tokens leaves no room for a reply in a context of {facts.max_context_tokens}"
    if not (request.token_ids.min() >= 0 and request.token_ids.max() < facts.vocab_size):
        return f"a prompt token is outside the vocabulary of {facts.vocab_size}"
    if request.max_tokens < 1:
        return f"max_tokens is {request.max_tokens}; give at least 1"
    if request.temperature != 0 and request.temperature < COLDEST:
        return f"temperature is {request.temperature}; give 0 (greedy) or at least {COLDEST}"
    if request.policy not in policies:
        return f"the policy is {request.policy!r}; this engine has {', '.join(map(repr, policies))}"
    return ""
