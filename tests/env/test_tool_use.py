"""Questions, and tools to answer them with: Python, and what a wrong call is answered."""

from __future__ import annotations

import pytest

from rlhf.env.python_tool import PythonToolEnvironment
from rlhf.env.single_turn import SingleTurnEnvironment
from rlhf.errors import ConfigError
from rlhf.types import Message, Observation, Task, ToolCall

QUESTION = Task(id="0", messages=(Message(role="user", content="Which bird cannot fly?"),), answer="the penguin")


def calls(*asked: tuple[str, dict[str, object]]) -> Message:
    made = (ToolCall(id=f"c{index}", name=name, arguments=arguments) for index, (name, arguments) in enumerate(asked))
    return Message(role="assistant", content="", tool_calls=tuple(made))


def contents(observation: Observation) -> list[str]:
    return [message.content for message in observation.messages]


def run(code: str) -> str:
    """Return a runner for tests: it runs nothing."""
    return {"print(6 * 7)": "42\n", "pass": ""}.get(code, "x" * 100)


def broken(code: str) -> str:
    raise ConnectionError("the sandbox is gone")


def python(**arguments: object) -> PythonToolEnvironment:
    environment = PythonToolEnvironment(runner="tests.env.test_tool_use:run", **arguments)  # type: ignore[arg-type]
    environment.reset(QUESTION, seed=0)
    return environment


def test_one_reply_ends_a_single_turn_and_its_score_is_the_reward() -> None:
    environment = SingleTurnEnvironment(score="rlhf.reward.rules:exact")
    assert environment.reset(QUESTION, seed=0).messages == QUESTION.messages
    right = environment.step(Message(role="assistant", content="the penguin"))
    assert (right.reward, right.terminated, right.truncated) == (1.0, True, False)
    assert environment.step(Message(role="assistant", content="the swift")).reward == 0.0


def test_without_a_score_the_reward_is_left_to_the_recipe() -> None:
    environment = SingleTurnEnvironment()
    environment.reset(QUESTION, seed=0)
    end = environment.step(Message(role="assistant", content="the penguin"))
    assert (end.reward, end.terminated) == (None, True)


def test_a_score_that_cannot_be_imported_is_refused() -> None:
    with pytest.raises(ConfigError, match="score is no_module:f"):
        SingleTurnEnvironment(score="no_module:f")


def test_python_says_what_the_runner_says() -> None:
    ran = python().step(calls(("python", {"code": "print(6 * 7)"}), ("python", {"code": "pass"})))
    assert contents(ran) == ["42", "(nothing was printed)"]


def test_of_a_long_output_the_beginning_and_the_end_are_read() -> None:
    said = contents(python(longest=29).step(calls(("python", {"code": "endless"}))))[0]
    assert said == "xxxxxxxxxx\n… cut …\nxxxxxxxxxx"


@pytest.mark.parametrize(
    ("name", "arguments", "says"),
    [
        ("perl", {"code": "1"}, "error: there is no tool 'perl'; use one of python"),
        ("python", {}, "error: the argument 'code' must be a non-empty string; the call has the arguments []"),
        (
            "python",
            {"code": 7},
            "error: the argument 'code' must be a non-empty string; the call has the arguments ['code']",
        ),
        (
            "python",
            {"code": "  "},
            "error: the argument 'code' must be a non-empty string; the call has the arguments ['code']",
        ),
    ],
)
def test_a_call_that_makes_no_sense_is_answered_and_the_episode_goes_on(
    name: str, arguments: dict[str, object], says: str
) -> None:
    answered = python().step(calls((name, arguments)))
    assert contents(answered) == [says]
    assert not answered.done


def test_a_runner_that_is_broken_raises_and_answers_nothing() -> None:
    environment = PythonToolEnvironment(runner="tests.env.test_tool_use:broken")
    environment.reset(QUESTION, seed=0)
    with pytest.raises(ConnectionError):
        environment.step(calls(("python", {"code": "1"})))
