"""A Prometheus of a test: it asks a run for its metrics, again and again, and keeps the last answer for each update."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import httpx
from prometheus_client.parser import text_string_to_metric_families

EVERY_SECONDS = 0.2
Gauges = dict[str, float]
"""The values of one scrape, by the name of the metric."""


@contextlib.contextmanager
def scraping(port: int, found: dict[int, Gauges]) -> Iterator[None]:
    """Put what is scraped at a port into `found`, by update, until the block ends."""
    over = threading.Event()

    def scrape() -> None:
        with httpx.Client(trust_env=False, base_url=f"http://127.0.0.1:{port}") as client:
            while not over.wait(EVERY_SECONDS):
                with contextlib.suppress(httpx.HTTPError):
                    gauges = gauges_of(client.get("/metrics").text)
                    found[int(gauges.pop("update", 0))] = gauges

    thread = threading.Thread(target=scrape, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def gauges_of(text: str) -> Gauges:
    samples = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {sample.labels["metric"]: sample.value for sample in samples}
