"""`rlhf serve reward` serves a reward over HTTP, in the request formats of several trainers."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from pathlib import Path

import uvicorn

from rlhf.apps.checks.named_reward import named_reward, reward_here
from rlhf.apps.server_options import access_of, check_reach
from rlhf.http.binding import LOOPBACK, REWARD, token_from
from rlhf.http.serving import bound, url_of, uvicorn_config
from rlhf.reward.reward_interface import LiveReward
from rlhf.reward.server import RewardServerSettings, reward_app
from rlhf.runs.trace_export import exporting


def run_serve_reward(
    reward: str,
    overrides: Sequence[str] = (),
    *,
    host: str = LOOPBACK,
    port: int = 8100,
    token_env: str | None = None,
    capacity: int = 32,
    stop_text: Sequence[str] = (),
    name: Sequence[str] = (),
    certificate: Path | None = None,
    key: Path | None = None,
    limit: Sequence[str] = (),
) -> int:
    """Serve until Ctrl-C; returns the exit code. Raises `ConfigError` before anything is started, also for an address
    that other machines reach when there is no token."""
    config = named_reward(reward, overrides)
    token = token_from(token_env)
    access = access_of(name, certificate, key, limit, REWARD)
    check_reach(host, token, access)
    settings = RewardServerSettings(
        name=config.kind,
        capacity=capacity,
        stop_texts=tuple(stop_text),
        reads_tokens=config.kind == "model",
        access=access,
    )
    scoring = reward_here(config)
    served = uvicorn_config(reward_app(scoring, settings, token, host=host), access)
    with bound(host, port) as listener, exporting("reward"):
        return asyncio.run(_serve(scoring, served, listener))


async def _serve(reward: LiveReward, config: uvicorn.Config, listener: socket.socket) -> int:
    try:
        await reward.start()
        print(f"reward at {url_of(listener, tls=config.is_ssl)}", flush=True)
        await uvicorn.Server(config).serve(sockets=[listener])
        return 0
    finally:
        await reward.close()
