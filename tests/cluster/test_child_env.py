"""Children get what programs need to run and what they are named, and no token of whoever started the run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rlhf.cluster.child import child_env, variables_named_in
from rlhf.env.hosting.isolation import Deadlines, Factory
from rlhf.env.hosting.processes import ProcessIsolation
from rlhf.reward.process import ScorerPool
from rlhf.types import EnvironmentSpec, Message, Observation, Scored, Task
from tests.reward.asked import score_text

SECRETS = (
    "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "RAY_AUTH_TOKEN", "AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID",
    "WANDB_API_KEY", "OPENAI_API_KEY", "GITHUB_TOKEN", "PGPASSWORD", "RLHF_SERVER_TOKEN",
    "PYTHON_KEYRING_PASSWORD", "SSH_AUTH_SOCK", "KUBECONFIG", "GOOGLE_APPLICATION_CREDENTIALS", "DATABASE_URL",
    "ANYTHING",
)  # fmt: skip


@pytest.fixture
def secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SECRETS:
        monkeypatch.setenv(name, f"secret of {name}")


def test_no_secret_is_passed_on_unless_it_is_named(secrets: None, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not set(SECRETS) & set(child_env())
    assert set(SECRETS) & set(child_env(["HF_TOKEN", "MISSING"])) == {"HF_TOKEN"}
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("HTTP_PROXY", "http://me:word@proxy:3128")
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
    assert {"PATH", "HTTPS_PROXY", "TOKENIZERS_PARALLELISM"} <= set(child_env())
    assert "HTTP_PROXY" not in child_env()


def test_arguments_name_the_tokens_that_their_class_reads() -> None:
    arguments = {"opponents": [{"chat": {"token_env": "A"}}], "token_env": "B", "other": {"token_env": None}}
    assert list(variables_named_in(arguments)) == ["A", "B"]


class Teller:
    """An environment that says what is in its process."""

    spec = EnvironmentSpec(name="teller", description="")

    def __init__(self, **arguments: object) -> None:
        self.arguments = arguments

    def reset(self, task: Task, *, seed: int) -> Observation:
        parent = Path(f"/proc/{os.getppid()}/cmdline").read_bytes() + Path("/proc/self/cmdline").read_bytes()
        info = {"environment": sorted(os.environ), "command": parent.decode(), "arguments": self.arguments}
        return Observation(messages=(Message(role="user", content="told"),), info=info)

    def step(self, action: Message) -> Observation:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


def tell_environment(response: str, row: dict[str, str]) -> float:
    """A scorer: the share of the named variables that it has."""
    return sum(name in os.environ for name in row["names"]) / len(row["names"])


@pytest.mark.waits
async def test_a_process_of_an_environment_has_no_secret_and_its_command_no_argument(secrets: None) -> None:
    arguments = {"password": "pass phrase", "large": "x" * 500_000, "token_env": "OPENAI_API_KEY"}
    factory = Factory(name=f"{__name__}:Teller", arguments=arguments, variables=("ANYTHING",))
    assert "pass phrase" not in repr(factory)
    isolation = ProcessIsolation(factory, Deadlines())
    await isolation.start()
    try:
        info = (await (await isolation.open("s")).reset(Task(id="0", messages=()), seed=0)).info
    finally:
        await isolation.stop()
    assert info["arguments"] == arguments
    assert __name__ in info["command"]
    assert "pass phrase" not in info["command"]
    assert set(info["environment"]) & set(SECRETS) == {"ANYTHING", "OPENAI_API_KEY"}


@pytest.mark.waits
async def test_a_scorer_has_no_secret_but_those_that_the_recipe_names(secrets: None) -> None:
    for variables, share in (((), 0.0), (("HF_TOKEN", "ANYTHING"), 2 / len(SECRETS))):
        pool = ScorerPool(f"{__name__}:tell_environment", 1, 20.0, None, variables)
        try:
            assert await score_text(pool, "", {"names": list(SECRETS)}) == Scored(value=share)
        finally:
            await pool.close()
