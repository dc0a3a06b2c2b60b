"""Traces: what is a child of what, and what reaches a collector, or tells that it does not."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys

import httpx
import pytest

from rlhf.errors import ConfigError
from rlhf.runs import otlp
from rlhf.runs.trace_export import ENDPOINT, exporting
from rlhf.tracing import Clock, Traces, trace_headers, trace_worker, traced
from tests.collector import collecting
from tests.commanded import commanded
from tests.pace import scaled


def test_spans_nest_and_a_block_belongs_to_the_trace_in_which_it_begins() -> None:
    clock, over = Clock(), asyncio.Event()

    async def late() -> None:
        with clock.span("generate", ordinal=3):
            await over.wait()

    async def run(traces: Traces) -> None:
        traces.begin("update", version=1)
        playing = asyncio.create_task(late())
        with clock.span("train"):
            await asyncio.sleep(0)
            trace_worker("learner-0", "policy.update", 5.0, 1.0)
        trace_worker("engine-0", "collect", 5.0, 1.0)  # in no span: a call for many
        traces.begin("update", version=2)
        over.set()
        await playing
        traces.end()
        with clock.span("afterwards"):
            assert trace_headers() == {}

    with collecting() as collector:
        with exporting("controller", collector.url, run="mine") as traces:
            assert traces is not None
            asyncio.run(run(traces))
        found = collector.traces
    names = {span.span: span.name for span in collector.spans}
    assert {name: [(span.name, names.get(span.parent)) for span in spans] for name, spans in found.items()} == {
        "update 1": [
            ("policy.update", "train"), ("train", "update"), ("update", None), ("generate", "update"),
        ],
        "update 2": [("update", None)],
    }  # fmt: skip
    by_name = {span.name: span for span in found["update 1"]}
    assert {span.run for span in collector.spans} == {"mine"}
    assert by_name["policy.update"].service == "rlhf-learner-0"
    assert (by_name["policy.update"].start, by_name["policy.update"].seconds) == (5.0, 1.0)
    assert by_name["train"].service == "rlhf-controller"
    assert by_name["generate"].attributes == {"ordinal": 3}
    assert [span.name for span in clock.drain()] == ["train", "generate", "afterwards"]


def test_the_environment_names_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        with exporting("controller") as traces:
            assert traces is not None
            traces.begin("start")
            with traced("load"):
                pass
    assert [span.name for span in collector.spans] == ["load", "start"]


@pytest.mark.waits
def test_without_a_collector_nothing_is_imported_and_nothing_is_traced() -> None:
    program = (
        "import sys; from rlhf.runs.trace_export import exporting; from rlhf.tracing import CURRENT, traced\n"
        "with exporting('controller') as traces, traced('x'): assert traces is None and CURRENT.get() is None\n"
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    without = {"PATH": "/usr/bin", "PYTHONPATH": ":".join(sys.path)}
    assert subprocess.run([sys.executable, "-c", program], env=without, timeout=scaled(60)).returncode == 0


@pytest.mark.waits
@pytest.mark.parametrize(("silent", "told"), [(False, "Connection refused"), (True, "no answer in time")])
def test_a_collector_that_is_down_is_one_line_and_no_wait(silent: bool, told: str) -> None:
    """Silent: it takes connections and never answers."""
    program = (
        "import sys, time; from rlhf.runs import otlp; from rlhf.runs.trace_export import exporting\n"
        "from rlhf.tracing import CURRENT, Span, SpanIds\n"
        "otlp.CLOSE_SECONDS = 0.2\n"
        "with exporting('controller', sys.argv[1]) as traces:\n"
        "    for _ in range(30): traces.export(Span(name='x', start=1.0, seconds=1.0), SpanIds(1, 2), None, None)\n"
        "    began = time.monotonic()\n"
        "sys.exit(time.monotonic() - began > float(sys.argv[2]) or CURRENT.get() is not None)"
    )
    queue = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    timeout = {"OTEL_EXPORTER_OTLP_TIMEOUT": "0.4" if silent else "10"}
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        if not silent:
            listener.close()
        command = [sys.executable, "-c", program, url, str(scaled(3))]
        ended = subprocess.run(
            command, env=os.environ | queue | timeout, capture_output=True, text=True, timeout=scaled(60)
        )
    assert (ended.returncode, ended.stderr) == (0, "")
    (line,) = ended.stdout.splitlines()
    assert line.startswith(f"traces do not reach {url}: ")
    assert told in line


def test_an_unknown_protocol_is_named_with_those_that_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(otlp.PROTOCOL, "http/json")
    with pytest.raises(ConfigError, match="OTEL_EXPORTER_OTLP_PROTOCOL=http/json: give one of http/protobuf, grpc"):
        otlp.otlp_exporter(None)


def test_the_protocol_may_be_grpc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(otlp.PROTOCOL, "grpc")
    assert "grpc" in type(otlp.otlp_exporter("http://127.0.0.1:9")).__module__


@pytest.mark.waits
def test_a_server_that_is_told_to_end_sends_its_spans_first() -> None:
    with collecting() as collector:
        with commanded("env", "rlhf.env.tools:CalculatorEnvironment", **{ENDPOINT: collector.url}) as (url, _):
            httpx.get(f"{url}/health", headers={"traceparent": f"00-{7:032x}-{8:016x}-01"}, trust_env=False)
        assert [(span.service, span.name) for span in collector.spans] == [("rlhf-environment", "GET /health")]
