"""A model that vLLM does not know is refused by its family's name. Other failures of a start keep their names."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub.errors import StrictDataclassClassValidationError

from rlhf.cluster.host import MethodFailure, WorkerHost
from rlhf.engines.vllm import engine_worker
from rlhf.engines.vllm.engine_worker import EngineWorker
from rlhf.engines.vllm.environment import installed_version
from rlhf.engines.vllm.settings import EngineFacts, EngineSettings
from rlhf.errors import DeadlinePassed, EngineBroken, ModelError
from tests.engines.vllm.made import made_settings

MISSING = AttributeError("'Lfm2Config' object has no attribute 'conv_dim'")
FACTS = EngineFacts(max_context_tokens=8, vocab_size=10, vllm_version="0", seconds=1, max_sequences=4)


class Unready:
    """An engine whose weight sync fails."""

    facts, busy = FACTS, False

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def prepare(self, manifest: object) -> None:
        raise self.error

    def resume(self) -> None: ...
    def close(self) -> None: ...


@pytest.fixture
def settings(tmp_path: Path) -> EngineSettings:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "lfm2"}))
    return made_settings(tmp_path, start_timeout_seconds=30)


def failing(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def build(settings: EngineSettings) -> None:
        raise error

    monkeypatch.setattr(engine_worker, "_build", build)


def refused(to: str, cause: str) -> str:
    return f"engine-0: vllm {installed_version()} cannot {to} lfm2 on a CPU: {cause}"


@pytest.mark.parametrize(
    "error",
    [
        MISSING,
        RuntimeError("sparse attention was requested, but no valid backend is available"),
        StrictDataclassClassValidationError("validate_layer_type", ValueError("hash_moe")),
        ValueError("max_model_len (100000) is greater than the derived max_model_len"),
    ],
)
def test_a_model_that_vllm_does_not_know_is_one_line_with_its_family(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings, error: Exception
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(ModelError) as raised:
        EngineWorker("engine-0", settings).start()
    assert str(raised.value) == refused("run", " ".join(f"{type(error).__name__}: {error}".split()))
    assert raised.value.exit_code == 2


@pytest.mark.parametrize(
    "error",
    [
        OSError(98, "Address already in use"),
        RuntimeError("Worker failed with error 'killed', please check the stack trace above for the root cause"),
        DeadlinePassed("engine-0.start", 30),
        SystemExit(1),
    ],
)
def test_a_start_that_fails_otherwise_keeps_its_name(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings, error: BaseException
) -> None:
    failing(monkeypatch, error)
    with pytest.raises(type(error)) as raised:
        EngineWorker("engine-0", settings).start()
    assert raised.value is error


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (ModelError("it has no parameter for ['lm_head.bias']"), "it has no parameter for ['lm_head.bias']"),
        (ValueError("too many values to unpack (expected 3)"), "ValueError: too many values to unpack (expected 3)"),
    ],
)
def test_a_model_that_cannot_follow_is_refused_until_its_engine_has_sampled(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings, error: Exception, cause: str
) -> None:
    monkeypatch.setattr(engine_worker, "_build", lambda settings: Unready(error))
    first, later = (EngineWorker("engine-0", settings) for _ in range(2))
    for worker in (first, later):
        worker.start()
    with pytest.raises(ModelError) as raised:
        first.prepare({"names": []})
    assert str(raised.value) == refused("receive new weights of", cause)
    later.resume()
    with pytest.raises(EngineBroken, match=f"prepare failed with {type(error).__name__}"):
        later.prepare({"names": []})
    for worker in (first, later):
        worker.close()


async def test_the_traceback_of_what_a_library_raised_is_in_the_log_of_the_worker(
    monkeypatch: pytest.MonkeyPatch, settings: EngineSettings, caplog: pytest.LogCaptureFixture
) -> None:
    failing(monkeypatch, MISSING)
    host = WorkerHost("rlhf.engines.vllm.engine_worker:EngineWorker", 1)
    await host.construct({"name": "engine-0", "settings": settings})
    answer = (await host.call("start", (), {})).outcome
    assert isinstance(answer, MethodFailure)
    assert (answer.error, answer.message) == ("ModelError", refused("run", f"AttributeError: {MISSING}"))
    (record,) = caplog.records
    assert "Traceback" in record.getMessage()
    assert "in build\n    raise error\nAttributeError: 'Lfm2Config'" in record.getMessage()
