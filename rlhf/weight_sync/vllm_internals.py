"""Names that vLLM does not promise to keep: a new vLLM breaks this page."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from vllm.model_executor.model_loader.reload.layerwise import (
    _get_original_loader,
    _place_kernel_tensors,
    get_layerwise_info,
)
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs

original_loader = _get_original_loader


def give_up_reload(model: nn.Module) -> None:
    """End vLLM's reload in its middle: unfinished layers get back their memory, so that another reload can start."""
    for layer in model.modules():
        info = get_layerwise_info(layer)
        if info.kernel_tensors is not None:
            _place_kernel_tensors(layer, info)
        info.reset()  # type: ignore[no-untyped-call]


def adapter_manager(model_runner: Any) -> Any:
    """Return what serves a worker's adapters."""
    return model_runner.lora_manager._adapter_manager


def after_scheduling(model_runner: Any, do: Callable[[Any], None]) -> None:
    """Have a worker also `do` something with what was scheduled for a step, once it knows the new requests."""
    update_states = model_runner._update_states

    def updated(scheduled: Any) -> Any:
        answer = update_states(scheduled)
        do(scheduled)
        return answer

    model_runner._update_states = updated


def ready_image(processor: Any, inputs: ProcessorInputs) -> tuple[Any, Any]:
    """Return one image as vLLM's model gets it, and what takes the place of its mark."""
    found = processor._apply_hf_processor(inputs, TimingContext(enabled=False))
    return found.kwargs["image"][0], found.prompt_updates["image"][0]


def with_image_tokens(processor: Any, token_ids: list[int], updates: list[Any]) -> tuple[list[int], Any]:
    """Return the tokens with those of images in place of their marks, and the places."""
    found, places = processor._apply_prompt_updates(token_ids, {"image": updates})
    return found, [place.to_range() for place in places.get("image", ())]


def keep_process_group(core: Any) -> None:
    """Prevent the shutdown of an engine core, process group included, when the process ends."""
    core._finalizer.detach()


@contextmanager
def uncompiled_classes() -> Iterator[None]:
    """Keep model classes uncompiled on a CPU. vLLM changes the class of models that run transformers' own code for its
    compiler, which would affect every other model of that class in this process."""
    from vllm.model_executor.models.transformers.base import Base

    decorate = Base._decorate_cls_for_torch_compile
    Base._decorate_cls_for_torch_compile = lambda *arguments, **named: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        Base._decorate_cls_for_torch_compile = decorate  # type: ignore[method-assign]
