"""The newest metrics of a run for Prometheus, which requests them at `/metrics`."""

from __future__ import annotations

import math
import re
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rlhf.http.access import AccessMiddleware
from rlhf.http.binding import Access
from rlhf.http.serving import listening, uvicorn_config
from rlhf.runs.metric_catalogue import find_metric

NOT_IN_PROMETHEUS = re.compile(r"[^a-zA-Z0-9_]")


class Gauges(Collector):
    """A logger that keeps the last number of every metric: `policy/entropy` is `rlhf_policy_entropy`, labelled with its
    name and its run. One that became NaN is left out until it is a number again."""

    def __init__(self, run: str) -> None:
        self._run = run
        self._values: dict[str, float] = {}

    def log(self, update: int, metrics: Mapping[str, float]) -> None:
        known = self._values | dict(metrics) | {"update": update}
        self._values = {name: float(value) for name, value in known.items() if math.isfinite(value)}

    def close(self) -> None:
        """Do nothing: the server is closed by its own block."""

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Return the gauges, with the meaning of each."""
        families: dict[str, GaugeMetricFamily] = {}
        for metric, value in self._values.items():
            name, known = prometheus_name(metric), find_metric(metric)
            meaning = known.meaning if known else metric
            family = families.setdefault(name, GaugeMetricFamily(name, meaning, labels=("run", "metric")))
            family.add_metric((self._run, metric), value)
        yield from families.values()


def prometheus_name(metric: str) -> str:
    """Return a metric's name in the characters that Prometheus allows."""
    return "rlhf_" + NOT_IN_PROMETHEUS.sub("_", metric.replace("@", "_at_"))


@asynccontextmanager
async def scraped(gauges: Gauges, *, host: str, port: int, token: str | None) -> AsyncIterator[str]:
    """Serve the gauges, and yield the server's URL. Raises `UserError` for an address that is not available."""
    registry = CollectorRegistry()
    registry.register(gauges)

    async def metrics(request: Request) -> Response:
        return Response(generate_latest(registry), media_type=CONTENT_TYPE_LATEST)

    pages = Starlette(routes=[Route("/metrics", metrics)])
    access = Access()
    guarded = AccessMiddleware(pages, lambda _, why: {"error": why}, access, host=host, token=token)
    async with listening(uvicorn_config(guarded, access, host=host, port=port)) as url:
        yield url
