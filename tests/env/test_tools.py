"""The calculator: a question from the seed, a tool that calculates and nothing else, and one number at the end."""

from __future__ import annotations

import pytest

from rlhf.env.tools import CalculatorEnvironment, calculated, made_question
from rlhf.types import Message, Task, ToolCall

BARE = Task(id="seeds/0", messages=())


def call(name: str = "calculator", **arguments: object) -> Message:
    return Message(role="assistant", content="", tool_calls=(ToolCall(id="c", name=name, arguments=arguments),))


def say(content: str) -> Message:
    return Message(role="assistant", content=content)


def asked(seed: int) -> str:
    return CalculatorEnvironment().reset(BARE, seed=seed).messages[0].content


def test_a_seed_asks_the_same_question_for_ever_and_seeds_ask_different_ones() -> None:
    assert [asked(seed) for seed in range(50)] == [asked(seed) for seed in range(50)]
    assert len({asked(seed) for seed in range(50)}) > 45


def test_questions_of_training_and_of_evaluation_are_disjoint() -> None:
    trained = {made_question(seed, 1, "*") for seed in range(0, 2000, 2)}
    held_out = {made_question(seed, 1, "*") for seed in range(1, 2000, 2)}
    assert len(trained | held_out) == 81, "all there are with one digit"
    assert not trained & held_out


def test_the_calculator_is_asked_and_its_answer_is_right() -> None:
    environment = CalculatorEnvironment()
    question = environment.reset(BARE, seed=3).messages[0].content
    heard = environment.step(call(expression=question))
    assert (heard.done, heard.reward) == (False, None)
    [answer] = heard.messages
    assert (answer.role, answer.tool_call_id, answer.content) == ("tool", "c", str(eval(question)))
    end = environment.step(say(f"It is {answer.content}."))
    assert (end.reward, end.terminated) == (1.0, True)


def test_a_wrong_answer_ends_with_nothing() -> None:
    environment = CalculatorEnvironment()
    environment.reset(BARE, seed=3)
    end = environment.step(say("1"))
    assert (end.reward, end.terminated) == (0.0, True)


@pytest.mark.parametrize(("said", "reward"), [("so 1,234", 1.0), ("1234.0", 0.0), ("12345", 0.0), ("dunno", 0.0)])
def test_a_task_with_a_question_and_an_answer_asks_that(said: str, reward: float) -> None:
    task = Task(id="t", messages=(Message(role="user", content="a dataset's question"),), answer="1234")
    environment = CalculatorEnvironment()
    assert environment.reset(task, seed=0).messages == task.messages
    assert environment.step(say(said)).reward == reward


@pytest.mark.parametrize(
    ("expression", "value"),
    [("12*(3+4)", "84"), ("-2.5*2", "-5"), ("7/2", "3.5"), (" 1 + 1 ", "2"), ("9" * 60 + "*9", str(9 * int("9" * 60)))],
)
def test_expressions_are_evaluated(expression: str, value: str) -> None:
    assert calculated(expression) == value


@pytest.mark.parametrize(
    "expression",
    [
        "1/0",
        "9**9",
        "__import__('os')",
        "a",
        "",
        "(",
        "1e999",
        "1e999-1e999",
        "True",
        "(" * 150,
        "1" * 201,
        "\x00",
        "1j",
    ],
)
def test_anything_else_is_an_error_in_words(expression: str) -> None:
    assert calculated(expression).startswith("error: ")
