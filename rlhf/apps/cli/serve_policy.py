"""`rlhf serve policy` serves a checkpoint over OpenAI's API, and records the agents' episodes in a file."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from rlhf.apps.cli.train import as_ctrl_c
from rlhf.apps.failures import reporting_failures
from rlhf.apps.server_options import access_of, check_reach
from rlhf.chat.renderer import ChatRenderer
from rlhf.chat.tool_calls import check_tool_format
from rlhf.cluster.supervisor import supervise
from rlhf.errors import ConfigError
from rlhf.http.binding import LOOPBACK, POLICY, Access, token_from
from rlhf.http.serving import listening
from rlhf.rollout.agent_config import ClientStop
from rlhf.rollout.endpoint.app import policy_app, policy_uvicorn_config
from rlhf.rollout.endpoint.front import Front, KeepTrajectory
from rlhf.rollout.endpoint.sessions import AgentSessions
from rlhf.rollout.episode import PolicyClient
from rlhf.rollout.seeds import request_seed
from rlhf.runs.episode_records import ended_served, images_of, records_of
from rlhf.runs.image_files import image_folder, write_images
from rlhf.runs.jsonl import JsonlWriter
from rlhf.runs.records import as_row
from rlhf.runs.trace_export import exporting
from rlhf.trainer.checkpoint import MANIFEST, model_folder, read_checkpoint
from rlhf.types import PolicyVersion, Sampling, Trajectory

if TYPE_CHECKING:
    from rlhf.controller.build import Serving

TOOL_FORMAT = "--tool-format"
ENDINGS = (signal.SIGINT, signal.SIGTERM)
REFUSED_SECONDS = 30
"""How often the counts of refused requests are printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicySettings:
    """Settings of the policy server. At most `capacity` episodes are open; one that is unused for `lease_seconds` ends.
    `trajectories` is a new file for the episodes."""

    host: str = LOOPBACK
    port: int = 8200
    token_env: str | None = None
    max_tokens: int = 1024
    temperature: float = 1.0
    seed: int = 0
    tool_format: str = "auto"
    client_stop: ClientStop = "cut"
    structured_outputs: Literal["apply", "ignore"] = "apply"
    trajectories: Path | None = None
    capacity: int = 1024
    lease_seconds: float = 600.0
    access: Access = field(default_factory=lambda: Access(limits=POLICY))


def run_serve_policy(
    checkpoint: Path,
    name: Sequence[str] = (),
    certificate: Path | None = None,
    key: Path | None = None,
    limit: Sequence[str] = (),
    **options: Any,
) -> int:
    """Serve until Ctrl-C; returns the exit code. Raises `UserError` before anything is started."""
    settings = PolicySettings(access=access_of(name, certificate, key, limit, POLICY), **options)
    model, token = model_folder(checkpoint), token_from(settings.token_env)
    check_reach(settings.host, token, settings.access)
    check_tool_format(settings.tool_format, TOOL_FORMAT)
    if settings.trajectories and not settings.trajectories.absolute().parent.is_dir():
        raise ConfigError(f"--trajectories {settings.trajectories}: there is no such folder; make it first")
    if settings.trajectories and settings.trajectories.exists():
        raise ConfigError(f"--trajectories {settings.trajectories} exists; remove it, or name another file")

    def run() -> int:
        signal.signal(signal.SIGTERM, as_ctrl_c)
        return asyncio.run(serve_model(model, checkpoint.name, token, settings))

    return supervise(reporting_failures(run))


async def serve_model(model: str, name: str, token: str | None, settings: PolicySettings) -> int:
    """Start an engine with the model in a folder, and serve until cancelled."""
    from rlhf.chat.format_choice import format_for, told_of_tools
    from rlhf.controller.inference import served_here

    # A loading engine cannot be interrupted and has nothing to close: the guard cleans up after it.
    structured = settings.structured_outputs == "apply"
    handlers = {ending: signal.signal(ending, lambda number, frame: os._exit(128 + number)) for ending in ENDINGS}

    async def answer(serving: Serving) -> int:
        for ending, handler in handlers.items():
            signal.signal(ending, handler)
        async with AsyncExitStack() as stack:
            keep = stack.enter_context(trajectory_writer(settings.trajectories, version_of(model)))
            sessions = AgentSessions(
                capacity=settings.capacity, client_stop=settings.client_stop, structured=structured
            )
            renderer = serving.renderer.reading(format_for(serving.renderer, settings.tool_format, TOOL_FORMAT))
            policies = partial(policy_of, serving, renderer, settings)
            front = Front(sessions, policies, keep, lease_seconds=settings.lease_seconds)
            stack.callback(front.close)
            access, host, refused = settings.access, settings.host, Counter[str]()
            app = policy_app(sessions, model=name, token=token, front=front, access=access, host=host, refused=refused)
            config = policy_uvicorn_config(app, access, host=host, port=settings.port)
            stack.enter_context(exporting("policy"))
            url = await stack.enter_async_context(listening(config))
            for words in (*told_of_tools(renderer), f"policy {name} at {url}/v1"):
                print(words, flush=True)
            await asyncio.gather(front.sweep(), tell_refused(refused))
        return 0

    return await served_here(model, answer, structured=structured)


async def tell_refused(refused: Counter[str]) -> None:
    """Print from time to time what was refused since the last time; runs forever."""
    while True:
        await asyncio.sleep(REFUSED_SECONDS)
        if refused:
            counts = ", ".join(f"{count} x {why}" for why, count in refused.most_common())
            print(f"refused in the last {REFUSED_SECONDS} s: {counts}", flush=True)
            refused.clear()


def policy_of(serving: Serving, renderer: ChatRenderer, settings: PolicySettings, number: int) -> PolicyClient:
    """Return the policy of the n-th episode; its random seeds follow from that number."""
    return PolicyClient(
        engine=serving.router,
        renderer=renderer,
        sampling=Sampling(temperature=settings.temperature, max_tokens=settings.max_tokens),
        max_context_tokens=serving.facts.max_context_tokens,
        session=f"serve-{number}",
        seed_of=lambda turn: request_seed(run_seed=settings.seed, purpose="serve", ordinal=number, sample=0, turn=turn),
    )


def version_of(model: str) -> PolicyVersion:
    """Return the number of updates of a checkpoint's model; 0 for another folder."""
    checkpoint = Path(model).parent
    return read_checkpoint(checkpoint).version if (checkpoint / MANIFEST).is_file() else 0


@contextmanager
def trajectory_writer(file: Path | None, version: PolicyVersion) -> Iterator[KeepTrajectory]:
    """Open the file; yield a function that writes an episode to disk. Each group has an ordinal of its own."""
    if file is None:
        yield lambda trajectory, reward, group: None
        return
    lines, numbers = JsonlWriter(file, buffered_lines=1), itertools.count()
    groups: dict[str, tuple[int, Iterator[int]]] = {}

    def keep(trajectory: Trajectory, reward: float | None, group: str | None) -> None:
        place = groups[group] if group in groups else (next(numbers), itertools.count())
        if group is not None:
            groups[group] = place
        ended = ended_served(place[0], trajectory, reward, version)
        write_images(image_folder(file), images_of(ended))
        for record in records_of(ended):
            lines.write([as_row(replace(record, sample=next(place[1]), group_name=group))])

    try:
        yield keep
    finally:
        lines.close()
