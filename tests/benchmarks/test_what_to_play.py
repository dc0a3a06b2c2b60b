"""What the benchmark of choices and second uses makes of its runs, and its task of which most prompts teach nothing."""

from __future__ import annotations

from collections import Counter

from benchmarks.what_to_play.command import SETTINGS, TASKS, figures, recipe
from benchmarks.what_to_play.numbers import demonstrations, tasks
from benchmarks.what_to_play.runs import Reached


def reached(tokens: int, *, there: bool = True) -> Reached:
    return Reached(tokens=tokens, updates=10, reached=there, equal_groups=0.5)


def test_settings_are_compared_by_the_medians_of_their_seeds_and_seed_by_seed() -> None:
    uniform = {0: reached(100), 1: reached(300), 2: reached(200)}
    other = {0: reached(150), 1: reached(90), 2: reached(400, there=False)}
    found = dict(figures({"uniform": uniform, "learnability": other}))
    assert found["learnability"] == {
        "tokens": 150, "least": 90, "most": 400, "never": 1, "equal_groups": 0.5, "ratio": 0.75,
        "ratios": [1.5, 0.3, 2.0],
    }  # fmt: skip


def test_three_in_ten_numbers_teach_and_what_is_held_out_are_others_of_these() -> None:
    lengths = Counter(len(task.row["question"]) for task in tasks(rows=60))
    assert lengths == {5: 18, 2: 21, 7: 21}
    held_out = tasks(rows=50, teaching_share=1.0, split="eval")
    assert {len(task.row["question"]) for task in held_out} == {5}
    assert not {task.id for task in held_out} & {task.id for task in tasks(rows=60)}


def test_two_digits_are_shown_in_ascending_order_and_three_in_ten_of_the_others() -> None:
    shown = [(question.content, reply.content) for question, reply in demonstrations(2000, 0)]
    assert all(reply == "".join(sorted(question)) for question, reply in shown if len(question) == 2)
    ascending = [reply == "".join(sorted(question)) for question, reply in shown if len(question) == 5]
    assert 0.27 < sum(ascending) / len(ascending) < 0.34
    assert {len(question) for question, _ in shown} == {2, 5}


def test_every_setting_of_every_task_is_a_recipe(tmp_path) -> None:
    for task in TASKS:
        uses = {name: recipe(task, name, 3, tmp_path) for name in SETTINGS}
        assert {one.trainer.proximal_logprobs for one in uses.values()} == {"recomputed"}
        assert [one.trainer.replay.groups > 0 for one in uses.values()] == [False, False, True, True]
        orders = [sets.order for one in uses.values() for sets in one.data.train_sets.values()]
        assert orders == ["uniform", "learnability", "uniform", "learnability"]
