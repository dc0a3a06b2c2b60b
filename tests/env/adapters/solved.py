"""Right answers to problems of reasoning-gym: the given one, or where an entry holds none, one that solves it."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Facts = Mapping[str, Any]
"""The `metadata` of an entry."""
SIDE = 6
EXIT = 2 * SIDE + 4
"""The square of the red car's back when it stands at the exit of rush hour."""


def right_answer(name: str, entry: Mapping[str, Any]) -> str:
    given = entry["answer"]
    return SOLVERS[name](entry["metadata"]) if given is None else str(given)


def colouring(facts: Facts) -> str:
    return json.dumps(facts["possible_answer"])


def conclusion(facts: Facts) -> str:
    return str(facts["example_answer"])


def turns_of_a_cube(facts: Facts) -> str:
    return str(facts["example_correct_answer"])


def boxes_carried(facts: Facts) -> str:
    """Return a plan for boxnet: one box after another is carried along its row, along its column, and into its
    target."""
    places = {item: square for square, items in facts["initial_state"].items() for item in items}
    boxes = [item for item in places if item.startswith("box_")]
    steps = [step for box in boxes for step in carried(box, places[box], places[f"target_{box[4:]}"])]
    return json.dumps(steps)


def carried(box: str, start: str, end: str) -> Iterator[dict[str, str]]:
    (row, column), (last_row, last_column) = (map(float, square.split("_")) for square in (start, end))
    while (row, column) != (last_row, last_column):
        agent = f"Agent[{row}, {column}]"
        if column != last_column:
            column += 1 if column < last_column else -1
        else:
            row += 1 if row < last_row else -1
        yield {agent: f"move({box}, square[{row}, {column}])"}
    yield {f"Agent[{row}, {column}]": f"move({box}, target_{box[4:]})"}


def red_car_freed(facts: Facts) -> str:
    """Return the shortest way out of rush hour, a square at a time, by trying all."""
    board = as_asked(facts["board_config"])
    ways: dict[str, str] = {board: ""}
    waiting = deque([board])
    while waiting:
        board = waiting.popleft()
        if board.index("A") == EXIT:
            return ways[board].strip()
        for move, after in slides(board):
            if after not in ways:
                ways[after] = f"{ways[board]} {move}"
                waiting.append(after)
    raise AssertionError("no way out")


def as_asked(board: str) -> str:
    """Return the board with the letters of the question, which leaves none out: the cars in order are A, B, C and so
    on."""
    cars = sorted(set(board) - {"o", "x"})
    return board.translate({ord(car): chr(ord("A") + index) for index, car in enumerate(cars)})


def slides(board: str) -> Iterator[tuple[str, str]]:
    """Every move of one car by one square, and the board after it. `o` is free, `x` a wall."""
    for car in sorted(set(board) - {"o", "x"}):
        cells = [index for index, letter in enumerate(board) if letter == car]
        stride = cells[1] - cells[0]
        for sign, entered, left in (("+", cells[-1] + stride, cells[0]), ("-", cells[0] - stride, cells[-1])):
            same_row = entered // SIDE == left // SIDE
            if 0 <= entered < len(board) and (same_row or stride == SIDE) and board[entered] == "o":
                after = list(board)
                after[entered], after[left] = car, "o"
                yield f"{car}{sign}1", "".join(after)


SOLVERS: dict[str, Callable[[Facts], str]] = {
    "boxnet": boxes_carried,
    "graph_color": colouring,
    "propositional_logic": conclusion,
    "rubiks_cube": turns_of_a_cube,
    "rush_hour": red_car_freed,
}
"""How to solve what holds no given answer: many are right, and a scorer judges."""
