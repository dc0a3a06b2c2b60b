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
from rlhf.tracing import Clock, span, trace_headers, trace_worker
from tests.collector import collecting
from tests.commanded import commanded
from tests.pace import scaled


def test_spans_nest_and_a_block_belongs_to_the_trace_in_which_it_begins() -> None:
    over = asyncio.Event()

    async def late() -> None:
        with span("generate", ordinal=3):
            await over.wait()

    async def run(clock: Clock) -> None:
        clock.begin_trace("update", version=1)
        playing = asyncio.create_task(late())
        with span("train"):
            await asyncio.sleep(0)
            trace_worker("learner-0", "policy.update", 5.0, 1.0)
        trace_worker("engine-0", "collect", 5.0, 1.0)  # in no span: a call for many
        clock.begin_trace("update", version=2)
        over.set()
        await playing
        clock.end_trace()
        with span("afterwards"):
            assert trace_headers() == {}

    with collecting() as collector:
        with exporting("controller", collector.url, run="mine") as clock:
            asyncio.run(run(clock))
        found = collector.traces
    names = {one.span: one.name for one in collector.spans}
    assert {name: [(one.name, names.get(one.parent)) for one in spans] for name, spans in found.items()} == {
        "update 1": [
            ("policy.update", "train"), ("train", "update"), ("update", None), ("generate", "update"),
        ],
        "update 2": [("update", None)],
    }  # fmt: skip
    by_name = {one.name: one for one in found["update 1"]}
    assert {one.run for one in collector.spans} == {"mine"}
    assert by_name["policy.update"].service == "rlhf-learner-0"
    assert (by_name["policy.update"].start, by_name["policy.update"].seconds) == (5.0, 1.0)
    assert by_name["train"].service == "rlhf-controller"
    assert by_name["generate"].attributes == {"ordinal": 3}
    assert [one.name for one in clock.drain()] == ["train", "generate", "afterwards"]


def test_the_environment_names_a_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    with collecting() as collector:
        monkeypatch.setenv(ENDPOINT, collector.url)
        with exporting("controller") as clock:
            clock.begin_trace("start")
            with span("load", detail=True):
                pass
    assert [one.name for one in collector.spans] == ["load", "start"]


@pytest.mark.waits
def test_without_a_collector_nothing_is_imported_and_nothing_is_traced() -> None:
    program = (
        "import sys; from rlhf.runs.trace_export import exporting; from rlhf.tracing import CURRENT, span\n"
        "with exporting('controller') as clock, span('x'), span('y', detail=True): assert CURRENT.get().ids is None\n"
        "assert [one.name for one in clock.drain()] == ['x']\n"
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
        "with exporting('controller', sys.argv[1]) as clock:\n"
        "    for _ in range(30): clock.export(Span(name='x', start=1.0, seconds=1.0), SpanIds(1, 2), None, None)\n"
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
        assert [(one.service, one.name) for one in collector.spans] == [("rlhf-environment", "GET /health")]
