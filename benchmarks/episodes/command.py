"""`python -m benchmarks episodes`: ask `rlhf view` for episodes of a large run, through HTTP."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.records.command import GROUP, made_update
from rlhf.runs.episode_parts import REPEATING
from rlhf.runs.episode_records import ended_in_update, records_of
from rlhf.runs.episode_table import SCHEMA, table_of

OF_A_PART = 1000
TEMPLATES = 10
"""Parts that are made token by token; the others repeat them with other rewards."""
NAME = "made"
SETTLING_SECONDS = 10
"""Until the server has read the short columns into memory."""
AT_ONCE: Mapping[str, Mapping[str, str]] = {"view": {}, "filter": {"where": "reward < 0.0001"}}
QUESTIONS: Mapping[str, Mapping[str, str]] = {
    "view": {},
    "last page": {"order": "update DESC, ordinal DESC"},
    "filter reward": {"where": "reward < 0.0001"},
    "filter part": {"where": "reward_parts['exact'] = 1 AND update > 990"},
    "filter task": {"where": "task = 'made/42'"},
    "filter half": {"where": "reward < 0.5 AND sampled_tokens > 10"},
    "order": {"order": "reward"},
    "order by part": {"order": "reward_parts['exact'] DESC, reward"},
    "filter and order": {"where": "update > 500", "order": "reward DESC NULLS LAST"},
    "regular expression": {"where": "regexp_matches(response, 'odd.*two.*odd of odd of')"},
    "rare expression": {"where": "regexp_matches(response, '(odd ){6}')", "order": "reward"},
}


def main(arguments: Sequence[str]) -> None:
    """Print the seconds of each answer, and the largest memory of the server."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks episodes", description=__doc__)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="where the run is made, or was made before [a temporary folder]")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as scratch:
        run = (options.folder or Path(scratch)) / NAME
        if not run.exists():
            make_run(run, options.episodes // OF_A_PART)
        with viewed(run) as (address, server):
            first = {f"{name} at once": asked(address, given) for name, given in AT_ONCE.items()}
            time.sleep(SETTLING_SECONDS)
            later = {name: asked(address, given) for name, given in QUESTIONS.items()}
            seconds = {name: round(value, 2) for name, value in (first | later).items()}
            result = {"seconds": seconds, "peak_mb": peak_mb(server)}
    print("RESULT", json.dumps(result), flush=True)


def make_run(run: Path, parts: int) -> None:
    """Write a run folder with that many parts of 1,000 episodes with 200 tokens, and with all columns of real ones."""
    groups, updated = made_update(TEMPLATES * OF_A_PART // GROUP)
    ended, each = ended_in_update(groups, updated, 1), OF_A_PART // GROUP
    templates = [
        table_of(record for group in ended[first : first + each] for record in records_of(group))
        for first in range(0, len(ended), each)
    ]
    (run / "owner").mkdir(parents=True)
    (run / "episodes").mkdir()
    (run / "recipe.yaml").write_text(f"name: {NAME}\ntrainer: {{updates: {parts}}}\n")
    rng = np.random.default_rng(0)
    with (run / "metrics.jsonl").open("w") as metrics:
        for number in range(1, parts + 1):
            table = other_part(templates[number % TEMPLATES], number, rng.random(OF_A_PART))
            file = run / "episodes" / f"part-{number:06}.parquet"
            pq.write_table(table, file, compression="zstd", use_dictionary=REPEATING)
            metrics.write(json.dumps({"update": number, "time": float(number), "reward/mean": 0.5}) + "\n")


def other_part(table: pa.Table, number: int, rewards: np.ndarray[Any, np.dtype[np.float64]]) -> pa.Table:
    """Return the part of another update, with other groups and rewards."""
    columns = {
        "update": np.full(OF_A_PART, number),
        "ordinal": ((number - 1) * OF_A_PART + np.arange(OF_A_PART)) // GROUP,
        "reward": rewards,
    }
    for name, values in columns.items():
        place = SCHEMA.get_field_index(name)
        table = table.set_column(place, SCHEMA.field(name), pa.array(values, SCHEMA.field(name).type))
    return table


@contextmanager
def viewed(run: Path) -> Iterator[tuple[str, int]]:
    """Serve the run by `rlhf view`; yield the server's address and process id."""
    command = [sys.executable, "-m", "rlhf", "view", str(run), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield server.stdout.readline().split()[-1], server.pid
        finally:
            server.terminate()


def asked(address: str, given: Mapping[str, str]) -> float:
    """Return the seconds until the page of episodes for this question was received. Raises `HTTPStatusError`."""
    began = time.perf_counter()
    httpx.get(f"{address}/api/episodes", params={"run": NAME} | given, timeout=60).raise_for_status()
    return time.perf_counter() - began


def peak_mb(process: int) -> int:
    """Return the largest memory that the process ever held."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) // 1024
