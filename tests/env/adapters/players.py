"""Fixed players for the tests of games."""

from __future__ import annotations

import random
import re


def tictactoe(shown: str, draws: random.Random) -> str:
    """One of the free squares that the board of TextArena's tic-tac-toe lists last."""
    listed = shown.rpartition("Available Moves:")[2]
    return draws.choice(re.findall(r"\[\d\]", listed))


def guess(shown: str, draws: random.Random) -> str:
    return f"[{draws.randint(1, 20)}]"


def nim(shown: str, draws: random.Random) -> str:
    """Something of the first pile that is not empty; sometimes a move that the game refuses."""
    piles = re.findall(r"pile (\d+): (\d+)", shown.rpartition("Current Pile")[2] or shown)
    filled = [pile for pile, left in piles if int(left)]
    return f"[{draws.choice(filled or ['0'])} {draws.randint(1, 2)}]"


def connect_four(shown: str, draws: random.Random) -> str:
    """Any column whose top is free in the board that is shown last."""
    top = shown.rpartition("-------------")[2].split()[:7]
    return f"[col {draws.choice([index for index, disk in enumerate(top) if disk == '.'])}]"


def poker(shown: str, draws: random.Random) -> str:
    """Any of the actions that the game of Kuhn lists last."""
    return draws.choice(re.findall(r"'(\[\w+\])'", shown.rpartition("available actions are:")[2]))


def blackjack(shown: str, draws: random.Random) -> str:
    return draws.choice(["[Hit]", "[Stand]"])


def dice(shown: str, draws: random.Random) -> str:
    return draws.choice(["[roll]", "[roll]", "[hold]"])


def three_in_a_square(shown: str, draws: random.Random) -> str:
    """One of the free squares that the larger board lists last."""
    return draws.choice(re.findall(r"\[\d+\]", shown.rpartition("Available Moves:")[2]))
