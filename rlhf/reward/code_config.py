"""Settings of the reward `code`: unit tests of the task, run on the code of the reply in a sandbox."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from rlhf.config import Config


class CodeRewardConfig(Config):
    """Where the tests are, how they are counted, and who runs them."""

    tests_column: str = "tests"
    """Column with the tests: asserts as text or as a list of texts, or pairs of input and output: a list of
    `{input, output}`, or `{inputs: [...], outputs: [...]}`, also as JSON text."""
    entry_point_column: str | None = None
    """Column with the name of the function that tests of the form `def check(candidate)` are called with."""
    setup_column: str | None = None
    """Column with Python that is run with the tests, before them: helpers and imports that tests use and do not hold.
    What is tested is the code's, whatever the set-up calls so: HumanEval's `prompt` can be named."""
    names: tuple[str, ...] = ()
    """Names that tests take from the code besides the entry point's, a class `ListNode` say. Where a row has an entry
    point, no others come from the code; where it has none, every name that the tests do not bind does."""
    tests: Literal["values", "trusting"] = "values"
    """Of asserts. `values`: they run in a process of their own, and only plain values come from the code; `trusting`:
    they run in the code's process, for tests that need its objects. A policy can then replace what tests use, and pass
    them all. docs/sandbox.md says which tests that are."""
    score: Literal["share", "all"] = "share"
    """`share`: the share of tests that pass; `all`: 1 when every test passes, else 0."""
    timeout_seconds: float = Field(10, gt=0)
    """For all asserts of a reply together, or for each pair of input and output."""
    pairs_timeout_seconds: float = Field(60, gt=0)
    """For all pairs of input and output of a reply together, which run one after the other: those that are left when
    it is over fail."""
    memory_mb: int = Field(512, ge=64)
    """Memory of a run, in MiB."""
    url: str | None = None
    """Server that runs the code (`rlhf serve sandbox`, or a SandboxFusion); without one it is run on this machine."""
    token_env: str | None = None
    """Environment variable with the server's bearer token."""
    max_concurrent_requests: int = Field(64, ge=1)
    """Programs that the server is asked for at once; a reply has one at a time."""
    max_concurrent_runs: int = Field(2, ge=1)
    """Programs that this machine's sandbox runs at once."""
    python: str | None = None
    """The Python that runs the code on this machine, with its packages; without one, a Python without packages."""
    allow_rlimits: bool = False
    """Run code on this machine without isolation where none works."""
