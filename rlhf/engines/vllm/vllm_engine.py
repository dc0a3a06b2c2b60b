"""vLLM's engine in this process, stepped manually. Only one thread uses it; see `rlhf.engines.vllm.thread`."""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
import vllm
from numpy.typing import NDArray
from transformers import PreTrainedConfig
from vllm import SamplingParams
from vllm.exceptions import VLLMValidationError
from vllm.inputs.engine import tokens_input
from vllm.model_executor.models import ModelRegistry
from vllm.model_executor.models.interfaces import has_inner_state, is_hybrid
from vllm.sampling_params import StructuredOutputsParams
from vllm.transformers_utils.config import get_config
from vllm.v1.core.sched.request_queue import create_request_queue
from vllm.v1.engine import FinishReason as Ended
from vllm.v1.engine.detokenizer import IncrementalDetokenizer
from vllm.v1.engine.llm_engine import LLMEngine
from vllm.v1.executor import Executor

from rlhf.engines.vllm.engine_arguments import ModelKind, engine_args, usage_context
from rlhf.engines.vllm.engine_images import EngineImages
from rlhf.engines.vllm.load import LoadCounter
from rlhf.engines.vllm.process import same_preloads, shared_segments, without_collecting, without_unused
from rlhf.engines.vllm.resumed_draws import SAMPLED, skip_draws
from rlhf.engines.vllm.routing import RoutingRecord
from rlhf.engines.vllm.sampled import SampledReply
from rlhf.engines.vllm.settings import (
    UNPUBLISHED,
    EngineFacts,
    EngineSettings,
    GenerateRequest,
    RefusedRequest,
    requests_have_seeds,
)
from rlhf.engines.vllm.sleeping import Sleeper
from rlhf.errors import DeadlinePassed, ModelError, TransferError
from rlhf.images import ImageFeatures, PlacedImage
from rlhf.types import Completion, FinishReason, PolicyVersion, SampledTokens, TokenLogprobs
from rlhf.weight_sync.lora import adapter_requests, unknown_and_missing
from rlhf.weight_sync.rehearsal import rehearse
from rlhf.weight_sync.types import Load, Manifest, Rendezvous, Seconds
from rlhf.weight_sync.vllm_internals import keep_process_group, uncompiled_classes

PROGRESS_SECONDS = 1.0
"""How often an engine returns the tokens of unfinished replies, which would be lost if it died."""
NAMED = 3
"""Maximum number of tensors that an error names, of each kind."""

SCORING = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, detokenize=False)
CANNOT_HOLD = f"vllm {vllm.__version__} cannot hold a reply to this"
REASONS = {Ended.STOP: FinishReason.STOP, Ended.LENGTH: FinishReason.LENGTH}


class VllmEngine:
    """Continues token ids, computes their log-probs, and receives new weights.

    While it is paused nothing is sampled: requests keep their tokens, their random state and their position. Only
    log-prob requests run then, alone: the canary between commit and resume uses them.
    """

    def __init__(self, settings: EngineSettings) -> None:
        self._settings = settings
        self._owns_process_group = not torch.distributed.is_initialized()
        with uncompiled_classes() if settings.device == "cpu" else nullcontext(), without_unused():
            if settings.rollout.structured_outputs:  # vLLM imports all backends of grammars with the first one
                importlib.import_module("vllm.v1.structured_output.backend_lm_format_enforcer")
            config = get_config(settings.model_path, trust_remote_code=settings.model.trust_remote_code)
            kind = ModelKind(
                latent_attention="kv_lora_rank" in config.get_text_config(),
                carries_state=any(has_inner_state(one) or is_hybrid(one) for one in _classes_of(config, settings)),
            )
            arguments, context = engine_args(settings, kind), usage_context(settings)
            with same_preloads():
                engine_config = arguments.create_engine_config(context)
            executor, log_stats = Executor.get_class(engine_config), not arguments.disable_log_stats
            self._engine = LLMEngine(engine_config, executor, log_stats=log_stats, usage_context=context)
        self._engine.set_weight_version(str(UNPUBLISHED))
        self._tasks = self._engine.get_supported_tasks()
        self._unfinished: dict[str, SampledReply] = {}
        self._finished: dict[str, tuple[SampledReply, Ended]] = {}
        self._paused = False
        self._sleeper = Sleeper(
            self._engine,
            keeps_base=settings.model.lora is not None or settings.model.tower == "frozen",  # which no sync sends
            on_cpu=settings.device == "cpu",
        )
        self._adapters = adapter_requests(settings.policies, settings.adapters) if settings.model.lora else {}
        if self._adapters and not settings.adapters:
            self._engine.collective_rpc("serve_zero_adapters", args=(tuple(self._adapters),))
        self._images = _images(self._engine) if settings.model.tower else None
        self._acknowledged: Manifest | None = None
        self._counter = LoadCounter()
        self._routing: RoutingRecord | None = None
        if settings.records_routing and settings.device == "cpu":
            (self._routing,) = self._engine.collective_rpc(RoutingRecord)  # in its worker, which is in this process
        if settings.device == "cpu":
            self._engine.collective_rpc(skip_draws)
        self._reported_at = time.monotonic()
        runner = 2 if self._engine.vllm_config.use_v2_model_runner else 1
        self._seeded = requests_have_seeds(settings, model_runner=runner)
        self._continues_draws = settings.device == "cpu" or runner == 2  # runner 2 draws by the position of a token

    @property
    def facts(self) -> EngineFacts:
        model, scheduler = self._engine.model_config, self._engine.vllm_config.scheduler_config
        return EngineFacts(
            max_context_tokens=model.max_model_len,
            vocab_size=model.get_vocab_size(),
            vllm_version=vllm.__version__,
            seconds=0,
            max_sequences=scheduler.max_num_seqs,
        )

    @property
    def busy(self) -> bool:
        """Whether there is work: replies to return, or unfinished requests while the engine is not paused."""
        working = bool(self._unfinished or self._core.batch_queue)
        return bool(self._finished) or (not self._paused and working)

    def show(self, images: Sequence[ImageFeatures], forgotten: Sequence[str]) -> None:
        """Keep images for requests, and forget others."""
        if self._images:
            self._images.forget(forgotten)
            self._images.keep(images)

    def add(self, request: GenerateRequest) -> None:
        """Begin a reply. Raises `ModelError` for a structure that vLLM cannot hold it to, and for images that it would
        not see as the learner does."""
        if request.sampled and not self._continues_draws:  # the same draws would favour the tokens they produced
            request = request._replace(seed=request.seed + request.sampled)
        params = sampling_params(request, self._settings, seeded=self._seeded)
        try:
            images = [self._images.place(*one) for one in request.images] if self._images else []
            if self._images:
                self._images.check_all_given(request.token_ids, images)
            reply = self._add(request.id, request.token_ids, params, request.policy, images)
        except VLLMValidationError as error:
            if not (request.structure or request.images):
                raise
            refused = CANNOT_HOLD if request.structure else "vLLM refuses the images of a prompt"
            raise ModelError(f"{refused}: {' '.join(str(error).split())}") from error
        if request.sampled and reply.detokenizer:  # a stop text may have begun in tokens sampled elsewhere
            detokenizer: Any = reply.detokenizer
            detokenizer.output_text = self._engine.get_tokenizer().decode(
                request.token_ids[-request.sampled :].tolist()
            )

    def abort(self, ids: list[str]) -> None:
        """Drop requests; ended ones are not affected."""
        self._engine.engine_core.abort_requests([one for one in ids if self._unfinished.pop(one, None)])

    def cut_off(self, ids: list[str]) -> dict[str, Completion | RefusedRequest]:
        """End requests now, and return the tokens sampled so far; nothing for requests that have ended."""
        found = {request_id: self._unfinished[request_id] for request_id in ids if request_id in self._unfinished}
        running = {request.request_id for request in self._core.scheduler.running}  # in the cache, not preempted
        for request_id, reply in found.items():
            if request_id in running:
                self._attach_routing(request_id, reply)
        self.abort(ids)
        replies = {request_id: reply.completion(FinishReason.TIME) for request_id, reply in found.items()}
        return {request_id: self._told_apart(reply) for request_id, reply in replies.items()}

    def step(self) -> dict[str, Completion | SampledTokens | RefusedRequest]:
        """Run one step of the scheduler and the model; returns the replies that ended since the last step, by request,
        and from time to time the new tokens of the others."""
        if not self._paused:
            self._step()
        finished, self._finished = self._finished, {}
        replies = {request_id: completion_of(request_id, *reply) for request_id, reply in finished.items()}
        return {**{request_id: self._told_apart(reply) for request_id, reply in replies.items()}, **self._progress()}

    def token_logprobs(
        self,
        token_ids: NDArray[np.int32],
        policy: str = "",
        images: Sequence[PlacedImage] = (),
        *,
        timeout_seconds: float,
    ) -> TokenLogprobs:
        """Return log-probs of given tokens at temperature 1, or of rows of them, each with the same images, recomputed,
        never from a cache."""
        rows = list(token_ids.reshape(-1, token_ids.shape[-1]))
        self.show([placed.features for placed in images], ())
        with self._alone() if self._paused else nullcontext():
            replies = self._run_to_end("token_logprobs", rows, SCORING, policy, timeout_seconds, images)
        return _scored(list(replies.values()), token_ids.shape[:-1])

    def extend(self, request: GenerateRequest, *, timeout_seconds: float) -> Completion:
        """Return a reply of exactly its token budget, sampled alone while the engine is paused.

        It leaves the process's random state unchanged: a learner in the same process shares that state, and a resumed
        run makes one more such call than an uninterrupted one.
        """
        with self._alone() if self._paused else nullcontext(), torch.random.fork_rng(devices=[]):
            endless = sampling_params(request, replace(self._settings, stop_token_ids=(), stop=()))
            replies = self._run_to_end("extend", [request.token_ids], endless, request.policy, timeout_seconds)
            ((_, reply),) = replies.items()
            return reply.completion(FinishReason.LENGTH)

    def prepare(self, manifest: Manifest) -> Load:
        """Stop sampling and drop all keys and values; requests keep their position. Returns the load since the last
        call.

        Raises `ModelError` where the manifest would leave a parameter unchanged, or has tensors that match no
        parameter.
        """
        self._sleeper.wake("weights")
        if self._settings.weight_transfer and manifest != self._acknowledged:
            self._acknowledge(manifest)
        self._pause()
        counter, self._counter = self._counter, LoadCounter()
        return counter.load

    def sleep(self) -> None:
        """Stop sampling and release the memory of weights and KV cache; a weight sync reallocates it."""
        self._pause()
        self._sleeper.sleep()

    def _pause(self) -> None:
        if not self._paused:
            self._stand_still()
            self._paused = True

    def _stand_still(self) -> None:
        """Schedule nothing more, finish the steps in flight, and drop all keys and values.

        With asynchronous scheduling a step is in flight between two calls. vLLM drops what it samples where requests
        are preempted; finished first, its tokens are kept, with the version of the weights that sampled them.
        """
        self._engine.sleep(level=0, mode="keep")
        while self._core.batch_queue:
            self._step()
        self._engine.reset_prefix_cache(reset_running_requests=True)

    def resume(self) -> None:
        if self._paused:
            self._engine.wake_up(tags=["scheduling"])
            self._paused = False

    def connect(self, rendezvous: Rendezvous, first_rank: int) -> None:
        _unless_failed(self._engine.collective_rpc("join_transfer", args=(rendezvous, first_rank)))

    def receive(self, manifest: Manifest) -> Seconds:
        """Receive all tensors of one weight sync, then activate adapters. Returns the slowest worker's seconds by
        part."""
        spent: list[Seconds] = _unless_failed(
            self._engine.collective_rpc("receive_update", args=(manifest, tuple(self._adapters)))
        )
        return {name: max(one.get(name, 0.0) for one in spent) for name in spent[0]}

    def commit(self, version: PolicyVersion) -> None:
        """Stamp tokens from here on with `version`; nothing computed with older weights is reused."""
        self._sleeper.wake("kv_cache")
        self._engine.reset_prefix_cache(reset_running_requests=True)
        if self._settings.model.tower == "trained":
            self._engine.reset_encoder_cache()
        self._engine.set_weight_version(str(version))

    def close(self) -> None:
        """Free the model. A process group that existed before the engine is kept: vLLM would destroy it."""
        segments = shared_segments(self._child_pids)
        if self._owns_process_group:
            on_cpu = self._settings.device == "cpu"  # a GPU's memory must be freed at once
            with without_collecting() if on_cpu else nullcontext():
                self._engine.engine_core.shutdown()
        else:
            keep_process_group(self._engine.engine_core)
        for segment in segments:
            segment.unlink(missing_ok=True)

    def _progress(self) -> dict[str, SampledTokens]:
        """Return the new tokens of unfinished replies, by request; often none."""
        now = time.monotonic()
        if now - self._reported_at < PROGRESS_SECONDS:
            return {}
        self._reported_at = now
        progress = {request_id: reply.progress() for request_id, reply in self._unfinished.items()}
        return {request_id: tokens for request_id, tokens in progress.items() if tokens}

    @property
    def _core(self) -> Any:
        """vLLM's engine core, which runs in this process."""
        client: Any = self._engine.engine_core
        return client.engine_core

    @property
    def _child_pids(self) -> list[int]:
        """Processes that vLLM started, one per tensor-parallel rank; none with a single rank."""
        if self._settings.tensor_parallel_size == 1:
            return []
        executor: Any = self._engine.model_executor
        return [worker.proc.pid for worker in executor.workers]

    def _acknowledge(self, manifest: Manifest) -> None:
        compare = partial(unknown_and_missing, policies=tuple(self._adapters)) if self._adapters else rehearse
        unknown, missing = self._engine.apply_model(partial(compare, manifest=manifest))[0]
        if unknown or missing:
            faults = {"it has no parameter for": unknown, "no tensor fills": missing}
            raise ModelError(" and ".join(f"{fault} {names[:NAMED]}" for fault, names in faults.items() if names))
        self._acknowledged = manifest

    def _add(
        self,
        request_id: str,
        token_ids: NDArray[np.int32],
        params: SamplingParams,
        policy: str,
        images: Sequence[PlacedImage] = (),
    ) -> SampledReply:
        # Never without an adapter beside requests with one: on a CPU vLLM would serve it with some policy's.
        adapter = self._adapters[policy] if self._adapters else None
        shown = self._images.prompt(token_ids, images) if self._images and images else None
        request = self._engine.input_processor.process_inputs(
            request_id, shown or tokens_input(token_ids.tolist()), params, self._tasks, lora_request=adapter
        )
        tokenizer = self._engine.get_tokenizer() if params.stop else None
        detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, request) if tokenizer else None
        reply = self._unfinished[request_id] = SampledReply(
            prompt_tokens=len(token_ids), detokenizer=detokenizer, constrained=params.structured_outputs is not None
        )
        self._engine.engine_core.add_request(request)
        return reply

    def _step(self) -> None:
        outputs = self._engine.engine_core.get_output()
        version = int(outputs.weight_version or UNPUBLISHED)
        for output in outputs.outputs:
            reply = self._unfinished.get(output.request_id)
            if reply and (ended := reply.extend(output, version)) is not None:
                self._end(output.request_id, reply, ended)
                if not output.finished:  # ended by a stop text
                    self._engine.engine_core.abort_requests([output.request_id])
        scheduler = self._core.scheduler
        self._counter.step(len(scheduler.running), len(scheduler.waiting), scheduler.kv_cache_manager.usage)

    def _told_apart(self, reply: Completion | RefusedRequest) -> Completion | RefusedRequest:
        """Refuse a reply in which the policy sampled the token of an image."""
        if self._images and isinstance(reply, Completion) and self._images.has_sampled_one(reply.token_ids.tolist()):
            return RefusedRequest("the policy sampled the token in whose place a model sees an image")
        return reply

    def _end(self, request_id: str, reply: SampledReply, ended: Ended) -> None:
        del self._unfinished[request_id]
        self._attach_routing(request_id, reply)
        self._finished[request_id] = reply, ended
        self._counter.prompt(reply.prompt_tokens, reply.cached_tokens)

    def _attach_routing(self, request_id: str, reply: SampledReply) -> None:
        """Attach the experts of a reply where vLLM does not report them. Its cache slots are reserved until the next
        step."""
        if self._routing:
            reply.experts = [self._routing.of(request_id, reply.prompt_tokens + len(reply.token_ids) - 1)]

    def _run_to_end(
        self,
        name: str,
        prompts: Sequence[NDArray[np.int32]],
        params: SamplingParams,
        policy: str,
        timeout_seconds: float,
        images: Sequence[PlacedImage] = (),
    ) -> dict[str, SampledReply]:
        """Return the replies to these prompts, in order; they run together."""
        ids = [f"{name}-{time.monotonic_ns()}-{number}" for number in range(len(prompts))]
        for request_id, prompt in zip(ids, prompts, strict=True):
            self._add(request_id, prompt, params, policy, images)
        deadline = time.monotonic() + timeout_seconds
        while not all(request_id in self._finished for request_id in ids):
            if time.monotonic() > deadline:
                self.abort(ids)
                raise DeadlinePassed(name, timeout_seconds)
            self._step()
        return {request_id: self._finished.pop(request_id)[0] for request_id in ids}

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Let the scheduler run while waiting requests are hidden from it. vLLM has no call for this. All requests are
        in `waiting`, since `pause` moved running ones back to it."""
        scheduler = self._core.scheduler
        held, scheduler.waiting = scheduler.waiting, create_request_queue(scheduler.policy)
        self._engine.wake_up(tags=["scheduling"])
        try:
            yield
        finally:
            self._stand_still()
            scheduler.waiting = held


def sampling_params(request: GenerateRequest, settings: EngineSettings, *, seeded: bool = True) -> SamplingParams:
    """Return the full distribution at its temperature; only the settings' stop conditions and the token budget end a
    reply."""
    return SamplingParams(
        temperature=request.temperature,
        max_tokens=request.max_tokens,
        seed=request.seed if seeded else None,
        stop_token_ids=list(settings.stop_token_ids),
        stop=list(settings.stop),
        include_stop_str_in_output=True,
        ignore_eos=True,
        logprobs=0,
        detokenize=bool(settings.stop),
        extra_args={SAMPLED: request.sampled} if request.sampled else None,
        structured_outputs=StructuredOutputsParams(**json.loads(request.structure)) if request.structure else None,
    )


def completion_of(request_id: str, reply: SampledReply, ended: Ended) -> Completion | RefusedRequest:
    """Return a reply that has ended, or a refusal where vLLM failed it alone: it could not compile the grammar. Raises
    `RuntimeError` for an end without a known reason."""
    if ended is Ended.ERROR and reply.constrained:
        return RefusedRequest(CANNOT_HOLD)
    if ended not in REASONS:
        raise RuntimeError(f"vLLM ended request {request_id} with {str(ended)!r}")
    return reply.completion(REASONS[ended])


def _scored(replies: Sequence[SampledReply], shape: tuple[int, ...]) -> TokenLogprobs:
    """Return log-probs of prompts of one length, and the experts of their tokens, with the leading dimensions
    `shape`."""
    logprobs = np.stack([np.concatenate(reply.prompt_logprobs) for reply in replies])
    known = [experts for reply in replies if (experts := reply.routing) is not None]
    return TokenLogprobs(
        logprobs.reshape(*shape, -1), np.stack(known).reshape(*shape, *known[0].shape) if known else None
    )


def _images(engine: LLMEngine) -> EngineImages:
    processor, config = engine.input_processor.renderer.get_mm_processor(), engine.model_config.hf_config
    return EngineImages(processor, config.image_token_id)


def _unless_failed(answers: list[Any]) -> list[Any]:
    """Return the answers of an engine's workers. Raises `TransferError` if one of them is the text of one."""
    for text in (answer for answer in answers if isinstance(answer, str)):
        raise TransferError(text)
    return answers


def _classes_of(config: PreTrainedConfig, settings: EngineSettings) -> list[type]:
    """Import vLLM's classes of the model here. Otherwise vLLM starts a Python process to inspect it: 10 s on a machine
    without a cached result."""
    if settings.device != "cpu":
        return []
    known = {name: ModelRegistry.models[name] for name in config.architectures or () if name in ModelRegistry.models}
    classes = {name: lazy.load_model_cls() for name, lazy in known.items()}
    for name, found in classes.items():
        ModelRegistry.register_model(name, found)
    return list(classes.values())
